import functools
import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cover import by_default
from privacy.references import responses_delta
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.errors import VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.robust.filter import outlier_filter
from quoron_privacy.robust.filter.outlier_filter import _one_way as one_way
from quoron_privacy.robust.filter.outlier_filter import game_values, recounted_values
from quoron_privacy.robust.filter.thresholds import HiddenCutoff, cutoff_law, end_mass


def jacobi_game(epsilon: float, each: float, hits: int, mu: float, reach: float = 6.0) -> dict[tuple[int, int], float]:
    """V_r at every lattice point, by plain value iteration on a lattice much wider than needed."""
    likely = 1 / (1 + math.exp(-each))
    rare = 1 - likely
    points = range(-int(reach / each), int((epsilon + reach) / each) + 1)
    stop = np.array([delta_for(mu, epsilon - j * each) for j in points])
    before, table = stop.copy(), {}
    for r in range(1, hits + 1):
        now = before.copy()
        for _ in range(3000):
            up, down = np.append(now[1:], 1.0), np.append(now[0], now[:-1])
            hit_up, hit_down = np.append(before[1:], 1.0), np.append(before[0], before[:-1])
            new = np.maximum(stop, np.maximum(likely * hit_up + rare * down, likely * up + rare * hit_down))
            if np.max(new - now) < 1e-18:
                break
            now = new
        before = now
        table |= {(r, j): float(v) for j, v in zip(points, now, strict=True)}
    return table


@pytest.mark.parametrize(
    ("epsilon", "each", "hits", "mu"), [(1.0, 0.05, 8, 0.1), (4.0, 0.2, 6, 0.5), (0.5, 0.03, 3, 0.0)]
)
def test_game_and_recount_agree_with_plain_value_iteration(epsilon, each, hits, mu):
    reference = jacobi_game(epsilon, each, hits, mu)
    asked = {"epsilon": epsilon, "each": each, "hits": hits, "offsets": (-4, 0, 4)}
    values = [game_values(**asked, mus=np.array([mu]))]
    if mu:
        values.append(recounted_values(**asked, mus=np.array([mu])))
    for r in range(1, hits + 1):
        for k, offset in enumerate((-4, 0, 4)):
            exact = reference[r, offset]
            for found in values:  # the narrow lattice costs a little
                assert exact * (1 - 1e-12) - 1e-16 <= found[r - 1, k, 0] <= exact * 1.01 + 1e-15


@pytest.mark.parametrize("broken", [lambda start, gains, share: start, lambda *asked: one_way(*asked) * (1 - 1e-9)])
def test_a_recount_that_is_too_low_is_refused(broken, monkeypatch):
    monkeypatch.setattr(outlier_filter, "_one_way", broken)
    with pytest.raises(VerificationError, match="Expected a supersolution of the charging game"):
        recounted_values(epsilon=1.0, each=0.05, hits=8, offsets=(-4, 0, 4), mus=np.array([0.1]))


def laplace_above(score: float, scale: float, threshold: float) -> float:
    gap = (threshold - score) / scale
    return 0.5 * math.exp(-gap) if gap >= 0 else 1 - 0.5 * math.exp(gap)


def best_adversary(epsilon: float, mu: float, tests: list[tuple[float, float]], horizon: int, hits: int, prior: float):
    """Exact supremum over trees of depth `horizon` whose every node is one of `tests` (hit probabilities p, p')."""

    @functools.cache
    def worth(left: int, r: int, log_ratio: float) -> float:
        best = delta_for(mu, epsilon - log_ratio)  # stop and release
        if left == 0 or r == 0:
            return best if r > 0 else max(0.0, 1 - math.exp(epsilon - log_ratio))  # out of hits: nothing is released
        for p, q in tests:
            hit = p * worth(left - 1, r - 1, log_ratio + math.log(p / q))
            miss = (1 - p) * worth(left - 1, r, log_ratio + math.log((1 - p) / (1 - q)))
            best = max(best, hit + miss)
        return best

    return worth(horizon, hits, prior)


@pytest.mark.parametrize("scale", by_default([1.5, 4.0], [4.0]))
@pytest.mark.parametrize(("hits", "horizon"), by_default([(1, 4), (2, 3), (3, 3)], [(2, 3)]))
def test_no_adaptive_series_of_laplace_tests_beats_the_game(scale, hits, horizon):
    each = 1.0 / scale
    tests = [
        (laplace_above(t, scale, 0.0), laplace_above(t + move, scale, 0.0))
        for t in (-3.0, -0.5, 0.5, 3.0)
        for move in (-1.0, 1.0)
    ]
    yes = 1 / (1 + math.exp(-each))
    tests += [(yes, 1 - yes), (1 - yes, yes), (1e-4 * math.exp(each), 1e-4)]
    for epsilon, mu in ((0.3, 0.2), (1.0, 0.5)):
        values = game_values(epsilon=epsilon, each=each, hits=hits, offsets=(-1, 0, 1), mus=np.array([mu]))
        for k, offset in enumerate((-1, 0, 1)):
            found = best_adversary(epsilon, mu, tests, horizon, hits, offset * each)
            assert delta_for(mu, epsilon - offset * each) <= found <= values[-1, k, 0] * (1 + 1e-12)
            if hits == 1:
                assert found >= 0.5 * values[-1, k, 0]  # the bound is not vacuous


def truncated_composition(*, epsilon: float, each: float, hits: int, mu: float) -> float:
    """The bound at l = 0 by outlier-filter#f2: K randomised responses and one μ-GDP release; smallest over K."""
    rare = 1 / (1 + math.exp(each))

    def ceiling(uses: int) -> float:
        tail = float(stats.binom.cdf(hits - 1, uses, rare)) * (1 + 1e-9)
        return tail + responses_delta(epsilon, each, uses, mu)

    first = max(hits, int(hits / rare))
    spread = max(1, int(math.sqrt(hits) / rare / 6))
    return min(1.0, min(ceiling(first + step * spread) for step in range(64)))


@given(
    epsilon=st.sampled_from([0.5, 1.0, 4.0]),
    each=st.floats(0.03, 0.3),
    hits=st.integers(1, 12),
    mu=st.sampled_from([0.01, 0.1, 0.4]),
)
@settings(derandomize=True, deadline=None, max_examples=15)
def test_truncated_composition_is_a_ceiling_of_the_game(epsilon, each, hits, mu):
    value = game_values(epsilon=epsilon, each=each, hits=hits, offsets=(0,), mus=np.array([mu]))[-1, 0, 0]
    if value < 1e-2:  # above, the narrow lattice's cost may exceed the small distance between the two
        assert value <= truncated_composition(epsilon=epsilon, each=each, hits=hits, mu=mu) * (1 + 1e-9) + 1e-15


def test_a_game_that_has_not_converged_is_refused(monkeypatch):
    monkeypatch.setattr(outlier_filter, "_SWEEPS", 0)
    with pytest.raises(VerificationError, match="residual"):
        game_values(epsilon=1.0, each=0.05, hits=10, offsets=(0,), mus=np.array([0.2]))


@given(centre=st.integers(1, 120), decay=st.floats(1e-3, 5))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_shifting_the_cutoff_by_one_changes_odds_by_exactly_the_decay(centre, decay):
    law = cutoff_law(centre, decay)
    assert law.shape == (2 * centre - 1,)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    ratios = np.log(law[1:] / law[:-1])
    assert np.allclose(np.abs(ratios), decay, rtol=0, atol=1e-9)
    assert law[0] == pytest.approx(end_mass(centre, decay), rel=1e-9)
    assert law[0] == law[-1]


@pytest.mark.parametrize(("centre", "decay"), [(2, 0.01), (30, 0.5), (400, 0.003), (50, 40.0)])
def test_the_drawn_law_is_as_near_to_the_ideal_one_as_plans_count_on(centre, decay):
    weights = HiddenCutoff(centre, decay).weights
    with localcontext() as context:
        context.prec = 80
        ideal = [Fraction((-abs(k - centre) * Decimal(decay)).exp()) for k in range(1, 2 * centre)]
    whole, total = sum(weights), sum(ideal)
    apart = sum(abs(Fraction(weight, whole) - cell / total) for weight, cell in zip(weights, ideal, strict=True)) / 2
    assert apart <= centre * Fraction(1, 2**95)


def test_draws_follow_the_law():
    # chi-square, false alarm 1e-8
    cutoff, stream = HiddenCutoff(4, 0.6), SeededNoise(1).stream("cutoff")
    drawn = [cutoff.draw(stream) for _ in range(30_000)]
    assert (min(drawn), max(drawn)) == (1, cutoff.largest)
    law = np.array(cutoff.weights, float) / float(sum(cutoff.weights))
    assert stats.chisquare(np.bincount(drawn, minlength=8)[1:], 30_000 * law).pvalue > 1e-8

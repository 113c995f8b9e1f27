"""A mean with the shares that an adaptive clip follows never costs more than its claimed ε, and its broken twins do.

Every bound is wrong with probability at most `harness.FAILURE` = 1e-8.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from audits.harness import delta_bounds
from quoron_privacy.accounts import gdp
from quoron_privacy.means import norm_counts
from quoron_privacy.means.norm_counts import NormCountMean, weights_of
from quoron_privacy.means.prefix_norm_counts import PrefixNormCounts
from quoron_privacy.noise.sources import SeededNoise

EPSILON, DELTA, USERS, DRAWS = 1.0, 0.01, 5, 8_000
MU = gdp.mu_for(EPSILON, DELTA)
ROUNDS, EPOCHS, BATCHES = 6, 3, 2
Own = float | None  # the own user's answer; None: no answer


def rows_of(own: Own) -> tuple[np.ndarray, np.ndarray]:
    """Four users halfway to the clip norm, and one own user."""
    rows, answered = np.full((USERS, 1), 0.5), np.ones(USERS, bool)
    rows[1], answered[1] = own or 0.0, own is not None
    return rows, answered


def seen(adjacency: Any, own: Own, stream: Any, draws: int) -> np.ndarray:
    """All that rounds release, as weighted rows, shape (draws, 4)."""
    mechanism = NormCountMean.for_mu(dimension=1, users=USERS, mu=MU, adjacency=adjacency, soft=True)
    sums, weights = mechanism.reduction(1.0).of(*rows_of(own)), np.array(weights_of(adjacency, soft=True))
    came = [mechanism.release_sums(sums, stream) for _ in range(draws)]
    return weights * np.array([[each.mean[0], each.beyond, each.within, each.presence] for each in came])


class Still:
    """A stream without noise."""

    def gaussian_steps(self, shape: Any) -> np.ndarray:
        return np.zeros(shape, np.int64)


def spent(adjacency: Any, worlds: Sequence[Own], draws: int = DRAWS) -> tuple[float, float]:
    """Bounds for δ(EPSILON) of the first world against the second, from the log-likelihood ratio of what came out."""
    mechanism = NormCountMean.for_mu(dimension=1, users=USERS, mu=MU, adjacency=adjacency, soft=True)
    one, two = (seen(adjacency, own, Still(), 1) for own in worlds)
    came = seen(adjacency, worlds[0], SeededNoise(3).stream("audit"), draws)
    far, near = (np.sum(((came - centre) / mechanism._gaussian.scale) ** 2, axis=1) for centre in (two, one))
    return delta_bounds((far - near) / 2, epsilon=EPSILON)


PAIRS = {
    "clipped, or opposite at two thirds": ("replace-one", (1.0, -2 / 3)),
    "opposite, both clipped": ("replace-one", (5.0, -5.0)),
    "nobody, or a user at zero": ("replace-one", (0.0, None)),
    "left out, clipped": ("zero-out", (5.0, None)),
    "left out, at nine tenths": ("zero-out", (0.9, None)),
}


@pytest.mark.parametrize("pair", list(PAIRS))
def test_a_round_with_its_shares_keeps_the_promise_and_uses_it_up(pair: str) -> None:
    low, high = spent(*PAIRS[pair])
    assert low <= DELTA * (1 + 1e-6)
    assert high >= DELTA * 0.99


def test_the_audit_catches_a_hard_share_within_the_clip_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """1[a < 1] in place of h: opposite users on either side of the clip norm are √5 apart, not 2."""
    honest = norm_counts.NormCountSum.of

    def hard(self: Any, values: np.ndarray, answered: np.ndarray) -> Any:
        sums = honest(self, values, answered)
        unit = round(self.scales[1])
        sums.cells[3] = unit * int(np.count_nonzero(answered & (np.abs(values[:, 0]) < self.radius)))
        return sums

    monkeypatch.setattr(norm_counts.NormCountSum, "of", hard)
    assert spent("replace-one", (1.0 - 1e-9, -1.0), 20_000)[0] > DELTA


def test_the_audit_catches_shares_with_half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    for adjacency, worlds in (("replace-one", (0.0, None)), ("zero-out", (0.2, None))):
        weight, *others = norm_counts.SOFT[adjacency]
        with monkeypatch.context() as patch:
            patch.setitem(norm_counts.SOFT, adjacency, (weight, *(2 * each for each in others)))
            assert spent(adjacency, worlds)[0] > DELTA


def shares_only(own: Sequence[Own], draws: int) -> np.ndarray:
    """Weighted shares of one user's rounds over their noise, (draws, rounds, 3), where no vector moves: from nobody."""
    made = PrefixNormCounts.for_mu(
        dimension=1, users=USERS, mu=MU, rounds=ROUNDS, participations=EPOCHS, separation=BATCHES, soft=True
    )
    weights, found = weights_of("replace-one", soft=True), np.empty((draws, EPOCHS, 3))
    for number, round_ in enumerate(range(0, ROUNDS, BATCHES)):
        sums, gaussian = made.reduction(1.0).of(*rows_of(own[number])), made.shares(round_)
        row = norm_counts.weighted_row(sums, USERS, weights, soft=True)[-3:]
        stream = SeededNoise(7).stream("shares", round_)
        found[:, number] = [gaussian.release(row, stream) / gaussian.scale for _ in range(draws)]
    return found


def epochs_spent(draws: int = 4_000) -> tuple[float, float]:
    """Of a user at zero in all its rounds, against nobody: the mean does not move, shares do as far as they can."""
    here, nobody = [0.0] * EPOCHS, [None] * EPOCHS
    came = shares_only(here, draws)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SeededNoise, "stream", lambda *_: Still())
        one, two = shares_only(here, 1)[0], shares_only(nobody, 1)[0]
    far, near = (np.sum((came - centre) ** 2, axis=(1, 2)) for centre in (two, one))
    return delta_bounds((far - near) / 2, epsilon=EPSILON)


def test_shares_of_several_epochs_keep_the_promise_and_use_it_up() -> None:
    low, high = epochs_spent()
    assert low <= DELTA * (1 + 1e-6)
    assert high >= DELTA * 0.99


def test_the_audit_catches_shares_with_the_noise_of_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """σ/κ(k, b) in every round: k times μ²."""
    monkeypatch.setattr(PrefixNormCounts, "_louder", property(lambda self: np.ones(self.rounds)))
    assert epochs_spent()[0] > 4 * DELTA

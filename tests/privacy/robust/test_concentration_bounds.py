import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.robust.concentration_reference import KINDS, cohort, reference_scores
from quoron_privacy.robust.filter.concentration import scores
from quoron_privacy.robust.filter.score_bounds import crowd_bounds, lower_bounds, observe, second_view, upper_bounds


def assert_bracketed(rows, tau, norm="l2"):
    exact, view = reference_scores(rows, tau, norm), observe(rows, norm)
    for lower in (lower_bounds(rows, view, tau), *([crowd_bounds(rows, tau)] if norm == "l2" else [])):
        assert (lower <= exact).all()
        assert (lower >= 1.0).all()
    for seen in (view, second_view(rows, view, tau)):
        upper = upper_bounds(seen, tau)
        assert (exact <= upper).all()
        assert (upper <= len(rows)).all()


@pytest.mark.parametrize("norm", ["l2", "linf"])
@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    users=st.one_of(st.sampled_from([1, 2, 3]), st.integers(1, 200)),
    dimension=st.integers(1, 9),
    kind=st.sampled_from(KINDS),
    tau=st.sampled_from([1e-100, 1e-3, 0.2, 1.0, 30.0, 1e12, 1e100]),
)
def test_bounds_bracket_the_computed_score(norm, seed, users, dimension, kind, tau):
    assert_bracketed(cohort(kind, users, dimension, np.random.default_rng(seed)), tau, norm)


def test_bounds_bracket_the_score_under_adversarial_search():
    # Hill climbing on the relative margin of the tighter side: towards equality, where rounding would show.
    rng, worst = np.random.default_rng(11), np.inf
    for _ in range(12):
        rows, best = cohort(rng.choice(KINDS[:4]), rng.integers(2, 12), rng.integers(1, 3), rng), np.inf
        for _ in range(60):
            trial = rows + rng.normal(size=rows.shape) * 10.0 ** rng.uniform(-9, 0)
            assert_bracketed(trial, 1.0)
            exact, view = scores(trial, 1.0), observe(trial)
            lower = np.maximum(lower_bounds(trial, view, 1.0), crowd_bounds(trial, 1.0))
            margin = min((exact - lower).min(), (upper_bounds(view, 1.0) - exact).min())
            if margin < best:
                rows, best = trial, margin
        worst = min(worst, best)
    assert 0 <= worst < 1e-6  # the search does reach the boundary


def test_lower_bounds_allow_for_a_mean_that_cannot_be_written_down():
    # Near 2⁵² neighbouring numbers are 1 apart: a shell whose mean lies at 0.2 is seen from 0 instead, and the last
    # user, far away on the other side, seems closer to it than it is.
    offsets = np.random.default_rng(0).permutation(np.repeat([-1.0, 0.0, 1.0], [500, 700, 800]))
    rows = 2.0**52 + np.append(offsets, -100.0)[:, None]
    assert observe(rows).centre[0] == 2.0**52
    assert_bracketed(rows, 0.01)

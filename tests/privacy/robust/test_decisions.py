import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.robust.concentration_reference import KINDS, cohort, reference_decisions, reference_scores
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels import threads
from quoron_privacy.robust.filter import concentration, score_bounds
from quoron_privacy.robust.filter.decisions import decide, decide_by_all_pairs, filtered_mean


def random_round(seed):
    """Answers, who answered, τ, thresholds and step of one arbitrary round; many thresholds lie exactly at scores."""
    rng = np.random.default_rng(seed)
    users = int(rng.choice([1, 2, 3, rng.integers(4, 160)]))
    rows = cohort(KINDS[seed % len(KINDS)], users, int(rng.integers(1, 8)), rng)
    answered = rng.random(users) < rng.choice([0.0, 0.7, 1.0, 1.0, 1.0])
    tau, step = rng.choice([0.05, 0.5, 5.0]), rng.choice([2.0**-8, 1.0, 86.0 / 2**20])
    noisy = np.rint((rng.uniform(0, users + 1) - rng.laplace(size=users) * rng.choice([0.1, 3.0])) / step)
    at_scores = np.rint(reference_scores(rows, tau) / step) - rng.integers(0, 2, size=users)
    thresholds = np.where(rng.random(users) < rng.choice([0.0, 0.5, 1.0]), at_scores, noisy).astype(np.int64)
    return rows, answered, tau, thresholds, step


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("first", range(0, 400, 50))
def test_decisions_equal_those_of_all_pairs(first, norm):
    for seed in range(first, first + 50):
        rows, answered, tau, thresholds, step = random_round(seed)
        expected = reference_decisions(rows, answered, tau, thresholds, step, norm)
        outcome = decide(rows, answered, tau, thresholds, step=step, norm=norm)
        assert np.array_equal(outcome.kept, expected), seed
        assert 0 <= outcome.undecided <= answered.sum()
        slow = decide_by_all_pairs(rows, answered, tau, thresholds, step=step, norm=norm)
        assert np.array_equal(slow.kept, expected), seed


def test_a_score_exactly_at_the_threshold_is_filtered():
    rows, answered = np.zeros((4, 2)), np.ones(4, dtype=bool)
    for decision in (decide, decide_by_all_pairs):
        assert not decision(rows, answered, 1.0, np.full(4, 8), step=0.5).kept.any()
        assert decision(rows, answered, 1.0, np.full(4, 7), step=0.5).kept.all()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), bad=st.sampled_from([np.nan, np.inf, -np.inf, 1e300, -1e300, 1e155]))
def test_an_absurd_row_changes_nobody_elses_decision(seed, bad):
    rows, answered, tau, thresholds, step = random_round(seed)
    own = seed % len(rows)
    absent = answered.copy()
    absent[own] = False
    rows = np.where(np.abs(rows).max(axis=1, keepdims=True) < 1e16, rows, 0.0)  # nobody else is as far out
    without = np.delete(decide(rows, absent, tau, thresholds, step=step).kept, own)
    rows[own, seed % rows.shape[1]] = bad
    outcome = decide(rows, answered, tau, thresholds, step=step)
    assert np.array_equal(np.delete(outcome.kept, own), without)
    assert np.isfinite(bad) or not outcome.kept[own]


def test_whoever_did_not_answer_is_filtered_whatever_the_threshold():
    rows, thresholds = np.zeros((3, 2)), np.full(3, -(2**50))
    answered = np.array([True, False, True])
    rows[1] = np.nan
    assert decide(rows, answered, 1.0, thresholds, step=1.0).kept.tolist() == [True, False, True]
    nobody = np.zeros(3, dtype=bool)
    assert not decide(rows, nobody, 1.0, thresholds, step=1.0).kept.any()
    assert not decide_by_all_pairs(rows, nobody, 1.0, thresholds, step=1.0).kept.any()


@pytest.mark.parametrize("users", [1, 4096, 4097, 20_000])
def test_what_is_added_of_a_cohort_does_not_depend_on_the_number_of_threads(monkeypatch, users):
    monkeypatch.setattr(threads, "_SMALL", 0)
    rows = cohort("gaussian", users, 3, np.random.default_rng(users))
    rows[:: max(2, users // 7)] *= 1e200  # beyond anybody's reach
    answered, kept = np.arange(users) % 5 > 0, np.arange(users) % 3 < 2
    bits = []
    for number in (1, 2, 5):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", number)
        parts = score_bounds.crowd_bounds(rows, 0.2), filtered_mean(rows, kept), concentration.usable(rows, answered)
        bits.append(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))
    assert len(set(bits)) == 1
    blocks = [(rows[first : first + 512], kept[first : first + 512]) for first in range(0, users, 512)]
    scale, total = 2.0 ** -int(kept.sum()).bit_length(), np.zeros(3)
    for block, chosen in blocks:  # row after row, and block after block
        total += np.cumsum(np.vstack([np.zeros(3), block[chosen] * scale]), axis=0)[-1]
    np.testing.assert_array_equal(filtered_mean(rows, kept), total / (kept.sum() * scale))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1))
def test_filtered_mean_is_the_mean_of_the_kept_rows(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(rng.integers(1, 80), 4))
    kept = rng.random(len(rows)) < 0.7
    rows[~kept] = rng.choice([np.nan, np.inf, 1e300])
    expected = rows[kept].mean(axis=0) if kept.any() else np.zeros(4)
    np.testing.assert_allclose(filtered_mean(rows, kept), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("decision", [decide, decide_by_all_pairs])
def test_wrong_arguments_are_refused_with_their_name(decision):
    rows, answered, thresholds = np.zeros((3, 2)), np.ones(3, dtype=bool), np.zeros(3, dtype=np.int64)
    with pytest.raises(ConfigError, match="step"):
        decision(rows, answered, 1.0, thresholds, step=0.0)
    with pytest.raises(ConfigError, match="thresholds"):
        decision(rows, answered, 1.0, thresholds.astype(float), step=1.0)
    with pytest.raises(ConfigError, match="answered"):
        decision(rows, answered[:2], 1.0, thresholds, step=1.0)
    with pytest.raises(ConfigError, match="tau"):
        decision(rows, answered, -1.0, thresholds, step=1.0)

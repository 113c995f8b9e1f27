import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.robust.concentration_reference import KINDS, cohort
from quoron_privacy.errors import ConfigError
from quoron_privacy.robust.filter.concentration import cohort_scores, scores
from quoron_privacy.robust.filter.soft_filter import soft_mean, soft_weights, suspicions

examples = settings(derandomize=True, deadline=None, max_examples=80)


@examples
@given(seed=st.integers(0, 2**32 - 1), slope=st.sampled_from([1.0, 30.0, 300.0]), cutoff=st.floats(0.51, 0.99))
def test_replacing_one_user_moves_others_suspicion_by_a_bounded_factor(seed, slope, cutoff):
    rng = np.random.default_rng(seed)
    users = int(rng.integers(2, 120))
    rows = cohort(KINDS[seed % len(KINDS)], users, 3, rng)
    replaced, own = rows.copy(), rng.integers(users)
    replaced[own] = rng.normal(size=3) * rng.choice([0.1, 1.0, 1e9])
    parameters = {"cohort_size": users, "slope": slope, "cutoff": cutoff}
    before = np.delete(suspicions(scores(rows, 0.5), **parameters), own)
    after = np.delete(suspicions(scores(replaced, 0.5), **parameters), own)
    with np.errstate(under="ignore"):
        allowed = np.expm1(slope / users) * np.minimum(before, after)
    assert (np.abs(before - after) <= allowed * (1 + 1e-9) + 1e-300).all()


def test_isolated_slots_have_suspicion_one_and_weight_zero():
    rows, answered = np.zeros((20, 2)), np.ones(20, dtype=bool)
    answered[3], rows[5] = False, np.nan
    values = cohort_scores(rows, answered, 1.0)
    weights = soft_weights(suspicions(values, cohort_size=20, slope=50.0, cutoff=0.6))
    assert weights[3] == weights[5] == 0.0
    assert np.delete(weights, [3, 5]).min() > 0.99
    assert np.isfinite(soft_mean(rows, weights)).all()


@examples
@given(seed=st.integers(0, 2**32 - 1))
def test_soft_mean_is_the_weighted_mean_and_ignores_rows_of_weight_zero(seed):
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(40, 3)), rng.random(40) * (rng.random(40) < 0.7)
    expected = np.average(rows, axis=0, weights=weights)
    rows[weights == 0] = rng.choice([np.nan, np.inf, 1e300])
    np.testing.assert_allclose(soft_mean(rows, weights), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("wrong", [{"cutoff": 0.5}, {"cutoff": 1.0}, {"slope": 0.0}, {"cohort_size": 1}])
def test_parameters_outside_the_theorem_are_refused(wrong):
    with pytest.raises(ConfigError, match="Expected"):
        suspicions(np.ones(3), **({"cohort_size": 3, "slope": 1.0, "cutoff": 0.7} | wrong))

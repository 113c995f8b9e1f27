"""The hidden cutoff: its law, and what a shift by one can reveal."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.robust.filter.thresholds import HiddenCutoff


@given(centre=st.integers(1, 60), decay=st.floats(0.01, 5))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_a_shift_by_one_changes_no_probability_by_more_than_the_decay(centre, decay):
    weights = np.array(HiddenCutoff(centre, decay).weights, dtype=object)
    assert len(weights) == 2 * centre - 1
    assert list(weights) == list(weights[::-1])
    for a, b in pairwise(weights):
        slack = 1 + 2.0 / min(a, b)  # weights are whole numbers
        assert float(Fraction(max(a, b), min(a, b))) <= np.exp(decay) * slack * (1 + 1e-14)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.robust.filter.cutoff import cutoff_law, end_mass


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

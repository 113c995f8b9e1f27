"""The hidden cutoff: its law, and what a shift by one can reveal."""

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.robust.filter.cutoff import HiddenCutoff


@given(centre=st.integers(1, 60), decay=st.floats(0.01, 5))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_a_shift_by_one_changes_no_probability_by_more_than_the_decay(centre, decay):
    weights = np.array(HiddenCutoff(centre, decay).weights, dtype=object)
    assert len(weights) == 2 * centre - 1
    assert list(weights) == list(weights[::-1])
    for a, b in pairwise(weights):
        slack = 1 + 2.0 / min(a, b)  # weights are whole numbers
        assert float(Fraction(max(a, b), min(a, b))) <= np.exp(decay) * slack * (1 + 1e-14)


@given(centre=st.integers(1, 60), decay=st.floats(0.01, 3))
@settings(derandomize=True, deadline=None, max_examples=40)
def test_the_weights_are_the_two_sided_geometric_law(centre, decay):
    cutoff = HiddenCutoff(centre, decay)
    drawn = np.array([float(Fraction(w, sum(cutoff.weights))) for w in cutoff.weights])
    law = np.exp(-decay * np.abs(np.arange(1, 2 * centre) - centre))
    assert drawn == pytest.approx(law / law.sum(), rel=1e-12, abs=1e-26)


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


def test_a_centre_of_one_is_always_one():
    assert HiddenCutoff(1, 2.0).draw(SeededNoise(1).stream("one")) == 1


@pytest.mark.parametrize(("centre", "decay"), [(0, 1.0), (3, 0.0), (3, float("inf"))])
def test_a_law_that_does_not_exist_is_refused(centre, decay):
    with pytest.raises(ConfigError, match="Expected"):
        HiddenCutoff(centre, decay)

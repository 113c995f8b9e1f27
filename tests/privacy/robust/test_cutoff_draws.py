"""The hidden cutoff: its law, and what a shift by one can reveal."""

from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.robust.filter.cutoff import HiddenCutoff


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

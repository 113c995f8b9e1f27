"""What is listed and never planned: the counts behind the refusal."""

from math import comb, log10

import pytest

from quoron_server.algorithms.refused import deletions, subsets


@pytest.mark.parametrize(("users", "digits"), [(100_000, 62.88), (1_000, 32.84)])
def test_the_search_for_a_stable_set_is_super_polynomial(users, digits):
    assert deletions(1.0, 1e-6) == 15
    assert subsets(users, 15) == pytest.approx(digits, abs=0.005)


def test_counts_are_binomials():
    assert subsets(40, 7) == pytest.approx(log10(comb(40, 7)), rel=1e-12)
    assert subsets(5, 5) == subsets(5, 9) == 0.0

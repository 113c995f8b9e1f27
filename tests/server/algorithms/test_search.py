"""The one search of all planners: the cheapest of about the best, and the first that works out."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.errors import Infeasible
from quoron_server.algorithms.search import NEAR, Candidate, best, exactly, ranked

risks = st.one_of(st.floats(0.01, 2.0), st.just(math.inf))
tried = st.lists(st.tuples(risks, st.integers(1, 3)), max_size=12).map(
    lambda pairs: [Candidate(risk, (price,), place) for place, (risk, price) in enumerate(pairs)]
)


@given(found=tried)
@settings(derandomize=True, deadline=None)
def test_the_cheapest_of_about_the_best_is_taken(found):
    chosen = best(found)
    if chosen is None:
        assert not found
        return
    least = min(each.risk for each in found)
    assert chosen.risk <= NEAR * least
    for each in found:
        if each.risk <= NEAR * least:
            assert (chosen.price, chosen.risk, chosen.of) <= (each.price, each.risk, each.of)


@given(found=tried)
@settings(derandomize=True, deadline=None)
def test_after_the_best_come_all_that_can_be_predicted_the_least_risk_first(found):
    order = ranked(found)
    finite = [each for each in found if math.isfinite(each.risk)]
    assert len(order) == len(finite) + bool(finite)
    if finite:
        assert order[0] == best(finite)
        assert [each.risk for each in order[1:]] == sorted(each.risk for each in finite)


def test_what_does_not_work_out_is_passed_over_and_only_so_many_are_tried():
    asked = []

    def calibrate(number):
        asked.append(number)
        if number == 0:
            raise Infeasible("some", "its test leaves nothing", "more users")
        return None if number == 1 else f"made of {number}"

    numbers = [Candidate(1.0, (number,), number) for number in range(10)]
    assert exactly(numbers, calibrate, most=5) == "made of 2"
    assert asked == [0, 1, 2]
    assert exactly(numbers, calibrate, most=2) is None

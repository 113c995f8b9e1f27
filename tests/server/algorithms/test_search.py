"""The one planner of all algorithms: the cheapest of about the best, and the first that works out."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import Infeasible
from quoron_server.algorithms.search import NEAR, Candidate, Planner, best, ranked
from quoron_server.algorithms.spec import Calibrated
from quoron_server.plan import Privacy

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
    assert order[:1] == [best(found)] * bool(found)
    others = [each for each in finite if each not in order[:1]]
    assert [each.risk for each in order[1:]] == sorted(each.risk for each in others)
    assert sorted(each.of for each in order[1:]) == sorted(each.of for each in others)


PROBLEM = problem_of(users=1000, items_per_user=1, dimension=1, domain=L2Ball(1.0), lipschitz=1.0, smoothness=1.0)


def planner(risks, *, worth, most, also=""):
    """Of numbered candidates, which are calibrated at these risks; None is infeasible. And the numbers asked for."""
    asked = []

    def calibrate(_, candidate):
        asked.append(candidate.of)
        if (risk := risks[candidate.of]) is None:
            raise Infeasible("some", "its test leaves nothing", "more users")
        return Calibrated(candidate.of, risk)

    def candidates(_):
        return [Candidate(1.0 + number, (number,), number) for number in range(len(risks))]

    made = Planner(
        "some",
        candidates,
        calibrate,
        "for this",
        worth and (lambda _: worth),
        also,
        max_calibrated=most,
    )
    return (lambda: made(PROBLEM, Privacy(1.0, 1e-6), object())), asked


def test_what_does_not_work_out_is_passed_over_and_only_so_many_are_tried():
    plan, asked = planner([None, 3.0, 1.0, 0.5], worth=2.0, most=3)
    assert plan().parameters == 2
    assert asked == [0, 1, 2]
    plan, asked = planner([None, 3.0, 1.0], worth=2.0, most=2)
    with pytest.raises(Infeasible, match=r"n=1,000 users predict .* no better than the 2 of not training"):
        plan()
    assert asked == [0, 1]


def test_with_one_candidate_to_try_its_own_refusal_is_said_and_without_any_the_users_are_too_few():
    plan, _ = planner([None, 1.0], worth=None, most=1)
    with pytest.raises(Infeasible, match="its test leaves nothing"):
        plan()
    plan, _ = planner([None, None], worth=None, most=4, also=", or fewer rounds")
    with pytest.raises(Infeasible, match="n=1,000 users are too few for this at epsilon=1") as refused:
        plan()
    assert refused.value.estimate.words == "n >= 1,001, or fewer rounds"

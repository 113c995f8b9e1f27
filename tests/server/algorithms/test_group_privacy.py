"""Methods over items: what one user's items move, where places lie, which plans are refused."""

from dataclasses import replace

import numpy as np
import pytest

from contracts.scenes import PRIVACY, PROBLEM, make_plan
from problems import changed
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy


def planned(name, problem=PROBLEM, privacy=PRIVACY, **options):
    info = ALGORITHMS[name]
    return info.plan(problem, privacy, info.options(**options), "calibrated", 7)


def test_no_place_is_asked_for_twice_and_each_user_is_asked_as_often_as_told():
    plan = make_plan("group-phased-sgd")
    algorithm = ALGORITHMS[plan.algorithm].make(plan)
    state, seen, asked = algorithm.init(), set(), np.zeros(PROBLEM.users, int)
    while (question := algorithm.request(state, SeededNoise(1))) is not None:
        for user, places in zip(question.cohort.tolist(), question.task.places.tolist(), strict=True):
            assert all(0 <= place < PROBLEM.items_per_user for place in places)
            assert seen.isdisjoint((user, place) for place in places)
            seen |= {(user, place) for place in places}
            asked[user] += 1
        silent = Answers(np.zeros((len(question.cohort), 3)), np.zeros(len(question.cohort), np.uint8))
        state = algorithm.update(state, silent, SeededNoise(1)).state
    assert asked.max() == plan.schedule.participations
    assert len(seen) == plan.cost.gradient_evaluations


def test_sensitivity_is_that_of_all_items_of_a_user_in_a_phase():
    p = make_plan("group-phased-sgd").parameters
    for phase, share in zip(p.phases, p.shares, strict=True):
        batch = share.cohort_size * share.places
        assert phase.sensitivity == pytest.approx(2 * PROBLEM.lipschitz * phase.step_size * share.places / batch, 2e-6)


def test_places_dealt_out_by_existing_items_move_everybodys():
    counts, more = np.array([3, 4, 2]), np.array([4, 4, 2])
    dealt = [np.repeat(np.arange(3), held)[:8].reshape(4, 2).tolist() for held in (counts, more)]
    assert dealt[0][3] != dealt[1][3]  # a batch without any item of the user that has one more
    fixed = [[(user, place) for user in range(3) for place in range(4)] for _ in (counts, more)]
    assert fixed[0] == fixed[1]


@pytest.mark.slow
def test_group_privacy_gains_nothing_from_items_beyond_some_sixteen():
    """Experiment E2: means, 10,000 users, d = 50, epsilon = 1; the predicted risk falls at first, then is flat."""
    problem = changed(PROBLEM, users=10_000, dimension=50, domain=L2Ball(1.0), gradient_deviation=1.0)
    risks = []
    for items in (4, 16, 64, 256):
        p = planned("group-phased-sgd", replace(problem, items_per_user=items), Privacy(1.0, 1e-6), rounds=16)
        risks.append(p.predicted_excess_risk)
    assert risks[1] <= risks[0]
    assert risks[3] > 0.7 * risks[1]

"""Methods over items: what one user's items move, where places lie, which plans are refused."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from contracts.scenes import PRIVACY, PROBLEM, make_plan
from one_epoch_reference import Silent
from problems import changed
from quoron_client.compute.work import placed_gradient
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Logistic
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy


def planned(name, problem=PROBLEM, privacy=PRIVACY, **options):
    info = ALGORITHMS[name]
    return info.plan(problem, privacy, info.options(**options), "calibrated", 7)


def crowd(users, items, seed=1):
    """Logistic users: features of norm one, labels ±1, and half of the users with fewer items than places."""
    rng = np.random.default_rng(seed)
    counts = np.where(rng.random(users) < 0.5, items, rng.integers(1, items + 1, users))
    rows = rng.standard_normal((int(counts.sum()), 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, np.sign(rng.standard_normal(len(rows))), np.concatenate(([0], np.cumsum(counts)))


class People:
    """Answers with the real gradients of real items; some never answer."""

    def __init__(self, rows, labels, offsets, absent=()):
        self.batch = ItemBatch(rows, labels, offsets.astype(np.int64))
        self.absent = np.array(sorted(absent), np.int64)

    def ask(self, question):
        values = placed_gradient(Logistic(), self.batch.of(question.cohort), question.task)
        status = np.where(np.isin(question.cohort, self.absent), Status.MISSING, Status.ANSWERED).astype(np.uint8)
        return Answers(np.where(status[:, None] == Status.ANSWERED, values, 0.0), status)

    def with_user(self, user, sign):
        """The neighbour: one user's items all in one direction, as many as places."""
        b = self.batch
        parts = [slice(i, j) for i, j in pairwise(b.offsets.tolist())]
        rows = [b.features[part] for part in parts]
        labels = [b.labels[part] for part in parts]
        rows[user], labels[user] = np.tile([[1.0, 0.0, 0.0]], (4, 1)), np.full(4, sign)
        sizes = [len(each) for each in labels]
        return People(np.concatenate(rows), np.concatenate(labels), np.cumsum([0, *sizes]), self.absent.tolist())


def released(plan, people):
    """The releases of all phases without noise."""
    algorithm = ALGORITHMS[plan.algorithm].maker(plan)
    state, found = algorithm.init(), []
    while (question := algorithm.request(state, Silent())) is not None:
        update = algorithm.update(state, people.ask(question), Silent())
        state = update.state
        if update.releases:
            found.append(state.released)
    return np.array(found)


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

"""Audits of the local model through the engine: everything between a user's items and what the coordinator receives.

Every user holds the same worst-case item, so one question gives as many draws as there are users. Each bound is wrong
with probability at most `harness.FAILURE` = 1e-8.
"""

from dataclasses import dataclass, field, fields, replace

import numpy as np
import pytest

from audits.harness import delta_bounds, epsilon_lower_bound
from quoron.simulation.inline import InlineEngine
from quoron_client.compute import local_report as report
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss, make_loss
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question
from quoron_client.protocol.reports import RangeReport, VectorReport
from quoron_client.randomisers import RangeBits, VectorNoise, vector
from quoron_privacy import local
from quoron_privacy.accounts import gdp
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.local_model.method import LocalModel
from quoron_server.algorithms.local_model.parameters import LocalModelParameters
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

INFO = ALGORITHMS["local-model"]
DRAWS = 150_000
EPSILON, DELTA = 1.0, 1e-3
GRADIENT = AverageGradient(np.zeros((1, 1)), (1.0,))
VECTOR = VectorReport(GRADIENT, EPSILON, DELTA, 0.25, np.array([0.1]))  # gradients are ±0.5: both are clipped
RANGE = RangeReport(GRADIENT, EPSILON, 4, 0.5, np.ones(1), np.zeros(DRAWS, np.int64))


@dataclass
class Alike:
    """`DRAWS` users, each with one item: feature 1 and the same label."""

    label: float
    users: int = DRAWS
    dimension: int = 1
    items_per_user: int = 1
    domain: L2Ball = field(default_factory=lambda: L2Ball(1.0))
    loss: Loss = field(default_factory=lambda: make_loss("logistic"))

    def items(self, users):
        k = len(users)
        return ItemBatch(np.ones((k, 1), np.float32), np.full(k, self.label), np.arange(k + 1))

    def corruption(self, users):
        return np.zeros(len(users), np.uint8)


def received(task, label, seed, round_=0):
    engine = InlineEngine(Alike(label), seed=seed)
    return engine.ask(Question(round_, np.arange(DRAWS), task)).values


def audit(task, seeds=(31, 32)):
    worlds = []
    for label, seed in zip((-1.0, 1.0), seeds, strict=True):
        values = received(task, label, seed)
        worlds.append(values[:, 0] - (values[:, -1] if values.shape[1] > 1 else 0.0))
    return epsilon_lower_bound(*(lambda draws, world=world: world for world in worlds), delta=delta(task), draws=DRAWS)


def delta(task):
    return DELTA if isinstance(task, VectorReport) else 0.0


def test_what_arrives_of_a_vector_report_is_within_epsilon():
    assert 0.6 < audit(VECTOR) <= EPSILON


def test_what_arrives_of_a_range_report_is_within_epsilon():
    assert 0.9 * EPSILON < audit(RANGE) <= EPSILON


def test_the_same_words_in_both_worlds_hide_nothing_more():
    """Seeds are no part of the promise: the audit of one seed for both worlds is the same audit."""
    assert audit(VECTOR, seeds=(33, 33)) <= EPSILON


@pytest.mark.parametrize("quiet", [4.0, 2.0], ids=["noise / 4", "sensitivity C instead of 2C"])
def test_the_audit_catches_clients_that_add_too_little_noise(quiet, monkeypatch):
    honest = vector.noise_scale
    monkeypatch.setattr(vector, "noise_scale", lambda **given: honest(**given) / quiet)
    assert audit(VECTOR) > EPSILON


class PrintedOtherwise(RangeBits):
    """Flips each bit with probability 1 / (e^ε + 1), which one changed bit would need."""

    @property
    def flips(self):
        return RangeBits(2 * self.epsilon, self.bins, self.half_width).flips


def test_the_audit_catches_the_flip_chance_of_a_single_bit(monkeypatch):
    monkeypatch.setattr(report, "RangeBits", PrintedOtherwise)
    assert audit(RANGE) > 1.8 * EPSILON


def test_the_audit_catches_a_coordinator_that_asks_for_twice_the_budget():
    """Why plans are re-checked: a client believes the question about ε."""
    assert audit(replace(VECTOR, epsilon=3 * EPSILON)) > EPSILON


class TestTwoQuestionsToOneUser:
    def spent(self, ranged, vectored):
        """Lower bound for δ at ε of both reports of one user, from their log-likelihood ratio."""
        bits = received(ranged, -1.0, 34, round_=0)
        sent = received(vectored, -1.0, 34, round_=1)[:, 0]
        ratio = local.bits_epsilon(RangeBits(ranged.epsilon, ranged.bins, ranged.half_width).flips)
        scale = VectorNoise(vectored.epsilon, vectored.delta, vectored.radius).scale(1)
        unit = (sent - vectored.centre[0]) / vectored.radius  # the clipped gradient is +1 here, -1 in the other world
        log_ratio = (bits[:, -1] - bits[:, 0]) / 2 * ratio + 2 * unit / (scale / vectored.radius) ** 2
        return delta_bounds(log_ratio, epsilon=EPSILON)[0]

    def test_split_budgets_hold(self):
        mu = local.second_message_mu(range_epsilon=0.5, epsilon=EPSILON, delta=DELTA)
        kept = gdp.epsilon_for(mu * (1 - 1e-6), DELTA)
        assert self.spent(replace(RANGE, epsilon=0.5), replace(VECTOR, epsilon=kept)) <= DELTA

    def test_the_audit_catches_both_reports_at_the_full_budget(self):
        assert self.spent(RANGE, VECTOR) > DELTA


class TestUsersWhoLookForACentre:
    """Whole runs whose first interaction only finds the centre of the next: half of the users each."""

    @staticmethod
    def plan():
        problem = Problem(
            users=2 * DRAWS, items_per_user=1, dimension=1, domain=L2Ball(1.0), lipschitz=1.0, smoothness=0.0
        )
        plan = INFO.plan(
            problem, Privacy(EPSILON, DELTA), INFO.options(estimator="tracking", rounds=2), "calibrated", 7
        )
        one_each = {"warm_ups": 1, "warm_users": DRAWS, "steps": 1, "vectors": DRAWS, "first_radius": 0.25}
        return replace(plan, parameters=replace(plan.parameters, **one_each))

    def spent(self, algorithm):
        """Lower bound for δ at ε of all that the users of the first interaction send, from their log-likelihood ratio.

        Their gradients are 0.5, or -0.5 in the other world, and centres about 0.25: both are clipped.
        """
        engine, state, ratios = InlineEngine(Alike(-1.0, users=2 * DRAWS), seed=35), algorithm.init(), None
        while (question := algorithm.request(state, None)) is not None:
            answers, task = engine.ask(question), question.task
            unit = (answers.values[:, 0] - task.centre[0]) / task.radius
            ratio = 2 * unit / VectorNoise(task.epsilon, task.delta, 1.0).scale(1) ** 2
            if ratios is None:
                ratios, looking = ratio, {user: place for place, user in enumerate(question.cohort)}
            else:
                for user, more in zip(question.cohort, ratio, strict=True):
                    if user in looking:
                        ratios[looking[user]] += more
            state = algorithm.update(state, answers, None).state
        return delta_bounds(ratios, epsilon=EPSILON)[0]

    def test_they_spend_no_more_than_one_report(self):
        plan = self.plan()
        assert 0.5 * DELTA < self.spent(INFO.make(plan)) <= DELTA

    def test_the_audit_catches_a_step_that_asks_them_again(self):
        plan = self.plan()

        class Overlapping(LocalModelParameters):
            def cohort(self, round_):
                return 0, self.warm_users

        numbers = {field.name: getattr(plan.parameters, field.name) for field in fields(plan.parameters)}
        assert self.spent(LocalModel(replace(plan, parameters=Overlapping(**numbers)))) > 2 * DELTA

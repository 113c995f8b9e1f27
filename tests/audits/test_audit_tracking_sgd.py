"""Audit of tracking-sgd: the real object, one run at a time, the own user in the round whose radius was adapted."""

from dataclasses import replace

import numpy as np

from audits.harness import epsilon_lower_bound
from quorate_client.domains import L2Ball
from quorate_client.questions import Answers
from quorate_server.algorithms import ALGORITHMS
from quorate_server.algorithms.tracking_sgd import TrackingSGD
from quorate_server.noise import SeededNoise
from quorate_server.plan import Privacy
from quorate_server.problem import Problem
from quorate_server.slots import partition

EPSILON, DELTA, DRAWS = 1.0, 1e-2, 3000  # each bound fails with probability below 1e-8
PROBLEM = Problem(
    users=4,
    items_per_user=100,
    dimension=1,
    domain=L2Ball(1.0),
    lipschitz=1.0,
    smoothness=0.25,
    curvature="isotropic",
    typical_curvature=0.2,
)


def plan():
    info = ALGORITHMS["tracking-sgd"]
    return info.plan(PROBLEM, Privacy(EPSILON, DELTA), info.options(rounds=2, clip_norm=1.0), "calibrated", 3)


class Engine:
    """Everybody sends 0.1, but for the own user of round 1: as far to one side as the clip lets through."""

    def __init__(self, own):
        self.own, self.user = own, partition(seed=3, users=4)[2]

    def ask(self, question):
        values = np.full((len(question.cohort), 1), 0.1)
        values[question.cohort == self.user] = self.own
        return Answers(values, np.zeros(len(values), dtype=np.uint8))


def world(chosen, own, start):
    """What round 1 releases around its centre, in units of its own radius."""
    algorithm, engine = TrackingSGD(chosen), Engine(own)

    def one(seed):
        noise, states = SeededNoise(seed), [algorithm.init()]
        for _ in range(2):
            question = algorithm.request(states[-1], noise)
            states.append(algorithm.update(states[-1], engine.ask(question), noise).state)
        before, after = states[1:]
        centre = before.estimate + chosen.parameters.curvature * (before.x - before.previous)
        return (after.estimate[0] - centre[0]) / after.radius

    return lambda draws: np.array([one(start + draw) for draw in range(draws)])


def found(chosen):
    return epsilon_lower_bound(world(chosen, 1e6, 0), world(chosen, -1e6, 10**6), delta=DELTA, draws=DRAWS)


def test_a_run_never_exceeds_its_claimed_epsilon():
    assert found(plan()) <= EPSILON


def test_the_audit_catches_a_quarter_of_the_noise():
    p = plan().parameters
    assert found(replace(plan(), parameters=replace(p, noise_per_radius=p.noise_per_radius / 4))) > EPSILON

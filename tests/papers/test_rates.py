"""Plans reach the papers' rates where nothing is curved: on linear losses risk falls as 1/√m and at least as 1/√n.

Runs are whole, of the linear family on a ball of radius 1 (or a box inside it); users' means and items are drawn here.
The worst of a few signals is what a rate is about: for a fixed one risk may fall twice as fast. Seeds are fixed, so the
tests are deterministic; margins are stated beside what was measured.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from quoron_client.protocol.domains import Box, Domain, L2Ball
from quoron_client.protocol.questions import Answers, LocalSGD, Question
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Beliefs, Problem

pytestmark = pytest.mark.slow


def linear(users: int, items: int, dimension: int, domain: Domain) -> Problem:
    return Problem(
        users=users,
        items_per_user=items,
        dimension=dimension,
        domain=domain,
        lipschitz=1.0,
        smoothness=0.0,
        start_gradient=1.0,
        feature_norm=1.0,
        link_curvature=0.0,
        coordinate_lipschitz=1.0,
        coordinate_smoothness=0.0,
        beliefs=Beliefs(gradient_deviation=0.99),
    )


def planned(name: str, problem: Problem, epsilon: float, **options: object) -> RunPlan:
    info = ALGORITHMS[name]
    return info.plan(problem, Privacy(epsilon, 1e-6), info.options(**options), "calibrated", 7)


class Linear:
    """f(x; z) = -⟨z, x⟩, z = θ + (1 - ‖θ‖) a, a uniform on the sphere; means of users' items are taken to be normal."""

    def __init__(self, problem: Problem, signal: float, seed: int) -> None:
        self.problem, self.draws = problem, np.random.default_rng([seed, 77])
        direction = self.draws.standard_normal(problem.dimension)
        self.mean = signal * direction / np.linalg.norm(direction)
        self.within = 1 - signal

    def ask(self, question: Question) -> Answers:
        users, dimension, items = len(question.cohort), self.problem.dimension, self.problem.items_per_user
        task = question.task
        if isinstance(task, LocalSGD):
            point, total = task.starts, np.zeros_like(task.starts)
            for _ in range(items):
                drawn = self.draws.standard_normal((users, dimension))
                drawn *= self.within / np.linalg.norm(drawn, axis=1, keepdims=True)
                point = task.domain.project(point + task.step_size * (self.mean + drawn))
                total += point
            values = np.stack([point, total / items], axis=1)
        else:
            noise = self.draws.standard_normal((users, dimension)) / math.sqrt(dimension * items)
            values = -(self.mean + self.within * noise)
        return Answers.checked(values, np.zeros(users, np.uint8), largest=1e6)

    def excess(self, model: np.ndarray) -> float:
        domain = self.problem.domain
        if isinstance(domain, Box):
            return float(domain.half_width * np.abs(self.mean).sum() - self.mean @ model)
        return float(domain.radius * np.linalg.norm(self.mean) - self.mean @ model)


def worst_excess(plan: RunPlan, signals: Sequence[float], seeds: int) -> float:
    """The largest mean excess risk over the signals."""

    def excess(signal: float, seed: int) -> float:
        algorithm, noise = ALGORITHMS[plan.algorithm].maker(plan), SeededNoise(1000 + seed)
        engine, state = Linear(plan.problem, signal, seed), algorithm.init()
        while (question := algorithm.request(state, noise)) is not None:
            state = algorithm.update(state, engine.ask(question), noise).state
        return engine.excess(algorithm.model(state))

    return max(float(np.mean([excess(signal, seed) for seed in range(seeds)])) for signal in signals)


def slope(sizes: Sequence[int], risks: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(risks), 1)[0])


def measured(
    name: str, sizes: Sequence[tuple[int, int]], dimension: int, epsilon: float, multiples: Sequence[float], seeds: int
) -> tuple[list[float], list[float]]:
    """(predicted, measured) risks at (users, items); signals are multiples of 1/√(nm), and one as long as items."""
    guesses, risks = [], []
    for users, items in sizes:
        plan = planned(name, linear(users, items, dimension, L2Ball(1.0)), epsilon)
        signals = [*(times / math.sqrt(users * items) for times in multiples), 0.9]
        guesses.append(plan.guessed_excess_risk or math.inf)
        risks.append(worst_excess(plan, signals, seeds))
    return guesses, risks


SIGNALS = (1.0, 2.0, 4.0)  # the worst one is here or beside it
FEW_SIGNALS = (10, 4.0, (0.5, 2.0))  # with dimension and epsilon


@pytest.mark.parametrize(
    ("name", "items", "at_users", "users", "at_items", "given", "seeds", "guessed"),
    [
        # -.46 in m and -.66 in n; before steps followed the gradients' noise -.04. 1.6 to 2.3 times what is guessed.
        ("filtered-sgd", (4, 32, 256), 40_000, (14_200, 60_000, 426_000), 16, (5, 8.0, SIGNALS), (4, 3), (4, 4)),
        # -.54 and -.51; risk is at most what is predicted, which was a fifth of it: 1.8 to 2.7 times.
        ("outlier-iterates", (4, 16, 64), 10_000, (10_000, 30_000, 100_000), 4, (10, 4.0, (8.0, 30.0)), (1, 1), (5, 5)),
        # -.50 and -.7; with steps of at most ten times R / (L √T) the first was -.24. 2.4 to 4.1 times.
        ("outlier-gd", (4, 16, 64, 256), 3_000, (1_000, 3_000, 10_000), 16, FEW_SIGNALS, (4, 4), (6, 6)),
        # -.50 and -.53; predictions are bounds, 12 to 17 times what is measured.
        ("accelerated-erm", (4, 16, 64, 256), 3_000, (1_000, 3_000, 10_000), 16, FEW_SIGNALS, (4, 4), (None, 25)),
    ],
)
def test_risk_falls_with_items_and_users_as_the_paper_claims(
    name, items, at_users, users, at_items, given, seeds, guessed
):
    """By -.5 each, or faster."""
    of_items, of_users = [(at_users, m) for m in items], [(n, at_items) for n in users]
    for sizes, cases, times, most in zip((items, users), (of_items, of_users), seeds, guessed, strict=True):
        guesses, risks = measured(name, cases, *given, times)
        assert slope(sizes, risks) < -0.4
        assert most is None or all(1 < guess / risk < most for guess, risk in zip(guesses, risks, strict=True))
        if name == "filtered-sgd" and sizes == items:
            assert all(risk < 2 / math.sqrt(n * m) for (n, m), risk in zip(cases, risks, strict=True))  # 1.0 to 1.2


class TestFilteredSGD:
    def test_no_step_by_hand_leaves_less_than_a_quarter(self):
        """The best of these left 1.9 to 2.3 times less than the plan."""
        problem = linear(40_000, 256, 5, L2Ball(1.0))
        plan = planned("filtered-sgd", problem, 8.0)
        signals = [times / math.sqrt(40_000 * 256) for times in SIGNALS[1:]]
        first = plan.parameters.phases[0].step_size
        tried = [
            planned("filtered-sgd", problem, 8.0, step_size=first * times, rounds=plan.cost.rounds)
            for times in (0.25, 0.5, 2.0, 4.0)
        ]
        best = min(worst_excess(each, signals, 2) for each in tried)
        assert worst_excess(plan, signals, 2) < 4 * best

    def test_predictions_fall_with_items_to_the_end(self):
        """By -.44 to -.5 from 16 to 10,000 items; they levelled off while the last step shrank 16 times at most."""
        items = (16, 100, 1_000, 10_000)
        for users, epsilon in ((40_000, 8.0), (1_000_000, 1.0)):
            guesses = [
                planned("filtered-sgd", linear(users, m, 5, L2Ball(1.0)), epsilon).guessed_excess_risk or math.inf
                for m in items
            ]
            assert slope(items, guesses) < -0.42


class TestMedianSGD:
    def test_predictions_fall_with_users_and_items_on_a_box(self):
        """-.45 in m and -.74 in n; with 256 rounds at most the second was -.2."""
        box = Box(1 / math.sqrt(5))
        items, users = (256, 1024, 4096, 16384), (33_000, 100_000, 300_000, 1_000_000)
        plans = [planned("median-sgd", linear(1_000_000, m, 5, box), 8.0) for m in items]
        assert slope(items, [plan.guessed_excess_risk or math.inf for plan in plans]) < -0.4
        plans = [planned("median-sgd", linear(n, 4096, 5, box), 8.0) for n in users]
        assert slope(users, [plan.guessed_excess_risk or math.inf for plan in plans]) < -0.4
        assert 0.5 < (plans[1].guessed_excess_risk or math.inf) / worst_excess(plans[1], [0.05, 0.9], 1) < 5


class TestAcceleratedERM:
    @pytest.mark.parametrize("smoothness", [None, 0.25])
    def test_predictions_fall_with_users_and_items_to_the_end(self, smoothness):
        """At 10⁶ users a plan for a loss that is not smooth had 4 steps of a millionth of the domain."""
        guesses = []
        for users in (300, 30_000, 1_000_000):
            flat = linear(users, 100, 20, L2Ball(1.0))
            problem = replace(flat, smoothness=smoothness, link_curvature=smoothness)
            guesses.append(planned("accelerated-erm", problem, 4.0).guessed_excess_risk or math.inf)
        assert all(later < sooner for sooner, later in pairwise(guesses)), guesses
        assert guesses[-1] < 0.01

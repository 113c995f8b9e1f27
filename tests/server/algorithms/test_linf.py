"""Localised SGD on boxes: distances in ℓ∞, medians, who is refused and why, and what plans say of their noise."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from contracts.scenes import BOX, PRIVACY, PROBLEM, SMALL, Quadratic, make_plan
from federation.crowd import specification
from problems import changed
from quoron_client import ItemBatch
from quoron_client.compute.enforcement import bounded
from quoron_client.federation.terms import Terms
from quoron_client.losses import make_loss
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.localised.filtered import user_distance
from quoron_server.algorithms.localised.median import CoordinateMedian, coordinate_distance
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.specification import describe
from quoron_server.specification import make_plan as make_specified
from server.algorithms.test_localisation import drive


def linear(users: int, items: int, dimension: int) -> Problem:
    """Means of vectors in the cube [-1, 1]^d, models in the same cube."""
    loss, box = make_loss("linear", feature_norm=dimension**0.5, feature_bound=1.0), Box(1.0)
    return Problem(
        users=users,
        items_per_user=items,
        dimension=dimension,
        domain=box,
        lipschitz=loss.lipschitz(box, dimension),
        smoothness=0.0,
        link_curvature=0.0,
        feature_norm=loss.feature_norm,
        coordinate_lipschitz=loss.coordinate_lipschitz(box, dimension),
        coordinate_smoothness=loss.coordinate_smoothness(dimension),
    )


@dataclass
class Separable:
    """User u's loss is Σ_j h_uj (x_j - c_uj)²/2 with 0 <= h <= 0.25: diagonal Hessians of all users' own."""

    seed: int
    spread: float = 0.01

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.curvatures = 0.25 * rng.random((PROBLEM.users, PROBLEM.dimension))
        self.centres = 0.3 + self.spread * rng.standard_normal((PROBLEM.users, PROBLEM.dimension))

    def ask(self, question: Any) -> Answers:
        who, at = question.cohort, question.task.points[0]
        return Answers(self.curvatures[who] * (at - self.centres[who]), np.zeros(len(who), np.uint8))


def slow_median_run(plan: RunPlan, engine: Any) -> tuple[list[np.ndarray], list[float]]:
    """Algorithm 6 as on paper, phase by phase, all released without noise: iterates, and each round's score."""
    p, half_width = plan.parameters, plan.problem.domain.half_width
    algorithm = CoordinateMedian(plan)
    x, found, seen = np.zeros(plan.problem.dimension), [], []
    state = algorithm.init()
    for phase in p.phases:
        iterates = []
        for _ in range(phase.rounds):
            question = algorithm.request(replace(state, iterate=x), SeededNoise(4))
            state = replace(state, round=state.round + 1)
            q = np.clip(engine.ask(question).values, -p.clip_bound, p.clip_bound)
            seen.append(float(np.exp(-p.temperature * np.abs(q[:, None] - q[None]).max(axis=2)).sum() / len(q)))
            median, mean = np.median(q, axis=0), q.mean(axis=0)
            g = np.array(
                [
                    m if abs(m - r) < p.radius else r + p.radius * np.sign(m - r)
                    for m, r in zip(mean, median, strict=True)
                ]
            )
            x = np.clip(x - phase.step_size * g, -half_width, half_width)
            iterates.append(x)
            found.append(x)
        x = np.mean(iterates[-phase.suffix :], axis=0)
    return found, seen


@pytest.mark.parametrize("radius", [1.0, 1e-3])
def test_median_sgd_is_the_algorithm_on_paper(radius) -> None:
    plan = make_plan("median-sgd")
    p = plan.parameters
    median = replace(p.median, room=radius * p.temperature, threshold=-1e3)
    phases = tuple(replace(phase, release_scale=0.0) for phase in p.phases)
    plan = replace(plan, parameters=replace(p, median=median, phases=phases))
    engine = Separable(3, spread=0.5)
    engine.centres[::10] += 5.0  # mean and median apart
    expected, seen = slow_median_run(plan, engine)
    states = drive(CoordinateMedian(plan), engine)
    for state, at in zip(states[1:-1], expected[:-1], strict=True):
        np.testing.assert_allclose(state.iterate, at, atol=1e-12)
    assert states[-2].tally == pytest.approx(p.cohort_size - min(seen[:-1]), rel=1e-9)
    np.testing.assert_allclose(states[-1].released, np.mean(expected[-p.phases[-1].suffix :], axis=0), atol=1e-12)


def quiet(plan: RunPlan) -> RunPlan:
    """Without release noise, which would hide what one user moves; every test passes."""
    p = plan.parameters
    phases = tuple(replace(phase, release_scale=0.0) for phase in p.phases)
    return replace(plan, parameters=replace(p, phases=phases))


def farthest(plan: RunPlan, seed: int, domain: Any = None) -> float:
    """How far one user's gradient of any size moves later iterates, over what the theorem allows, both in ℓ∞."""
    p = plan.parameters
    plan = quiet(plan if domain is None else replace(plan, problem=replace(plan.problem, domain=domain)))
    algorithm = CoordinateMedian(plan)
    first = algorithm.request(algorithm.init(), SeededNoise(4))
    assert first is not None
    rng, worst = np.random.default_rng(seed), 0.0
    for size in (p.distance, 0.3 / p.temperature, 1e3):
        one, other = Separable(seed), Separable(seed)
        own = int(first.cohort[rng.integers(p.cohort_size)])
        side = size * rng.choice([-1.0, 1.0], PROBLEM.dimension)
        for engine, sign in ((one, 1), (other, -1)):
            engine.curvatures[own], engine.centres[own] = 0.25, -4 * sign * side
        runs = [drive(algorithm, engine) for engine in (one, other)]
        for now, then in zip(*(run[1 : plan.parameters.phases[0].rounds] for run in runs), strict=True):
            worst = max(worst, float(np.abs(now.iterate - then.iterate).max()))
    return worst / (p.phases[0].sensitivity / np.sqrt(PROBLEM.dimension))


def test_one_user_moves_no_iterate_farther_in_any_coordinate_than_the_theorem_says() -> None:
    plan = make_plan("median-sgd")
    found = [farthest(plan, seed) for seed in range(3)]
    assert 0 < max(found) <= 1


class Line:
    """Euclidean projection onto the line of slope π/8: a box whose sides are not the coordinates'."""

    direction = np.array([np.cos(np.pi / 8), np.sin(np.pi / 8), 0.0])

    def norm_bound(self, dimension: int) -> float:
        return float(dimension)

    def project(self, points: np.ndarray) -> np.ndarray:
        return np.asarray((points @ self.direction)[..., None] * self.direction)


def test_the_search_catches_a_euclidean_projection_onto_a_box_like_set() -> None:
    # With a mean of all, whose shift in a box is the theorem's own: a projection may not add to it.
    plan = make_plan("median-sgd")
    p = plan.parameters
    median = replace(p.median, room=1e9)  # the mean as it is
    shift = 2 * p.clip_bound / p.cohort_size * p.phases[0].step_size * np.sqrt(PROBLEM.dimension)
    phases = tuple(replace(phase, sensitivity=shift) for phase in p.phases)
    plan = replace(plan, parameters=replace(p, median=median, phases=phases))
    found = {"box": 0.0, "line": 0.0}
    for seed in range(6):
        found["box"] = max(found["box"], farthest(plan, seed))
        found["line"] = max(found["line"], farthest(plan, seed, Line()))
    assert found["box"] <= 1 + 1e-9 < 1.1 < found["line"]


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (replace(BOX, domain=L2Ball(2.0)), "projection onto a ball may bring points farther apart in ℓ∞; needs a box"),
        (replace(BOX, coordinate_smoothness=None), r"not certainly diagonally dominant; needs loss.active_features=1"),
        (replace(BOX, coordinate_smoothness=None, outputs=3), "needs a smooth loss of one output"),
    ],
)
def test_what_is_no_box_or_not_dominant_is_refused_by_name(problem, message) -> None:
    with pytest.raises(Infeasible, match=f"median-sgd: .*{message}"):
        ALGORITHMS["median-sgd"].plan(problem, PRIVACY)


def test_a_plan_whose_problem_lost_what_its_theorem_needs_is_refused() -> None:
    plan, info = make_plan("median-sgd"), ALGORITHMS["median-sgd"]
    info.verify(plan)
    for other in (
        replace(plan, problem=replace(plan.problem, domain=L2Ball(2.0))),
        replace(plan, problem=replace(plan.problem, coordinate_smoothness=None)),
        replace(plan, problem=replace(plan.problem, coordinate_smoothness=1.9, smoothness=1.9)),
        replace(plan, guarantee=replace(plan.guarantee, assumptions=plan.guarantee.assumptions[:-1])),
    ):
        with pytest.raises(VerificationError):
            info.verify(other)


@pytest.mark.parametrize("dimension", [1, 2, 20, 1000])
@pytest.mark.parametrize("items", [1, 100, 10**6])
def test_proved_distances_are_shorter_in_l2_than_root_d_times_those_in_linf(dimension, items) -> None:
    # So a filter needs the less noise in ℓ2 on the same box, and has no other norm.
    problem = linear(100_000, items, dimension)
    assert user_distance(problem) <= coordinate_distance(problem) * dimension**0.5


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_keeps_its_model_in_a_box(name) -> None:
    info = ALGORITHMS[name.partition("/")[0]]
    box = changed(BOX, label_bound=1.0) if name == "one-round-least-squares" else BOX
    plan = info.plan(box, Privacy(8.0, 1e-3), info.options(**SMALL.get(name, {})), "calibrated", 7)
    info.verify(plan)
    plan = replace(plan, problem=replace(box, domain=Box(0.05)))
    model = info.maker(plan).model(drive(info.maker(plan), Quadratic())[-1])
    assert np.abs(model).max() <= 0.05 * (1 + 1e-12)


def test_the_medians_of_a_plan_meet_a_plain_mean_only_beyond_a_hundred_million_items() -> None:
    info = ALGORITHMS["median-sgd"]
    for epsilon in (1.0, 4.0, 8.0):
        plan = info.plan(linear(100_000, 100, 1000), Privacy(epsilon, 1e-6), info.options(rounds=200), seed=1)
        info.verify(plan)
        (said,) = info.policy.remarks(plan)
        assert "times the noise of a plain mean" in said
        meets = float(said.split("about m = ")[1].split()[0])
        assert meets > 5e7
        many = info.plan(linear(100_000, int(30 * meets), 1000), Privacy(epsilon, 1e-6), info.options(rounds=200))
        ratio = float(info.policy.remarks(many)[0].split("has ")[1].split()[0])
        assert ratio < 0.5


def test_a_coordinator_believes_no_dominance_and_no_bound_that_its_clients_loss_lacks() -> None:
    wanted = specification("median-sgd")
    make_specified(wanted)
    dense = {"name": "logistic", "feature_norm": 1.0}
    with pytest.raises(ConfigError, match=r"problem\.coordinate_smoothness none for the logistic loss"):
        make_specified(wanted.model_copy(update={"loss": dense}))
    for key in ("coordinate_lipschitz", "coordinate_smoothness"):
        problem = replace(wanted.problem, **{key: 0.1})
        with pytest.raises(ConfigError, match=rf"problem\.{key} >= "):
            make_specified(wanted.model_copy(update={"problem": problem}))


def test_clients_are_told_of_box_and_bounds_and_keep_them() -> None:
    wanted = specification("median-sgd")
    terms = Terms.read("trial", json.dumps(describe(wanted, make_specified(wanted))))
    assert terms.make_domain() == Box(2.0)
    assert terms.make_loss().active_features == 1
    batch = ItemBatch(np.array([[0.3, -0.4, 0.2]]), np.ones(1), np.array([0, 1]))
    np.testing.assert_array_equal(bounded(batch, terms.make_loss()).features, [[0.0, -0.4, 0.0]])

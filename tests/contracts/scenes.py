"""Small problems on which every algorithm is feasible, and engines that misbehave."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from problems import changed, problem_of
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import (
    Answers,
    AverageGradient,
    AverageLoss,
    LocalSGD,
    MomentAndGradient,
    PlacedGradient,
    Question,
    RangeReport,
    SecondMoment,
    Status,
    VectorReport,
)
from quoron_client.randomisers import RangeBits, SeededRandomness, VectorNoise, rotated_coordinates
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import Adjacency
from quoron_server.algorithm import Algorithm
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.two_servers import BothServers, WithServers
from quoron_server.plan import Budget, Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.rounds import run
from quoron_server.storage.ledger import Ledger

PRIVACY = Privacy(epsilon=8.0, delta=1e-3)  # generous, so that the filters are feasible with few users
PROBLEM = problem_of(
    users=2400,
    items_per_user=4,
    dimension=3,
    domain=L2Ball(2.0),
    lipschitz=1.0,
    smoothness=0.25,
    curvature="isotropic",
    typical_curvature=0.1,
    feature_norm=1.0,
    link_curvature=1.0,
)
SMALL: dict[str, dict[str, object]] = {  # options that keep the runs short
    "recentred-sgd": {"rounds": 5, "rate": 0.1},
    "recentred-sgd/zero-out": {"rounds": 5, "rate": 0.1},
    "mean-sgd": {"rounds": 5, "rate": 0.1},
    "winsorised-erm": {"rounds": 5},
    "winsorised-erm/zero-out": {"rounds": 5},
    "local-model": {"rounds": 6},
    "accelerated-erm": {"rounds": 5, "phases": 2, "cohort": 300},
    "outlier-gd": {"rounds": 4},
    "outlier-iterates": {"rounds": 6, "phases": 2},
    "outlier-iterates/broadcast": {"rounds": 3, "broadcast": True},
    "phased-sgd": {"cohort_size": 300},
    "group-phased-sgd": {"rounds": 9, "phases": 3},
    "group-phased-sgd/two": {"rounds": 2, "phases": 2},  # of one step each, which nothing contracts
    "median-sgd": {"rounds": 6, "step_size": 0.2},
    "one-pass-dp-sgd": {"rounds": 6},
    "one-pass-dp-sgd/adaptive": {"rounds": 6, "clip": "adaptive", "clip_norm": 0.01},
    "one-pass-dp-sgd/adam": {"rounds": 6, "optimiser": "adam", "step_size": 0.1, "weight_decay": 0.01},
    "dp-sgd-poisson": {"rounds": 5, "rate": 0.1},
    "dp-sgd-poisson/replaced": {"rounds": 5, "rate": 0.1},
    "dp-sgd-poisson/replaced-adaptive": {"rounds": 5, "rate": 0.1, "clip": "adaptive"},
    "dp-sgd-poisson/adaptive": {
        "rounds": 5,
        "rate": 0.1,
        "clip": "adaptive",
        "optimiser": "momentum",
        "step_size": 0.1,
    },
    "dp-sgd-wor/adaptive": {"rounds": 5, "rate": 0.1, "clip": "adaptive"},
    "dp-sgd-wor": {"rounds": 5, "rate": 0.1},
    "dp-sgd-wor/normalised": {"rounds": 5, "rate": 0.1, "optimiser": "normalised", "step_size": 0.1},
    "accelerated-srgd": {"rounds": 6},
    "srgd": {"rounds": 5},
    "accelerated-sgd": {"rounds": 5},
    "online-to-batch": {"rounds": 6},
    "dp-ftrl": {"rounds": 6},
    "dp-ftrl/epochs": {"rounds": 7, "epochs": 3, "inverse_step": 5.0, "factorisation": "blt"},
    "dp-ftrl/banded": {"rounds": 9, "epochs": 3, "factorisation": "banded", "optimiser": "momentum", "inverse_step": 9},
    "tracking-srgd": {"rounds": 13},
    "whitened-tracking": {"rounds": 5},
    "whitened-tracking/classes": {"rounds": 5},
    "whitened-tracking/parts": {"rounds": 17, "parts": True},
    "sgd": {"rounds": 6},
}
BOX = replace(PROBLEM, domain=Box(1.0), coordinate_lipschitz=1.0, coordinate_smoothness=0.25)
PROBLEMS = {
    "one-round-least-squares": changed(PROBLEM, label_bound=1.0),
    "whitened-tracking/classes": changed(PROBLEM, outputs=3, sigmoid=True),
    "median-sgd": BOX,
}
# Of variants that promise another adjacency than their algorithm usually does.
ADJACENCIES: dict[str, Adjacency] = {
    **dict.fromkeys(("recentred-sgd/zero-out", "winsorised-erm/zero-out"), "zero-out"),
    **dict.fromkeys(("dp-sgd-poisson/replaced", "dp-sgd-poisson/replaced-adaptive"), "replace-one"),
}


# Of trust model two-servers, each with what its base's options are changed by.
TWO_SERVERS: dict[str, dict[str, object]] = {
    "one-round-least-squares/two-servers": {},
    "tracking-srgd/two-servers": {"rounds": 13},
    "accelerated-sgd/two-servers": {"rounds": 5},
    "dp-ftrl/two-servers": {"rounds": 7, "epochs": 3, "inverse_step": 5.0, "factorisation": "blt"},
    "one-pass-dp-sgd/two-servers": {"rounds": 6, "clip": "adaptive", "clip_norm": 0.01},
    "recentred-sgd/two-servers": {"rounds": 5},
    "whitened-tracking/two-servers": {"rounds": 17},
    "whitened-tracking/classes/two-servers": {"rounds": 17},
    "dp-ftrl/three-groups": {"rounds": 7, "epochs": 3, "inverse_step": 5.0, "factorisation": "blt"},
}


@cache
def make_plan(name: str, problem: Problem | None = None, privacy: Privacy = PRIVACY) -> RunPlan:
    info = ALGORITHMS[name.partition("/")[0]]  # what follows a slash names a variant of the options
    privacy = replace(privacy, adjacency=ADJACENCIES.get(name, privacy.adjacency))
    if name in TWO_SERVERS:
        privacy = replace(privacy, trust_model="two-servers", groups=3 if name.endswith("/three-groups") else 1)
    problem = problem or PROBLEMS.get(name.removesuffix("/two-servers").removesuffix("/three-groups"), PROBLEM)
    return info.plan(problem, privacy, info.options(**(SMALL | TWO_SERVERS).get(name, {})), "calibrated", 7)


@cache
def verify(name: str) -> None:
    """What `make` does for every run, here once a plan: it can take longer than the runs."""
    ALGORITHMS[name.partition("/")[0]].verify(make_plan(name))


def make(name: str) -> Algorithm:
    """As `RegisteredAlgorithm.make`: a new object every time, so that nothing is known of an earlier run."""
    verify(name)
    plan = make_plan(name)
    made = ALGORITHMS[plan.algorithm].maker(plan.without("servers"))
    return made if plan.guarantee.servers is None else WithServers(plan, made)


class Quadratic:
    """User u's loss is (β/2) ‖x - c_u‖², β = 0.2, c_u near (0.3, 0.3, 0.3); an obvious engine."""

    def __init__(self, tamper: Callable[[np.ndarray, np.ndarray], None] | None = None) -> None:
        self.centres = 0.3 + 0.1 * np.random.default_rng(5).standard_normal((PROBLEM.users, PROBLEM.dimension))
        self.tamper = tamper
        self.asked: list[np.ndarray] = []

    def ask(self, question: Question) -> Answers:
        self.asked.append(question.cohort)
        task, centres = question.task, self.centres[question.cohort]
        if isinstance(task, SecondMoment):  # labels are c_u's first coordinate
            values = self._moments(task, centres)
        elif isinstance(task, MomentAndGradient):
            values = np.hstack([self._moments(task.moment, centres), self._gradients(task.gradient, centres)])
        elif isinstance(task, AverageLoss):
            values = 0.1 * np.stack([np.sum((point - centres) ** 2, axis=1) for point in task.points], axis=1)
        elif isinstance(task, LocalSGD):
            values = self._passes(task, centres)
        elif isinstance(task, RangeReport | VectorReport):
            values = self._reports(question.round, question.cohort, task)
        elif isinstance(task, PlacedGradient):
            values = self._placed(task, centres)
        else:
            values = self._gradients(task, centres)
        status = np.zeros(len(values), dtype=np.uint8)
        if self.tamper is not None:
            self.tamper(values, status)
        return Answers.checked(values, status, largest=1e6)

    def _moments(self, task: SecondMoment, centres: np.ndarray) -> np.ndarray:
        """The Hessian 0.2 I is the second moment of features times link_curvature; labels are zero, but for c_u."""
        if task.label_scale is not None:
            corners = np.linalg.cholesky(_labelled(centres, task)).transpose(0, 2, 1)
            rows, columns = np.triu_indices(task.dimension)
            return corners[:, rows, columns]
        return np.tile(np.sqrt(0.2) * np.eye(task.dimension)[np.triu_indices(task.dimension)], (len(centres), 1))

    def _gradients(self, task: AverageGradient, centres: np.ndarray) -> np.ndarray:
        values = sum(weight * 0.2 * (point - centres) for weight, point in zip(task.weights, task.points, strict=True))
        return values - (0.0 if task.centre is None else task.centre)

    def _placed(self, task: PlacedGradient, centres: np.ndarray) -> np.ndarray:
        """Every user's items are all alike."""
        gradients = 0.2 * (task.points[0] - centres)
        if task.clip is not None:
            gradients *= np.minimum(1, task.clip / np.linalg.norm(gradients, axis=1, keepdims=True))
        there = (task.places >= 0) & (task.places < PROBLEM.items_per_user)
        return gradients * there.sum(axis=1, keepdims=True) / task.divisor

    def _passes(self, task: LocalSGD, centres: np.ndarray) -> np.ndarray:
        """Every user's items are all alike."""
        iterates = [task.starts]
        for _ in range(PROBLEM.items_per_user):
            iterates.append(task.domain.project(iterates[-1] - task.step_size * 0.2 * (iterates[-1] - centres)))
        return np.stack([iterates[-1], np.mean(iterates[1:], axis=0)], axis=1)

    def _reports(self, round_: int, users: np.ndarray, task: RangeReport | VectorReport) -> np.ndarray:
        """What clients of the local model send, with words of their own."""
        gradients = self._gradients(task.gradient, self.centres[users])
        own = SeededRandomness(13)
        if isinstance(task, VectorReport):
            noise = VectorNoise(task.epsilon, task.delta, task.radius)
            return noise.randomise(gradients, task.centre, own, round=round_, users=users)
        rotated = rotated_coordinates(gradients, task.signs, task.coordinates)
        bits = RangeBits(task.epsilon, task.bins, task.half_width)
        return bits.randomise(rotated, own, round=round_, users=users).astype(np.float64)


def _labelled(centres: np.ndarray, task: SecondMoment) -> np.ndarray:
    """0.2 I for the features, 0.2 c for features with labels, a matrix for each c: the gradient at x is 0.2 (x - c)."""
    d = task.model_size
    whole = np.tile(np.diag([*[0.2] * d, 1.0]), (len(centres), 1, 1))
    whole[:, :d, d] = whole[:, d, :d] = 0.2 * task.label_scale * centres
    return whole


@cache
def empty_ledger() -> bytes:
    """The file of a ledger in which nothing has happened: it takes as long to make as a run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        Ledger.create(path, plan="{}", config_digest="c", noise_key=b"11").close()
        assert {each.name for each in path.parent.iterdir()} == {path.name, f"{path.name}-acknowledged"}
        return path.read_bytes()


def execute(name: str, folder: Path, engine: object = None, ledger_type: type[Ledger] = Ledger, **budget: int):
    """One run, fresh or resumed, in `folder`; returns the model."""
    algorithm = make(name)
    path = folder / "ledger.sqlite"
    if not path.exists():
        path.write_bytes(empty_ledger())
    asked = asking(name, engine or Quadratic())
    with ledger_type.open(path) as ledger:
        return run(algorithm, asked, ledger, SeededNoise(11), budget=Budget(**budget), simulation=True)


def asking(name: str, engine: object):
    """The engine, with a helper behind it where the trust model is two-servers."""
    plan = make_plan(name)
    return engine if plan.guarantee.servers is None else BothServers(engine, plan, b"11")


@dataclass(frozen=True)
class Fault:
    """Something users send; `rows` says which of a cohort."""

    name: str
    value: float
    rows: slice
    status: Status = Status.ANSWERED

    def __call__(self, values: np.ndarray, status: np.ndarray) -> None:
        values[self.rows] = self.value
        status[self.rows] = self.status


ONE_USERS = [
    Fault("one user sends zero", 0.0, slice(0, 1)),
    Fault("one user sends NaN", np.nan, slice(0, 1)),
    Fault("one user sends infinity", np.inf, slice(0, 1)),
    Fault("one user sends minus infinity", -np.inf, slice(0, 1)),
    Fault("one user sends 1e300", 1e300, slice(0, 1)),
    Fault("one user is missing", 0.0, slice(0, 1), Status.MISSING),
    Fault("one user is rejected", 0.0, slice(0, 1), Status.REJECTED),
]
EVERYBODYS = [
    Fault("everyone sends NaN", np.nan, slice(None)),
    Fault("everyone is missing", 0.0, slice(None), Status.MISSING),
    Fault("a single user survives", 0.0, slice(1, None), Status.MISSING),
    Fault("everyone sends the same", 0.25, slice(None)),
]
FAULTS = [*ONE_USERS, *EVERYBODYS]


@dataclass(frozen=True)
class SeveralFaults:
    """Several users of every cohort, each with a fault of its own: one run says of all of them that nothing follows."""

    name: str
    faults: tuple[Fault, ...]

    def __call__(self, values: np.ndarray, status: np.ndarray) -> None:
        assert len(values) > len(self.faults)
        for user, fault in enumerate(self.faults):
            replace(fault, rows=slice(user, user + 1))(values, status)


HOSTILE = [SeveralFaults("one user sends each kind of nonsense", tuple(ONE_USERS)), *EVERYBODYS]

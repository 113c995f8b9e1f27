"""A plan: everything public about a run, fixed before any data is touched.

Sampling, noise, thresholds and accounting all come from this one object, so they cannot disagree. A plan is made by
`Algorithm.plan(problem, privacy, options)`, re-checked by `verify`, printed by `quoron plan`, and stored as JSON.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

from quoron_protos.errors import ConfigError
from quoron_server._validate import positive, probability
from quoron_server.problem import Problem

Adjacency = Literal["replace-one", "zero-out", "none"]
Exposure = Literal["model", "broadcast", "local", "none"]
Constants = Literal["calibrated", "paper"]
# Not an assumption that anybody could make true: the seed stands beside the result, and runs of one seed share noise.
SEEDED = "SIMULATED, with noise from a seed, which protects nobody: who knows it, or sees two runs of it, takes it off."


@dataclass(frozen=True, slots=True)
class Privacy:
    """The wish: (ε, δ) for one whole user."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        probability(delta=self.delta)
        if not 0.01 <= self.epsilon <= 15:  # above, the samplers' error outweighs δ; below, tables outgrow memory
            raise ConfigError(f"Expected epsilon in [0.01, 15], got epsilon={self.epsilon:g}.")
        if not 1e-12 <= self.delta <= 0.1:
            raise ConfigError(f"Expected delta in [1e-12, 0.1], got delta={self.delta:g}.")


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The promise: what is protected, against whom, under which assumptions, and where it is proved."""

    epsilon: float  # inf without privacy
    delta: float
    adjacency: Adjacency
    exposure: Exposure
    assumptions: tuple[str, ...]
    theorem: str  # a file under docs/privacy/, with an anchor
    proved: bool = True  # False for the papers' printed constants where the notes find them unproved
    seeded: bool = False  # the noise of a simulation: nobody is protected

    def simulated(self) -> "Guarantee":
        """The promise of the same run with noise from a seed."""
        return replace(self, seeded=True)

    def sentence(self) -> str:
        """The promise in one sentence, for people."""
        if self.exposure == "none":
            return "No privacy: this is the non-private reference."
        against = {
            "model": "whoever sees the released models and each phase's status (clients and coordinator are trusted)",
            "broadcast": "every other client and whoever sees the released models (the coordinator is trusted)",
            "local": "the coordinator too",
        }[self.exposure]
        words = f"({self.epsilon:g}, {self.delta:g})-differential privacy for all items of any one user at once, "
        words += f"adjacency {self.adjacency}, exposure {self.exposure}: protects against {against}"
        if self.assumptions:
            words += "; assuming " + "; ".join(self.assumptions)
        words += f"; by {self.theorem}."
        if not self.proved:
            words = "NOT PROVED (the paper's printed constants, for comparison only): " + words
        return f"{SEEDED} With secret noise: {words}" if self.seeded else words


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run will use, in the worst case over data."""

    rounds: int  # adaptive interactions
    messages: int  # answers asked for
    gradient_evaluations: int  # item gradients, at the nominal items_per_user
    bytes_down: int  # float64 payload to clients
    bytes_up: int  # float64 payload from clients

    @classmethod
    def of(cls, problem: Problem, *, rounds: int, messages: int, gradients_per_user: int = 1) -> "Cost":
        """Cost of `messages` answers of one d-vector each, in `rounds` rounds."""
        payload = messages * problem.dimension * 8
        evaluations = messages * gradients_per_user * problem.items_per_user
        return cls(rounds, messages, evaluations, payload * gradients_per_user, payload)


class Parameters(Protocol):
    """An algorithm's own frozen dataclass of numbers: noise scales, thresholds, schedule."""

    __dataclass_fields__: Any


@dataclass(frozen=True, slots=True)
class Plan:
    """One algorithm on one problem with one promise, ready to run."""

    algorithm: str
    problem: Problem
    guarantee: Guarantee
    cost: Cost
    parameters: Any  # the algorithm's frozen dataclass
    predicted_excess_risk: float | None  # None where no prediction is made
    seed: int  # public randomness: slots and partition; never noise

    def simulated(self) -> "Plan":
        """The same plan carried out with noise from a seed."""
        return replace(self, guarantee=self.guarantee.simulated())

    def as_json(self) -> dict[str, Any]:
        """Plain nested numbers, strings and lists."""
        return asdict(self) | {"statement": self.guarantee.sentence()}

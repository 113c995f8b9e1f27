"""What an operator submits: one run, complete, as JSON. The coordinator makes and verifies the plan itself.

    >>> RunSpecification.parse('{}')
    Traceback (most recent call last):
    quoron_protos.errors.ConfigError: Expected a run specification, got run: Field required. Correct it.

Nothing here is private: clients are told of all of it but the seconds and the group.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from quoron_client import wire
from quoron_client.domains import L2Ball
from quoron_client.losses import make_loss
from quoron_protos.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS, AlgorithmInfo
from quoron_server.plan import Plan, Privacy
from quoron_server.problem import Problem

LONGEST = 1 << 20  # characters of a specification
MOST_ROUNDS = 1_000_000  # beyond, planning alone would exhaust memory
AROUND = 4 << 10  # bytes of a question or an answer beside its vectors
_MOST_VECTORS = 4  # in a question to one user
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Columns(_Section):
    """How a client makes numbers of its table, by public rules only."""

    label: str | None = None  # a column, or a comparison such as "arr_delay > 15"
    numeric: dict[str, tuple[float, float]] = Field(default_factory=dict)  # public range of each
    categorical: dict[str, tuple[str | int, ...]] = Field(default_factory=dict)  # public values of each
    intercept: bool = True
    unit_rows: bool = False

    @field_validator("categorical")
    @classmethod
    def _public(cls, columns: dict[str, tuple[str | int, ...]]) -> dict[str, tuple[str | int, ...]]:
        for name, values in columns.items():
            if not values:
                raise ValueError(f"the public values of categorical column {name!r} are missing; list them")
        return columns

    @property
    def dimension(self) -> int:
        """Number of features they become, d."""
        return len(self.numeric) + sum(map(len, self.categorical.values())) + self.intercept


class RunSpecification(_Section):
    """One run over the first `problem.users` enrolled users."""

    run: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    algorithm: str
    epsilon: float
    delta: float
    problem: Problem
    loss: dict[str, str | float]  # name and bounds
    columns: Columns
    seconds: Annotated[float, Field(gt=0, le=7 * 86400)]  # until a round closes
    options: dict[str, Any] = Field(default_factory=dict)
    constants: Literal["calibrated", "paper"] = "calibrated"
    trust_clients: bool = False  # accept exposure `model`
    seed: Seed = 0  # public randomness: slots and partition
    group: Annotated[str, Field(min_length=1, max_length=64)] = "everyone"  # whose lifetime budget it draws on
    simulation: bool = False  # seeded noise, where the coordinator allows it; never with real people's data
    noise_seed: Seed | None = None
    plan_digest: str | None = None  # of the plan that the submitter saw; another plan is then refused

    @field_validator("problem", mode="before")
    @classmethod
    def _known_constants(cls, value: object) -> object:
        if isinstance(value, Mapping):
            unknown = set(value) - {each.name for each in fields(Problem)}
            if unknown:
                raise ValueError(f"unknown constants {', '.join(sorted(map(str, unknown)))}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "RunSpecification":
        if self.simulation != (self.noise_seed is not None):
            raise ValueError("noise_seed belongs to a simulation, and a simulation needs one")
        if self.columns.dimension != self.problem.dimension:
            raise ValueError(f"the columns make {self.columns.dimension} features, problem.dimension is another number")
        if not isinstance(self.loss.get("name"), str):
            raise ValueError("the loss has no name")
        return self

    @classmethod
    def parse(cls, text: str) -> "RunSpecification":
        """The specification of a JSON text; ConfigError names the first thing that is wrong with it."""
        if len(text) > LONGEST:
            raise ConfigError(f"Expected a specification of at most {LONGEST:,} characters, got {len(text):,}.")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            wrong = error.errors()[0]
            key = ".".join(map(str, wrong["loc"])) or "a whole that does not fit"
            raise ConfigError(f"Expected a run specification, got {key}: {wrong['msg']}. Correct it.") from None

    def as_text(self) -> str:
        """JSON that `parse` reads."""
        return self.model_dump_json()


def digest(plan: Plan) -> str:
    """Fingerprint of a plan: every number in it."""
    return hashlib.sha256(json.dumps(plan.as_json(), sort_keys=True, default=str).encode()).hexdigest()


def make_plan(specification: RunSpecification) -> Plan:
    """The plan, verified against its theorem.

    Raises ConfigError for an unknown algorithm, option or constants, for a problem that the loss does not satisfy and
    for a plan other than `plan_digest`; Infeasible; VerificationError.
    """
    name = specification.algorithm
    if name not in ALGORITHMS:
        raise ConfigError(f"Expected algorithm to be one of {', '.join(ALGORITHMS)}, got algorithm={name!r}.")
    info = ALGORITHMS[name]
    check_constants(specification)
    if specification.constants not in info.constants:
        raise ConfigError(
            f"Expected constants to be one of {', '.join(info.constants)}, got {specification.constants!r}."
        )
    privacy = Privacy(specification.epsilon, specification.delta)
    options = options_of(info, specification.options)
    plan = info.plan(specification.problem, privacy, options, specification.constants, specification.seed)
    info.verify(plan)
    if specification.plan_digest not in (None, digest(plan)):
        raise ConfigError(
            f"Expected the coordinator to make the plan of {name} that you saw ({specification.plan_digest:.12}), got "
            f"another ({digest(plan):.12}). Use the same version of quoron on both sides."
        )
    return plan.simulated() if specification.simulation else plan


def check_constants(specification: RunSpecification) -> None:
    """ConfigError unless the constants of the problem hold for the loss that the clients compute."""
    given = specification.problem
    name = str(specification.loss["name"])
    bounds = {key: float(value) for key, value in specification.loss.items() if key != "name"}
    loss = make_loss(name, **bounds)
    needed = {
        "lipschitz": loss.lipschitz(given.domain, given.dimension),
        "smoothness": loss.smoothness,
        "start_gradient": loss.start_gradient,
        "feature_norm": loss.feature_norm,
        "link_curvature": loss.curvature,
        "ridge": loss.ridge,
    }
    for key, bound in needed.items():
        claimed = getattr(given, key)
        if claimed is not None and (bound is None or claimed < bound * (1 - 1e-12)):
            raise ConfigError(
                f"Expected problem.{key} >= {bound} for the {name} loss of this run, got {claimed}. "
                "Submit with `quoron submit`, which takes it from the loss."
            )
    if given.convex and not loss.convex:
        raise ConfigError(f"Expected problem.convex=false for the {name} loss, got true.")


def require_deployable(specification: RunSpecification, plan: Plan, *, allow_simulation: bool) -> None:
    """ConfigError unless this run may be carried out here: the same conditions as `rounds.run`, before anyone is asked.

    A simulation needs a coordinator that allows it. Anything else needs a proved promise, and exposure `model` needs
    trusted clients.
    """
    if specification.simulation:
        if not allow_simulation:
            raise ConfigError("Expected simulation=false, got true: tests need `quoron serve --allow-simulation`.")
        return
    if not plan.guarantee.proved or plan.guarantee.exposure == "none":
        raise ConfigError(f"Expected a proved promise, got {plan.algorithm} without one. Choose a private algorithm.")
    if plan.guarantee.exposure == "model" and not specification.trust_clients:
        raise ConfigError(
            f"Expected trust_clients=true for {plan.algorithm}: its clients see iterates without noise. "
            "Choose an algorithm with exposure broadcast, or say that the clients are trusted."
        )


def require_fitting(plan: Plan, largest_message: int) -> None:
    """ConfigError unless an answer fits into `largest_message` bytes, and a question into what a client takes."""
    answer = 8 * ALGORITHMS[plan.algorithm].answer(plan) + AROUND
    question = 8 * _MOST_VECTORS * plan.problem.dimension + AROUND
    if max(answer, question) > wire.MAX_MESSAGE:
        raise ConfigError(
            f"Expected messages of at most {wire.MAX_MESSAGE:,} bytes, got {max(answer, question):,} for "
            f"{plan.algorithm} with problem.dimension={plan.problem.dimension:,}. Use fewer features or another "
            "algorithm."
        )
    if answer > largest_message:
        raise ConfigError(
            f"Expected answers of at most {largest_message:,} bytes, got {answer:,} for {plan.algorithm} with "
            f"problem.dimension={plan.problem.dimension:,}. Start the coordinator with --largest-message "
            f"{-(-answer >> 20)}MiB."
        )


def _participations(plan: Plan) -> int:
    """Questions to one user, at most: one in one pass, but two when a user's budget is split between two reports."""
    if ALGORITHMS[plan.algorithm].passes == "many":
        return plan.cost.rounds
    return 2 if getattr(plan.parameters, "reports", None) == "split" else 1


def describe(specification: RunSpecification, plan: Plan) -> dict[str, Any]:
    """What clients are told before they decide, as JSON.

    `participations` is the largest number of questions to one user: what its owner's lifetime budget must allow for.
    """
    domain, promise = plan.problem.domain, plan.guarantee
    return {
        "run": specification.run,
        "algorithm": plan.algorithm,
        "statement": promise.sentence(),
        "epsilon": promise.epsilon,
        "delta": promise.delta,
        "adjacency": promise.adjacency,
        "exposure": promise.exposure,
        "rounds": plan.cost.rounds,
        "participations": _participations(plan),
        "dimension": plan.problem.dimension,
        "loss": specification.loss,
        "domain": {"l2-ball": domain.radius} if isinstance(domain, L2Ball) else {"box": domain.half_width},
        "columns": specification.columns.model_dump(mode="json"),
        "simulation": specification.simulation,
    }


def options_of(info: AlgorithmInfo, given: Mapping[str, Any]) -> Any:
    """An algorithm's options; ConfigError names the one that is unknown or wrong."""
    known = [each.name for each in fields(info.options)]
    for key in given:
        if key not in known:
            raise ConfigError(f"Expected options of {info.name} among {', '.join(known)}, got options.{key}.")
    rounds = given.get("rounds")
    if isinstance(rounds, int) and not 1 <= rounds <= MOST_ROUNDS:
        raise ConfigError(f"Expected options.rounds in [1, {MOST_ROUNDS:,}], got {rounds:,}.")
    try:
        return TypeAdapter(info.options).validate_python(dict(given))
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(("options", *map(str, wrong["loc"])))
        raise ConfigError(f"Expected {key} to be valid ({wrong['msg']}), got {key}={wrong['input']!r}.") from None

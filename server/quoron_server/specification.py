"""What an operator submits: one run, complete, as JSON. The coordinator makes and verifies the plan itself.

    >>> RunSpecification.parse('{}')
    Traceback (most recent call last):
    quoron_privacy.errors.ConfigError: Expected a run specification, got run: Field required. Correct it.

Nothing here is private: clients are sent all of it but the seconds and the group. They get the seconds, too, where
participation is public, since these say when a client sends.
"""

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from quoron_client.data.encoding import Encoding
from quoron_client.losses import make_loss
from quoron_client.protocol import wire
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.options import options_of, summed
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import EVERYONE, Attending, Privacy, RunPlan, check_delta
from quoron_server.problem import Problem
from quoron_server.silos import Silos, in_silos
from quoron_server.traffic import HELD, SCRATCH
from quoron_server.wording import digest, sentence

WAITING = 600.0  # seconds for clients to agree, where nothing is said
LONGEST = 1 << 20  # bytes of a specification, in UTF-8
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class RunSpecification(BaseModel):
    """One run over `problem.users` active users, drawn of their group."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, allow_inf_nan=False)

    run: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
    algorithm: str
    epsilon: float
    delta: float
    problem: Problem
    loss: dict[str, str | float]  # name and bounds
    columns: Encoding  # how a client makes numbers of its table, by public rules only
    seconds: Annotated[float, Field(gt=0, le=7 * 86400)]  # that a round takes answers
    early_ends: bool = False  # a round ends once all have answered; the guarantee says what that assumes
    min_cohort: float | None = None  # share of those asked who must answer; None: nobody checks whether anyone does
    min_cohort_epsilon: float = 0.0  # of epsilon, for the minimum cohort
    adjacency: Literal["replace-one", "zero-out"] | None = None  # None: the algorithm's own
    participation: Attending = "private"  # public: who answers is reported, and counted exactly; the guarantee says so
    trust_model: Literal["two-servers"] | None = None  # None: the algorithm's own
    server_epsilon: float | None = None  # ε of each of two servers; None: epsilon
    groups: int = 1  # of users, under two servers, of whose means the median is taken
    waiting: Annotated[float, Field(gt=0, le=30 * 86400)] = WAITING  # seconds for clients to agree
    allow_large_delta: bool = False  # accept δ above 1/n
    options: dict[str, Any] = Field(default_factory=dict)
    constants: Literal["calibrated", "paper"] = "calibrated"
    trust_clients: bool = False  # accept trust model `central-release`
    silos: tuple[Annotated[int, Field(ge=1)], ...] | None = None  # persons of each; None: every user has a client
    silo_sums: bool = False  # each silo sends one sum for its persons, whose clip it is trusted with
    seed: Seed = 0  # public randomness: slots and partition
    group: Annotated[str, Field(min_length=1, max_length=64)] = EVERYONE  # whose lifetime budget it draws on
    simulation: bool = False  # seeded noise, where the coordinator allows it; never with real people's data
    simulation_seed: Seed | None = None
    plan_digest: str | None = None  # of the plan that the submitter saw; another plan is then refused

    @model_validator(mode="after")
    def _consistent(self) -> "RunSpecification":
        if self.silos is None and self.silo_sums:
            raise ValueError("silo_sums belongs to silos, and no sizes of any are given")
        if self.silos is not None and sum(self.silos) != self.problem.users:
            raise ValueError(f"silos hold {sum(self.silos)} persons together, problem.users is another number")
        if self.simulation != (self.simulation_seed is not None):
            raise ValueError("simulation_seed belongs to a simulation, and a simulation needs one")
        if self.columns.dimension != self.problem.features:
            raise ValueError(f"the columns make {self.columns.dimension} features, problem.dimension is another number")
        if not isinstance(self.loss.get("name"), str):
            raise ValueError("the loss has no name")
        return self

    @classmethod
    def parse(cls, text: str) -> "RunSpecification":
        """Return the specification of a JSON text; ConfigError names the first thing that is wrong with it."""
        _require_short(text)
        return cls._checked(cls.model_validate_json, text)

    @classmethod
    def of(cls, **fields: Any) -> "RunSpecification":
        """Return the specification of these fields; ConfigError names the first thing that is wrong with them."""
        return cls._checked(cls.model_validate, fields)

    @staticmethod
    def _checked(read: Callable[[Any], "RunSpecification"], said: object) -> "RunSpecification":
        try:
            return read(said)
        except ValidationError as error:
            wrong = error.errors()[0]
            key = ".".join(map(str, wrong["loc"])) or "a whole that does not fit"
            value = f"={wrong['input']!r:.80}" if wrong["loc"] and wrong["type"] != "missing" else ""
            raise ConfigError(f"Expected a run specification, got {key}{value}: {wrong['msg']}. Correct it.") from None

    def as_text(self) -> str:
        """JSON that `parse` reads. ConfigError if it is longer than a coordinator takes."""
        text = self.model_dump_json()
        _require_short(text)
        return text


def _require_short(text: str) -> None:
    size = len(text.encode(errors="replace"))
    if size > LONGEST:
        raise ConfigError(
            f"Expected a specification of at most {LONGEST:,} bytes, got {size:,}. Declare columns that are alike as "
            "one: those that count up as 'x[0:100000]' (docs/tables.md), or use fewer columns and categories."
        )


class OtherPlan(ConfigError):
    """The plan is not the one that its submitter saw."""


def planned(text: str) -> tuple[RunSpecification, RunPlan]:
    """Return a specification's text, and its plan. Raises what `RunSpecification.parse` and `make_plan` raise."""
    specification = RunSpecification.parse(text)
    return specification, make_plan(specification)


def make_plan(specification: RunSpecification) -> RunPlan:
    """Return the plan, verified against its theorem.

    Raises ConfigError for an unknown algorithm, option or constants, for a problem that the loss does not satisfy and
    for a plan other than `plan_digest`; Infeasible; VerificationError.
    """
    name = specification.algorithm
    if name not in ALGORITHMS:
        raise ConfigError(f"Expected algorithm to be one of {', '.join(ALGORITHMS)}, got algorithm={name!r}.")
    spec = ALGORITHMS[name]
    check_constants(specification)
    privacy = Privacy(**{item.name: getattr(specification, item.name) for item in fields(Privacy)})
    options = options_of(spec, specification.options, constants=specification.constants)
    options = summed(options) if specification.silo_sums else options
    plan = spec.plan(specification.problem, privacy, options, specification.constants, specification.seed)
    spec.verify(plan)
    if specification.silos is not None:
        plan = in_silos(plan, Silos(specification.silos, specification.silo_sums))
    if specification.plan_digest not in (None, digest(plan)):
        raise OtherPlan(
            f"Expected the coordinator to make the plan of {name} that you saw ({specification.plan_digest:.12}), got "
            f"another ({digest(plan):.12}). Use the same version of quoron on both sides."
        )
    if specification.early_ends:
        plan = plan.assuming([Assumption(Kind.EARLY_ENDS)])
    return plan.simulated() if specification.simulation else plan


def check_constants(specification: RunSpecification) -> None:
    """Raise ConfigError unless the constants of the problem hold for the loss that the clients compute."""
    given = specification.problem
    name = str(specification.loss["name"])
    bounds = {key: float(value) for key, value in specification.loss.items() if key != "name"}
    loss = make_loss(name, **bounds)
    specification.columns.check_loss(loss)
    specification.columns.check_meant()
    if given.wide is not None:
        raise ConfigError(
            "Expected a problem with one domain, got problem.wide, too. Submit with `quoron submit`, which settles it."
        )
    if given.outputs != loss.outputs:
        raise ConfigError(
            f"Expected problem.outputs={loss.outputs} for the {name} loss of this run, got {given.outputs}. Submit "
            "with `quoron submit`, which takes it from the loss."
        )
    needed = {
        "lipschitz": loss.lipschitz(given.domain, given.dimension),
        "smoothness": loss.smoothness,
        "start_gradient": loss.start_gradient,
        "feature_norm": loss.feature_norm,
        "link_curvature": loss.curvature,
        "ridge": loss.ridge,
        "coordinate_lipschitz": loss.coordinate_lipschitz(given.domain, given.dimension),
        "coordinate_smoothness": loss.coordinate_smoothness(given.dimension),
    }
    for key, bound in needed.items():
        claimed = getattr(given, key)
        if claimed is not None and (bound is None or claimed < bound * (1 - 1e-12)):
            wanted = "none" if bound is None else f">= {bound}"
            raise ConfigError(
                f"Expected problem.{key} {wanted} for the {name} loss of this run, got {claimed}. "
                "Submit with `quoron submit`, which takes it from the loss."
            )


def require_deployable(specification: RunSpecification, plan: RunPlan, *, allow_simulation: bool) -> None:
    """ConfigError unless this run may be carried out here: the same conditions as `rounds.run`, before anyone is asked.

    A simulation needs a coordinator that allows it. Anything else needs a proved guarantee, and δ at most 1/n;
    `central-release` needs trusted clients; a guarantee over secret cohorts needs rounds whose end does not tell who
    was asked.
    """
    if specification.early_ends and plan.guarantee.trust_model == "two-servers":
        raise ConfigError(
            "Expected early_ends=false with trust model two-servers, got true: the end of a round would tell who was "
            "absent, and clients answer at a time that the question fixes."
        )
    if specification.simulation:
        if not allow_simulation:
            raise ConfigError("Expected simulation=false, got true: tests need `quoron serve --allow-simulation`.")
        return
    plan.require_deployable(trust_clients=specification.trust_clients)
    users, allowed = plan.problem.users, specification.allow_large_delta
    check_delta(plan.guarantee.delta, users, allowed=allowed, key="allow_large_delta")
    if specification.early_ends:
        require_open_cohorts(plan)


def require_open_cohorts(plan: RunPlan) -> None:
    """Raise ConfigError if the guarantee assumes secret cohorts: early ends would reveal who was in them."""
    if plan.guarantee.rests_on(Kind.SECRET_COHORTS):
        raise ConfigError(
            f"Expected early_ends=false for {plan.algorithm}, got true: its guarantee rests on secret cohorts, and the "
            "end of a round tells who was asked. Let rounds end at their deadline, or choose an algorithm that "
            "samples nobody."
        )


def require_private_participation(specification: RunSpecification) -> None:
    """Raise ConfigError for what Flower cannot keep: its clients answer whenever they are done, and in the clear."""
    if specification.trust_model == "two-servers":
        raise ConfigError(
            "Expected no trust model two-servers through Flower, got it: its nodes answer the coordinator in the "
            "clear. Submit to `quoron serve`, with a `quoron second-server` of another operator."
        )
    if specification.participation == "public":
        raise ConfigError(
            "Expected participation='private' through Flower, got 'public': its clients answer when they have "
            "computed, which their data move. Leave out privacy.min_cohort.participation, or submit to `quoron serve`."
        )


def require_second_server(specification: RunSpecification, plan: RunPlan, *, helped: bool) -> None:
    """Raise ConfigError for a run of two servers at a coordinator without the other one."""
    if plan.guarantee.trust_model == "two-servers" and not helped:
        raise ConfigError(
            f"Expected a coordinator with a second server for run {specification.run} of trust model two-servers, got "
            "one without: start it with --set second_server=..., and with TLS (docs/two-servers.md)."
        )


def require_connections(specification: RunSpecification, max_clients: int, *, alone: bool) -> None:
    """ConfigError if not all users of a run could be connected at a time, each by a client of its own if `alone`."""
    users = specification.problem.users
    if alone and users > max_clients:
        raise ConfigError(
            f"Expected at most {max_clients:,} users, as many clients as this coordinator lets in at a time, got "
            f"{users:,}. Start it with --set max_clients={users}, and as many files (ulimit -n) and 300 more."
        )


def require_silos(specification: RunSpecification, plan: RunPlan, clients: NDArray[np.int64]) -> None:
    """ConfigError where some members are people of one client and the run was not planned for silos, or their rows are
    too long for one answer; `clients` has the client of each member."""
    sizes = np.unique(clients, return_counts=True)[1]
    most = int(sizes.max(initial=0))
    numbers = plan.schedule.answer_length
    if most > 1 and specification.silos is None:
        raise ConfigError(
            f"Expected members who each have a client, as the run was submitted, got {most:,} who are people of one "
            "silo: what is guaranteed of a run with silos assumes more. Submit it with population.silos, or keep silos "
            "in a group of their own."
        )
    if most > 1 and (why := Silos(tuple(sizes.tolist()), specification.silo_sums).refused(plan)) is not None:
        raise ConfigError(f"Expected a plan for silos, got one of {plan.algorithm}: {why}.")
    length = (1 if specification.silo_sums else most) * (8 * numbers + 1) + wire.BESIDE
    if most > 1 and length > wire.MAX_MESSAGE:
        raise ConfigError(
            f"Expected silos whose answers take at most {wire.MAX_MESSAGE:,} bytes, got {most:,} people of one silo, "
            f"asked for {numbers:,} numbers each. Use fewer features, or split the silo into clients, each with a key."
        )


def require_fitting(plan: RunPlan, largest_message: int, *, most: int = wire.MAX_MESSAGE) -> None:
    """Raise ConfigError unless an answer fits into `largest_message` bytes, and it and a question into `most`."""
    answer = 8 * plan.schedule.answer_length + wire.BESIDE
    question = 8 * wire.MAX_VECTORS * plan.problem.dimension + wire.BESIDE
    if max(answer, question) > most:
        raise ConfigError(
            f"Expected messages of at most {most:,} bytes, got {max(answer, question):,} for {plan.algorithm} with "
            f"problem.dimension={plan.problem.dimension:,}. Use fewer features or another algorithm."
        )
    if answer > largest_message:
        raise ConfigError(
            f"Expected answers of at most {largest_message:,} bytes, got {answer:,} for {plan.algorithm} with "
            f"problem.dimension={plan.problem.dimension:,}. Start the coordinator with --set "
            f"max_message={-(-answer >> 20)}MiB."
        )


def require_room(plan: RunPlan, memory: int, disk: int, users: int | None = None) -> None:
    """ConfigError unless the answers of a round, and as much again on their way in, fit into `memory` bytes: those of
    `users` where silos send sums for all others.

    Those that are long once, and are read a block at a time, only have to fit on `disk`.
    """
    users, numbers = plan.problem.users if users is None else users, plan.schedule.answer_length
    answers = -(-plan.cost.messages // plan.cost.rounds) if plan.cost.rounds else 0  # of a round, on the average
    needed = 2 * 8 * numbers * min(users, answers)
    if plan.parameters.long_once() and needed > 2 * HELD:
        if needed // 2 > disk:
            raise ConfigError(
                f"Expected first answers that take at most {disk:,} bytes on this coordinator's disk, got "
                f"{needed // 2:,}: {users:,} users are asked for {numbers:,} numbers each by {plan.algorithm}. Use "
                f"fewer features, or set {SCRATCH} to a folder on a disk with room."
            )
        needed = 2 * max(HELD, 8 * plan.problem.dimension * users)
    if needed > memory:
        raise ConfigError(
            f"Expected rounds whose answers take at most {memory:,} bytes on this coordinator, twice, got {needed:,}: "
            f"{min(users, answers):,} users are asked for {numbers:,} numbers each by {plan.algorithm}. Use "
            "fewer features, smaller cohorts, or a machine with more memory."
        )


def require_telling(specification: RunSpecification, plan: RunPlan) -> None:
    """Raise ConfigError unless clients take so long a description of the run: they would all refuse."""
    length = len(json.dumps(describe(specification, plan)))
    if length > wire.MAX_DESCRIPTION:
        raise ConfigError(
            f"Expected a run that is described in {wire.MAX_DESCRIPTION:,} characters, got {length:,}, most of them "
            "columns. Declare columns that are alike as one: those that count up as 'x[0:100000]' (docs/tables.md)."
        )


def describe(specification: RunSpecification, plan: RunPlan) -> dict[str, Any]:
    """Return what clients are sent before they decide, as JSON.

    `participations` is the largest number of questions to one user: what its owner's lifetime budget must allow for.
    """
    domain = plan.problem.domain
    timely = specification.participation == "public" or plan.guarantee.trust_model == "two-servers"
    timing = {"seconds": specification.seconds} if timely else {}
    return {
        **describe_promise(specification.run, plan, simulation=specification.simulation),
        **timing,
        "loss": specification.loss,
        "domain": {"l2-ball": domain.radius} if isinstance(domain, L2Ball) else {"box": domain.half_width},
        "columns": specification.columns.as_json(),
        "min_cohort": specification.min_cohort,
        "participation": specification.participation,
        **({} if specification.silos is None else {"silo_sums": specification.silo_sums}),
    }


def describe_promise(run: str, plan: RunPlan, *, simulation: bool) -> dict[str, Any]:
    """Return the part of it that is the same whatever clients compute."""
    guarantee = plan.guarantee
    return {
        "run": run,
        "algorithm": plan.algorithm,
        "statement": sentence(guarantee),
        **{name: getattr(guarantee, name) for name in ("theorem", "epsilon", "delta", "adjacency", "trust_model")},
        "rounds": plan.cost.rounds,
        "participations": plan.schedule.participations,
        "dimension": plan.problem.dimension,
        "simulation": simulation,
    }

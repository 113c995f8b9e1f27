"""A plan: everything public about a run, its guarantee and its cost, fixed before any data is touched.

    plan = ALGORITHMS["tracking-srgd"].plan(problem, privacy, options)

Sampling, noise, thresholds and accounting all come from this one object, so they cannot disagree. It is re-checked by
`verify`, and printed and stored in the words of `wording`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from quoron_privacy.errors import (
    BudgetExceeded,
    ConfigError,
    VerificationError,
    count,
    positive,
    printable,
    probability,
)
from quoron_privacy.release import Adjacency
from quoron_server.parameters import Assumption, Kind, Parameters, PrintedParameters, merged
from quoron_server.problem import Problem
from quoron_server.schedule import CountLeakage, PlannedRelease, Schedule, numbers_up

if TYPE_CHECKING:  # a plan holds them; planners and verifiers import them
    from quoron_privacy.histograms.data_quality import DataQuality
    from quoron_privacy.histograms.held_out import HeldMeans, HeldOut
    from quoron_privacy.histograms.min_cohort import MinCohort
    from quoron_privacy.histograms.private_bounds import EstimatedBounds
    from quoron_privacy.two_servers.specification import MechanismSpec, Servers

TrustModel = Literal["central-release", "central-broadcast", "two-servers", "local", "none"]
Constants = Literal["calibrated", "paper"]
Attending = Literal["private", "public"]  # whether participation is kept secret, or reported

P = TypeVar("P", bound=Parameters)
Part = Literal["held_out", "estimates", "data_quality", "servers", "min_cohort"]  # of a guarantee, from the outside in
MAX_ROUNDS = 1_000_000  # of any plan; beyond, planning alone would exhaust memory
PREFACE = -2  # the round, in ledgers, of what is released before the first one; -1 is that of the initial state
PLANNED = -3  # and of the plan that is made of what was estimated, or of why there is none
ESTIMATES = -4  # and of what is estimated before the run is planned
EVALUATED = -5  # and of what is released of users that were held out, with the model
GROUPS = 1, 3, 5, 7, 9  # of users, under two servers
LINES, WIDTH = 10, 120  # of what prints itself
MIN_EPSILON, MAX_EPSILON = 0.01, 15.0  # below, tables outgrow memory; above, the samplers' error outweighs δ

EVERYONE = "everyone"  # default population: its budget is charged, users are enrolled in it


@dataclass(frozen=True, slots=True)
class Privacy:
    """What is asked for: (ε, δ) for one whole user, and a minimum cohort that is paid out of it, if one is wanted."""

    epsilon: float
    delta: float
    min_cohort: float | None = None  # q: a run goes on while this share of those asked answers
    min_cohort_epsilon: float = 0.0  # ε_q, of ε; spent unless participation is seen anyway
    adjacency: Adjacency | None = None  # of algorithms that offer several; None: their own, replace-one if that is one
    participation: Attending = "private"
    trust_model: Literal["two-servers"] | None = None  # None: what the algorithm usually has
    server_epsilon: float | None = None  # ε of each of two servers; None: epsilon
    groups: int = 1  # with two servers, public groups of whose means the median is taken

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        probability(delta=self.delta)
        if not MIN_EPSILON <= self.epsilon <= MAX_EPSILON:
            raise ConfigError(f"Expected epsilon in [{MIN_EPSILON:g}, {MAX_EPSILON:g}], got epsilon={self.epsilon:g}.")
        if not 1e-12 <= self.delta <= 0.1:
            raise ConfigError(f"Expected delta in [1e-12, 0.1], got delta={self.delta:g}.")
        if self.server_epsilon is not None and not (
            self.trust_model == "two-servers" and self.epsilon <= self.server_epsilon <= MAX_EPSILON
        ):
            raise ConfigError(
                f"Expected server_epsilon in [epsilon={self.epsilon:g}, {MAX_EPSILON:g}] and "
                f"trust_model='two-servers', got server_epsilon={self.server_epsilon:g} and "
                f"trust_model={self.trust_model!r}."
            )
        if self.groups != 1 and not (self.trust_model == "two-servers" and self.groups in GROUPS):
            raise ConfigError(
                f"Expected groups in {GROUPS} and trust_model='two-servers', got groups={self.groups} and "
                f"trust_model={self.trust_model!r}."
            )
        if self.participation == "public" and (self.min_cohort is None or self.adjacency == "zero-out"):
            given = "no minimum cohort" if self.min_cohort is None else f"adjacency={self.adjacency!r}"
            raise ConfigError(
                f"Expected a minimum cohort and adjacency='replace-one' with participation='public', got {given}: "
                "counts of who answers decide by it, and under zero-out whether one user is there is what the "
                "guarantee hides. Declare privacy.min_cohort, or leave participation='private'."
            )
        if self.min_cohort is None:
            if self.min_cohort_epsilon:
                raise ConfigError(
                    f"Expected a minimum cohort with min_cohort_epsilon={self.min_cohort_epsilon:g}, got none."
                )
            return
        probability(min_cohort=self.min_cohort)
        positive(min_cohort_epsilon=self.min_cohort_epsilon)
        if not (
            self.epsilon - self.min_cohort_epsilon >= MIN_EPSILON and self.delta > 1e-12
        ):  # `minimum cohort.rest` is exact
            raise ConfigError(
                f"Expected min_cohort_epsilon to leave an epsilon of at least {MIN_EPSILON:g} and a delta of a "
                f"little more than 1e-12, got min_cohort_epsilon={self.min_cohort_epsilon:g} of "
                f"epsilon={self.epsilon:g} and delta={self.delta:g}."
            )


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The guarantee: what is protected, against whom, under which assumptions, and where it is proved."""

    epsilon: float  # inf without privacy
    delta: float
    adjacency: Adjacency
    trust_model: TrustModel
    assumptions: tuple[Assumption, ...]  # in the order of their kinds; the registry adds what follows from the numbers
    theorem: str  # a file under docs/privacy/, with an anchor
    proved: bool = True  # False for the papers' printed constants where the notes find them unproved
    seeded: bool = False  # the noise of a simulation: nobody is protected
    curated: bool = False  # one machine holds all items and computes every answer: no clients, and no coordinator
    min_cohort: "MinCohort | None" = None  # of the run, paid within (epsilon, delta); None: nobody checks who answers
    data_quality: "DataQuality | None" = None  # a data quality check before the first round, paid within; None: none
    estimates: "EstimatedBounds | None" = None  # declarations that nobody knew, paid within before all else; None: none
    held_out: "HeldOut | HeldMeans | None" = None  # of users that are in nothing else; None: nobody
    servers: "Servers | None" = None  # of trust model two-servers, of each of which this is the guarantee

    def rests_on(self, kind: Kind) -> bool:
        """Return whether something of this kind is assumed."""
        return any(assumption.kind is kind for assumption in self.assumptions)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run will use, in the worst case over data."""

    rounds: int  # adaptive interactions, which papers count as batch gradient steps
    messages: int  # answers asked for
    gradient_evaluations: int  # item gradients, at the nominal items_per_user
    bytes_down: int  # float64 payload to clients
    bytes_up: int  # float64 payload from clients

    @classmethod
    def of(cls, problem: Problem, parameters: Parameters) -> "Cost":
        """Return the sums over all questions of all rounds."""
        schedule = parameters.schedule(problem)
        return cls(
            rounds=len(schedule.cohorts),
            messages=sum(schedule.cohorts),
            gradient_evaluations=schedule.total(lambda task: task.planned_gradients(problem.items_per_user)),
            bytes_down=8 * schedule.total(lambda task: task.numbers_down),
            bytes_up=8 * schedule.total(numbers_up),
        )


def in_lines(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a title, and labels with their texts, in ten lines of 120 characters at most."""
    lines = few(rows)
    width = max((len(label) for label, _ in lines), default=0)
    return "\n".join(map(_cut, [title, *(f"  {name:<{width}}  {text}" for name, text in lines)]))


def few(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the first seven rows, how many more there are, and the last; or all nine. Their texts are single lines."""
    shown = list(rows)
    if len(shown) >= LINES:
        shown = [*shown[: LINES - 3], ("and", f"{len(shown) - LINES + 2} more"), shown[-1]]
    return [(_cut(label), _cut(text)) for label, text in shown]


def _cut(text: str) -> str:
    line = printable(text).replace("\n", " ")
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One algorithm on one problem with one guarantee, ready to run."""

    algorithm: str
    problem: Problem
    guarantee: Guarantee
    cost: Cost
    parameters: Parameters  # the algorithm's own
    predicted_excess_risk: float | None  # at most, in nine of ten tables like those measured; None: nobody measured
    seed: int  # public randomness: slots and partition; never noise
    guessed_excess_risk: float | None = None  # by the planner's model; None where it has none

    def __repr__(self) -> str:
        return in_lines(f"Plan of {self.algorithm}", self.rows())

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of what a reader asks for first."""
        promised, problem, cost = self.guarantee, self.problem, self.cost
        cohorts = self.schedule.cohorts
        asked = f"{min(cohorts):,} to {max(cohorts):,}" if len(set(cohorts)) > 1 else f"{max(cohorts, default=0):,}"
        risk, guess = self.predicted_excess_risk, self.guessed_excess_risk
        guessed = "unknown" if guess is None else f"{guess:.2g}, a guess"
        guarantee = f"ε = {promised.epsilon:.4g}, δ = {promised.delta:g}, {promised.adjacency}"
        if isinstance(self.parameters, PrintedParameters):
            found = "no guarantee" if math.isinf(promised.epsilon) else guarantee
            guarantee = f"as printed: {found}, by our accountant; the paper claims ε = {self.parameters.epsilon:g}"
        return [
            ("guarantee", guarantee),
            ("trust_model", f"{promised.trust_model}{', SIMULATED: nobody is protected' if promised.seeded else ''}"),
            ("assumptions", ", ".join(assumption.kind.value for assumption in promised.assumptions) or "none"),
            ("proof", promised.theorem),
            ("users", f"{problem.users:,}, {problem.items_per_user:,} items each, {problem.dimension:,} coefficients"),
            ("rounds", f"{cost.rounds:,}, {asked} users asked in each"),
            ("excess risk", guessed if risk is None else f"at most {risk:.2g}"),
        ]

    def parameters_of(self, kind: type[P]) -> P:
        """Return the numbers of an algorithm whose parameters are of this kind; VerificationError for another's."""
        if not isinstance(self.parameters, kind):
            raise VerificationError(
                f"Expected {kind.__name__} in a plan of {self.algorithm}, got {type(self.parameters).__name__}."
            )
        return self.parameters

    @property
    def schedule(self) -> Schedule:
        """What follows from the rounds that its parameters declare."""
        return self.parameters.schedule(self.problem)

    @property
    def asks_everybody(self) -> bool:
        """Whether every user is asked in every round."""
        return self.schedule.participations >= self.cost.rounds

    def without(self, *parts: Part) -> "RunPlan":
        """Return the plan without these parts of its guarantee, with what is guaranteed of the rest alone.

        Name them from the outside in. Users that are trained on are promised all of it as well; without two servers
        one adds as much noise as both.
        """
        guarantee = self.guarantee
        for name in parts:
            if (part := getattr(guarantee, name)) is None:
                continue
            left: dict[str, Any] = {name: None}
            if name == "servers":
                left |= {"epsilon": part.together_epsilon, "trust_model": "central-broadcast"}
            elif name != "held_out":
                left |= {"epsilon": part.rest_epsilon, "delta": part.rest_delta}
            guarantee = replace(guarantee, **left)
        return self if guarantee is self.guarantee else replace(self, guarantee=guarantee)

    @property
    def spec(self) -> "MechanismSpec":
        """What two servers and every client agree on of each round. VerificationError where there is none."""
        servers = self.guarantee.servers
        return self.schedule.spec(1 if servers is None else servers.groups)

    def count_leakage(self) -> tuple[CountLeakage, ...]:
        """Of each round, what of `Schedule.count_leakage` is left to a minimum cohort.

        () where nothing is left. Only under replace-one does an absent user leave room. Where who answers is public, it
        is seen anyway.
        """
        min_cohort, schedule = self.guarantee.min_cohort, self.schedule
        if min_cohort is not None and min_cohort.public:
            return (CountLeakage(math.inf),) * len(schedule.cohorts)
        replaced = self.guarantee.adjacency == "replace-one"
        given = tuple(
            stretch if stretch.released or math.isinf(stretch.mu) or replaced else CountLeakage(0.0)
            for stretch in schedule.count_leakage
        )
        return given if any(leakage.released or leakage.mu for leakage in given) else ()

    def simulated(self) -> "RunPlan":
        """Return the same plan carried out with noise from a seed."""
        return replace(self, guarantee=replace(self.guarantee, seeded=True))

    def assuming(self, more: Iterable[Assumption]) -> "RunPlan":
        """Return the same plan with a guarantee under more assumptions."""
        guarantee = self.guarantee
        return replace(self, guarantee=replace(guarantee, assumptions=merged(guarantee.assumptions, more)))

    def as_curated(self, assumptions: Iterable[Assumption] = ()) -> "RunPlan":
        """The same plan carried out on one trusted machine that holds the table and computes all answers itself.

        What algorithms assume is about clients: that they send true answers, whenever they are asked, and keep nothing.
        Here the answers are our own code's, nobody sees who was asked, and only the releases leave the machine. What is
        left are `assumptions` of the table.
        """
        return replace(self, guarantee=replace(self.guarantee, curated=True, assumptions=merged(assumptions)))

    def require_deployable(self, *, trust_clients: bool) -> None:
        """ConfigError unless it may be carried out for real: a proved guarantee, and clients trusted where needed."""
        if not self.guarantee.proved or self.guarantee.trust_model == "none":
            raise ConfigError(
                f"Expected a proved guarantee, got {self.algorithm} without one. Choose a private algorithm with "
                "calibrated constants."
            )
        if self.guarantee.trust_model == "central-release" and not (trust_clients or self.guarantee.curated):
            raise ConfigError(
                f"Expected privacy.trust_model='central-release' for {self.algorithm}: its clients see iterates "
                "without noise, and its guarantee needs them to send true gradients and to answer or not whatever they "
                "see. Choose an algorithm of trust model central-broadcast, or say that clients are trusted."
            )
        why = self.parameters.simulation_only()
        if why is not None:
            raise ConfigError(f"Expected a plan of {self.algorithm} for real clients, got one that is not: {why}.")

    def releases(self) -> tuple[PlannedRelease, ...]:
        """Return all that a run will release, by which mechanisms, how often: what its ledger is compared with.

        Private bounds, the data quality check, if there is one, then the algorithm's own, then the decisions of a
        minimum cohort; last what is released of users that were held out.
        """
        quality, min_cohort, paid = self.guarantee.data_quality, self.guarantee.min_cohort, self.guarantee.estimates
        made = self.schedule.releases
        if quality is not None:
            made = (PlannedRelease(quality, quality.entry(), 1, (PREFACE,), quality.effective_mu), *made)
        if paid is not None:
            first = (PlannedRelease(paid, entry, 1, (ESTIMATES,), mu, tested=True) for entry, mu in paid.releases())
            made = (*first, *made)
        made = made if min_cohort is None else (*made, *_decisions(min_cohort, self, made))
        if (held := self.guarantee.held_out) is None:
            return made
        when = (*held.rounds, EVALUATED)
        return (*made, *(PlannedRelease(held, entry, len(when), when, mu) for entry, mu in held.releases()))


def _decisions(min_cohort: "MinCohort", plan: RunPlan, made: tuple[PlannedRelease, ...]) -> tuple[PlannedRelease, ...]:
    """Counts with noise, by how many are asked. What the releases of a round tell anyhow is none of them.

    Laplace noise is paid by ε_q, all of a run together; Gaussian noise by μ, with what else a round releases.
    """
    cohorts = plan.schedule.cohorts
    given = plan.count_leakage() or (CountLeakage(0.0),) * len(cohorts)
    rounds: dict[tuple[int, float], list[int]] = {}
    for round_, (asked, leakage) in enumerate(zip(cohorts, given, strict=True)):
        free = 0.0 if leakage.released else leakage.mu
        if min_cohort.count_scale or min_cohort.deviation(free) < math.inf:
            rounds.setdefault((asked, free), []).append(round_)
    found = []
    for (asked, free), at in rounds.items():
        mu = max((release.mu or 0.0 for release in made if at[0] in release.rounds), default=0.0)
        paid = math.hypot(mu, min_cohort.each) if min_cohort.each else None
        found.append(PlannedRelease(min_cohort, min_cohort.entry(asked, free), len(at), at, paid))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper limits; None means no limit.

    >>> Budget(rounds=10).check(rounds=11, gradient_evaluations=0)
    Traceback (most recent call last):
    quoron_privacy.errors.BudgetExceeded: Expected rounds <= 10 (budget.rounds), got 11. Raise the budget ...
    """

    rounds: int | None = None  # adaptive interactions: exactly so many are planned for
    max_rounds: int | None = None  # and of these at most so many
    gradient_evaluations: int | None = None  # item gradients at the nominal items per user
    answers_per_user: int | None = None  # questions that one user is asked
    bytes_per_user: int | None = None  # float64 payload that one who is asked as often as anybody sends and receives

    def __post_init__(self) -> None:
        if self.rounds is not None and self.max_rounds is not None:
            raise ConfigError(
                f"Expected budget.rounds (exactly so many) or budget.max_rounds (at most), got both: "
                f"{self.rounds:,} and {self.max_rounds:,}. Leave out one."
            )
        for name in ("rounds", "max_rounds", "gradient_evaluations", "answers_per_user", "bytes_per_user"):
            if getattr(self, name) is not None:
                count(**{name: getattr(self, name)})

    def check(self, *, rounds: int, gradient_evaluations: int) -> None:
        """Raises BudgetExceeded if any of these totals is over its limit."""
        self._check({"rounds": rounds, "max_rounds": rounds, "gradient_evaluations": gradient_evaluations})

    def check_plan(self, plan: RunPlan) -> None:
        """Raises BudgetExceeded if the whole plan could exceed the budget."""
        cost, asked = plan.cost, plan.schedule.participations
        self.check(rounds=cost.rounds, gradient_evaluations=cost.gradient_evaluations)
        of_user = -(-asked * (cost.bytes_down + cost.bytes_up) // max(1, cost.messages))
        self._check({"answers_per_user": asked, "bytes_per_user": of_user})

    def _check(self, totals: Mapping[str, float]) -> None:
        for name, total in totals.items():
            limit = getattr(self, name)
            if limit is not None and total > limit:
                raise BudgetExceeded(
                    f"Expected {name} <= {limit} (budget.{name}), got {total}. Raise the budget or run shorter."
                )


def check_delta(delta: float, users: int, *, allowed: bool, key: str = "privacy.allow_large_delta") -> None:
    """Raise ConfigError for δ > 1/n, unless that is `allowed`: `key` names the setting that allows it."""
    if delta * users > 1 and not allowed:
        raise ConfigError(
            f"Expected delta <= 1/n = {1 / users:.3g} for n={users:,} users, got delta={delta:g}: to publish all of "
            f"one user in n would keep that guarantee. Lower delta, or say {key}=true."
        )


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """What a run may ask of users: public, and all that `auto`'s rules know beside a plan."""

    budget: Budget = field(default_factory=Budget)
    everybody: bool = False  # whether one machine holds all rows: to ask all users again then costs nobody anything
    participation: float = 1.0  # declared share of those asked who are expected to answer


class Decision(NamedTuple):
    """What a method's own rule says of a plan."""

    taken: bool
    because: str = ""  # a clause of the sentence that `auto` prints, if it has something to add

"""Making and checking plans: every algorithm is asked, those that cannot say why not.

A run before it begins is `Prepared`: checked, planned and within every limit, with nothing written yet.
`silos_of` is what plans for silos of a configuration assume.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from quoron.config import Config, SiloSection, TableSection, TwoServersSection
from quoron.planning import forecasts
from quoron.planning.choosing import LIKELY, STRICTER, TRUSTED, UNSEEN, automatic, ruled, too_many_outliers
from quoron.planning.choosing import Candidate as Candidate
from quoron.planning.forecasts import Forecast, forecast_of, no_better_than_start
from quoron.results import Axes, Printed, Tabular, axes
from quoron.run_folder import RECORD, RunFolder
from quoron.toml_text import comment
from quoron_privacy.errors import BudgetExceeded, ConfigError, Infeasible, Needs, QuoronError
from quoron_privacy.histograms.min_cohort import spent_on
from quoron_server.algorithms import ALGORITHMS, RegisteredAlgorithm
from quoron_server.algorithms.min_cohort import left_by_min_cohort
from quoron_server.algorithms.options import options_of, summed
from quoron_server.algorithms.search import NEAR, round_grid, settled, two_digits, within_rounds
from quoron_server.algorithms.spec import risk_text, start_risk, trivial_risk
from quoron_server.parameters import Kind, PrintedParameters
from quoron_server.plan import MAX_EPSILON, MIN_EPSILON, Budget, PolicyInputs, Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.silos import Silos, in_silos
from quoron_server.wording import plan_json, sentence

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from quoron_server.runs import Account, Run
    from quoron_server.storage.ledger import Ledger

FIX = (
    "Each client counts as ONE user, whatever its table holds. If these are hospitals or other silos of many persons, "
    "start each client with `quoron client --data FILE --user COLUMN`, submit with --users as the number of persons "
    "and population.silos, serve with --set max_users_per_client=N, and each person is protected (docs/silos.md)."
)
FEW = 100  # users, below which a run that can learn nothing is likely to be one over silos


def silos_of(config: Config, users: int) -> Silos | None:
    """Return the silos of so many users; None where each has a separate client. ConfigError where they do not fit.

    Of a table some of whose users are held out, each silo has its share of those who are not.
    """
    section = config.population
    if section.silos is None:
        return None
    sizes = section.silos.sizes
    of = None
    if isinstance(section, TableSection) and not isinstance(sizes, int):
        whole, trained = sum(sizes), 1 - section.test_fraction  # each is held out by a coin of its own
        of = whole if abs(users - whole * trained) <= 1 + 6 * math.sqrt(whole * trained * (1 - trained)) else None
    return Silos.declared(sizes, users, sums=section.silos.sums, of=of)


def warnings(plan: RunPlan, sizes: Sequence[int] | None) -> tuple[str, ...]:
    """Return warnings for the submitter, before a run can begin and be charged; () where nothing is amiss."""
    if sizes is None:
        return () if (warning := useless(plan)) is None else (warning,)
    return _away(plan, Silos(tuple(sizes)))


def _away(plan: RunPlan, silos: Silos) -> tuple[str, ...]:
    """Return a warning where the minimum cohort cannot do without the largest silo."""
    persons, users, min_cohort = silos.largest, silos.users, plan.guarantee.min_cohort
    if min_cohort is None or persons <= (spare := users - min_cohort.needed(users)):
        return ()
    return (
        f"WARNING: silo {silos.sizes.index(persons) + 1}, the largest of {len(silos.sizes):,}, holds {persons:,} of "
        f"{users:,} persons, and the minimum cohort of {min_cohort.share:g} spares {spare:,}: the run ends without a "
        "model whenever that silo is away. Declare a lower one, or more silos.",
    )


def useless(plan: RunPlan) -> str | None:
    """Return what to say, before anything is charged, of a run over few users that is forecast to learn nothing."""
    users, predicted = plan.problem.users, plan.predicted_excess_risk or plan.guessed_excess_risk
    start = start_risk(plan.problem)
    if plan.guarantee.rests_on(Kind.PERSONS_OF_SILOS) or users >= FEW or (predicted is not None and predicted < start):
        return None
    forecast = "nothing is predicted" if predicted is None else f"an excess risk of {predicted:.2g} is predicted"
    fix = "" if Silos((2,)).refused(plan) else f" {FIX}"
    return (
        f"WARNING: {users:,} users, of whom nothing can be learnt: {forecast}, where not training leaves at most "
        f"{start:.2g}.{fix}"
    )


Registry = Mapping[str, RegisteredAlgorithm]
CONSIDERED = ("algorithm", "predicted_excess_risk", "guessed_excess_risk", "infeasible")  # of a candidate, in JSON
LARGEST_ROUNDS = 1024  # that the curve looks at
SURE = (
    f"Predicted excess risks are bounds that hold {LIKELY}, in fewer of odd ones; what is called a guess nobody has "
    "measured (docs/comparing.md)."
)


@dataclass(frozen=True, slots=True)
class RoundsCurve:
    """Predicted excess risk of one algorithm against its number of rounds, everything else at its best for each."""

    points: tuple[tuple[int, float], ...]  # (rounds, predicted excess risk), by rounds; infeasible ones are left out
    measured: bool = True  # whether those are bounds; guesses otherwise

    @property
    def best(self) -> int:
        """Rounds of the least predicted risk."""
        return min(self.points, key=lambda point: (point[1], point[0]))[0]

    @property
    def nearly_best(self) -> int:
        """The fewest rounds within 5 % of the least predicted risk."""
        least = min(risk for _, risk in self.points)
        return min(rounds for rounds, risk in self.points if risk <= NEAR * least)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers."""
        kind = "predicted_excess_risk" if self.measured else "guessed_excess_risk"
        points = [{"rounds": rounds, kind: risk} for rounds, risk in self.points]
        return {"points": points, "best": self.best, "smallest_within_5_percent": self.nearly_best}


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Tabular):
    """The plan of a run, and what every other private algorithm would have done."""

    plan: RunPlan
    candidates: tuple[Candidate, ...]
    curve: RoundsCurve | None = None  # of the plan's algorithm, when it was asked for
    choice: str | None = None  # why the algorithm was chosen, in one sentence; None when it was named
    remarks: tuple[str, ...] = ()  # what its algorithm says of the plan, and what was taken for what nobody declared
    advice: "RequiredSize | None" = None  # how many users or which ε would do, where that was asked

    @property
    def title(self) -> str:
        """Return the name of the class, and the algorithm's."""
        return f"Planned, {self.plan.algorithm}"

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the plan, the number of alternatives, and the first remark."""
        others = [other for other in self.candidates if other.algorithm != self.plan.algorithm]
        feasible = sum(other.plan is not None for other in others)
        more = [("others", f"{feasible} feasible, {len(others) - feasible} not: see candidates")] if others else []
        more += [("remarks", f"{len(self.remarks)}: {self.remarks[0]}")] if self.remarks else []
        return [*self.plan.rows(), *more]

    @property
    def statement(self) -> str:
        """Return the privacy guarantee in one sentence."""
        return sentence(self.plan.guarantee)

    def records(self) -> list[dict[str, Any]]:
        """Return one mapping a candidate algorithm; of the plan alone where no other was considered."""
        return [candidate.record() for candidate in self.candidates or (Candidate(self.plan.algorithm, self.plan),)]

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Return matplotlib Axes with excess risk against rounds. ConfigError for a plan without its curve."""
        if self.curve is None:
            raise ConfigError(f"Expected a plan with a curve of its rounds to plot, got none of {self.plan.algorithm}.")
        label = "predicted excess risk, at most" if self.curve.measured else "excess risk, a guess"
        axis, rounds = axes(ax, xlabel="rounds", ylabel=label, title=self.plan.algorithm), self.plan.cost.rounds
        axis.loglog(*zip(*self.curve.points, strict=True), ".-", label="best of its rounds")
        axis.loglog(rounds, dict(self.curve.points).get(rounds), "o", label="the plan")
        axis.legend()
        return axis

    @property
    def dp_event(self) -> "DpEvent":
        """Return what the plan releases as a dp_accounting event; UsageError where dp_accounting has none for it."""
        return ALGORITHMS[self.plan.algorithm].dp_event(self.plan)

    @property
    def forecast(self) -> Forecast | None:
        """What the predicted excess risk means for the label; None where nobody has measured a bound."""
        return forecast_of(self.plan.problem, self.plan.predicted_excess_risk)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is said before all else: that the plan's bound is no better than not training. () where it is better."""
        return no_better_than_start(self.plan)

    def as_json(self) -> dict[str, Any]:
        """Return the plan, and one entry for each algorithm considered."""
        considered = [{name: row[name] for name in CONSIDERED} for row in map(Candidate.record, self.candidates)]
        curve = {} if self.curve is None else {"rounds_curve": self.curve.as_json()}
        answers = {} if self.advice is None else self.advice.as_json()
        fields: dict[str, Any] = {"forecast": self.forecast and asdict(self.forecast)}
        fields |= {"choice": self.choice, "considered": considered, "remarks": [*self.doubts, *self.remarks]}
        if (paid := self.plan.guarantee.estimates) is not None:
            fields["estimates"] = [asdict(cost) for cost in paid.costs()]
        return plan_json(self.plan) | fields | curve | answers


def choose(
    config: Config,
    problem: Problem,
    *,
    compare: bool = False,
    alternatives: bool = True,
    federated: bool = False,
    algorithms: Registry = ALGORITHMS,
) -> Plan:
    """Return the plan of `config.algorithm`; with name `auto`, the one that the rule of `choosing` takes, and why.

    That plan is verified by a second route; those that stand beside it are not. With a table everybody may be asked in
    every round, for the machine that holds it answers, unless the run is `federated` and each user has one of its own.

    With budget.rounds every algorithm is planned for exactly that many rounds, with budget.max_rounds for as many up to
    that as leave the least predicted error. The others are planned for `auto`, with `compare`, and when the named one
    is infeasible; `compare` also gives the plan's rounds curve. Without `alternatives` they are not planned where that
    changes no plan: a refusal of the named one does not look for others, and `auto` not beyond a method whose own rule
    takes the problem.
    Raises ConfigError for an unknown algorithm or option, Infeasible naming the condition, what would satisfy it and
    what is feasible instead, and BudgetExceeded when the plan could exceed the budget.
    """
    name = config.algorithm.name
    if name != "auto" and name not in algorithms:
        raise ConfigError(
            f"Expected algorithm.name to be auto or one of {', '.join(algorithms)}, got algorithm.name={name!r}."
        )
    if name == "auto" and config.algorithm.constants == "paper":
        printed = ", ".join(info.name for info in algorithms.values() if info.printed is not None)
        raise ConfigError(
            "Expected algorithm.name with algorithm.constants='paper', got 'auto': printed numbers come with no "
            f"guarantee to compare them at. Name one of {printed}."
        )
    if name == "auto":
        automatically = partial(_automatic, algorithms=algorithms, federated=federated)
        try:
            planned = automatically(config, problem, alternatives=alternatives)
        except Infeasible as error:
            _settling(error, config, problem, lambda other, more, _: automatically(other, more, alternatives=False))
            raise
    else:
        planned = _named(config, problem, algorithms, compare=compare, alternatives=alternatives)
    budget_of(config).check_plan(planned.plan)
    info, silos = algorithms[planned.plan.algorithm], silos_of(config, problem.users)
    numbers = planned.plan.parameters
    chosen = numbers.remarks() if isinstance(numbers, PrintedParameters) else info.policy.remarks(planned.plan)
    remarks = (*too_many_outliers(problem, info), *chosen)
    lost = () if silos is None else warnings(planned.plan, silos.sizes)
    planned = replace(planned, remarks=(*remarks, *lost, *forecasts.undeclared(config, planned.plan)))
    if not compare:
        return planned
    given = config.algorithm.options if name != "auto" else {}
    return replace(
        planned, curve=rounds_curve(algorithms[planned.plan.algorithm], config, problem, given, planned.plan)
    )


def rounds_curve(
    info: RegisteredAlgorithm, config: Config, problem: Problem, given: Mapping[str, Any], chosen: RunPlan | None = None
) -> RoundsCurve | None:
    """Plans of one algorithm for 1 round, 2, and so on by factors of about √2, its other options as `given`.

    Numbers of rounds that are infeasible are left out; the `chosen` plan is a point too. None where nothing is
    predicted, or the printed constants leave no choice.
    """
    if not info.takes("rounds") or config.algorithm.constants not in info.constants:
        return None
    measured = info.factor.of(problem) is not None
    points = {}
    for rounds in round_grid(LARGEST_ROUNDS)[:: info.policy.curve_step]:
        with suppress(QuoronError):
            plan = _plan(info, config, problem, given, rounds)
            points[rounds] = plan.predicted_excess_risk if measured else plan.guessed_excess_risk
    if chosen is not None:
        points[chosen.cost.rounds] = chosen.predicted_excess_risk if measured else chosen.guessed_excess_risk
    known = tuple((rounds, float(risk)) for rounds, risk in sorted(points.items()) if risk is not None)
    return RoundsCurve(known, measured) if len(known) > 1 else None


def privacy_of(config: Config, trust_model: Literal["two-servers"] | None = None) -> Privacy:
    """(ε, δ), with the minimum cohort where one is declared, against each of two servers if that is the trust model."""
    section = config.privacy
    cohort, servers = section.min_cohort, section.two_servers
    share = None if cohort.share == "none" else cohort.share
    spent = spent_on(share, section.epsilon, cohort.epsilon)
    if servers != TwoServersSection() and section.trust_model != "two-servers":
        raise ConfigError(
            f"Expected privacy.trust_model='two-servers' with privacy.two_servers, got {section.trust_model!r}."
        )
    own = (trust_model, servers.epsilon, servers.groups) if trust_model else ()
    return Privacy(section.epsilon, section.delta, share, spent, section.adjacency, cohort.participation, *own)


def _automatic(config: Config, problem: Problem, algorithms: Registry, *, alternatives: bool, federated: bool) -> Plan:
    if config.algorithm.options:
        raise ConfigError("Expected no algorithm.options with algorithm.name='auto', got some. Name the algorithm.")
    _require_users(config, problem, algorithms)
    budget, one_machine = budget_of(config), isinstance(config.population, TableSection)
    allowed = PolicyInputs(budget, one_machine and not federated, _participation(config))
    alike = problem.beliefs.isotropic is not None and not allowed.everybody
    trusted = config.privacy.trust_model in TRUSTED
    if not (alternatives or alike) and trusted and problem.beliefs.hostile_share == 0:
        rules = [info for info in algorithms.values() if info.policy.rule is not None]
        # The first whose rule takes its plan is taken, whatever the others are; with a limit on rounds the least.
        for some in [[info] for info in rules] if budget.max_rounds is None else [rules]:
            alone = tuple(_within_budget(info, config, problem) for info in some)
            if any(ruled(one, algorithms, allowed) for one in alone):  # bounds may be loose; others are not better
                plan, choice = automatic(alone, algorithms, problem, allowed=allowed)
                algorithms[plan.algorithm].verify(plan)
                return Plan(plan, alone, choice=choice)
    within = (_within_budget(info, config, problem) for info in _private(config, algorithms))
    candidates = tuple(_worthwhile(candidate, problem) for candidate in within)
    if not any(candidate.plan for candidate in candidates):  # whatever is taken then, is refused for its budget
        candidates = tuple(_worthwhile(candidate, problem) for candidate in _candidates(config, problem, algorithms))
    plan, choice = automatic(candidates, algorithms, problem, trusted=trusted, allowed=allowed)
    algorithms[plan.algorithm].verify(plan)
    return Plan(plan, candidates, choice=choice)


def _require_users(config: Config, problem: Problem, algorithms: Registry) -> None:
    """Infeasible where an algorithm knows that so few users are too few for any; with the n and the ε that would do."""
    if config.privacy.trust_model not in TRUSTED:
        return
    privacy = privacy_of(config)
    rest = privacy if privacy.min_cohort is None else left_by_min_cohort(privacy, spent=False)
    for info in algorithms.values():
        too_few = info.policy.too_few
        if too_few is not None and (missing := too_few(problem, rest, _participation(config))) is not None:
            epsilon = config.privacy.epsilon  # less than the user's own, where a share of that pays for private bounds
            needs = Needs(missing.needs, missing.users, 1.1 * epsilon, unit=epsilon)
            words = f"{missing.needs}, or {needs.multiple(1.1 * epsilon)}; or name an algorithm"
            raise Infeasible("auto", missing.condition, replace(needs, words=words))


def _within_budget(info: RegisteredAlgorithm, config: Config, problem: Problem) -> Candidate:
    """Its plan, of fewer rounds where the budget allows no more; without one where it allows none."""
    budget, usual = budget_of(config), _candidate(info, config, problem)
    try:
        if usual.plan is not None:
            budget.check_plan(usual.plan)
        if usual.plan is not None or budget == Budget():
            return usual
    except BudgetExceeded as error:
        usual = Candidate(info.name, None, f"{info.name}: the budget is exceeded. {error}")
    for rounds in info.policy.fewer_rounds if _has_trust_model(info, config) else ():
        with suppress(QuoronError):
            budget.check_plan(plan := _plan(info, config, problem, {"rounds": rounds}))
            return Candidate(info.name, plan)
    return usual


def _participation(config: Config) -> float:
    """Declared share of those asked who are expected to answer."""
    return 1.0 if config.problem.participation is None else config.problem.participation


def _worthwhile(candidate: Candidate, problem: Problem) -> Candidate:
    """Return the candidate, without its plan when not training is predicted to be as good."""
    if candidate.guess is None or candidate.guess < trivial_risk(problem):
        return candidate
    reason = (
        f"{candidate.algorithm}: an excess risk of {risk_text(candidate.guess, problem)} is predicted, no better than "
        "not training."
    )
    return Candidate(candidate.algorithm, None, reason)


def _named(config: Config, problem: Problem, algorithms: Registry, *, compare: bool, alternatives: bool) -> Plan:
    name = config.algorithm.name
    info = algorithms[name]
    if info.trust_model != "none" and (why := _other_promise(info, config)) is not None:
        raise ConfigError(f"Expected a method with the promise that is asked for, got {name}: {why}. Name another.")
    try:
        plan = _plan(info, config, problem, config.algorithm.options)
    except Infeasible as error:
        if not alternatives:
            raise
        feasible = tuple(other.algorithm for other in _candidates(config, problem, algorithms, name) if other.plan)
        raise Infeasible(error.algorithm, error.condition, error.needs, feasible, users=error.users) from None
    info.verify(plan)
    candidates = (Candidate(name, plan), *(_candidates(config, problem, algorithms, name) if compare else ()))
    return Plan(plan, candidates)


def _settling(
    error: Infeasible, config: Config, problem: Problem, planned: Callable[[Config, Problem, int | None], Any]
) -> None:
    """Have the error name an n and an ε that are feasible with all of the configuration, budget and silos included."""

    def again(users: int, epsilon: float, rounds: int | None) -> Any:
        other, silos = config.but(privacy={"epsilon": epsilon}), silos_of(config, problem.users)
        if silos is not None and users != problem.users:  # equal ones, of which none is away or adversarial
            sums = config.population.silos is not None and config.population.silos.sums
            equal = SiloSection(sizes=min(users, len(silos.sizes)), sums=sums)
            other = other.but(population={"silos": equal})
        return planned(other, replace(problem, users=users), rounds)

    error.settle_by(partial(settled, again, problem.users, config.privacy.epsilon))


def budget_of(config: Config) -> Budget:
    """Return the limits that a run is refused for."""
    return Budget(**config.budget.model_dump())


def _has_trust_model(info: RegisteredAlgorithm, config: Config) -> bool:
    """Return whether the algorithm has a trust model that is asked for, or a stricter one."""
    section, allowed = config.privacy, {*STRICTER[config.privacy.trust_model]}
    if section.two_servers != TwoServersSection():  # which only two servers have
        allowed &= {"two-servers"}
    return not allowed.isdisjoint(info.trust_models)


def _trust_models(config: Config) -> str:
    """Return those that are asked for, and by what."""
    asked = config.privacy.trust_model
    return f"{' or '.join(STRICTER[asked])} with privacy.trust_model={asked!r}"


def _candidates(config: Config, problem: Problem, algorithms: Registry, without: str = "") -> tuple[Candidate, ...]:
    return tuple(_candidate(info, config, problem) for info in _private(config, algorithms) if info.name != without)


def _private(config: Config, algorithms: Registry) -> list[RegisteredAlgorithm]:
    """Return the algorithms that keep something private and have the constants that are asked for."""
    return [
        info
        for info in algorithms.values()
        if info.trust_model != "none" and config.algorithm.constants in info.constants
    ]


def _candidate(info: RegisteredAlgorithm, config: Config, problem: Problem) -> Candidate:
    if (why := _other_promise(info, config)) is not None:
        return Candidate(info.name, None, f"{info.name}: {why}.")
    try:
        return Candidate(info.name, _plan(info, config, problem, {}))
    except QuoronError as error:  # also a loss or domain that the algorithm is not made for
        return Candidate(info.name, None, error)


def _other_promise(info: RegisteredAlgorithm, config: Config) -> str | None:
    """Return why a method does not promise what is asked for, without its name; None where it may."""
    if (adjacency := config.privacy.adjacency) not in info.guarantees.adjacency:
        return f"guaranteed is {', '.join(info.guarantees.adjacency)}, and privacy.adjacency={adjacency!r}"
    if _has_trust_model(info, config):
        return None
    one_server = {*info.trust_models}.isdisjoint(UNSEEN)
    why = info.guarantees.one_server if one_server else f"its trust model is {info.trust_model}"
    return f"asked is trust model {_trust_models(config)}; {why}"


def _plan(
    info: RegisteredAlgorithm, config: Config, problem: Problem, given: Mapping[str, Any], rounds: int | None = None
) -> RunPlan:
    """The best plan; of exactly `rounds` rounds, or budget.rounds, or at most budget.max_rounds. Infeasible if none."""
    try:
        return _estimated(info, config, problem, given, rounds)
    except Infeasible as error:
        _settling(error, config, problem, lambda other, more, few: _estimated(info, other, more, given, few or rounds))
        raise


def with_sections(info: RegisteredAlgorithm, config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with what other sections say of them where they do not; printed constants leave no choice."""
    share = config.problem.participation
    if config.algorithm.constants == "paper" or share is None or not info.takes("participation"):
        return dict(given)
    return {"participation": share, **given}


def _estimated(
    info: RegisteredAlgorithm, config: Config, problem: Problem, given: Mapping[str, Any], rounds: int | None = None
) -> RunPlan:
    """Return the same; the n of its Infeasible is an estimate."""
    section, most = config.algorithm, config.budget.max_rounds
    if rounds is None and given.get("rounds") is None and most is not None:
        limited = config.but(budget={"max_rounds": None})
        exactly = partial(_plan, info, limited, problem, given)
        return within_rounds(most, exactly(), exactly)
    if rounds is None and given.get("rounds") is None and info.takes("rounds"):
        rounds = config.budget.rounds
    asked = {} if rounds is None or section.constants == "paper" else {"rounds": rounds}
    own = with_sections(info, config, {**given, **asked})
    options = options_of(info, own, called="algorithm.options", constants=section.constants)
    servers: Literal["two-servers"] | None = None  # for methods that do not keep answers from one by itself
    if config.privacy.trust_model == "two-servers" and info.trust_model not in ("local", "none"):
        servers = "two-servers"
    privacy, silos = privacy_of(config, servers), silos_of(config, problem.users)
    options = summed(options) if silos is not None and silos.sums else options
    plan = info.plan(problem, privacy, options, section.constants, config.run.seed)
    if plan.guarantee.trust_model not in ("none", *STRICTER[config.privacy.trust_model]):
        raise ConfigError(
            f"Expected a plan of trust model {_trust_models(config)}, got one of {info.name} of trust model "
            f"{plan.guarantee.trust_model}. Name another, set its options, or trust more."
        )
    if rounds is not None and plan.cost.rounds != rounds:  # printed constants fix it
        raise Infeasible(
            info.name,
            f"its {section.constants} constants ask for {plan.cost.rounds:,} rounds, not {rounds:,}",
            f"budget.rounds={plan.cost.rounds}",
        )
    return plan if silos is None else in_silos(plan, silos)


MAX_USERS = 10**10
EPSILONS = (MIN_EPSILON, MAX_EPSILON)  # that are tried


@dataclass(frozen=True, slots=True, repr=False)
class RequiredSize(Printed):
    """What would do for a risk: with everything else as it is, so many users, or such an ε."""

    risk: float  # predicted excess risk that is asked for
    share: float  # of the bound on the start's excess risk
    users: int | None  # the fewest, to two digits; None if no number up to MAX_USERS does
    users_algorithm: str | None
    users_guessed: bool  # whether no bound stands behind the answer, but a guess that nobody has measured
    epsilon: float | None  # the least, to two digits; None if none up to 15 does
    epsilon_algorithm: str | None
    epsilon_guessed: bool

    @property
    def title(self) -> str:
        """Return what it is."""
        return "Required sample size"

    def rows(self) -> list[tuple[str, str]]:
        """Return the label and text of each line: the risk, and the users and the ε that would do for it."""
        users, epsilon = f"no number up to {MAX_USERS:,} would do with this ε", f"none up to {EPSILONS[1]:,g} would do"
        if self.users is not None:
            users = f"{self.users:,} users would do{_by(self.users_algorithm, self.users_guessed)}"
        if self.epsilon is not None:
            epsilon = f"{self.epsilon:g} would do with these users{_by(self.epsilon_algorithm, self.epsilon_guessed)}"
        risk = f"at most {self.risk:.2g} ({100 * self.share:.2g} % of the bound on the start's)"
        return [("excess risk", risk), ("users", users), ("ε", epsilon)]

    def as_json(self) -> dict[str, Any]:
        """Return the fields as `enough`."""
        return {"enough": asdict(self)}


def _by(algorithm: str | None, guessed: bool) -> str:
    return f" ({algorithm}, by a guess that nobody has measured)" if guessed else f" ({algorithm})"


def required_size(config: Config, problem: Problem, risk: float) -> RequiredSize:
    """The fewest users, and the least ε, for which a plan predicts at most `risk`, or guesses so where it has no bound.

    ConfigError unless risk > 0, and where nothing is predicted for the method.
    """
    if not (math.isfinite(risk) and risk > 0):
        raise ConfigError(f"Expected a risk > 0, got {risk}.")

    def candidate(users: float, epsilon: float) -> Candidate:
        other, more = config.but(privacy={"epsilon": epsilon}), replace(problem, users=round(users))
        try:
            return Candidate("", choose(other, more, alternatives=False).plan)
        except QuoronError as error:
            return Candidate("", None, error)

    def good(users: float, epsilon: float) -> RunPlan | None:
        result = candidate(users, epsilon)
        return result.plan if result.risk is not None and result.risk <= risk else None

    n, own = problem.users, config.privacy.epsilon
    planned = (first := candidate(n, own)).plan
    if planned is not None and first.risk is None:
        raise ConfigError(
            f"Expected a method whose risk is predicted, got {planned.algorithm}, for which nothing is with this loss. "
            "Take another loss, or name another algorithm."
        )
    users, of_users, users_guessed = _answer(smallest(lambda users: good(users, own), n, 2, MAX_USERS))
    epsilon, of_epsilon, epsilon_guessed = _answer(smallest(lambda epsilon: good(n, epsilon), own, *EPSILONS))
    share, whole = risk / start_risk(problem), None if users is None else round(users)
    return RequiredSize(risk, share, whole, of_users, users_guessed, epsilon, of_epsilon, epsilon_guessed)


def _answer(pair: tuple[float, RunPlan] | None) -> tuple[float | None, str | None, bool]:
    """Return a number, the algorithm that it is of, and whether that has no bound."""
    return (None, None, False) if pair is None else (pair[0], pair[1].algorithm, pair[1].predicted_excess_risk is None)


def smallest(
    planned: Callable[[float], RunPlan | None], start: float, lowest: float, highest: float
) -> tuple[float, RunPlan] | None:
    """Return the least number at which `planned` has a plan, and that plan; None if there is none up to `highest`.

    Numbers of two digits are bisected, below `start` where there is a plan, else above. Where plans come and go, it is
    one of the places where they come.
    """
    first, powers = planned(start), range(math.floor(math.log10(lowest)) - 1, math.ceil(math.log10(highest)))
    numbers = [float(f"{digits}e{power}") for power in powers for digits in range(10, 100)]
    low, high = (start, highest) if first is None else (lowest, min(two_digits(start), highest))
    numbers = [number for number in numbers if low <= number <= high]
    plans = cache(planned)
    place = bisect_left(numbers, True, key=lambda number: plans(number) is not None)
    if place < len(numbers) and (plan := plans(numbers[place])) is not None:
        return numbers[place], plan
    return None if first is None else (start, first)


def risk_of(text: str, problem: Problem) -> float:
    """A risk in the units of the loss, or as a share of the bound on the start's, such as `5%`; else ConfigError."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"Expected a risk such as 1e-4, or a share of the start's such as 5%, got {text!r}.")
    return value * start_risk(problem) / 100 if text.strip().endswith("%") else value


S = TypeVar("S")


@dataclass(frozen=True, slots=True, eq=False)
class Prepared(Generic[S]):
    """A planned run, simulated or for real, of users in a `setup` of its kind."""

    config: Config
    setup: S
    planned: Plan
    digest: str  # of everything that decides the run's bits
    name: str = "simulation"  # in the lifetime account
    account: "Account | None" = None  # that it is charged to; None: a simulation, which promises nothing
    began: float = field(default_factory=perf_counter)
    remark: str = ""  # on where the configuration comes from, for readers of the folder

    @property
    def run(self) -> "Run":
        """What begins, is charged and is carried out."""
        from quoron_server.runs import Run  # it brings the database

        simulated, config = self.account is None, self.config
        return Run(
            name=self.name,
            plan=self.planned.plan,
            digest=self.digest,
            group=config.train.population,
            account=self.account,
            simulation_seed=config.run.seed if simulated else None,
            trust_clients=config.privacy.trusts_clients if simulated else True,  # a data holder answers for all
            budget=budget_of(config),
        )

    def begin(self, folder: RunFolder, record: Mapping[str, Any] | None = None) -> "Ledger":
        """Return the run's ledger in a folder; before there is one, what was fixed, and a `record` that it is for real.

        OtherVersion if it began with another plan or other data.
        """
        head = f"{comment(self.remark)}\n" if self.remark else ""
        files: dict[str, Any] = {} if record is None else {RECORD: record}
        files |= {"config.toml": head + self.config.as_toml(), "plan.json": self.planned.as_json()}
        return folder.begin(self.run, files)

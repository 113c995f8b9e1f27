"""What the registry says about one algorithm."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

import numpy as np
import scipy

from quoron_privacy import gdp, table_health
from quoron_privacy import quorum as quorums
from quoron_privacy.errors import ConfigError, Infeasible, UsageError, VerificationError
from quoron_privacy.noise import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithm import Algorithm
from quoron_server.algorithms.defaults import (
    Allowance,
    GaussianPromise,
    Planner,
    Verdict,
    deployable,
    equal_cohorts,
    never,
    no_event,
    no_needs,
    not_gaussian,
    nothing,
    one_point,
    one_vector,
)
from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.quorum import WithQuorum, decisions, left_by_quorum
from quoron_server.plan import PREFACE, Constants, Exposure, Need, Plan, PlannedRelease, Privacy
from quoron_server.problem import Problem

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """One line of `quoron algorithms`, and the functions behind it."""

    name: str
    summary: str
    paper: str
    algorithm_numbers: str
    exposure: Exposure
    adjacency: tuple[Adjacency, ...]  # what calibrated plans promise
    theorem: str  # a file under docs/privacy/
    options: type  # frozen dataclass of planning options, all with defaults
    planner: Planner
    verifier: Callable[[Plan], None]  # independent re-check of the theorem; raises VerificationError
    maker: Callable[[Plan], Algorithm[Any]]
    factor: Factor  # makes of what its planner guesses a bound that holds in nine of ten problems
    paper_planner: Planner | None = None  # of the printed constants, where they are implemented
    passes: Literal["one", "many"] = "one"  # how often a user may be asked
    removes_outliers: bool = False
    black_box: str | None = None  # why clients that only say what their gradient is cannot take part; None: they can
    curated_boxes: bool = False  # whether they can where one machine makes all rows: then they have a length, no clip
    asked: Callable[[Plan], int] | None = None  # questions to one user, at most; None: by `passes`
    points: Callable[[Plan], int] = one_point  # at which a question asks for a gradient, at most
    smooths: Callable[[Plan], bool] = never  # whether clients smooth their loss
    stride: int = 1  # every so many numbers of rounds stand on the rounds curve: more where each is accounted anew
    answer: Callable[[Plan], int] = one_vector  # numbers in the largest answer of any task
    exposures: tuple[Exposure, ...] = ()  # what plans may promise, where `verify` tells them apart; else `exposure`
    gaussian_promise: Callable[[Plan], GaussianPromise | None] = (
        not_gaussian  # of a whole run, if the theorem proves it
    )
    event: Callable[[Plan], "DpEvent | None"] = no_event  # of a run that is not μ-GDP as a whole, without its quorum
    cohorts: Callable[[Plan], tuple[int, ...]] = equal_cohorts  # users asked in each round, as planned
    wide: bool = False  # whether its noise does not depend on the domain, so that a wide one costs no privacy
    # Whether `auto`'s public rule takes this plan, under such an allowance; None: it goes by predicted risks.
    takes: Callable[[Plan, Allowance], Verdict] | None = None
    # Why `auto` should decline a problem: too few users for anything to be learnt at this ε. None where it is not so.
    declines: Callable[[Problem, Privacy], Infeasible | None] | None = None
    simulation_only: Callable[[Plan], str | None] = deployable  # why a plan is not for real clients; None: it is
    remarks: Callable[[Plan], tuple[str, ...]] = nothing  # what `quoron plan` says beside a plan's numbers
    named_only: bool = False  # kept for comparison, and slow to plan: planned where it is named, never beside others
    needs: Callable[[Plan], tuple[Need, ...]] = no_needs  # what the promise of a plan with such numbers rests on
    coins: bool = False  # each user joins a cohort by a coin of its own: planned sizes are expected ones

    def participations(self, plan: Plan) -> int:
        """Questions to one user, at most."""
        if self.asked is not None:
            return self.asked(plan)
        return plan.cost.rounds if self.passes == "many" else 1

    @property
    def takes_rounds(self) -> bool:
        """Whether its options name a number of rounds."""
        return any(item.name == "rounds" for item in fields(self.options))

    @property
    def either_adjacency(self) -> bool:
        """Whether its options name the adjacency that a plan is to promise."""
        return any(item.name == "adjacency" for item in fields(self.options))

    @property
    def constants(self) -> tuple[Constants, ...]:
        """Kinds of plans that it makes."""
        return ("calibrated",) if self.paper_planner is None else ("calibrated", "paper")

    def plan(
        self,
        problem: Problem,
        privacy: Privacy,
        options: Any = None,
        constants: Constants = "calibrated",
        seed: int = 0,
    ) -> Plan:
        """The plan with the least predicted risk, with a quorum where one is wished for.

        `options` are of the type `self.options`, None for its defaults; `seed` is public, and draws slots alone.
        With a quorum it is for fewer rounds than it would take where only those ask enough users to count. Raises
        ConfigError for constants that it does not know and for numbers that floating point cannot carry; Infeasible.
        """
        options = self.options() if options is None else options
        problem = problem.settled(wide=self.wide)
        if privacy.quorum is None:
            return self._own_plan(problem, privacy, options, constants, seed)
        free = self.exposure == "local"  # whoever that protects against sees who answers
        left = left_by_quorum(privacy, spent=not free)
        made = self._own_plan(problem, left, options, constants, seed)
        try:
            return _with_quorum(self, made, privacy, free=free)
        except Infeasible:
            if getattr(options, "rounds", 0) is not None:
                raise
            rounds = made.cost.rounds
            while (rounds := int(rounds / math.sqrt(2))) > 1:  # fewer rounds ask more users each
                with suppress(Infeasible):
                    fewer = self._own_plan(problem, left, replace(options, rounds=rounds), constants, seed)
                    return _with_quorum(self, fewer, privacy, free=free)
            raise

    def _own_plan(self, problem: Problem, privacy: Privacy, options: Any, constants: Constants, seed: int) -> Plan:
        planner = self.paper_planner if constants == "paper" else self.planner
        if planner is None:
            raise ConfigError(
                f"Expected constants='calibrated' for {self.name}, got 'paper': nothing is printed for it."
            )
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # infinite risks lose against every other
                return _sure(self, _needing(self, _vouched(planner(problem, privacy, options, seed))))
        except (ArithmeticError, ValueError, IndexError) as error:
            raise ConfigError(
                f"Expected constants and options with which {self.name} can be planned in floating point, got some "
                f"that cannot ({error}). Change the units, or leave options out."
            ) from error

    def verify(self, plan: Plan) -> None:
        """The plan promises what this algorithm's theorem is about, and its numbers keep it: VerificationError if not.

        Everything is checked again, independently of how it was found.
        """
        if plan.guarantee.health is not None:
            self._verify_with_health(plan)
            return
        own = _checked(self, plan)
        self.verifier(replace(own, problem=own.problem.without_beliefs()))
        _check_rounds(plan)

    def make(self, plan: Plan) -> Algorithm[Any]:
        """The algorithm of a plan that passes `verify`: what comes after a look at the table, if there is one."""
        self.verify(plan)
        plan = plan.without_health()
        own, quorum = plan.without_quorum(), plan.guarantee.quorum
        made = self.maker(own)
        return made if quorum is None else WithQuorum(plan, quorum, made, self.cohorts(own))

    def releases(self, plan: Plan) -> tuple[PlannedRelease, ...]:
        """What a run of the plan releases, the decisions of its quorum and the look at the table included."""
        if plan.guarantee.health is not None:
            return (looked(plan.guarantee.health), *self.releases(plan.without_health()))
        own, quorum = plan.without_quorum(), plan.guarantee.quorum
        made: tuple[PlannedRelease, ...] = own.parameters.releases(plan.problem.dimension)
        return made if quorum is None else (*made, *decisions(quorum, self.cohorts(own)))

    def gaussian(self, plan: Plan) -> GaussianPromise | None:
        """What a verified plan promises in terms of μ; None where nothing of the kind is proved."""
        if self.gaussian_promise is not_gaussian or not plan.guarantee.proved or plan.guarantee.exposure == "none":
            return None
        self.verify(plan)  # a lifetime is charged what this says
        return self._gaussian(plan)

    def _gaussian(self, plan: Plan) -> GaussianPromise | None:
        """The same of parts that are verified."""
        health = plan.guarantee.health
        if health is not None:
            own = self._gaussian(plan.without_health())
            if own is None:
                return None
            lacks = math.nextafter(own.variation + health.variation, 1.0)
            return GaussianPromise(gdp.compose(own.mu, health.effective_mu), lacks)
        promise, quorum = self.gaussian_promise(plan.without_quorum()), plan.guarantee.quorum
        if promise is None or quorum is None:
            return promise
        slack = total_variation(laplaces=quorum.draws(plan.cost.rounds))
        return GaussianPromise(gdp.compose(promise.mu, quorum.mu), math.nextafter(promise.variation + slack, 1.0))

    def looking(self, own: Plan, privacy: Privacy, *, share: float, columns: int, labels: int) -> Plan | None:
        """The whole plan of `privacy` whose rest is `own`, made for `table_health.rest` of it; None if it has no μ.

        `columns` and `labels` are how many the look at the table tells apart.
        """
        promise = self.gaussian(own)
        if promise is None or own.guarantee.quorum is not None:
            return None
        health = table_health.calibrate(
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            share=share,
            own=(promise.mu, promise.variation),
            users=table_health.looked_at(own.problem.users),
            columns=columns,
            labels=labels,
            adjacency=own.guarantee.adjacency,
        )
        if health is None:
            return None
        whole = replace(own.guarantee, epsilon=privacy.epsilon, delta=privacy.delta, health=health)
        return replace(own, guarantee=whole)

    def _verify_with_health(self, plan: Plan) -> None:
        """Both parts by themselves, and that they are the whole promise together."""
        own, health, promise = plan.without_health(), plan.guarantee.health, plan.guarantee
        assert health is not None
        if promise.quorum is not None:
            raise VerificationError(f"Expected no quorum beside a look at the table in a plan of {self.name}, got one.")
        _check_numbers(health, "health")
        self.verify(own)
        rest = self._gaussian(own) if promise.proved and promise.exposure != "none" else None
        if rest is None:
            raise VerificationError(f"Expected a promise in μ beside a look at the table, got {self.name} without one.")
        table_health.verify(
            health,
            promise.epsilon,
            promise.delta,
            users=plan.problem.users,
            adjacency=promise.adjacency,
            own=(rest.mu, rest.variation),
        )

    def dp_event(self, plan: Plan) -> "DpEvent":
        """What a verified plan releases as an event of dp-accounting, its quorum included: see `Plan.dp_event`.

        Decisions of a quorum that cost ε_q are an event whose loss is that of randomised response, which every
        (ε_q, 0)-DP release is a function of; of two that say so, the one that whoever reads the rest reads, too.
        """
        from dp_accounting import dp_event  # heavy

        self.verify(plan)
        promise, own = plan.guarantee, plan.without_quorum()
        if promise.exposure == "none":
            return dp_event.NonPrivateDpEvent()
        gaussian = self.gaussian(own)  # with the look at the table, beside which there is no quorum
        event = dp_event.GaussianDpEvent(1 / gaussian.mu) if gaussian is not None else self.event(own)
        if event is None or not promise.proved:
            raise UsageError(
                f"Expected a plan whose mechanism dp-accounting has an event for, got one of {self.name}: its promise "
                f"rests on {promise.theorem}, which `AlgorithmInfo.verify` checks again."
            )
        if promise.quorum is None or not promise.quorum.epsilon:
            return event
        return dp_event.ComposedDpEvent([event, _decided(event, promise.quorum.epsilon)])


def _decided(event: "DpEvent", epsilon: float) -> "DpEvent":
    """Decisions that are (ε, 0)-DP, beside `event`.

    Fixed-size cohorts are read by Rényi divergences under replace-one alone, which know randomised response between
    two answers, but no discrete Laplace noise; all others by loss distributions under the default relation, where it is
    the other way round.
    """
    from dp_accounting import dp_event  # heavy

    if isinstance(getattr(event, "event", None), dp_event.SampledWithoutReplacementDpEvent):
        return dp_event.RandomizedResponseDpEvent(2 / (1 + math.exp(epsilon)), 2)
    return dp_event.DiscreteLaplaceDpEvent(epsilon, 1)


def _sure(info: AlgorithmInfo, plan: Plan) -> Plan:
    """The plan with a predicted risk that holds in nine of ten problems; with none where nobody has measured one."""
    return replace(plan, predicted_excess_risk=info.factor.bound(plan.predicted_excess_risk, plan.problem))


def _vouched(plan: Plan) -> Plan:
    """The plan with the assumption that constants of its loss hold that nobody proved, where there are such."""
    promise, vouched = plan.guarantee, plan.problem.vouched
    if vouched is None or promise.exposure == "none" or vouched in promise.assumptions:
        return plan
    return replace(plan, guarantee=replace(promise, assumptions=(*promise.assumptions, vouched)))


def looked(health: table_health.TableHealth) -> PlannedRelease:
    """The one release of a look at the table, before the first round."""
    return PlannedRelease(health, health.entry(), 1, (PREFACE,), health.effective_mu)


def _needing(info: AlgorithmInfo, plan: Plan) -> Plan:
    """The plan with what its promise rests on, as its numbers say."""
    return replace(plan, guarantee=replace(plan.guarantee, needs=_needs(info, plan)))


def _needs(info: AlgorithmInfo, plan: Plan) -> tuple[Need, ...]:
    """What a promise rests on; on a curator's own machine all of it is so.

    A quorum needs, where clients see iterates without noise, that these move nobody to answer: it would tell of them.
    """
    promise = plan.guarantee
    if promise.curated or promise.exposure == "none":
        return ()
    own = info.needs(plan.without_quorum())
    moved = promise.quorum is not None and promise.exposure == "model" and "unmoved-attendance" not in own
    return (*own, "unmoved-attendance") if moved else own


ITERATES = "its clients are sent iterates without noise, and its promise needs to know their loss"  # for `black_box`


def _with_quorum(info: AlgorithmInfo, own: Plan, privacy: Privacy, *, free: bool) -> Plan:
    """The algorithm's own plan with the quorum that is wished for; Infeasible if that has too few users to count."""
    cohorts, promise = info.cohorts(own), own.guarantee
    quorum = quorums.calibrate(
        float(privacy.quorum or 0.0),
        0.0 if free else privacy.quorum_epsilon,
        cohorts,
        participations=info.participations(own),
        rest=(promise.epsilon, promise.delta),
        present=_present(own, len(cohorts)) if info.coins else int,
        name=f"{info.name} with a quorum",
    )
    private = promise.exposure != "none"
    whole = replace(
        promise,
        epsilon=privacy.epsilon if private else promise.epsilon,
        delta=privacy.delta if private else promise.delta,
        quorum=quorum,
    )
    return _needing(info, replace(own, guarantee=whole))


def _present(plan: Plan, rounds: int) -> Callable[[int], int]:
    """How many of a cohort drawn by coins are there when everybody is, but for a chance that is half of BETA a run."""
    users, rare = plan.problem.users, quorums.BETA / (2 * rounds)
    return lambda size: int(scipy.stats.binom.ppf(rare, max(users, size), size / max(users, size)))


def _checked(info: AlgorithmInfo, plan: Plan) -> Plan:
    """The plan of the algorithm by itself, once the promise is of its kind and pays for the quorum too."""
    _check_promise(info, plan)
    promise, quorum = plan.guarantee, plan.guarantee.quorum
    if quorum is None:
        return plan
    own, seen = plan.without_quorum(), promise.exposure == "local"
    if promise.exposure != "none":
        _check_numbers(quorum, "quorum")
        if not seen and not quorum.epsilon > 0:
            raise VerificationError(f"Expected quorum.epsilon > 0 in a plan of {info.name}, got {quorum.epsilon}.")
        cohorts = info.cohorts(own)
        if len(cohorts) != plan.cost.rounds or sum(cohorts) != plan.cost.messages:
            raise VerificationError(f"Expected the cost's rounds and messages in cohorts, got {cohorts}.")
        quorums.verify(quorum, promise.epsilon, promise.delta, cohorts, participations=info.participations(own))
    return own


def _check_promise(info: AlgorithmInfo, plan: Plan) -> None:
    promise = plan.guarantee
    offered = info.adjacency if promise.proved else ("replace-one", "zero-out")
    for name, expected, got in (
        ("algorithm", (info.name,), plan.algorithm),
        ("exposure", info.exposures or (info.exposure,), promise.exposure),
        ("adjacency", offered, promise.adjacency),
    ):
        if got not in expected:
            raise VerificationError(f"Expected {name} {' or '.join(expected)} in a plan of {info.name}, got {got!r}.")
    vouched = plan.problem.vouched
    if vouched is not None and promise.exposure != "none" and vouched not in promise.assumptions:
        raise VerificationError(
            f"Expected a promise of {info.name} that assumes that {vouched}, got one that does not."
        )
    _check_numbers(plan.cost, "cost")
    if not (plan.cost.rounds >= 1 and plan.cost.messages >= 1):
        raise VerificationError(f"Expected at least one round and one message, got {plan.cost}.")
    if promise.exposure == "none":
        return  # without privacy an infinite clip is meant
    _check_numbers(plan.parameters, "parameters")
    if missing := [need for need in _needs(info, plan) if need not in promise.needs]:  # of a quorum, it may say more
        raise VerificationError(f"Expected a promise of {info.name} that rests on {missing}, too, got {promise.needs}.")


def _check_rounds(plan: Plan) -> None:
    """Budgets and clients are told the cost's rounds; they are those of the parameters, where these say."""
    rounds = getattr(plan.parameters, "rounds", plan.cost.rounds)
    if rounds != plan.cost.rounds:
        raise VerificationError(f"Expected cost.rounds={rounds}, as the parameters say, got {plan.cost.rounds}.")


def _check_numbers(value: Any, where: str) -> None:
    """Every number finite and every count an integer: comparisons with NaN are False and would check nothing."""
    if is_dataclass(value):
        kinds = get_type_hints(type(value))
        for item in fields(value):
            held, place = getattr(value, item.name), f"{where}.{item.name}"
            if kinds[item.name] is int and (not isinstance(held, int) or isinstance(held, bool)):
                raise VerificationError(f"Expected {place} to be an integer, got {held!r}.")
            _check_numbers(held, place)
    elif isinstance(value, tuple | list):
        for index, held in enumerate(value):
            _check_numbers(held, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise VerificationError(f"Expected {where} to be finite, got {value}.")

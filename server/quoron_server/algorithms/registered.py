"""What is done with every algorithm alike: plans with a minimum cohort, checks of the guarantee, its worth in μ.

    spec = ALGORITHMS["tracking-srgd"]
    plan = spec.plan(problem, Privacy(2.0, 1e-6))
    algorithm = spec.make(plan)          # verifies the plan first

No algorithm knows of this module, nor of the minimum cohort, the data quality check and the private bounds that it puts
around one.
"""

import math
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import ConfigError, Infeasible, UsageError, VerificationError, require
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.algorithm import Algorithm
from quoron_server.algorithms import search
from quoron_server.algorithms.min_cohort import (
    WithMinCohort,
    left_by_min_cohort,
    participation_refusal,
    verify_min_cohort,
    with_min_cohort,
    with_public_participation,
)
from quoron_server.algorithms.search import settled
from quoron_server.algorithms.spec import AlgorithmSpec, Calibrated
from quoron_server.parameters import Assumption, Kind, PrintedParameters, merged
from quoron_server.plan import Constants, Cost, Guarantee, Part, Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.wording import assumption_text

if TYPE_CHECKING:
    from dp_accounting import DpEvent

approximate_gdp = OnFirstUse("quoron_privacy.accounts.approximate_gdp")  # runs on secret samples alone
two_servers = OnFirstUse("quoron_server.algorithms.two_servers")  # of that trust model alone
REPLACED: Adjacency = "replace-one"
AROUND: tuple[Part, ...] = ("held_out", "estimates", "data_quality")  # stages around a run, from the outside in
_kinds: Any = lru_cache(maxsize=None)(get_type_hints)  # a plan of many phases has thousands of fields


def verify_stage(name: Part, plan: RunPlan, rest: DominatingPair | None) -> None:
    """The outermost stage of a plan and all inside it, verified and worth `rest`, are the whole guarantee together.

    A guarantee may pay for bounds that are not declared and for a data quality check before the first round, and for
    figures of users who are in nothing else. What is estimated, with which noise, and the part of μ that is left are
    fixed before any value is read: so parts compose, whatever columns, algorithm and numbers are then chosen. By the
    second account: nothing that calibrated is asked. Statements and proofs: docs/privacy/private-bounds.md#b1,
    docs/privacy/data-quality.md, docs/privacy/evaluation.md.
    """
    guarantee, stage = plan.guarantee, getattr(plan.guarantee, name)
    if name == "held_out":
        if (why := participation_refusal(plan)) is not None:
            raise VerificationError(f"Expected private participation in a plan of {plan.algorithm}, got public: {why}.")
        stage.verify(guarantee.epsilon, guarantee.delta, adjacency=guarantee.adjacency)
        return
    if guarantee.min_cohort is not None:
        raise VerificationError(f"Expected no minimum cohort beside {name} in a plan of {plan.algorithm}, got one.")
    if rest is None:
        raise VerificationError(f"Expected a guarantee in μ beside {name}, got {plan.algorithm} without one.")
    users = plan.problem.users
    stage.verify(guarantee.epsilon, guarantee.delta, users=users, adjacency=guarantee.adjacency, own=rest)
    if name == "estimates":
        both, charged = stage.pair.and_(rest), DominatingPair.gaussian(*stage.charged)
        within = both.mu <= charged.mu and both.variation <= charged.variation
        require(
            "private bounds",
            ("no more than is charged", within, (both.mu, both.variation)),
            (
                f"delta <= {guarantee.delta} for what is charged",
                charged.delta(guarantee.epsilon * (1 + 1e-12), guarantee.delta) <= guarantee.delta,
                stage.charged,
            ),
        )


@dataclass(frozen=True, slots=True)
class RegisteredAlgorithm(AlgorithmSpec):
    """An algorithm as the rest of the system uses it."""

    def plan(
        self,
        problem: Problem,
        privacy: Privacy,
        options: Any = None,
        constants: Constants = "calibrated",
        seed: int = 0,
    ) -> RunPlan:
        """Return the plan with the least predicted risk, with a minimum cohort where one is asked for.

        `options` are of the type `self.options_for(constants)`, None for its defaults; `seed` is public, and draws
        slots alone.
        With a minimum cohort it is for fewer rounds than it would take where only those ask enough users to count.
        Raises ConfigError for constants that it does not know and for numbers that floating point cannot carry;
        Infeasible, with an n or ε that was planned for, everything else as it is.
        """
        options = self.options_for(constants)() if options is None else options
        try:
            return self._planned(problem, privacy, options, constants, seed)
        except Infeasible as error:

            def again(users: int, epsilon: float, rounds: int | None) -> RunPlan:
                other = replace(problem, users=users), replace(privacy, epsilon=epsilon)
                asked = options if rounds is None else replace(options, rounds=rounds)
                return self._planned(*other, asked, constants, seed)

            error.settle_by(partial(settled, again, problem.users, privacy.epsilon))
            raise

    def _planned(self, problem: Problem, privacy: Privacy, options: Any, constants: Constants, seed: int) -> RunPlan:
        """Return the same; the n of its Infeasible is an estimate."""
        search.check_options(options)
        if constants == "paper":
            return resting(self._as_printed(problem.settled(wide=False), privacy, options, seed))
        if privacy.trust_model is not None:
            return resting(two_servers.planned(self, problem, privacy, options, constants, seed))
        problem = problem.settled(wide=self.noise_ignores_domain)
        if privacy.min_cohort is not None:
            return self._with_min_cohort(problem, privacy, options, constants, seed)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # infinite risks lose against every other
                chosen = self.planner(problem, privacy, options)
                return resting(self._promised(chosen, problem, privacy, seed))
        except (ArithmeticError, ValueError, IndexError) as error:
            raise ConfigError(
                f"Expected constants and options with which {self.name} can be planned in floating point, got some "
                f"that cannot ({error}). Change the units, or leave options out."
            ) from error

    def _with_min_cohort(
        self, problem: Problem, privacy: Privacy, options: Any, constants: Constants, seed: int
    ) -> RunPlan:
        """For nothing where that tells enough, else for ε_q; so again for fewer rounds, which ask more users each."""

        def made(left: Privacy, asked: Any, *, free: bool = False) -> RunPlan:
            own = self.plan(problem, left_by_min_cohort(left, spent=not free), asked, constants, seed)
            if free and not own.count_leakage():
                raise Infeasible(self.name, "no round leaves room for a count", "a minimum cohort that is paid for")
            return resting(with_min_cohort(own, left, self._gaussian(own), self.guarantees.count_room, free=free))

        def planned(asked: Any) -> RunPlan:
            if privacy.participation == "public":
                own = self.plan(problem, left_by_min_cohort(privacy, spent=False), asked, constants, seed)
                return resting(with_public_participation(own, privacy))
            if self.trust_model == "local":
                return made(privacy, asked, free=True)
            with suppress(Infeasible):
                return made(privacy, asked, free=True)
            with suppress(Infeasible):  # little noise is enough to count many users
                return made(replace(privacy, min_cohort_epsilon=privacy.min_cohort_epsilon / 16), asked)
            return made(privacy, asked)

        try:
            return planned(options)
        except Infeasible:
            if getattr(options, "rounds", 0) is not None or privacy.participation == "public":
                raise
            rounds = self.plan(problem, left_by_min_cohort(privacy), options, constants, seed).cost.rounds
            while (rounds := int(rounds / math.sqrt(2))) > 1:
                with suppress(Infeasible):
                    return planned(replace(options, rounds=rounds))
            raise

    def _as_printed(self, problem: Problem, privacy: Privacy, options: Any, seed: int) -> RunPlan:
        """Return the plan of the paper's own numbers, which guarantees what our accountant finds for them.

        Raises ConfigError where the paper has no such algorithm, and for what no paper has: a minimum cohort, two
        servers.
        """
        kind = self.options_for("paper")
        if self.printed is None or not isinstance(options, kind):
            raise ConfigError(f"Expected options of kind {kind.__name__} with constants='paper', got {options!r}.")
        for name, given in (("min_cohort", privacy.min_cohort), ("trust_model", privacy.trust_model)):
            if given is not None:
                raise ConfigError(
                    f"Expected no privacy.{name} with constants='paper', got {given!r}: the papers have none. Leave it "
                    "out, or take constants='calibrated'."
                )
        chosen = self.printed.planner(problem, privacy, options)
        found = self.printed.epsilon(chosen.parameters, problem, privacy.delta)
        plan = self._promised(chosen, problem, privacy, seed)  # `found` may be no ε that can be asked for: infinite
        guarantee = replace(plan.guarantee, epsilon=found, proved=False)
        return replace(plan, guarantee=guarantee, predicted_excess_risk=None)

    def _promised(self, chosen: Calibrated, problem: Problem, privacy: Privacy, seed: int) -> RunPlan:
        """The plan of what a planner chose, with its guess by that name and, if measured, a bound for nine of ten."""
        trust_model, theorem = chosen.trust_model or self.trust_model, chosen.theorem or self.guarantees.theorem
        epsilon, delta = (privacy.epsilon, privacy.delta) if trust_model != "none" else (math.inf, 1.0)
        adjacency = chosen.adjacency or self.guarantees.adjacency[0]
        return RunPlan(
            algorithm=self.name,
            problem=problem,
            guarantee=Guarantee(epsilon, delta, adjacency, trust_model, chosen.assumptions, theorem),
            cost=Cost.of(problem, chosen.parameters),
            parameters=chosen.parameters,
            predicted_excess_risk=self.factor.bound(chosen.risk, problem),
            seed=seed,
            guessed_excess_risk=chosen.risk,
        )

    def verify(self, plan: RunPlan) -> None:
        """The guarantee is what this algorithm's theorem is about, and the numbers keep it: VerificationError if not.

        Everything is checked again, independently of how it was found.
        """
        if isinstance(plan.parameters, PrintedParameters):
            self._verify_printed(plan)
            return
        if not plan.guarantee.proved:
            raise VerificationError(f"Expected a proved guarantee of calibrated numbers of {self.name}, got none.")
        guarantee, own = plan.guarantee, plan.without("min_cohort")
        stage = next((name for name in AROUND if getattr(guarantee, name) is not None), None)
        if stage is not None:
            check_numbers(getattr(guarantee, stage), stage)
            rest = plan.without(stage)
            self.verify(rest)
            verify_stage(stage, plan, None if stage == "held_out" else self._gaussian(rest))
        else:
            self._check_promise(plan)
            alone = own.without("servers")
            alone = replace(alone, problem=alone.problem.without_beliefs())
            self.verifier(alone)
            search.require_cost(own)
            if (claimed := getattr(alone.parameters, "mu", None)) is not None:
                pairs = self._pairs(alone)
                search.require_least(self.name, "mu", claimed, max(pair.mu for pair in pairs))
                search.require_spent(alone, [replace(pair, mu=claimed) for pair in pairs])
            if guarantee.servers is not None:
                two_servers.verify(plan)
            verify_min_cohort(plan, self.guarantees.moves)
        if guarantee.trust_model != "none":
            search.require_spent(own, self._pairs(own))
            search.require_spent(plan, self._pairs(plan))

    def _verify_printed(self, plan: RunPlan) -> None:
        """A plan as printed guarantees no less than what our accountant finds for its numbers, and nothing beside."""
        guarantee, parameters = plan.guarantee, plan.parameters
        if self.printed is None or type(parameters) is not self.printed.parameters:
            raise VerificationError(f"Expected numbers of {self.name}, got {type(parameters).__name__}.")
        if guarantee.proved or any(getattr(guarantee, name) is not None for name in (*AROUND, "servers", "min_cohort")):
            raise VerificationError(
                f"Expected a plan of {self.name} as printed to prove nothing and to have nothing beside, got "
                f"{guarantee}."
            )
        self._check_promise(plan)
        found = self.printed.epsilon(parameters, plan.problem, guarantee.delta)
        if not found <= guarantee.epsilon:
            raise VerificationError(f"Expected epsilon of at least {found:.4g}, got {guarantee.epsilon:.4g}.")
        search.require_cost(plan)  # of mechanisms that can be made

    def pairs(self, plan: RunPlan) -> tuple[DominatingPair, ...]:
        """What a verified plan costs, with its look at the table and its minimum cohort: every user is in one of these
        pairs.

        Nothing without privacy, and where nothing is proved. Of an algorithm whose theorem proves (ε, δ) only, the
        worst pair that is (ε, δ)-DP.
        """
        self.verify(plan)
        guarantee = plan.guarantee
        return self._pairs(plan) if guarantee.proved and guarantee.trust_model != "none" else ()

    def _pairs(self, plan: RunPlan, adjacency: Adjacency | None = None) -> tuple[DominatingPair, ...]:
        """Return the same of parts that are verified, under the plan's own adjacency or another."""
        guarantee, own = plan.guarantee, plan.without(*AROUND, "min_cohort")
        if guarantee.servers is not None:  # an observer of the releases alone learns less
            against: tuple[DominatingPair, ...] = two_servers.pairs(own)
            return against
        min_cohort, parameters = guarantee.min_cohort, own.parameters
        count_mu = min_cohort is not None and min_cohort.each
        # Of a run that is Gaussian as a whole counts add to it by themselves, as they are planned.
        counted = self.guarantees.with_count(parameters, count_mu) if count_mu and self._gaussian(own) is None else None
        pairs = self.guarantees.pairs(counted or parameters, own.problem, adjacency or guarantee.adjacency)
        pairs = pairs or (DominatingPair.approximate(own.guarantee.epsilon, own.guarantee.delta),)
        if guarantee.data_quality is not None:
            pairs = tuple(pair.and_(guarantee.data_quality.pair) for pair in pairs)
        if guarantee.estimates is not None:
            pairs = tuple(pair.and_(guarantee.estimates.pair) for pair in pairs)
        if min_cohort is not None and guarantee.trust_model != "local":
            decisions = min_cohort.pair(plan.cost.rounds, alone=counted is None)
            pairs = tuple(pair.and_(decisions) for pair in pairs)
        return pairs if guarantee.held_out is None else (*pairs, guarantee.held_out.pair)  # a user is in one part only

    def _check_promise(self, plan: RunPlan) -> None:
        """The guarantee is of the algorithm's kind and names all that it rests on, and all numbers are numbers."""
        guarantee = plan.guarantee
        offered = self.guarantees.adjacency if guarantee.proved else ("replace-one", "zero-out")
        for name, expected, got in (
            ("algorithm", (self.name,), plan.algorithm),
            ("trust_model", self.trust_models, guarantee.trust_model),
            ("adjacency", offered, guarantee.adjacency),
        ):
            if got not in expected:
                said = " or ".join(expected)
                raise VerificationError(f"Expected {name} {said} in a plan of {self.name}, got {got!r}.")
        if guarantee.proved:  # numbers as printed have a type of their own
            plan.parameters_of(self.parameters)
        check_numbers(plan.cost, "cost")
        if not (plan.cost.rounds >= 1 and plan.cost.messages >= 1):
            raise VerificationError(f"Expected at least one round and one message, got {plan.cost}.")
        if guarantee.trust_model == "none":
            return  # without privacy an infinite clip is meant
        own = getattr(plan.parameters, "adjacency", guarantee.adjacency)
        if own != guarantee.adjacency:
            raise VerificationError(f"Expected numbers for adjacency {guarantee.adjacency!r}, got some for {own!r}.")
        check_numbers(plan.parameters, "parameters")
        if guarantee.min_cohort is not None:
            check_numbers(guarantee.min_cohort, "min_cohort")
        if missing := [assumption_text(fact) for fact in derived(plan) if fact not in guarantee.assumptions]:
            raise VerificationError(
                f"Expected a guarantee of {self.name} that rests on this, too: {'; '.join(missing)}. Got one that does "
                "not say so."
            )

    def make(self, plan: RunPlan) -> Algorithm[Any]:
        """The algorithm of a plan that passes `verify`: what comes after a look at the table, if there is one."""
        self.verify(plan)
        if self.printed is not None and isinstance(plan.parameters, PrintedParameters):
            return self.printed.maker(plan)
        plan = plan.without(*AROUND)
        own, min_cohort = plan.without("min_cohort"), plan.guarantee.min_cohort
        made = self.maker(own.without("servers"))
        if own.guarantee.servers is not None:
            made = two_servers.WithServers(own, made)
        return made if min_cohort is None else WithMinCohort(plan, min_cohort, made)

    def gaussian(self, plan: RunPlan) -> DominatingPair | None:
        """Return what a verified plan guarantees in μ, with no stage beside; None where no such thing is proved.

        Under the plan's adjacency and assumptions everything that a run releases is `mu`-GDP with exact noise, and as
        drawn within a total `variation` of that (docs/privacy/lifetime.md, "Gaussian runs"). Both rounded up.
        """
        if not (self.may_be_gaussian and plan.guarantee.proved and plan.guarantee.trust_model != "none"):
            return None
        self.verify(plan)  # a lifetime is charged what this says
        return self._gaussian(plan)

    def _gaussian(self, plan: RunPlan) -> DominatingPair | None:
        """Return the same of parts that are verified."""
        guarantee, own = plan.guarantee, plan.without("min_cohort")
        if not guarantee.proved or guarantee.trust_model == "none" or plan.parameters.simulation_only() is not None:
            return None
        if guarantee.estimates is not None:
            whole = DominatingPair.gaussian(*guarantee.estimates.charged)
            return whole if guarantee.held_out is None else _worse(whole, guarantee)
        pairs = self._pairs(own)
        if not all(pair.is_gaussian for pair in pairs):
            return None
        mu, lacks = max(pair.mu for pair in pairs), max(pair.variation for pair in pairs)
        if guarantee.min_cohort is not None:
            slack = total_variation(gaussians=guarantee.min_cohort.draws(plan.cost.rounds))
            mu, lacks = gdp.compose(mu, guarantee.min_cohort.mu), math.nextafter(lacks + slack, 1.0)
        return DominatingPair(mu, variation=lacks)

    def near_gaussian(self, plan: RunPlan) -> tuple[tuple[tuple[float, float], ...], float]:
        """(μ, t) with every one of which a verified plan on secret samples is μ-GDP but for t, up to s, and s.

        For *replacing* one user, whatever the plan's adjacency (lifetime#lt6). None, and 0, where nothing of the kind
        is proved.
        """
        guarantee, replaced = plan.guarantee, REPLACED
        if not (self.may_be_gaussian and guarantee.proved and guarantee.trust_model != "none"):
            return (), 0.0
        pairs = self.pairs(plan) and self._pairs(plan, replaced)
        sampled = [pair.adjacency == replaced for pair in pairs]
        alone = all(sampled) and guarantee.data_quality is None
        if not any(sampled) or not (guarantee.adjacency == replaced or alone):
            return (), 0.0  # what is Gaussian in the pairs of a zero-out plan is for one who is left out
        # A replacement costs at most twice the ε of a zero-out guarantee: about there the lattice has to be fine.
        near = near_points(pairs, guarantee.epsilon * (1 if guarantee.adjacency == replaced else 2), guarantee.delta)
        # Exactly it is Gaussian but for t; as drawn, up to s / (1 - t), and t is a share of δ.
        lack = max(pair.variation for pair in pairs) * (1 + guarantee.delta) * (1 + 2.0**-50)
        return (near, lack) if near else ((), 0.0)

    def dp_event(self, plan: RunPlan) -> "DpEvent":
        """Return what a run of the plan releases as an event of dp-accounting, for an accountant of your own.

        A noise multiplier is in units of what one user moves under the plan's own adjacency, replace-one included. Read
        events with dp-accounting's default relation; read drawn cohorts with `REPLACE_ONE` where the plan promises
        replace-one, by `RdpAccountant` if their size is fixed (docs/library.md). Raises UsageError, naming algorithm
        and theorem, where dp-accounting has no event for the mechanism, as for decisions of a minimum cohort by Laplace
        noise; VerificationError for a plan that does not keep its guarantee.
        """
        from dp_accounting import dp_event  # heavy

        self.verify(plan)
        guarantee = plan.guarantee
        if guarantee.trust_model == "none":
            return dp_event.NonPrivateDpEvent()
        laplace = guarantee.min_cohort is not None and guarantee.min_cohort.count_scale > 0
        pairs = self._pairs(plan) if guarantee.proved and not laplace else ()
        if guarantee.held_out is not None and pairs and all(pair.is_gaussian for pair in pairs):
            pairs = (max(pairs, key=lambda pair: pair.mu),)
        event = pairs[0].event() if len(pairs) == 1 and plan.parameters.simulation_only() is None else None
        if event is None:
            raise UsageError(
                f"Expected a plan whose mechanism dp-accounting has an event for, got one of {self.name}: its "
                f"guarantee rests on {guarantee.theorem}, which `ALGORITHMS[{self.name!r}].verify` checks again."
            )
        return event


@lru_cache(maxsize=64)
def near_points(pairs: tuple[DominatingPair, ...], epsilon: float, delta: float) -> tuple[tuple[float, float], ...]:
    """(μ, t), with each of which a run that is about (ε, δ)-DP is μ-GDP but for t with exact noise, whichever its pair.

    By the second account, at more ε than the one that the plan is verified at (docs/privacy/lifetime.md#lt6).
    """
    exact = [replace(pair, variation=0.0) for pair in pairs]
    found: tuple[tuple[float, float], ...] = approximate_gdp.points(
        lambda at, near: max(pair.delta(at, near) for pair in exact), epsilon, delta
    )
    return found


def _worse(estimates: DominatingPair, guarantee: Guarantee) -> DominatingPair:
    """Return what keeps both that and an evaluation, of which a user is in one, whatever label is found.

    By the most that a verified evaluation can spend: what it does spend hangs, in its last digits, on how many classes
    and items were estimated, and the store would tell of these (private-bounds#b1).
    """
    assert guarantee.held_out is not None
    lack, epsilon = guarantee.held_out.pair.variation, guarantee.epsilon
    most = gdp.mu_for(epsilon, guarantee.delta - (1 + math.exp(min(epsilon, 700.0))) * lack) * (1 + 1e-9)
    return DominatingPair(max(estimates.mu, most), variation=max(estimates.variation, lack))


def derived(plan: RunPlan) -> tuple[Assumption, ...]:
    """Return what a guarantee rests on by its numbers; on a data holder's own machine on nothing.

    A minimum cohort needs, where clients see iterates without noise, that these move nobody to answer: it would tell of
    them.
    """
    guarantee = plan.guarantee
    if guarantee.trust_model == "none" or guarantee.curated:
        return ()
    moved = guarantee.min_cohort is not None and guarantee.trust_model == "central-release"
    unmoved = (Assumption(Kind.UNMOVED_PARTICIPATION),) if moved else ()
    known = (
        guarantee.min_cohort is not None and guarantee.min_cohort.public and guarantee.servers is None
    )  # to both servers alone
    public = (Assumption(Kind.PUBLIC_PARTICIPATION),) if known else ()
    seen = () if guarantee.servers is None else (Assumption(Kind.CARELESS_PARTICIPATION),)
    return merged(plan.parameters.assumptions(plan.problem), unmoved, public, seen)


def resting(plan: RunPlan) -> RunPlan:
    """Return the plan with all that its guarantee rests on."""
    return plan.assuming(derived(plan))


def check_numbers(value: Any, where: str) -> None:
    """Every number finite and every count an integer: comparisons with NaN are False and would check nothing."""
    if is_dataclass(value):
        for item in fields(value):
            held, place = getattr(value, item.name), f"{where}.{item.name}"
            if _kinds(type(value))[item.name] is int and (not isinstance(held, int) or isinstance(held, bool)):
                raise VerificationError(f"Expected {place} to be an integer, got {held!r}.")
            check_numbers(held, place)
    elif isinstance(value, tuple | list):
        for index, held in enumerate(value):
            check_numbers(held, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise VerificationError(f"Expected {where} to be finite, got {value}.")

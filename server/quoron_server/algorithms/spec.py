"""What the registry says of an algorithm, and how sure its predicted excess risk is; of a plan ask its `Parameters`.

A prediction is from public facts only: it ranks plans and never sets noise. A `Factor` makes a bound of it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.release import Adjacency
from quoron_server.algorithm import Algorithm
from quoron_server.algorithms.references import Origin
from quoron_server.parameters import Assumption, Parameters, PrintedParameters
from quoron_server.plan import Constants, Privacy, RunPlan, TrustModel
from quoron_server.problem import Problem

if TYPE_CHECKING:
    from quoron_privacy.accounts.pair import DominatingPair
    from quoron_server.plan import Decision, PolicyInputs


@dataclass(frozen=True, slots=True)
class Factor:
    """What makes a bound of an algorithm's guesses: by so much they are multiplied, with known curvature or unknown.

    What planners predict is right for the model that they assume. A plan's predicted excess risk is that guess times a
    factor: a bound that holds in nine of ten problems. Factors were fixed on tables and made problems by
    `python benchmarks/forecasts.py fit`, which prints how often they held on others (docs/comparing.md). No theorem,
    and nothing private depends on them. 1 for planners whose guess was measured to be a bound. None where nothing was
    measured: then a plan has the guess alone, and every door calls it one.
    """

    known: float | None
    unknown: float | None

    def of(self, problem: Problem) -> float | None:
        """Return the one for what is publicly known of the problem's curvature."""
        return self.unknown if problem.beliefs.isotropic is None else self.known

    def bound(self, guess: float | None, problem: Problem) -> float | None:
        """Return what a plan tells, of what its planner guesses."""
        times = self.of(problem)
        return None if guess is None or times is None else guess * times


UNMEASURED = Factor(known=None, unknown=None)


def start_risk(problem: Problem) -> float:
    """Return the largest excess risk that the start can have, and so the largest that is reported of any model.

    ln K for K classes by a logistic loss, half the squared label bound for squares: by the losses themselves, which
    are never below zero; or by convexity, where that says less.
    """
    known = problem.beliefs.start_loss
    if known is None and problem.beliefs.sigmoid:
        known = math.log(max(2, problem.outputs))
    if known is None or problem.beliefs.isotropic is not None:
        return trivial_risk(problem) if known is None else min(known, trivial_risk(problem))
    return min(known, problem.start * problem.radius)  # by convexity, with nothing believed


def risk_text(risk: float, problem: Problem) -> str:
    """A predicted excess risk as people read it: what is above the start's says that, and by how much nobody knows."""
    most = start_risk(problem)
    return f"{risk:.2g}" if risk <= most else f"more than the start's {most:.2g}"


def no_better(risk: float, start: float, problem: Problem) -> str:
    """Of a predicted excess risk that is above what not training is guessed to leave, `start`."""
    said = f"of {risk:.2g}, " if risk <= start_risk(problem) else ""
    return f"an excess risk {said}no better than the {start:.2g} of not training"


def constant_risk(problem: Problem) -> float | None:
    """The most that there is to learn beside always saying the label rate p: H(p), of a logistic loss and declared p.

    The best model costs at least 0 and the best constant H(p). None without a rate, or without a constant to say it by.
    """
    known, rates = problem.beliefs, problem.beliefs.label_rates
    return entropy(rates[1]) if rates is not None and known.sigmoid and known.intercept else None


def entropy(rate: float) -> float:
    """H(p), in nats: what always saying p costs a row where a share p of the labels is positive.

    >>> round(entropy(0.5), 4), round(entropy(0.03), 4)
    (0.6931, 0.1347)
    """
    return -sum(share * math.log(share) for share in (rate, 1 - rate) if share > 0)


def trivial_risk(problem: Problem) -> float:
    """Bound on the excess risk of the start point: what a plan has to beat to be worth running."""
    start = problem.start
    bound = start * problem.distance  # by convexity
    if (curvature := problem.beliefs.isotropic) is not None:
        return min(bound, curvature * problem.distance**2 / 2)
    return bound


def known_worth(problem: Problem) -> float:
    """The same where the curvature is known; infinite where a forecast is a bound, which says too little of it."""
    return math.inf if problem.beliefs.isotropic is None else trivial_risk(problem)


def statistical_floor(problem: Problem) -> float:
    """Excess risk that finitely many users leave to any method, approximately, where the loss is known well enough.

    With known curvature the variance over twice the curvature. Of a linear loss the worst case over the length of its
    gradient, .30 R V/√(nm), by rounds on everybody's items that no number of rounds averages out; else 0.
    """
    if problem.beliefs.typical_curvature is not None:
        return problem.user_deviation**2 / (2 * problem.users * problem.beliefs.typical_curvature)
    if problem.beta == 0:
        return 0.3 * problem.distance * problem.user_deviation / math.sqrt(problem.users)
    return 0.0


def loss_scale(problem: Problem) -> float:
    """1 for a logistic loss; of other losses twice what an item's can fall from the start, Y² of squares."""
    known = problem.beliefs
    if known.sigmoid:
        return 1.0
    if known.start_loss is not None:
        return 2 * known.start_loss
    return problem.start / (problem.feature_norm or 1.0) * (known.label_bound or 1.0)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The numbers of a run. The registry says what is promised for them; a field that is None is as usual there."""

    parameters: Parameters
    risk: float | None  # as the planner's model predicts; None where it has none
    theorem: str | None = None  # the file under docs/privacy/, with its anchor
    trust_model: TrustModel | None = None
    adjacency: Adjacency | None = None
    assumptions: tuple[Assumption, ...] = ()  # that do not follow from the parameters


PlanFunction = Callable[[Problem, Privacy, Any], Calibrated]  # problem, privacy, options; raises Infeasible


@dataclass(frozen=True, slots=True)
class Policy:
    """How `auto`, a rounds curve and `quoron plan` come to an algorithm's plans, and what they say of them."""

    many_passes: bool = False  # whether it may ask a user more than once
    removes_outliers: bool = False
    # Whether `auto`'s public rule takes this plan, with such inputs; None: it goes by predicted risks.
    rule: "Callable[[RunPlan, PolicyInputs], Decision] | None" = None
    # Why `auto` should decline a problem: too few users for anything to be learnt at this ε. None where it is not so.
    # The share of users who are expected to answer comes last.
    too_few: Callable[[Problem, Privacy, float], Infeasible | None] | None = None
    fewer_rounds: Sequence[int] = ()  # that `auto` tries in this order where the budget does not allow the usual plan
    curve_step: int = 1  # every so many numbers of rounds stand on the curve: more where each is accounted again
    remarks: Callable[[RunPlan], tuple[str, ...]] = lambda _: ()  # beside a plan's numbers


@dataclass(frozen=True, slots=True)
class NoBlackBoxes:
    """Why clients that only say what their gradient is cannot take part."""

    why: str
    even_curated: bool = True  # nor where one machine makes all rows; otherwise rows have a radius there, and no clip


ITERATES = NoBlackBoxes("its clients are sent iterates without noise, and its guarantee needs to know their loss")


def no_pairs(parameters: Any, problem: Problem, adjacency: Adjacency) -> "tuple[DominatingPair, ...]":
    """Of a theorem that proves (ε, δ) only, as with private tests and filters.

    So, too, of local reports: a client holds an adversarial coordinator to (ε, δ), under which that may ask for bits
    where vectors with Gaussian noise were planned.
    """
    return ()


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What an algorithm's calibrated plans may guarantee, where that is proved, and what a run costs."""

    theorem: str  # a file under docs/privacy/
    # What a whole run costs one user, by its scales alone. Every user is in one of these pairs: it is worth the worst.
    pairs: "Callable[[Any, Problem, Adjacency], tuple[DominatingPair, ...]]" = no_pairs
    # Of runs on secret samples, whose counts are of the same cohort, so that what is sampled is both. The largest μ for
    # which `with_count` stays within (ε, δ), by the first account: of parameters, problem, ε and δ.
    count_room: Callable[[Any, Problem, float, float], float] = lambda *_: 0.0
    # Numbers with which a round is worth what it is with a μ-GDP count beside it; None where no theorem says so.
    with_count: Callable[[Any, float], Parameters | None] = lambda *_: None
    # How far a user who is replaced moves each round whose mean leaves room for a count, under replace-one and without
    # coins: in deviations of its noise, counted again by its scales. By staying away a user moves it half as far. What
    # rounding to the noise's grid adds is left out: it is added to the whole, count and all.
    moves: "Callable[[Any, Problem], Sequence[float | None]]" = lambda *_: ()
    trust_models: tuple[TrustModel, ...] = ("central-broadcast",)  # several: `verifier` tells them apart; usual first
    adjacency: tuple[Adjacency, ...] = ("replace-one",)
    # Why it takes one server that sees single answers, and what to take instead; None: two that see none will do.
    one_server: str | None = "nobody has proved it for sums that no server sees"


@dataclass(frozen=True, slots=True)
class Printed:
    """The algorithm of a paper exactly as printed, for comparison in simulations: `constants="paper"`."""

    options: type  # frozen dataclass of the constants that the paper leaves open, all with defaults
    parameters: type[PrintedParameters]
    planner: PlanFunction  # of such parameters
    maker: Callable[[RunPlan], Algorithm[Any]]
    # What our accountant finds for a run of these numbers at this δ, under the adjacency that the planner chose:
    # of parameters, problem and δ; infinite where no theorem covers them.
    epsilon: Callable[[Any, Problem, float], float] = lambda *_: math.inf


@dataclass(frozen=True, slots=True)
class AlgorithmSpec:
    """One line of `quoron show algorithms`, and the functions behind it."""

    name: str
    summary: str
    origin: Origin  # whose algorithm it is, and the papers
    guarantees: Guarantees
    options: type  # frozen dataclass of planning options, all with defaults
    parameters: type[Parameters]  # of its plans
    planner: PlanFunction
    verifier: Callable[[RunPlan], None]  # independent re-check of the theorem; raises VerificationError
    maker: Callable[[RunPlan], Algorithm[Any]]
    factor: Factor  # makes of what its planner guesses a bound that holds in nine of ten problems
    printed: Printed | None = None  # the same as its paper prints it, where it is one of the four papers'
    noise_ignores_domain: bool = False  # so that a wide one costs no privacy
    no_black_boxes: NoBlackBoxes | None = None
    policy: Policy = Policy()

    @property
    def paper(self) -> str:
        """The papers of its origin, with the numbers of their algorithms."""
        return self.origin.papers

    @property
    def trust_model(self) -> TrustModel:
        """What plans usually guarantee."""
        return self.guarantees.trust_models[0]

    @property
    def trust_models(self) -> tuple[TrustModel, ...]:
        """All that plans may guarantee, the usual one first."""
        return (*self.guarantees.trust_models, *(() if self.guarantees.one_server is not None else ("two-servers",)))

    def takes(self, option: str) -> bool:
        """Return whether its options have one of this name."""
        return any(item.name == option for item in fields(self.options))

    @property
    def constants(self) -> tuple[Constants, ...]:
        """Kinds of plans that it makes."""
        return ("calibrated",) if self.printed is None else ("calibrated", "paper")

    def options_for(self, constants: Constants) -> type:
        """Return the options of plans with such constants. ConfigError where it has none."""
        if constants == "calibrated":
            return self.options
        if self.printed is None:
            raise ConfigError(
                f"Expected constants='calibrated' for {self.name}, got 'paper': it is no algorithm of the four papers "
                "that prints its sizes (docs/papers/README.md)."
            )
        return self.printed.options

    @property
    def may_be_gaussian(self) -> bool:
        """Whether any plan of it guarantees a μ as a whole: where none does, no share of one can be spent."""
        return self.guarantees.pairs is not no_pairs

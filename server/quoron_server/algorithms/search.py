"""What planners share: a search for the least predicted risk, the slack of samplers, and checks of options and plans.

    >>> tried = [Candidate(1.00, (64,), "many"), Candidate(1.04, (16,), "few"), Candidate(1.30, (4,), "fewest")]
    >>> best(tried).of, [candidate.of for candidate in ranked(tried)]
    ('few', ['few', 'many', 'fewest'])

Among candidates of about the least risk `best` takes the cheapest, and a `Planner` the first whose theorem has
parameters for it. All of it is about public numbers: a plan is as private as its calibration says, whichever candidate
is taken.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from quoron_client.protocol.domains import Box
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible, Needs, QuoronError, VerificationError
from quoron_privacy.errors import require as require_all
from quoron_server.algorithms.averaged_sgd import default_clip
from quoron_server.algorithms.spec import Calibrated, no_better
from quoron_server.plan import MAX_EPSILON, MAX_ROUNDS, Cost, Privacy, RunPlan
from quoron_server.problem import MOST, Problem

if TYPE_CHECKING:
    from quoron_privacy.accounts.pair import DominatingPair

# Plans with n users, ε and a number of rounds, or the usual one; raises where that is infeasible.
Again = Callable[[int, float, int | None], object]

C = TypeVar("C")
A = TypeVar("A")  # options

POSITIVE, COUNTS = (1e-12, 1e9), (1, MAX_ROUNDS)  # ranges of options, unless their field has its own
NEAR = 1.05  # times the least predicted risk counts as about as good
SINGLY = 16  # rounds up to which a limit on them tries every number


def left_of_delta(name: str, privacy: Privacy, *, gaussians: int, laplaces: int = 0) -> float:
    """Return δ less what the samplers lack; Infeasible where that is nothing."""
    return gdp.left(privacy.epsilon, privacy.delta, gaussians=gaussians, laplaces=laplaces, name=name)


def lacks(*, gaussians: int = 0, laplaces: int = 0) -> float:
    """Return the total variation of so many samples, counted again: 2⁻¹⁶⁰ for each."""
    return math.ldexp(gaussians + laplaces, -160)


def left(plan: RunPlan, *, gaussians: int, laplaces: int = 0) -> float:
    """Return δ of a plan's guarantee less what so many samples lack, for those who verify: one number below it."""
    taken = lacks(gaussians=gaussians, laplaces=laplaces) * (1 + math.exp(plan.guarantee.epsilon))
    return math.nextafter(plan.guarantee.delta - taken, -1.0)


def within(least: float, most: float, default: float | None = None) -> Any:
    """Return a field of options whose number lies in [least, most]; with a least of 0 it may be 0 too."""
    return field(default=default, metadata={"range": (least, most)})


def check_options(options: Any, called: str = "algorithm.options") -> None:
    """ConfigError for a number of options that is out of its range: that of its field, else POSITIVE or COUNTS."""
    for item in fields(options):
        name, value = item.name, getattr(options, item.name)
        least, most = item.metadata.get("range", COUNTS if name in ("rounds", "phases") else POSITIVE)
        zero, least = "" if least else "0, or ", least or POSITIVE[0]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and not (zero and value == 0) and not least <= value <= most:
            raise ConfigError(
                f"Expected {called}.{name} {zero}in [{least:g}, {most:,.7g}], got {called}.{name}={value}. Leave it "
                "out to let the plan choose."
            )


def require_smooth(name: str, problem: Problem) -> None:
    """Raise Infeasible unless the loss is convex and smooth, which contraction rests on."""
    if not problem.convex or problem.beta is None:
        raise Infeasible(name, "the loss is not convex and smooth", "a convex smooth loss, such as logistic or huber")


def require_box(name: str, problem: Problem) -> None:
    """Raise Infeasible unless the domain is a box and every conceivable user's Hessian is diagonally dominant."""
    if not isinstance(problem.domain, Box):
        raise Infeasible(
            name, "projection onto a ball may bring points farther apart in ℓ∞", "a box, domain.kind='box'"
        )
    if problem.coordinate_beta is not None:
        return
    if problem.beta is None or problem.outputs > 1:
        raise Infeasible(
            name,
            "the Hessian of the loss is not certainly diagonally dominant, whatever its features",
            "a smooth loss of one output, such as linear, logistic or huber",
        )
    curvature, norm = problem.link_curvature or 1.0, problem.feature_norm or 1.0
    ridge = curvature * norm**2 * (math.sqrt(problem.features) - 1) / 2
    raise Infeasible(
        name,
        "the Hessian of the loss is not certainly diagonally dominant",
        f"loss.active_features=1, or loss.ridge >= {ridge * 1.01:.3g}, less with loss.feature_bound",
    )


def require(name: str, *conditions: tuple[str, bool, object]) -> None:
    """VerificationError, in a plan of `name`, for the first (what is expected, whether it holds, what there is)."""
    require_all(f"a plan of {name}", *conditions)


def require_of(name: str, got: object, *conditions: tuple[str, bool]) -> None:
    """`require` of several things about one part of a plan."""
    require(name, *((what, holds, got) for what, holds in conditions))


def require_least(name: str, what: str, got: float, truth: float) -> None:
    """VerificationError, in a plan of `name`, for a number that is below what was counted again, but for rounding."""
    if not got >= truth * (1 - 1e-12):
        raise VerificationError(
            f"Expected {what} >= {truth} in a plan of {name}, got {got}: too little noise for the claim."
        )


def require_cost(plan: RunPlan) -> None:
    """Raise VerificationError unless the plan costs what its rounds ask: budgets and clients see its cost."""
    expected = Cost.of(plan.problem, plan.parameters)
    require(plan.algorithm, (f"the cost of its rounds, {expected}", plan.cost == expected, plan.cost))


def require_spent(plan: RunPlan, pairs: "Sequence[DominatingPair]") -> None:
    """VerificationError unless each of these pairs, samplers included, keeps the guarantee by the second account.

    δ is read at ε (1 + 10⁻¹²): where both accounts are exact they round.
    """
    epsilon, delta = plan.guarantee.epsilon, plan.guarantee.delta
    for pair in pairs:
        if not (spent := pair.delta(epsilon * (1 + 1e-12), delta)) <= delta:
            raise VerificationError(f"Expected delta <= {delta} at epsilon={epsilon}, the plan spends {spent}.")


@dataclass(frozen=True, slots=True)
class Candidate(Generic[C]):
    """Option values with what they are predicted to leave."""

    risk: float  # predicted excess risk
    price: tuple[float, ...]  # compared where risks are about as good: rounds, answers or gradients
    of: C


def best(tried: Iterable[Candidate[C]], *, near: float = NEAR) -> Candidate[C] | None:
    """Return the cheapest of those within `near` times the least risk; of equal ones the least risk, then the first.

    None where nothing was tried.
    """
    found = list(tried)
    least = min((candidate.risk for candidate in found), default=0.0)
    close = (candidate for candidate in found if candidate.risk <= near * least)
    return min(close, key=lambda candidate: (candidate.price, candidate.risk), default=None)


def ranked(tried: Iterable[Candidate[C]], *, near: float = NEAR) -> list[Candidate[C]]:
    """Return the `best`, then the others of finite risk, the least first."""
    found = list(tried)
    if (first := best(found, near=near)) is None:
        return []
    others = (candidate for candidate in found if candidate is not first and math.isfinite(candidate.risk))
    return [first, *sorted(others, key=lambda candidate: candidate.risk)]


@dataclass(frozen=True, slots=True)
class PlanInputs(Generic[A]):
    """What a plan is made from."""

    name: str  # of the algorithm
    problem: Problem
    privacy: Privacy
    options: A

    def rounds(self, grid: Iterable[int]) -> list[int]:
        """Return numbers of rounds to try: what options fix, else those of the grid."""
        fixed: int | None = getattr(self.options, "rounds", None)
        return [fixed] if fixed else list(grid)

    @property
    def clip_norm(self) -> float:
        """C, or where it follows the users C_0: what options fix, else one at the scale of user averages."""
        fixed: float | None = self.options.clip_norm  # type: ignore[attr-defined]
        return fixed or default_clip(self.problem)

    @property
    def promised(self) -> str:
        """What the users were too few for: rounds that options fix, ε, δ and declared adversarial users."""
        rounds, hostile = getattr(self.options, "rounds", None), self.problem.beliefs.hostile_share
        within = f" in {rounds:,} rounds" if rounds else ""
        among = f", with hostile_share={hostile:g}" if hostile else ""
        return f"{within} at epsilon={self.privacy.epsilon:g}, delta={self.privacy.delta:g}{among}"


@dataclass(frozen=True, slots=True)
class Planner(Generic[A, C]):
    """How an algorithm's numbers are chosen: candidates by predicted risk, then exact noise for the first that works.

    Called with a problem, a guarantee and options it returns what it chose, and raises ConfigError for options that
    cannot be, Infeasible where no candidate is feasible, or none is predicted to be better than not training.
    """

    name: str
    candidates: Callable[[Any], Iterable[Candidate[C]]]  # their risks may rest on estimated noise
    calibrate: Callable[[Any, Candidate[C]], Calibrated]  # raises Infeasible
    missing: Callable[[Any], Infeasible] | str = "for any rounds"  # why none is feasible, or too few users for what
    worth: Callable[[Problem], float] | None = None  # risk of not training; None: the forecast says too little of it
    also: str = ""  # what helps beside more users against a risk that is no better
    near: float = NEAR
    max_calibrated: int = 1  # candidates, as an exact account is slow, and the later ones guarantee less
    inputs: Callable[[str, Problem, Privacy, A], Any] = PlanInputs  # what these functions are called with
    check: Callable[[Any], None] = lambda _: None  # raises ConfigError and Infeasible for what no candidate can mend

    def __call__(self, problem: Problem, privacy: Privacy, options: A) -> Calibrated:
        """Return the numbers of the first candidate that can be calibrated and is worth running."""
        inputs = self.inputs(self.name, problem, privacy, options)
        smoothing = getattr(options, "smoothing", None)
        if smoothing and problem.smoothness is not None:
            raise ConfigError(
                f"Expected no algorithm.options.smoothing for a loss that is smooth, got smoothing={smoothing}."
            )
        self.check(inputs)
        worth = math.inf if self.worth is None else self.worth(problem)
        least: float | None = None
        for candidate in ranked(self.candidates(inputs), near=self.near)[: self.max_calibrated]:
            try:
                chosen = self.calibrate(inputs, candidate)
            except Infeasible:
                if self.max_calibrated == 1:
                    raise
                continue
            if chosen.risk is None or self.worth is None or chosen.risk < worth:
                return chosen
            least = chosen.risk if least is None else min(least, chosen.risk)
        if least is not None:
            condition = f"n={problem.users:,} users predict {no_better(least, worth, problem)}"
        elif isinstance(self.missing, str):
            condition = f"n={problem.users:,} users are too few {self.missing}{inputs.promised}"
        else:
            raise self.missing(inputs)
        raise Infeasible.too_few(self.name, condition, problem.users + 1, also=self.also)


def within_rounds(most: int, usual: RunPlan, exactly: Callable[[int], RunPlan]) -> RunPlan:
    """Return the plan of the least expected error of at most `most` rounds; `exactly` plans for a number of rounds.

    Tried are the rounds of the `usual` plan, chosen without a limit, and below it all up to SINGLY and `round_grid`.
    What is tried for one limit is tried for every larger one, so a larger limit never leaves more. Where none of these
    is feasible the fewest rounds that are will do, and Infeasible names them if they are more than `most`.
    """

    def planned(numbers: Iterable[int]) -> Iterator[RunPlan]:
        for rounds in numbers:
            with suppress(QuoronError):
                yield exactly(rounds)

    def price(plan: RunPlan) -> tuple[float, int]:
        known = plan.guessed_excess_risk
        return math.inf if known is None else known, -plan.cost.rounds

    longest = usual.cost.rounds
    grid = {*round_grid(longest), *range(1, min(longest, SINGLY) + 1)}
    found = min(planned(rounds for rounds in sorted(grid) if rounds <= most), key=price, default=None)
    if found is not None or longest <= most:
        return usual if found is None else found
    fewest = next(planned(range(1, longest)), usual)
    if fewest.cost.rounds <= most:
        return fewest
    limit = "1 round" if most == 1 else f"{most:,} rounds"
    raise Infeasible(usual.algorithm, f"{limit} will not do", f"budget.max_rounds >= {fewest.cost.rounds:,}")


def settled(again: Again, users: int, epsilon: float, needs: Needs) -> Needs:
    """Return what a problem needs that is infeasible with `users` and ε: each number in it is one that is feasible.

    Where it needs an ε or a number of rounds and has too few users with that, it needs both.
    """
    at, rounds = epsilon, needs.rounds
    if needs.users is None and (needs.epsilon, rounds) != (None, None):
        try:
            again(users, needs.epsilon or epsilon, rounds)
            return needs
        except Infeasible as error:
            then = error.estimate
        except QuoronError:
            then = Needs("")
        if then.users is not None:
            at = needs.epsilon or epsilon
            both = settled(lambda n, _, few: again(n, at, few or rounds), users, at, replace(then, epsilon=None))
            return Needs(f"{needs.words} and {both.words}")
    elif rounds is not None:  # one of two ways
        try:
            again(users, epsilon, rounds)
        except QuoronError:
            needs = replace(needs, words=needs.words.replace(f"at most {rounds:,} rounds, or ", ""))
        rounds = None
    enough, found = None, needs.epsilon
    if needs.users is not None:
        number = _feasible(lambda n: again(int(n), at, rounds), needs.users, users, MOST, math.ceil, "users")
        enough = None if number is None else int(number)
    if needs.epsilon is not None and at != needs.epsilon:
        unit = needs.unit or 1.0

        def rounded(number: float) -> float:
            return unit * two_digits(number / unit)

        found = _feasible(lambda e: again(users, e, rounds), needs.epsilon, epsilon, MAX_EPSILON, rounded, "epsilon")
    return needs.naming(enough, found, most=(MOST, MAX_EPSILON))


def _feasible(
    planned: Callable[[float], object],
    estimate: float,
    bad: float,
    most: float,
    rounded: Callable[[float], float],
    kind: Literal["users", "epsilon"],
) -> float | None:
    """Return a number for which `planned` raises nothing, within a tenth of one for which it does.

    From an estimate on it goes where errors point, and on by growing factors; None where that ends beyond `most`.
    """

    def refusal(number: float) -> QuoronError | None:
        try:
            planned(number)
        except QuoronError as error:
            return error
        return None

    good, factor = max(rounded(bad), estimate), 1.05
    while (error := refusal(good)) is not None:
        if good >= most:
            return None
        further = getattr(error.estimate, kind) if isinstance(error, Infeasible) else None
        factor = 2.0 if further is None or further == good + 1 else factor
        bad, good = good, min(max(rounded(factor * good), good + (kind == "users"), further or 0.0), most)
        factor = min(factor**2, 2.0)
    within = factor = 1.1  # the estimate is mostly the least number, and one look below it will do
    while good > within * bad and bad < (lower := rounded(max(good / factor, math.sqrt(bad * good)))) < good:
        if refusal(lower) is None:
            good, factor = lower, factor**2
        else:
            bad = lower
    return good


def two_digits(number: float) -> float:
    """Return a positive number rounded up to two digits.

    >>> two_digits(1234), two_digits(0.0121), two_digits(50)
    (1300.0, 0.013, 50.0)
    """
    power = math.floor(math.log10(number)) - 1
    digits = math.ceil(number / 10.0**power * (1 - 1e-12))
    return float(f"{digits}e{power}")


def round_grid(largest: int, *, smallest: int = 1) -> list[int]:
    """Integers from `smallest` to `largest`, a factor √2 apart."""
    count = max(0, math.floor(2 * math.log2(max(1, largest / smallest))))
    return sorted({round(smallest * 2 ** (k / 2)) for k in range(count + 1)} | {largest})


def geometric_phases(users: int, phases: int) -> list[int]:
    """Return the users of geometric phases: half of the rest in each; the last has as many as the one before."""
    sizes = [max(users >> (k + 1), 1) for k in range(phases - 1)]
    return [*sizes, users - sum(sizes)]

"""Phased local SGD with outlier-iterate removal: Lowy, Liu & Asi (2024), Algorithm 1, with a test and noise of our own.

    x_0 = 0
    for phase i:   C chains side by side, each of N_i users one after another, all on fresh users
        a user takes one local pass of SGD from the iterate that it gets, and hands its last one on
        y_j = mean of the iterates along chain j
        S = #{(j, j') : ‖y_j - y_j'‖ <= τ_i}
        x_i = Proj(weighted mean of the y_j that lie close to most + N(0, σ_i² I))   if the test of S releases
        x_i = x_{i-1}                                                                otherwise

Privacy asks nothing of the losses: it holds for arbitrary vectors y_j, so clients may clip, and losses may be rough or
not convex. A chain in which anybody is silent, late or sends nonsense is an isolated point for the phase. Clients see
iterates without noise (trust model `central-release`), unless every chain is one user long (`central-broadcast`).

Changed from print, with proofs in docs/privacy/outlier-iterates.md: smooth test and weighted mean in place of Laplace
test and random inclusion, our ramp, exact calibration, projected releases, free sizes.

A plan takes chains, phases, steps and radii by a predicted course. A phase runs C chains of N users with m items each
from one start: T = N m steps of size η on single items, of which the iterates of the last `averaged` users are
averaged. There are two models of it, for utility alone; what is private is what `verify` certifies:

* isotropic curvature known: bias and variance of a chain's average are exact for a quadratic; C chains average out.
  What no average removes: a chain that wanders feels the curvature change, and settles off the optimum (`_bend`).
* unknown: ‖x_0 - x*‖²/(2ηT) + ηL²/2 a phase, the distance after the first being the noise's.

How far two chains lie apart: docs/privacy/outlier-iterates.md#o7.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TypeVar

import numpy as np
from scipy.special import chdtri

from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.robust import smooth_test
from quoron_privacy.robust.outlier_mean import LARGEST_COHORT
from quoron_privacy.robust.smooth_test import OneShot, release_scale, verify_one_shot, verify_scale
from quoron_server.algorithm import Vector
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import Number, averaging, item_deviation, released_excess, still
from quoron_server.algorithms.chains import ChainPhase, ChainRounds, ChainSGD, ChainState
from quoron_server.algorithms.printed import lowy_iterates
from quoron_server.algorithms.references import LOWY_2024, repaired
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.spec import ITERATES, AlgorithmSpec, Calibrated, Factor, Guarantees, Policy, trivial_risk
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

_Size = tuple[int, tuple[int, ...]]  # chains, and how many users of a chain each phase takes
_Answer = TypeVar("_Answer")

BEND = 0.5  # the share of its size by which curvature changes over a unit of prediction: a third for logistic at norm 3

NAME = "outlier-iterates"
THEOREM = "docs/privacy/outlier-iterates.md#statement"
LARGEST_ROUNDS = 256  # up to which numbers a factor √2 apart are tried unless asked for
LONG_ROUNDS = (512, 1024, 2048, 4096)  # tried beyond: with many users short chains waste them where nothing is curved
NUMBERS = (1, 2, 3, 4, 6)  # of phases
SHRINKS = (1.0, 1.5, 2.2, 4.0)  # of the step from one phase to the next
AVERAGED = (1.0, 0.25)  # shares of a chain's users whose iterates are averaged
STEPS = 16
NEAR = 1.02  # times the least predicted risk is as good: fewer rounds win
OUTLIER_FRACTION = 0.01  # share of pairs in d dimensions that the radius may leave out

SLACK = 0.02  # of honest pairs, that may lie farther apart than τ without the test noticing
_BEYOND = 2**20  # chains, where none that are counted would do


@dataclass(frozen=True, slots=True)
class OutlierIterateParameters(ChainRounds):
    """Public numbers of one run."""

    cohort_size: int  # C: chains side by side, so users asked in a round
    phases: tuple[ChainPhase, ...]


class OutlierIterates(ChainSGD[OutlierIterateParameters]):
    """Algorithm object for a plan with OutlierIterateParameters."""

    kind = OutlierIterateParameters

    def released(
        self, state: ChainState, phase: ChainPhase, noise: NoiseSource, index: int
    ) -> tuple[bool, Vector, dict[str, float]]:
        """Return the projected noisy mean of chains that lie close to most; x_{i-1} where the test says no."""
        mean = phase.release.mean
        seen = mean.observe(state.averages, state.whole, radius=phase.radius, reference=state.released)
        passed, x = phase.release.test.decide(seen.score, noise.stream("test", index)), state.released
        if passed:
            shift = mean.aggregate(state.averages, seen.weights, radius=phase.radius, reference=state.released)
            noisy = phase.noise.release(shift, noise.stream("release", index))
            x = self.plan.problem.domain.project(state.released + noisy)
        private = {
            "removed_chains": int(np.sum(seen.weights == 0)),
            "weight": float(seen.weights.mean()) / (mean.ramp_high - mean.ramp_low),
            "score": seen.score / mean.cohort_size**2,
        }
        return passed, x, private


@dataclass(frozen=True, slots=True)
class Stage:
    """One phase before its radius is known: numbers, or arrays with one for each candidate."""

    users: Number  # N: users of a chain, one after another
    averaged: Number  # the last so many users' iterates are averaged
    step_size: Number  # η
    noise_multiplier: Number  # σ/τ
    chains: Number  # honest chains that are counted on
    lost: Number = 0.0  # share of chains that an adversarial user may steer, by τ without being removed


@dataclass(frozen=True, slots=True)
class Course:
    """What a sequence of stages is predicted to do."""

    risk: Number  # when outliers are removed
    worst: Number  # when adversarial chains stay as far off as they can without being removed; plans are ranked by it
    radii: tuple[Number, ...]  # τ of every stage


def apart(steps: Number, suffix: Number) -> Number:
    """√2 times the mean of √t over the averaged steps: two chains' root mean square distance in units of ηV."""
    first = steps - suffix + 1
    return math.sqrt(2) * (2 / 3) * ((steps + 1) ** 1.5 - first**1.5) / suffix


def distance(problem: Problem, stage: Stage, deviation: Number, damping: Number) -> Number:
    """Root mean square distance of two honest chains' averages, an upper bound up to the model of the curvature."""
    steps, suffix = stage.users * problem.items_per_user, stage.averaged * problem.items_per_user
    length: Number = stage.step_size * deviation * apart(steps, suffix) * damping
    return length


def relaxation(problem: Problem, stage: Stage) -> tuple[Number, Number]:
    """What the least curvature leaves of the distance from the optimum, and of that between two chains (`damping`)."""
    steps, suffix = stage.users * problem.items_per_user, stage.averaged * problem.items_per_user
    curvature = least_curvature(problem) or 0.0
    bias, damped = averaging(np.maximum(0.0, 1 - stage.step_size * curvature), steps, suffix)
    return bias, np.sqrt(damped / still(steps, suffix))


def least_curvature(problem: Problem) -> float | None:
    """Return the smallest eigenvalue of the expected Hessian where it is publicly known."""
    known = problem.beliefs
    return known.isotropic if known.isotropic is None or known.least_curvature is None else known.least_curvature


def course(problem: Problem, stages: Sequence[Stage], factor: float) -> Course:
    """Risk and radii, phase by phase, of one candidate or many; τ is c = `factor` times two chains' distance."""
    return (_isotropic if problem.beliefs.curvature == "isotropic" else _worst_case)(problem, stages, factor)


def _isotropic(problem: Problem, stages: Sequence[Stage], factor: float) -> Course:
    typical, slowest = problem.beliefs.typical_curvature or 0.0, least_curvature(problem) or 0.0
    remaining: Number = problem.radius
    spread: Number = 0.0
    bent: Number = 0.0
    steered: Number = 0.0
    # Of all stages at once: there may be thousands.
    every = Stage(*(np.array([getattr(stage, name) for stage in stages]) for name in Stage.__slots__))
    steps, suffix = every.users * problem.items_per_user, every.averaged * problem.items_per_user
    kept = np.maximum(0.0, 1 - every.step_size * typical)
    curved = *relaxation(problem, every), *averaging(kept, steps, suffix), averaging(kept, steps, 1)[1]
    radii = []
    for stage, decay, damping, bias, variance, wandering in zip(stages, *map(np.asarray, curved), strict=True):
        deviation = item_deviation(problem, remaining**2 + spread + bent**2)
        radii.append(factor * distance(problem, stage, deviation, damping))
        remaining = remaining * decay
        bent = bias * bent + (1 - bias) * _bend(problem, (stage.step_size * deviation) ** 2 * wandering)
        steered = bias * steered + stage.lost * radii[-1]
        spread = bias**2 * spread + variance * (stage.step_size * deviation) ** 2 / stage.chains
        spread = spread + problem.dimension * (stage.noise_multiplier * radii[-1]) ** 2
    risk = (slowest * remaining**2 + typical * (spread + bent**2)) / 2
    worst = (slowest * remaining**2 + typical * (spread + (bent + steered) ** 2)) / 2
    return Course(risk, worst, tuple(radii))


def _bend(problem: Problem, wandering: Number) -> Number:
    """Return where chains settle off the optimum: ½ H⁻¹ ∇³F[v/d I], v their own mean square `wandering` at the end."""
    feature_norm = 1.0 if problem.feature_norm is None else problem.feature_norm
    return BEND * feature_norm * wandering / (2 * math.sqrt(problem.dimension))


def _worst_case(problem: Problem, stages: Sequence[Stage], factor: float) -> Course:
    squared_distance: Number = problem.radius**2
    total: Number = 0.0
    steered: Number = 0.0
    radii = []
    for stage in stages:
        radii.append(factor * distance(problem, stage, item_deviation(problem, 0.0), 1.0))
        steps = stage.averaged * problem.items_per_user
        total = total + squared_distance / (2 * stage.step_size * steps) + stage.step_size * problem.lipschitz**2 / 2
        squared_distance = problem.dimension * (stage.noise_multiplier * radii[-1]) ** 2
        steered = steered + stage.lost * radii[-1]
    items = replace(problem, user_smoothness=None)  # steps are of single items: β is theirs
    last = released_excess(items, stages[-1].noise_multiplier * radii[-1])
    return Course(total + last, total + last + problem.lipschitz * steered, tuple(radii))


@dataclass(frozen=True, slots=True)
class OutlierIterateOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # exactly: the lengths of all phases' chains together
    cohort_size: int | None = None  # C: chains side by side
    phases: int | None = None
    step_size: float | None = None  # η of the first phase
    radius_factor: float | None = None  # c: the radius in units of honest chains' rms distance
    tolerance: float | None = search.within(0.0, 0.4999)  # share of users that stop no release; None: as declared
    broadcast: bool = False  # only chains of one user: no client sees anything un-noised


@dataclass(frozen=True, slots=True)
class _Tried:
    """One number of chains and one split into phases, at its best step, shrink and share."""

    chains: int
    every: tuple[Stage, ...]  # of all that were predicted with it: arrays over (sizes, steps, shrinks, shares)
    shape: tuple[int, ...]
    place: int  # of this one, in the flattened arrays

    @property
    def stages(self) -> list[Stage]:
        """Its numbers."""

        def number(values: Number) -> float:
            return float(np.broadcast_to(values, self.shape).flat[self.place])

        return [Stage(*(number(getattr(stage, name)) for name in Stage.__slots__)) for stage in self.every]


@lru_cache(maxsize=64)
def usual_factor(dimension: int) -> float:
    """c: 1.5, or more in few dimensions, where single pairs stray farther from the mean square."""
    return max(1.5, math.sqrt(float(chdtri(dimension, OUTLIER_FRACTION)) / dimension))


@dataclass(frozen=True, slots=True)
class _Inputs(PlanInputs[OutlierIterateOptions]):
    """What a plan is made from."""

    @property
    def lost(self) -> float:
        """Share of users, adversarial or absent, that stop no release."""
        tolerance = self.options.tolerance
        return self.problem.beliefs.hostile_share if tolerance is None else tolerance

    def asked(self, of: Callable[..., _Answer]) -> Callable[[int, float], _Answer]:
        """What `of` answers of the release of a phase of so many chains of so many users.

        A user is in one phase; the others' noise has the same law in both worlds.
        """
        left = search.left_of_delta(NAME, self.privacy, gaussians=self.problem.dimension, laplaces=1)
        ask = partial(of, self.privacy.epsilon, math.nextafter(left, -1.0))
        return lambda chains, users: ask(chains, forgiven=count_slack(chains, _lost(users, self.lost)))

    @property
    def factor(self) -> float:
        """c."""
        return self.options.radius_factor or usual_factor(self.problem.dimension)

    @property
    def least(self) -> int:
        """C_min: the least number of chains with a release when chains are lost as often as users, however noisy."""
        noise = self.asked(smooth_test.estimate)
        return smooth_test.smallest(lambda chains: noise(chains, 1)) or _BEYOND


def _chosen(inputs: _Inputs, found: Candidate[_Tried]) -> Calibrated:
    problem, release_of = inputs.problem, inputs.asked(partial(smooth_test.release, name=NAME))
    chains, drafts = found.of.chains, found.of.stages
    releases = {users: release_of(chains, float(users)) for users in dict.fromkeys(stage.users for stage in drafts)}
    built = [releases[stage.users] for stage in drafts]
    stages = [
        replace(stage, noise_multiplier=release.noise_multiplier) for stage, release in zip(drafts, built, strict=True)
    ]
    forecast = course(problem, stages, inputs.factor)
    phases = tuple(
        ChainPhase(
            users=int(stage.users),
            averaged=int(stage.averaged),
            step_size=float(stage.step_size),
            radius=float(radius),
            release_scale=release_scale(release, float(radius), problem.dimension),
            release=release,
        )
        for stage, radius, release in zip(stages, forecast.radii, built, strict=True)
    )
    parameters = OutlierIterateParameters(chains, phases)
    single = all(phase.users == 1 for phase in phases)
    return Calibrated(
        parameters, float(forecast.risk), trust_model="central-broadcast" if single else "central-release"
    )


def verify(plan: RunPlan) -> None:
    """outlier-mean#o3 for every phase at the plan's own numbers, disjoint users, and what clients get to see."""
    p = plan.parameters_of(OutlierIterateParameters)
    asked = sum(phase.users * p.cohort_size for phase in p.phases)
    if not p.phases or asked > plan.problem.users:
        raise VerificationError(f"Expected phases on disjoint users among {plan.problem.users:,}, got {p.phases}.")
    single = all(phase.users == 1 for phase in p.phases)
    if plan.guarantee.trust_model == "central-broadcast" and not single:
        raise VerificationError("Expected chains of one user under trust model 'central-broadcast', got longer ones.")
    chains, dimension = p.cohort_size, plan.problem.dimension
    for phase in p.phases:
        mean = phase.release.mean
        if not (1 <= phase.averaged <= phase.users and phase.step_size > 0 and mean.cohort_size == chains):
            raise VerificationError(
                f"Expected 1 <= averaged <= users, a positive step and {chains} chains, got {phase}."
            )
        verify_scale(phase.release, phase.release_scale, phase.radius, dimension)
    for release in {phase.release for phase in p.phases}:
        if not isinstance(release, OneShot):
            raise VerificationError(f"Expected a smooth test, got {release}.")
        verify_one_shot(release, plan.guarantee.epsilon, search.left(plan, gaussians=dimension, laplaces=1))


def _candidates(inputs: _Inputs) -> Iterable[Candidate[_Tried]]:
    """The best step, shrink and share of each size and split into phases that allows a release, by the worst risk.

    Risk grows with noise: what would be too bad with less than any release can do with is not asked for its noise.
    """
    problem, options = inputs.problem, inputs.options
    sizes = [(chains, counts) for n, chains in _sizes(problem, options, inputs.least) for counts in _splits(n, options)]
    bounds = _predicted(inputs, sizes, smooth_test.least_noise)
    first = _predicted(inputs, sorted(bounds, key=lambda size: bounds[size].risk)[:1], smooth_test.estimate).values()
    most = NEAR * min((size.risk for size in first), default=math.inf)
    return _predicted(inputs, [size for size in bounds if bounds[size].risk <= most], smooth_test.estimate).values()


def _predicted(inputs: _Inputs, sizes: Iterable[_Size], of: Callable[..., float]) -> dict[_Size, Candidate[_Tried]]:
    """Return what these sizes leave at best, without those that allow no release."""
    problem, options, lost, noise_of = inputs.problem, inputs.options, inputs.lost, inputs.asked(of)
    found: dict[_Size, Candidate[_Tried]] = {}
    splits: dict[int, list[tuple[int, tuple[int, ...], list[float]]]] = {}  # by phases: chains, their lengths, noise
    for chains, counts in sizes:
        noise = [noise_of(chains, users) for users in counts]
        if math.inf not in noise:
            splits.setdefault(len(counts), []).append((chains, counts, noise))
    for number, tried in splits.items():
        steps = np.array([_steps(problem, options, counts[0]) for _, counts, _ in tried])[:, :, None, None]
        shrinks = np.array(SHRINKS if number > 1 else (1.0,))[:, None]
        shares = np.array(AVERAGED if problem.beliefs.curvature == "isotropic" else (1.0,))
        stages = []
        for index in range(number):
            users = _column([counts[index] for _, counts, _ in tried])
            stages.append(
                Stage(
                    users=users,
                    averaged=np.maximum(1, np.rint(shares * users)),
                    step_size=steps / shrinks**index,
                    noise_multiplier=_column([noise[index] for _, _, noise in tried]),
                    chains=_column([honest_chains(size, _lost(n[index], lost)) for size, n, _ in tried]),
                    lost=_column([_lost(n[index], lost) for _, n, _ in tried]),
                )
            )
        worst = np.asarray(course(problem, stages, inputs.factor).worst)
        rows = worst.reshape(len(tried), -1)
        for row, (chains, counts, _) in enumerate(tried):
            place = int(rows[row].argmin())
            if math.isfinite(risk := float(rows[row, place])):
                at = row * rows.shape[1] + place
                found[chains, counts] = Candidate(risk, (sum(counts),), _Tried(chains, tuple(stages), worst.shape, at))
    return found


def _column(numbers: Sequence[float]) -> Vector:
    """One for each size: the first of the four axes of what is predicted together."""
    return np.array(numbers, np.float64)[:, None, None, None]


def _sizes(problem: Problem, options: OutlierIterateOptions, least: int) -> Iterator[tuple[int, int]]:
    """(rounds, chains) to try: all users in use, unless options say otherwise."""
    if options.cohort_size:
        most = problem.users // options.cohort_size
        for rounds in [options.rounds] if options.rounds else _lengths(most) if most else []:
            if rounds <= most and options.cohort_size <= LARGEST_COHORT:
                yield rounds, options.cohort_size
        return
    for rounds in [options.rounds] if options.rounds else _lengths(problem.users):
        chains = min(problem.users // rounds, LARGEST_COHORT)
        if chains >= least:
            yield rounds, chains


def _lengths(most: int) -> list[int]:
    """Rounds to try, at most so many."""
    return [*round_grid(min(most, LARGEST_ROUNDS)), *(rounds for rounds in LONG_ROUNDS if rounds <= most)]


def _splits(rounds: int, options: OutlierIterateOptions) -> Iterator[tuple[int, ...]]:
    """Yield how many users of a chain each phase takes: equal and halving shares, and chains of one user."""
    seen = set()
    numbers: Sequence[int] = [options.phases] if options.phases else [*NUMBERS, *([rounds] if rounds <= 8 else [])]
    for number in [rounds] if options.broadcast else numbers:
        if number > rounds or (options.broadcast and options.phases not in (None, rounds)):
            continue
        halving = [2.0**-index for index in range(number)]
        for shares in ([1 / number] * number, [share / sum(halving) for share in halving]):
            counts = [max(1, int(share * rounds)) for share in shares]
            counts[0] += rounds - sum(counts)
            if counts[0] >= 1 and tuple(counts) not in seen:
                seen.add(tuple(counts))
                yield tuple(counts)


def _steps(problem: Problem, options: OutlierIterateOptions, users: int) -> list[float]:
    """Step sizes on single items: up to 2/β, and around radius / (lipschitz √T), where the bound is least."""
    if options.step_size:
        return [options.step_size]
    centre = problem.radius / (problem.lipschitz * math.sqrt(users * problem.items_per_user))
    if not problem.smoothness:
        return [float(centre * factor) for factor in np.geomspace(0.01, 30, STEPS)]
    largest = 2 / problem.smoothness
    return [float(step) for step in np.geomspace(min(largest / 1000, centre / 30), largest, STEPS)]


def _lost(users: float, lost: float) -> float:
    """Chance that one of a chain's users is adversarial or absent."""
    return float(1 - (1 - lost) ** users)


def _missing(inputs: _Inputs) -> Infeasible:
    problem, options, lost = inputs.problem, inputs.options, inputs.lost
    least = inputs.least
    if options.cohort_size and options.cohort_size < least:
        return Infeasible(
            NAME,
            f"cohort_size={options.cohort_size:,} chains are too few for the test",
            f"cohort_size >= {least:,} (C_min; better {3 * least:,})",
        )
    if options.cohort_size and options.cohort_size > LARGEST_COHORT:
        return Infeasible(
            NAME, f"cohort_size={options.cohort_size:,} is too large", f"cohort_size <= {LARGEST_COHORT:,}"
        )
    if options.phases and options.rounds and options.phases > options.rounds:
        return Infeasible(NAME, f"{options.rounds} rounds hold no {options.phases} phases", "at least a round a phase")
    rounds = options.rounds or options.phases or 1
    chains = options.cohort_size or max(least, 1)
    if rounds * chains > problem.users:
        return Infeasible.too_few(
            NAME,
            f"n={problem.users:,} users fill {rounds:,} rounds with {problem.users // rounds:,} chains, and the test "
            f"needs {chains:,} (C_min)",
            rounds * chains,
            also=", or fewer rounds",
        )
    return Infeasible(
        NAME,
        f"chains of {rounds:,} users lose too many when {100 * lost:g} % of users may be hostile or absent",
        "more phases, fewer rounds, or a smaller tolerance",
    )


def honest_chains(chains: int, lost: float) -> int:
    """Chains that are counted on when each is lost with this chance: three standard deviations below the mean."""
    return chains - math.ceil(chains * lost + 3 * math.sqrt(chains * lost * (1 - lost)))


def count_slack(chains: int, lost: float) -> int:
    """By how much the average count misses `chains` in a phase whose chains are lost with this chance, rounded up.

    SLACK of the pairs of honest chains are not close.
    """
    score = math.floor((1 - SLACK) * max(0, honest_chains(chains, lost)) ** 2)
    return -(-(chains**2 - score) // chains)


SPEC = AlgorithmSpec(
    name=NAME,
    summary="Chains of local SGD, outlier iterates removed, few private means; noise falls as 1/√m",
    origin=repaired(LOWY_2024.at("Algorithm 1"), note="another ramp of weights; a phase that halts keeps its start"),
    guarantees=Guarantees(
        THEOREM,
        trust_models=("central-release", "central-broadcast"),
        one_server="its test and its filter look at single answers: take tracking-srgd",
    ),
    options=OutlierIterateOptions,
    parameters=OutlierIterateParameters,
    planner=Planner(
        NAME, _candidates, _chosen, _missing, trivial_risk, ", or more items of each", NEAR, inputs=_Inputs
    ),
    verifier=verify,
    maker=OutlierIterates,
    printed=lowy_iterates.PRINTED,
    factor=Factor(known=1.5, unknown=1.5),
    no_black_boxes=ITERATES,
    policy=Policy(removes_outliers=True),
)

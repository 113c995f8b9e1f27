"""Localisation: phases of projected SGD on fresh, disjoint users, each ending in one noisy release.

    x_0 = 0
    for phase s:                                  (Ghazi et al. Algorithm 1; Feldman, Koren & Talwar 2020, Algorithm 2)
        x = x_{s-1}
        for t = 1..T_s:   g = estimate(gradients of the next B users at x);   x = Proj(x - η_s g)
        x_s = Proj(Σ_t w_t x_t + N(0, σ_s² I))    if passes(tally) else x_{s-1}      (HALT)

What differs between algorithms is how a cohort's gradients become one, and whether the phase may release. Those that
look at no single answer, means with a fixed divisor (Feldman, Koren & Talwar 2020), are here.

The weights w_t are uniform on the last `suffix` iterates: any public combination is as private as the plain average,
because the coupling bounds every iterate (docs/privacy/outlier-filter.md#f1). A phase that will halt goes on asking its
users: nothing visible, neither timing nor the schedule, depends on data before the phase's end.

Plans of localised SGD: phases, steps and cohort sizes by predicted risk, and what rules without outliers share.

The papers' factor 4 and log n phases are for the proof of a rate; privacy holds for every public choice, so the plan
takes the one with the least predicted risk (docs/privacy/outlier-filter.md).

`phased-sgd`, the naive alternative to filtering, is planned here. One phase of SGD with cohorts of B users is
non-expansive for convex, smooth losses. Replacing one user moves one step by at most 2Lη/B, and so every later iterate,
and any public average, by at most 2Lη/B. One Gaussian release a phase, disjoint users: exactly μ-GDP. Gradients must
not be clipped: clipping breaks contraction, and so do clients that choose by the iterate whether to answer. Source:
Feldman, Koren & Talwar (2020), Algorithm 2. Statement and proof: docs/privacy/phased-sgd.md.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from quoron_client.protocol.questions import Answers, PlacedGradient, Question
from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Matrix
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.release import Adjacency, Release
from quoron_privacy.robust.coordinate_median import MedianParameters
from quoron_privacy.robust.filter.concentration import recounted_error
from quoron_privacy.robust.filter.outlier_filter import FilterParameters
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms import noisy, search
from quoron_server.algorithms.averaged_sgd import PhaseModel, excess_risks, step_grid, suffix_shares
from quoron_server.algorithms.descent import Descent, Estimate, State
from quoron_server.algorithms.references import FELDMAN_2020, theirs
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.spec import ITERATES, AlgorithmSpec, Calibrated, Factor, Guarantees
from quoron_server.parameters import ContractingPhases
from quoron_server.plan import MAX_ROUNDS, RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds, count_beside, gradients


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase's public numbers."""

    rounds: int  # T_s
    step_size: float  # η_s
    suffix: int  # the last so many iterates are averaged
    sensitivity: float  # b: one user replaced moves the average by at most this, in ℓ2
    release_scale: float  # σ_s, standard deviation per coordinate; 0 releases without noise

    @classmethod
    def of(cls, model: PhaseModel, shift_per_step: float) -> "Phase":
        """Return a phase as a run has it; `shift_per_step` is b / η, the sensitivity per unit of step size."""
        shift = model.step_size * shift_per_step
        return cls(model.rounds, model.step_size, model.suffix, shift, model.release_scale)

    @property
    def noise(self) -> GaussianNoise | None:
        """Of the phase's release."""
        return GaussianNoise(self.sensitivity, self.release_scale) if self.release_scale else None

    def entry(self, index: int) -> Release:
        """Return the ledger entry of the phase's release, or of its having none."""
        return Release("phase", {"phase": index, "scale": self.release_scale, "sensitivity": self.sensitivity})


@dataclass(frozen=True, slots=True)
class LocalisedParameters(ContractingPhases):
    """What all runs in phases of equal cohorts have in common."""

    cohort_size: int  # B
    phases: tuple[Phase, ...]


Numbers = TypeVar("Numbers", bound=ContractingPhases)


@dataclass(frozen=True, slots=True, eq=False)
class LocalisedState(State):
    """Everything between two rounds."""

    released: Vector  # x_{s-1}
    tally: float  # the phase's test statistic, which starts at 0 and never falls


class LocalisedSGD(Descent[Numbers, LocalisedState]):
    """Any run in phases, but for how answers become one gradient."""

    def init(self) -> LocalisedState:
        """Start at zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return LocalisedState(0, zero, zero, zero, 0.0)

    def passes(self, tally: float, noise: NoiseSource, phase: int) -> bool:
        """Return whether phase number `phase`, with this test statistic, may release: always."""
        return True

    def ended(self, update: Update[LocalisedState], noise: NoiseSource, phase: int) -> Update[LocalisedState]:
        """Release the average of a phase that passes; the next one begins there, or where this one did."""
        state, numbers = update.state, self.phases[phase]
        released, passed = state.released, self.passes(state.tally, noise, phase)
        if passed:
            average = state.running
            if (mechanism := numbers.noise) is not None:
                average = mechanism.release(average, noise.stream("release", phase))
            released = self.plan.problem.domain.project(average)
        begun = LocalisedState(state.round, released, np.zeros_like(released), released, 0.0)
        public = {**update.public, "halted": not passed}
        return replace(update, state=begun, releases=(numbers.entry(phase),), public=public)

    def model(self, state: LocalisedState) -> Vector:
        """Return the last release."""
        return state.released

    def iterate(self, state: LocalisedState) -> Vector:
        """Return the point of the next question."""
        return state.iterate


@dataclass(frozen=True, slots=True)
class PhasedParameters(LocalisedParameters):
    """Public numbers of one run."""

    mu: float  # GDP parameter of every phase, as computed

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """One noisy average a phase, which a user moves half as far by staying away as by being another."""
        for index, phase in enumerate(self.phases):
            made = RoundRelease(phase.noise, phase.entry(index), self.mu, at_end=True)
            yield Rounds(phase.rounds, self.cohort_size, gradients(problem), (made,), leaks=count_beside(phase.noise))


class PlainMean(LocalisedSGD[ContractingPhases]):
    """The mean with the fixed divisor of each round: absent users contribute zero."""

    kind: type[ContractingPhases] = ContractingPhases

    def divisor(self, round_: int) -> int:
        """Return how many users a round asks."""
        return self.parameters.cohort_size

    def estimate(self, state: LocalisedState, answers: Answers, noise: NoiseSource) -> Estimate:
        """(1/B) Σ of the answers; absent rows are zero, and so are rows that no honest client can send."""
        with np.errstate(over="ignore"):  # an overflow is longer than anything, silently: nothing in the data may warn
            lengths = np.sqrt(np.sum(answers.values**2, axis=1))
        usable = answers.answered & (lengths <= self.plan.problem.lipschitz * (1 + 1e-6))
        columns = np.ascontiguousarray(np.where(usable[:, None], answers.values, 0.0).T)
        # numpy adds contiguous numbers pairwise: the error stays below 1e-6 of b for any cohort that fits in memory
        return Estimate(np.sum(columns, axis=1) / self.divisor(state.round))


@dataclass(frozen=True, slots=True)
class Share:
    """Which places of all users a phase uses: so many from `first_place` on, all in one question to each user."""

    first_place: int
    places: int  # k: of each user
    rounds: int  # cohorts into which the users are cut; those that are left over are never asked
    cohort_size: int  # users asked in a round


@dataclass(frozen=True, slots=True)
class GroupedParameters(ContractingPhases):
    """Public numbers of one run on the items of users."""

    phases: tuple[Phase, ...]
    shares: tuple[Share, ...]  # of each phase
    mus: tuple[float, ...]  # GDP parameter of each phase's release
    mu: float  # and of the run

    @property
    def cohort_size(self) -> int:
        """Users asked in the first round."""
        return self.shares[0].cohort_size

    def share_of(self, round_: int) -> tuple[Share, int]:
        """Return the share that a round belongs to, and its number among that share's rounds."""
        for share in self.shares:
            if round_ < share.rounds:
                return share, round_
            round_ -= share.rounds
        raise IndexError(round_)

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """One noisy average a phase, of gradients at its places."""
        for index, (phase, share, mu) in enumerate(zip(self.phases, self.shares, self.mus, strict=True)):
            places, point = np.arange(share.places, dtype=np.int64)[None, :], np.zeros((1, problem.dimension))
            task = PlacedGradient(point, places, float(share.places), None, share.places)
            made = RoundRelease(phase.noise, phase.entry(index), mu, at_end=True)
            yield Rounds(share.rounds, share.cohort_size, task, (made,), fresh=False)


class PlacedMean(PlainMean):
    """The same of gradients at the places of a round's phase, for a plan with GroupedParameters."""

    kind = GroupedParameters

    def divisor(self, round_: int) -> int:
        """Return how many users a round asks."""
        return self.plan.parameters_of(GroupedParameters).share_of(round_)[0].cohort_size

    def question(self, state: LocalisedState, noise: NoiseSource) -> Question:
        """Return what is asked at the iterate: gradients at all places of the phase, of the next users."""
        share, cohort = self.plan.parameters_of(GroupedParameters).share_of(state.round)
        order, first = partition(seed=self.plan.seed, users=self.plan.problem.users), cohort * share.cohort_size
        rows = np.tile(share.first_place + np.arange(share.places, dtype=np.int64), (share.cohort_size, 1))
        task = PlacedGradient(state.iterate[None, :], rows, float(share.places), None, share.places)
        return Question(state.round, order[first : first + share.cohort_size], task)


# The numbers of a filter or a test that its theorem is about.
Filter = FilterParameters | MedianParameters


ReleaseScale = Callable[[Vector, Vector], Vector]  # (cohort sizes, largest steps) -> σ / η of every phase, or inf

STEEPEST = 2.0  # times the step that balances one phase's bound, the largest that is tried

NAME = "phased-sgd"
LARGEST_ROUNDS = 2048
FAILURE = 1e-2  # probability that a proved distance leaves out some ordinary user


@dataclass(frozen=True, slots=True)
class SizedOptions:
    """Planning options of all that ask disjoint cohorts; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # exactly; the cohort is then n / rounds, unless it is given too
    cohort_size: int | None = None
    step_size: float | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """Cohort size and the phases' models."""

    cohort_size: int  # B
    phases: tuple[PhaseModel, ...]

    @property
    def largest_step(self) -> float:
        """The first phase's step size; later ones are no larger."""
        return float(max(phase.step_size for phase in self.phases))


@dataclass(frozen=True, slots=True)
class Shape:
    """How users are split over phases, and how the step shrinks from one to the next."""

    shares: tuple[float, ...]  # of the rounds, per phase, summing to 1
    shrink: float


def shapes(numbers: Iterable[int] = (1, 2, 3), shrinks: Iterable[float] = (1.5, 2.0, 3.0, 4.0)) -> Iterator[Shape]:
    """Phases with equal shares and with halving shares."""
    for number in numbers:
        if number == 1:
            yield Shape((1.0,), 1.0)
            continue
        halving = [2.0**-phase for phase in range(number)]
        for shrink in shrinks:
            yield Shape((1 / number,) * number, shrink)
            yield Shape(tuple(share / sum(halving) for share in halving), shrink)


def best_schedule(
    problem: Problem,
    cohort_sizes: Sequence[int],
    release_scale: ReleaseScale,
    *,
    rounds: int | None = None,
    all_shapes: Iterable[Shape] | None = None,
    step_size: float | None = None,
    steps: Sequence[float] | None = None,
) -> list[Candidate[Schedule]]:
    """Return the schedule of least predicted risk, over every cohort size, shape, step and suffix on the grid.

    Without `rounds` there are as many as the users fill; `step_size` is the only step, else there are `steps`, else
    those of `step_grid`. Empty where no candidate has both noise and users enough.
    """
    steps = [step_size] if step_size else steps
    grid = [
        (cohort, total, step)
        for cohort in cohort_sizes
        if 1 <= (total := rounds or problem.users // cohort) <= MAX_ROUNDS
        for step in steps or steps_for(problem, cohort, total)
    ]
    if not grid and any(problem.users // cohort > MAX_ROUNDS for cohort in cohort_sizes):
        raise ConfigError(
            f"Expected cohort_size >= {-(-problem.users // MAX_ROUNDS):,} with n={problem.users:,} users, got "
            f"{max(cohort_sizes):,}: plans have at most {MAX_ROUNDS:,} rounds."
        )
    if not grid:
        return []
    cohorts, totals, largest = np.array(grid, np.float64).T
    scales = release_scale(cohorts, largest)
    feasible = np.isfinite(scales)
    pairs = np.array([cohorts, totals, largest, scales])[:, feasible]
    shapes_of: dict[int, list[Shape]] = {}  # by number of phases
    usual = (
        shapes() if problem.beliefs.curvature == "isotropic" else shapes((1, 2, 3, 4), (1.5, 2.0, 3.0, 4.0, 8.0, 16.0))
    )
    for shape in usual if all_shapes is None else all_shapes:
        shapes_of.setdefault(len(shape.shares), []).append(shape)
    found = [_best_of(problem, pairs, alike) for alike in shapes_of.values() if feasible.any()]
    risk, schedule = min(found, key=lambda entry: entry[0], default=(math.inf, None))
    return [] if schedule is None else [Candidate(risk, (), schedule)]


def steps_for(problem: Problem, cohort: int, rounds: int) -> list[float]:
    """Steps of the first phase to try: `step_grid`, but up to where noise of the gradients forbids more.

    Where curvature is unknown the bound is least at distance / (V/√(Bm) √T) or below, by the noise of releases.
    """
    if problem.beliefs.curvature == "isotropic":
        return step_grid(problem, rounds)
    largest = STEEPEST * problem.distance / (problem.user_deviation * math.sqrt(rounds / cohort))
    if problem.beta:
        largest = min(largest, 1 / problem.beta)
    least = min(largest / 100, problem.distance / (10 * problem.lipschitz * math.sqrt(rounds)))
    return [float(step) for step in np.geomspace(least, largest, 33)]


def _best_of(problem: Problem, pairs: Matrix, alike: Sequence[Shape]) -> tuple[float, Schedule | None]:
    """The best of all pairs with all shapes, which have equally many phases; arrays are (shapes, pairs, suffixes).

    Pairs are columns of cohorts, rounds, steps of the first phase and σ / η.
    """
    cohorts, totals, steps, scales = pairs[:, :, None]
    shares = np.array([shape.shares for shape in alike]).T[:, :, None, None]
    shrinks = np.array([shape.shrink for shape in alike])[:, None, None]
    counts = np.floor(shares * totals)
    possible = counts.min(axis=0) >= 1
    counts[0] += totals - counts.sum(axis=0)
    fractions = np.maximum(1, np.rint(totals * np.array(suffix_shares(problem)))) / totals
    phases = [
        PhaseModel(
            rounds=np.maximum(1, count),
            step_size=steps / shrinks**index,
            suffix=np.maximum(1, np.rint(count * fractions)),
            step_variance=problem.user_deviation**2 / cohorts,
            release_scale=scales * steps / shrinks**index,
        )
        for index, count in enumerate(counts)
    ]
    risks = np.where(possible, excess_risks(problem, phases), np.inf)
    place = np.unravel_index(np.argmin(risks), risks.shape)
    if not possible[place[0], place[1], 0]:
        return math.inf, None
    chosen = tuple(phase.at(place, risks.shape) for phase in phases)
    return float(risks[place]), Schedule(int(cohorts[place[1], 0]), chosen)


def cohorts(inputs: PlanInputs[Any], rounds: Iterable[int], *, least: int = 1, most: int = 10**12) -> Sequence[int]:
    """Cohort sizes to try: what options fix, else those from `least` to `most` that fill so many `rounds`.

    Infeasible if there are too few users for as many disjoint cohorts as options fix.
    """
    problem, options = inputs.problem, inputs.options
    total, size = options.rounds or 1, options.cohort_size or 1
    if (enough := total * size) > problem.users:
        many = "a cohort" if total == 1 else f"{total:,} cohorts"
        condition = f"n={problem.users:,} users cannot fill {many} of {size:,}"
        raise Infeasible.too_few(inputs.name, condition, enough, also=", or fewer rounds")
    if options.cohort_size or options.rounds:
        return [options.cohort_size or problem.users // options.rounds]
    return sorted(size for size in {problem.users // total for total in rounds} if least <= size <= most)


def require_contraction(plan: RunPlan) -> None:
    """Every step satisfies ηβ ≤ 2, and the phases use disjoint users."""
    beta = plan.problem.beta or 0.0
    p = plan.parameters_of(ContractingPhases)
    for phase in p.phases:
        if not (phase.step_size > 0 and phase.release_scale >= 0 and 1 <= phase.suffix <= phase.rounds):
            raise VerificationError(f"Expected positive steps and 1 <= suffix <= rounds in every phase, got {phase}.")
    if p.cohort_size < 1:
        raise VerificationError(f"Expected cohort_size >= 1, got {p.cohort_size}.")
    steep = max((phase.step_size for phase in p.phases), default=0.0) * beta
    if not steep <= 2:
        raise VerificationError(f"Expected step_size * smoothness <= 2 in every phase, got {steep}.")
    asked = sum(phase.rounds for phase in p.phases) * p.cohort_size
    if asked > plan.problem.users:
        raise VerificationError(
            f"Expected at most {plan.problem.users} users in disjoint cohorts, the plan asks {asked}."
        )


def release_scale(filter_: Filter, step: float, length: float, dimension: int) -> float:
    """σ of one phase's release: the theorem's, with room for the release's grid and the iterates' rounding."""
    return filter_.noise_scale(step, length) * (1 + 1e-6 * math.sqrt(dimension))


def behind_filter(
    kind: Callable[..., LocalisedParameters],
    problem: Problem,
    schedule: Schedule,
    filter_: Filter,
    distance: float,
    stretch: float = 1.0,
    **own: Any,
) -> Calibrated:
    """Return a schedule with the filter's noise, as `kind` of parameters, `own` ones too.

    Ordinary users' average gradients lie within `distance` of one another, in a norm in which a vector of length 1 is
    at most `stretch` long in ℓ2.
    """
    length, d = distance * stretch, problem.dimension
    phases = [
        replace(phase, release_scale=release_scale(filter_, phase.step_size, length, d)) for phase in schedule.phases
    ]
    numbers = kind(
        cohort_size=schedule.cohort_size,
        phases=tuple(Phase.of(phase, filter_.sensitivity(1.0, length)) for phase in phases),
        temperature=filter_.temperature(distance),
        distance=distance,
        **own,
    )
    return Calibrated(numbers, float(excess_risks(problem, phases)))


def require_of_phases(
    plan: RunPlan,
    filter_: Filter,
    beta: float,
    distance: float,
    temperature: float,
    weight: float,
    rounding: float = 0.0,
    stretch: float = 1.0,
) -> None:
    """Check what the theorems about filters and tests need of the phases; VerificationError names what fails.

    `distance` and `temperature` are the plan's, and β that of the problem, in the norm of `behind_filter`. The σ is
    that of s where an estimate has total weight `weight` at least, or 1 where the theorem has none. A score is off by
    `rounding`, beside the arithmetic of κ.
    """
    search.require_smooth(plan.algorithm, plan.problem)
    require_contraction(plan)
    p, dimension = plan.parameters_of(ContractingPhases), plan.problem.dimension
    error = recounted_error(p.cohort_size, dimension) + rounding
    scale = filter_.noise_multiplier * distance * stretch / (filter_.theta * weight)  # of a step of 1; two grids:
    scale += scale * 0.999e-6 * math.sqrt(dimension)
    search.require_of(
        plan.algorithm,
        p,
        ("the filter's cohort_size = cohort_size", filter_.cohort_size == p.cohort_size),
        ("temperature = theta / distance", math.isclose(temperature, filter_.theta / distance, rel_tol=1e-12)),
        ("eta_beta >= step_size * smoothness", all(f.step_size * beta <= filter_.eta_beta for f in p.phases)),
        (f"score_error >= {error}, that of rounding", filter_.score_error >= error),
        ("release_scale = noise_scale of the theorem", all(f.release_scale >= f.step_size * scale for f in p.phases)),
    )


def _candidates(inputs: PlanInputs[SizedOptions]) -> list[Candidate[Schedule]]:
    problem, options = inputs.problem, inputs.options
    sizes = cohorts(inputs, round_grid(max(1, min(problem.users, LARGEST_ROUNDS))))

    def scale(tried: Vector, _steps: Vector) -> Vector:
        distinct, which = np.unique(tried, return_inverse=True)
        shifts = (shift_per_step(problem, int(cohort)) for cohort in distinct)
        noise = [noisy.noise_scale(shift, problem, inputs.privacy) for shift in shifts]
        return np.array(noise)[which]

    some = list(shapes((1, 2, 3, 5), (2.0, 4.0)))
    return best_schedule(problem, sizes, scale, rounds=options.rounds, all_shapes=some, step_size=options.step_size)


def _chosen(inputs: PlanInputs[SizedOptions], found: Candidate[Schedule]) -> Calibrated:
    schedule, problem = found.of, inputs.problem
    first, shift = schedule.phases[0], shift_per_step(problem, schedule.cohort_size)
    mu = GaussianNoise(first.step_size * shift, first.release_scale).effective_mu(problem.dimension)
    phases = tuple(Phase.of(phase, shift) for phase in schedule.phases)
    return Calibrated(PhasedParameters(schedule.cohort_size, phases, mu), found.risk)


def shift_per_step(problem: Problem, cohort_size: int) -> float:
    """b / η = 2L/B, with room for rows up to L (1 + 1e-6), and as much for the rounding of sums and iterates."""
    return 2 * problem.lipschitz / cohort_size * (1 + 2e-6)


def verify(plan: RunPlan) -> None:
    """Contraction, sensitivity 2Lη/B in every phase, and a μ that gives (ε, δ)."""
    p = plan.parameters_of(PhasedParameters)
    search.require_smooth(NAME, plan.problem)
    require_contraction(plan)
    for phase in p.phases:
        needed = shift_per_step(plan.problem, p.cohort_size) * phase.step_size
        if phase.noise is None:
            raise VerificationError(f"Expected noise in every phase of {NAME}, got {phase}.")
        search.require_least(NAME, "sensitivity", phase.sensitivity, needed)


def pairs(p: PhasedParameters, problem: Problem, adjacency: Adjacency) -> tuple[DominatingPair, ...]:
    """A run is as private as its least private phase; only the release of the own user's phase has to be exact."""
    far = 2 * problem.lipschitz / p.cohort_size * (1 + 2e-6)  # room for long rows, and for sums and iterates
    mus = (sensitivity_recount.mu(far * phase.step_size, phase.release_scale, problem.dimension) for phase in p.phases)
    return (DominatingPair.gaussian(max(mus), total_variation(gaussians=problem.dimension)),)


def moves(p: PhasedParameters, problem: Problem) -> list[float]:
    """min-cohort#q4: of the average of each phase, by one answer."""
    far = 2 * problem.lipschitz / p.cohort_size * (1 + 2e-6)
    found = [(far * phase.step_size / phase.release_scale, phase.rounds) for phase in p.phases]
    return [once for once, rounds in found for _ in range(rounds)]


SPEC = AlgorithmSpec(
    name=NAME,
    summary="Phases of SGD on fresh users, one noisy release a phase; no filter",
    origin=theirs(
        FELDMAN_2020.at("Algorithm 2"), note="cohorts of users in place of single examples; their text was not at hand"
    ),
    guarantees=Guarantees(
        "docs/privacy/phased-sgd.md",
        pairs,
        moves=moves,
        trust_models=("central-release",),
        one_server="its iterates have no noise within a phase, and the coordinator would see them: take "
        "accelerated-srgd or tracking-srgd",
    ),
    options=SizedOptions,
    parameters=PhasedParameters,
    planner=Planner(NAME, _candidates, _chosen, check=lambda inputs: search.require_smooth(NAME, inputs.problem)),
    verifier=verify,
    maker=PlainMean,
    factor=Factor(known=2.5, unknown=11.0),
    no_black_boxes=ITERATES,
)

"""Noisy SGD whose gradient estimate is a private mean, clipped around a centre: one loop for two algorithms.

    c_t       mean-sgd: a private range of this round's rotated gradients
              recentred-sgd: the last release g_{t-1}
    g_t       c_t + (1/B) Σ_{u in cohort t} clip_{C_t}(∇F_u(x_t) - c_t) + N(0, (C_t σ)² I)
    x_{t+1}   Proj(x_t - η g_t);                         model: mean of the last `suffix` iterates

Cohorts are drawn by the secret noise, afresh in every round: for a range B users without replacement, else each user by
a coin. Every round, given its cohort and all earlier releases, is μ-GDP: the range by its choices, the rest by its
Gaussian. Losses whose slope jumps are replaced by their Moreau envelope on request, or where centres need a smooth
loss.

Source: `mean-sgd` is Bassily & Sun (2023), Algorithm 4 with the mean of Algorithm 1, noise once around the centre that
was released; the centre of `recentred-sgd` is ours. As printed: `printed.bassily_sun`. Statement and proof:
docs/privacy/mean-sgd.md.

Plans of `mean-sgd` and `recentred-sgd`: centre, cohort, rounds, step by predicted risk; noise by exact accounting.

A round, given its cohort and the past, is μ-GDP with μ² = d₂ μ_BR(ε₁)² + μ_g²; T of them are on uniform
cohorts or, without a range, on cohorts by coins. A central limit ranks candidates and sets no noise.

Source: docs/privacy/mean-sgd.md#ms1.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from quoron_client.protocol.questions import Answers, summed
from quoron_client.protocol.smoothing import moreau
from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Integers
from quoron_privacy.errors import Infeasible
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means import private_range
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.private_range import PrivateRange
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency, NoisySums, Release, Sums
from quoron_server.algorithm import Vector
from quoron_server.algorithms import centring, search
from quoron_server.algorithms.averaged_sgd import RATES, PhaseModel, best_phases, require_cohorts, smoothed, smoothings
from quoron_server.algorithms.centring import margin, next_radius, public_signs
from quoron_server.algorithms.descent import Estimate, State, diagnosed
from quoron_server.algorithms.noisy import (
    DRAWN,
    DrawnCohorts,
    OnDrawnCohorts,
    Sampling,
    count_room,
    moved_by,
    pairs_of_rounds,
    ranked_mu,
    schedule_of,
    with_count,
)
from quoron_server.algorithms.printed import bassily_sun
from quoron_server.algorithms.references import BASSILY_SUN_2023, ours, repaired
from quoron_server.algorithms.search import NEAR, Candidate, PlanInputs, Planner, best, round_grid
from quoron_server.algorithms.spec import (
    UNMEASURED,
    AlgorithmSpec,
    Calibrated,
    Factor,
    Guarantees,
    Policy,
    statistical_floor,
)
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import MaskedRows, RoundRelease, Rounds, clipped_row, count_beside, gradients


@dataclass(frozen=True, slots=True)
class MeanSGDParameters(DrawnCohorts):
    """Public numbers of one run."""

    sampling: Sampling  # how cohorts are drawn
    cohort_size: int  # B
    rounds: int  # T
    step_size: float  # η
    suffix: int  # iterates averaged
    first_radius: float  # C_0, and with ranges C_t of all rounds
    noise_scale: float  # σ: noise per coordinate of g_t for a radius of 1
    spread: float  # s, of users' averages around their mean
    sampling_variance: float  # of a cohort's mean
    smoothness: float  # M: how fast gradients are taken to change
    smoothing: float  # λ; 0 without
    crude: PrivateRange | None  # of a round; None without ranges
    # Each round, given its cohort and the past, is this GDP, one user replaced, or there against absent with coins.
    round_mu: float

    @property
    def noise(self) -> GaussianNoise:
        """For means of unit rows."""
        moved: Adjacency = "zero-out" if self.poisson_sampling else "replace-one"
        return GaussianNoise(mean_sensitivity(1.0, self.cohort_size, moved), self.noise_scale)

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return a mean in every round, in proportion to the round's radius, behind a range where there is one.

        A range chooses by whole histograms.
        """
        noise, crude, d = self.noise, self.crude, problem.dimension
        mean = RoundRelease(noise, noise.entry(), self.answer_mu, scaled=True)
        blocks = clipped_row(d, 1 / self.cohort_size / self.noise_scale)
        return (
            Rounds(
                self.rounds,
                self.cohort_size,
                gradients(problem, smoothing=moreau(self.smoothing)),
                (mean,) if crude is None else (RoundRelease(crude, crude.entry(d), self.round_mu), mean),
                often=self.rounds,
                leaks=count_beside(None if self.poisson_sampling else noise),
                summed=crude is None,
                rows=MaskedRows(self.adjacency, blocks) if crude is None else None,
            ),
        )


@dataclass(frozen=True, slots=True, eq=False)
class MeanSGDState(State):
    """Everything between two rounds; all of it is released."""

    centre: Vector  # c_t, unless a range finds it in the round
    radius: float  # C_t


class MeanSGD(OnDrawnCohorts[MeanSGDParameters, MeanSGDState]):
    """Algorithm object for a plan with MeanSGDParameters, of `mean-sgd` or `recentred-sgd`."""

    kind = MeanSGDParameters

    def init(self) -> MeanSGDState:
        """Start at zero, and expect gradients around zero."""
        zero = np.zeros(self.plan.problem.dimension)
        return MeanSGDState(0, zero, zero, zero, self.parameters.first_radius)

    def reduction(self, state: MeanSGDState) -> ClippedSum | None:
        """Return the sum of gradients clipped around the centre; a range reads every row."""
        p = self.parameters
        return ClippedSum(state.radius, p.cohort_size, state.centre) if p.crude is None else None

    def estimate(self, state: MeanSGDState, answers: Answers | Sums, noise: NoiseSource) -> Estimate:
        """Return the mean around its centre."""
        p, t, centre, radius = self.parameters, state.round, state.centre, state.radius
        entries: tuple[Release, ...] = (p.noise.entry().scaled(radius),)
        if (crude := p.crude) is not None:
            assert isinstance(answers, Answers)
            signs = public_signs(self.plan.seed, t, len(centre))
            centre = crude.release(answers.values, answers.answered, signs, noise.stream("range", t))
            entries = (crude.entry(len(centre)), *entries)
        around = ClippedSum(radius, p.cohort_size, centre)
        sums = summed(answers, around)
        mean = sums if isinstance(sums, NoisySums) else around.unit_mean(sums)
        gradient = centre + radius * p.noise.release(mean, noise.stream("release", t))
        return Estimate(gradient, entries, {"radius": radius}, diagnosed(sums))

    def step(self, state: MeanSGDState, gradient: Vector, phase: MeanSGDParameters) -> MeanSGDState:
        """Without ranges the next gradients are expected around this one, within a radius that follows the step."""
        after, d = super().step(state, gradient, phase), len(gradient)
        if phase.crude is not None:
            return after
        variance = phase.sampling_variance + d * (state.radius * phase.noise_scale) ** 2
        drift = phase.smoothness * float(np.linalg.norm(after.iterate - state.iterate))
        radius = next_radius(phase.spread, variance, drift, margin(d), phase.first_radius)
        return replace(after, centre=gradient, radius=radius)


NAME, RECENTRED = "mean-sgd", "recentred-sgd"
THEOREM = "docs/privacy/mean-sgd.md#ms1"
COINS = "docs/privacy/mean-sgd.md#ms3"
SMALLEST_ROUNDS, LARGEST_ROUNDS = 4, 1024
LATE = (0.5, 0.25)  # shares of the iterates that may be averaged where the curvature is unknown, beside all
WORST_SIGNAL = 0.3002  # max over a of a(1 - a/√(1 + a²)): what an error of 1 in a linear loss's gradient leaves at most
STEPS = 17  # of a linear loss that are tried
WIDER = (1.0, 2.0, 4.0, 8.0)  # times the reach of users, tried for the bins of a range
FAILURE = 1e-3  # chance that a private range misses in any round


@dataclass(frozen=True, slots=True)
class MeanSGDOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    rate: float | None = search.within(1e-12, 1.0)  # B / n
    step_size: float | None = None
    clip_norm: float | None = None  # C_0, from public knowledge, never tuned on protected data
    smoothing: float | None = None  # λ of the Moreau envelope, for losses whose slope jumps


@dataclass(frozen=True, slots=True)
class _Settings:
    """What is chosen of a run."""

    sampling: Sampling
    rate: float
    smoothing: float
    phase: PhaseModel


@dataclass(frozen=True, slots=True)
class _Inputs(PlanInputs[MeanSGDOptions]):
    """What a plan is made from."""

    @property
    def ranged(self) -> bool:
        """Whether centres are private ranges."""
        return self.name == NAME

    def cohort(self, rate: float) -> int:
        """Return users asked in a round."""
        return max(1, round(rate * self.problem.users))

    def sampling(self, rate: float) -> Sampling:
        """Return how cohorts are drawn: by coins, which need less noise, where there is no range and not everybody."""
        if self.privacy.adjacency == "zero-out":
            return "poisson"
        return "without-replacement" if self.ranged or rate == 1 else "poisson-replaced"


def verify(plan: RunPlan) -> None:
    """Radius-free noise and the choices of the range are as private as they claim; all rounds: the registry."""
    p, name = plan.parameters_of(MeanSGDParameters), plan.algorithm
    users, ranged = plan.problem.users, plan.algorithm == NAME
    rough = plan.problem.smoothness is None
    search.require(
        name,
        ("cohorts that are drawn", p.sampling in DRAWN, p.sampling),
        ("no range of cohorts by coins", not (p.poisson_sampling and ranged), p.sampling),
        (f"1 <= cohort_size <= {users}", 1 <= p.cohort_size <= users, p.cohort_size),
        ("1 <= suffix <= rounds", 1 <= p.suffix <= p.rounds, p.suffix),
        (f"a range exactly in {NAME}", ranged == (p.crude is not None), p.crude),
        ("a first radius in (1e-140, 1e140)", 1e-140 < p.first_radius < 1e140, p.first_radius),
        ("a finite smoothness", 0 <= p.smoothness < math.inf, p.smoothness),
        (
            "smoothing only of a loss whose slope jumps",
            p.smoothing == 0 or (rough and p.smoothing > 0),
            p.smoothing,
        ),
    )
    search.require_least(name, "round_mu", p.round_mu, recounted_mu(p, plan.problem.dimension))


def pairs(p: MeanSGDParameters, problem: Problem, adjacency: Adjacency) -> tuple[DominatingPair, ...]:
    """Of drawn cohorts, or of everybody in every round."""
    mu = recounted_mu(p, problem.dimension)
    return pairs_of_rounds(p, problem, adjacency, mu, problem.dimension)


def recounted_mu(p: MeanSGDParameters, dimension: int) -> float:
    """GDP of a round given its cohort, by its scales: a mean of unit rows, and the choices of a range."""
    how: Adjacency = "zero-out" if p.poisson_sampling else "replace-one"
    mean = sensitivity_recount.mu(sensitivity_recount.rows(1.0, p.cohort_size, how), p.noise_scale, dimension)
    return mean if p.crude is None else sensitivity_recount.behind_choices(mean, dimension, p.crude.epsilon)


def moves(p: MeanSGDParameters, problem: Problem) -> list[float]:
    """Return how far one user moves the mean of unit rows in each round (min-cohort#q4).

    The choices of a range are charged separately, for any participation.
    """
    return [sensitivity_recount.rows(1.0, p.cohort_size, "replace-one") / p.noise_scale] * p.rounds


def _check(inputs: _Inputs) -> None:
    if inputs.privacy.adjacency == "zero-out" and inputs.ranged:
        raise Infeasible(NAME, "nothing is proved of a private range under zero-out", "privacy.adjacency=replace-one")
    require_cohorts(inputs.name, inputs.problem, 1)


def _candidates(inputs: _Inputs) -> Iterator[Candidate[list[_Settings]]]:
    """The fewest answers among about the best; where that draws, everybody's, too."""
    found = _tried(inputs)
    if (first := best(found)) is None:
        return
    everybody = best(candidate for candidate in found if candidate.of.rate == 1)
    others = [] if everybody is None or everybody is first else [everybody.of]
    yield Candidate(first.risk, first.price, [first.of, *others])


def _chosen(inputs: _Inputs, found: Candidate[list[_Settings]]) -> Calibrated:
    drawn, *everybody = (_calibrated(inputs, run) for run in found.of)
    for other in everybody:  # whose noise was ranked as it is; that of drawn cohorts by a central limit
        assert drawn.risk is not None
        assert other.risk is not None
        if other.risk * NEAR < drawn.risk:
            return other
    return drawn


def _missing(inputs: _Inputs) -> Infeasible:
    """Only a range can fail: it needs users enough for half of a round's μ."""
    users, d = inputs.problem.users, inputs.problem.dimension
    condition = f"{users:,} users are too few for a private range of {d} coordinates a round"
    return Infeasible.too_few(NAME, condition, users + 1, also=", or recentred-sgd")


def _tried(inputs: _Inputs) -> list[Candidate[_Settings]]:
    """Return all cohorts and rounds, their noise by a central limit."""
    problem, options = inputs.problem, inputs.options
    total = gdp.mu_for(inputs.privacy.epsilon, inputs.privacy.delta)
    # Of a linear loss a single step may be the best: its gradient is the same everywhere.
    rounds = inputs.rounds(round_grid(LARGEST_ROUNDS, smallest=1 if problem.beta == 0 else SMALLEST_ROUNDS))
    grid = [
        (rate, count)
        for rate in ([options.rate] if options.rate else RATES)
        if options.rate or rate * problem.users >= 2
        for count in rounds
        if rate == 1 or count >= SMALLEST_ROUNDS or options.rounds  # of fewer a central limit says nothing
    ]
    return [
        candidate
        for sampling, some in groupby(grid, lambda pair: inputs.sampling(pair[0]))  # everybody comes first
        for candidate in _predicted(inputs, sampling, [(*pair, ranked_mu(sampling, *pair, total)) for pair in some])
    ]


def _predicted(
    inputs: _Inputs, sampling: Sampling, wanted: Sequence[tuple[float, int, float]]
) -> list[Candidate[_Settings]]:
    """Return the best step and suffix for each smoothing and each feasible (rate, number of rounds, μ a round)."""
    problem, feasible = inputs.problem, []
    for rate, rounds, mu in wanted:
        if not inputs.ranged:
            feasible.append((rate, rounds, inputs.clip_norm, mu))
        elif (found := _range(inputs, inputs.cohort(rate), rounds, mu)) is not None:
            feasible.append((rate, rounds, *found[1:]))
    if not feasible:
        return []
    tried = smoothings(problem, inputs.options.smoothing, problem.distance, none=inputs.ranged)
    return [run for smoothing in tried for run in _best_steps(inputs, sampling, feasible, smoothing)]


def _best_steps(
    inputs: _Inputs,
    sampling: Sampling,
    feasible: Sequence[tuple[float, int, float, float]],
    parameter: float,
) -> list[Candidate[_Settings]]:
    """Return the best step and suffix for each (rate, rounds, first radius, μ)."""
    problem, first = inputs.problem, inputs.clip_norm
    seen = smoothed(problem, parameter)
    rates, _, firsts, mus = (np.array(column) for column in zip(*feasible, strict=True))
    rounds, cohorts = [numbers[1] for numbers in feasible], np.array([inputs.cohort(rate) for rate, *_ in feasible])
    units = np.array([mean_sensitivity(1.0, int(cohort), moved_by(sampling)) for cohort in cohorts]) / mus
    samplings = (1 - rates) * problem.user_deviation**2 / cohorts

    def tracked(steps: Vector, suffixes: Integers) -> Vector:
        """Early rounds are noisier, but decay in the average: those that enter it decide."""
        means, curvature = np.zeros((*steps.shape, suffixes.shape[1])), float(seen.beliefs.isotropic or 0.0)
        bends = curvature, seen.distance, seen.start, seen.beta or 0.0
        facts = *bends, problem.user_deviation, centring.margin(problem.dimension), first
        noises = problem.dimension * units**2
        centring.loops.sgd_variances(facts, np.array(rounds), steps, suffixes, samplings, noises, means)
        return means

    variances = samplings + problem.dimension * (units * firsts) ** 2 if inputs.ranged else tracked
    extra = 0.5 * parameter * problem.lipschitz**2 + statistical_floor(problem)
    if seen.beta == 0:  # the steps see the users at hand, whose mean gradient is so far from the population's
        extra += WORST_SIGNAL * problem.distance * problem.user_deviation / math.sqrt(problem.users)
    # The bound for unknown curvature is about all iterates, or about late ones from anywhere: worth it where early
    # releases are far noisier.
    late = seen.beliefs.isotropic is None and not inputs.ranged
    tried = _linear_steps(seen, rounds, samplings, units, firsts) if seen.beta == 0 else None
    shares = (1.0, *LATE) if late else None
    found = best_phases(seen, rounds, variances, step_size=inputs.options.step_size, steps=tried, shares=shares)
    return [
        Candidate(risk + extra, (rate * phase.rounds,), _Settings(sampling, rate, parameter, phase))
        for (rate, *_), (risk, phase) in zip(feasible, found, strict=True)
    ]


def _linear_steps(problem: Problem, rounds: Sequence[int], samplings: Vector, units: Vector, firsts: Vector) -> Vector:
    """Return steps for a linear loss: about (distance)/√(V T), the best for one variance V; shape (W, K).

    From the noise of the first radius, which is the largest, to that of one as small as users' spread.
    """
    noises = problem.dimension * units**2
    settled = np.minimum(firsts, centring.margin(problem.dimension) * problem.user_deviation)
    loud, quiet = samplings + noises * firsts**2, samplings + noises * settled**2
    low, high = (problem.distance / np.sqrt(variance * np.array(rounds)) for variance in (loud, quiet))
    return np.geomspace(low / 2, 4 * high, STEPS, axis=1)


def _range(inputs: _Inputs, cohort: int, rounds: int, mu: float) -> tuple[PrivateRange, float, float] | None:
    """(range, radius around it, μ left for the Gaussian) of one round; None where the range takes all of μ.

    The least noise of ranges for users who lie as far apart as they are believed to, or farther: wider bins are fewer,
    and cost less of μ. Where a range leaves half of μ² none twice as wide is better.
    """
    problem = inputs.problem
    reach = centring.margin(problem.dimension) * problem.user_deviation  # nearly all users are within it of their mean
    found: list[tuple[float, tuple[PrivateRange, float, float]]] = []
    for factor in WIDER:
        with suppress(Infeasible):
            mean = private_range.calibrate(
                "range",
                users=cohort,
                dimension=problem.dimension,
                bound=inputs.clip_norm,
                spread=factor * reach,
                mu=mu,
                failure=FAILURE / rounds,
            )
            assert isinstance(mean.crude, PrivateRange)
            left = math.sqrt(mu**2 - mean.crude.mu(problem.dimension) ** 2)
            found.append((mean.radius / left, (mean.crude, mean.radius, left)))
            if 2 * left**2 >= mu**2:
                break
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _calibrated(inputs: _Inputs, run: _Settings) -> Calibrated:
    problem, privacy, rounds, cohort = inputs.problem, inputs.privacy, run.phase.rounds, inputs.cohort(run.rate)
    delta = search.left_of_delta(inputs.name, privacy, gaussians=rounds * problem.dimension)
    draws = schedule_of(run.sampling, problem.users, cohort, rounds)
    mu = draws.round_mu(privacy.epsilon, delta)
    fixed = replace(inputs, options=replace(inputs.options, smoothing=run.smoothing or None))
    final = _predicted(fixed, run.sampling, [(run.rate, rounds, mu)])
    chosen = best((candidate for candidate in final if candidate.of.smoothing == run.smoothing), near=1.0)
    if chosen is None:
        raise _missing(inputs)
    phase = chosen.of.phase
    crude: PrivateRange | None = None
    first, left = inputs.clip_norm, mu
    if inputs.ranged and (found := _range(inputs, cohort, rounds, mu)) is not None:
        crude, first, left = found
    noise = GaussianNoise.for_mu(
        sensitivity=mean_sensitivity(1.0, cohort, draws.moved), mu=left * (1 - 1e-9), dimension=problem.dimension
    )
    numbers = MeanSGDParameters(
        sampling=run.sampling,
        cohort_size=cohort,
        rounds=rounds,
        step_size=phase.step_size,
        suffix=phase.suffix,
        first_radius=first,
        noise_scale=noise.scale,
        spread=problem.user_deviation,
        sampling_variance=problem.user_deviation**2 / cohort,
        smoothness=smoothed(problem, run.smoothing).beta or 0.0,
        smoothing=run.smoothing,
        crude=crude,
        round_mu=mu,
    )
    theorem = COINS if numbers.poisson_sampling else None
    return Calibrated(numbers, chosen.risk, theorem=theorem, adjacency=draws.adjacency)


_PLANNER = Planner(RECENTRED, _candidates, _chosen, _missing, inputs=_Inputs, check=_check)
RECENTRED_SPEC = AlgorithmSpec(
    name=RECENTRED,
    summary="Several passes, secret cohorts, a private mean clipped around the last release",
    origin=ours(BASSILY_SUN_2023.at("Algorithm 4"), note="the last release is the centre, and the radius follows it"),
    guarantees=Guarantees(
        THEOREM, pairs, count_room, with_count, moves, adjacency=("replace-one", "zero-out"), one_server=None
    ),
    options=MeanSGDOptions,
    parameters=MeanSGDParameters,
    planner=_PLANNER,
    verifier=verify,
    maker=MeanSGD,
    factor=Factor(known=8.0, unknown=12.0),
    noise_ignores_domain=True,
    policy=Policy(many_passes=True, curve_step=4),
)
MEAN = replace(
    RECENTRED_SPEC,
    name=NAME,
    summary="Several passes, secret cohorts, a private mean clipped around a private range",
    origin=repaired(BASSILY_SUN_2023.at("Algorithms 1, 4 and 6"), note="noise once, around a centre that is released"),
    guarantees=replace(
        RECENTRED_SPEC.guarantees,
        adjacency=("replace-one",),
        one_server="its private range reads whole histograms without noise: take recentred-sgd or tracking-srgd",
    ),
    planner=replace(_PLANNER, name=NAME),
    factor=UNMEASURED,  # of ranges
    printed=bassily_sun.CENTRAL,
)

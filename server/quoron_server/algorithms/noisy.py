"""Noisy projected SGD that privatises every step: clip, average with a fixed divisor, add Gaussian noise.

    g_t = (1/B) Σ_{u in cohort t} clip_C(∇F_u(x_t)) + N(0, σ² I);   x_{t+1} = Proj(x_t - η g_t)
    model = uniform average of the last `suffix` iterates

The state machine of every baseline in this family; what differs is how cohorts are drawn and what that costs: disjoint
(one pass), a fresh uniform subset each round, or Poisson. Another optimiser may take the step, and the clip norm may
follow the users (`AdaptiveClip`). An absent user contributes exactly zero and the divisor stays B. Everything sent out
is private: trust model `central-broadcast`.

Plans of noisy SGD: rounds, step and cohorts by predicted risk, the noise for a guarantee by how cohorts are drawn.

* `one-pass-dp-sgd`: each user is asked in one round only, so rounds compose in parallel and the whole transcript is
  exactly as private as one round: μ-GDP with σ = 2C/(Bμ), replace-one. The baseline every user-level method has to
  beat, and with `clip_norm` at the scale of user averages a strong one (docs/privacy/gaussian.md).
* `dp-sgd-poisson`, `dp-sgd-wor`: rounds are Gaussian mechanisms on secretly sampled cohorts; ε comes from exact privacy
  loss distributions, and a central limit only ranks candidates. With the whole population every round it is user-level
  DP gradient descent, exactly √T μ-GDP (docs/privacy/subsampling.md).
* `sgd`: one pass without privacy, the reference that the price of privacy is measured against.

Those who verify count by the scales of a run and the second account; nothing that found the noise is asked.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from quoron_client.protocol.questions import Answers, summed
from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Integers
from quoron_privacy.errors import Infeasible, VerificationError
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.clipping import ClippedSum, clipped_mean
from quoron_privacy.means.free_counts import SHARES, MeanAndCounts, NormCountMean, Presence, weights_of
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.release import Adjacency, Sums
from quoron_privacy.schedule import Schedule
from quoron_server.algorithm import Vector
from quoron_server.algorithms import search
from quoron_server.algorithms.averaged_sgd import (
    RATES,
    PhaseModel,
    best_phases,
    ranking_mu,
    replaced_ranking_mu,
    require_cohorts,
)
from quoron_server.algorithms.descent import Descent, Estimate, S, State, clipped, diagnosed
from quoron_server.algorithms.optimisers import SGD as PLAIN
from quoron_server.algorithms.optimisers import Moments, Optimiser, OptimiserOptions
from quoron_server.algorithms.references import ABADI_2016, MCMAHAN_2018, POLYAK_1992, WANG_2019, Origin, ours, theirs
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner, round_grid
from quoron_server.algorithms.spec import (
    UNMEASURED,
    AlgorithmSpec,
    Calibrated,
    Factor,
    Guarantees,
    NoBlackBoxes,
    Policy,
    statistical_floor,
)
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import MaskedRows, RoundRelease, Rounds, clipped_row, count_beside, gradients

# Users join by coins of their own in the last two: against users who are left out, and who are replaced.
Sampling = Literal["disjoint", "without-replacement", "poisson", "poisson-replaced"]

COINS: tuple[Sampling, ...] = ("poisson", "poisson-replaced")
DRAWN: tuple[Sampling, ...] = ("without-replacement", *COINS)
SECRET = (Assumption(Kind.SECRET_COHORTS),)  # of users asked by coins of their own
SECRET_AND_FORGOTTEN = (*SECRET, Assumption(Kind.FORGETFUL_CLIENTS))  # of uniform cohorts of a fixed size

REACH = 2.0**20  # a clip norm stays within this factor of the first one, both ways
QUANTILES = 0.4, 0.95
MIN_FACTOR, MAX_FACTOR = 0.35, 2.0  # of one round, where users are far
GAIN = 0.15  # of the logarithm in one round, where they are near


def assumptions_of(sampling: Sampling, users: int, cohort: int) -> tuple[Assumption, ...]:
    """Secret cohorts, unless they are public or everybody; and that clients forget, where draws tie them."""
    if sampling == "disjoint" or cohort == users:
        return ()
    return SECRET_AND_FORGOTTEN if sampling == "without-replacement" else SECRET


def schedule_of(sampling: Sampling, users: int, cohort: int, rounds: int) -> Schedule:
    """Return who is in secret cohorts that are drawn so; amplification rests on nobody knowing it."""
    adjacency: Adjacency = "zero-out" if sampling == "poisson" else "replace-one"
    return Schedule(users, cohort, rounds, "poisson" if sampling in COINS else "without-replacement", adjacency)


def moved_by(sampling: Sampling) -> Adjacency:
    """Return what a round's μ is about, whichever adjacency is promised: by coins a user who is left out."""
    return "zero-out" if sampling in COINS else "replace-one"


def ranked_mu(sampling: Sampling, rate: float, rounds: int, total_mu: float) -> float:
    """Return about the μ of a round, to rank candidates by."""
    about = replaced_ranking_mu if sampling == "poisson-replaced" else ranking_mu
    return about(rate, rounds, total_mu)


class DrawnCohorts(Parameters):
    """Numbers of a run with one way of drawing all cohorts."""

    __slots__ = ()
    sampling: Sampling
    cohort_size: int
    rounds: int
    round_mu: float

    def draws(self, users: int) -> Schedule:
        """Return who is in its cohorts, which are not disjoint."""
        return schedule_of(self.sampling, users, self.cohort_size, self.rounds)

    @property
    def poisson_sampling(self) -> bool:
        """With Poisson sampling."""
        return self.sampling in COINS

    @property
    def answer_mu(self) -> float:
        """GDP of a round whose cohort is known: of a user who is replaced by coins, from its row to none and on."""
        return 2 * self.round_mu if self.sampling == "poisson-replaced" else self.round_mu

    @property
    def adjacency(self) -> Adjacency:
        """What is promised of cohorts that are drawn so."""
        return "zero-out" if self.sampling == "poisson" else "replace-one"

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """Secret cohorts, where they are drawn."""
        return assumptions_of(self.sampling, problem.users, self.cohort_size)


@dataclass(frozen=True, slots=True)
class AdaptiveClip:
    """How the clip norm follows the users.

    A row v with a = min(1, ‖v‖ / C) has the soft share h = min(1, √((1 - a)(1 + 3a))): 1 up to a = ⅔, and 0 where v is
    clipped. C moves to where the mean of h over the users who answer is `quantile`.

        g_t = C_t ((1/B) Σ clip_1(∇F_u(x_t)/C_t) + N(0, σ² I));   C_{t+1} from noisy shares of the same rows

    Rows enter in units of the norm C_t, and the shares come with their mean at no extra cost.

        >>> clip = AdaptiveClip(0.5, "replace-one")
        >>> released = MeanAndCounts(np.zeros(1), 0.9, 1.0, 1.0, 0)  # rows a tenth as long as the clip norm
        >>> clip.following(1.0, released, 0.05, Presence(), 1.0)[0]
        0.35

    Statement and proof: docs/privacy/free-presence.md#ac1.
    """

    quantile: float  # γ
    adjacency: Adjacency  # of the rows

    def deviation(self, scale: float) -> float:
        """Of the mean of h, for noise `scale` of a weighted share."""
        return scale / weights_of(self.adjacency, soft=True)[2]

    def following(
        self, radius: float, released: MeanAndCounts, scale: float, presence: Presence, first: float
    ) -> tuple[float, Presence]:
        """Return the next clip norm, from what a round at norm `radius` released, and the share of present users.

        `scale` is the noise of a weighted share. By Markov's inequality a share γ of the users is within E a / (1 - γ)
        of C: where that says that C is far too large, it shrinks so far. Where hardly anybody is within, it doubles.
        Else it moves geometrically. All of it is a function of what was released; non-finite gives the largest norm.
        """
        weights = weights_of(self.adjacency, soft=True)
        length, near = scale / weights[1], scale / weights[2]
        if weights[3]:
            presence = presence.seen(released.presence, scale / weights[3])
        there = presence.share if weights[3] else 1.0
        beyond, within = released.beyond / there, released.within / there
        if not all(math.isfinite(number) for number in (radius, beyond, within)):
            return first * REACH, presence
        far = (1 - beyond + length) / (1 - self.quantile)
        if far < math.exp(-GAIN):
            factor = max(far, MIN_FACTOR)
        elif within < 0.4 * self.quantile - 1.25 * near:
            factor = MAX_FACTOR
        else:
            over = (within - self.quantile) / (1 - self.quantile)
            factor = math.exp(-GAIN * min(max(over, -1.0), 1.0))
        return min(max(radius * factor, first / REACH), first * REACH), presence


@dataclass(frozen=True, slots=True)
class NoisySGDParameters(DrawnCohorts):
    """Public numbers of one run."""

    sampling: Sampling
    cohort_size: int  # B: users a round; the expected number under Poisson sampling
    rounds: int  # T
    step_size: float  # η
    suffix: int  # iterates averaged
    clip_norm: float  # C, on a user's average gradient, or C_0 where it is adaptive; inf without privacy
    # Of one round's mean, ℓ2, one user replaced, or there against absent with coins; of unit rows where C is adaptive.
    sensitivity: float
    noise_scale: float  # σ per coordinate of that mean; 0 without privacy
    round_mu: float  # each round, as a function of its cohort, is this GDP for such a change; inf without privacy
    optimiser: Optimiser = PLAIN
    adaptive: AdaptiveClip | None = None

    @property
    def noise(self) -> GaussianNoise | None:
        """Of one round's mean, and of the shares that an adaptive clip follows; None without privacy."""
        return GaussianNoise(self.sensitivity, self.noise_scale) if self.noise_scale else None

    def shares(self, dimension: int) -> NormCountMean | None:
        """One round's mean with the shares that an adaptive clip follows; None where it is fixed."""
        if self.adaptive is None:
            return None
        return NormCountMean(dimension, self.cohort_size, self.adaptive.adjacency, self.noise_scale, soft=True)

    def reduction(self, radius: float) -> ClippedSum | None:
        """Return all that a round with clip norm C_t = `radius` reads of its answers; None without a clip."""
        return None if math.isinf(radius) else ClippedSum(radius, self.cohort_size)

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Return a noisy mean in every round, in proportion to an adaptive clip and with the shares that it follows."""
        often, summed = 1 if self.sampling == "disjoint" else self.rounds, not math.isinf(self.clip_norm)
        alike = Rounds(self.rounds, self.cohort_size, gradients(problem), often=often, summed=summed)
        if (made := self.shares(problem.dimension) or self.noise) is None:
            return (alike,)
        scaled, unit = self.adaptive is not None, self.clip_norm / self.cohort_size / self.noise_scale
        blocks = made.masked if isinstance(made, NormCountMean) else clipped_row(problem.dimension, unit)
        return (
            replace(
                alike,
                releases=(RoundRelease(made, made.entry(), self.answer_mu, scaled=scaled),),
                leaks=count_beside(None if self.poisson_sampling or scaled else self.noise),
                rows=MaskedRows(self.adjacency, blocks) if summed else None,
            ),
        )

    def separate(self, problem: Problem) -> bool:
        """With everybody in every round."""
        return self.sampling != "disjoint" and self.cohort_size == problem.users


Drawn = TypeVar("Drawn", bound=DrawnCohorts)


def drawn(problem: Problem, adaptive: bool) -> int:
    """Noise samples of one round."""
    return problem.dimension + (SHARES if adaptive else 0)


@dataclass(frozen=True, slots=True, eq=False)
class NoisyState(State):
    """Everything between two rounds."""

    radius: float  # C_t
    moments: Moments  # of the optimiser
    presence: Presence = field(default_factory=Presence)  # of those asked, by releases of an adaptive clip


class OnDrawnCohorts(Descent[Drawn, S]):
    """Descent whose cohorts are drawn as its parameters say."""

    def cohort(self, round_: int, noise: NoiseSource) -> tuple[Integers, bool]:
        """Return the next users of the public order, or everybody, or whom secret noise draws."""
        p, users = self.parameters, self.plan.problem.users
        if p.sampling == "disjoint":
            return super().cohort(round_, noise)
        return p.draws(users).members(round_, noise), p.cohort_size < users


class NoisySGD(OnDrawnCohorts[NoisySGDParameters, NoisyState]):
    """Algorithm object for a plan with NoisySGDParameters."""

    kind = NoisySGDParameters

    def init(self) -> NoisyState:
        """Start at zero."""
        p, zero = self.parameters, np.zeros(self.plan.problem.dimension)
        return NoisyState(0, zero, zero, p.clip_norm, p.optimiser.start(len(zero)))

    def reduction(self, state: NoisyState) -> ClippedSum | None:
        """Return the sum of clipped gradients."""
        return self.parameters.reduction(state.radius)

    def estimate(self, state: NoisyState, answers: Answers | Sums, noise: NoiseSource) -> Estimate:
        """Return the noisy mean of clipped gradients, and where the clip follows the users its next norm."""
        p, radius, reduction = self.parameters, state.radius, self.reduction(state)
        if reduction is None or p.noise is None:  # without privacy there is no clip
            assert isinstance(answers, Answers)
            own, _ = clipped_mean(answers.values, answers.answered, p.clip_norm, p.cohort_size)
            return Estimate(own, diagnostics={"answered": int(np.sum(answers.answered)), "clipped_fraction": 0.0})
        stream = noise.stream("release", state.round)
        if (shares := p.shares(len(state.iterate))) is None or p.adaptive is None:
            mean, seen = clipped(answers, reduction)
            return Estimate(p.noise.release(mean, stream), (p.noise.entry(),), diagnostics=seen)
        sums = summed(answers, reduction)
        released = shares.release(sums, stream)
        following, presence = p.adaptive.following(radius, released, p.noise_scale, state.presence, p.clip_norm)
        remembered, entry = {"radius": following, "presence": presence}, shares.entry().scaled(radius)
        return Estimate(radius * released.mean, (entry,), {"radius": radius}, diagnosed(sums), remembered)

    def step(self, state: NoisyState, gradient: Vector, phase: NoisySGDParameters) -> NoisyState:
        """Step as the optimiser does."""
        at = {"t": state.round, "rounds": phase.rounds}
        wanted, moments = phase.optimiser.step(state.iterate, gradient, state.moments, phase.step_size, **at)
        return replace(state, iterate=self.plan.problem.domain.project(wanted), moments=moments)

    def noise_label(self, round_: int) -> tuple[str | int, ...]:
        """Return the stream of a round's noise."""
        return "release", round_


_Schemes = Mapping[Adjacency, Sampling]  # by what is promised, the usual one first

MAX_ROUNDS = 4096  # of one pass
LARGEST_ROUNDS = 1024  # of several
SUBSAMPLING = "docs/privacy/subsampling.md"
LOUDEST_SHARE = 0.2  # noise of the share within a clip norm beyond which it tells nothing of it


def pairs_of_rounds(p: Any, problem: Problem, adjacency: Adjacency, mu: float, drawn: int) -> tuple[DominatingPair]:
    """Rounds of `DrawnCohorts`, each of so many samples; with coins μ is that of a user who is left out."""
    draws = replace(p.draws(problem.users), adjacency=adjacency)
    return (draws.pair(mu).with_variation(total_variation(gaussians=p.rounds * drawn)),)


def count_room(p: Any, problem: Problem, epsilon: float, delta: float) -> float:
    """Return the μ of a count within (ε, δ) in each round by coins, by the first account; 0 for other cohorts."""
    adaptive = isinstance(p, NoisySGDParameters) and p.adaptive is not None
    left = delta - (1 + math.exp(epsilon)) * total_variation(gaussians=p.rounds * drawn(problem, adaptive))
    if p.sampling not in COINS or left <= 0:
        return 0.0
    whole = p.draws(problem.users).round_mu(epsilon, left)
    return math.sqrt(max((whole * (1 - 1e-7)) ** 2 - p.round_mu**2, 0.0))


def with_count(p: Any, mu: float) -> Any:
    """Return the numbers with less noise, worth as much as they are with a μ-GDP count; None but for cohorts by coins.

    For parameters with `noise`, `noise_scale` and `round_mu`.
    """
    if (noise := p.noise) is None or not p.poisson_sampling:
        return None
    scale = noise.sensitivity / math.hypot(noise.sensitivity / noise.scale, mu)
    return replace(p, noise_scale=scale, round_mu=math.hypot(p.round_mu, mu) * (1 + 1e-8))


def require_clip(
    clip_norm: float, sensitivity: float, divisor: int, adaptive: AdaptiveClip | None, adjacency: Adjacency
) -> None:
    """One round's clip, fixed divisor, sensitivity and shares agree: VerificationError if not."""
    if divisor < 1:
        raise VerificationError(f"Expected a clip over at least one user, got {divisor}.")
    needed = sensitivity_recount.rows(1.0 if adaptive else clip_norm, divisor, adjacency)
    search.require_least("a clip", f"sensitivity over {divisor} users", sensitivity, needed)
    if adaptive is None:
        return
    if adaptive.adjacency != adjacency:
        raise VerificationError(f"Expected rows with shares for {adjacency}, got {adaptive}.")
    if not 1e-12 <= clip_norm <= 1e12:
        raise VerificationError(f"Expected a first clip norm in [1e-12, 1e12], got {clip_norm}.")


def pairs(p: NoisySGDParameters, problem: Problem, adjacency: Adjacency) -> tuple[DominatingPair, ...]:
    """Of disjoint cohorts that of the own round, whose noise alone has to be exact; else that of all rounds."""
    once, mu = drawn(problem, p.adaptive is not None), recounted_mu(p, problem.dimension)
    if p.sampling == "disjoint":
        return (DominatingPair.gaussian(mu, total_variation(gaussians=once)),)
    return pairs_of_rounds(p, problem, adjacency, mu, once)


def moves(p: NoisySGDParameters, problem: Problem) -> list[float]:
    """min-cohort#q4: of a mean of rows that are cut to a fixed length."""
    if p.adaptive is not None or not p.noise_scale > 0:
        return []
    return [sensitivity_recount.rows(p.clip_norm, p.cohort_size, "replace-one") / p.noise_scale] * p.rounds


def recounted_mu(p: NoisySGDParameters, dimension: int) -> float:
    """GDP of a round for one who is replaced in its cohort, with coins for one who is left out; by its scales."""
    how: Adjacency = "zero-out" if p.poisson_sampling else "replace-one"
    longest, numbers = (p.clip_norm, dimension) if p.adaptive is None else (1.0, dimension + SHARES)
    return sensitivity_recount.mu(sensitivity_recount.rows(longest, p.cohort_size, how), p.noise_scale, numbers)


@dataclass(frozen=True)  # a mix-in
class ClipOptions:
    """Options of algorithms that can follow the users with their clip norm."""

    clip_norm: float | None = None  # from public knowledge, never tuned on protected data; the first one if adaptive
    clip: Literal["fixed", "adaptive"] = "fixed"
    quantile: float = search.within(*QUANTILES, default=0.5)  # share of users meant to be within an adaptive clip norm

    @property
    def adaptive(self) -> bool:
        """Whether the clip norm follows the users."""
        return self.clip == "adaptive"


def adaptive_clip(
    name: str, problem: Problem, options: ClipOptions, cohort: int, adjacency: Adjacency, scale: float
) -> AdaptiveClip:
    """Return a clip that follows weighted shares of `cohort` users with noise `scale`.

    Infeasible where so few answer that their noise would say more of the clip norm than users do.
    """
    made = AdaptiveClip(options.quantile, adjacency)
    if (loud := made.deviation(scale)) > LOUDEST_SHARE:
        raise Infeasible.too_few(
            name,
            f"the share of {cohort:,} users within a clip norm gets noise of {loud:.2g}, which tells nothing",
            math.ceil(problem.users * loud / LOUDEST_SHARE),
            also=", or a clip_norm of your own",
        )
    return made


def noise_scale(sensitivity: float, problem: Problem, privacy: Privacy) -> float:
    """σ that makes one Gaussian release of this ℓ2 sensitivity (ε, δ)-DP, grid and sampler errors included."""
    delta, dimension = privacy.delta * (1 - 1e-9), problem.dimension  # a plan is re-checked by other arithmetic
    mu = gdp.mu_for(privacy.epsilon, delta, gaussians=dimension)
    return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=dimension).scale


@dataclass(frozen=True, slots=True)
class SGDOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    step_size: float | None = None


@dataclass(frozen=True, slots=True)
class OnePassOptions(ClipOptions, OptimiserOptions, SGDOptions):
    """Planning options; None lets the plan choose by predicted excess risk."""


@dataclass(frozen=True, slots=True)
class DPSGDOptions(OnePassOptions):
    """Planning options; None lets the plan choose by predicted excess risk."""

    rate: float | None = search.within(1e-12, 1.0)  # B / n


OnePass = PlanInputs[OnePassOptions]
Several = PlanInputs[DPSGDOptions]


def _check(inputs: PlanInputs[SGDOptions] | OnePass | Several) -> None:
    """Infeasible below two users in a round; ConfigError for an optimiser without a step."""
    options = inputs.options
    if isinstance(options, OptimiserOptions):
        options.made(options.step_size)
    require_cohorts(inputs.name, inputs.problem, 1 if isinstance(options, DPSGDOptions) else options.rounds or 1)


def _disjoint(
    noise: Callable[[OnePass, int], GaussianNoise] | None, inputs: OnePass
) -> Iterator[Candidate[PhaseModel]]:
    """Rounds of one pass over disjoint cohorts; `noise` is that of a round with so many users."""
    problem = inputs.problem
    tried = inputs.rounds(round_grid(max(1, min(problem.users // 2, MAX_ROUNDS))))
    cohorts = [problem.users // total for total in tried]
    scales = [noise(inputs, cohort).scale if noise else 0.0 for cohort in cohorts]
    variances = [
        problem.user_deviation**2 / cohort + problem.dimension * scale**2
        for cohort, scale in zip(cohorts, scales, strict=True)
    ]
    for risk, phase in best_phases(problem, tried, np.array(variances), step_size=inputs.options.step_size):
        yield Candidate(risk, (phase.rounds,), phase)


def _without_privacy(inputs: PlanInputs[SGDOptions], found: Candidate[PhaseModel]) -> Calibrated:
    phase = found.of
    cohort, step, clip = inputs.problem.users // phase.rounds, phase.step_size, math.inf
    numbers = NoisySGDParameters(
        "disjoint", cohort, phase.rounds, step, phase.suffix, clip, sensitivity=0.0, noise_scale=0.0, round_mu=math.inf
    )
    return Calibrated(numbers, found.risk)


def one_pass_noise(inputs: PlanInputs[Any], cohort: int) -> GaussianNoise:
    """Return the least noise of a mean of `cohort` clipped rows, which a user enters once."""
    sensitivity = mean_sensitivity(inputs.clip_norm, cohort)
    return GaussianNoise(sensitivity, noise_scale(sensitivity, inputs.problem, inputs.privacy))


def _chosen_one_pass(inputs: OnePass, found: Candidate[PhaseModel]) -> Calibrated:
    problem, privacy, cohort = inputs.problem, inputs.privacy, inputs.problem.users // found.of.rounds
    noise = one_pass_noise(inputs, cohort)
    mu = noise.effective_mu(problem.dimension)
    if inputs.options.adaptive:
        kept = replace(privacy, delta=privacy.delta * (1 - 1e-9))
        left = search.left_of_delta(inputs.name, kept, gaussians=drawn(problem, adaptive=True))
        mu = gdp.mu_for(kept.epsilon, left)
    return _chosen(inputs, "disjoint", found.risk, found.of, cohort, noise.scale, mu)


def _sampling(schemes: _Schemes, privacy: Privacy) -> Sampling:
    """Return how cohorts are drawn for what is promised."""
    [usual, *_] = schemes
    return schemes.get(privacy.adjacency or usual, schemes[usual])


def _several(schemes: _Schemes, inputs: Several) -> list[Candidate[tuple[float, PhaseModel]]]:
    """Return all cohorts and rounds, with noise by a central limit."""
    problem, privacy, options = inputs.problem, inputs.privacy, inputs.options
    sampling = _sampling(schemes, privacy)
    rates = [options.rate] if options.rate else [rate for rate in RATES if rate * problem.users >= 2]
    total_mu = gdp.mu_for(privacy.epsilon, privacy.delta)
    rounds = inputs.rounds(round_grid(LARGEST_ROUNDS, smallest=4))
    wanted = [(rate, total, ranked_mu(sampling, rate, total, total_mu)) for rate in rates for total in rounds]
    return _predicted(inputs, sampling, wanted)


def _chosen_several(schemes: _Schemes, inputs: Several, found: Candidate[tuple[float, PhaseModel]]) -> Calibrated:
    problem, privacy, sampling = inputs.problem, inputs.privacy, _sampling(schemes, inputs.privacy)
    rate, phase = found.of
    cohort = max(1, round(rate * problem.users))
    draws = schedule_of(sampling, problem.users, cohort, phase.rounds)
    samples = phase.rounds * drawn(problem, inputs.options.adaptive)
    left = search.left_of_delta(inputs.name, privacy, gaussians=samples)
    mu = draws.round_mu(privacy.epsilon, left)
    [exact] = _predicted(inputs, sampling, [(cohort / problem.users, phase.rounds, mu)])
    moved = mean_sensitivity(inputs.clip_norm, cohort, draws.moved)
    noise = GaussianNoise.for_mu(sensitivity=moved, mu=mu * (1 - 1e-9), dimension=problem.dimension)
    chosen = _chosen(inputs, sampling, exact.risk, exact.of[1], cohort, noise.scale, mu)
    return replace(chosen, theorem=f"{SUBSAMPLING}#{sampling}", adjacency=draws.adjacency)


def _predicted(
    inputs: Several, sampling: Sampling, wanted: Sequence[tuple[float, int, float]]
) -> list[Candidate[tuple[float, PhaseModel]]]:
    """Return the best step and suffix for each (rate, number of rounds, μ a round)."""
    problem, clip = inputs.problem, inputs.clip_norm
    rates, rounds, _ = zip(*wanted, strict=True)
    variances = []
    for rate, _, mu in wanted:
        cohort = max(1, round(rate * problem.users))
        sigma = mean_sensitivity(clip, cohort, moved_by(sampling)) / mu
        variances.append((1 - rate) * problem.user_deviation**2 / cohort + problem.dimension * sigma**2)
    floor = statistical_floor(problem)
    found = best_phases(problem, rounds, np.array(variances), step_size=inputs.options.step_size)
    return [
        Candidate(risk + floor, (rate * phase.rounds,), (rate, phase))
        for rate, (risk, phase) in zip(rates, found, strict=True)
    ]


def _chosen(
    inputs: OnePass | Several,
    sampling: Sampling,
    risk: float,
    phase: PhaseModel,
    cohort: int,
    scale: float,
    mu: float,
) -> Calibrated:
    """Rounds of `cohort` answers that are μ-GDP each, with noise `scale` where the clip is fixed.

    A risk is predicted for a fixed clip and plain steps alone. Errors as `adaptive_clip`.
    """
    problem, options = inputs.problem, inputs.options
    clip, optimiser = inputs.clip_norm, options.made(options.step_size)
    moved = moved_by(sampling)
    adaptive, longest = None, clip
    if options.adaptive:
        least = mu * (1 - 1e-9)  # a plan is re-checked by other arithmetic
        rows = NormCountMean.for_mu(dimension=problem.dimension, users=cohort, mu=least, adjacency=moved, soft=True)
        adaptive = adaptive_clip(inputs.name, problem, options, cohort, moved, rows.scale)
        scale, longest = rows.scale, 1.0
    numbers = NoisySGDParameters(
        sampling=sampling,
        cohort_size=cohort,
        rounds=phase.rounds,
        step_size=phase.step_size,
        suffix=options.averaged(phase.suffix, phase.rounds),
        clip_norm=clip,
        sensitivity=mean_sensitivity(longest, cohort, moved),
        noise_scale=scale,
        round_mu=mu,
        optimiser=optimiser,
        adaptive=adaptive,
    )
    return Calibrated(numbers, risk if optimiser.plain and not options.adaptive else None)


def _verify(schemes: _Schemes, plan: RunPlan) -> None:
    """Cohorts drawn as promised; a round's clip, sensitivity and noise agree with its μ; all rounds: the registry."""
    p, sampling = plan.parameters_of(NoisySGDParameters), schemes[plan.guarantee.adjacency]
    require_clip(
        p.clip_norm, p.sensitivity, p.cohort_size, p.adaptive, "zero-out" if sampling in COINS else "replace-one"
    )
    if not p.noise_scale > 0:
        raise VerificationError(f"Expected noise in a plan of {plan.algorithm}, got noise_scale={p.noise_scale}.")
    search.require_least(plan.algorithm, "round_mu", p.round_mu, recounted_mu(p, plan.problem.dimension))
    if p.sampling != sampling:
        raise VerificationError(f"Expected sampling {sampling} in a plan of {plan.algorithm}, got {p.sampling}.")
    if sampling == "disjoint" and p.rounds * p.cohort_size > plan.problem.users:
        raise VerificationError(f"Expected {p.rounds} disjoint cohorts of {p.cohort_size} among {plan.problem.users}.")


SGD = AlgorithmSpec(
    name="sgd",
    summary="No privacy; the reference",
    origin=theirs(POLYAK_1992, note="no privacy"),
    guarantees=Guarantees(
        "docs/privacy/gaussian.md",
        trust_models=("none",),
        adjacency=("none",),
        one_server="it adds no noise and guarantees nothing: take tracking-srgd",
    ),
    options=SGDOptions,
    parameters=NoisySGDParameters,
    planner=Planner("sgd", partial(_disjoint, None), _without_privacy, check=_check),
    verifier=lambda plan: None,
    maker=NoisySGD,
    factor=UNMEASURED,
    no_black_boxes=NoBlackBoxes("it has no privacy"),
)
ONE_PASS = AlgorithmSpec(
    name="one-pass-dp-sgd",
    summary="Disjoint cohorts, user-level clip, Gaussian noise every round; every user asked once",
    origin=ours(ABADI_2016.at("Algorithm 1"), note="a baseline: users, in disjoint cohorts instead of samples"),
    guarantees=Guarantees("docs/privacy/gaussian.md#parallel-composition", pairs, moves=moves, one_server=None),
    options=OnePassOptions,
    parameters=NoisySGDParameters,
    planner=Planner("one-pass-dp-sgd", partial(_disjoint, one_pass_noise), _chosen_one_pass, check=_check),
    verifier=partial(_verify, {"replace-one": "disjoint"}),
    maker=NoisySGD,
    factor=Factor(known=3.0, unknown=9.0),
    noise_ignores_domain=True,
)


def _info(name: str, schemes: _Schemes, summary: str, factor: Factor, curve_step: int, origin: Origin) -> AlgorithmSpec:
    return replace(
        ONE_PASS,
        name=name,
        summary=summary,
        origin=origin,
        guarantees=Guarantees(
            SUBSAMPLING, pairs, count_room, with_count, moves, adjacency=tuple(schemes), one_server=None
        ),
        options=DPSGDOptions,
        planner=Planner(name, partial(_several, schemes), partial(_chosen_several, schemes), check=_check),
        verifier=partial(_verify, schemes),
        factor=factor,
        policy=Policy(many_passes=True, curve_step=curve_step),
    )


POISSON = _info(
    "dp-sgd-poisson",
    {"zero-out": "poisson", "replace-one": "poisson-replaced"},
    "Several passes, each user in each round with a secret coin",
    Factor(known=7.0, unknown=None),
    curve_step=4,
    origin=theirs(MCMAHAN_2018.at("Algorithm 1")),
)
WITHOUT_REPLACEMENT = _info(
    "dp-sgd-wor",
    {"replace-one": "without-replacement"},
    "Several passes, a secret uniform cohort each round; rate 1 is DP gradient descent",
    Factor(known=7.0, unknown=12.0),
    curve_step=2,
    origin=theirs(MCMAHAN_2018.at("Algorithm 1"), WANG_2019, note="uniform cohorts in place of coins"),
)

"""The recommended method: one pass, private broadcasts, a step and a clip that come from the users, privately.

    pilot     a cohort releases the second moment of its features; H = φ₂ (S + r I) is the metric of all steps
    warm-up   ĝ_t = c_t + C_t (mean of clip_1((∇F_u(x_t) - c_t)/C_t) + noise)
              x_{t+1} = Proj(x_t - (H + λ)⁻¹(ĝ_t + λ x_t))
    main      Δ_u = j ∇F_u(x_j) - (j-1) ∇F_u(x_{j-1})
              Ŝ_j = Ŝ_{j-1} + c_j + C_j (mean of clip_1((Δ_u - c_j)/C_j) + w_j);   ĝ_j = Ŝ_j / j;   the same step
    shares    each mean tells for nothing how far users were from c_t, and how many answered: that sets the next radius

w_j is noise correlated over the main rounds, so that the sums carry a logarithm of the rounds and not their root.
Centres and radii (`schedule`) are functions of released values, each user has one round, and so the whole
transcript is μ-GDP. Variant `independent` keeps warm-up rounds to the end and returns their average.

Ours; after Bassily & Sun (2023), centred means, and Choquette-Choo, Ganesh & Thakurta, recursive gradients.
Statement and proof: docs/privacy/tracking-srgd.md.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.moments import SecondMoment
from quoron_client.protocol.questions import Answers, Question, summed
from quoron_privacy.gaussian import SPARE_ACUTE
from quoron_privacy.means.moment import SecondMomentNoise, packed
from quoron_privacy.means.norm_counts import NormCountMean, Presence
from quoron_privacy.means.prefix_norm_counts import PrefixNormCounts
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.prefix.noise import PrefixState
from quoron_privacy.release import Adjacency, Sums
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.tracking import schedule
from quoron_server.algorithms.tracking.metric import Metric
from quoron_server.parameters import Attendance, Parameters, PlannedRelease
from quoron_server.plan import Plan
from quoron_server.problem import Problem

Variant = Literal["recursive", "independent"]


@dataclass(frozen=True, slots=True)
class TrackingParameters(Parameters):
    """Public numbers of one run."""

    variant: Variant
    adjacency: Adjacency
    pilot_cohort: int
    pilot_divisor: int
    pilot_scale: float  # s_p: noise on the isometric coordinates of the second moment
    warmup_rounds: int  # w
    warmup_cohort: int
    warmup_divisor: int
    warmup_scale: float  # noise of a warm-up round per unit of its radius
    main_rounds: int  # T_m
    main_cohort: int
    main_divisor: int
    main_scale: float  # seed noise of weighted rows; as `warmup_scale` when independent
    factorisation: str  # "-" when independent
    feature_norm: float  # R
    link_curvature: float  # φ₂
    ridge: float  # λ
    spread: float  # s before anything is released
    first_radius: float  # C_0
    beyond: float  # π*: share of users meant beyond ⅔ of the radius
    margin: float  # κ before anything is released
    reference_items: int  # m_ref
    mu: float  # GDP parameter of the whole transcript

    @property
    def rounds(self) -> int:
        """Pilot, warm-up and main."""
        return 1 + self.warmup_rounds + self.main_rounds

    @property
    def asked(self) -> int:
        """Users with a slot."""
        return sum(self.cohorts())

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """The second moment; then in every round the gradient, in proportion to its radius, with what it tells."""
        made, mu = mechanisms(self, dimension, dimension), self.mu
        warmup, main = range(1, 1 + self.warmup_rounds), range(1 + self.warmup_rounds, self.rounds)
        return (
            PlannedRelease(made.moment, made.moment.entry(), 1, range(1), mu),
            PlannedRelease(made.warmup, made.warmup.entry(), len(warmup), warmup, mu, scaled=True),
            PlannedRelease(made.main, made.main.entry(), len(main), main, mu, scaled=True),
        )

    def cohorts(self) -> tuple[int, ...]:
        """Pilot, warm-up and main."""
        warmup, main = (self.warmup_cohort,) * self.warmup_rounds, (self.main_cohort,) * self.main_rounds
        return (self.pilot_cohort, *warmup, *main)

    def answer_length(self, problem: Problem) -> int:
        """A second moment, or a gradient."""
        return max(packed(problem.features), problem.dimension)

    def attendance(self, problem: Problem) -> tuple[Attendance, ...]:
        """Told by the shares of every gradient; beside the pilot's moments, of which one may be replaced."""
        made = mechanisms(self, problem.features, problem.dimension)
        halved = self.adjacency == "replace-one"
        pilot = Attendance(SPARE_ACUTE * made.moment.sensitivity / made.moment.scale if halved else 0.0)
        warmup = Attendance(1 / (self.warmup_divisor * made.warmup.presence_deviation), told=True)
        main = Attendance(1 / (self.main_divisor * made.main.presence_deviation), told=True)
        return (pilot, *(warmup,) * self.warmup_rounds, *(main,) * self.main_rounds)

    def cohort(self, round_: int) -> tuple[int, int]:
        """(first slot, users) of a round."""
        cohorts = self.cohorts()
        return sum(cohorts[:round_]), cohorts[round_]


def drawn(problem: Problem, rounds: int) -> int:
    """Gaussian samples of a run: the pilot's moment, then a gradient and three shares a round."""
    return packed(problem.features) + (rounds - 1) * (problem.dimension + 3)


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """All mechanisms of a plan."""

    moment: SecondMomentNoise
    warmup: NormCountMean
    main: NormCountMean | PrefixNormCounts


def mechanisms(p: TrackingParameters, features: int, dimension: int) -> Mechanisms:
    """The mechanisms with a plan's numbers, for items with so many features and models of so many numbers."""
    return Mechanisms(
        SecondMomentNoise(features, p.feature_norm, p.pilot_divisor, p.adjacency, p.pilot_scale),
        NormCountMean(dimension, p.warmup_divisor, p.adjacency, p.warmup_scale),
        PrefixNormCounts(dimension, p.main_divisor, p.adjacency, p.main_scale, p.main_rounds, p.factorisation)
        if p.variant == "recursive"
        else NormCountMean(dimension, p.main_divisor, p.adjacency, p.main_scale),
    )


@dataclass(frozen=True, slots=True, eq=False)
class TrackingState:
    """Everything between two rounds. Released, but for the prefix noise's memory, which is secret."""

    round: int
    x: Vector
    previous: Vector  # the point before x
    eigenvalues: Vector  # of H, (p,) for p features
    basis: Vector  # (p, p)
    gradient: Vector  # ĝ without ridge
    error: float  # bound for the variance of ĝ
    spread: float  # s
    margin: float  # κ
    presence: Presence  # of users who answer, in parts of the divisors
    sum: Vector  # Ŝ_j without ridge
    radii: Vector  # C_j of the main rounds so far, (T_m,)
    sampling: float  # Σ s²/B of the main rounds so far
    running: Vector  # mean of the averaged iterates, variant independent
    prefix: PrefixState | None  # of the prefix noise; None when independent


class TrackingSRGD:
    """Algorithm object for a plan with TrackingParameters."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.parameters = plan.parameters_of(TrackingParameters)
        self._mechanisms = mechanisms(self.parameters, plan.problem.features, plan.problem.dimension)

    def init(self) -> TrackingState:
        """Start at zero; the spread starts from public knowledge."""
        p, d, features = self.parameters, self.plan.problem.dimension, self.plan.problem.features
        zero = np.zeros(d)
        main = self._mechanisms.main
        return TrackingState(
            round=0,
            x=zero,
            previous=zero,
            eigenvalues=np.ones(features),
            basis=np.eye(features),
            gradient=zero,
            error=0.0,
            spread=p.spread,
            margin=p.margin,
            presence=Presence(),
            sum=zero,
            radii=np.zeros(p.main_rounds),
            sampling=0.0,
            running=zero,
            prefix=main.start() if isinstance(main, PrefixNormCounts) else None,
        )

    def request(self, state: TrackingState, noise: NoiseSource) -> Question | None:
        """The second moment, then gradients at x, then weighted differences of two, each less the centre."""
        del noise
        p = self.parameters
        if state.round == p.rounds:
            return None
        start, size = p.cohort(state.round)
        cohort = partition(seed=self.plan.seed, users=self.plan.problem.users)[start : start + size]
        if state.round == 0:
            task = SecondMoment(self.plan.problem.features)
            return Question(0, cohort, task, reduction=self._mechanisms.moment.reduction)
        weight = self._weight(state)
        points, weights = state.x[None, :], np.ones(1)
        if weight > 1:
            points, weights = np.stack([state.x, state.previous]), np.array([weight, 1.0 - weight])
        # Clients differentiate with the ridge, which is public: their centre holds it too, so it cancels exactly.
        aim = self._aim(state)
        centre = aim.centre + p.ridge * (weights @ points)
        gradients = AverageGradient(points, tuple(weights.tolist()), centre=centre, reference_items=p.reference_items)
        return Question(state.round, cohort, gradients, reduction=self._mechanism(state).reduction(aim.radius))

    def update(self, state: TrackingState, answers: Answers | Sums, noise: NoiseSource) -> Update[TrackingState]:
        """Release the moment, or a gradient; then step."""
        return self._pilot(state, answers, noise) if state.round == 0 else self._step(state, answers, noise)

    def _pilot(self, state: TrackingState, answers: Answers | Sums, noise: NoiseSource) -> Update[TrackingState]:
        p, mechanism = self.parameters, self._mechanisms.moment
        sums = summed(answers, mechanism.reduction)
        moment = mechanism.release(sums, noise.stream("release", 0))
        floor = min(mechanism.spectral_error, p.feature_norm**2)
        metric = Metric.of(moment, curvature=p.link_curvature, floor=floor, ridge=p.ridge)
        after = replace(state, round=1, eigenvalues=metric.eigenvalues, basis=metric.basis)
        diagnostics = {"answered": sums.answered}
        return Update(after, (mechanism.entry(),), {"phase": "pilot"}, diagnostics)

    def _step(self, state: TrackingState, answers: Answers | Sums, noise: NoiseSource) -> Update[TrackingState]:
        p, problem, t = self.parameters, self.plan.problem, state.round
        aim, metric = self._aim(state), self._metric(state)
        main, weight, d = t > p.warmup_rounds, self._weight(state), problem.dimension
        mechanism = self._mechanism(state)
        of_all, sampling = summed(answers, mechanism.reduction(aim.radius)), state.spread**2 / mechanism.users
        if isinstance(mechanism, PrefixNormCounts):
            before = state.prefix
            assert before is not None
            released, sums = mechanism.release(before, of_all, noise)
            total, radii = state.sum + aim.centre + aim.radius * released.mean, state.radii.copy()
            radii[weight - 1] = aim.radius
            sampling += state.sampling
            error = schedule.prefix_variance(radii[:weight], mechanism.seed_scale, d) + sampling
            after = replace(state, sum=total, radii=radii, sampling=sampling, prefix=sums)
            after = replace(after, gradient=total / weight, error=error / weight**2)
        else:
            released = mechanism.release_sums(of_all, noise.stream("release", t))
            error = d * (aim.radius * mechanism.scale) ** 2 + sampling
            after = replace(state, gradient=aim.centre + aim.radius * released.mean, error=error)
        presence = state.presence.seen(released.presence, mechanism.presence_deviation)
        gradient = float(after.gradient @ after.gradient)  # as far is a centre of zero from the users' mean
        spread, margin = schedule.learnt(
            state.spread,
            state.margin,
            released,
            radius=aim.radius,
            known=max(gradient - error, 0.0) if t == 1 else aim.known,
            present=presence.mean,
            deviation=mechanism.presence_deviation,
            target=p.beyond,
            largest=p.first_radius,
        )
        wanted = state.x - metric.step(after.gradient + p.ridge * state.x)
        x = metric.project(problem.domain, wanted)
        running = state.running + x / p.main_rounds if main else state.running
        after = replace(after, round=t + 1, x=x, previous=state.x, running=running)
        after = replace(after, spread=spread, margin=margin, presence=presence)
        public = {"phase": "main" if main else "warm-up", "radius": aim.radius, "spread": state.spread}
        diagnostics = {"answered": of_all.answered, "clipped_fraction": released.clipped / max(1, of_all.answered)}
        present = released.presence * mechanism.users
        return Update(after, (mechanism.entry().scaled(aim.radius),), public, diagnostics, present)

    def model(self, state: TrackingState) -> Vector:
        """The last iterate; with independent gradients the mean of the main rounds'. Before the end, the last one."""
        p = self.parameters
        return state.running if p.variant == "independent" and state.round == p.rounds else state.x

    def iterate(self, state: TrackingState) -> Vector:
        """As `model`: every iterate is already private."""
        return self.model(state)

    def _weight(self, state: TrackingState) -> int:
        """j in a main round of the recursive variant, else 1."""
        p = self.parameters
        return max(1, state.round - p.warmup_rounds) if p.variant == "recursive" else 1

    def _mechanism(self, state: TrackingState) -> NormCountMean | PrefixNormCounts:
        return self._mechanisms.main if state.round > self.parameters.warmup_rounds else self._mechanisms.warmup

    def _metric(self, state: TrackingState) -> Metric:
        return Metric(state.eigenvalues, state.basis, self.parameters.ridge)

    def _aim(self, state: TrackingState) -> schedule.Aim:
        p = self.parameters
        if state.round == 1:
            return schedule.first_aim(self.plan.problem.dimension, p.first_radius)
        main = state.round > p.warmup_rounds
        return schedule.aim(
            schedule.Progress(state.x - state.previous, state.gradient, state.error, state.spread),
            self._metric(state),
            weight=self._weight(state),
            divisor=p.main_divisor if main else p.warmup_divisor,
            items=self.plan.problem.items_per_user,
            item_smoothness=p.link_curvature * p.feature_norm**2,
            first_radius=p.first_radius,
            margin=state.margin,
            main=main and p.variant == "recursive",
        )

"""The recommended method: one pass, private broadcasts, a step and a clip that come from the users, privately.

    pilot     four times: a cohort releases a typical length of second moments of features, another one their mean,
              clipped there; L whitens it. H = φ₂ (LLᵀ)⁻¹ is the metric of all steps, and of all lengths of gradients
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

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from quoron_client.protocol.questions import Answers, AverageGradient, Question, SecondMoment, summed
from quoron_privacy.means.free_presence import LengthSum, LogLength, MomentMean, ShapedMomentSum
from quoron_privacy.means.norm_counts import NormCountMean, NormCountSum, Presence
from quoron_privacy.means.prefix_norm_counts import PrefixNormCounts
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.prefix.noise import PrefixState
from quoron_privacy.release import Adjacency, Sums, packed
from quoron_server.algorithm import Update, Vector
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.tracking import schedule
from quoron_server.algorithms.tracking.metric import Metric
from quoron_server.algorithms.whitening import curvature_share, mean_chance, typical_length, whitening
from quoron_server.parameters import Attendance, MaskedRounds, Parameters, PlannedRelease
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem

Variant = Literal["recursive", "independent"]
PASSES = 4  # of the pilot
PILOT = 2 * PASSES  # rounds: a length and a second moment in each
LEAST_BEYOND = 0.01
LEAST_SHARE = 0.5, 0.25  # of φ₂ that curvature is taken to be: by H / 2 steps are stable whatever predictions are


@dataclass(frozen=True, slots=True)
class TrackingParameters(Parameters):
    """Public numbers of one run."""

    variant: Variant
    adjacency: Adjacency
    length_cohort: int  # of each of PASSES typical lengths
    length_divisor: int
    length_scale: float  # noise of a mean logarithm
    moment_cohort: int  # of each of PASSES second moments
    moment_divisor: int
    moment_scale: float  # s_p: noise on the diagonal of a second moment, per unit of its radius
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
    sigmoid: bool  # whether φ' is the logistic function, whose curvature falls as predictions grow
    intercept: bool  # whether the last feature is the same for every item
    spread: float  # s before anything is released
    first_radius: float  # C_0
    beyond: float  # π*: share of users meant beyond ⅔ of the radius
    margin: float  # κ before anything is released
    reference_items: int  # m_ref
    mu: float  # GDP parameter of the whole transcript

    @property
    def rounds(self) -> int:
        """Pilot, warm-up and main."""
        return PILOT + self.warmup_rounds + self.main_rounds

    @property
    def asked(self) -> int:
        """Users with a slot."""
        return sum(self.cohorts())

    def reads_sums(self) -> bool:
        """Always."""
        return True

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """Lengths and second moments; then in every round the gradient, in proportion to its radius, and shares."""
        made, mu, first = mechanisms(self, dimension, dimension), self.mu, PILOT + self.warmup_rounds
        warmup, main = range(PILOT, first), range(first, self.rounds)
        return (
            PlannedRelease(made.length, made.length.entry(), PASSES, range(0, PILOT, 2), mu),
            PlannedRelease(made.moment, made.moment.entry(), PASSES, range(1, PILOT, 2), mu, scaled=True),
            PlannedRelease(made.warmup, made.warmup.entry(), len(warmup), warmup, mu, scaled=True),
            PlannedRelease(made.main, made.main.entry(), len(main), main, mu, scaled=True),
        )

    def cohorts(self) -> tuple[int, ...]:
        """Pilot, warm-up and main."""
        warmup, main = (self.warmup_cohort,) * self.warmup_rounds, (self.main_cohort,) * self.main_rounds
        return (*(self.length_cohort, self.moment_cohort) * PASSES, *warmup, *main)

    def masked(self, problem: Problem) -> MaskedRounds:
        """A length, a moment, a weighted gradient with its shares; users of a cohort are in one round alone."""
        made = mechanisms(self, problem.features, problem.dimension)
        gradients = (self.warmup_rounds, made.warmup.masked), (self.main_rounds, made.main.masked)
        correlated = self.factorisation if self.variant == "recursive" else None
        return MaskedRounds(
            self.adjacency, (*((1, made.length.masked), (1, made.moment.masked)) * PASSES, *gradients), correlated
        )

    def answer_length(self, problem: Problem) -> int:
        """A second moment, or a gradient."""
        return max(packed(problem.features), problem.dimension)

    def attendance(self, problem: Problem) -> tuple[Attendance, ...]:
        """Every release tells it."""
        made = mechanisms(self, problem.features, problem.dimension)
        length, moment, warmup, main = (
            Attendance(1 / (divisor * each.presence_deviation), told=True)
            for divisor, each in (
                (self.length_divisor, made.length),
                (self.moment_divisor, made.moment),
                (self.warmup_divisor, made.warmup),
                (self.main_divisor, made.main),
            )
        )
        return (*(length, moment) * PASSES, *(warmup,) * self.warmup_rounds, *(main,) * self.main_rounds)

    def outgrown(self, last: Mapping[str, Any]) -> bool:
        """Where the radius was held at its cap to the end: it never came down to the users."""
        most = self.first_radius * (schedule.MAIN_FACTOR if self.variant == "recursive" else 1.0)
        return bool(last.get("phase") == "main" and last["radius"] >= most)

    def cohort(self, round_: int) -> tuple[int, int]:
        """(first slot, users) of a round."""
        cohorts = self.cohorts()
        return sum(cohorts[:round_]), cohorts[round_]


def drawn(problem: Problem, rounds: int) -> int:
    """Gaussian samples of a run: two a length, moments with presence, then a gradient and three shares a round."""
    return 2 * PASSES + PASSES * (packed(problem.features) + 1) + (rounds - PILOT) * (problem.dimension + 3)


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """All mechanisms of a plan."""

    length: LogLength
    moment: MomentMean
    warmup: NormCountMean
    main: NormCountMean | PrefixNormCounts


def mechanisms(p: TrackingParameters, features: int, dimension: int) -> Mechanisms:
    """The mechanisms with a plan's numbers, for items with so many features and models of so many numbers."""
    return Mechanisms(
        LogLength(p.length_divisor, p.length_scale),
        MomentMean(features, p.moment_divisor, p.adjacency, p.moment_scale),
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
    transform: Vector  # L, (p, p) for p features
    top: float  # radius of the next second moment
    eigenvalues: Vector  # of H, (p,)
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

    def __init__(self, plan: RunPlan) -> None:
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
            transform=np.eye(features) * (math.sqrt(features) / p.feature_norm),
            top=float(features),
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
        if state.round < PILOT:
            task = SecondMoment(self.plan.problem.features)
            return Question(state.round, cohort, task, reduction=self._pilots(state))
        weight = self._weight(state)
        points, weights = state.x[None, :], np.ones(1)
        if weight > 1:
            points, weights = np.stack([state.x, state.previous]), np.array([weight, 1.0 - weight])
        # Clients differentiate with the ridge, which is public: their centre holds it too, so it cancels exactly.
        aim = self._aim(state)
        centre = aim.centre + p.ridge * (weights @ points)
        gradients = AverageGradient(points, tuple(weights.tolist()), centre=centre, reference_items=p.reference_items)
        return Question(state.round, cohort, gradients, reduction=self._reduction(state, aim.radius))

    def update(self, state: TrackingState, answers: Answers | Sums, noise: NoiseSource) -> Update[TrackingState]:
        """Release a length, a moment or a gradient; then step."""
        return self._pilot(state, answers, noise) if state.round < PILOT else self._step(state, answers, noise)

    def _pilot(self, state: TrackingState, answers: Answers | Sums, noise: NoiseSource) -> Update[TrackingState]:
        p, t, made, features = self.parameters, state.round, self._mechanisms, float(self.plan.problem.features)
        sums, stream = summed(answers, self._pilots(state)), noise.stream("release", t)
        after, public = replace(state, round=t + 1), dict[str, Any](phase="pilot", radius=state.top)
        if t % 2 == 0:
            length = made.length.release_sums(sums, stream)
            presence, entry = state.presence, made.length.entry()
            top = min(features, typical_length(length, made.length, features))
            present, after = length.presence * p.length_divisor, replace(after, top=top)
        else:
            moment = made.moment.release_sums(sums, state.top, stream)
            presence = state.presence.seen(moment.presence, made.moment.presence_deviation)
            found = whitening(moment, presence.mean, made.moment.scale * state.top, state.top)
            transform = state.transform @ found.transform
            metric = Metric.of(transform, found.doubt, curvature=p.link_curvature, ridge=p.ridge)
            after = replace(after, transform=transform, eigenvalues=metric.eigenvalues, basis=metric.basis)
            present, entry = moment.presence * p.moment_divisor, made.moment.entry().scaled(state.top)
            lengths = np.linalg.norm(found.transform, axis=0)
            public["unevenness"] = float((lengths.max() / lengths.min()) ** 2)  # of eigenvalues, kept above noise
        diagnostics = {"answered": sums.answered}
        return Update(replace(after, presence=presence), (entry,), public, diagnostics, present)

    def _pilots(self, state: TrackingState) -> LengthSum | ShapedMomentSum:
        made, features = self._mechanisms, float(self.plan.problem.features)
        if state.round % 2 == 0:
            return made.length.reduction(state.transform, features)
        return made.moment.reduction(state.transform, state.top)

    def _step(self, state: TrackingState, answers: Answers | Sums, noise: NoiseSource) -> Update[TrackingState]:
        p, problem, t = self.parameters, self.plan.problem, state.round
        aim, whole, metric = self._aim(state), self._whole(state), self._metric(state)
        main, weight, d = t >= PILOT + p.warmup_rounds, self._weight(state), problem.dimension
        mechanism = self._mechanism(state)
        of_all, sampling = summed(answers, self._reduction(state, aim.radius)), state.spread**2 / mechanism.users
        if isinstance(mechanism, PrefixNormCounts):
            before = state.prefix
            assert before is not None
            released, sums = mechanism.release(before, of_all, noise)
            total, radii = state.sum + aim.centre + whole.colour(aim.radius * released.mean), state.radii.copy()
            radii[weight - 1] = aim.radius
            sampling += state.sampling
            error = schedule.prefix_variance(radii[:weight], mechanism.seed_scale, d) + sampling
            after = replace(state, sum=total, radii=radii, sampling=sampling, prefix=sums)
            after = replace(after, gradient=total / weight, error=error / weight**2)
        else:
            released = mechanism.release_sums(of_all, noise.stream("release", t))
            error = d * (aim.radius * mechanism.scale) ** 2 + sampling
            gradient = aim.centre + whole.colour(aim.radius * released.mean)
            after = replace(state, gradient=gradient, error=error)
        presence = state.presence.seen(released.presence, mechanism.presence_deviation)
        far = float(np.sum(whole.whiten(after.gradient) ** 2))  # a centre of zero is as far from the users' mean
        spread, margin = schedule.learnt(
            state.spread,
            state.margin,
            released,
            radius=aim.radius,
            known=max(far - error, 0.0) if t == PILOT else aim.known,
            present=presence.mean,
            deviation=mechanism.presence_deviation,
            target=self._beyond(state),
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
        return max(1, state.round + 1 - PILOT - p.warmup_rounds) if p.variant == "recursive" else 1

    def _mechanism(self, state: TrackingState) -> NormCountMean | PrefixNormCounts:
        return self._mechanisms.main if self._in_main(state) else self._mechanisms.warmup

    def _in_main(self, state: TrackingState) -> bool:
        return state.round >= PILOT + self.parameters.warmup_rounds

    def _reduction(self, state: TrackingState, radius: float) -> NormCountSum:
        return NormCountSum(radius, self._mechanism(state).users, self._whole(state).transform)

    def _whole(self, state: TrackingState) -> Metric:
        """H, where curvature is as large as it can be."""
        return Metric(state.eigenvalues, state.basis, self.parameters.ridge)

    def _metric(self, state: TrackingState) -> Metric:
        """As much of H as predictions of the model leave, and no less than LEAST_SHARE of it."""
        p = self.parameters
        share = curvature_share(p.sigmoid, *reversed(self._predictions(state)))
        return self._whole(state).flatter(max(share, LEAST_SHARE[p.intercept]))

    def _beyond(self, state: TrackingState) -> float:
        """π*: less where the model predicts a label to be rare, for users who have it are those who are clipped."""
        p = self.parameters
        if not (p.sigmoid and p.intercept):
            return p.beyond
        chance = mean_chance(*self._predictions(state))
        return max(4 * chance * (1 - chance) * p.beyond, min(LEAST_BEYOND, p.beyond))

    def _predictions(self, state: TrackingState) -> tuple[float, float]:
        """Mean and variance of the model's predictions; the mean is 0 where no feature is always the same."""
        p, x, whole = self.parameters, state.x, self._whole(state)
        level, square = 0.0, whole.length(x) ** 2 / p.link_curvature
        if p.intercept:
            ahead = whole.apply(np.eye(len(x))[-1])
            level = float(ahead @ x) / math.sqrt(p.link_curvature * float(ahead[-1]))
        return level, max(square - level**2, 0.0)

    def _aim(self, state: TrackingState) -> schedule.Aim:
        p = self.parameters
        if state.round == PILOT:
            return schedule.first_aim(self.plan.problem.dimension, p.first_radius)
        main = self._in_main(state)
        return schedule.aim(
            schedule.Progress(state.x - state.previous, state.gradient, state.error, state.spread),
            self._metric(state),
            weight=self._weight(state),
            divisor=p.main_divisor if main else p.warmup_divisor,
            items=self.plan.problem.items_per_user,
            features=self.plan.problem.features,
            first_radius=p.first_radius,
            margin=state.margin,
            main=main and p.variant == "recursive",
        )

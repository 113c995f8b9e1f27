"""The recommended method: one pass, private broadcasts, a step and a clip that come from the users, privately.

    pilot     four times: a cohort releases a typical length of second moments of features, another one their mean,
              clipped there; L whitens it. H = φ₂ (LLᵀ)⁻¹ is the metric of all steps, and of all lengths of gradients
    warm-up   ĝ_t = c_t + C_t (mean of clip_1((∇F_u(x_t) - c_t)/C_t) + noise)
              x_{t+1} = Proj(x_t - (H + λ)⁻¹(ĝ_t + λ x_t))
    main      Δ_u = j ∇F_u(x_j) - (j-1) ∇F_u(x_{j-1})
              Ŝ_j = Ŝ_{j-1} + c_j + C_j (mean of clip_1((Δ_u - c_j)/C_j) + w_j);   ĝ_j = Ŝ_j / j;   the same step
    shares    every mean comes with how far users were from c_t, and how many answered: that sets the next radius

w_j is noise correlated over the main rounds, so that the sums carry a logarithm of the rounds and not their root.
Centres and radii (`StepTarget`) are functions of released values, each user has one round, and so the whole transcript
is μ-GDP.

Ours; after Bassily & Sun (2023), centred means, and Choquette-Choo, Ganesh & Thakurta, recursive gradients. Statement
and proof: docs/privacy/tracking-srgd.md.

Plans of `tracking-srgd`: sizes of pilot, warm-up and main cohorts by predicted risk, their noise, and the re-check.

On a quadratic whose curvature is about h in every direction, and a metric of about `metric`, every step multiplies the
distance to the optimum by ρ = 1 - (h + λ)/(metric + λ). The error of the model is then a sum of exact linear responses:
to the start point, to sampling noise, and to privacy noise, which in a main round is scaled by that round's radius. The
radius follows the schedule of the run, with predicted steps for the real ones. An isotropic curvature is an assumption:
the prediction ranks plans, is no bound and sets no noise.

Every user is in exactly one cohort, so every cohort may spend all of μ: docs/privacy/tracking-srgd.md#t1.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import Domain, L2Ball
from quoron_client.protocol.questions import Answers, AverageGradient, Question, SecondMoment, Task, summed
from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.accounts.roots import root
from quoron_privacy.errors import Infeasible, Needs
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.free_counts import (
    WEIGHTS,
    LengthSum,
    LogLength,
    MeanAndCounts,
    MomentMean,
    NormCountMean,
    NormCountSum,
    PrefixNormCounts,
    Presence,
    ShapedMomentSum,
)
from quoron_privacy.noise.streams import NoiseSource, total_variation
from quoron_privacy.prefix import noise as played
from quoron_privacy.prefix.noise import DEFAULT, PrefixState, sqrt_coefficients
from quoron_privacy.release import Adjacency, Sums, packed
from quoron_server.algorithm import OfPlan, Update, Vector
from quoron_server.algorithms import search
from quoron_server.algorithms.centring import margin
from quoron_server.algorithms.references import BASSILY_SUN_2023, CHOQUETTE_CHOO_2025, ours
from quoron_server.algorithms.search import Candidate, PlanInputs, Planner
from quoron_server.algorithms.slots import partition
from quoron_server.algorithms.spec import AlgorithmSpec, Calibrated, Factor, Guarantees, NoBlackBoxes, trivial_risk
from quoron_server.algorithms.whitening import curvature_share, eigen, mean_chance, typical_length, whitening
from quoron_server.parameters import Assumption, Kind, Parameters
from quoron_server.plan import RunPlan
from quoron_server.problem import Problem
from quoron_server.schedule import MaskedRows, RoundRelease, Rounds, count_in, gradients

LEAST = 1e-12  # of the largest eigenvalue
_BOX_STEPS = 400, 20_000  # of accelerated projected gradient, at least and at most

CENTRE_SHARE = 0.7  # χ: how much of H dx the gradient is taken to change
LAG_SHARE = 0.5  # τ
MAIN_FACTOR = 3.0  # a main round's largest radius over C_0: its rows are differences weighted by the round
CROWDED = 0.93  # a mean length over the radius from which most users are beyond it
SPREAD_GAIN = 0.7  # of what the last round says of s
MARGIN_GAIN = 0.5  # how fast κ moves, at most, as a logarithm
MARGINS = 1.0, 6.0  # κ is between them
SMALLEST = 1e-6  # a radius is at least this share of C_0

PASSES = 4  # of the pilot
PILOT = 2 * PASSES  # rounds: a length and a second moment in each
MIN_BEYOND = 0.01
LEAST_SHARE = 0.5, 0.25  # of φ₂ that curvature is taken to be: by H / 2 steps are stable whatever predictions are


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """H = Q diag(eigenvalues) Qᵀ in each part of d numbers of a model, and a public regulariser (λ/2) ‖x‖² besides.

    A pilot releases L such that LᵀSL is about the identity, S the second moment of the features. With H = φ₂ (LLᵀ)⁻¹
    one step x - (H + λ I)⁻¹ g needs no step size: every direction contracts at once (docs/privacy/tracking-srgd.md#t3;
    with several outputs docs/privacy/losses.md#l1). Gradients are as long as their dual norm √(gᵀ H⁻¹ g), in which
    noise is as large as the data in every direction. Everything here is public.

        >>> metric = Metric.of(np.diag([2.0, 0.5]), np.zeros(2), curvature=0.25, ridge=0.0)
        >>> metric.eigenvalues.round(3).tolist()  # features of variance 1/4 and 4, times 0.25
        [0.062, 1.0]
        >>> metric.step(np.array([1.0, 0.0])).round(3).tolist()
        [16.0, 0.0]
    """

    eigenvalues: Vector  # (d,), of H, ascending and positive
    basis: Vector  # Q, (d, d), eigenvectors as columns
    ridge: float  # λ

    @classmethod
    def of(cls, transform: Vector, doubt: Vector, *, curvature: float, ridge: float) -> "Metric":
        """H = curvature · L⁻ᵀ (1 + q) L⁻¹ for a transform L (d, d), q (d,) noise's edge over each eigenvalue."""
        back = np.linalg.inv(transform)
        values, basis = eigen((back.T * (curvature * (1 + doubt))) @ back)
        return cls(np.maximum(values, LEAST * values[-1]), basis, ridge)

    def flatter(self, share: float) -> "Metric":
        """That of `share` times H."""
        return replace(self, eigenvalues=share * self.eigenvalues)

    def whiten(self, gradient: Vector) -> Vector:
        """Coordinates in which the dual norm is Euclidean: √H⁻¹ Qᵀ g, shape of g."""
        return self._along(gradient) / np.sqrt(self._scales(gradient, self.eigenvalues))

    def colour(self, whitened: Vector) -> Vector:
        """Return the inverse of `whiten`."""
        return self._back(whitened * np.sqrt(self._scales(whitened, self.eigenvalues)))

    @property
    def transform(self) -> Vector:
        """What each part of a gradient is multiplied by, from the left transposed, to be whitened: (d, d)."""
        return np.asarray(self.basis / np.sqrt(self.eigenvalues), np.float64)

    def apply(self, vector: Vector) -> Vector:
        """H v, shape of v: (d,), or any multiple."""
        return self._back(self._scales(vector, self.eigenvalues) * self._along(vector))

    def step(self, gradient: Vector) -> Vector:
        """(H + λ I)⁻¹ g, shape of g."""
        return self._back(self._along(gradient) / self._scales(gradient, self.eigenvalues + self.ridge))

    def length(self, vector: Vector) -> float:
        """√(vᵀ H v)."""
        return float(np.sqrt(np.sum(self._scales(vector, self.eigenvalues) * self._along(vector) ** 2)))

    def _along(self, vector: Vector) -> Vector:
        """Coordinates of each part in the basis."""
        return np.concatenate([self.basis.T @ part for part in vector.reshape(-1, len(self.basis))])

    def _back(self, coordinates: Vector) -> Vector:
        return np.concatenate([self.basis @ part for part in coordinates.reshape(-1, len(self.basis))])

    def _scales(self, like: Vector, scales: Vector) -> Vector:
        return np.tile(scales, like.size // scales.size)

    def project(self, domain: Domain, point: Vector) -> Vector:
        """Return the point of `domain` nearest to `point` in the metric H + λ I; Euclidean for points of the domain."""
        if np.array_equal(domain.project(point), point):
            return point
        if isinstance(domain, L2Ball):
            return domain.project(self._onto_ball(domain.radius, point))
        return self._onto_box(domain, point)

    def _onto_ball(self, radius: float, point: Vector) -> Vector:
        """(M + ν I)⁻¹ M z with M = H + λ I, and ν >= 0 such that its norm is the radius."""
        scales, inside = self._scales(point, self.eigenvalues + self.ridge), self._along(point)

        def beyond(level: float) -> float:
            return float(np.linalg.norm(scales * inside / (scales + level))) - radius

        largest = float(scales.max()) * float(np.linalg.norm(inside)) / radius * 2  # there the norm is below half of it
        level = root(beyond, 0.0, largest, xtol=1e-15 * largest) if beyond(0.0) > 0 else 0.0
        return self._back(scales * inside / (scales + level))

    def _onto_box(self, domain: Domain, point: Vector) -> Vector:
        """Accelerated projected gradient on ½ ‖x - z‖² of the metric."""
        scales, largest = self._scales(point, self.eigenvalues + self.ridge), self.eigenvalues[-1] + self.ridge
        ratio = float(np.sqrt(scales[0] / largest))
        momentum = (1 - ratio) / (1 + ratio)
        x = ahead = domain.project(point)
        for _ in range(round(min(_BOX_STEPS[1], max(_BOX_STEPS[0], 20 / ratio)))):
            slope = self._back(scales * self._along(ahead - point))
            following = domain.project(ahead - slope / largest)
            ahead = following + momentum * (following - x)
            x = following
        return x


@dataclass(frozen=True, slots=True, eq=False)
class StepTarget:
    """One round's centre and radii, all public.

        warm-up                c = g + χ H dx      C = min(C_0, κ √(s² (1 + 1/B) + e) + lag)
        main round j >= 1      c = g + j χ H dx    the same with 3 C_0, from j = 2 with s² + ¼ j² p dxᵀ H dx / m
        after a round          s² from the mean length of rows less e, κ from the share of them beyond ⅔ C

    Here dx is the step just made, H the private curvature model, g the last gradient estimate and e about its variance.
    The private spread of users' averages is s; κ is how far they reach, lag = τ ‖dx‖_H (times j) how wrong χ may be, p
    the number of features. Lengths of gradients are those of the dual norm. All of it is a function of released values
    and constants: it decides the utility, and cannot cost privacy (docs/privacy/tracking-srgd.md#t1).
    """

    centre: Vector  # c, (d,), without ridge
    radius: float  # C: rows are clipped to it, and noise is scaled by it
    known: float  # mean square distance of users that is not their spread: the centre's error, and what a step changes


def next_spread(
    spread: float,
    margin: float,
    released: MeanAndCounts,
    *,
    radius: float,
    known: float,
    present: float,
    deviation: float,
    target: float,
    largest: float,
) -> tuple[float, float]:
    """Return (s, κ) after a round, from its released users' distances from the centre, as shares of the divisor.

    The mean length over the radius estimates how far users were; minus its `known` part it is their spread. The margin
    κ moves until a share `target` of `present` is beyond ⅔ of the radius. Then s is in [SMALLEST · largest, largest].
    """
    reached, beyond = 1 - released.beyond / present, 1 - released.within / present
    distance = radius * max(reached, 0.1) if reached < CROWDED else 1.5 * radius
    own = max(distance**2 - known, 0.2 * distance**2)
    spread = spread ** (1 - SPREAD_GAIN) * float(np.sqrt(own)) ** SPREAD_GAIN
    surprise = min(max((beyond - target) / max(target, deviation), -1.0), 1.0)
    margin = margin * float(np.exp(MARGIN_GAIN * surprise))
    return min(max(spread, SMALLEST * largest), largest), min(max(margin, MARGINS[0]), MARGINS[1])


def prefix_variance(radii: Vector, seed_scale: float, dimension: int) -> float:
    """E ‖noise‖² of the last sum when round i's row noise was scaled by radii[i]: d σ² Σ_k (Σ_i C_i a_{i-k})².

    `a` is the first column of the inverse square root; other factorisations are near enough for a radius.
    """
    rounds = len(radii)
    inverse = sqrt_coefficients(rounds)[1]
    left = [float(radii[k:] @ inverse[: rounds - k]) for k in range(rounds)]
    return dimension * seed_scale**2 * float(np.sum(np.square(left)))


@dataclass(frozen=True, slots=True)
class TrackingParameters(Parameters):
    """Public numbers of one run."""

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
    main_scale: float  # seed noise of weighted rows
    factorisation: str
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
        pilot = PASSES * (self.length_cohort + self.moment_cohort)
        return pilot + self.warmup_rounds * self.warmup_cohort + self.main_rounds * self.main_cohort

    def stretches(self, problem: Problem) -> tuple[Rounds, ...]:
        """Lengths and second moments; then a gradient in every round, in proportion to its radius, and shares.

        Every release tells how many answered; users of a cohort are in one round alone.
        """
        made = mechanisms(self, problem.features, problem.dimension)
        moment, zero = SecondMoment(problem.features), np.zeros(problem.dimension)
        once, twice = (replace(gradients(problem, points), centre=zero) for points in (1, 2))

        def alike(count: int, cohort: int, task: Task, by: Any, *, scaled: bool = True) -> Rounds:
            rows = MaskedRows(self.adjacency, by.masked, self.factorisation)
            release = RoundRelease(by, by.entry(), self.mu, scaled=scaled)
            return Rounds(count, cohort, task, (release,), leaks=count_in(by), summed=True, rows=rows)

        main = alike(1, self.main_cohort, once, made.main)
        return (
            *(
                alike(1, self.length_cohort, moment, made.length, scaled=False),
                alike(1, self.moment_cohort, moment, made.moment),
            )
            * PASSES,
            alike(self.warmup_rounds, self.warmup_cohort, once, made.warmup),
            main,
            replace(main, count=self.main_rounds - 1, task=twice),
        )

    def forecast_broken(self, last: Mapping[str, Any]) -> bool:
        """Return where the radius was held at its cap to the end: it never came down to the users."""
        return bool(last.get("phase") == "main" and last["radius"] >= self.first_radius * MAIN_FACTOR)


def drawn(problem: Problem, rounds: int) -> int:
    """Gaussian samples of a run: two a length, moments with presence, then a gradient and three shares a round."""
    return 2 * PASSES + PASSES * (packed(problem.features) + 1) + (rounds - PILOT) * (problem.dimension + 3)


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """All mechanisms of a plan."""

    length: LogLength
    moment: MomentMean
    warmup: NormCountMean
    main: PrefixNormCounts


def mechanisms(p: TrackingParameters, features: int, dimension: int) -> Mechanisms:
    """Return the mechanisms with a plan's numbers, for items with so many features and models of so many numbers."""
    return Mechanisms(
        LogLength(p.length_divisor, p.length_scale),
        MomentMean(features, p.moment_divisor, p.adjacency, p.moment_scale),
        NormCountMean(dimension, p.warmup_divisor, p.adjacency, p.warmup_scale),
        PrefixNormCounts(dimension, p.main_divisor, p.adjacency, p.main_scale, p.main_rounds, p.factorisation),
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
    prefix: PrefixState  # of the prefix noise


class TrackingSRGD(OfPlan[TrackingParameters]):
    """Algorithm object for a plan with TrackingParameters."""

    kind = TrackingParameters

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self._mechanisms = mechanisms(self.parameters, plan.problem.features, plan.problem.dimension)
        self._schedule = plan.schedule

    def init(self) -> TrackingState:
        """Start at zero; the spread starts from public knowledge."""
        p, d, features = self.parameters, self.plan.problem.dimension, self.plan.problem.features
        zero = np.zeros(d)
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
            prefix=self._mechanisms.main.start(),
        )

    def request(self, state: TrackingState, noise: NoiseSource) -> Question | None:
        """Return the second moment, then gradients at x, then weighted differences of two, each less the centre."""
        p = self.parameters
        if state.round == p.rounds:
            return None
        cohort = partition(seed=self.plan.seed, users=self.plan.problem.users)[self._schedule.slots(state.round)]
        if state.round < PILOT:
            task = SecondMoment(self.plan.problem.features)
            return Question(state.round, cohort, task, reduction=self._pilots(state))
        weight = self._weight(state)
        points, weights = state.x[None, :], np.ones(1)
        if weight > 1:
            points, weights = np.stack([state.x, state.previous]), np.array([weight, 1.0 - weight])
        # Clients differentiate with the ridge, which is public: their centre holds it too, so it cancels exactly.
        target = self._target(state)
        centre = target.centre + p.ridge * (weights @ points)
        gradients = AverageGradient(points, tuple(weights.tolist()), centre=centre, reference_items=p.reference_items)
        return Question(state.round, cohort, gradients, reduction=self._reduction(state, target.radius))

    def update(self, state: TrackingState, answers: Answers | Sums, noise: NoiseSource) -> Update[TrackingState]:
        """Release a length, a moment or a gradient; then step."""
        return self._pilot(state, answers, noise) if state.round < PILOT else self._step(state, answers, noise)

    def _pilot(self, state: TrackingState, answers: Answers | Sums, noise: NoiseSource) -> Update[TrackingState]:
        p, t, made, features = self.parameters, state.round, self._mechanisms, float(self.plan.problem.features)
        sums, stream = summed(answers, self._pilots(state)), noise.stream("release", t)
        after, public = replace(state, round=t + 1), dict[str, Any](phase="pilot", radius=state.top)
        if t % 2 == 0:
            length = made.length.release(sums, stream)
            presence, entry = state.presence, made.length.entry()
            top = min(features, typical_length(length, made.length, features))
            present, after = length.presence * p.length_divisor, replace(after, top=top)
        else:
            moment = made.moment.release(sums, state.top, stream)
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
        p = self.parameters
        if state.round % 2 == 0:
            return LengthSum(p.length_divisor, state.transform, float(self.plan.problem.features))
        return ShapedMomentSum(p.moment_divisor, state.transform, state.top)

    def _step(self, state: TrackingState, answers: Answers | Sums, noise: NoiseSource) -> Update[TrackingState]:
        p, problem, t = self.parameters, self.plan.problem, state.round
        target, whole, metric = self._target(state), self._whole(state), self._metric(state)
        main, weight, d = t >= PILOT + p.warmup_rounds, self._weight(state), problem.dimension
        mechanism = self._mechanism(state)
        of_all = summed(answers, self._reduction(state, target.radius))
        sampling = state.spread**2 / mechanism.users
        if isinstance(mechanism, PrefixNormCounts):
            released, sums = mechanism.release(state.prefix, of_all, noise)
            total = state.sum + target.centre + whole.colour(target.radius * released.mean)
            radii = state.radii.copy()
            radii[weight - 1] = target.radius
            sampling += state.sampling
            error = prefix_variance(radii[:weight], mechanism.seed_scale, d) + sampling
            after = replace(state, sum=total, radii=radii, sampling=sampling, prefix=sums)
            after = replace(after, gradient=total / weight, error=error / weight**2)
        else:
            released = mechanism.release(of_all, noise.stream("release", t))
            error = d * (target.radius * mechanism.scale) ** 2 + sampling
            gradient = target.centre + whole.colour(target.radius * released.mean)
            after = replace(state, gradient=gradient, error=error)
        presence = state.presence.seen(released.presence, mechanism.presence_deviation)
        far = float(np.sum(whole.whiten(after.gradient) ** 2))  # a centre of zero is as far from the users' mean
        spread, margin = next_spread(
            state.spread,
            state.margin,
            released,
            radius=target.radius,
            known=max(far - error, 0.0) if t == PILOT else target.known,
            present=presence.mean,
            deviation=mechanism.presence_deviation,
            target=self._beyond(state),
            largest=p.first_radius,
        )
        wanted = state.x - metric.step(after.gradient + p.ridge * state.x)
        x = metric.project(problem.domain, wanted)
        after = replace(after, round=t + 1, x=x, previous=state.x)
        after = replace(after, spread=spread, margin=margin, presence=presence)
        public = {"phase": "main" if main else "warm-up", "radius": target.radius, "spread": state.spread}
        diagnostics = {"answered": of_all.answered, "clipped_fraction": released.clipped / max(1, of_all.answered)}
        present = released.presence * mechanism.users
        return Update(after, (mechanism.entry().scaled(target.radius),), public, diagnostics, present)

    def model(self, state: TrackingState) -> Vector:
        """Return the last iterate."""
        return state.x

    def _weight(self, state: TrackingState) -> int:
        """j in a main round, else 1."""
        return max(1, state.round + 1 - PILOT - self.parameters.warmup_rounds)

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
        return max(4 * chance * (1 - chance) * p.beyond, min(MIN_BEYOND, p.beyond))

    def _predictions(self, state: TrackingState) -> tuple[float, float]:
        """Mean and variance of the model's predictions; the mean is 0 where no feature is always the same."""
        p, x, whole = self.parameters, state.x, self._whole(state)
        level, square = 0.0, whole.length(x) ** 2 / p.link_curvature
        if p.intercept:
            ahead = whole.apply(np.eye(len(x))[-1])
            level = float(ahead @ x) / math.sqrt(p.link_curvature * float(ahead[-1]))
        return level, max(square - level**2, 0.0)

    def _target(self, state: TrackingState) -> StepTarget:
        """Of a round whose rows are gradients, or differences weighted by j."""
        p, problem, j = self.parameters, self.plan.problem, self._weight(state)
        if state.round == PILOT:  # before anything is known: around zero, as far as public constants allow
            return StepTarget(np.zeros(problem.dimension), p.first_radius, 0.0)
        metric, moved, divisor = self._metric(state), state.x - state.previous, self._mechanism(state).users
        far = metric.length(moved)
        change = 0.25 * j**2 * problem.features * far**2 / problem.items_per_user if j > 1 else 0.0
        expected = state.margin * float(np.sqrt((state.spread**2 + change) * (1 + 1 / divisor) + state.error))
        radius, largest = (
            expected + j * LAG_SHARE * far,
            p.first_radius * (MAIN_FACTOR if self._in_main(state) else 1.0),
        )
        radius = largest if not np.isfinite(radius) else min(largest, max(radius, SMALLEST * p.first_radius))
        return StepTarget(state.gradient + j * CENTRE_SHARE * metric.apply(moved), radius, change + state.error)


Number = float | Vector  # one, or one for each of C candidates
Whole = int | NDArray[np.int64]

loops = OnFirstUse("quoron_server.algorithms.tracking_loops")

NAME = "tracking-srgd"
THEOREM = "docs/privacy/tracking-srgd.md#t1"
LARGEST_DIMENSION = 300  # of the features: with p of them a pilot user sends p (p + 1) / 2 numbers
LARGEST_ROUNDS = 48  # main rounds that are tried
WARMUPS = (2, 3, 4, 5, 6, 8, 10, 14, 20, 30)
WARMUP_SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.15)  # of the users, in each warm-up round
ALSO = " (fewer features or a method of many passes also do)"
NEAR = 1.1  # of the least predicted risk: fewer rounds are taken then
RESOLVED = 12.0, 25.0  # Bμ/√d of a warm-up round and of a main round, at least: below, radii do not settle
FARTHEST = 2.5  # root mean square of predictions at the optimum, at most, of labels that nothing is known of
UNKNOWN_CURVATURE = 0.4  # share of its bound that a Hessian of unknown spectrum is taken to reach
EDGE, PILOT_SHARE = 0.1, (0.08, 0.2)  # noise of each second moment of the pilot; users in all of the pilot
SLOWEST = 0.2  # and in the direction where it reaches least
NEAR_PREDICTION = 0.6  # of FARTHEST or of a label, where not training is looked at
ALONG = 0.35  # of the mean: a logistic Hessian along the optimum, where predictions are far from even
SHORT = 0.5  # a known Hessian over the metric in the slowest direction: the pilot's noise makes steps shorter
BEYOND = 40.0  # π* times nμ/(√d m), n all main users
BEYOND_RANGE = 0.03, 0.45
LENGTHS = 20.0, 60.0  # users of each of the pilot's lengths, over μ: at least and at most, where they are a few
# Of a unit moment's and a unit gradient's noise, times divisor and μ; zero-out pays for presence.
_UNITS: Mapping[Adjacency, tuple[float, float]] = {"replace-one": (math.sqrt(2), 2.0), "zero-out": (1.0, 1 / 0.9486832)}


class Assumed(NamedTuple):
    """Public facts and pessimistic guesses."""

    dimension: int  # d
    distance: float  # ‖x_0 - x*‖
    curvature: float  # h: typical eigenvalue of the Hessian without ridge
    least_curvature: float
    ridge: float  # λ
    spread: float  # s: of users' average gradients around their mean
    first_radius: float  # C_0
    margin: float  # κ
    gradient_spread: Number  # spread of the *change* of a user's average gradient, per unit of step


def predict(
    known: Assumed,
    *,
    metric: Number,
    warmup: tuple[Whole, Whole, Number],
    main: tuple[Whole, Whole, Number],
    inverse: Vector,
) -> Vector:
    """Return the excess risk of C candidates by optimisation, sampling and noise, shape (3, C).

    Of (rounds, divisor, noise per unit of radius and per coordinate) of both phases.
    `inverse` is the first column of C⁻¹ of the prefix factorisation, at least as long as the most main rounds.
    """
    given = np.broadcast_arrays(metric, known.gradient_spread, *warmup, *main)
    candidates = np.stack([numbers.ravel() for numbers in given], axis=1).astype(np.float64)
    parts, scratch = np.empty((3, len(candidates))), np.zeros((2, len(inverse)))
    facts = *known[:-1], LAG_SHARE, MAIN_FACTOR
    loops.risks(facts, candidates, np.ascontiguousarray(inverse[::-1]), scratch[0], scratch[1], parts)
    return parts


@dataclass(frozen=True, slots=True)
class TrackingOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # all of them: pilot, warm-up and main
    participation: float = search.within(1 / 32, 1.0, 1.0)  # declared share of users who answer; divisors count on it
    reference_items: int | None = None  # m_ref; users with fewer items count for less. None: items_per_user
    first_radius: float | None = None  # C_0, from public knowledge
    pilot_share: float | None = search.within(1e-12, 1.0)  # share of the users in the pilot
    factorisation: str = DEFAULT


Inputs = PlanInputs[TrackingOptions]


class _Sizes(NamedTuple):
    length: int
    moment: int
    warmups: int
    warmup: int
    rounds: int
    main: int

    @property
    def total(self) -> int:
        return PILOT + self.warmups + self.rounds


def verify(plan: RunPlan) -> None:
    """Disjoint cohorts, divisors as declared, and everything that a round divides by; μ: the registry."""
    p, problem = plan.parameters_of(TrackingParameters), plan.problem
    cohorts = (p.length_cohort, p.moment_cohort, p.warmup_cohort, p.main_cohort)
    divisors = (p.length_divisor, p.moment_divisor, p.warmup_divisor, p.main_divisor)
    search.require(
        NAME,
        ("positive cohorts and rounds", min(*cohorts, p.warmup_rounds, p.main_rounds) >= 1, cohorts),
        (f"at most {problem.users} users with a slot", p.asked <= problem.users, p.asked),
        ("divisors of at least 1/64 of their cohort", _counts(cohorts, divisors), divisors),
        ("the problem's feature norm", p.feature_norm == problem.feature_norm, p.feature_norm),
        ("the problem's curvature", p.link_curvature == problem.link_curvature, p.link_curvature),
        ("the problem's ridge", p.ridge == problem.ridge, p.ridge),
        ("a first radius in (1e-140, 1e140)", 1e-140 < p.first_radius < 1e140, p.first_radius),
        ("0 < spread <= first radius", 0 < p.spread <= p.first_radius, p.spread),
        ("margin > 0", 0 < p.margin < math.inf, p.margin),
        ("beyond in (0, 1)", 0 < p.beyond < 1, p.beyond),
        ("reference_items >= 1", p.reference_items >= 1, p.reference_items),
    )


def pairs(p: TrackingParameters, problem: Problem, adjacency: Adjacency) -> tuple[DominatingPair, ...]:
    """tracking-srgd#t1: of the transcript, pilot and gradients together; each user is in one round of either."""
    mu = max(recounted_mus(p, problem, adjacency))
    return (DominatingPair.gaussian(mu, total_variation(gaussians=drawn(problem, p.rounds))),)


def recounted_mus(p: TrackingParameters, problem: Problem, adjacency: Adjacency) -> tuple[float, float, float, float]:
    """GDP of a length, a second moment, a warm-up round and all main rounds, by their scales."""
    features, weight, numbers = problem.features, WEIGHTS[adjacency][0], problem.dimension + 3
    length = sensitivity_recount.rows(1.0, p.length_divisor, "zero-out")
    moment = sensitivity_recount.unit_moment(features, p.moment_divisor, adjacency)
    warmup, main = (sensitivity_recount.rows(1.0, divisor, adjacency) for divisor in (p.warmup_divisor, p.main_divisor))
    return (
        sensitivity_recount.mu(length, p.length_scale, 2),
        sensitivity_recount.mu(moment, p.moment_scale * weight, packed(features) + 1),
        sensitivity_recount.mu(warmup, p.warmup_scale * weight, numbers),
        played.mu(mechanisms(p, features, problem.dimension).main.prefix, main, numbers),
    )


def _counts(cohorts: tuple[int, ...], divisors: tuple[int, ...]) -> bool:
    return all(divisor >= 1 and cohort <= 64 * divisor for cohort, divisor in zip(cohorts, divisors, strict=True))


def _check(inputs: Inputs) -> None:
    """ConfigError for options out of range; Infeasible for a loss that is not generalised linear, convex and smooth."""
    problem, options = inputs.problem, inputs.options
    if options.rounds is not None and options.rounds < PILOT + 2:
        condition = f"{options.rounds} rounds hold no pilot of {PILOT}, warm-up and main round"
        raise Infeasible(NAME, condition, Needs(f"rounds >= {PILOT + 2}", rounds=PILOT + 2))
    if problem.feature_norm is None or problem.link_curvature is None or not problem.convex:
        raise Infeasible(NAME, "the loss is not smooth", "a smooth loss, such as logistic or huber")
    if problem.link_curvature <= 0:
        raise Infeasible(NAME, "the loss has no curvature", "a curved loss, such as logistic or least_squares")
    if problem.features > LARGEST_DIMENSION:
        condition = f"a pilot user would send {problem.features}² / 2 numbers"
        raise Infeasible(NAME, condition, f"at most {LARGEST_DIMENSION} features")


def _candidates(inputs: Inputs) -> Iterable[Candidate[_Sizes]]:
    """Return all sizes of cohorts that let radii settle."""
    problem, privacy, options = inputs.problem, inputs.privacy, inputs.options
    mu = mu_for(privacy.epsilon, privacy.delta)
    tried = list(_sizes(problem, mu, options))
    if not tried:
        return []
    risks = predicted(problem, mu, options, tried, privacy.adjacency or "replace-one")
    totals = np.nan_to_num(risks, nan=math.inf, posinf=math.inf).tolist()
    return [Candidate(risk, (sizes.total,), sizes) for risk, sizes in zip(totals, tried, strict=True)]


def _sizes(problem: Problem, mu: float, options: TrackingOptions) -> Iterator[_Sizes]:
    n, root = problem.users, math.sqrt(problem.dimension)
    least, min_main = (resolution * root for resolution in RESOLVED)
    enough = PASSES * _edge(problem, mu * options.participation) / EDGE / n  # brings a second moment's noise to EDGE
    pilot = round((options.pilot_share or min(max(enough, PILOT_SHARE[0]), PILOT_SHARE[1])) * n)
    min_length, max_length = (math.ceil(users / (mu * options.participation)) for users in LENGTHS)
    length = min(max(min_length, pilot // 20), max_length, max(2, pilot // (3 * PASSES)))
    moment = pilot // PASSES - length
    if moment < 2:
        return
    for warmups, share in product(WARMUPS if options.rounds is None else (1, *WARMUPS), WARMUP_SHARES):
        warmup = round(share * n)
        left = n - pilot - warmups * warmup
        if left < n // 10 or warmup * options.participation * mu <= least:
            continue
        for rounds in _main_rounds(options.rounds, warmups):
            main = left // rounds
            if main * options.participation * mu > min_main:
                yield _Sizes(length, moment, warmups, warmup, rounds, main)


def _edge(problem: Problem, mu: float) -> float:
    """Of a whitened second moment's noise, times the users it is of: √(2p) √2 / μ times a user's length."""
    p = problem.features
    return 2 * math.sqrt(p) / mu * math.sqrt(p + p * p / problem.items_per_user)


def _main_rounds(wanted: int | None, warmups: int) -> list[int]:
    if wanted is None:
        return [2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, LARGEST_ROUNDS]
    left = wanted - PILOT - warmups
    return [left] if left >= 1 else []


def predicted(
    problem: Problem, mu: float, options: TrackingOptions, tried: Sequence[_Sizes], adjacency: Adjacency
) -> Vector:
    """Predicted excess risk of each of some sizes."""
    _, moment, warmups, warmup, rounds, main = np.array(tried).T
    d, p = problem.dimension, problem.features
    typical, least = _curvatures(problem)
    apart, noise = _UNITS[adjacency]
    warm, main = (np.maximum(1, np.floor(options.participation * size)) for size in (warmup, main))
    edge = _edge(problem, options.participation * mu) * apart / math.sqrt(2) / moment
    distance = _distance(problem)
    square = distance**2 / (problem.link_curvature or 1.0)  # of predictions
    share = max(curvature_share(problem.beliefs.sigmoid, square), LEAST_SHARE[0])
    assumed = Assumed(
        dimension=d,
        distance=distance,
        curvature=typical,
        least_curvature=least,
        ridge=problem.ridge * _unit(problem) ** 2,
        spread=_spread(problem),
        first_radius=_first_radius(problem, options),
        margin=margin(d),
        gradient_spread=0.5 * math.sqrt(p / problem.items_per_user),
    )
    warm_noise, main_noise = noise / (warm * mu), noise / (main * mu)
    coefficients, inverse = sqrt_coefficients(int(rounds.max()))  # those of fewer rounds are the first of them
    main_noise = main_noise * np.sqrt(np.cumsum(coefficients**2))[rounds - 1]
    parts = predict(
        assumed,
        metric=share * (1 + edge),
        warmup=(warmups, warm, warm_noise),
        main=(rounds, main, main_noise),
        inverse=inverse,
    )
    risks: Vector = np.sum(parts * (1 + edge**2), axis=0)  # directions of which the pilot released nothing
    return risks


def _unit(problem: Problem) -> float:
    """√p / (R √φ₂): a gradient's dual norm over its length, were features alike in all directions."""
    return math.sqrt(problem.features / (problem.link_curvature or 1.0)) / (problem.feature_norm or 1.0)


def _distance(problem: Problem, known: float = math.inf, unknown: float = 1.0) -> float:
    """Of the optimum from the start, in the metric: √φ₂ times the root mean square of predictions there.

    Where curvature is known that is at most `known`, else `unknown` of what labels are taken to allow.
    """
    far, root = problem.distance * (problem.feature_norm or 1.0), math.sqrt(problem.link_curvature or 1.0)
    if problem.beliefs.isotropic is not None:
        return root * min(far / math.sqrt(problem.features), known)
    return root * min(far, unknown * (problem.beliefs.label_bound or FARTHEST))


def _curvatures(problem: Problem) -> tuple[float, float]:
    """In the metric, without ridge: typically, and in the direction where it is least; at most 1."""
    known, even = problem.beliefs.isotropic, (problem.even_curvature or 1.0) / (problem.link_curvature or 1.0)
    if known is None:
        return UNKNOWN_CURVATURE * even, SLOWEST * even
    slowest = (problem.beliefs.least_curvature or known) * (ALONG if problem.beliefs.sigmoid else SHORT)
    typical, least = (min(max(bend - problem.ridge, 1e-12) * _unit(problem) ** 2, 1.0) for bend in (known, slowest))
    return typical, least


def _spread(problem: Problem) -> float:
    """Of users' averages, in the dual norm: from the declared deviation, else from the largest start gradient."""
    item = problem.beliefs.gradient_deviation or problem.start
    return _unit(problem) * math.hypot(item / math.sqrt(problem.items_per_user), problem.beliefs.heterogeneity)


def _first_radius(problem: Problem, options: TrackingOptions) -> float:
    return options.first_radius or _unit(problem) * problem.start


def _worth(problem: Problem) -> float:
    """Excess risk of the start point, which a plan has to beat, for a solution that is nearer than a plan fears."""
    near = min(_distance(problem), _distance(problem, 3 / math.sqrt(problem.features), NEAR_PREDICTION))
    return min(trivial_risk(problem), 0.5 * _curvatures(problem)[0] * near**2)


def _beyond(problem: Problem, mu: float, sizes: _Sizes, options: TrackingOptions) -> float:
    """π*: users who are clipped are few of one kind, a bias that no number of users removes; noise falls with it."""
    users = sizes.rounds * sizes.main * options.participation
    wanted = BEYOND * math.sqrt(problem.dimension) * problem.items_per_user / (users * mu)
    return min(0.5, max(min(max(wanted, BEYOND_RANGE[0]), BEYOND_RANGE[1]), 2 * problem.beliefs.hostile_share))


def _chosen(inputs: Inputs, found: Candidate[_Sizes]) -> Calibrated:
    problem, privacy, options, sizes = inputs.problem, inputs.privacy, inputs.options, found.of
    d, adjacency = problem.dimension, privacy.adjacency or "replace-one"
    left = search.left_of_delta(NAME, privacy, gaussians=drawn(problem, sizes.total))
    mu = mu_for(privacy.epsilon, left * (1 - 1e-9))
    target = mu * (1 - 1e-8)  # a plan is re-checked by other arithmetic
    length, moment, warm, main = (
        max(1, math.floor(options.participation * size))
        for size in (sizes.length, sizes.moment, sizes.warmup, sizes.main)
    )
    warmup = NormCountMean.for_mu(dimension=d, users=warm, mu=target, adjacency=adjacency).scale
    sums = PrefixNormCounts.for_mu(
        dimension=d,
        users=main,
        mu=target,
        rounds=sizes.rounds,
        factorisation=options.factorisation,
        adjacency=adjacency,
    )
    p = TrackingParameters(
        adjacency=adjacency,
        length_cohort=sizes.length,
        length_divisor=length,
        length_scale=LogLength.for_mu(users=length, mu=target).scale,
        moment_cohort=sizes.moment,
        moment_divisor=moment,
        moment_scale=MomentMean.for_mu(dimension=problem.features, users=moment, mu=target, adjacency=adjacency).scale,
        warmup_rounds=sizes.warmups,
        warmup_cohort=sizes.warmup,
        warmup_divisor=warm,
        warmup_scale=warmup,
        main_rounds=sizes.rounds,
        main_cohort=sizes.main,
        main_divisor=main,
        main_scale=sums.scale,
        factorisation=options.factorisation,
        feature_norm=problem.feature_norm or 1.0,
        link_curvature=problem.link_curvature or 1.0,
        ridge=problem.ridge,
        sigmoid=problem.beliefs.sigmoid,
        intercept=problem.beliefs.intercept and problem.beliefs.hostile_share == 0 and problem.outputs == 1,
        spread=min(_spread(problem), _first_radius(problem, options)),
        first_radius=_first_radius(problem, options),
        beyond=_beyond(problem, mu_for(privacy.epsilon, privacy.delta), sizes, options),
        margin=margin(d),
        reference_items=options.reference_items or problem.items_per_user,
        mu=mu,
    )
    declared = Assumption(Kind.DECLARED_PARTICIPATION, (options.participation,))
    counted = Assumption(Kind.ABSENT_IS_ZERO_ROW) if options.participation == 1 else declared
    return Calibrated(p, found.risk, adjacency=adjacency, assumptions=(counted,))


SPEC = AlgorithmSpec(
    name=NAME,
    summary="One pass, private broadcasts: private metric, warm-up, recursive gradients, private radius (recommended)",
    origin=ours(BASSILY_SUN_2023.at("Algorithm 1"), CHOQUETTE_CHOO_2025.at("Algorithm 1")),
    guarantees=Guarantees(THEOREM, pairs, adjacency=("replace-one", "zero-out"), one_server=None),
    options=TrackingOptions,
    parameters=TrackingParameters,
    planner=Planner(
        NAME, _candidates, _chosen, "for a radius that settles in one pass", _worth, ALSO, NEAR, check=_check
    ),
    verifier=verify,
    maker=TrackingSRGD,
    factor=Factor(known=2.0, unknown=8.0),
    noise_ignores_domain=True,
    no_black_boxes=NoBlackBoxes("it asks for the second moment of a user's features, which no gradient tells"),
)

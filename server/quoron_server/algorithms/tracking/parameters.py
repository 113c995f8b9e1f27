"""The public numbers of a run of `tracking-srgd`, its slots, and the mechanisms that they make."""

from dataclasses import dataclass
from typing import Literal

from quoron_privacy.means.moment import SecondMomentNoise, packed
from quoron_privacy.means.norm_counts import PrefixTail, TailMean
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency
from quoron_server.parameters import GaussianPromise, Parameters, PlannedRelease
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
    tail: float  # π*: share of users meant beyond ⅔ of the radius
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
        return self.pilot_cohort + self.warmup_rounds * self.warmup_cohort + self.main_rounds * self.main_cohort

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

    def gaussian(self, problem: Problem) -> GaussianPromise:
        """tracking-srgd#t1: μ of the transcript, pilot and gradients together."""
        return GaussianPromise(self.mu, total_variation(gaussians=drawn(problem, self.rounds)))

    def cohort(self, round_: int) -> tuple[int, int]:
        """(first slot, users) of a round."""
        if round_ == 0:
            return 0, self.pilot_cohort
        warm = min(round_ - 1, self.warmup_rounds)
        main = max(0, round_ - 1 - self.warmup_rounds)
        start = self.pilot_cohort + warm * self.warmup_cohort + main * self.main_cohort
        return start, self.main_cohort if round_ > self.warmup_rounds else self.warmup_cohort


def drawn(problem: Problem, rounds: int) -> int:
    """Gaussian samples of a run: the pilot's moment, then a gradient and three shares a round."""
    return packed(problem.features) + (rounds - 1) * (problem.dimension + 3)


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """All mechanisms of a plan."""

    moment: SecondMomentNoise
    warmup: TailMean
    main: TailMean | PrefixTail


def mechanisms(p: TrackingParameters, features: int, dimension: int) -> Mechanisms:
    """The mechanisms with a plan's numbers, for items with so many features and models of so many numbers."""
    return Mechanisms(
        SecondMomentNoise(features, p.feature_norm, p.pilot_divisor, p.adjacency, p.pilot_scale),
        TailMean(dimension, p.warmup_divisor, p.adjacency, p.warmup_scale),
        PrefixTail(dimension, p.main_divisor, p.adjacency, p.main_scale, p.main_rounds, p.factorisation)
        if p.variant == "recursive"
        else TailMean(dimension, p.main_divisor, p.adjacency, p.main_scale),
    )

"""The public numbers of a run of `tracking-srgd`, its slots, and the mechanisms that they make."""

from dataclasses import dataclass
from typing import Literal

from quoron_privacy.clipping import mean_sensitivity
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.moment import SecondMomentNoise
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_privacy.radius_cells import RadiusCells
from quoron_privacy.release import Release
from quoron_server.plan import PlannedRelease

Variant = Literal["recursive", "independent"]


@dataclass(frozen=True, slots=True)
class TrackingParameters:
    """Public numbers of one run."""

    variant: Variant
    pilot_cohort: int
    pilot_divisor: int
    pilot_scale: float  # s_p: noise on the isometric coordinates of the second moment
    warmup_rounds: int  # w
    warmup_cohort: int
    warmup_divisor: int
    warmup_scale: float  # noise of a warm-up round per unit of its radius
    warmup_cells: float  # noise of a cell's share
    main_rounds: int  # T_m
    main_cohort: int
    main_divisor: int
    main_scale: float  # seed noise of normalised rows; of each round per unit of radius when independent
    main_cells: float
    factorisation: str  # "-" when independent
    feature_norm: float  # R
    link_curvature: float  # φ₂
    ridge: float  # λ
    spread: float  # s before anything is released
    first_radius: float  # C_0
    quantile: float  # γ: share of users meant to be within the radius
    margin: float  # κ
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
        """The second moment; then in every round the gradient, in proportion to its radius, and the cells."""
        made, mu = mechanisms(self, dimension), self.mu
        warmup, main = range(1, 1 + self.warmup_rounds), range(1 + self.warmup_rounds, self.rounds)
        noise = made.prefix or made.main.gaussian
        return (
            PlannedRelease(made.moment, made.moment.entry(), 1, range(1), mu),
            PlannedRelease(made.warmup.gaussian, made.warmup.entry(), len(warmup), warmup, mu, scaled=True),
            PlannedRelease(made.warmup.cells, made.warmup.cells.entry(), len(warmup), warmup, mu),
            PlannedRelease(noise, made.main.entry(), len(main), main, mu, scaled=True),
            PlannedRelease(made.main.cells, made.main.cells.entry(), len(main), main, mu),
        )

    def cohort(self, round_: int) -> tuple[int, int]:
        """(first slot, users) of a round."""
        if round_ == 0:
            return 0, self.pilot_cohort
        warm = min(round_ - 1, self.warmup_rounds)
        main = max(0, round_ - 1 - self.warmup_rounds)
        start = self.pilot_cohort + warm * self.warmup_cohort + main * self.main_cohort
        return start, self.main_cohort if round_ > self.warmup_rounds else self.warmup_cohort


@dataclass(frozen=True, slots=True)
class PhaseMechanisms:
    """What releases a round's gradient and cells."""

    divisor: int
    gaussian: GaussianNoise  # for normalised rows; of a recursive main round only its numbers are used
    cells: RadiusCells
    name: str

    def entry(self) -> Release:
        """The ledger entry of the gradient, for a radius of 1."""
        return Release(self.name, self.gaussian.entry().parameters)


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """All mechanisms of a plan."""

    moment: SecondMomentNoise
    warmup: PhaseMechanisms
    main: PhaseMechanisms
    prefix: PrefixNoise | None


def mechanisms(p: TrackingParameters, features: int) -> Mechanisms:
    """The mechanisms with a plan's numbers, for items with so many features."""
    main, warm = mean_sensitivity(1.0, p.main_divisor), mean_sensitivity(1.0, p.warmup_divisor)
    recursive = p.variant == "recursive"
    name = f"prefix-{p.factorisation}" if recursive else "gaussian"
    return Mechanisms(
        SecondMomentNoise(features, p.feature_norm, p.pilot_divisor, "replace-one", p.pilot_scale),
        PhaseMechanisms(
            p.warmup_divisor,
            GaussianNoise(warm, p.warmup_scale),
            RadiusCells(p.warmup_divisor, "replace-one", p.warmup_cells),
            "gaussian",
        ),
        PhaseMechanisms(
            p.main_divisor,
            GaussianNoise(main, p.main_scale),
            RadiusCells(p.main_divisor, "replace-one", p.main_cells),
            name,
        ),
        PrefixNoise(p.main_rounds, main, p.main_scale, p.factorisation) if recursive else None,
    )

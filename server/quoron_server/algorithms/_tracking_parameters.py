"""The public numbers of a run of `tracking-srgd`, its slots, and the mechanisms that they make."""

from dataclasses import dataclass
from typing import Literal

from quoron_server.algorithm import Release
from quoron_server.mechanisms.clipping import mean_sensitivity
from quoron_server.mechanisms.gaussian import GaussianNoise
from quoron_server.mechanisms.prefix_noise import PrefixNoise
from quoron_server.mechanisms.radius_cells import RadiusCells
from quoron_server.mechanisms.second_moment import SecondMomentNoise

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

    def entry(self, radius: float) -> Release:
        """The ledger entry of the gradient."""
        parameters = {"sensitivity": radius * self.gaussian.sensitivity, "scale": radius * self.gaussian.scale}
        return Release(self.name, parameters)


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """All mechanisms of a plan."""

    moment: SecondMomentNoise
    warmup: PhaseMechanisms
    main: PhaseMechanisms
    prefix: PrefixNoise | None


def mechanisms(p: TrackingParameters, dimension: int) -> Mechanisms:
    """The mechanisms with a plan's numbers."""
    main, warm = mean_sensitivity(1.0, p.main_divisor), mean_sensitivity(1.0, p.warmup_divisor)
    recursive = p.variant == "recursive"
    name = f"prefix-{p.factorisation}" if recursive else "gaussian"
    return Mechanisms(
        SecondMomentNoise(dimension, p.feature_norm, p.pilot_divisor, "replace-one", p.pilot_scale),
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

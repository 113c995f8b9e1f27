"""What the rules that leave outliers out have in common: how far apart users are taken to lie, and in which norm."""

from dataclasses import dataclass
from typing import Protocol

from quoron_privacy.robust.filter.concentration import Norm
from quoron_server.algorithms.localised.method import LocalisedParameters, phase_releases
from quoron_server.parameters import CONTRACTION, DOMINANT, Assumption, PlannedRelease
from quoron_server.problem import Problem


class Filter(Protocol):
    """The numbers of a filter or a test that its theorem is about, in units of the cohort."""

    @property
    def cohort_size(self) -> int:
        """B."""

    @property
    def theta(self) -> float:
        """τ d."""

    @property
    def noise_multiplier(self) -> float:
        """s."""

    @property
    def eta_beta(self) -> float:
        """Step size times smoothness, at most."""

    @property
    def score_error(self) -> float:
        """|computed - real| of a score, at most."""

    def temperature(self, distance: float) -> float:
        """τ."""

    def sensitivity(self, step: float, distance: float, /) -> float:
        """How far one user moves a phase's average."""

    def noise_scale(self, step: float, distance: float, /) -> float:
        """σ of a phase's release."""


@dataclass(frozen=True, slots=True)
class FilteringParameters(LocalisedParameters):
    """What both filters have in common."""

    temperature: float  # τ, an inverse length
    distance: float  # d: how far apart ordinary users' average gradients are taken to lie
    filter: Filter
    norm: Norm = "l2"  # of τ and d

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """One noisy average a phase, behind the filter and its cutoff, or its test."""
        del dimension
        return phase_releases(self.phases, [self.filter] * len(self.phases), None)

    def assumptions(self, problem: Problem) -> tuple[Assumption, ...]:
        """In ℓ∞ steps are non-expansive for dominant Hessians alone."""
        del problem
        return (*CONTRACTION, DOMINANT) if self.norm == "linf" else CONTRACTION

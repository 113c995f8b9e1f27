"""Public numbers of `outlier-iterates`."""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from quoron_client.protocol.local_sgd import LocalSGD
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.release import Release
from quoron_privacy.robust.laplace_test import LaplaceOneShot
from quoron_privacy.robust.lottery import OneShot
from quoron_server.parameters import Parameters, PlannedRelease
from quoron_server.problem import Problem


@dataclass(frozen=True, slots=True)
class ChainPhase:
    """One phase's public numbers."""

    users: int  # N: users of a chain, one after another, which is the phase's rounds
    averaged: int  # the iterates of the last so many of them are averaged
    step_size: float  # η
    radius: float  # τ
    release_scale: float  # σ, standard deviation per coordinate
    release: OneShot | LaplaceOneShot  # test and aggregate

    @property
    def noise(self) -> GaussianNoise:
        """Of the phase's release."""
        return GaussianNoise(self.release.mean.sensitivity * self.radius, self.release_scale)

    def entry(self, index: int) -> Release:
        """The ledger entry of the phase's release, or of its having none."""
        figures = {"scale": self.release_scale, "radius": self.radius, "core": float(self.release.mean.core)}
        return Release("outlier-mean", {"phase": float(index), **figures})


@dataclass(frozen=True, slots=True)
class OutlierIterateParameters(Parameters):
    """Public numbers of one run."""

    cohort_size: int  # C: chains side by side, so users asked in a round
    phases: tuple[ChainPhase, ...]

    def releases(self, dimension: int) -> tuple[PlannedRelease, ...]:
        """One noisy mean a phase, behind its test."""
        del dimension
        return releases_of(self.phases)

    def cohorts(self) -> tuple[int, ...]:
        """A user of every chain."""
        return (self.cohort_size,) * sum(phase.users for phase in self.phases)

    def asks(self, problem: Problem) -> LocalSGD:
        """A local pass."""
        return LocalSGD(np.zeros((1, problem.dimension)), self.phases[0].step_size, problem.domain)

    def answer_length(self, problem: Problem) -> int:
        """The last iterate of a local pass, and their mean."""
        return 2 * problem.dimension


def releases_of(phases: tuple[ChainPhase, ...]) -> tuple[PlannedRelease, ...]:
    """One noisy mean a phase, behind its test."""
    ends = list(accumulate((phase.users for phase in phases), initial=0))
    return tuple(
        PlannedRelease(phase.release, phase.entry(index), 1, range(ends[index], ends[index + 1]), None)
        for index, phase in enumerate(phases)
    )

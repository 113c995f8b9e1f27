"""Public numbers of `outlier-iterates`."""

from dataclasses import dataclass

import numpy as np

from quoron_client.protocol.questions import LocalSGD
from quoron_server.algorithms.chains import ChainPhase, releases_of
from quoron_server.parameters import Parameters, PlannedRelease
from quoron_server.problem import Problem


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

"""Chains of users, each taking a local pass of SGD from where the one before it stopped, and a release of their means.

What `outlier-iterates` and the algorithm that Lowy, Liu & Asi (2024) print share: docs/papers/lowy.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.questions import Answers, LocalSGD
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.release import Release
from quoron_privacy.robust.laplace_test import LaplaceOneShot
from quoron_privacy.robust.lottery import OneShot
from quoron_server.algorithm import Vector
from quoron_server.parameters import Parameters, PrintedParameters
from quoron_server.problem import Problem
from quoron_server.schedule import RoundRelease, Rounds

Chains = NDArray[np.bool_]  # (C,)


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
    def rounds(self) -> int:
        """Of the phase: one for each user of a chain."""
        return self.users

    @property
    def noise(self) -> GaussianNoise:
        """Of the phase's release."""
        return GaussianNoise(self.release.mean.sensitivity * self.radius, self.release_scale)

    def entry(self, index: int) -> Release:
        """Return the ledger entry of the phase's release, or of its having none."""
        figures = {"scale": self.release_scale, "radius": self.radius, "core": float(self.release.mean.core)}
        return Release("outlier-mean", {"phase": float(index), **figures})


class ChainRounds(Parameters):
    """Numbers of a run whose rounds ask the next user of each of `cohort_size` chains."""

    __slots__ = ()
    cohort_size: int
    phases: tuple[ChainPhase, ...]

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """Local passes of a user of every chain; one noisy mean a phase, behind its test."""
        for index, phase in enumerate(self.phases):  # as printed, a halt ends the run without those that are left
            task = LocalSGD(np.zeros((1, problem.dimension)), phase.step_size, problem.domain)
            halts = isinstance(self, PrintedParameters)
            made = RoundRelease(phase.release, phase.entry(index), tested=halts, at_end=True)
            yield Rounds(phase.users, self.cohort_size, task, (made,))


def largest(problem: Problem) -> float:
    """Return what no coordinate of a local pass exceeds: it ends in the domain."""
    return problem.domain.norm_bound(problem.dimension) * (1 + 1e-9)


def handed_on(
    answers: Answers, whole: Chains, start: Vector, problem: Problem
) -> tuple[NDArray[np.float64], NDArray[np.float64], Chains]:
    """Return where each chain continues, its mean iterate of this pass, and which chains are unbroken.

    A row that no local pass can produce breaks its own chain: the chain's clients get `start` from then on.
    """
    sane = (np.abs(answers.values) <= largest(problem)).all(axis=(1, 2))
    whole = whole & answers.answered & sane
    values = np.where(whole[:, None, None], answers.values, 0.0)
    return np.where(whole[:, None], problem.domain.project(values[:, 0]), start), values[:, 1], whole

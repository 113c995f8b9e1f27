"""Predicted excess risk of phased ERM, from public facts only; it ranks plans and never sets noise.

Where F is about a quadratic of curvature h, all is linear. A phase of J steps at step η takes its start's error e to

    b e - r ζ,    b = a^J + (1 - a^J) λ/(h + λ),    r = (1 - a^J)/(h + λ),    a = 1 - η (h + λ),

ζ the error of its users' average gradient, and adds the noise of its release. Where the curvature is unknown, the
stability of regularised minimisers, the gap that J steps leave and the distance between phases are added up.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_server.algorithms.averaged_sgd import Number
from quoron_server.problem import Problem

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PhaseModel:
    """What is known of a phase; each a number, or an array with one for each of many candidates."""

    users: float  # n_k
    left: Number  # (1 - ηλ)^J of gd or (1 - α)^J of agd at h = 0: what J steps leave of the gap
    decay: Number  # a^J at h
    slow_decay: Number  # a^J at the least curvature
    regularisation: Number  # λ
    release_scale: Number  # σ


def predicted(problem: Problem, phases: list[PhaseModel]) -> Vector:
    """Predicted E F(x) - F* after `phases`, in the units of the loss."""
    curvature = problem.beliefs.isotropic
    return _bounded(problem, phases) if curvature is None else _isotropic(problem, curvature, phases)


def _isotropic(problem: Problem, curvature: float, phases: list[PhaseModel]) -> Vector:
    slowest = problem.beliefs.least_curvature or curvature
    remaining, spread = np.array(problem.distance), np.array(0.0)  # distance along the slowest; the rest, squared
    for phase in phases:
        pull = np.asarray(phase.regularisation)
        bias = phase.decay + (1 - phase.decay) * pull / (curvature + pull)
        slow = phase.slow_decay + (1 - phase.slow_decay) * pull / (slowest + pull)
        sampled = (1 - phase.decay) / (curvature + pull)
        remaining = remaining * np.abs(slow)
        spread = (
            bias**2 * spread
            + sampled**2 * problem.user_deviation**2 / phase.users
            + problem.dimension * np.asarray(phase.release_scale) ** 2
        )
    return np.asarray((slowest * remaining**2 + curvature * spread) / 2)


def _bounded(problem: Problem, phases: list[PhaseModel]) -> Vector:
    steep, away, total, rest = problem.lipschitz, np.array(problem.distance**2), np.array(0.0), np.array(0.0)
    for phase in phases:
        pull = np.asarray(phase.regularisation)
        gap = steep**2 / pull * np.asarray(phase.left)  # of the phase's objective, from its start
        noise = problem.dimension * np.asarray(phase.release_scale) ** 2
        total = total + pull * away / 2 + 2 * problem.user_deviation**2 / (pull * phase.users)
        away = 2 * (2 * gap / pull + noise)
        rest = np.minimum(steep * np.sqrt(away), steep * np.sqrt(2 * gap / pull) + (problem.beta or 0.0) * noise / 2)
    return np.asarray(total + rest)

"""Multi-stage AC-SA: accelerated stochastic approximation on strongly convex functions, step by step.

    p = start
    for each stage length N:                          (Ls-smooth, μ-strongly convex G;  x = ag = p)
        for t = 1..N:      α = 2/(t+1),   γ = 4 Ls/(t(t+1))
            md = [(1-α)(μ+γ) ag + α((1-α)μ+γ) x] / [γ + (1-α²)μ]
            g  = an unbiased estimate of ∇G(md)
            x  = Proj([αμ md + ((1-α)μ+γ) x - α g] / (μ+γ))
            ag = α x + (1-α) ag
        p = ag

    >>> from quoron_client.protocol.domains import L2Ball
    >>> x, ag, shape = np.zeros(2), np.zeros(2), Shape(strength=0.5, smoothness=2.0)
    >>> for t in range(1, 13):  # towards (1, -2)
    ...     md = middle(x, ag, t, shape)
    ...     x, ag = step(x, ag, md, 2.0 * (md - np.array([1.0, -2.0])), t, shape, L2Ball(9.0))
    >>> np.round(ag, 1).tolist()
    [1.0, -2.0]

In expectation a stage ends within 2 Ls ‖p - x*‖²/(N(N+1)) + 8 V/(μ(N+1)) of the minimum, V the variance of g
(`stage_bound`). The weights of md are convex, so md and ag stay in the domain.

Source: Ghadimi & Lan (2012), Propositions 5 and 9, as used by Lowy, Liu & Asi (2024), Algorithm 2.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_client.protocol.domains import Domain
from quoron_privacy.arrays import Vector
from quoron_privacy.errors import ConfigError
from quoron_privacy.kernels.prebuilt import njit

Lengths = NDArray[np.int64]

BETWEEN = 7  # curvatures at which the worst bias is looked for


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step knows of the function: μ and Ls."""

    strength: float  # μ > 0: strong convexity
    smoothness: float  # Ls >= μ


def middle(x: Vector, ag: Vector, t: int, shape: Shape) -> Vector:
    """md of step t (from 1): where the gradient is taken, shape (d,)."""
    at_ag, at_x = _middle(t, shape.strength, shape.smoothness)
    return at_ag * ag + at_x * x


def step(
    x: Vector, ag: Vector, md: Vector, gradient: Vector, t: int, shape: Shape, domain: Domain
) -> tuple[Vector, Vector]:
    """(x, ag) after step t (from 1) with the gradient estimate at `md`; shapes (d,)."""
    at_md, at_x, at_gradient = _prox(t, shape.strength, shape.smoothness)
    moved = domain.project(at_md * md + at_x * x - at_gradient * gradient)
    alpha = 2 / (t + 1)
    return moved, alpha * moved + (1 - alpha) * ag


@lru_cache(maxsize=4096)
def stage_lengths(steps: int, stages: int, growth: float) -> tuple[int, ...]:
    """`steps` spent on `stages` stages, each about `growth` times the one before: sum exact, every length positive.

    Halving the gap in every stage takes max(4 √(2 Ls/μ), 64 V/(3 μ V_0 2^-(k-1))) steps: growth 1 while distance
    dominates, 2 once noise does. Raises ConfigError for more stages than steps.
    """
    if not 1 <= stages <= steps:
        raise ConfigError(f"Expected 1 <= stages <= steps={steps}, got stages={stages}.")
    shares = growth ** np.arange(stages)
    ends = np.rint((steps - stages) * np.cumsum(shares) / shares.sum()).astype(int)
    return tuple(int(length) + 1 for length in np.diff(ends, prepend=0))


def stage_bound(
    length: Vector, square_distance: Vector, variance: float, strength: Vector, smoothness: Vector
) -> Vector:
    """Expected gap after one stage from a point at that expected squared distance; `variance` is E‖g - ∇G‖²."""
    accelerated = 2 * smoothness * square_distance / (length * (length + 1))
    return accelerated + 8 * variance / (strength * (length + 1))


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """What a phase does to errors on a quadratic, linear in the start's and every gradient's; shapes (C,)."""

    bias: Vector  # (output - x*) / (start - x*)
    noise: Vector  # Σ_t r_t², r_t = d output / d g_t: for errors that are fresh in every step
    lasting: Vector  # Σ_t r_t: for an error that all gradients share
    worst_bias: Vector  # largest |bias| over curvatures in between: few steps can annul one of them, not all


def responses(
    stages: Lengths,
    strengths: Vector,
    smoothnesses: Vector,
    *,
    regularisation: float,
    curvature: float,
    between: tuple[float, float],
) -> Responses:
    """Of G(x) = (h/2)‖x - x*‖² + (λ/2)‖x - start‖² without projections, by the recursion forwards and backwards.

    For C candidates: stages (C, S), with zeros behind the last of fewer stages, strengths and smoothnesses (C,).
    """
    # Curvatures of F whose bias is followed: what the responses are about, then some from one end to the other.
    followed = np.concatenate([[curvature], np.linspace(*between, BETWEEN)])
    found, point = np.empty((3 + BETWEEN, len(stages))), np.empty((2, 1 + BETWEEN))
    scratch = np.empty((2, int(stages.sum(axis=1).max())))
    _responses(stages, strengths, smoothnesses, regularisation, followed, point, found, *scratch)
    return Responses(found[0], found[1], found[2], np.max(np.abs(found[3:]), axis=0))


@lru_cache(maxsize=8192)
def response(steps: int, smoothness: float, curvature: float) -> tuple[float, Vector, Vector]:
    """Of one stage that knows of no strong convexity, on a quadratic: its bias, and of every step r_t and md, (T,)."""
    found, weights, path = np.empty((3, 1)), np.empty(steps), np.empty(steps)
    known = np.array([[steps]]), np.zeros(1), np.array([smoothness]), 0.0, np.array([curvature])
    _responses(*known, np.empty((2, 1)), found, weights, path)
    return float(found[0, 0]), weights, path


@njit(cache=True)
def _middle(t: int, strength: float, smoothness: float) -> tuple[float, float]:
    """Weights of ag and x in md."""
    alpha, gamma = 2 / (t + 1), 4 * smoothness / (t * (t + 1))
    total = gamma + (1 - alpha * alpha) * strength
    return (
        (1 - alpha) * (strength + gamma) / total,
        alpha * ((1 - alpha) * strength + gamma) / total,
    )


@njit(cache=True)
def _prox(t: int, strength: float, smoothness: float) -> tuple[float, float, float]:
    """Weights of md, x and -g in the next x, before projection."""
    alpha, gamma = 2 / (t + 1), 4 * smoothness / (t * (t + 1))
    total = strength + gamma
    return alpha * strength / total, ((1 - alpha) * strength + gamma) / total, alpha / total


@njit(cache=True)
def _responses(stages, strengths, smoothnesses, pull, curvatures, point, found, weights, path):  # type: ignore[no-untyped-def]
    """Fills `found` for each candidate: bias at curvatures[0], Σ r², Σ r, bias at the others.

    Of the last candidate `weights` are the r_t, and `path` holds md at curvatures[0]; both as long as the most rounds.

    The rows of `point`, one number for each curvature, are x and ag; the regulariser draws to the phase's start, 1.
    """
    for c in range(len(stages)):
        strength, smoothness, curvature = strengths[c], smoothnesses[c], pull + curvatures[0]
        noise = lasting = 0.0
        by_x, by_ag, place = 0.0, 1.0, 0  # derivatives of the output; rounds, without numpy's sum, which loads BLAS
        for k in range(stages.shape[1]):
            place += stages[c, k]
        # Backwards, by the chain rule: `here` is how much the output moves by a unit of error in the gradient of step
        # (k, t).
        for k in range(stages.shape[1] - 1, -1, -1):
            for t in range(stages[c, k], 0, -1):
                to_ag, to_x = _middle(t, strength, smoothness)
                at_md, at_x, at_gradient = _prox(t, strength, smoothness)
                by_moved = by_x + 2 / (t + 1) * by_ag
                here = -at_gradient * by_moved
                noise += here * here
                lasting += here
                place -= 1
                weights[place] = here
                by_md = (at_md - at_gradient * curvature) * by_moved
                by_x = at_x * by_moved + to_x * by_md
                by_ag = (1 - 2 / (t + 1)) * by_ag + to_ag * by_md
            # A stage starts with x = ag, so what depends on either depends on the ag that the stage before handed on.
            by_x, by_ag = 0.0, by_x + by_ag
        # Forwards, at all curvatures at once: what is left of the distance 1 from the start.
        for i in range(len(curvatures)):
            point[1, i] = 1.0
        for k in range(stages.shape[1]):
            for i in range(len(curvatures)):
                point[0, i] = point[1, i]
            for t in range(1, stages[c, k] + 1):
                to_ag, to_x = _middle(t, strength, smoothness)
                at_md, at_x, at_gradient = _prox(t, strength, smoothness)
                for i in range(len(curvatures)):
                    md = to_ag * point[1, i] + to_x * point[0, i]
                    if i == 0:
                        path[place] = md
                    x = at_md * md + at_x * point[0, i] - at_gradient * ((pull + curvatures[i]) * md - pull)
                    point[1, i] = 2 / (t + 1) * x + (1 - 2 / (t + 1)) * point[1, i]
                    point[0, i] = x
                place += 1
        found[0, c], found[1, c], found[2, c] = point[1, 0], noise, lasting
        for i in range(1, len(curvatures)):
            found[2 + i, c] = point[1, i]

"""Threshold tests with Laplace noise, decided in integers, and the hidden cutoff after which a phase halts.

    >>> from quoron_privacy.noise.streams import SeededNoise
    >>> test = LaplaceThreshold(scale=2.0, threshold=10.0)
    >>> test.decide(np.array([90.0, -70.0]), SeededNoise(1).stream("filter", 0)).tolist()
    [True, False]

Source: Dwork & Roth (2014), section 3.6, on a grid. Statements and proofs: docs/privacy/noise.md#n5 and noise.md#n7; of
the cutoff docs/privacy/outlier-filter.md.
"""

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from math import ceil

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import (
    ConfigError,
    Infeasible,
    VerificationError,
    count,
    non_negative,
    positive,
    probability,
)
from quoron_privacy.noise.streams import RandomStream

_STEPS = 2.0**20  # grid steps in one scale
_LARGEST = 2.0**52  # scores and thresholds are at most this many steps

_BITS = 96


@dataclass(frozen=True, slots=True)
class LaplaceThreshold:
    """One test for each score, independent Laplace(scale) noise in each, on the grid of scale / 2²⁰.

    Formal guarantee: if replacing one user moves a score by at most s, its test is `epsilon(s)`-DP, up to
    `noise.LAPLACE_SLACK` in total variation. Every score has a decision: NaN counts as minus infinity.
    """

    scale: float  # λ
    threshold: float  # F, moved up to the grid: the least multiple of its step not below F

    def __post_init__(self) -> None:
        positive(scale=self.scale)
        if not (1e-200 < self.scale < 1e200 and abs(self.threshold) <= self.scale * 2.0**31):
            raise ConfigError(
                f"Expected |threshold| <= 2**31 scale, got threshold={self.threshold}, scale={self.scale}."
            )

    @property
    def grid(self) -> float:
        """The grid step g. A score on the grid is within one g of the score."""
        return self.scale / _STEPS

    def epsilon(self, sensitivity: float) -> float:
        """Return ε of one test whose score moves by at most `sensitivity`: rounding can add two grid steps."""
        non_negative(sensitivity=sensitivity)
        return (sensitivity * (1 + 1e-9) + 2 * self.grid) / self.scale

    def decide(self, scores: NDArray[np.float64], stream: RandomStream) -> NDArray[np.bool_]:
        """True where score + noise > threshold, both on the grid; shape of `scores`."""
        with np.errstate(all="ignore"):
            scaled = np.nan_to_num(np.asarray(scores, np.float64) / self.grid, nan=-np.inf)
        steps = np.rint(np.clip(scaled, -_LARGEST, _LARGEST)).astype(np.int64)
        return steps > self.limits(steps.shape, stream)

    def limits(self, shape: int | tuple[int, ...], stream: RandomStream) -> NDArray[np.int64]:
        """Return noisy thresholds in grid steps, before any score is known: `decide` is round(score / grid) > limit."""
        return ceil(self.threshold / self.grid) - stream.laplace_steps(_STEPS, shape)


@dataclass(frozen=True)
class HiddenCutoff:
    """P(k) ∝ exp(-decay |k - centre|) on {1, ..., 2 centre - 1}, up to total variation centre · 2⁻⁹⁵.

    It hides whether one user was counted: shifted by one, the law changes by a factor of at most e^decay, except for
    its end points.

        >>> from quoron_privacy.noise.streams import SeededNoise
        >>> 1 <= HiddenCutoff(centre=5, decay=0.5).draw(SeededNoise(1).stream("cutoff", 0)) <= 9
        True
    """

    centre: int  # the middle of the range; the papers' c
    decay: float  # the law's own ε for a shift by one; the papers' ε_c

    def __post_init__(self) -> None:
        count(centre=self.centre)
        positive(decay=self.decay)

    @property
    def largest(self) -> int:
        """The largest cutoff, 2 centre - 1."""
        return 2 * self.centre - 1

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """⌊2⁹⁶ exp(-decay |k - centre|)⌋ + 1 for k = 1, ..., largest, 2⁹⁶ in the middle; exact for the draw."""
        with localcontext() as context:
            context.prec = 60
            side = [int((-j * Decimal(self.decay)).exp() * 2**_BITS) + 1 for j in range(1, self.centre)]
        return (*reversed(side), 2**_BITS, *side)

    def draw(self, stream: RandomStream) -> int:
        """Return one cutoff. Draw it once a phase and keep it secret."""
        return 1 + stream.weighted_choice(self.weights)


def cutoff_law(centre: int, decay: float) -> NDArray[np.float64]:
    """Probabilities π(1), …, π(2·centre − 1), proportional to exp(−decay·|k − centre|); shape (2·centre − 1,)."""
    count(centre=centre)
    positive(decay=decay)
    weights = np.exp(-decay * np.abs(np.arange(1, 2 * centre) - centre))
    law: NDArray[np.float64] = weights / math.fsum(weights)
    return law


def end_mass(centre: int, decay: float) -> float:
    """π(1) = π(2·centre − 1): the part of the law that a shift by one cannot hide."""
    count(centre=centre)
    positive(decay=decay)
    ratio = math.exp(-decay)
    total = 1 + 2 * ratio * (1 - ratio ** (centre - 1)) / (1 - ratio)
    return float(ratio ** (centre - 1) / total)


def left_of_delta(mechanism: str, epsilon: float, delta: float, eta_beta: float, delta_slack: float = 0.0) -> float:
    """Return δ less what noise that differs from its law by `delta_slack` costs: (1 + e^ε) times that.

    Raises Infeasible where nothing is left, or where steps are so long that they do not contract.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)
    non_negative(eta_beta=eta_beta, delta_slack=delta_slack)
    left = delta - (1 + math.exp(epsilon)) * delta_slack
    if left <= 0:
        raise Infeasible(mechanism, "(1 + e^ε)·delta_slack < δ fails", f"delta > {delta - left:.3g}")
    if eta_beta > 2:
        raise Infeasible(mechanism, f"step·smoothness = {eta_beta:g} <= 2 fails", "a step of at most 2/β")
    return left


def require(holds: bool, condition: str, parameters: object) -> None:
    """Raise VerificationError unless a condition of a filter's theorem holds."""
    if not holds:
        raise VerificationError(f"Expected {condition}, which fails for {parameters}.")

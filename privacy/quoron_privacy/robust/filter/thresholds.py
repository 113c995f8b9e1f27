"""Threshold tests with Laplace noise, decided in integers: is score + noise above the threshold?

    >>> from quoron_privacy.noise.sources import SeededNoise
    >>> test = LaplaceThreshold(scale=2.0, threshold=10.0)
    >>> test.decide(np.array([90.0, -70.0]), SeededNoise(1).stream("filter", 0)).tolist()
    [True, False]

Source: Dwork & Roth (2014), section 3.6, on a grid. Statement and proof: docs/privacy/noise.md, theorem N5.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, non_negative, positive
from quoron_privacy.noise.streams import RandomStream

_STEPS = 2.0**20  # grid steps in one scale
_LARGEST = 2.0**52  # scores and thresholds are at most this many steps


@dataclass(frozen=True, slots=True)
class LaplaceThreshold:
    """One test for each score, independent Laplace(scale) noise in each, on the grid of scale / 2²⁰.

    Formal guarantee: if replacing one user moves a score by at most s, its test is `epsilon(s)`-DP, up to
    `noise.LAPLACE_SLACK` in total variation. Every score has a decision: NaN counts as minus infinity.
    """

    scale: float  # λ
    threshold: float  # F, moved up to the grid: see effective_threshold

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

    @property
    def effective_threshold(self) -> float:
        """The threshold that is used: the least multiple of the grid step not below `threshold`."""
        return ceil(self.threshold / self.grid) * self.grid

    def epsilon(self, sensitivity: float) -> float:
        """ε of one test whose score moves by at most `sensitivity`: rounding can add two grid steps."""
        non_negative(sensitivity=sensitivity)
        return (sensitivity * (1 + 1e-9) + 2 * self.grid) / self.scale

    def decide(self, scores: NDArray[np.float64], stream: RandomStream) -> NDArray[np.bool_]:
        """True where score + noise > effective_threshold; shape of `scores`."""
        with np.errstate(all="ignore"):
            scaled = np.nan_to_num(np.asarray(scores, np.float64) / self.grid, nan=-np.inf)
        steps = np.rint(np.clip(scaled, -_LARGEST, _LARGEST)).astype(np.int64)
        return steps > self.limits(steps.shape, stream)

    def limits(self, shape: int | tuple[int, ...], stream: RandomStream) -> NDArray[np.int64]:
        """Noisy thresholds in grid steps, drawn before any score is known: `decide` is round(score / grid) > limit."""
        return ceil(self.threshold / self.grid) - stream.laplace_steps(_STEPS, shape)

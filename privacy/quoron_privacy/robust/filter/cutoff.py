"""The hidden cutoff: after how many filtered users a phase halts, drawn once a phase from a two-sided geometric law.

    >>> from quoron_privacy.noise.sources import SeededNoise
    >>> 1 <= HiddenCutoff(centre=5, decay=0.5).draw(SeededNoise(1).stream("cutoff", 0)) <= 9
    True

It hides whether one user was counted: shifted by one, the law changes by a factor of at most e^decay, except for its
end points. Statement and proof: docs/privacy/outlier-filter.md; the draw: docs/privacy/noise.md, theorem N7.
"""

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import count, positive
from quoron_privacy.noise.streams import RandomStream

_BITS = 96


@dataclass(frozen=True)
class HiddenCutoff:
    """P(k) ∝ exp(-decay |k - centre|) on {1, ..., 2 centre - 1}, up to total variation centre · 2⁻⁹⁵."""

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
        """One cutoff. Draw it once a phase and keep it secret."""
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

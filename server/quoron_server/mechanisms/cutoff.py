"""The hidden cutoff: after how many filtered users a phase halts, drawn once a phase from a two-sided geometric law.

    >>> from quoron_server.noise import SeededNoise
    >>> 1 <= HiddenCutoff(centre=5, decay=0.5).draw(SeededNoise(1).stream("cutoff", 0)) <= 9
    True

It hides whether one user was counted: shifted by one, the law changes by a factor of at most e^decay, except for its
end points. Statement and proof: docs/privacy/outlier-filter.md; the draw: docs/privacy/noise.md, theorem N7.
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property

from quoron_server._validate import count, positive
from quoron_server.noise import RandomStream

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

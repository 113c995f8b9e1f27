"""Private ranges: for each rotated coordinate a bin near the middle of what users hold, by the exponential mechanism.

    cost(bin) = max(users below, users above);     P(bin) ∝ e^(-ε cost / 2)

Replacing a user moves every cost by at most one, so a choice is ε-bounded-range. Weights are integers made so that this
holds for them and not only for what they stand for, and the draw is exact.

    >>> round(bounded_range_mu(1.0), 4)
    0.6239
    >>> crude_mean_users(dimension=10, bins=64, mu=0.2367, failure=1e-3)
    871

A mechanism is η-bounded-range when the log-likelihood ratio of two neighbouring datasets varies by at most η over its
outputs. That is η-DP, η²/8-zCDP, and as hard to tell apart as N(0, 1) and N(μ, 1) with μ = 2 Φ⁻¹(1 / (1 + e^(-η/2))).
The last converts exactly and is closed under sampling, so a round of many choices and one Gaussian is one number μ,
and a run of rounds on random cohorts is `subsampling.wor_epsilon` of it.

Source: Bassily & Sun (2023), Algorithm 6, after Feldman & Steinke (2017). Proofs: docs/privacy/private-mean.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, count, positive, probability
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.clipping import clip_rows
from quoron_privacy.means.rotation import Signs, padded, rotate, rotate_back
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Release

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Counts = NDArray[np.int64]

_MANTISSA = 128  # bits of a weight
_DIGITS = Context(prec=70, rounding=ROUND_HALF_EVEN)  # 39 for the weight, 10 for the largest exponent, and to spare
_LN2 = _DIGITS.ln(Decimal(2))
loops = OnFirstUse("quoron_privacy.means.private_range_loops")

_MOST_COORDINATES = 1 << 22  # numbers of the rotated block in work at a time


@dataclass(frozen=True, slots=True)
class PrivateRange:
    """`bins` bins of equal width on [-half_width, half_width] in every coordinate.

    Formal guarantee: each coordinate's choice is `epsilon`-bounded-range under replace-one, so a release is
    `mu(dimension)`-GDP, for every dataset and whatever the rotation.

    | input                             | what happens                                            |
    | --------------------------------- | ------------------------------------------------------- |
    | absent or non-finite row          | counts as the zero vector: the number of users is fixed |
    | coordinate outside the range      | counts for the bin at that end                          |
    | several bins of equal cost        | equally likely                                          |
    """

    epsilon: float  # ε₁, of each coordinate
    bins: int
    half_width: float  # a

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon, half_width=self.half_width)
        count(bins=self.bins)
        if not 1e-9 <= self.epsilon <= 1000:
            raise ConfigError(f"Expected epsilon in [1e-9, 1000], got epsilon={self.epsilon:g}.")

    @property
    def width(self) -> float:
        """Of a bin."""
        return 2 * self.half_width / self.bins

    def mu(self, dimension: int) -> float:
        """GDP parameter of one release: √d₂ choices' worth. Padded coordinates carry signal and are paid for."""
        return math.sqrt(padded(dimension)) * bounded_range_mu(self.epsilon)

    def release(self, values: Matrix, answered: NDArray[np.bool_], signs: Signs, stream: RandomStream) -> Vector:
        """A point near the middle of the rows, shape (d,); values (k, d), answered (k,), public signs (d,)."""
        rows = clip_rows(np.where(answered[:, None], values, 0.0), 1e100)  # non-finite rows become zeros
        length = padded(rows.shape[1])
        counts = np.zeros((length, self.bins), np.int64)
        block = max(1, _MOST_COORDINATES // length)
        for start in range(0, len(rows), block):
            loops.tally(rotate(rows[start : start + block], signs), self.half_width, counts)
        chosen = np.array([self.choose(row, stream) for row in counts])
        point: Vector = rotate_back((chosen + 0.5) * self.width - self.half_width, signs)[0]
        return point

    def choose(self, counts: Counts, stream: RandomStream) -> int:
        """One bin, given how many users each holds; shape (bins,)."""
        return stream.weighted_choice(weights(costs(counts), self.epsilon))

    def entry(self, dimension: int) -> Release:
        """The ledger entry of one release."""
        figures = {"epsilon": self.epsilon, "choices": float(padded(dimension)), "bins": float(self.bins)}
        return Release("private-range", figures)


def costs(counts: Counts) -> Counts:
    """max(users below, users above) of every bin, shape (bins,)."""
    reached = np.cumsum(counts)
    worst: Counts = np.maximum(reached - counts, reached[-1] - reached)
    return worst


def weights(cost: Sequence[int] | Counts, epsilon: float) -> list[int]:
    """Integers ∝ W(cost), W(c) = e^(-ε c / 2) with W(c) / W(c + 1) in [1, e^(ε/2)] in exact arithmetic.

    W has 128 bits and is a function of c and ε only; one common power of two is divided out.
    """
    parts = {c: _weight(c, epsilon) for c in {int(c) for c in cost}}
    least = min(exponent for _, exponent in parts.values())
    whole = {c: mantissa << (exponent - least) for c, (mantissa, exponent) in parts.items()}
    return [whole[int(c)] for c in cost]


@lru_cache(maxsize=1 << 16)
def _weight(cost: int, epsilon: float) -> tuple[int, int]:
    """(mantissa, exponent) of W(cost): floor at 128 bits of exp(-ε′ cost / 2), ε′ = ε (1 - 2⁻⁶⁰).

    Floors are monotone, and e^(ε′/2) times the rounding 1 + 2⁻¹²⁶ of a ratio stays below e^(ε/2).
    """
    with localcontext(_DIGITS):
        logarithm = -Decimal(epsilon) * (1 - Decimal(2) ** -60) * cost / 2
        exponent = int((logarithm / _LN2).to_integral_value(ROUND_FLOOR))
        scaled = (logarithm + (_MANTISSA - 1 - exponent) * _LN2).exp()
    return int(scaled.to_integral_value(ROUND_FLOOR)), exponent


def bounded_range_mu(epsilon: float) -> float:
    """Smallest μ for which every `epsilon`-bounded-range choice is μ-GDP, rounded up (private-mean#m1)."""
    positive(epsilon=epsilon)
    return gdp.pure_mu(epsilon / 2)


def round_mu(*, epsilon: float, choices: int, gaussian_mu: float) -> float:
    """μ of one round: `choices` choices of bounded range `epsilon` and one release, each given the earlier ones."""
    count(choices=choices)
    return math.hypot(math.sqrt(choices) * bounded_range_mu(epsilon), gaussian_mu)


def range_epsilon(*, users: int, bins: int, choices: int, failure: float) -> float:
    """ε₁ with which `choices` private ranges all fall between the smallest and largest value, but with `failure`.

    Every bin outside has a cost larger by at least n - ⌊n/2⌋ than the median's: (2 / (n - ⌊n/2⌋)) ln(bins choices /
    failure), by private-mean#m4.
    """
    count(users=users, bins=bins, choices=choices)
    probability(failure=failure)
    return 2 * math.log(bins * choices / failure) / (users - users // 2)


def crude_mean_users(
    *, dimension: int, bins: int, mu: float, failure: float, rounds: int = 1, share: float = 0.5
) -> int:
    """Fewest users from which a private range of every rotated coordinate takes at most `share` of μ² in each round.

    Half of `failure` is for the ranges of all rounds, half for the rotation. μ is a round's, given its cohort.
    """
    positive(mu=mu)
    probability(share=share)
    choices = padded(dimension)
    allowed = math.sqrt(share / choices) * mu

    def enough(users: int) -> bool:
        epsilon = range_epsilon(users=users, bins=bins, choices=choices * rounds, failure=failure / 2)
        return bounded_range_mu(epsilon) <= allowed

    high = 1
    while not enough(high):
        high *= 2
        if high > 1 << 60:
            raise ConfigError(f"Expected mu large enough for some number of users, got mu={mu:g}.")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high

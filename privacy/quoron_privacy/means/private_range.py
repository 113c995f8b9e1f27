"""Private ranges of rotated coordinates, and the means that are clipped around them: truncated and winsorised.

    >>> crude_mean_users(dimension=10, bins=64, mu=0.2367, failure=1e-3)
    871

A `PrivateRange` chooses for each rotated coordinate a bin near the middle of the users. `TruncatedMean` clips to a ball
around such a point, `WinsorisedMean` clamps every rotated coordinate to a box.

Source: Bassily & Sun (2023), Algorithms 1 and 6, after Feldman & Steinke (2017); Levy et al. (2021). Proofs:
docs/privacy/private-mean.md and docs/privacy/winsorised-erm.md.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.arrays import Matrix, Vector
from quoron_privacy.errors import ConfigError, Infeasible, count, positive, probability
from quoron_privacy.gaussian import GaussianNoise, check_adjacency, mean_sensitivity, mean_slack
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.clipping import clip_rows, clipped_mean
from quoron_privacy.means.rotation import Signs, coordinate_bound, padded, random_signs, rotate, rotate_back
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Adjacency, Release, sum_bits

Counts = NDArray[np.int64]
Crude = Literal["none", "gaussian", "range"]

_MANTISSA = 128  # bits of a weight
_DIGITS = Context(prec=70, rounding=ROUND_HALF_EVEN)  # 39 for the weight, 10 for the largest exponent, and to spare
_LN2 = _DIGITS.ln(Decimal(2))
loops = OnFirstUse("quoron_privacy.means.rotation_loops")

_MOST_COORDINATES = 1 << 22  # numbers of the rotated block in work at a time

BIN_WIDTH = 0.25  # β_w: half a bin, in units of the largest rotated deviation; narrower bins cost a logarithm only
_MOST_BINS = 1 << 12  # then bins grow wider and so does the radius
_SHARES = tuple(share / 40 for share in range(1, 30))  # of μ², tried for the first of two Gaussian means


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

        cost(bin) = max(users below, users above);     P(bin) ∝ e^(-ε cost / 2)

    Replacing a user moves every cost by at most one. Weights are integers made so that the guarantee holds for them and
    not only for what they stand for, and the draw is exact.
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
        """Return the GDP parameter of one release: √d₂ choices' worth. Padded coordinates carry signal, and count."""
        return math.sqrt(padded(dimension)) * bounded_range_mu(self.epsilon)

    def release(self, values: Matrix, answered: NDArray[np.bool_], signs: Signs, stream: RandomStream) -> Vector:
        """Return a point near the middle of the rows, shape (d,); values (k, d), answered (k,), public signs (d,)."""
        rows = clip_rows(np.where(answered[:, None], values, 0.0), 1e100)  # non-finite rows become zeros
        point: Vector = rotate_back(self.middles(rows, signs, stream), signs)[0]
        return point

    def middles(self, rows: Matrix, signs: Signs, stream: RandomStream) -> Vector:
        """Return the middle of the bin chosen for each rotated coordinate of finite rows (k, d), shape (d₂,)."""
        counts = np.zeros((padded(rows.shape[1]), self.bins), np.int64)
        for block in _blocks(rows):
            loops.tally(rotate(block, signs), self.half_width, counts)
        chosen = np.array([self.choose(row, stream) for row in counts])
        return (chosen + 0.5) * self.width - self.half_width

    def choose(self, counts: Counts, stream: RandomStream) -> int:
        """Return one bin, given how many users each holds; shape (bins,)."""
        return stream.weighted_choice(weights(costs(counts), self.epsilon))

    def entry(self, dimension: int) -> Release:
        """Return the ledger entry of one release."""
        figures = {"epsilon": self.epsilon, "choices": float(padded(dimension)), "bins": float(self.bins)}
        return Release("private-range", figures)


def _blocks(rows: Matrix) -> Iterator[Matrix]:
    """Yield some rows at a time, of which a rotated block is in work."""
    step = max(1, _MOST_COORDINATES // padded(rows.shape[1]))
    yield from (rows[start : start + step] for start in range(0, len(rows), step))


def costs(counts: Counts) -> Counts:
    """max(users below, users above) of every bin, shape (bins,)."""
    reached = np.cumsum(counts)
    worst: Counts = np.maximum(reached - counts, reached[-1] - reached)
    return worst


def weights(cost: Sequence[int] | Counts, epsilon: float) -> list[int]:
    """Return integers ∝ W(cost), W(c) = e^(-ε c / 2) with W(c) / W(c + 1) in [1, e^(ε/2)] in exact arithmetic.

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
    """Return the smallest μ for which every `epsilon`-bounded-range choice is μ-GDP, rounded up (private-mean#m1).

    A mechanism is η-bounded-range when the log-likelihood ratio of two neighbouring datasets varies by at most η over
    its outputs. That is η-DP, η²/8-zCDP, and as hard to distinguish as N(0, 1) and N(μ, 1), where
    μ = 2 Φ⁻¹(1 / (1 + e^(-η/2))). The last converts exactly and is closed under sampling, so a round of many choices
    and one Gaussian is one number μ.

        >>> round(bounded_range_mu(1.0), 4)
        0.6239
    """
    positive(epsilon=epsilon)
    return gdp.pure_mu(epsilon / 2)


def range_epsilon(*, users: int, bins: int, choices: int, failure: float) -> float:
    """ε₁ with which `choices` private ranges all fall between the smallest and largest value, but with `failure`.

    Every bin outside has a cost larger by at least n - ⌊n/2⌋ than the median's: (2 / (n - ⌊n/2⌋)) ln(bins choices /
    failure), by private-mean#m4.
    """
    count(users=users, bins=bins, choices=choices)
    probability(failure=failure)
    return 2 * math.log(bins * choices / failure) / (users - users // 2)


def crude_mean_users(*, dimension: int, bins: int, mu: float, failure: float) -> int:
    """Fewest users from which a private range of every rotated coordinate takes at most half of μ².

    Half of `failure` is for the ranges, half for the rotation.
    """
    positive(mu=mu)
    choices = padded(dimension)
    allowed = math.sqrt(0.5 / choices) * mu

    def enough(users: int) -> bool:
        epsilon = range_epsilon(users=users, bins=bins, choices=choices, failure=failure / 2)
        return bounded_range_mu(epsilon) <= allowed

    users = least_number(enough, 1, most=1 << 60)
    if users is None:
        raise ConfigError(f"Expected mu large enough for some number of users, got mu={mu:g}.")
    return users


@dataclass(frozen=True, slots=True)
class TruncatedMean:
    """Two releases on the same users, the second clipped around the first.

    Formal guarantee: `mu(dimension)`-GDP under replace-one with exact noise, for every dataset; that users lie within
    τ of one point decides the bias, never the privacy. A run draws at most two Gaussian samples a column.

    | input                       | what happens                                                    |
    | --------------------------- | --------------------------------------------------------------- |
    | absent or non-finite row    | adds nothing; the divisor stays `users`                         |
    | row farther than `radius`   | moved towards the centre                                        |
    | crude is None               | clipped around zero, one release                                |

        centre = crude mean, released privately;     release = centre + (1/n) Σ clip_C(x - centre) + N(0, σ² I)

    The noise follows the spread τ of the users and not the bound L on a row. The crude mean is a private range of every
    rotated coordinate, or a first Gaussian mean clipped at L, which is cheaper unless τ is very small against L. Unlike
    Bassily & Sun (2023), Algorithm 1, noise is added once and the clip is around the crude mean.
    """

    users: int  # n, the divisor
    radius: float  # C
    noise: GaussianNoise  # of the last release
    crude: PrivateRange | GaussianNoise | None
    bound: float  # L, the clip of a Gaussian crude mean

    def mu(self, dimension: int) -> float:
        """Return the GDP parameter of everything released."""
        last = self.noise.effective_mu(dimension)
        if self.crude is None:
            return last
        first = self.crude.mu(dimension) if isinstance(self.crude, PrivateRange) else self.crude.effective_mu(dimension)
        return gdp.compose(first, last)

    def release(
        self, values: Matrix, answered: NDArray[np.bool_], stream: RandomStream, public: RandomStream
    ) -> Vector:
        """Return the private mean, shape (d,); values (n, d), answered (n,). `public` gives the rotation's signs."""
        if self.crude is None:
            centre = np.zeros(values.shape[1])
        elif isinstance(self.crude, PrivateRange):
            centre = self.crude.release(values, answered, random_signs(values.shape[1], public), stream)
        else:
            mean, _ = clipped_mean(values, answered, self.bound, self.users)
            centre = self.crude.release(mean, stream)
        with np.errstate(all="ignore"):
            mean, _ = clipped_mean(values - centre, answered, self.radius, self.users)
        return centre + self.noise.release(mean, stream)


def calibrate(
    crude: Crude, *, users: int, dimension: int, bound: float, spread: float | None, mu: float, failure: float = 1e-3
) -> TruncatedMean:
    """Return the least final noise of that kind for μ-GDP in all.

    `bound` is L, the norm to which every row may be trusted to be clipped without harm; `spread` is τ: all rows lie
    within τ of one point. Nothing is clipped at the radius chosen, but with probability `failure`, if that is so.
    Raises Infeasible where the crude mean leaves no budget, with the users that it takes.
    """
    count(users=users, dimension=dimension)
    positive(bound=bound, mu=mu)
    probability(failure=failure)

    def assembled(radius: float, left: float, first: PrivateRange | GaussianNoise | None) -> TruncatedMean:
        return TruncatedMean(users, radius, _noise(mean_sensitivity(radius, users), dimension, left), first, bound)

    if crude == "none" or spread is None:
        return assembled(bound, mu, None)
    positive(spread=spread)
    if crude == "gaussian":
        sensitivity, found = mean_sensitivity(bound, users), []
        longest = math.sqrt(dimension) + math.sqrt(2 * math.log(1 / failure))  # deviations of the first mean's noise
        for share in _SHARES:  # of μ²; rows are within 2τ of the true mean and that within its noise of the first
            first = _noise(sensitivity, dimension, mu * math.sqrt(share))
            radius = min(2 * spread, 2 * bound) + first.scale * longest
            found.append(assembled(radius, mu * math.sqrt(1 - share), first))
        return min(found, key=lambda mean: mean.noise.scale)
    # private-mean#m4: bins of width 2 β_w τ_∞ and the least ε₁ that keeps every choice among the users.
    deviation = coordinate_bound(spread, dimension=dimension, rows=users, failure=failure)
    half_width = min(bound, coordinate_bound(bound, dimension=dimension, rows=users, failure=failure))
    bins = min(max(2, math.ceil(half_width / (BIN_WIDTH * deviation))), _MOST_BINS)
    choices = padded(dimension)
    ranged = PrivateRange(range_epsilon(users=users, bins=bins, choices=choices, failure=failure / 2), bins, half_width)
    left = mu**2 - ranged.mu(dimension) ** 2
    if left <= 0:
        needed = crude_mean_users(dimension=dimension, bins=bins, mu=mu, failure=failure)
        raise Infeasible("private mean", f"{users} users are too few for private ranges", f"users >= {needed}")
    return assembled(spread + math.sqrt(choices) * (deviation + ranged.width / 2), math.sqrt(left), ranged)


def _noise(sensitivity: float, dimension: int, mu: float) -> GaussianNoise:
    """Return the least noise whose effective μ is at most `mu`."""
    grid = GaussianNoise(sensitivity, sensitivity).effective_mu(dimension) - 1
    if mu <= 2 * grid:
        raise Infeasible("private mean", f"mu={mu:g} is below the resolution of the noise", "a larger epsilon")
    return GaussianNoise(sensitivity, sensitivity * (1 + 3e-9) / (mu - grid))


@dataclass(frozen=True, slots=True)
class WinsorisedMean:
    """A choice for each rotated coordinate, and the noisy mean of what is clamped around them.

    Formal guarantee: `mu(dimension)`-GDP with exact noise under its adjacency, for every dataset, rotation and h; that
    coordinates lie within h of their choice decides the bias, never the privacy.

    | input                      | what happens                                                       |
    | -------------------------- | ------------------------------------------------------------------ |
    | absent or non-finite row   | in no bin, residual zero; the divisor stays `users`                 |
    | coordinate beyond a_j ± h  | clamped to it                                                      |

        y_u = H D x_u;  a_j = a private choice of coordinate j;  z_j = a_j + (1/n) Σ_u clamp(y_uj - a_j, ±h) + N(0, σ²)
        release = the first d coordinates of D H z

    Where coordinates are near-Gaussian, h of three of their deviations leaves nearly nobody out, and √d₂ h is far below
    a radius that holds whole rows with a union bound. Absent users are in *no* bin, so leaving a user out lowers every
    cost by at most one, which is half as wide a bounded range, and moves the mean by h √d₂ / n.

        >>> crude = PrivateRange(epsilon=0.01, bins=40, half_width=1.0)
        >>> mean = WinsorisedMean.for_mu(users=10_000, crude=crude, half_width=0.1, mu=0.5, dimension=10)
        >>> round(mean.noise.scale, 7), round(mean.mu(10), 3)
        (0.0001602, 0.5)

    Source: Levy, Sun, Amin, Kale, Kulesza, Mohri & Suresh (2021), as Bassily & Sun (2023), Appendix B, has it, with the
    Gaussian for the Laplace noise and half-widths of our own.
    """

    users: int  # n, the divisor
    crude: PrivateRange  # of each of d₂ coordinates; its ε is ε₁
    half_width: float  # h
    noise: GaussianNoise  # of all d₂ means together
    adjacency: Adjacency = "replace-one"

    @classmethod
    def for_mu(
        cls,
        *,
        users: int,
        crude: PrivateRange,
        half_width: float,
        mu: float,
        dimension: int,
        adjacency: Adjacency = "replace-one",
    ) -> "WinsorisedMean":
        """Return the least noise for one μ-GDP release of all; Infeasible where the choices alone cost μ."""
        positive(mu=mu, half_width=half_width)
        left = mu**2 - choices_mu(crude, dimension, adjacency) ** 2
        if left <= 0:
            raise Infeasible("winsorised mean", f"{users:,} users are too few for private ranges", "more users")
        noise = GaussianNoise.for_mu(
            sensitivity=box_sensitivity(half_width, users, dimension, adjacency),
            mu=math.sqrt(left) * (1 - 1e-9),
            dimension=padded(dimension),
        )
        return cls(users, crude, half_width, noise, adjacency)

    def mu(self, dimension: int) -> float:
        """Return the GDP parameter of everything released: d₂ choices, and one Gaussian in d₂ coordinates."""
        choices = choices_mu(self.crude, dimension, self.adjacency)
        return gdp.compose(choices, self.noise.effective_mu(padded(dimension)))

    def release(
        self, values: Matrix, answered: NDArray[np.bool_], signs: Signs, choosing: RandomStream, noise: RandomStream
    ) -> tuple[Vector, int]:
        """(the private mean, shape (d,), how many coordinates were clamped); values (k, d), public signs (d,).

        The second is a function of private data.
        """
        if len(values) > self.users:
            raise ConfigError(f"Expected at most users={self.users:,} rows, got {len(values):,}.")
        with np.errstate(all="ignore"):
            usable = answered & np.isfinite(values).all(axis=1)
        rows = clip_rows(values[usable], 1e100)
        middles = self.crude.middles(rows, signs, choosing)
        total, clamped = np.zeros(len(middles), np.int64), 0
        unit = 2.0 ** sum_bits(self.users, self.users)
        for block in _blocks(rows):
            clamped += loops.add_clamped(rotate(block, signs), middles, self.half_width, unit, total)
        residual = total.astype(np.float64) * (self.half_width / unit / self.users)
        noisy = middles + self.noise.release(residual, noise)
        return rotate_back(noisy, signs)[0], int(clamped)

    def entries(self, dimension: int) -> tuple[Release, ...]:
        """Return the ledger entries of one release."""
        return (self.crude.entry(dimension), self.noise.entry())


def choices_mu(crude: PrivateRange, dimension: int, adjacency: Adjacency) -> float:
    """Return the GDP parameter of d₂ choices. A user left out moves costs one way only: half the bounded range."""
    share = 2 if adjacency == "zero-out" else 1
    return math.sqrt(padded(dimension)) * bounded_range_mu(crude.epsilon / share)


def box_sensitivity(half_width: float, users: int, dimension: int, adjacency: Adjacency = "replace-one") -> float:
    """ℓ2 sensitivity of the clamped residuals' mean, rounding included: 2 h √d₂ / n, or half of it for zero-out."""
    positive(half_width=half_width)
    count(users=users, dimension=dimension)
    check_adjacency(adjacency)
    ends = 2 if adjacency == "replace-one" else 1
    return ends * half_width * math.sqrt(padded(dimension)) / users * (1 + mean_slack(users))

"""The winsorised mean: each rotated coordinate clamped around a bin that was chosen privately, then the noisy mean.

    y_u = H D x_u;   a_j = a private choice of coordinate j;   z_j = a_j + (1/n) Σ_u clamp(y_uj - a_j, ±h) + N(0, σ²)
    release = the first d coordinates of D H z

A box in place of the ball of `truncated_mean`: where coordinates are near-Gaussian, h of three of their deviations
leaves nearly nobody out, and √d₂ h is far below a radius that holds whole rows with a union bound.

A user who is absent, or sends something not finite, is counted in *no* bin and adds zero to the residuals. Then leaving
a user out lowers every cost by at most one, which is half as wide a bounded range, and moves the mean by h √d₂ / n.

    >>> crude = PrivateRange(epsilon=0.01, bins=40, half_width=1.0)
    >>> mean = WinsorisedMean.for_mu(users=10_000, crude=crude, half_width=0.1, mu=0.5, dimension=10)
    >>> round(mean.noise.scale, 7)
    0.0001602
    >>> round(mean.mu(10), 3)
    0.5

Source: Levy, Sun, Amin, Kale, Kulesza, Mohri & Suresh (2021), as Bassily & Sun (2023), Appendix B, has it, with the
Gaussian for the Laplace noise and half-widths of our own. Statement and proof: docs/privacy/winsorised-erm.md.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp
from quoron_privacy.errors import ConfigError, Infeasible, count, positive
from quoron_privacy.gaussian import GaussianNoise, mean_slack
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.clipping import clip_rows
from quoron_privacy.means.private_range import PrivateRange, bounded_range_mu
from quoron_privacy.means.rotation import Signs, padded, rotate, rotate_back
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Adjacency, Release, sum_bits

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Integers = NDArray[np.int64]

loops = OnFirstUse("quoron_privacy.means.private_range_loops")

_MOST_COORDINATES = 1 << 22  # numbers of the rotated block in work at a time


@dataclass(frozen=True, slots=True)
class WinsorisedMean:
    """A choice for each rotated coordinate, and the noisy mean of what is clamped around them.

    Formal guarantee: `mu(dimension)`-GDP with exact noise under its adjacency, for every dataset, rotation and h; that
    coordinates lie within h of their choice decides the bias, never the privacy.

    | input                      | what happens                                                       |
    | -------------------------- | ------------------------------------------------------------------ |
    | absent or non-finite row   | in no bin, residual zero; the divisor stays `users`                 |
    | coordinate beyond a_j ± h  | clamped to it                                                      |
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
        """The least noise for one μ-GDP release of all; Infeasible where the choices alone cost μ."""
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
        """GDP parameter of everything released: d₂ choices, and one Gaussian in d₂ coordinates."""
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
        length = padded(values.shape[1])
        counts, total, clamped = np.zeros((length, self.crude.bins), np.int64), np.zeros(length, np.int64), 0
        block = max(1, _MOST_COORDINATES // length)
        starts = range(0, len(rows), block)
        for start in starts:
            loops.tally(rotate(rows[start : start + block], signs), self.crude.half_width, counts)
        chosen = np.array([self.crude.choose(row, choosing) for row in counts])
        middles = (chosen + 0.5) * self.crude.width - self.crude.half_width
        unit = 2.0 ** sum_bits(self.users, self.users)
        for start in starts:
            clamped += loops.add_clamped(
                rotate(rows[start : start + block], signs), middles, self.half_width, unit, total
            )
        residual = total.astype(np.float64) * (self.half_width / unit / self.users)
        noisy = middles + self.noise.release(residual, noise)
        return rotate_back(noisy, signs)[0], int(clamped)

    def entries(self, dimension: int) -> tuple[Release, ...]:
        """The ledger entries of one release."""
        return (self.crude.entry(dimension), self.noise.entry())


def choices_mu(crude: PrivateRange, dimension: int, adjacency: Adjacency) -> float:
    """GDP parameter of d₂ choices. A user left out moves costs one way only: half the bounded range."""
    share = 2 if adjacency == "zero-out" else 1
    return math.sqrt(padded(dimension)) * bounded_range_mu(crude.epsilon / share)


def box_sensitivity(half_width: float, users: int, dimension: int, adjacency: Adjacency = "replace-one") -> float:
    """ℓ2 sensitivity of the clamped residuals' mean, rounding included: 2 h √d₂ / n, or half of it for zero-out."""
    positive(half_width=half_width)
    count(users=users, dimension=dimension)
    if adjacency not in ("replace-one", "zero-out"):
        raise ConfigError(f"Expected adjacency replace-one or zero-out, got adjacency={adjacency!r}.")
    ends = 2 if adjacency == "replace-one" else 1
    return ends * half_width * math.sqrt(padded(dimension)) / users * (1 + mean_slack(users))

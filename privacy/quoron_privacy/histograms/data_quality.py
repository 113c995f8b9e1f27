"""How well a table fits what was declared of it: one clipped vector a user, released once, before anything is learnt.

    >>> quality = DataQuality.for_mu(users=1000, columns=20, labels=2, mu=0.053)
    >>> round(quality.errors.unusable, 3), round(quality.threshold(quality.errors.unusable), 2)
    (0.042, 0.17)
    >>> round(quality.visible, 2)
    0.26

A user's vector holds whether none of its rows can be used, the shares of its usable rows with each label, the share of
all its values that do not fit, and that share for each column. All of it is at least zero and the whole has norm at
most one, so two users' vectors are at most √2 apart. Statement, weights, proof and what it can see:
docs/privacy/data-quality.md.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri

from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Matrix, Vector
from quoron_privacy.errors import ConfigError, count, positive, probability, require
from quoron_privacy.gaussian import GaussianNoise, acute_sensitivity
from quoron_privacy.means.clipping import ClippedSum, clip_rows, clip_shares
from quoron_privacy.noise.streams import RandomStream, total_variation
from quoron_privacy.release import Adjacency, Release, Sums

MOST, LEAST = 0.05, 0.005  # of μ², where nothing else is said
SMALLEST = 1e-6  # of μ²: below, the grid of the noise is no longer fine
SEEN = 0.1  # share of unusable users that is worth paying for, up to MOST
FALSE_ALARM = 1e-3  # α: chance that anything is said of a table in which nothing is amiss
MISSED = 0.01  # chance that what is `visible` is not said
ENOUGH = 100_000  # users that are looked at, of more: drawn in secret, their shares are those of all to 0.2 %
OFTEN = 0.05  # shares below are never spoken of: a table need not be perfect
_WEIGHTS = (0.4, 0.2, 0.4)  # of norm²: users and labels, all values, single columns
_ONE_COLUMN = (0.5, 0.0, 0.5)  # which is all values


@dataclass(frozen=True, slots=True)
class Errors:
    """Standard deviations of what is released, in shares of all users."""

    unusable: float  # and of each label's share
    values: float  # of the share of all values; infinite with one column, which says it
    column: float


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Means over users, with the noise of `Errors`: they may be below zero or above one."""

    unusable: float  # users without a row that can be used
    labels: Vector  # (L,) of usable rows with each label, or at each end of its range; users without rows count zero
    values: float  # of a user's values that do not fit, over all columns; NaN with one column
    columns: Vector  # (K,) the same for each column, less where a user has several: rows are clipped together


@dataclass(frozen=True, slots=True)
class DataQuality:
    """The release, and what it leaves of a whole promise to whatever else is released.

    Formal guarantee: `effective_mu`-GDP with exact noise (data-quality#h1), for whatever users hold.

    | input                                   | what happens                                              |
    | --------------------------------------- | --------------------------------------------------------- |
    | a user with many unfit columns          | its columns are shortened together, to norm one           |
    | a number outside [0, 1], one not finite | held at the ends, NaN as zero                             |
    | a slot that holds nobody (zero-out)     | the zero vector: leave it out                             |
    | `mu` so small that nothing can be seen  | `visible` is above one; the plan does without it          |
    """

    users: int  # m, whom it looks at, and the divisor: never a count of rows that can be used
    columns: int  # K: numbers, categories, the label and the weight
    labels: int  # L: classes, or the two ends of a range
    adjacency: Adjacency
    scale: float  # standard deviation of a coordinate of the mean of vectors of norm one
    share: float = 0.0  # s, of the whole promise's μ², at most
    rest_epsilon: float = 0.0  # what the algorithm itself promises
    rest_delta: float = 0.0

    def __post_init__(self) -> None:
        count(users=self.users, columns=self.columns)
        if isinstance(self.labels, bool) or not isinstance(self.labels, int) or self.labels < 0:
            raise ConfigError(f"Expected labels to be an integer >= 0, got labels={self.labels!r}.")
        positive(scale=self.scale)
        _ = self._gaussian  # refuses a scale or an adjacency out of range

    @classmethod
    def for_mu(
        cls,
        *,
        users: int,
        columns: int,
        labels: int,
        mu: float,
        adjacency: Adjacency = "replace-one",
    ) -> "DataQuality":
        """Return the least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
        sensitivity = acute_sensitivity(users, adjacency)
        noise = GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=_dimension(columns, labels))
        return cls(users, columns, labels, adjacency, noise.scale)

    @property
    def dimension(self) -> int:
        """Numbers released."""
        return _dimension(self.columns, self.labels)

    @property
    def effective_mu(self) -> float:
        """μ of the release."""
        return self._gaussian.effective_mu(self.dimension)

    @property
    def pair(self) -> DominatingPair:
        """What the release costs, by its scale alone: two vectors of norm one at right angles."""
        far = sensitivity_recount.acute(1.0, self.users, self.adjacency)
        variation = total_variation(gaussians=self.dimension)
        return DominatingPair.gaussian(sensitivity_recount.mu(far, self.scale, self.dimension), variation)

    @property
    def errors(self) -> Errors:
        """Standard deviations of what is released."""
        users, values, column = (math.sqrt(weight) for weight in self._weights)
        return Errors(self.scale / users, self.scale / values if values else math.inf, self.scale / column)

    def threshold(self, error: float) -> float:
        """From which share on something is said: α / D of one-sided noise, and never below OFTEN."""
        return max(OFTEN, self.deviations * error)

    @property
    def deviations(self) -> float:
        """z: standard deviations that noise exceeds anywhere with probability at most FALSE_ALARM."""
        return float(-ndtri(FALSE_ALARM / self.dimension))

    @property
    def visible(self) -> float:
        """The least share of users without a usable row that is said but with probability MISSED; above 1: none is."""
        error = self.errors.unusable
        return self.threshold(error) - float(ndtri(MISSED)) * error

    def said(self, share: float) -> float:
        """Return the chance that `share` of the users without a usable row are spoken of."""
        error = self.errors.unusable
        return float(ndtr((share - self.threshold(error)) / error))

    def verify(self, epsilon: float, delta: float, *, users: int, adjacency: str, own: DominatingPair) -> None:
        """data-quality#h1 at its own numbers, `own` the pair of the rest; VerificationError else.

        By the second account, and by the distance of two vectors written out: nothing that calibrated is asked.
        """
        looked, spent = min(users, ENOUGH), self.pair
        both = spent.and_(own)
        require(
            "a data quality check",
            (f"a divisor of {looked} users", self.users == looked, self.users),
            (f"adjacency {adjacency}", self.adjacency == adjacency, self.adjacency),
            ("a share of μ² in (0, 1)", 0 < self.share < 1, self.share),
            ("no more than its share", spent.mu**2 <= self.share * both.mu**2 * (1 + 1e-4), (spent.mu / both.mu) ** 2),
            (f"delta <= {delta} with a data quality check", both.delta(epsilon, delta) <= delta, both.mu),
        )

    @property
    def reduction(self) -> ClippedSum:
        """All that the release reads of users' vectors: sums of parts of the users add."""
        return ClippedSum(1.0, self.users)

    def vectors(self, unusable: Vector, labels: Matrix, columns: Matrix) -> Matrix:
        """Return users' vectors (k, D) of having no usable row (k,), shares of labels (k, L), shares of columns (k, K).

        A user without a usable row has no labels, and every user's shares of labels add up to one at most.
        """
        users, values, column = (math.sqrt(weight) for weight in self._weights)
        none = clip_shares(unusable)
        shares = np.where(none[:, None] > 0, 0.0, clip_shares(labels))
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
        unfit = clip_shares(columns)
        parts = [users * none[:, None], users * shares, column * clip_rows(unfit, 1.0)]
        return np.hstack([*parts[:2], *([values * unfit.mean(axis=1, keepdims=True)] if values else []), parts[2]])

    def release(self, sums: Sums, stream: RandomStream) -> Vector:
        """Return the noisy mean (D,) of users' vectors, from the sums that `reduction` makes. Draw it once a run."""
        return self._gaussian.release(self.reduction.mean(sums), stream)

    def shares(self, released: Vector) -> Shares:
        """Return a released mean (D,) with each number in its own unit."""
        users, values, column = (math.sqrt(weight) for weight in self._weights)
        first, last = 1 + self.labels, self.dimension - self.columns
        return Shares(
            unusable=float(released[0] / users),
            labels=released[1:first] / users,
            values=float(released[first] / values) if values else math.nan,
            columns=released[last:] / column,
        )

    def entry(self) -> Release:
        """Return the ledger entry of the release."""
        return self._gaussian.entry("data-quality", users=self.users, dimension=self.dimension)

    @property
    def _weights(self) -> tuple[float, float, float]:
        return _WEIGHTS if self.columns > 1 else _ONE_COLUMN

    @property
    def _gaussian(self) -> GaussianNoise:
        return GaussianNoise(acute_sensitivity(self.users, self.adjacency), self.scale)


def looked_at(users: int) -> int:
    """m, of n users: all, or ENOUGH of them drawn in secret."""
    return min(users, ENOUGH)


def share_for(*, users: int, columns: int, labels: int, mu: float, adjacency: Adjacency = "replace-one") -> float:
    """s where nothing else is said: as much of μ² as shows SEEN of the users, from LEAST to MOST; 0 if MOST shows none.

    A function of public numbers. What it costs is in docs/privacy/data-quality.md: noise grows by 1 / √(1 - s).
    """

    def visible(share: float) -> float:
        own = mu * math.sqrt(share)
        return DataQuality.for_mu(users=users, columns=columns, labels=labels, mu=own, adjacency=adjacency).visible

    if visible(MOST) > 1:
        return 0.0
    needed = (visible(LEAST) / SEEN) ** 2 * LEAST  # errors go as 1 / √s
    return min(max(needed, LEAST), MOST)


def rest(epsilon: float, delta: float, share: float) -> tuple[float, float]:
    """(ε', δ) that a share s of μ² leaves: a promise of √(1 - s) μ(ε, δ). ConfigError for a share outside (0, 1)."""
    probability(share=share)
    left = gdp.mu_for(epsilon, delta) * math.sqrt(1 - share)
    return gdp.epsilon_for(left, delta), delta


def calibrate(
    *,
    epsilon: float,
    delta: float,
    share: float,
    own: DominatingPair,
    users: int,
    columns: int,
    labels: int,
    adjacency: Adjacency,
) -> DataQuality | None:
    """Return what a promise of `rest(epsilon, delta, share)` leaves, kept by what costs `own`.

    None where the samplers have taken it all.
    """
    variation = own.variation + total_variation(gaussians=_dimension(columns, labels))
    left = delta - (1 + math.exp(epsilon)) * variation
    if left <= 0:
        return None
    whole = gdp.mu_for(epsilon, left) * (1 - 1e-9)  # verified by other arithmetic
    square = min(share * whole**2, whole**2 - own.mu**2)
    if square <= 0.5 * share * whole**2:
        return None
    made = DataQuality.for_mu(users=users, columns=columns, labels=labels, mu=math.sqrt(square), adjacency=adjacency)
    left_epsilon, left_delta = rest(epsilon, delta, share)
    return replace(made, share=share, rest_epsilon=left_epsilon, rest_delta=left_delta)


def _dimension(columns: int, labels: int) -> int:
    return 1 + labels + (columns > 1) + columns

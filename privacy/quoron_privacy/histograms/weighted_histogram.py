"""Weighted histograms: every user spreads one weight over cells, for counts, shares, means and quantiles of groups.

    >>> from quoron_privacy.noise.streams import SeededNoise
    >>> wards = WeightedHistogram.for_mu(users=1000, groups=2, cells=1, mu=0.2)
    >>> owners, ward = np.repeat(np.arange(1000), 2), np.tile([0, 1], 1000)  # each has been in both
    >>> held = wards.held(owners, ward, wards.weights(owners))
    >>> held.ravel().tolist(), round(wards.scale, 2)
    ([500.0, 500.0], 7.07)
    >>> wards.release(held, SeededNoise(1).stream("wards")).round(1).tolist()
    [[507.4], [520.8]]

`WeightedHistogram` releases the weights of cells; `count_of`, `mean_of` and `quantile_of` turn them into an
`Estimate`, a function of released and public numbers.

Statements, proofs and symbols: docs/privacy/statistics.md#st1 and statistics.md#st2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy.special import gammaln

from quoron_privacy.accounts import sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Floats, Integers
from quoron_privacy.errors import ConfigError, VerificationError, count
from quoron_privacy.gaussian import GaussianNoise, acute_sensitivity, mean_slack
from quoron_privacy.noise.streams import RandomStream, total_variation
from quoron_privacy.prefix.noise import sqrt_coefficients
from quoron_privacy.release import Adjacency, Release

MOST_CELLS = 1 << 12  # of a group, whose running sums are made one by one
_BITS, _SUM_BITS = 40, 61  # of one weight, at most, and of the sum of all

SURE = 1.959963984540054  # z: 95 % of a normal law lie within ± z deviations


@dataclass(frozen=True, slots=True)
class WeightedHistogram:
    """Noise on how much weight each of `cells` cells has in each of `groups` groups.

    Formal guarantee: a release is `pair.mu`-GDP with exact noise under `adjacency`, for whatever users hold
    (statistics#st1).

    | input                               | what happens                                      |
    | ----------------------------------- | ------------------------------------------------- |
    | a user with a million items         | weighs as much as any other, or as `most` items   |
    | an item outside the cells           | adds nothing                                      |
    | a user without an item that counts  | adds nothing, like one who is not there           |

    A user with r items that count gives each of them 1/r; where up to K items are to count, 1/max(r, K), in units of K.
    Weights are whole numbers of steps, so sums are exact and a user has one weight at most. The release is C times the
    weights of each group: C is the identity, or the root of the matrix of ones, which makes all running sums of a
    group's cells nearly as exact as its cells are.
    """

    users: int  # n, at most: sets the steps of a weight, and nothing of the noise
    groups: int
    cells: int  # k, of each group
    scale: float  # standard deviation of a released number, in weights of one user
    running: bool = False  # C: the root of the matrix of ones, in place of the identity
    most: int = 1  # K: items that weigh as much as one user does
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        count(users=self.users, groups=self.groups, cells=self.cells, most=self.most)
        if self.cells > MOST_CELLS or self.most > 1 << 20:
            raise ConfigError(
                f"Expected cells <= {MOST_CELLS} and most <= {1 << 20}, got cells={self.cells} and most={self.most}."
            )
        self._noise()

    @classmethod
    def for_mu(
        cls,
        *,
        users: int,
        groups: int,
        cells: int,
        mu: float,
        running: bool = False,
        most: int = 1,
        adjacency: Adjacency = "replace-one",
    ) -> "WeightedHistogram":
        """Return the least noise for one μ-GDP release. Infeasible where rounding alone costs μ."""
        free = cls(users, groups, cells, 1.0, running, most, adjacency)
        noise = GaussianNoise.for_mu(sensitivity=free.sensitivity, mu=mu, dimension=groups * cells)
        return cls(users, groups, cells, noise.scale, running, most, adjacency)

    @property
    def sensitivity(self) -> float:
        """Of what is released, rounding included: √2, or 1 for zero-out, whatever the number of cells and groups."""
        return acute_sensitivity(1, self.adjacency) * (1 + self.cells * mean_slack(self.users))

    @property
    def pair(self) -> DominatingPair:
        """What a release costs, by its scale alone and by C written out."""
        far = sensitivity_recount.acute(_longest_column(self.cells) if self.running else 1.0, 1, self.adjacency)
        far *= 1 + self.cells * (64 * self.users + 4) * 2.0**-51
        size = self.groups * self.cells
        return DominatingPair.gaussian(sensitivity_recount.mu(far, self.scale, size), total_variation(gaussians=size))

    def weights(self, owners: Integers) -> Integers:
        """Of each item in steps, (N,), item i being of user owners[i]: those of one user add up to `one` at most."""
        rows = np.bincount(owners, minlength=1)
        found: Integers = self.one // np.maximum(rows, self.most)[owners]
        return found

    @property
    def one(self) -> int:
        """Steps in the whole weight of a user."""
        return 1 << min(_BITS, _SUM_BITS - self.users.bit_length())

    def held(self, owners: Integers, cells: Integers, weights: Integers) -> Floats:
        """Return how much each cell has, (groups, k), in weights of one user: private.

        Weight i is for cell cells[i], of the first group's cells, then the next one's, ..., by user owners[i]; outside
        of them it is for none. ConfigError where a user has more than its weight.
        """
        own = np.zeros(int(owners.max(initial=-1)) + 1, np.int64)
        np.add.at(own, owners, weights)
        if len(own) > self.users or own.max(initial=0) > self.one or weights.min(initial=0) < 0:
            raise ConfigError(f"Expected {self.users} users at most and at most one weight of each, got more.")
        inside = (cells >= 0) & (cells < self.groups * self.cells)
        total = np.zeros(self.groups * self.cells, np.int64)
        np.add.at(total, cells[inside], weights[inside])
        return (total / self.one).reshape(self.groups, self.cells)

    def release(self, held: Floats, stream: RandomStream) -> Floats:
        """Return each cell's sum with noise `scale`, or each running sum with that of `against(0)`; (groups, k)."""
        if held.shape != (self.groups, self.cells):
            raise ConfigError(f"Expected weights of shape {(self.groups, self.cells)}, got {held.shape}.")
        if not self.running:
            return self._noise().release(held, stream)
        root, longest = self._root()
        noisy = self._noise().release(_applied(root / longest, held), stream)
        return _applied(root * longest, noisy)

    def against(self, share: float) -> Floats:
        """Return standard deviations of each running sum less a `share` of the last one, shape (k,)."""
        root, longest = self._root()
        own, both = np.cumsum(root**2), np.convolve(root, root[::-1])[: self.cells]  # ⟨C_t, C_t⟩, ⟨C_t, C_k⟩
        squares: Floats = np.maximum(own - 2 * share * both + share**2 * own[-1], 0.0)
        return self.scale * longest * np.sqrt(squares)

    def entry(self) -> Release:
        """Return the ledger entry of a release."""
        return self._noise().entry("spread", users=float(self.users))

    def _noise(self) -> GaussianNoise:
        return GaussianNoise(self.sensitivity, self.scale)

    def _root(self) -> tuple[Floats, float]:
        """Return the first column of C, the longest, and its length."""
        root, _ = sqrt_coefficients(self.cells)
        return root, math.sqrt(float(root @ root))


def thirds(weights: Integers, place: Floats) -> Integers:
    """Weights (N,) of values t in [-1, 1], spread over three cells by (1 - t)²/4, (1 - t²)/2 and (1 + t)²/4: (N, 3).

    These are never below zero and add up to one, so nothing more is moved than by one weight; the last less the first
    is t, and both less the middle one is t², but for less than a step.
    """
    low, high = (np.floor(weights * ((1 + sign * place) ** 2 / 4)).astype(np.int64) for sign in (-1, 1))
    return np.stack([low, weights - low - high, high], axis=1)


def verify(parts: Sequence[WeightedHistogram], epsilon: float, delta: float) -> None:
    """Raise VerificationError unless all releases together are (ε, δ)-DP, by the second account.

    Only scales are asked, and C is written out: nothing that calibrated.
    """
    if not parts:
        return
    got = reduce(DominatingPair.and_, (part.pair for part in parts)).delta(epsilon, delta)
    if not got <= delta:
        raise VerificationError(f"Expected statistics that are ({epsilon:g}, {delta:g})-private, got δ = {got:.3g}.")


def _applied(root: Floats, rows: Floats) -> Floats:
    """Return the lower triangular Toeplitz matrix whose first column is `root`, times each row (k,) of (groups, k)."""
    return np.stack([np.convolve(root, row)[: len(root)] for row in rows])


def _longest_column(cells: int) -> float:
    """Of the root of the matrix of ones over its longest, by its entries (2j)! / (4ʲ j!²); inf for one below zero."""
    j = np.arange(cells)
    entries = np.exp(gammaln(2 * j + 1) - 2 * gammaln(j + 1) - j * math.log(4))
    used = sqrt_coefficients(cells)[0]
    if used.min() < 0 or not np.allclose(used, entries, rtol=1e-9, atol=0.0):
        return math.inf
    return math.sqrt(math.fsum(entries**2)) / float(np.linalg.norm(used)) * (1 + 1e-9)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A released value and where what it stands for lies, with 95 %: noise and sampling of users.

    The interval is for the population that the users are a sample of. The release is Gaussian around what the users
    hold; that is normal around the population in the limit of many users, with a variance that is bounded (counts,
    quantiles) or released (means).
    """

    value: float
    error: float  # standard error
    low: float
    high: float

    def in_units(self, middle: float, unit: float) -> "Estimate":
        """Return the same of middle + unit · value, for a unit above zero."""
        return Estimate(
            middle + unit * self.value, unit * self.error, middle + unit * self.low, middle + unit * self.high
        )


def count_of(weight: float, *, users: int, scale: float) -> Estimate:
    """Of a cell's noisy weight: how many of so many users (of a weight of one each) it has.

    >>> count_of(480.0, users=1000, scale=5.0)
    Estimate(value=480.0, error=16.57105910918189, low=447.65996937742443, high=512.4931009619977)
    """
    value, z = min(max(weight, 0.0), float(users)), SURE**2
    half, square = (2 * value + z) / 2, 1 + z / users
    root = math.sqrt(max(0.0, half**2 - square * (value**2 - z * scale**2)))
    low, high = max(0.0, (half - root) / square), min(float(users), (half + root) / square)
    return Estimate(value, math.sqrt(scale**2 + value * (1 - value / users)), low, high)


def mean_of(thirds: Floats, *, scale: float) -> Estimate:
    """Return the mean of values in [-1, 1] whose `thirds` are released with noise, (3,): by Fieller."""
    total, sum_, z = float(thirds.sum()), float(thirds[2] - thirds[0]), SURE
    value = min(1.0, max(-1.0, sum_ / total)) if total > 0 else 0.0
    away = np.array([(1 + value) ** 2, value**2 - 1, (1 - value) ** 2])  # of the sum of squared distances from it
    variance = float(away @ thirds)
    surely = max(0.0, variance + z * scale * float(np.linalg.norm(away)))
    square = total**2 - 3 * (z * scale) ** 2
    if total <= 0 or square <= 0:  # nobody knows whether anybody is there
        return Estimate(value, 1.0, -1.0, 1.0)
    half, rest = total * sum_, sum_**2 - z**2 * (2 * scale**2 + surely)
    root = math.sqrt(max(0.0, half**2 - square * rest))
    low, high = max(-1.0, (half - root) / square), min(1.0, (half + root) / square)
    error = math.sqrt(scale**2 * (2 + 3 * value**2) + max(0.0, variance)) / total
    return Estimate(value, min(1.0, error), min(low, value), max(high, value))


def quantile_of(sums: Floats, share: float, histogram: WeightedHistogram) -> Estimate:
    """Of the noisy running sums of k cells (k,): below which place in [0, 1] a `share` of the weight is.

    Its interval is the cells that a test of each edge does not exclude; its value is read off the nearest running sums
    that never fall.
    """
    cells, total = len(sums), float(sums[-1])
    against = histogram.against(share)
    most = max(0.0, total + SURE * float(histogram.against(0.0)[-1]))  # of the group's weight
    # Before the first cell the running sum is zero without noise.
    noise = np.concatenate([[share * float(histogram.against(0.0)[-1])], against])
    off = SURE * np.sqrt(noise**2 + share * (1 - share) * most)
    below = np.concatenate([[0.0], sums]) - share * total
    inside = np.flatnonzero((below[:-1] <= off[:-1]) & (below[1:] >= -off[1:]))
    low, high = (inside[0] / cells, (inside[-1] + 1) / cells) if total > 0 and len(inside) else (0.0, 1.0)
    rising = np.concatenate([[0.0], sums])
    rising = (np.maximum.accumulate(rising) + np.minimum.accumulate(rising[::-1])[::-1]) / 2
    after = int(np.argmax(rising >= share * total)) if total > 0 else cells // 2
    if after and total > 0:
        step = rising[after] - rising[after - 1]
        place = (after - 1 + ((share * total - rising[after - 1]) / step if step > 0 else 1.0)) / cells
    else:
        place = after / cells
    return Estimate(place, (high - low) / (2 * SURE), min(low, place), max(high, place))


def needed(what: str, *, groups: int, cells: int, unit: float, share: float = 0.5) -> int:
    """Return how many users distinguish a group with its equal part from noise: by 95 % of it, of `unit` weights.

    Of counts a cell from zero; of means half of the range; of quantiles a `share` from either end.
    """
    if what == "mean":
        return math.ceil(2 * math.sqrt(2) * SURE * unit * groups)
    if what == "quantiles":
        return math.ceil(SURE * unit * groups / min(share, 1 - share))
    return math.ceil(SURE * unit * groups * cells)

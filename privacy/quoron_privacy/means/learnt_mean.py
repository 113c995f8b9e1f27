"""The clipped mean that learns where users are, how far from one another, and how far to clip, from its own releases.

    >>> from quoron_privacy.noise.streams import SeededNoise
    >>> users, noise = np.random.default_rng(0).normal(40.0, 1.0, (10_000, 3)), SeededNoise(1)
    >>> mean = LearntMean(users=10_000, dimension=3, bound=1000.0, mu=0.2)
    >>> found = mean.release(users, np.ones(10_000, bool), noise.stream("mean"), noise.stream("public"))
    >>> bool(np.abs(found.value - users.mean(axis=0)).max() < 0.02), bool(1.0 < found.radius < 10.0)
    (True, True)

Every release is a Gaussian mean of rows of norm one at most; for a user at centre + r u, u of norm one:

| release | row of a user, or of a pair                                    | tells                              |
| ------- | -------------------------------------------------------------- | ---------------------------------- |
| first   | of a public random pair: in which octave its difference lies   | the typical length                 |
| steps   | min(1, r/R) u                                                  | a centre, nearer each time         |
| shape   | min(1, r/R)² uu'                                                | how directions differ, by a matrix |
| middle  | β min(r/R, R²/r²) u; in the bin of r the rest of the norm       | a better centre, shares of lengths |
| look    | which part of a bin near the edge of all users r is in          | where users end                    |
| last    | a u with a = min(1, r/C), and √(1 - a²) min(1, r/c) u          | a mean for C and, for nothing, c   |
|         | beyond C: in the shell of r what a = cos of an angle leaves     | the same of users far away         |

Source: ours. The steps are those of Biswas, Dong, Kamath & Ullman (2020), who take the radius from a declared variance.
Statement, proof and constants: docs/privacy/private-mean.md#m7.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from quoron_privacy.arrays import Mask, Matrix, Vector
from quoron_privacy.errors import ConfigError, Infeasible, count, positive
from quoron_privacy.gaussian import GaussianNoise, acute_sensitivity, mean_sensitivity, mean_slack
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means import learnt_radii
from quoron_privacy.means.clipping import ClippedSum, clip_rows
from quoron_privacy.means.learnt_radii import BELOW, BINS, COUNTED, INNER, UNCOUNTED
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import packed

loops = OnFirstUse("quoron_privacy.means.clipping_loops")

Rows = Callable[[Matrix], Matrix]  # of a mean, from users' vectors (k, d)

LEAST = 15.0  # n μ / (√d + BELOW) from which on users are found in a bound 10³ times as far as they are apart
TAIL = math.sqrt(2 * math.log(20))  # deviations beyond √d that noise is as long as in one of 20 runs, at most
_AROUND = 1.5  # clipped means whose bound is the users' own radius: none of ours errs more: measured
_FIRST, _MOST_FIRST = 0.02, 0.4  # of μ² for the first release
_CLEAR = 42.0  # n μ times the root of that share, from which on it tells enough
_WHOLE = 1 - 1e-9  # of μ², so that rounded shares add to no more than all of it
_ROOT = 1.4142135  # below √2
_BLOCK = 1 << 20  # numbers of rows held at a time


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """What was released and what was made of it."""

    value: Vector  # the mean, (d,)
    centre: Vector  # around which the last rows were taken, (d,)
    radius: float  # C
    deviation: float  # of a coordinate of `value`, from noise alone
    unseen: float  # share of users who may lie far beyond `radius`, unnoticed
    noises: tuple[tuple[GaussianNoise, int], ...]  # of the releases, and of how many coordinates they were


@dataclass(frozen=True, slots=True)
class LearntMean:
    """Four to eighteen releases on the same users, each by radii and a centre that those before it tell.

    Formal guarantee: `mu`-GDP under replace-one with exact noise, for every dataset (private-mean#m7). A run draws
    `gaussians(dimension)` Gaussian samples at most.

    | input                    | what happens                                                  |
    | ------------------------ | ------------------------------------------------------------- |
    | absent or non-finite row | adds nothing; the divisor stays `users`                       |
    | row longer than `bound`  | scaled down to it, before anything else                       |
    | all users alike          | radii shrink until the noise of the centre sets them          |
    """

    users: int  # n, the divisor
    dimension: int  # d
    bound: float  # L
    mu: float  # of everything
    spread: float | None = None  # all users are within it of one point; for utility alone

    def __post_init__(self) -> None:
        count(users=self.users, dimension=self.dimension)
        positive(bound=self.bound, mu=self.mu, spread=self.bound if self.spread is None else self.spread)
        enough, strength = enough_users(self.dimension, self.mu), self.users * self.mu
        if self.users < enough:
            needed = f"n mu = {strength:.3g} < {LEAST * (math.sqrt(self.dimension) + BELOW):.3g}"
            raise Infeasible("private mean", f"{needed}, so users are not found", f"users >= {enough:,}", users=enough)

    @property
    def error(self) -> tuple[float, float]:
        """(error for users who are all alike, what the radius of a ball that holds all users adds, times that).

        The ℓ2 error stays within that in 95 % of runs. Public numbers alone (private-mean#m9).
        """
        far = 2 / (self.users * self.mu) * (math.sqrt(self.dimension) + TAIL)
        if self.dimension == 1:  # two looks at the place are always made
            return far * 6 * self.bound / learnt_radii.MOST_PLACES**2, _AROUND * far
        mu = _spent(self.mu, 1 - first_share(self.users * self.mu))
        least = learnt_radii.planned(
            self.bound * learnt_radii.SMALLEST, self.bound, users=self.users, dimension=self.dimension, mu=mu
        )[0]
        return least * (1 + TAIL / math.sqrt(self.dimension)), _AROUND * far

    def release(self, values: Matrix, answered: Mask, stream: RandomStream, public: RandomStream) -> Learnt:
        """From users' vectors (n, d), answered (n,); `public` pairs the users. ConfigError for another shape."""
        if values.shape != (self.users, self.dimension):
            raise ConfigError(f"Expected vectors of shape {(self.users, self.dimension)}, got {values.shape}.")
        here = answered & np.isfinite(values).all(axis=1)
        told = _Told(clip_rows(values, self.bound), here, stream)
        if self.dimension == 1:
            return self._of_a_column(told, public)
        first = first_share(self.users * self.mu)
        top = 2 * min(self.bound, self.spread or self.bound)
        mu, d = self.mu * math.sqrt((1 - first) * _WHOLE), self.dimension
        pairs, unit = told.pairs(top, _spent(self.mu, first), public), math.sqrt(d) / (self.users * self.mu)
        typical = learnt_radii.scale_of(pairs, told.scale, top, self.bound, unit)
        _, shares = learnt_radii.planned(typical, self.bound, users=self.users, dimension=d, mu=mu)
        centre, deviation, radius = np.zeros(d), math.inf, self.bound
        for _ in range(shares.steps):
            mean, scale = told.mean(clipped(centre, radius), d, mu * math.sqrt(shares.step))
            part, deviation = learnt_radii.joined(deviation, radius * scale)
            centre, radius = centre + part * radius * mean, learnt_radii.reach(typical, radius, deviation, d)

        start, most, there, back, uneven = np.zeros(d), self.bound, np.eye(d), np.eye(d), 0.0
        if shares.shape:
            within = min(radius, typical + deviation * math.sqrt(d))
            moment = told.moment(centre, within, mu * math.sqrt(shares.shape))
            there, back, uneven = learnt_radii.rounder(moment, told.scale)
            told.move(centre, there)
            most = float(np.linalg.norm(there, 2)) * (self.bound + float(np.linalg.norm(centre)))
            deviation *= float(np.linalg.norm(there)) / math.sqrt(d)
            start, centre = centre, np.zeros(d)
        wider = learnt_radii.wider(self.users, d, mu)
        radius = learnt_radii.reach(wider * typical, most, deviation, d)
        edges = learnt_radii.edges_of(radius, most)
        row, size = with_lengths(centre, radius, edges), d + len(edges)
        mean, scale = told.mean(row, size, mu * math.sqrt(shares.middle), lengths=len(edges))
        part, deviation = learnt_radii.joined(deviation, scale * (radius / INNER))
        moved = part * mean[:d] * (radius / INNER)
        centre = centre + moved
        nearer = max(0.0, float(np.sum(moved**2)) - d * deviation**2)
        most = most + float(np.linalg.norm(centre))
        bins = learnt_radii.bins_of(mean[d:], scale, edges, radius, nearer, most)
        parts = learnt_radii.parts_of(bins)
        looked = told.lengths(centre, parts, mu * math.sqrt(shares.look))
        held = learnt_radii.held(bins, looked, told.scale, parts)

        last = mu * math.sqrt(shares.last)
        unit = _noise(self.users, 2 * d, last).scale
        radii = learnt_radii.radii_of(held, users=self.users, dimension=d, unit=unit, uneven=uneven * deviation)
        shells = learnt_radii.shells_of(radii.wide, held.most, d)
        near, far = with_narrow(centre, radii.wide, radii.narrow), with_shells(centre, radii.wide, shells)
        size = (2 + len(shells)) * d + len(shells)
        mean, scale = told.mean(near, size, last, lengths=len(shells), far=far)
        wide, narrow = radii.wide * mean[:d], radii.narrow * mean[d : 2 * d]
        value, own = learnt_radii.combined(centre, deviation, wide, narrow, radii, unit)
        more, other, outer = learnt_radii.far_of(mean[2 * d :], scale, shells, radii.wide, bins)
        deviation = math.hypot(own, other) * float(np.linalg.norm(back)) / math.sqrt(d)
        radius = max(radii.wide, outer) * float(np.linalg.norm(back, 2))
        value, centre = start + back @ (value + more), start + back @ centre
        return Learnt(value, centre, radius, deviation, held.least, tuple(told.noises))

    def _of_a_column(self, told: "_Told", public: RandomStream) -> Learnt:
        """Return the same, of one: where users are by bins of place, and a clip to an interval."""
        strength, top = self.users * self.mu, 2 * min(self.bound, self.spread or self.bound)
        first, place, around = learnt_radii.interval_shares(strength)
        spend = partial(_spent, self.mu)
        pairs, unit = told.pairs(top, spend(first), public), 1 / strength
        scale = learnt_radii.scale_of(pairs, told.scale, top, self.bound, unit)
        left, keep = 1.0 - first, place + around + learnt_radii.LEAST_LAST  # keep: for another look and the mean
        for _ in range(learnt_radii.TRIES):
            low, high, near = -self.bound, self.bound, False
            while not near:
                edges = learnt_radii.places(low, high, scale)
                centre, width = learnt_radii.place_of(told.shares(edges, spend(place)), edges), edges[1] - edges[0]
                left -= place
                low, high = centre - 1.5 * width, centre + 1.5 * width
                near = learnt_radii.near_enough(width, scale) or left < keep
            scale = max(scale, width / 3)
            edges = learnt_radii.bins_around(scale, self.bound, strength)
            edges = np.clip(edges, -self.bound - centre, self.bound - centre)
            shares, deviation = told.shares(centre + edges, spend(around)), told.scale
            left -= around
            wider = learnt_radii.missed(shares, edges, scale)
            if wider is None or left < keep:
                break
            scale = wider
        deviations = np.full(len(shares), deviation)
        unit = _noise(self.users, 2, spend(left)).scale
        found = learnt_radii.interval_of(shares, deviations, edges, scale, unit / 2)
        narrow = learnt_radii.narrow_of(shares, edges, found, self.users, unit)
        nodes = learnt_radii.nodes_of(found, max(edges[-1] - found.middle, found.middle - edges[0]))
        rows = partial(learnt_radii.rows_of, found=found, narrow=narrow, nodes=nodes)
        size, more = 2 * len(nodes), 2 * len(nodes) - 2
        mean, unit = told.mean(lambda values: rows(values - centre), size, spend(left), lengths=more)
        value, own = learnt_radii.interval_combined(mean, found, narrow, unit)
        far, deviation, reach = learnt_radii.interval_far(mean[2:] / _ROOT, unit / _ROOT, nodes, found.groups)
        return Learnt(
            np.array([centre + value + far]),
            np.array([centre + found.middle]),
            max(found.half, reach),
            math.hypot(own, deviation),
            found.least,
            tuple(told.noises),
        )


@dataclass(slots=True, eq=False)
class _Told:
    """Releases about the same users, one after the other, and their noise."""

    rows: Matrix  # of norm L at most, (n, d)
    here: Mask
    stream: RandomStream
    noises: list[tuple[GaussianNoise, int]] = field(default_factory=list)

    def pairs(self, top: float, mu: float, public: RandomStream) -> Vector:
        """Return noisy shares of pairs of users in BINS octaves of length, downwards from `top`, (BINS,)."""
        order, half = public.permutation(len(self.rows)), len(self.rows) // 2
        one, other = order[:half], order[half : 2 * half]
        octaves = np.empty(half, np.int64)
        for own in self._blocks(self.rows.shape[1], half):
            lengths = np.linalg.norm(self.rows[one[own]] - self.rows[other[own]], axis=1)
            octaves[own] = np.clip(np.log2(top / np.maximum(lengths, top * 2.0**-BINS)), 0, BINS - 1)
        counts = np.bincount(octaves[self.here[one] & self.here[other]], minlength=BINS)
        return self._released(counts / half, half, mu)

    def moment(self, centre: Vector, radius: float, mu: float) -> Matrix:
        """Return the noisy mean of zz', (d, d), z what lies between `centre` and a user, clipped, over the radius.

        Every z is cut towards zero to whole steps, of which sums of products are exact (private-mean#m7).
        """
        (users, d), row = self.rows.shape, clipped(centre, radius)
        steps, total = 2.0 ** ((52 - users.bit_length()) // 2), loops.aligned(d, d)
        for own in self._blocks(d):
            made = row(self.rows[own][self.here[own]])
            whole = loops.aligned(4 * math.ceil(len(made) / 4), d)
            whole[: len(made), :d] = np.trunc(steps * made)
            loops.add_products(whole, total)
        upper = np.triu_indices(d)
        weights = np.where(upper[0] == upper[1], 1.0, _ROOT)
        moment = np.empty((d, d))
        moment[upper] = self._released(weights * total[upper] / (steps**2 * users), users, mu) / weights
        moment.T[upper] = moment[upper]
        return moment

    def move(self, centre: Vector, there: Matrix) -> None:
        """Take users' vectors from `centre` on, and through `there`, which is symmetric."""
        for own in self._blocks(len(centre)):
            loops.whitened(self.rows[own] - centre, there, np.zeros(len(centre)), self.rows[own])

    def shares(self, edges: Vector, mu: float) -> Vector:
        """Return noisy shares of users of one column in bins between `edges`; those beyond count in the outer ones."""
        bins = np.clip(np.searchsorted(edges, self.rows[self.here, 0], side="right") - 1, 0, len(edges) - 2)
        counts = np.bincount(bins, minlength=len(edges) - 1)
        return self._released(counts / len(self.rows), len(self.rows), mu)

    def lengths(self, centre: Vector, edges: Vector, mu: float) -> Vector:
        """Return noisy shares of users whose distance from `centre` is between `edges`; others do not count."""
        counts = np.zeros(len(edges) + 1, np.int64)
        for own in self._blocks(len(centre)):
            lengths = np.linalg.norm(self.rows[own] - centre, axis=1)[self.here[own]]
            counts += np.bincount(np.searchsorted(edges, lengths), minlength=len(counts))
        return self._released(counts[1:-1] / len(self.rows), len(self.rows), mu)

    def _released(self, shares: Vector, divisor: int, mu: float) -> Vector:
        """Of rows of norm one at most, no two of which are more than a right angle apart."""
        size = len(shares)
        noise = GaussianNoise.for_mu(sensitivity=acute_sensitivity(1.0, divisor), mu=mu, dimension=size)
        self.noises.append((noise, size))
        return noise.release(shares, self.stream)

    @property
    def scale(self) -> float:
        """Of the last release's noise."""
        return self.noises[-1][0].scale

    def mean(
        self,
        row: Rows,
        size: int,
        mu: float,
        lengths: int = 0,
        far: Callable[[Matrix], tuple[Mask, Matrix]] | None = None,
    ) -> tuple[Vector, float]:
        """Return the noisy mean of users' rows, clipped to norm one, (size,), and its noise a coordinate.

        The last `lengths` coordinates of a row are non-negative, and their means are released times √2. `far` says
        whose rows are others, and those: all that `row` makes end with zeros then.
        """
        users = len(self.rows)
        reduction, whole = ClippedSum(1.0, users), np.zeros(size)
        for own in self._blocks(size):
            rows, here = self.rows[own], self.here[own]
            parts = []
            if far is not None:
                away, others = far(rows)
                parts, here = [(others, here[away])], here & ~away
            for made, counted in [(row(rows), here), *parts]:
                sums = reduction.of(made, counted)
                whole[: made.shape[1]] += sums.total
        mean: Vector = whole * (2.0**-reduction.bits / users)
        mean[size - lengths :] *= _ROOT
        noise = _noise(users, size, mu)
        self.noises.append((noise, size))
        return noise.release(mean, self.stream), noise.scale

    def _blocks(self, width: int, users: int | None = None) -> Iterator[slice]:
        """Return which of all users' rows, or of so many, of that width are held at a time."""
        step = max(1, _BLOCK // width)
        return (slice(start, start + step) for start in range(0, users or len(self.rows), step))


def enough_users(dimension: int, mu: float) -> int:
    """Return the users whose place is found in a bound a thousand times their scale (private-mean#m9)."""
    return math.ceil(LEAST * (math.sqrt(dimension) + BELOW) / mu)


def first_share(strength: float) -> float:
    """Of μ² for the pairs, by n μ: noise makes a wrong octave of them once in a thousand runs at most, or so."""
    return min(_MOST_FIRST, max(_FIRST, (_CLEAR / strength) ** 2))


def gaussians(dimension: int) -> int:
    """Return how many samples a run draws at most: of pairs, steps, a shape, the middle, a look, two means, shells."""
    if dimension == 1:
        return BINS + learnt_radii.LOOKS * learnt_radii.MOST_PLACES + 2 * learnt_radii.MOST_NODES
    shape = packed(dimension) if dimension <= learnt_radii.MOST_SHAPED else 0
    lengths = BINS + learnt_radii.MOST_LENGTHS + learnt_radii.MOST_PARTS
    return lengths + shape + (learnt_radii.STEPS + 3) * dimension + learnt_radii.MOST_SHELLS * (dimension + 1)


def clipped(centre: Vector, radius: float) -> Rows:
    """Return rows min(1, r / radius) u, where users' vectors are centre + r u."""
    return lambda values: clip_rows(values, radius, centre) / radius


def with_lengths(centre: Vector, radius: float, edges: Vector) -> Rows:
    """Rows β min(1, r / radius) u, and √(1 - β² min(1, r / radius)²) in the bin of r, of those with upper `edges`."""

    def row(values: Matrix) -> Matrix:
        away = values - centre
        r = np.linalg.norm(away, axis=1)
        share = learnt_radii.inner(r / radius)
        bins = np.zeros((len(values), len(edges)))
        bins[np.arange(len(values)), np.minimum(np.searchsorted(edges, r), len(edges) - 1)] = np.sqrt(1 - share**2)
        return np.hstack([away * _over(share, r), bins])

    return row


def with_narrow(centre: Vector, wide: float, narrow: float) -> Rows:
    """Return rows a u with a = min(1, r / wide), and √(1 - a²) min(1, r / narrow) u."""

    def row(values: Matrix) -> Matrix:
        away = values - centre
        r = np.linalg.norm(away, axis=1)
        share = np.minimum(1.0, r / wide)
        return np.hstack([away * _over(share, r), away * _over(np.sqrt(1 - share**2) * np.minimum(1.0, r / narrow), r)])

    return row


def with_shells(centre: Vector, wide: float, shells: Vector) -> Callable[[Matrix], tuple[Mask, Matrix]]:
    """Who is beyond `wide`, and their rows: a u, zeros, and √(1 - a²) u where the shell is that holds r, which ends so.

    In the first shell wide a + shells[0] √(1 - a²) = r, so that both add up to the whole vector; farther out a = 0.
    """

    def row(values: Matrix) -> tuple[Mask, Matrix]:
        away = values - centre
        r = np.linalg.norm(away, axis=1)
        far = r > wide
        away, r = away[far], r[far]
        which = np.minimum(np.searchsorted(shells, r), len(shells) - 1)
        angle = np.where(which == 0, learnt_radii.turned(r, wide, shells[0]), math.pi / 2)
        rows, counts = np.zeros((len(r), 2 + len(shells), len(centre))), np.zeros((len(r), len(shells)))
        counts[np.arange(len(r)), which] = np.where(which == 0, 0.0, COUNTED)
        rows[:, 0] = away * _over(np.cos(angle), r)
        rows[np.arange(len(r)), 2 + which] = away * _over(np.sin(angle) * np.where(which == 0, 1.0, UNCOUNTED), r)
        return far, np.hstack([rows.reshape(len(r), (2 + len(shells)) * len(centre)), counts])

    return row


def _over(share: Vector, r: Vector) -> Matrix:
    """share / r, zero at r = 0, (k, 1)."""
    return np.divide(share, r, out=np.zeros_like(r), where=r > 0)[:, None]


def _spent(mu: float, share: float) -> float:
    """Of μ, what is left of its square for that share."""
    return mu * math.sqrt(share * _WHOLE)


def _noise(users: int, size: int, mu: float) -> GaussianNoise:
    """For a mean of rows that are 2 apart at most; twice the slack, as some coordinates are rounded once more."""
    sensitivity = mean_sensitivity(1.0, users) * (1 + mean_slack(users))
    return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=size)

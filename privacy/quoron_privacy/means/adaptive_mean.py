"""The adaptive mean: it learns where users are, how far from one another, and how far to clip, from its own releases.

    >>> from quoron_privacy.noise.streams import SeededNoise
    >>> users, noise = np.random.default_rng(0).normal(40.0, 1.0, (10_000, 3)), SeededNoise(1)
    >>> mean = AdaptiveMean(users=10_000, dimension=3, bound=1000.0, mu=0.2)
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

Radii, shares of μ² and all else are functions of releases and of public numbers alone: what they get wrong costs
accuracy, never privacy. How their rules were found: docs/privacy/private-mean.md, "What is made of the releases" and
"One column".

Source: ours. The steps are those of Biswas, Dong, Kamath & Ullman (2020), who take the radius from a declared variance.
Statement, proof and constants: docs/privacy/private-mean.md#m7.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from statistics import NormalDist

import numpy as np

from quoron_privacy.arrays import Mask, Matrix, Vector
from quoron_privacy.errors import ConfigError, Infeasible, count, positive
from quoron_privacy.gaussian import GaussianNoise, acute_sensitivity, mean_sensitivity, mean_slack
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.clipping import ClippedSum, clip_rows
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import packed

loops = OnFirstUse("quoron_privacy.means.clipping_loops")

Rows = Callable[[Matrix], Matrix]  # of a mean, from users' vectors (k, d)

LEAST = 15.0  # n μ / (√d + BELOW) from which on users are found in a bound 10³ times as far as they are apart
TAIL = math.sqrt(2 * math.log(20))  # deviations beyond √d that noise is as long as in one of 20 runs, at most
_AROUND = 1.5  # clipped means whose bound is the users' own radius: none of ours errs more: measured
_FIRST, _MOST_FIRST = 0.02, 0.4  # of μ² for the first release
_TELLING = 42.0  # n μ times the root of that share, from which on it tells enough
_WHOLE = 1 - 1e-9  # of μ², so that rounded shares add to no more than all of it
_ROOT = 1.4142135  # below √2
_BLOCK = 1 << 20  # numbers of rows held at a time

BINS = 64  # of the lengths of pairs, each half as long as the one before
SMALLEST = 2.0**-40  # of the bound: a scale below is none
INNER = 0.9  # β: of a norm of one, what the middle release gives to the vector
_FALLS = 2.0  # the power by which that falls beyond R
STEPS = 12  # of centring, at most
MOST_LENGTHS, _INNER_BINS = 200, 19  # bins of the middle release: at most; those of a third of an octave
_NEAR_EDGE, _PARTS = 7, 3  # bins that the look at the edge takes apart, at most, and into how many each
MOST_PARTS = _NEAR_EDGE * _PARTS
MOST_SHAPED = 500  # columns whose second moment is released
_LEAST_SHAPE, _MOST_SHAPE = 0.005, 0.02  # of μ² for it
_EDGE, _MOST_EDGE = 0.1, 0.05  # of its noise's spectrum, times d, and at most
_CAUTION = 2.0  # variances of moments that noise explains
_SCATTERED, _WIDEST_MIDDLE = 10.0, 2.0  # √(n/d) μ from which on the middle release is wider; times, at most
_STEP_SHARES = (0.003, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2)
_MIDDLE_SHARES = (0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3)
_HIDDEN = 0.5  # of a typical length: what a deviation of unseen users may do; less by (3/d)^¼
_PLENTY = 2400.0  # n μ, from which on that is less by the power of 0.3, and so is the look
_FEW = 5.0  # √d / (n μ) times this is the least share of the middle, up to a quarter
_LOOK, _LEAST_LOOK, _MOST_LOOK = 0.2, 0.01, 0.04  # of μ², divided by d
_OFTEN, _FALSE, _NEAR, _RAREST = 5e-4, 0.03, 4.5, 1e-12  # that noise makes users; falls from so many scales on
_AN_OCTAVE, _NARROWER, _LEAST_KEPT = 12, 72, 0.2  # radii tried; below the wide one, and what they have to show
_CHANCE, _ALONE = 3.0, 12.0  # deviations of the square of a difference that noise explains; times the median one
_ALIGNED, _FAINT = 0.6, 0.002  # of what clipping takes, at least, what is in one direction; noise that hides more
_UNSEEN = 1.0  # deviations of users that may be beyond the edge, falling off by the cube
_CLEAR = 1.5  # deviations of a part of the last bin with users, below which it is empty
COUNTED, UNCOUNTED = 0.6, 0.8  # of a norm of one, what the last release gives to counting who is far away; to where
_FIRST_SHELL, _FAR_OFTEN = 8.0, 0.001  # end of the first shell, in wide radii; how often noise makes users of one there
MOST_SHELLS, _SHELL_NUMBERS = 64, 6400  # beyond the wide radius; means of them that are released, or eight shells
_STEP, _STEEPEST = 1.3, 0.5  # of tails that nothing shows: see `unseen`
_STEPS_ON, _SHARP, _GROUP, _HARDLY = 6, 0.75, 0.05, 0.3
_ABOVE, BELOW = 1.5, 3.5  # typical lengths, and deviations beyond √d, that a step looks around its centre

MOST_PLACES = 4096  # bins of a look at the place; fewer lie around it
LOOKS = 5  # at most, by the smallest scale: four at the place and one around it
LEAST_LAST = 0.3  # of μ² for the mean
_WINDOWS = (1, 2, 4)  # neighbouring bins that tell together
_WIDTH = 3.0  # scales that a bin of place is wide
_INTERVAL_STEP, _INTERVAL_STEEPEST = 1.6, 0.25  # of tails that nothing shows: see `unseen`
_INSIDE = 0.25  # of a bin's width, by which its users may be off its middle on average
_WIDEST, _AT_2400 = 0.8, 0.7  # octaves that a bin beyond equal ones is wide: at most; where n μ is 2,400
MOST_NODES = 64  # where far users are located, to a side
_NEXT, _INTERVAL_FAR_OFTEN = 6.0, 0.0005  # the first node, in half widths; how often noise makes users there
_INTERVAL_CHANCE = 6.0  # variances of the square of a difference that noise explains
_MOVES = np.array([0.0, 1e-3, -1e-3])  # in widths


@dataclass(frozen=True, slots=True, eq=False)
class MeanEstimate:
    """What was released and what was made of it."""

    value: Vector  # the mean, (d,)
    centre: Vector  # around which the last rows were taken, (d,)
    radius: float  # C
    deviation: float  # of a coordinate of `value`, from noise alone
    unseen: float  # share of users who may lie far beyond `radius`, unnoticed
    noises: tuple[tuple[GaussianNoise, int], ...]  # of the releases, and of how many coordinates they were


@dataclass(frozen=True, slots=True)
class AdaptiveMean:
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
            return far * 6 * self.bound / MOST_PLACES**2, _AROUND * far
        mu = _spent(self.mu, 1 - first_share(self.users * self.mu))
        least = planned(self.bound * SMALLEST, self.bound, users=self.users, dimension=self.dimension, mu=mu)[0]
        return least * (1 + TAIL / math.sqrt(self.dimension)), _AROUND * far

    def release(self, values: Matrix, answered: Mask, stream: RandomStream, public: RandomStream) -> MeanEstimate:
        """From users' vectors (n, d), answered (n,); `public` pairs the users. ConfigError for another shape."""
        if values.shape != (self.users, self.dimension):
            raise ConfigError(f"Expected vectors of shape {(self.users, self.dimension)}, got {values.shape}.")
        here = answered & np.isfinite(values).all(axis=1)
        transcript = _Transcript(clip_rows(values, self.bound), here, stream)
        if self.dimension == 1:
            return self._of_a_column(transcript, public)
        first = first_share(self.users * self.mu)
        top = 2 * min(self.bound, self.spread or self.bound)
        mu, d = self.mu * math.sqrt((1 - first) * _WHOLE), self.dimension
        pairs, unit = transcript.pairs(top, _spent(self.mu, first), public), math.sqrt(d) / (self.users * self.mu)
        typical = scale_of(pairs, transcript.scale, top, self.bound, unit)
        _, shares = planned(typical, self.bound, users=self.users, dimension=d, mu=mu)
        centre, deviation, radius = np.zeros(d), math.inf, self.bound
        for _ in range(shares.steps):
            mean, scale = transcript.mean(clipped(centre, radius), d, mu * math.sqrt(shares.step))
            part, deviation = joined(deviation, radius * scale)
            centre, radius = centre + part * radius * mean, reach(typical, radius, deviation, d)

        start, most, there, back = np.zeros(d), self.bound, np.eye(d), np.eye(d)
        if shares.shape:
            within = min(radius, typical + deviation * math.sqrt(d))
            moment = transcript.moment(centre, within, mu * math.sqrt(shares.shape))
            there, back = rounder(moment, transcript.scale)
            transcript.move(centre, there)
            most = float(np.linalg.norm(there, 2)) * (self.bound + float(np.linalg.norm(centre)))
            deviation *= float(np.linalg.norm(there)) / math.sqrt(d)
            start, centre = centre, np.zeros(d)
        wider = widened(self.users, d, mu)
        radius = reach(wider * typical, most, deviation, d)
        edges = edges_of(radius, most)
        row, size = with_lengths(centre, radius, edges), d + len(edges)
        mean, scale = transcript.mean(row, size, mu * math.sqrt(shares.middle), lengths=len(edges))
        part, deviation = joined(deviation, scale * (radius / INNER))
        moved = part * mean[:d] * (radius / INNER)
        centre = centre + moved
        nearer = max(0.0, float(np.sum(moved**2)) - d * deviation**2)
        most = most + float(np.linalg.norm(centre))
        bins = bins_of(mean[d:], scale, edges, radius, nearer, most)
        parts = parts_of(bins)
        looked = transcript.lengths(centre, parts, mu * math.sqrt(shares.look))
        held = held_of(bins, looked, transcript.scale, parts)

        last = mu * math.sqrt(shares.last)
        unit = _noise(self.users, 2 * d, last).scale
        radii = radii_of(held, users=self.users, dimension=d, unit=unit)
        shells = shells_of(radii.wide, held.most, d)
        near, far = with_narrow(centre, radii.wide, radii.narrow), with_shells(centre, radii.wide, shells)
        size = (2 + len(shells)) * d + len(shells)
        mean, scale = transcript.mean(near, size, last, lengths=len(shells), far=far)
        wide, narrow = radii.wide * mean[:d], radii.narrow * mean[d : 2 * d]
        value, own = combined(centre, deviation, wide, narrow, radii, unit)
        more, other, outer = far_of(mean[2 * d :], scale, shells, radii.wide, bins)
        deviation = math.hypot(own, other) * float(np.linalg.norm(back)) / math.sqrt(d)
        radius = max(radii.wide, outer) * float(np.linalg.norm(back, 2))
        value, centre = start + back @ (value + more), start + back @ centre
        return MeanEstimate(value, centre, radius, deviation, held.least, tuple(transcript.noises))

    def _of_a_column(self, transcript: "_Transcript", public: RandomStream) -> MeanEstimate:
        """Return the same, of one: where users are by bins of place, and a clip to an interval."""
        strength, top = self.users * self.mu, 2 * min(self.bound, self.spread or self.bound)
        first, place, around = interval_shares(strength)
        spend = partial(_spent, self.mu)
        pairs, unit = transcript.pairs(top, spend(first), public), 1 / strength
        scale = scale_of(pairs, transcript.scale, top, self.bound, unit)
        left, keep = 1.0 - first, place + around + LEAST_LAST  # keep: for another look and the mean
        low, high, near = -self.bound, self.bound, False
        while not near:
            edges = places(low, high, scale)
            centre, width = place_of(transcript.shares(edges, spend(place)), edges), edges[1] - edges[0]
            left -= place
            low, high = centre - 1.5 * width, centre + 1.5 * width
            near = near_enough(width, scale) or left < keep
        scale = max(scale, width / 3)
        edges = np.clip(bins_around(scale, self.bound, strength), -self.bound - centre, self.bound - centre)
        shares, deviation = transcript.shares(centre + edges, spend(around)), transcript.scale
        left -= around
        deviations = np.full(len(shares), deviation)
        unit = _noise(self.users, 2, spend(left)).scale
        found = interval_of(shares, deviations, edges, scale, unit / 2)
        narrow = narrow_of(shares, edges, found, self.users, unit)
        nodes = nodes_of(found, max(edges[-1] - found.middle, found.middle - edges[0]))
        rows = partial(rows_of, found=found, narrow=narrow, nodes=nodes)
        size, more = 2 * len(nodes), 2 * len(nodes) - 2
        mean, unit = transcript.mean(lambda values: rows(values - centre), size, spend(left), lengths=more)
        value, own = interval_combined(mean, found, narrow, unit)
        far, deviation, reach = interval_far(mean[2:] / _ROOT, unit / _ROOT, nodes)
        return MeanEstimate(
            np.array([centre + value + far]),
            np.array([centre + found.middle]),
            max(found.half, reach),
            math.hypot(own, deviation),
            found.least,
            tuple(transcript.noises),
        )


@dataclass(slots=True, eq=False)
class _Transcript:
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
        steps, total = 2.0 ** ((52 - users.bit_length()) // 2), np.zeros((d, d))
        for own in self._blocks(d):
            whole = np.trunc(steps * row(self.rows[own][self.here[own]]))
            total += whole.T @ whole  # below 2⁵³, so exact in any order
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
        noise = GaussianNoise.for_mu(sensitivity=acute_sensitivity(divisor), mu=mu, dimension=size)
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
    return min(_MOST_FIRST, max(_FIRST, (_TELLING / strength) ** 2))


def gaussians(dimension: int) -> int:
    """Return how many samples a run draws at most: of pairs, steps, a shape, the middle, a look, two means, shells."""
    if dimension == 1:
        return BINS + LOOKS * MOST_PLACES + 2 * MOST_NODES
    shape = packed(dimension) if dimension <= MOST_SHAPED else 0
    lengths = BINS + MOST_LENGTHS + MOST_PARTS
    return lengths + shape + (STEPS + 3) * dimension + MOST_SHELLS * (dimension + 1)


def clipped(centre: Vector, radius: float) -> Rows:
    """Return rows min(1, r / radius) u, where users' vectors are centre + r u."""
    return lambda values: clip_rows(values, radius, centre) / radius


def with_lengths(centre: Vector, radius: float, edges: Vector) -> Rows:
    """Rows β min(1, r / radius) u, and √(1 - β² min(1, r / radius)²) in the bin of r, of those with upper `edges`."""

    def row(values: Matrix) -> Matrix:
        away = values - centre
        r = np.linalg.norm(away, axis=1)
        share = inner(r / radius)
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
        angle = np.where(which == 0, turned(r, wide, shells[0]), math.pi / 2)
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


@dataclass(frozen=True, slots=True)
class Shares:
    """Of μ²: `steps` times `step` for a centre, `shape`, `middle` for a better centre and lengths, `look`, `last`."""

    steps: int
    step: float
    shape: float
    middle: float
    look: float
    last: float


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Noisy shares of users by length, as of the middle release."""

    edges: Vector  # around the better centre, from zero, (bins + 1,)
    shares: Vector  # (bins,)
    deviations: Vector  # of them, (bins,)
    least: Vector  # that stand out of noise, (bins,)

    @property
    def near_edge(self) -> slice:
        """Bins that the look takes apart: to one beyond the last that holds users."""
        holding = _holding(self.shares, self.deviations, self.least)
        top = min(len(self.shares), int(np.flatnonzero(holding).max()) + 2)
        return slice(max(1, top - _NEAR_EDGE), top)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Which share of users is how far from the centre, to the last bin that holds any."""

    edges: Vector  # (bins + 1,)
    shares: Vector  # that add to one, (bins,)
    noisy: Vector  # the same as released, (bins,)
    edge: float  # where those surely seen end
    deviation: float  # of a share of a bin of the middle release there
    least: float  # share of users that is seen wherever it lies
    most: float  # largest length


@dataclass(frozen=True, slots=True)
class Radii:
    """Of the last release; see `AdaptiveMean`."""

    wide: float  # C
    narrow: float  # c
    kept: float  # of a move of all users the part that the narrow mean shows, if they lie evenly around a point
    scatter: float  # then: variance of a coordinate of it, divided by `kept`, beside the noise
    off: float  # else: how far off it may be


def scale_of(pairs: Vector, deviation: float, top: float, bound: float, unit: float) -> float:
    """Return how far a user is from the others, roughly; more where few are so far that the rest need not be resolved.

    From noisy shares of pairs: bin j has differences in (top 2⁻ʲ⁻¹, top 2⁻ʲ]. The two neighbours with the most pairs
    tell the typical length, a power of 2^¼, so that few plans are made. `unit` is the noise for a radius of one.
    """
    first = int(np.argmax(pairs[:-1] + pairs[1:]))
    here, below = np.maximum(pairs[first : first + 2], 0.0).tolist()
    middle = (0.7 * here + 0.35 * below) / (here + below) if here + below > 0 else 0.7
    typical = float(2.0 ** (round(4 * math.log2(top * 2.0**-first * middle / math.sqrt(2))) / 4))
    lengths = 0.7 * top * 2.0 ** -np.arange(BINS)
    least = stands_out(lengths / typical / 2, np.full(BINS, deviation), 8)
    users = np.where(pairs > least, pairs, 0.0) / 2
    clipped = np.sum(users * np.maximum(lengths - lengths[:, None], 0.0), axis=1)
    pays = float(lengths[np.argmin((2 * lengths * unit) ** 2 + clipped**2)])
    return max(typical, pays / 8, bound * SMALLEST)


def reach(typical: float, radius: float, deviation: float, dimension: int) -> float:
    """Return the radius in which users are around a centre with that noise a coordinate; at most `radius`."""
    return min(radius, _ABOVE * typical + deviation * (math.sqrt(dimension) + BELOW))


def widened(users: int, dimension: int, mu: float) -> float:
    """Return how much farther the middle release reaches where its noise is less than what users scatter."""
    return min(_WIDEST_MIDDLE, max(1.0, math.sqrt(users / dimension) * mu / _SCATTERED))


def shape_share(strength: float, dimension: int) -> float:
    """Of μ² for a second moment: none where noise hides all but the longest directions, or numbers are too many."""
    edge = 2 * math.sqrt(dimension) / strength  # of the spectrum of its noise, for all of μ
    if dimension > MOST_SHAPED or edge > _MOST_EDGE * math.sqrt(_MOST_SHAPE):
        return 0.0
    return min(_MOST_SHAPE, max(_LEAST_SHAPE, (edge * dimension / _EDGE) ** 2))


def rounder(moment: Matrix, scale: float) -> tuple[Matrix, Matrix]:
    """Return a map that makes users rounder and keeps typical lengths, and its inverse.

    Noise for a radius R of rows divided by s is R s in their own units. Σ s² times R², which is as Σ λ / s², is least
    at s² = √λ. Second moments λ are drawn to their mean as far as noise explains how they differ.
    """
    values, vectors = np.linalg.eigh(moment)
    d, even, least = len(values), float(values.mean()), math.sqrt(2 * len(values)) * scale
    part = 1 - _CAUTION * (d + 1) / 2 * scale**2 / max(float(values.var()), 1e-300)
    if part <= 0 or even <= least / d:
        return np.eye(d), np.eye(d)
    drawn = np.maximum(even + part * (values - even), least)
    factors = drawn**-0.25 * math.sqrt(drawn.sum() / np.sqrt(drawn).sum())
    return (vectors * factors) @ vectors.T, (vectors / factors) @ vectors.T


def joined(deviation: float, other: float) -> tuple[float, float]:
    """Return the part of `other` in the best average of two estimates with such noise, and the noise of the average."""
    if math.isinf(deviation):
        return 1.0, other
    part = deviation**2 / (deviation**2 + other**2)
    return part, other * math.sqrt(part)


@lru_cache(maxsize=256)
def planned(typical: float, bound: float, *, users: int, dimension: int, mu: float) -> tuple[float, Shares]:
    """(the least error that can be foreseen, a root mean square; the shares that make it)."""
    unit = 2 / (users * mu)  # noise of a coordinate for a radius of 1 and all of μ
    plenty = min(1.0, (_PLENTY / (users * mu)) ** 0.3)
    look = max(_LEAST_LOOK, min(_MOST_LOOK, _LOOK / dimension) * plenty)
    hidden = _HIDDEN * plenty * min(1.0, 3 / dimension) ** 0.25 * unit * typical
    few = min(0.25, _FEW * math.sqrt(dimension) / (users * mu))
    shape = shape_share(users * mu, dimension)
    found: list[tuple[float, Shares]] = []
    for step in _STEP_SHARES:
        radius, away, deviation = bound, bound**2 / 4, math.inf  # away: squared distance of the centre
        for steps in range(STEPS + 1):
            if steps:
                _, deviation = joined(deviation, unit * radius / math.sqrt(step))
                radius, away = reach(typical, radius, deviation, dimension), dimension * deviation**2
            for middle in _MIDDLE_SHARES:
                last = 1 - steps * step - shape - middle - look
                if last >= LEAST_LAST and middle >= few:
                    left = dimension * joined(deviation, unit * radius / INNER / math.sqrt(middle))[1] ** 2
                    left = min(left, away)
                    noise = (typical**2 + away + 0.5 * left) * unit**2 * dimension / last
                    found.append((noise + hidden**2 / middle, Shares(steps, step, shape, middle, look, last)))
    square, shares = min(found, key=lambda plan: plan[0])
    return math.sqrt(square), shares


def inner(lengths: Vector) -> Vector:
    """Of a norm of one, what the middle release gives to the vector of a user so many radii away."""
    part: Vector = INNER * np.minimum(lengths, np.maximum(lengths, 1e-300) ** -_FALLS)
    return part


def edges_of(radius: float, bound: float) -> Vector:
    """Return upper edges of bins of length, to 2 bound or more: three an octave, from 1.6 radius on one if too many."""
    octaves, most = max(2, math.ceil(math.log2(max(2 * bound / radius, 1.0)))), MOST_LENGTHS - _INNER_BINS
    near = radius * 2.0 ** (np.arange(3 - _INNER_BINS, 3) / 3)
    an_octave = 3 if 3 * octaves <= most else 1
    outer = np.arange(1, min(most, an_octave * octaves) + 1) / an_octave
    return np.concatenate([near, near[-1] * 2.0**outer])


def bins_of(noisy: Vector, scale: float, edges: Vector, radius: float, nearer: float, most: float) -> Bins:
    """From the noisy means of the middle release's bins.

    `nearer` is by how much the new centre is, squared; no user is farther from it than `most`.
    """
    lengths = np.sqrt(np.append(edges[0] / 2, edges[:-1]) * edges)
    weights = math.sqrt(2) * np.sqrt(1 - inner(lengths / radius) ** 2)
    deviations = scale / weights
    far = np.where(np.arange(len(edges)) < _INNER_BINS, 0.0, _ABOVE * edges / radius)
    least = stands_out(far, deviations, len(edges) - _INNER_BINS)
    around = np.minimum(most, np.sqrt(np.maximum(edges**2 - nearer, (0.3 * edges) ** 2)))
    return Bins(np.append(0.0, around), noisy / weights, deviations, least)


def parts_of(bins: Bins) -> Vector:
    """Return edges of the parts of bins near the edge, each of equal ratio; none below the one before."""
    lows, highs = bins.edges[bins.near_edge], bins.edges[1:][bins.near_edge]
    edges = np.append(lows[:, None] * (highs / lows)[:, None] ** (np.arange(_PARTS) / _PARTS), highs[-1])
    return np.maximum.accumulate(edges)  # of bins that are no wider than a rounding: a search relies on order


def held_of(bins: Bins, looked: Vector, deviation: float, parts: Vector) -> Held:
    """Return `Held` of those bins and noisy shares of their `parts` near the edge; the sum of parts is known twice."""
    near, top = bins.near_edge, bins.near_edge.stop
    fine = looked.reshape(-1, _PARTS)
    own, other = bins.deviations[near] ** -2.0, 1 / (_PARTS * deviation**2)
    shares, deviations = bins.shares[:top].copy(), bins.deviations[:top].copy()
    shares[near] = (own * shares[near] + other * fine.sum(axis=1)) / (own + other)
    deviations[near] = 1 / np.sqrt(own + other)
    fine = fine + (shares[near] - fine.sum(axis=1))[:, None] / _PARTS

    holding = _holding(shares, deviations, bins.least[:top] * deviations / bins.deviations[:top])
    last = int(np.flatnonzero(holding).max())
    ends = last + 1 + (_PARTS - 1) * max(0, last + 1 - near.start)  # bins are whole below those near the edge
    edges = np.append(bins.edges[: near.start], parts)[: ends + 1]
    noisy = np.append(shares[: near.start], fine)[:ends]
    likely = np.where(np.append(holding[: near.start], np.repeat(holding[near], _PARTS))[:ends], noisy, 0.0)
    if last >= near.start:
        clear = _CLEAR * math.hypot(deviation * math.sqrt(1 - 1 / _PARTS), deviations[last] / _PARTS)
        ends -= int(np.argmax(np.append(noisy[:-_PARTS:-1] > clear, True)))  # but one part of the last
    likely = np.maximum(likely, 0.0)
    likely[ends:] = 0.0
    if not likely.any():
        likely[ends - 1] = 1.0
    unnoticed, most = float(min(1.0, bins.least.max())), float(bins.edges[-1])
    return Held(edges, likely / likely.sum(), noisy, float(edges[ends]), float(deviations[last]), unnoticed, most)


def _holding(shares: Vector, deviations: Vector, least: Vector) -> Mask:
    """Bins that are taken to hold users: those that surely do, and the one below each."""
    seen = seen_of(shares, deviations, least, windows=(1, 2))
    holding = seen.copy()
    holding[:-1] |= seen[1:]
    return holding


def stands_out(scales: Vector, deviations: Vector, bins: int) -> Vector:
    """Shares that noise alone reaches hardly ever, and the less, the more scales away, where that would cost more."""
    chances = np.minimum(_OFTEN, _FALSE / bins * np.minimum(1.0, _NEAR / np.maximum(scales, _NEAR)) ** 2)
    least: Vector = deviations * [-NormalDist().inv_cdf(chance) for chance in np.maximum(chances, _RAREST).tolist()]
    return least


def seen_of(shares: Vector, deviations: Vector, least: Vector, windows: tuple[int, ...]) -> Mask:
    """Bins that hold users for sure, alone or so many neighbours together; if none does, that of the most."""
    seen = np.zeros(len(shares), np.bool_)
    for window in (width for width in windows if width <= len(shares)):
        together = np.convolve(shares, np.ones(window), "valid")
        enough = np.lib.stride_tricks.sliding_window_view(least, window).max(axis=1) * math.sqrt(window)
        for start in np.flatnonzero(together > enough).tolist():
            own = slice(start, start + window)
            if not seen[own].any():
                seen[own] = shares[own] > (deviations[own] if window > 1 else 0.0)
    return seen if seen.any() else shares == shares.max()


def radii_of(held: Held, *, users: int, dimension: int, unit: float) -> Radii:
    """Return the least of noise and of what clipping may do; `unit` is the noise of a coordinate for a radius of 1."""
    lows, highs, shares = held.edges[:-1], held.edges[1:], held.shares
    lengths = (lows + highs) / 2
    tried = min(1.3 * held.edge, held.most) * 2.0 ** (-np.arange(8 * _AN_OCTAVE) / _AN_OCTAVE)
    beyond = np.sum(shares * _excess(lows, highs, tried[:, None]), axis=1)
    more = unseen(held.noisy, held.edges, held.edge, tried, deviation=held.deviation, step=_STEP, steepest=_STEEPEST)
    beyond += _UNSEEN * held.deviation * tried * np.minimum(1.0, held.edge / tried) ** 3 / 2
    aligned = max(_ALIGNED, min(1.0, (3 / dimension) ** 0.3)) ** min(1.0, _FAINT / unit)
    widest = int(np.argmin(dimension * (unit * tried) ** 2 + aligned**2 * (beyond**2 + more**2)))
    wide, narrow = float(tried[widest]), tried[widest : widest + _NARROWER, None]

    free = np.sqrt(1 - np.minimum(1.0, lengths / wide) ** 2)
    shown = free * np.minimum(lengths, narrow)  # of every length, by every radius
    steep = np.where(lengths < wide, lengths / wide**2 / np.maximum(free, 0.05), 0.0)  # how `free` falls with length
    along = free * (lengths < narrow) - steep * np.minimum(lengths, narrow)
    across, along = np.sum(shares * shown / lengths, axis=1), np.sum(shares * along, axis=1)
    kept = across * (1 - 1 / dimension) + along / dimension
    heard = np.maximum(kept, _LEAST_KEPT)
    missed = lengths - shown / heard[:, None]
    scatter = np.sum(shares * missed**2, axis=1) / users / dimension
    noise = np.where(kept < _LEAST_KEPT, math.inf, (unit * narrow[:, 0] / heard) ** 2 + scatter)
    best = int(np.argmin(noise))
    if math.isinf(noise[best]):
        return Radii(wide, wide, 1.0, 0.0, math.inf)
    most = float(np.sum(shares * np.abs(missed[best]))) + 2 * held.deviation * wide
    return Radii(wide, float(narrow[best, 0]), float(kept[best]), float(scatter[best]), most)


def _excess(lows: Vector, highs: Vector, over: Vector) -> Vector:
    """Mean length over so much, of users evenly between two lengths, or all at one."""
    above: Vector = np.maximum(highs - over, 0.0)
    part = np.minimum(1.0, np.divide(above, highs - lows, out=np.ones_like(above), where=highs > lows))
    return np.where(lows > over, (lows + highs) / 2 - over, above * part / np.where(highs > lows, 2.0, 1.0))


def unseen(
    shares: Vector, edges: Vector, edge: float, clips: Vector, *, deviation: float, step: float, steepest: float
) -> Vector:
    """Return what clipping at `clips` takes from users beyond `edge`, where those surely seen end.

    Shares fall from one step of lengths to the next as they last did, and as much faster again, at most a deviation of
    them; a group of its own, which does not fall, ends where it ends.
    """
    if edge <= 0:
        return np.zeros(len(clips))
    below = np.append(0.0, np.cumsum(shares))
    steps = np.diff(np.interp(edge / step ** np.arange(4), edges, below)[::-1])
    third, second, first = np.maximum(steps, 0.0).tolist()
    fall, faster, most = (first / second if second > 0 else math.inf), 1.0, deviation
    if fall > _SHARP:
        fall, most = _GROUP, _HARDLY * deviation
    elif third > 0:
        faster = min(1.0, fall * third / second)
        fall = min(steepest, fall * faster)
    left, lost = min(first * fall, most), np.zeros(len(clips))
    for step_on in range(_STEPS_ON):
        lost += left * np.maximum(edge * step ** (step_on + 0.4) - clips, 0.0)
        fall *= faster
        left *= fall
    return lost


def shells_of(wide: float, most: float, dimension: int) -> Vector:
    """Return where shells beyond `wide` end: the first _FIRST_SHELL times farther, others by a ratio of about √2."""
    octaves = max(0.0, math.log2(most / wide / _FIRST_SHELL))
    number = min(math.ceil(2 * octaves), MOST_SHELLS - 1, max(8, _SHELL_NUMBERS // dimension))
    return np.array([wide * _FIRST_SHELL * 2 ** (octaves * shell / max(number, 1)) for shell in range(number + 1)])


def turned(r: Vector, wide: Vector | float, shell: Vector | float) -> Vector:
    """Return the angle x of wide cos x + shell sin x = r, for wide <= r <= shell; that of r = shell beyond."""
    long = np.hypot(wide, shell)
    angle: Vector = np.arcsin(np.minimum(r, shell) / long) - np.arctan2(wide, shell)
    return np.clip(angle, 0.0, math.pi / 2)


def far_of(released: Vector, unit: float, shells: Vector, wide: float, bins: Bins) -> tuple[Vector, float, float]:
    """(what users beyond the wide radius add, (d,), its noise a coordinate, the end of the last shell that counts).

    From the released means (d a shell) and counts (shells,) of users in each, if those stand out of noise `unit`.

    The squares of a mean's columns and of the count, each over its noise, are those of d + 1 normal numbers where
    nobody is. What the lengths of users said counts with the count.
    """
    d = len(released) // len(shells) - 1
    means, counts = released[: -len(shells)].reshape(-1, d), released[-len(shells) :] / math.sqrt(2) / COUNTED
    ends, variance = np.append(wide, shells), (unit / math.sqrt(2) / COUNTED) ** 2
    shares, variances = (
        np.diff(np.interp(ends, bins.edges, np.append(0.0, np.cumsum(figures))))
        for figures in (bins.shares, bins.deviations**2)
    )
    precisions = np.divide(1.0, variances, out=np.zeros_like(variances), where=variances > 0)
    shown = np.maximum(0.0, counts / variance + shares * precisions) ** 2 / (1 / variance + precisions)
    shown[0] = 0.0  # users just beyond are there in any case, and are not counted
    square, k = np.sum(means**2, axis=1) / unit**2, d + 1
    chances = np.maximum(_RAREST, _FAR_OFTEN * (wide / shells) ** 2.5)
    normal = np.array([-NormalDist().inv_cdf(chance) for chance in chances.tolist()])
    least = k * (1 - 2 / (9 * k) + normal * math.sqrt(2 / (9 * k))) ** 3  # Wilson & Hilferty (1931)
    kept = np.where(square + shown > least, np.maximum(0.0, 1 - d / np.maximum(square, d)), 0.0)
    middles = np.append(shells[:1], np.sqrt(shells[1:] * shells[:-1]) / UNCOUNTED)
    weights = kept * middles
    return weights @ means, unit * float(np.linalg.norm(weights)), float(shells[kept > 0].max(initial=0.0))


def combined(
    centre: Vector, deviation: float, wide: Vector, narrow: Vector, radii: Radii, unit: float
) -> tuple[Vector, float]:
    """(the mean, noise of a coordinate of it) from a centre with its noise and two means around it, all released.

    If users lie evenly around a point, `narrow` / kept shows it, and so does the centre. The wide mean shows the mean
    in any case: it counts for as much as the two differ by more than their noise, in all columns together, but by
    itself in those few that differ far more than the others.
    """
    quiet, loud = (unit * radii.narrow / radii.kept) ** 2, (unit * radii.wide) ** 2
    known = deviation**2 + radii.scatter  # what scatters the narrow mean scatters a centre too
    trust = known / (known + quiet + radii.scatter)
    even, noise = trust * narrow / radii.kept, trust**2 * quiet + (1 - trust) ** 2 * known
    variance = noise + trust**2 * radii.scatter
    square = (wide - even) ** 2
    likely = max(3.0, 3.5 * math.log(len(centre)) - 2.5) * (variance + loud)  # of the largest square
    rest = (square < likely) | (square < _ALONE * np.median(square))
    d = int(rest.sum())
    chance = (d + _CHANCE * math.sqrt(2 * d)) * (variance + loud)
    apart = np.where(rest, min(max(0.0, float(np.sum(square[rest])) - chance), radii.off**2) / d, square)
    share = (apart + variance) / (apart + variance + loud)
    own = math.sqrt(float(np.mean(share**2 * loud + (1 - share) ** 2 * noise)))
    return centre + even + share * (wide - even), own


@dataclass(frozen=True, slots=True)
class Interval:
    """What users are clipped to, and what is known of those outside.

    In one dimension a clip needs no middle: users are clipped to [low, high], whose noise is that of its width. What
    users outside add is known from their released shares, as far as those stand out of their noise.
    """

    low: float
    high: float
    outside: float  # what they add to the mean beyond the clipped one, by their released shares
    deviation: float  # of that, from noise
    least: float  # share of users that is seen wherever it lies
    ends: tuple[float, float] = (-math.inf, math.inf)  # beyond which nodes locate users

    @property
    def middle(self) -> float:
        """Half way."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Narrow:
    """A second mean, of users near one point, which tells the mean of all if they lie evenly around it."""

    centre: float
    radius: float
    kept: float  # of a move of all users the part that it shows
    scatter: float  # its variance as an estimate, if they lie evenly, beside its noise; infinite where it is none


def interval_shares(strength: float) -> tuple[float, float, float]:
    """Of μ²: for pairs, for one look at the place, for one look around it; `strength` is n μ."""
    return (
        min(0.25, max(0.01, (40 / strength) ** 2)),
        min(0.1, max(0.005, (28 / strength) ** 2)),
        0.24 * min(1.0, (800 / strength) ** 0.35),
    )


def places(low: float, high: float, scale: float) -> Vector:
    """Return edges of equal bins, as wide as users are apart where that is few enough."""
    return np.linspace(low, high, 1 + min(MOST_PLACES, max(4, math.ceil((high - low) / (_WIDTH * scale)))))


def place_of(shares: Vector, edges: Vector) -> float:
    """Within the two neighbouring bins with the most users."""
    first = int(np.argmax(shares[:-1] + shares[1:]))
    below, above = np.maximum(shares[first : first + 2], 0.0).tolist()
    lean = (above - below) / (above + below) if above + below > 0 else 0.0
    return float(edges[first + 1] + lean * (edges[1] - edges[0]) / 2)


def near_enough(width: float, scale: float) -> bool:
    """Bins of that width tell the place."""
    return width <= _WIDTH * scale * (1 + 1e-9)


def bins_around(scale: float, bound: float, strength: float) -> Vector:
    """Return edges around zero to twice the bound: equal ones, then by a constant ratio to 32 scales, then octaves."""
    a_scale = min(6, max(2, round(strength**0.3 / 2.6)))
    ratio = 2 ** min(_WIDEST, _AT_2400 * (2400 / strength) ** 0.2)
    side = [scale * k / a_scale for k in range(1, int(3.5 * a_scale) + 1)]
    while side[-1] < 2 * bound:
        side.append(side[-1] * (ratio if side[-1] < 32 * scale else 2.0))
    return np.concatenate([-np.array(side[::-1]), [0.0], side])


def interval_of(shares: Vector, deviations: Vector, edges: Vector, scale: float, unit: float) -> Interval:
    """Return the least of noise, of what users outside add to it, and of those whom nothing shows.

    `unit` is the noise of the mean for a width of one. All pairs of edges are tried.

        >>> from statistics import NormalDist
        >>> scale = 0.026
        >>> edges = bins_around(scale, 1.0, 5_000.0)
        >>> shares = np.diff(np.array([NormalDist(0.0, 1.5 * scale).cdf(edge) for edge in edges]))
        >>> found = interval_of(shares, np.full(len(shares), 0.001), edges, scale, 0.0004)
        >>> 2.5 < found.high / scale < 5.5, abs(found.outside) < 0.01 * scale
        (True, True)
    """
    low, high = edges[:-1], edges[1:]
    away, deviation = np.maximum(-low, high) / scale, float(deviations.max())
    least = stands_out(away, deviations, len(shares))
    seen = seen_of(shares, deviations, least, windows=_WINDOWS)
    first, last = int(np.flatnonzero(seen).min()), int(np.flatnonzero(seen).max())
    known = np.zeros(len(shares), np.bool_)
    known[max(0, first - 1) : last + 2] = True
    trust = np.where(known & (shares > 0), shares**2 / (shares**2 + deviations**2), 0.0)
    # Users of a bin are nearer to zero than half way, but in bins beside zero.
    beside = np.minimum(np.abs(low), np.abs(high)) == 0
    middles = np.where(beside, (low + high) / 2, np.sign(low + high) * np.sqrt(np.abs(low * high)))
    users = trust * shares
    square = np.minimum(users, deviations) ** 2
    loose = (_INSIDE * users * (high - low)) ** 2

    above, below = np.maximum(middles - high[:, None], 0.0), np.maximum(low[:, None] - middles, 0.0)
    beyond = partial(unseen, deviation=deviation, step=_INTERVAL_STEP, steepest=_INTERVAL_STEEPEST)
    tails = (
        beyond(shares, edges, float(high[last]), high),
        beyond(shares[::-1], -edges[::-1], -float(low[first]), -low),
    )
    up, down = (
        np.sum(away**2 * square + (away > 0) * loose, axis=1) + tail**2
        for away, tail in zip((above, below), tails, strict=True)
    )
    width = high - low[:, None]  # by low, by high
    risk = np.where(width > 0, (width * unit) ** 2 + up + down[:, None], math.inf)
    at, to = np.unravel_index(int(np.argmin(risk)), risk.shape)
    middle, half = (low[at] + high[to]) / 2, (high[to] - low[at]) / 2
    near = known & (np.maximum(high - middle, middle - low) <= _NEXT * half)
    ends = float(min(low[at], low[near].min(initial=low[at]))), float(max(high[to], high[near].max(initial=high[to])))
    reach = np.where(near, above[to] - below[at], 0.0)
    noise = math.sqrt(float(np.sum((trust * reach * deviations) ** 2)))
    outside = float(np.sum(users * reach))
    return Interval(float(low[at]), float(high[to]), outside, noise, float(min(1.0, least.max())), ends)


def narrow_of(shares: Vector, edges: Vector, found: Interval, users: int, unit: float) -> Narrow:
    """That of the least noise around the mean of those inside; `unit` is the noise of a mean for a radius of one."""
    low, high, width = edges[:-1], edges[1:], found.high - found.low
    inside = (low >= found.low) & (high <= found.high)
    middles, known = ((low + high) / 2)[inside], np.maximum(shares[inside], 0.0)
    known = known / known.sum() if known.any() else np.full(len(known), 1 / len(known))
    centre = float(known @ middles)
    radii = max(found.high - centre, centre - found.low) * 2.0 ** (-np.arange(24) / 4)
    here, up, down = (_shown(middles + move, found, centre, radii[:, None]) for move in width * _MOVES)
    kept = radii * ((up - down) @ known) / (width * (_MOVES[1] - _MOVES[2]))
    heard = np.maximum(kept, _LEAST_KEPT)
    scatter = (middles - centre - here * (radii / heard)[:, None]) ** 2 @ known / users
    noise = np.where(kept < _LEAST_KEPT, math.inf, (unit * radii / heard) ** 2 + scatter)
    best = int(np.argmin(noise))
    variance = float(scatter[best]) if noise[best] < math.inf else math.inf
    return Narrow(centre, float(radii[best]), float(heard[best]), variance)


def nodes_of(found: Interval, most: float) -> Vector:
    """Distances from the middle of the interval: its half width, _NEXT times that, and doubled until `most`."""
    number = min(MOST_NODES - 2, max(0, math.ceil(math.log2(most / found.half / _NEXT) - 1e-9)))
    return found.half * np.append(1.0, _NEXT * 2.0 ** np.arange(number + 1.0))


def rows_of(values: Vector, found: Interval, narrow: Narrow, nodes: Vector) -> Matrix:
    """(a, √(1 - a²) b at most) of users' values (k, 1), both means' rows, and what there is at nodes above and below.

    Of users beyond `ends` there is a part cos x at one node and sin x at the next, which add to where they are; the
    first node is the interval's own end. (k, 2 nodes), of norm one at most.
    """
    away = values[:, 0] - found.middle
    rows = np.zeros((len(away), 2, len(nodes)))
    rows[:, 0, 0] = np.clip(away / found.half, -1.0, 1.0)
    rows[:, 1, 0] = _shown(values, found, narrow.centre, narrow.radius)[:, 0]
    far = np.flatnonzero((values[:, 0] < found.ends[0]) | (values[:, 0] > found.ends[1]))
    length = np.maximum(np.abs(away[far]), found.half)
    at = np.clip(np.searchsorted(nodes, length) - 1, 0, len(nodes) - 2)
    angle, side = turned(length, nodes[at], nodes[at + 1]), np.where(away[far] > 0, 0, 1)
    rows[far, side, at] = np.cos(angle)
    rows[far, 0, 0] = np.where(at == 0, np.sign(away[far]) * np.cos(angle), 0.0)
    rows[far, 1, 0] = 0.0
    rows[far, side, at + 1] = np.sin(angle)
    ordered: Matrix = np.concatenate([rows[:, :, 0], rows[:, 0, 1:], rows[:, 1, 1:]], axis=1)
    return ordered


def interval_far(means: Vector, unit: float, nodes: Vector) -> tuple[float, float, float]:
    """(what users at the nodes add to the mean, its noise, how far the last lies): those that stand out of `unit`."""
    total, noise, reach = 0.0, 0.0, 0.0
    chances = np.maximum(1e-12, _INTERVAL_FAR_OFTEN * (nodes[0] / nodes[1:]) ** 2.5)
    least = unit * np.array([-NormalDist().inv_cdf(chance) for chance in chances.tolist()])
    for sign, own in zip((1.0, -1.0), means.reshape(2, -1), strict=True):
        pairs = np.flatnonzero(own[:-1] + own[1:] > math.sqrt(2) * least[1:])
        counts = own > least
        for first in (*pairs, *np.flatnonzero(counts)):  # a user between two nodes counts at both
            beside = max((i for i in (first - 1, first + 1) if 0 <= i < len(own)), key=own.__getitem__, default=first)
            counts[first], counts[beside] = True, counts[beside] or own[beside] > unit
        if not counts.any():
            continue
        total += sign * float(np.sum((nodes[1:] * own)[counts]))
        noise = math.hypot(noise, unit * float(np.linalg.norm(nodes[1:][counts])))
        reach = max(reach, float(nodes[1:][counts].max()))
    return total, noise, reach


def _shown(values: Vector, found: Interval, centre: float, radius: float | Vector) -> Vector:
    """Return what the narrow mean takes of users there: between -1 and 1, odd around the centre."""
    middle, half = found.middle, found.half
    wide = np.minimum(1.0, np.maximum(np.abs(values - middle), np.abs(2 * centre - values - middle)) / half)
    taken: Vector = np.sqrt(1 - wide**2) * np.clip((values - centre) / radius, -1.0, 1.0)
    return taken


def interval_combined(mean: Vector, found: Interval, narrow: Narrow, unit: float) -> tuple[float, float]:
    """(the mean, its noise) from both means, released with noise `unit`.

    The narrow one tells it if users lie evenly around a point. Where the other differs by more than noise explains, it
    counts by that much more.
    """
    half = (found.high - found.low) / 2
    value, loud = (
        (found.low + found.high) / 2 + half * mean[0] + found.outside,
        math.hypot(half * unit, found.deviation),
    )
    if math.isinf(narrow.scatter):
        return float(value), loud
    even, quiet = narrow.centre + narrow.radius * mean[1] / narrow.kept, unit * narrow.radius / narrow.kept
    variance = quiet**2 + narrow.scatter
    apart = max(0.0, (value - even) ** 2 - _INTERVAL_CHANCE * (loud**2 + variance))
    share = (apart + variance) / (apart + variance + loud**2)
    return float(even + share * (value - even)), math.hypot(share * loud, (1 - share) * quiet)

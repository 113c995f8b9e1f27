"""How good a model is, of users that had no part in it: two clipped means of users' vectors, each with Gaussian noise.

    >>> held = HeldOut.calibrate(users=1000, classes=2, epsilon=0.5, delta=1e-6)
    >>> round(held.pair.mu, 3), [round(scale, 4) for scale in held.scales]
    (0.124, [0.0396, 0.0083])

The first release says where users' scores lie (or how far errors go), the second is what figures are made of, in cells
that the first chose. A user's vector is the mean of its rows' vectors, which come from a set that is public before
anything is released: how far two users can be apart is the diameter of that set. So every user weighs one, however
many rows it has. Statement, proof and the weights: docs/privacy/evaluation.md.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import numpy as np

from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Matrix, Vector
from quoron_privacy.errors import ConfigError, count, positive, require
from quoron_privacy.gaussian import GaussianNoise, check_adjacency, mean_slack
from quoron_privacy.means.clipping import ClippedSum, clip_shares
from quoron_privacy.noise.streams import RandomStream, total_variation
from quoron_privacy.release import Adjacency, Release, Sums, sum_bits

PLACES = 128  # of scores that the first release tells apart
FEWEST, MOST_CELLS = 2, 20  # cells of scores of each class in the second: as many as the noise leaves worth telling
STEPS, LABELS = 28, 32  # steps of errors, each half as large in square as the next; places of labels that are numbers
FIRST, PLACED = 0.12, 0.06  # of μ², for the first release; of two classes, whose cells are few
ERRORS = 0.7  # of norm², of a number's first release; the rest is places of labels
STEEP, SMOOTH = 1.0, 1.25  # how fast weights of waves fall, for steps and for figures that change slowly
CORRECT = 0.08  # squared distance that right and wrong are apart, of two classes; the rest is cells
PRESENT = 0.25  # and presence, in which no two rows differ
_NUMBER = (0.2, 0.85, 0.15)  # presence, squares of errors, and of the baseline's
_MANY = (0.3, 0.3, 0.4)  # classes, right or wrong, log loss
# Of a number, of many classes: a row's figures are released less this, so that how many are there matters little.
_USUAL = {0: (0.2, 0.3), 1: (0.5, 0.3)}
_HERE = 0.05  # of norm², of means that somebody else computes: presence
_ABOVE = 1 + 1e-9  # the norm at which vectors are clipped over the longest vertex, so that none is shortened


def _verify(held: "HeldOut | HeldMeans", epsilon: float, delta: float, *, adjacency: str) -> None:
    """evaluation#ev2 by the second account, with two users' distance from their products; VerificationError else."""
    spent = held.pair.delta(epsilon * (1 + 1e-12), delta)
    require(
        "an evaluation",
        (f"adjacency {adjacency}", held.adjacency == adjacency, held.adjacency),
        (f"delta <= {delta} of those held out", spent <= delta, spent),
    )


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Both releases.

    Formal guarantee: `pair.mu`-GDP with exact noise (evaluation#ev2), whatever users hold and whatever the model is.

    | input                                   | what happens                                              |
    | --------------------------------------- | --------------------------------------------------------- |
    | a user with many rows                   | weighs one: its rows' vectors are averaged                |
    | a user without a row that can be used   | the zero vector                                           |
    | a slot that holds nobody (zero-out)     | the zero vector                                           |
    | a number outside [0, 1], one not finite | held at the ends, NaN as zero                             |
    """

    users: int  # m, held out, and the divisor: never a count of rows that can be used
    classes: int  # K of the label; 0: a number
    adjacency: Adjacency
    scales: tuple[float, float]  # standard deviations of a coordinate of the mean, of each release
    cells: int = FEWEST  # B, of scores of each class, where there are two
    rounds: ClassVar[tuple[int, ...]] = ()  # of the final model alone

    def __post_init__(self) -> None:
        count(users=self.users, cells=self.cells)
        if isinstance(self.classes, bool) or not isinstance(self.classes, int) or self.classes < 0 or self.classes == 1:
            raise ConfigError(f"Expected classes to be 0, for a number, or 2 and more, got classes={self.classes!r}.")
        check_adjacency(self.adjacency)
        if len(self.scales) != 2:
            raise ConfigError(f"Expected two scales, got scales={self.scales!r}.")
        positive(first=self.scales[0], second=self.scales[1])
        _ = self.noises  # refuses a scale out of range

    @classmethod
    def calibrate(
        cls,
        *,
        users: int,
        classes: int,
        epsilon: float,
        delta: float,
        adjacency: Adjacency = "replace-one",
    ) -> "HeldOut":
        """Return the least noise for (ε, δ); Infeasible where rounding or the samplers alone cost that."""
        count(users=users)
        sizes = _sizes(classes, MOST_CELLS)
        left = gdp.left(epsilon, delta, gaussians=_samples(sizes), name="evaluation")
        whole = gdp.mu_for(epsilon, left) * (1 - 1e-9)  # verified by other arithmetic
        share = PLACED if classes == 2 else FIRST
        unit = cls(users, classes, adjacency, (1.0, 1.0), cells_for(users * whole))
        first, second = (
            GaussianNoise.for_mu(sensitivity=noise.sensitivity, mu=whole * math.sqrt(part), dimension=size).scale
            for noise, part, size in zip(unit.noises, (share, 1 - share), unit.sizes, strict=True)
        )
        return replace(unit, scales=(first, second))

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers that each release has."""
        return _sizes(self.classes, self.cells)

    @property
    def noises(self) -> tuple[GaussianNoise, GaussianNoise]:
        """The mechanisms: of how far one user moves each mean, with products, its sum's grid and the quotient."""
        grid, made = 2.0 ** -sum_bits(0, self.users) + 2.0**-40, []
        extents = _diameters(self.classes, self.cells)
        for (apart, radius), scale, size in zip(extents, self.scales, self.sizes, strict=True):
            moved = apart if self.adjacency == "replace-one" else radius
            moved += 2 * math.sqrt(size) * (radius * _ABOVE) * grid
            made.append(GaussianNoise(moved / self.users * (1 + mean_slack(self.users)), scale))
        return made[0], made[1]

    @property
    def pair(self) -> DominatingPair:
        """What they cost a user who is held out, by their scales and a distance that is written out again."""
        apart = _apart(self.classes, self.adjacency, self.cells)
        mus = (
            sensitivity_recount.mu(_over(*far, size, self.users), scale, size)
            for far, scale, size in zip(apart, self.scales, self.sizes, strict=True)
        )
        variation = total_variation(gaussians=_samples(self.sizes))
        return DominatingPair.gaussian(sensitivity_recount.together(*mus), variation)

    def first_vectors(self, *shares: Matrix) -> Matrix:
        """Return users' vectors of the first release (k, D): shares of rows in each place, one array (k, B) a block.

        Two classes: places of scores, (k, PLACES). A number: steps of errors (k, STEPS), places of labels (k, LABELS).
        Three classes and more: steps of losses (k, STEPS). A user without rows has zeros.
        """
        blocks = _first(self.classes)
        return np.hstack([_told(_simplex(own), block) for own, block in zip(shares, blocks, strict=True)])

    def second_vectors(self, parts: Matrix) -> Matrix:
        """Return users' vectors of the second release (k, D), of means over their rows.

        | label       | `parts`                                                                                |
        | ----------- | -------------------------------------------------------------------------------------- |
        | two classes | (k, 4 B): shares of rows by class, cell and whether the model is right                 |
        | a number    | (k, 3): 1 if there are rows, means of squares of errors and of the baseline's, in [0, 1] |
        | K classes   | (k, K + 2): shares of rows by class, of right ones, mean loss, in [0, 1]               |
        """
        if self.classes == 2:
            return _told(_simplex(parts), two_classes(self.cells))
        held = clip_shares(parts)
        own = np.minimum(held, held[:, :1]) if not self.classes else _many(held, self.classes)
        return _told(own, parts_told(self.classes))

    def sums(self, which: int, vectors: Matrix) -> Sums:
        """Of users' vectors (k, D) of the first release (0) or the second (1): sums of parts of the users add."""
        return self._reduction(which).of(vectors, np.ones(len(vectors), np.bool_))

    def release(self, which: int, sums: Sums, stream: RandomStream) -> Vector:
        """Return the noisy mean (D,) of all users' vectors. Draw each once a run."""
        return self.noises[which].release(self._reduction(which).mean(sums), stream)

    verify = _verify

    def releases(self) -> tuple[tuple[Release, float], ...]:
        """Return the ledger entries of both, each with its μ."""
        users, named = float(self.users), ("held-out-places", "held-out-figures")
        made = zip(named, self.noises, self.sizes, strict=True)
        return tuple((noise.entry(name, users=users), noise.effective_mu(size)) for name, noise, size in made)

    def _reduction(self, which: int) -> ClippedSum:
        return ClippedSum(_diameters(self.classes, self.cells)[which][1] * _ABOVE, self.users)


@dataclass(frozen=True, slots=True)
class HeldMeans:
    """Means over held-out users of numbers in [0, 1] that somebody else computes, and how many have any.

    Formal guarantee: all releases together are `pair.mu`-GDP with exact noise (evaluation#ev3), whatever the numbers
    are and however the points depend on earlier releases. One that is not finite makes its user one without any, who is
    the zero vector; others are held at the ends.
    """

    users: int  # m, held out, and the divisor
    figures: int  # F
    adjacency: Adjacency
    scale: float  # standard deviation of a coordinate of the mean of vectors of norm one
    rounds: tuple[int, ...] = ()  # after which the point that stands is measured, beside the final model

    @classmethod
    def calibrate(
        cls,
        *,
        users: int,
        figures: int,
        epsilon: float,
        delta: float,
        adjacency: Adjacency = "replace-one",
        rounds: tuple[int, ...] = (),
    ) -> "HeldMeans":
        """Return the least noise for (ε, δ); Infeasible where rounding or the samplers alone cost that."""
        count(users=users, figures=figures)
        often = 1 + len(rounds)
        left = gdp.left(epsilon, delta, gaussians=often * (1 + figures), name="evaluation")
        mu = gdp.mu_for(epsilon, left) / math.sqrt(often) * (1 - 1e-9)  # verified by other arithmetic
        noise = GaussianNoise.for_mu(sensitivity=_one_moves(users), mu=mu, dimension=1 + figures)
        return cls(users, figures, adjacency, noise.scale, rounds)

    @property
    def noise(self) -> GaussianNoise:
        """The mechanism."""
        return GaussianNoise(_one_moves(self.users), self.scale)

    @property
    def pair(self) -> DominatingPair:
        """What it costs a user who is held out, by its scale alone: two vectors between zero and one of norm one."""
        size, often = 1 + self.figures, 1 + len(self.rounds)
        far = sensitivity_recount.rows(1 + 2.0**-31, self.users, "zero-out")  # cut, none leaves its ends
        mu = sensitivity_recount.mu(far, self.scale, size) * math.sqrt(often) * (1 + 2.0**-50)
        return DominatingPair.gaussian(mu, total_variation(gaussians=often * size))

    def release(self, values: Matrix, stream: RandomStream) -> Vector:
        """(presence, F sums), each of numbers in [0, 1] and divided by m, of users' values (k, F).

        Once for the final model and once after each of `rounds`.
        """
        here = np.isfinite(values).all(axis=1, keepdims=True)
        rows = np.hstack([here, np.where(here, clip_shares(values), 0.0)]) * self._weights
        reduction = ClippedSum(1.0 + 1e-9, self.users)
        mean = reduction.mean(reduction.of(rows, np.ones(len(rows), np.bool_)))
        return self.noise.release(mean, stream) / self._weights

    @property
    def errors(self) -> Vector:
        """Standard deviations of what is released, (1 + F,)."""
        return self.scale / self._weights

    verify = _verify

    def releases(self) -> tuple[tuple[Release, float], ...]:
        """Return the ledger entry, with the μ of all of them."""
        mu = self.noise.effective_mu(1 + self.figures) * math.sqrt(1 + len(self.rounds))
        return ((self.noise.entry("held-out-means", users=float(self.users)), mu),)

    @property
    def _weights(self) -> Vector:
        return np.asarray(np.sqrt(np.array([_HERE] + [(1 - _HERE) / self.figures] * self.figures)), np.float64)


def waves(cells: int, fall: float) -> Matrix:
    """(cells, cells): in column b what a row in cell b adds; waves k = 0, 1, ..., of weight² 1 / (1 + k)^fall."""
    k, middles = np.arange(cells)[:, None], np.arange(cells)[None, :] + 0.5
    weight = (1.0 + k) ** -fall
    return np.asarray(np.sqrt(weight / weight.sum()) * np.cos(np.pi * k * middles / cells))


def cells_for(signal: float) -> int:
    """Cells of scores of each class, of a public number: held-out users times μ.

    Each has noise of its own, and leaves less of the curve between them open: a few are nearest the truth where noise
    is large, some more where it is small. By the tables of the benchmark; a few less or more make little difference.
    """
    return int(min(max(round(0.6 * signal ** (1 / 3)), FEWEST), MOST_CELLS))


def _told(own: Matrix, block: Matrix) -> Matrix:
    """own @ block.T, (k, D), each row by itself: a user's bits depend on nobody else, nor on who is beside it."""
    return np.asarray(np.einsum("ku,du->kd", own, block))


@cache
def two_classes(cells: int) -> Matrix:
    """Return (2 + 2 B, 4 B): of a row of class c in cell b whose prediction is wrong or right, at (c B + b) 2 + right.

    Which class and cell, any two as far apart; right or wrong; and that there is a row.
    """
    made = np.zeros((2 + 2 * cells, 2 * cells, 2))
    made[0] = math.sqrt(CORRECT) * np.array([-0.5, 0.5])  # so that how many are there matters little
    made[1] = math.sqrt(PRESENT)
    made[2:] = math.sqrt((1 - CORRECT) / 2) * np.eye(2 * cells)[:, :, None]
    found: Matrix = made.reshape(2 + 2 * cells, 4 * cells)
    found.setflags(write=False)
    return found


def parts_told(classes: int) -> Matrix:
    """(D, D): the second release tells this times `parts`, of a label that is not two classes."""
    here = classes or 1
    made = np.eye(here + 2)
    made[here:, :here] = -np.array(_USUAL[min(classes, 1)])[:, None]
    return np.asarray(np.sqrt(_weights(classes))[:, None] * made)


@cache
def _first(classes: int) -> tuple[Matrix, ...]:
    if classes == 2:
        return (waves(PLACES, STEEP),)
    if classes == 0:
        return math.sqrt(ERRORS) * waves(STEPS, STEEP), math.sqrt(1 - ERRORS) * waves(LABELS, SMOOTH)
    return (waves(STEPS, STEEP),)


def _weights(classes: int) -> Vector:
    if classes == 0:
        return np.array(_NUMBER)
    return np.array([_MANY[0]] * classes + [*_MANY[1:]])


def _sizes(classes: int, cells: int) -> tuple[int, int]:
    return sum(map(len, _first(classes))), 2 + 2 * cells if classes == 2 else len(_weights(classes))


def _samples(sizes: tuple[int, int]) -> int:
    """As many of all labels of few classes: what a run is charged does not hang on classes that it estimates."""
    return max(sum(sizes), 4096)


@cache
def _diameters(classes: int, cells: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """(replaced, left out) of each release: the farthest two vertices are apart, and the farthest from zero."""
    return _far([*_first(classes)]), _far(_vertices(classes, cells))


def _vertices(classes: int, cells: int) -> list[Matrix]:
    """Blocks of columns, each the corners of what one user's part can be."""
    if classes == 2:
        return [two_classes(cells)]
    if classes == 0:
        corners = np.array([[1.0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1]])
        return [parts_told(0) @ corners]
    right = np.array([[1.0, 0, 1, 0], [0, 0, 1, 1]])
    made = [np.vstack([np.tile(np.eye(classes)[:, [own]], 4), right]) for own in range(classes)]
    return [parts_told(classes) @ np.hstack(made)]


def _far(blocks: list[Matrix]) -> tuple[float, float]:
    """Of vectors with a part in the hull of each block's columns and zero: (diameter, radius around zero)."""
    apart, norm = 0.0, 0.0
    for block in blocks:
        corners = np.hstack([np.zeros((len(block), 1)), block]).T
        differences = np.linalg.norm(corners[:, None, :] - corners[None, :, :], axis=2)
        apart += float(differences.max()) ** 2
        norm += float(np.linalg.norm(corners, axis=1).max()) ** 2
    return math.sqrt(apart) * (1 + 1e-12), math.sqrt(norm) * (1 + 1e-12)


def _apart(classes: int, adjacency: Adjacency, cells: int) -> list[tuple[float, float]]:
    """(distance, radius around zero) of each again, by the law of cosines, of Gram matrices: for `verify`."""
    found = []
    for blocks in ([*_first(classes)], _vertices(classes, cells)):
        square = radius = 0.0
        for gram in (block.T @ block for block in blocks):
            norms = np.diag(gram)
            pairs, longest = norms[:, None] + norms[None, :] - 2 * gram, float(norms.max())
            square += max(float(pairs.max()), longest) if adjacency == "replace-one" else longest
            radius += longest
        found.append((math.sqrt(square) * (1 + 1e-11), math.sqrt(radius) * (1 + 1e-9)))
    return found


def _one_moves(users: int) -> float:
    """Return how far one user moves a mean of vectors between zero and one of norm one, products and grids included."""
    return (1 + 2.0**-30) / users * (1 + mean_slack(users))


def _over(far: float, radius: float, size: int, users: int) -> float:
    """Of a mean of so many: with the grid of its sum, which is the coarser the more they are, and the quotient."""
    grid = 2.0**-40 + 2.0 ** max(math.floor(math.log2(users)) - 55, -52)
    return (far + radius * math.sqrt(4 * size) * grid) / users * (1 + (64 * users + 4) * 2.0**-51)


def _simplex(shares: Matrix) -> Matrix:
    """Return shares at least zero that add up to one at most, whatever comes."""
    held = clip_shares(shares)
    total = held.sum(axis=1, keepdims=True)
    return np.asarray(held / np.maximum(total, 1.0))


def _many(held: Matrix, classes: int) -> Matrix:
    """Return shares of classes that add up to one at most, and no more than these right, or lost."""
    shares = held[:, :classes] / np.maximum(held[:, :classes].sum(axis=1, keepdims=True), 1.0)
    here = shares.sum(axis=1, keepdims=True)
    return np.hstack([shares, np.minimum(held[:, classes:], here)])

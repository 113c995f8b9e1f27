"""How two classes lie along a model's scores, fitted to what was released: shares of users' rows, with their errors.

    shares = fitted(held, scorer, found, said, told)     # shares.held (2, S): by class, and place of the score

The first release says where scores lie, the second how many rows of each class few wide cells hold. In between, the
log odds of the second class are taken as a line in the score and slow waves, each as large as odds usually are off a
line. Few cells have little noise, and what they do not show is part of the error: the waves' size, as far as cells
leave it open. Derivation and what it rests on: docs/privacy/evaluation.md#ev4.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import expit, logit, ndtri

from quoron.evaluating.measuring import Where, places_said
from quoron.evaluating.scores import Scorer
from quoron_privacy.counts import held_out
from quoron_privacy.counts.held_out import PLACES, HeldOut

Vector = NDArray[np.float64]
WAVES = 8  # k = 2, 3, ... of the log odds, by share of rows below; and two more for each cell
OFF = 0.3  # standard deviation of log odds in the slowest wave, by what a line rises; of wave k 2/k times it
RIGHT = 0.05  # standard deviation of rows that are right beyond what the curve says: odds that leap where it decides
STEEP = 2.0  # by which waves are larger where the line is steep: times its slope
LEVEL, SLOPE = 5.0, 5.0  # of log odds in the middle, and of their slope by standard deviation of scores
USUAL = 1.05  # a slope with which the AUC is three quarters
FAR = 4.0  # deviations of scores, beyond which log odds rise no further
FEW = 0.05  # of users, or slots, with rows: of fewer no figure is told
STEPS = 50  # of the search, which takes ten


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Shares of users' rows by class and place of the score, (2, S), and what they may be off by."""

    held: Vector
    factor: Vector  # (2, S, P): its product with itself is the covariance of noise, and of what cells leave open
    besides: float  # users whose rows are right, beyond what the curve says
    doubt: Vector  # (P,) the same factor of these
    users: int
    places: Vector  # (S + 1,) ends of places, in (0, 1)
    scores: Vector  # (S,) of their middles
    cell: NDArray[np.int64]  # (S,) of the second release
    says: NDArray[np.bool_]  # (S,) whether the model says the second class there

    @property
    def here(self) -> float:
        """Share of users with rows."""
        return max(float(self.held.sum()), FEW)

    def noise(self, gradient: Vector, besides: float = 0.0) -> float:
        """Standard deviation of what noise, and the curve between the cells, add to a figure with this gradient."""
        return float(np.linalg.norm(np.tensordot(gradient, self.factor, 2) + besides * self.doubt))

    def error(self, gradient: Vector) -> float:
        """Standard error of a figure with this gradient by shares (2, S): noise and the draw of the users."""
        mean = float((self.held * gradient).sum())
        drawn = max(float((self.held * gradient**2).sum()) - mean**2, 0.0) / self.users
        return math.hypot(self.noise(gradient), math.sqrt(drawn))


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """Shares of rows, of what is looked for: `at` (B + 1 + Q,), rows of each cell, rows that are right besides, and

    coefficients of the log odds. What was released of them is linear in these shares.
    """

    within: Vector  # (S,) of a cell's rows
    doubts: Vector  # (S, E) what one deviation of each wave of the first release changes in them
    cell: NDArray[np.int64]
    shape: Vector  # (S, Q): log odds are its product with the coefficients
    asked: Vector  # (D, 2 S) what a row adds to the second release
    got: Vector  # (D,)
    noise: float  # in each of them
    cells: int

    def shares(self, at: Vector) -> Vector:
        """(2, S)."""
        chance = expit(self.shape @ at[self.cells + 1 :])
        return np.asarray(at[self.cell] * self.within * np.stack([1 - chance, chance]))

    def slopes(self, at: Vector) -> Vector:
        """Derivatives of the shares, (2, S, B + 1 + Q)."""
        chance = expit(self.shape @ at[self.cells + 1 :])
        own = self.within[:, None] * (np.arange(self.cells + 1) == self.cell[:, None])
        odds = (at[self.cell] * self.within * chance * (1 - chance))[:, None] * self.shape
        return np.stack([np.hstack([own * (1 - chance)[:, None], -odds]), np.hstack([own * chance[:, None], odds])])

    def doubted(self, at: Vector) -> Vector:
        """And by the doubts, (2, S, E)."""
        chance = expit(self.shape @ at[self.cells + 1 :])
        return np.stack([1 - chance, chance])[:, :, None] * (at[self.cell][:, None] * self.doubts)[None]

    def left(self, at: Vector) -> Vector:
        """What the second release says beyond that, in deviations of its noise."""
        beyond = self.got - self.asked @ self.shares(at).ravel()
        beyond[0] -= math.sqrt(held_out.CORRECT) * at[self.cells]
        return np.asarray(beyond / self.noise)

    def lines(self, slopes: Vector) -> Vector:
        """Derivatives of what it would say, (D, P)."""
        made = self.asked @ slopes.reshape(-1, slopes.shape[2]) / self.noise
        if slopes.shape[2] > self.cells:
            made[0, self.cells] += math.sqrt(held_out.CORRECT) / self.noise
        return np.asarray(made)


def fitted(held: HeldOut, scorer: Scorer, found: Where, said: Vector, told: Vector) -> Shares:
    """The likeliest shares, by both releases, of `held.classes` = 2."""
    ends, inner = np.arange(PLACES + 1) / PLACES, found.edges[1:-1]
    grid = np.unique(np.concatenate([ends, inner, [found.decides]]))
    level, waves = places_said(said, held.scales[0])
    rows = np.maximum(np.diff(np.interp(grid, ends, level)), 0.0)
    doubts = np.diff([np.interp(grid, ends, each) for each in waves.T], axis=1).T
    middle = (grid[1:] + grid[:-1]) / 2
    scores = score_at(scorer, np.clip(middle, found.edges[0], found.edges[-1]))
    got = told[: len(held_out.two_classes(held.cells))] / math.sqrt(1 - held_out.of_items(held.cap))
    return _fit(held, grid, np.searchsorted(inner, middle), middle > found.decides, scores, rows, doubts, got)


def usual(held: HeldOut) -> Shares:
    """What would be released of labels half of which are of either class, by a model whose AUC is three quarters."""
    grid = np.arange(PLACES + 1) / PLACES
    middle = (grid[1:] + grid[:-1]) / 2
    cell, scores = (middle * held.cells).astype(np.int64), ndtri(middle)
    return _fit(held, grid, cell, middle > 0.5, scores, np.full(PLACES, 1 / PLACES), None, None)


def _fit(
    held: HeldOut,
    grid: Vector,
    cell: NDArray[np.int64],
    says: NDArray[np.bool_],
    scores: Vector,
    rows: Vector,
    doubts: Vector | None,
    got: Vector | None,
) -> Shares:
    """Of shares of rows (S,) by place, and what the second release told; None: the usual."""
    rows = rows + 1e-9 / len(rows)
    total = np.bincount(cell, weights=rows, minlength=held.cells)[cell]
    within, moved = rows / total, np.zeros((len(rows), 0))
    if doubts is not None:
        sums = np.zeros((held.cells, doubts.shape[1]))
        np.add.at(sums, cell, doubts)
        moved = (doubts - within[:, None] * sums[cell]) / np.maximum(total, 1e-3)[:, None]
    right, told_of = np.stack([~says, says]), held_out.two_classes(held.cells)
    asked = np.hstack([told_of[:, (c * held.cells + cell) * 2 + right[c]] for c in (0, 1)])
    noise = held.scales[1] / math.sqrt(1 - held_out.of_items(held.cap))
    given = (within, moved, cell, _shapes(scores, rows / rows.sum(), WAVES + 2 * held.cells), asked)
    if got is None:
        steep = np.concatenate(
            [np.full(held.cells, 1 / held.cells), [0.0, 0.0, USUAL], np.zeros(WAVES + 2 * held.cells)]
        )
        got = asked @ _Curve(*given, np.zeros(len(asked)), noise, held.cells).shares(steep).ravel()
    curve = _Curve(*given, got, noise, held.cells)
    at, spread = _likeliest(curve)
    slopes = np.concatenate([curve.slopes(at), curve.doubted(at)], axis=2)
    root = _root(
        np.hstack([curve.lines(curve.slopes(at)), asked @ curve.doubted(at).reshape(asked.shape[1], -1) / noise]),
        spread,
    )
    factor = np.asarray(np.tensordot(slopes, root, 1))
    return Shares(
        curve.shares(at), factor, float(at[held.cells]), root[held.cells], held.users, grid, scores, cell, says
    )


def score_at(scorer: Scorer, places: Vector) -> Vector:
    """Scores of places in (0, 1)."""
    middle, width = scorer.spread
    return np.asarray(middle + width * np.clip(ndtri(np.clip(places, 1e-12, 1 - 1e-12)), -38, 38))


def _shapes(scores: Vector, share: Vector, many: int) -> Vector:
    """(S, Q): a constant, the score in deviations, and waves of the share of rows below."""
    middle = float(share @ scores)
    spread = math.sqrt(float(share @ (scores - middle) ** 2))
    line = np.clip((scores - middle) / max(spread, 1e-12), -FAR, FAR) if spread > 1e-9 else np.zeros(len(scores))
    below, waves = np.cumsum(share) - share / 2, np.arange(2, many + 2)
    return np.column_stack([np.ones(len(scores)), line, math.sqrt(2) * np.cos(np.pi * np.outer(below, waves))])


def _likeliest(curve: _Curve) -> tuple[Vector, Vector]:
    """What is likeliest, and one over the deviations that it usually has, zero where it may be anything.

    With waves as large as usual, and again with waves as large as they are beside so steep a line.
    """
    cells, many = curve.cells, curve.shape.shape[1] - 2
    seen = curve.got[-2 * cells :].reshape(2, cells) / curve.asked[-1].max()  # what a row in a cell adds
    rate = float(np.clip(seen[1].sum() / max(float(seen.sum()), FEW), 0.02, 0.98))
    usually = np.concatenate([np.maximum(seen.sum(axis=0), FEW / cells), [0.0, logit(rate), 0.0], np.zeros(many)])
    waves, at, sure = OFF * 2 / np.arange(2, many + 2), usually, np.zeros(len(usually))
    for steep in (0.0, STEEP):
        off = waves * math.hypot(1.0, steep * float(at[cells + 2]))
        sure = np.concatenate([np.zeros(cells), 1 / np.array([RIGHT, LEVEL, SLOPE]), 1 / off])
        at = _search(curve, at, usually, sure)
    return at, sure


def _search(curve: _Curve, at: Vector, usually: Vector, sure: Vector) -> Vector:
    """Gauss and Newton's method, whose steps are halved until they help."""

    def misfit(at: Vector) -> Vector:
        return np.concatenate([curve.left(at), sure * (usually - at)])

    left, cells = misfit(at), curve.cells
    for _ in range(STEPS):
        step = np.linalg.lstsq(np.vstack([curve.lines(curve.slopes(at)), np.diag(sure)]), left, rcond=None)[0]
        for _ in range(12):
            tried = at + step
            tried[:cells] = np.maximum(tried[:cells], 1e-4)
            new = misfit(tried)
            if float(new @ new) <= float(left @ left) * (1 + 1e-12):
                break
            step = step / 2
        else:
            break
        at, left = tried, new
        if np.abs(step).max() < 1e-7:
            break
    return at


def _root(lines: Vector, sure: Vector) -> Vector:
    """A root of the covariance of all that is looked for, and of the doubts, each of which is one deviation."""
    known = np.append(sure, np.ones(lines.shape[1] - len(sure)))
    upper = np.linalg.qr(np.vstack([lines, np.diag(known)]), mode="r")  # not of squares, which large crowds exhaust
    return np.asarray(solve_triangular(upper, np.eye(len(upper))))

"""From what was released of held-out users to figures with intervals: released and public numbers alone.

    released = release(held, scorer, batches, noise)      # JSON-compatible, and all that anybody reads afterwards
    evaluation = read(held, scorer, released, promise)

An interval covers the noise, whose covariance is public, and that the users were drawn from many. What a user adds to
a figure is the mean over its rows: its variance is at most that of a row drawn from it, which the same release
contains. Derivations: docs/privacy/evaluation.md#ev4.

How two classes lie along a model's scores is fitted to what was released (`fitted`). The first release says where
scores lie, the second how many rows of each class few wide cells hold. In between, the log odds of the second class are
taken as a line in the score and slow waves, each as large as odds usually are off a line. Few cells have little noise,
and what they do not show is part of the error: the waves' size, as far as cells leave it open.

Statement and proof: docs/privacy/evaluation.md. The mechanism: quoron_privacy.histograms.held_out.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import expit, logit, ndtri

from quoron.evaluation.evaluation import Bin, Evaluation, Figure
from quoron.evaluation.scores import MOST_LOSS, Scorer, means, usable
from quoron.results import in_units
from quoron_client.data.encoding import Range
from quoron_client.data.items import ItemBatch
from quoron_privacy.errors import Infeasible
from quoron_privacy.histograms import held_out
from quoron_privacy.histograms.held_out import LABELS, PLACES, STEPS, HeldMeans, HeldOut
from quoron_privacy.noise.streams import NoiseSource
from quoron_server.wording import ReleaseGuarantee

Vector = NDArray[np.float64]
Released = dict[str, Any]
Batches = Callable[[], Iterable[ItemBatch]]  # of held-out users, some at a time; the same whenever it is called
SURE = 2.0  # deviations of noise from which on a wave is seen
TAILS = 3.0  # and a tail
MEDIANS = 3.5  # of errors, at which they are held at least: 2.4 deviations, of a bell
TAIL = 0.02  # share of rows whose errors may be held at the bound
ENDS = 0.01  # share of rows whose chances are held at an end, on either side


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """What the first release says; nothing else chooses the second's cells."""

    edges: Vector  # (B + 1,) of cells of places of scores, the outer where chances are held; (0,) of other labels
    decides: float = 0.5  # the place of scores from which on the model says the second class
    bound: float = 1.0  # at what errors, or losses, are held, as a share of the most
    middle: float = 0.0  # what the baseline always says, in encoded units of a number


def release(held: HeldOut, scorer: Scorer, batches: Batches, noise: NoiseSource) -> Released:
    """Make both releases of these users. Unpublished ones may be drawn again, published ones may not."""
    first = (held.sums(0, held.first_vectors(*places(scorer, batch))) for batch in batches())
    first_values = held.release(0, reduce(add, first), noise.stream("held out", "places"))
    cells = cells_of(held, scorer, first_values)
    second = (held.sums(1, held.second_vectors(parts(scorer, cells, batch))) for batch in batches())
    second_values = held.release(1, reduce(add, second), noise.stream("held out", "figures"))
    return {"places": first_values.tolist(), "figures": second_values.tolist()}


def places(scorer: Scorer, items: ItemBatch) -> tuple[Vector, ...]:
    """Return shares of each user's rows in the places of the first release."""
    rows, scores = usable(items), scorer.scores(items)
    if scorer.classes == 2:
        return (_shares(_cell(scorer.positions(scores) * PLACES, PLACES), PLACES, items, rows),)
    if scorer.classes:
        return (_shares(_step(scorer.losses(scores, scorer.labels(items)) / MOST_LOSS), STEPS, items, rows),)
    label_places = _cell((items.labels / scorer.unit + 0.5) * LABELS, LABELS)
    return _shares(_step(scorer.errors(scores, items)), STEPS, items, rows), _shares(label_places, LABELS, items, rows)


def cells_of(held: HeldOut, scorer: Scorer, released: Vector) -> Cells:
    """Return what the first release says: a function of released and public numbers."""
    if scorer.classes == 2:
        at = float(np.nextafter(scorer.positions(np.array([scorer.decides]))[0], 1.0))
        return Cells(_edges(scorer, held.cells, released_places(released, held.scales[0])[0]), decides=at)
    root = 1.0 if scorer.classes else held_out.ERRORS**0.5
    sums = np.tril(np.ones((STEPS, STEPS))) @ np.linalg.inv(held_out.waves(STEPS, held_out.STEEP))
    tails = sums @ released[:STEPS] / root
    sure = TAILS * held.scales[0] / root * np.linalg.norm(sums, axis=1)
    few = np.flatnonzero(
        tails <= np.maximum(TAIL, sure)
    )  # of these the last: tails only rise, what stands before is noise
    middle = np.interp(tails[-1] / 2, np.maximum.accumulate(tails), np.arange(1, STEPS + 1))
    far = 2.0 ** (-0.5 * float(min(few[-1] + 1, STEPS - 1) if len(few) else 0))
    bound = min(1.0, max(far, MEDIANS * 2.0 ** (-0.5 * float(middle))))
    if scorer.classes:
        return Cells(np.empty(0), bound=bound)
    root = (1 - held_out.ERRORS) ** 0.5
    likely = np.maximum(np.linalg.solve(held_out.waves(LABELS, held_out.SMOOTH), released[STEPS:] / root), 0.0)
    mean = float(likely @ ((np.arange(LABELS) + 0.5) / LABELS - 0.5) / max(float(likely.sum()), 1e-9))
    return Cells(np.empty(0), bound=bound, middle=float(np.clip(mean, -0.5, 0.5)) * scorer.unit)


def parts(scorer: Scorer, cells: Cells, items: ItemBatch) -> Vector:
    """Return what users' vectors of the second release are made of: `HeldOut.second_vectors`."""
    rows, scores = usable(items), scorer.scores(items)
    if scorer.classes == 2:
        labels = scorer.labels(items)
        right = scorer.right(scores, labels)
        count = len(cells.edges) - 1
        cell = np.searchsorted(cells.edges[1:-1], scorer.positions(scores))
        return _shares((labels * count + cell) * 2 + right, 4 * count, items, rows)
    if scorer.classes:
        labels = scorer.labels(items)
        losses = np.minimum(scorer.losses(scores, labels) / (MOST_LOSS * cells.bound), 1.0)
        one_hot = labels[:, None] == np.arange(scorer.classes)
        return means(np.column_stack([one_hot, scorer.right(scores, labels), losses]), items, rows)
    errors = np.minimum(scorer.errors(scores, items) / cells.bound, 1.0) ** 2
    spread = np.minimum(np.abs(items.labels - cells.middle) / scorer.unit / cells.bound, 1.0) ** 2
    return means(np.column_stack([np.ones(len(errors)), errors, spread]), items, rows)


def released_places(released: Vector, scale: float) -> tuple[Vector, Vector]:
    """Share of rows below each end of a place, (PLACES + 1,), made to ascend, by waves that stand out of the noise.

    And what one deviation of the noise of each wave, strong or not, changes in it, (PLACES + 1, PLACES - 1).
    """
    waves = held_out.waves(PLACES, held_out.STEEP)
    weight = waves[:, 0] / np.cos(np.pi * np.arange(PLACES) * 0.5 / PLACES)
    total = max(float(released[0] / weight[0]), 1e-3)
    strong = np.where(np.abs(released[1:]) > SURE * scale, released[1:], 0.0)
    slopes = 2 * np.cos(np.pi * np.outer(np.arange(PLACES) + 0.5, np.arange(1, PLACES)) / PLACES)
    slopes = np.vstack([np.zeros(PLACES - 1), np.cumsum(slopes / (PLACES * weight[1:] * total), axis=0)])
    risen = np.arange(PLACES + 1) / PLACES + slopes @ strong
    up, down = np.maximum.accumulate(risen), np.minimum.accumulate(risen[::-1])[::-1]
    level = np.clip((up + down) / 2, 0.0, 1.0) + 1e-9 * np.arange(PLACES + 1)
    return level, scale * slopes


def _edges(scorer: Scorer, cells: int, level: Vector) -> Vector:
    """Of cells that hold about as many rows each of a crowd half of which is of either class, as the model says."""
    ends, rows = np.arange(PLACES + 1) / PLACES, np.diff(level)
    middle, width = scorer.spread
    chance = expit(middle + width * ndtri((ends[1:] + ends[:-1]) / 2)) if scorer.probable else np.full(PLACES, 0.5)
    both = [rows * share + 1e-12 for share in (chance, 1 - chance)]
    risen = np.concatenate([[0.0], np.cumsum(sum(weights / weights.sum() for weights in both))]) / 2
    inner = np.interp(np.arange(1, cells) / cells, risen, ends)
    low, high = np.interp([ENDS, 1 - ENDS], level, ends)
    return np.concatenate([[min(low, inner[0])], inner, [max(high, inner[-1])]])


def _cell(at: Vector, many: int) -> NDArray[np.int64]:
    return np.clip(np.nan_to_num(at), 0, many - 1).astype(np.int64)


def _step(share: Vector) -> NDArray[np.int64]:
    """Of shares in [0, 1] (N,): how often its square is to be doubled until it is above a half."""
    with np.errstate(divide="ignore"):
        return _cell(-2 * np.log2(np.maximum(share, 2.0**-STEPS)), STEPS)


def _shares(at: NDArray[np.int64], many: int, items: ItemBatch, rows: NDArray[np.bool_]) -> Vector:
    """Return shares of each user's rows by place, (k, many); zeros for users without rows."""
    whose = np.repeat(np.arange(items.users), items.counts)[rows]
    counts = np.bincount(whose * many + at[rows], minlength=items.users * many).reshape(items.users, many)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


WAVES = 8  # k = 2, 3, ... of the log odds, by share of rows below; and two more for each cell
OFF = 0.3  # standard deviation of log odds in the slowest wave, by what a line rises; of wave k 2/k times it
RIGHT = 0.05  # standard deviation of rows that are right beyond what the curve says: odds that leap where it decides
STEEP = 2.0  # by which waves are larger where the line is steep: times its slope
LEVEL, SLOPE = 5.0, 5.0  # of log odds in the middle, and of their slope by standard deviation of scores
USUAL = 1.05  # a slope with which the AUC is three quarters
FAR = 4.0  # deviations of scores, beyond which log odds rise no further
FEW = 0.05  # of users, or slots, with rows: of fewer no figure is reported
SEARCHED = 50  # of the search, which takes ten


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """Shares of users' rows by class and place of the score, (2, S), and what they may be off by."""

    values: Vector
    factor: Vector  # (2, S, P): its product with itself is the covariance of noise, and of what cells leave open
    besides: float  # users whose rows are right, beyond what the curve says
    doubt: Vector  # (P,) the same factor of these
    users: int
    places: Vector  # (S + 1,) ends of places, in (0, 1)
    scores: Vector  # (S,) of their middles
    cell: NDArray[np.int64]  # (S,) of the second release
    predicted: NDArray[np.bool_]  # (S,) whether the model says the second class there

    @property
    def present(self) -> float:
        """Share of users with rows."""
        return max(float(self.values.sum()), FEW)

    def noise(self, gradient: Vector, besides: float = 0.0) -> float:
        """Standard deviation of what noise, and the curve between the cells, add to a figure with this gradient."""
        return float(np.linalg.norm(np.tensordot(gradient, self.factor, 2) + besides * self.doubt))

    def error(self, gradient: Vector) -> float:
        """Standard error of a figure with this gradient by shares (2, S): noise and the draw of the users."""
        mean = float((self.values * gradient).sum())
        drawn = max(float((self.values * gradient**2).sum()) - mean**2, 0.0) / self.users
        return math.hypot(self.noise(gradient), math.sqrt(drawn))


@dataclass(frozen=True, slots=True, eq=False)
class _Curve:
    """Shares of rows, of what is estimated: `at` (B + 1 + Q,), rows of each cell, rows that are right besides, and

    coefficients of the log odds. What was released of them is linear in these shares.
    """

    within: Vector  # (S,) of a cell's rows
    uncertain: Vector  # (S, E) what one deviation of each wave of the first release changes in them
    cell: NDArray[np.int64]
    shape: Vector  # (S, Q): log odds are its product with the coefficients
    design: Vector  # (D, 2 S) what a row adds to the second release
    observed: Vector  # (D,)
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

    def spread(self, at: Vector) -> Vector:
        """And by the uncertain waves, (2, S, E)."""
        chance = expit(self.shape @ at[self.cells + 1 :])
        return np.stack([1 - chance, chance])[:, :, None] * (at[self.cell][:, None] * self.uncertain)[None]

    def residual(self, at: Vector) -> Vector:
        """Return what the second release says beyond that, in deviations of its noise."""
        residual = self.observed - self.design @ self.shares(at).ravel()
        residual[0] -= math.sqrt(held_out.CORRECT) * at[self.cells]
        return np.asarray(residual / self.noise)

    def jacobian(self, slopes: Vector) -> Vector:
        """Derivatives of what it would say, (D, P)."""
        jacobian = self.design @ slopes.reshape(-1, slopes.shape[2]) / self.noise
        if slopes.shape[2] > self.cells:
            jacobian[0, self.cells] += math.sqrt(held_out.CORRECT) / self.noise
        return np.asarray(jacobian)


def fitted(held: HeldOut, scorer: Scorer, cells: Cells, first: Vector, second: Vector) -> Shares:
    """Return the likeliest shares, by both releases, of `held.classes` = 2."""
    ends, inner = np.arange(PLACES + 1) / PLACES, cells.edges[1:-1]
    grid = np.unique(np.concatenate([ends, inner, [cells.decides]]))
    level, waves = released_places(first, held.scales[0])
    rows = np.maximum(np.diff(np.interp(grid, ends, level)), 0.0)
    deviations = np.diff([np.interp(grid, ends, wave) for wave in waves.T], axis=1).T
    middle = (grid[1:] + grid[:-1]) / 2
    scores = score_at(scorer, np.clip(middle, cells.edges[0], cells.edges[-1]))
    return _fit(held, grid, np.searchsorted(inner, middle), middle > cells.decides, scores, rows, deviations, second)


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
    predicted: NDArray[np.bool_],
    scores: Vector,
    rows: Vector,
    waves: Vector | None,
    observed: Vector | None,
) -> Shares:
    """Of shares of rows (S,) by place, and of the second release; None: the usual."""
    rows = rows + 1e-9 / len(rows)
    total = np.bincount(cell, weights=rows, minlength=held.cells)[cell]
    within, uncertain = rows / total, np.zeros((len(rows), 0))
    if waves is not None:
        sums = np.zeros((held.cells, waves.shape[1]))
        np.add.at(sums, cell, waves)
        uncertain = (waves - within[:, None] * sums[cell]) / np.maximum(total, 1e-3)[:, None]
    right, classes = np.stack([~predicted, predicted]), held_out.two_classes(held.cells)
    design = np.hstack([classes[:, (c * held.cells + cell) * 2 + right[c]] for c in (0, 1)])
    noise = held.scales[1]
    given = (within, uncertain, cell, _shapes(scores, rows / rows.sum(), WAVES + 2 * held.cells), design)
    if observed is None:
        steep = np.concatenate(
            [np.full(held.cells, 1 / held.cells), [0.0, 0.0, USUAL], np.zeros(WAVES + 2 * held.cells)]
        )
        observed = design @ _Curve(*given, np.zeros(len(design)), noise, held.cells).shares(steep).ravel()
    curve = _Curve(*given, observed, noise, held.cells)
    at, spread = _likeliest(curve)
    slopes = np.concatenate([curve.slopes(at), curve.spread(at)], axis=2)
    root = _curve_root(
        np.hstack([curve.jacobian(curve.slopes(at)), design @ curve.spread(at).reshape(design.shape[1], -1) / noise]),
        spread,
    )
    factor = np.asarray(np.tensordot(slopes, root, 1))
    return Shares(
        curve.shares(at), factor, float(at[held.cells]), root[held.cells], held.users, grid, scores, cell, predicted
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
    """Return what is likeliest, and one over the deviations that it usually has, zero where it may be anything.

    With waves as large as usual, and again with waves as large as they are beside so steep a line.
    """
    cells, many = curve.cells, curve.shape.shape[1] - 2
    seen = curve.observed[-2 * cells :].reshape(2, cells) / curve.design[-1].max()  # what a row in a cell adds
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
        return np.concatenate([curve.residual(at), sure * (usually - at)])

    left, cells = misfit(at), curve.cells
    for _ in range(SEARCHED):
        step = np.linalg.lstsq(np.vstack([curve.jacobian(curve.slopes(at)), np.diag(sure)]), left, rcond=None)[0]
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


def _curve_root(lines: Vector, sure: Vector) -> Vector:
    """Return a root of the covariance of the estimates, and of the uncertain waves, one deviation each."""
    known = np.append(sure, np.ones(lines.shape[1] - len(sure)))
    upper = np.linalg.qr(np.vstack([lines, np.diag(known)]), mode="r")  # not of squares, which large crowds exhaust
    return np.asarray(solve_triangular(upper, np.eye(len(upper))))


WIDE = -float(ndtri(0.025))  # deviations of a 95 % interval
GROUPS = 8  # of calibration
_TOLD = (0.15, 0.75)  # figures whose intervals are predicted: a mean square of errors in their bound, an accuracy
NOBODY = (
    "users with a row that can be used do not stand out of the noise: no figure says anything. Check the declarations, "
    "hold out more users, or raise epsilon."
)
NO_MODEL = "the model's numbers are not all finite: it says nothing of any row, and no figure says anything of it."


def read(held: HeldOut, scorer: Scorer, released: Released, promise: ReleaseGuarantee) -> Evaluation:
    """Figures of what `release` released. Figures are never outside what they can be."""
    first = np.array(released["places"], np.float64)
    cells = cells_of(held, scorer, first)
    second = np.array(released["figures"], np.float64)
    if scorer.classes == 2:
        shares = fitted(held, scorer, cells, first, second)
        figures, bins = _of_two(scorer, cells, shares)
        present, noise = float(shares.values.sum()), shares.noise(np.ones_like(shares.values))
    else:
        figures, bins = [*_of_others(held, scorer, cells, second)], ()
        parts = _parts(held, second)
        present, noise = parts.present, parts.noise(np.append(np.ones(parts.classes), [0.0, 0.0]))
    remarks = [*_remarks(figures)]
    if not scorer.finite or present <= max(FEW, WIDE * noise):
        figures, bins, remarks = [_useless(figure) for figure in figures], (), [NOBODY if scorer.finite else NO_MODEL]
    return Evaluation(
        tuple(figures), bins, held.users, promise.epsilon, promise.delta, promise.statement, tuple(remarks)
    )


def _useless(figure: Figure) -> Figure:
    """Return the same of nobody that can be seen."""
    return replace(figure, low=0.0, high=max(1.0, figure.high, figure.baseline or 0.0), useless=True)


def _of_two(scorer: Scorer, cells: Cells, shares: Shares) -> tuple[list[Figure], tuple[Bin, ...]]:
    """Of two classes, in the order of their scores."""
    figures = [_accuracy(shares), _auc(shares)]
    if not scorer.probable:
        return figures, ()
    return [*figures, _log_loss(scorer, cells, shares)], tuple(_calibration(shares))


def _accuracy(shares: Shares) -> Figure:
    right, present = np.stack([~shares.predicted, shares.predicted]).astype(np.float64), shares.present
    value = min(max((float((shares.values * right).sum()) + shares.besides) / present, 0.0), 1.0)
    noise = shares.noise((right - value) / present, 1 / present)
    low, high = _within(value, math.hypot(noise, math.sqrt(_unit_variance(value) / (present * shares.users))))
    return _figure("accuracy", value, low, high, _majority(shares), "majority")


def _unit_variance(value: float) -> float:
    """Return the most that numbers in [0, 1] of this mean can vary, and of a mean at an end a little."""
    return max(value * (1 - value), 0.0025)


def _majority(shares: Shares) -> float:
    per_class = np.maximum(shares.values.sum(axis=1), 0.0)
    return min(1.0, max(0.5, float(per_class.max() / max(float(per_class.sum()), FEW))))


def _auc(shares: Shares) -> Figure:
    """The chance that a user's row of the second class has a higher score than another's of the first, ties half."""
    zero, one = shares.values
    n0, n1 = float(zero.sum()), float(one.sum())
    noises = [shares.noise(own[:, None] * np.ones_like(zero)) for own in np.eye(2)]
    if n0 <= WIDE * noises[0] or n1 <= WIDE * noises[1] or min(n0, n1) <= 0:
        return _figure("AUC", 0.5, 0.0, 1.0, 0.5, "chance")
    below, above = np.cumsum(zero) - zero / 2, n1 - np.cumsum(one) + one / 2
    value = float(below @ one) / (n0 * n1)
    error = shares.error(np.stack([above / (n0 * n1) - value / n0, below / (n0 * n1) - value / n1]))
    tied = 0.5 * float(zero @ one) / (n0 * n1)  # what places hide, whatever is in them
    low, high = _within(value, error, tied)
    return _figure("AUC", value, low, high, 0.5, "chance")


def _log_loss(scorer: Scorer, cells: Cells, shares: Shares) -> Figure:
    """In nats, of chances held within the outer edges of the cells."""
    outer = cells.edges[[0, -1]]
    ends = score_at(scorer, np.clip(shares.places, *outer))
    edge = np.stack([np.logaddexp(0, ends), np.logaddexp(0, -ends)])
    losses, reach = (edge[:, 1:] + edge[:, :-1]) / 2, np.abs(np.diff(edge)) / 2  # no loss in a place is farther off
    present = shares.present
    value = float((shares.values * losses).sum()) / present
    error = shares.error((losses - value) / present)
    within = float((shares.values * reach).sum()) / present
    rate = np.clip(shares.values.sum(axis=1) / present, 1e-9, 1)
    rate = rate / rate.sum()
    least, most = expit(score_at(scorer, outer))
    low, high = _within(max(value, 0.0), error, within, math.inf)
    bound = f"chances held within [{least:.3g}, {most:.3g}]"
    baseline = 0.0 - float((rate * np.log(rate)).sum())
    return _figure("log loss", max(value, 0.0), low, high, baseline, "label shares", bound=bound)


def _calibration(shares: Shares) -> Iterator[Bin]:
    """Groups of cells: the chance that the model says, and the share of the second class, with its interval."""
    chances = expit(shares.scores)
    for cells in np.array_split(np.arange(int(shares.cell.max()) + 1), GROUPS):
        within = np.isin(shares.cell, cells).astype(np.float64)
        zero, one = (float(own @ within) for own in shares.values)
        rows = zero + one
        if not len(cells) or rows <= WIDE * shares.noise(np.stack([within, within])):
            continue
        value = min(max(one / rows, 0.0), 1.0)
        noise = shares.noise(np.stack([-value * within, (1 - value) * within])) / rows
        error = math.hypot(noise, math.sqrt(_unit_variance(value) / (rows * shares.users)))
        low, high = _within(value, error)
        yield Bin(float((shares.values * within).sum(axis=0) @ chances) / rows, value, low, high)


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Released means of users' rows, (classes + figures,), with the covariance of their noise."""

    values: Vector  # of a number and of K classes, as `HeldOut.second_vectors` takes them
    covariance: Vector
    users: int
    figures: int = 2  # numbers in [0, 1], behind the classes

    @property
    def classes(self) -> int:
        """K; 1 for a number: presence."""
        return len(self.values) - self.figures

    @property
    def present(self) -> float:
        """Share of users with rows, as released."""
        return float(self.values[: self.classes].sum())

    def noise(self, gradient: Vector) -> float:
        """Standard deviation of what noise adds to a figure with this gradient."""
        return math.sqrt(float(gradient @ self.covariance @ gradient))

    def mean(self, which: int) -> tuple[float, float]:
        """(mean over users with rows, its standard error) of one of the figures."""
        present = max(self.present, FEW)
        value = min(max(float(self.values[self.classes + which]) / present, 0.0), 1.0)
        gradient = np.append(np.full(self.classes, -value), np.eye(self.figures)[which]) / present
        return value, math.sqrt(self.noise(gradient) ** 2 + value * (1 - value) / (present * self.users))


def _parts(held: HeldOut, second: Vector) -> _Parts:
    inverse = np.linalg.inv(held_out.parts_told(held.classes))
    return _Parts(inverse @ second, held.scales[1] ** 2 * inverse @ inverse.T, held.users)


def _of_others(held: HeldOut, scorer: Scorer, cells: Cells, second: Vector) -> Iterator[Figure]:
    """Of numbers, or of three classes and more: means over users with rows."""
    parts = _parts(held, second)
    if not scorer.classes:
        yield _root(scorer, cells, parts.mean(0), parts.mean(1)[0])
        return
    rate = np.maximum(parts.values[: scorer.classes], 0.0)
    rate = rate / max(float(rate.sum()), FEW)
    value, error = parts.mean(0)
    yield _figure("accuracy", value, *_within(value, error), float(rate.max()), "majority")
    if scorer.probable:
        largest = MOST_LOSS * cells.bound
        value, error = parts.mean(1)
        positive = rate[rate > 0]
        low, high = (largest * end for end in _within(value, error))
        baseline = 0.0 - float((positive * np.log(positive)).sum())
        bound = f"losses held at {largest:.3g}"
        yield _figure("log loss", largest * value, low, high, baseline, "label shares", bound=bound)


def _root(scorer: Scorer, cells: Cells, square: tuple[float, float], baseline: float) -> Figure:
    label = scorer.encoding.label
    assert isinstance(label, Range)
    largest = cells.bound * (label.high - label.low)
    low, high = _within(*square)

    def root(share: float) -> float:
        return largest * math.sqrt(share)

    bound = f"errors held at {in_units(largest)}"
    return _figure("rmse", root(square[0]), root(low), root(high), root(baseline), "mean", bound=bound)


def _figure(
    name: str,
    value: float,
    low: float,
    high: float,
    baseline: float | None,
    baseline_name: str,
    *,
    bound: str = "",
) -> Figure:
    perfect = 1.0 if name in ("accuracy", "AUC") else 0.0
    useless = _is_useless(low, high, baseline, perfect)
    return Figure(name, value, low, high, baseline, baseline_name, useless, bound)


def _is_useless(low: float, high: float, baseline: float | None, perfect: float) -> bool:
    """Return whether an interval holds the baseline, and is as wide as all that lies between it and a perfect model."""
    return baseline is not None and low <= baseline <= high and high - low >= abs(perfect - baseline)


def _within(value: float, error: float, more: float = 0.0, most: float = 1.0) -> tuple[float, float]:
    reach = WIDE * error + more
    return max(value - reach, 0.0), min(value + reach, most)


def _remarks(figures: list[Figure]) -> Iterator[str]:
    """Yield what the figures do not say."""
    for figure in figures:
        name = f"{figure.name} per user"
        if figure.useless:
            yield (
                f"the interval of the {name} is as wide as all that lies between always saying the same "
                f"({figure.baseline_name}) and a perfect model: it says nothing. Hold out more users, or raise epsilon."
            )
        elif figure.baseline is not None and figure.low <= figure.baseline <= figure.high:
            yield (
                f"the {name} cannot be told from that of always saying the same ({figure.baseline_name}): more users "
                "or a larger epsilon may."
            )


def of_means(held: HeldMeans, names: Sequence[str], values: Vector, promise: ReleaseGuarantee) -> Evaluation:
    """Means over users of numbers in [0, 1] that somebody else computed, with nothing to compare them with."""
    parts, figures = _Parts(values, np.diag(np.square(held.errors)), held.users, figures=len(names)), []
    for which, name in enumerate(names):
        value, spread = parts.mean(which)
        figures.append(_figure(name, value, *_within(value, spread), None, ""))
    visible = parts.present > max(FEW, WIDE * float(held.errors[0]))
    if not visible:
        figures = [_useless(figure) for figure in figures]
    return Evaluation(
        tuple(figures), (), held.users, promise.epsilon, promise.delta, promise.statement, () if visible else (NOBODY,)
    )


def expected(held: HeldOut) -> float:
    """Half the 95 % interval of an accuracy of three quarters, or of a mean square of errors in its bound."""
    drawn = 0.1875 / held.users
    if held.classes == 2:
        shares = usual(held)
        noise = shares.noise(np.stack([~shares.predicted, shares.predicted]) - 0.75, 1.0)
    else:
        zeros = np.zeros(held_out.parts_told(held.classes).shape[0])
        parts = _parts(held, zeros)
        noise = parts.noise(np.append(np.full(parts.classes, -_TOLD[held.classes > 0]), [1.0, 0.0]))
    return WIDE * math.sqrt(noise**2 + drawn)


def require_informative(held: HeldOut, epsilon: float, *, estimates: bool = False) -> None:
    """Raise Infeasible where intervals would be as wide as all that there is, with how many users would do.

    `estimates`: what the label is, is yet to be estimated, and held.classes the most that it may have.
    """
    width = expected(held)
    if width >= 0.5:
        needed = _users_needed(held)
        raise Infeasible(
            "evaluation",
            f"{held.users:,} users to measure a model tell nothing"
            + (f" of a label that nobody declared, of up to {held.classes} classes," if estimates else "")
            + f" at epsilon={epsilon:g}: an accuracy would be known to ± {width:.2g}",
            f"about {needed:,} of them (train.holdout is their share of a run's), for ± 0.25, or a larger epsilon"
            + (", or the label declared" if estimates else ""),
        )


def _users_needed(held: HeldOut) -> int:
    """Users of whom an accuracy would be known to ± 0.25, for the same promise: noise of a mean falls as they rise."""
    users = held.users
    while True:
        first, second = (scale * held.users / users for scale in held.scales)
        if (width := expected(replace(held, users=users, scales=(first, second)))) <= 0.25:
            return users
        users = math.ceil(users * min(width / 0.25, 2.0))


def expected_intervals(held: HeldOut) -> str:
    """Return how wide intervals will be, by public numbers: of labels half of which are of either class."""
    width = expected(held)
    if held.classes == 0:
        return f"an rmse to about ± {100 * min(width / 0.15 / 2, 1):.0f} %"
    if held.classes > 2:
        return f"an accuracy to about ± {width:.2g}"
    auc = _auc(usual(held))
    return f"an accuracy to about ± {width:.2g}, an AUC to ± {(auc.high - auc.low) / 2:.2g}"

"""From the items of held-out users to what is released of them: where figures are looked for first, then the figures.

    released = release(held, scorer, batches, noise)      # JSON-compatible, and all that anybody reads afterwards

Statement and proof: docs/privacy/evaluation.md. The mechanism: quoron_privacy.counts.held_out.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from quoron.evaluation.scores import MOST_LOSS, Scorer, means, usable
from quoron_client.data.items import ItemBatch
from quoron_privacy.counts import held_out
from quoron_privacy.counts.held_out import LABELS, PLACES, STEPS, HeldOut
from quoron_privacy.noise.streams import NoiseSource

Vector = NDArray[np.float64]
Released = dict[str, Any]
Batches = Callable[[], Iterable[ItemBatch]]  # of held-out users, some at a time; the same whenever it is called
SURE = 2.0  # deviations of noise from which on a wave is seen
TAILS = 3.0  # and a tail
MEDIANS = 3.5  # of errors, at which they are held at least: 2.4 deviations, of a bell
TAIL = 0.02  # share of rows whose errors may be held at the bound
ENDS = 0.01  # share of rows whose chances are held at an end, on either side


@dataclass(frozen=True, slots=True, eq=False)
class Where:
    """What the first release says; nothing else chooses the second's cells."""

    edges: Vector  # (B + 1,) of cells of places of scores, the outer where chances are held; (0,) of other labels
    decides: float = 0.5  # the place of scores from which on the model says the second class
    bound: float = 1.0  # at what errors, or losses, are held, as a share of the most
    middle: float = 0.0  # what the baseline always says, in encoded units of a number


def release(held: HeldOut, scorer: Scorer, batches: Batches, noise: NoiseSource) -> Released:
    """Make both releases of these users. Unpublished ones may be drawn again, published ones may not."""
    first = (held.sums(0, held.first_vectors(*places(scorer, each))) for each in batches())
    said = held.release(0, reduce(add, first), noise.stream("held out", "places"))
    found = where(held, scorer, said)
    second = (held.sums(1, held.second_vectors(*parts(scorer, found, held.cap, each))) for each in batches())
    told = held.release(1, reduce(add, second), noise.stream("held out", "figures"))
    return {"places": said.tolist(), "figures": told.tolist()}


def places(scorer: Scorer, items: ItemBatch) -> tuple[Vector, ...]:
    """Shares of each user's rows in the places of the first release."""
    rows, scores = usable(items), scorer.scores(items)
    if scorer.classes == 2:
        return (_shares(_cell(scorer.positions(scores) * PLACES, PLACES), PLACES, items, rows),)
    if scorer.classes:
        return (_shares(_step(scorer.losses(scores, scorer.labels(items)) / MOST_LOSS), STEPS, items, rows),)
    told = _cell((items.labels / scorer.unit + 0.5) * LABELS, LABELS)
    return _shares(_step(scorer.errors(scores, items)), STEPS, items, rows), _shares(told, LABELS, items, rows)


def where(held: HeldOut, scorer: Scorer, said: Vector) -> Where:
    """What the first release says: a function of released and public numbers."""
    if scorer.classes == 2:
        at = float(np.nextafter(scorer.positions(np.array([scorer.decides]))[0], 1.0))
        return Where(_edges(scorer, held.cells, places_said(said, held.scales[0])[0]), decides=at)
    root = 1.0 if scorer.classes else held_out.ERRORS**0.5
    sums = np.tril(np.ones((STEPS, STEPS))) @ np.linalg.inv(held_out.waves(STEPS, held_out.STEEP))
    tails = sums @ said[:STEPS] / root
    sure = TAILS * held.scales[0] / root * np.linalg.norm(sums, axis=1)
    few = np.flatnonzero(
        tails <= np.maximum(TAIL, sure)
    )  # of these the last: tails only rise, what stands before is noise
    middle = np.interp(tails[-1] / 2, np.maximum.accumulate(tails), np.arange(1, STEPS + 1))
    far = 2.0 ** (-0.5 * float(min(few[-1] + 1, STEPS - 1) if len(few) else 0))
    bound = min(1.0, max(far, MEDIANS * 2.0 ** (-0.5 * float(middle))))
    if scorer.classes:
        return Where(np.empty(0), bound=bound)
    root = (1 - held_out.ERRORS) ** 0.5
    likely = np.maximum(np.linalg.solve(held_out.waves(LABELS, held_out.SMOOTH), said[STEPS:] / root), 0.0)
    mean = float(likely @ ((np.arange(LABELS) + 0.5) / LABELS - 0.5) / max(float(likely.sum()), 1e-9))
    return Where(np.empty(0), bound=bound, middle=float(np.clip(mean, -0.5, 0.5)) * scorer.unit)


def parts(scorer: Scorer, found: Where, cap: int, items: ItemBatch) -> tuple[Vector, Vector | None]:
    """What users' vectors of the second release are made of: `HeldOut.second_vectors`."""
    rows, scores = usable(items), scorer.scores(items)
    if scorer.classes == 2:
        labels = scorer.labels(items)
        right = scorer.right(scores, labels)
        cells = len(found.edges) - 1
        cell = np.searchsorted(found.edges[1:-1], scorer.positions(scores))
        own = _shares((labels * cells + cell) * 2 + right, 4 * cells, items, rows)
        told = right.astype(np.float64)
    elif scorer.classes:
        labels = scorer.labels(items)
        told = scorer.right(scores, labels).astype(np.float64)
        lost = np.minimum(scorer.losses(scores, labels) / (MOST_LOSS * found.bound), 1.0)
        one_hot = labels[:, None] == np.arange(scorer.classes)
        own = means(np.column_stack([one_hot, told, lost]), items, rows)
    else:
        told = np.minimum(scorer.errors(scores, items) / found.bound, 1.0) ** 2
        apart = np.minimum(np.abs(items.labels - found.middle) / scorer.unit / found.bound, 1.0) ** 2
        own = means(np.column_stack([np.ones(len(told)), told, apart]), items, rows)
    if cap == 1:
        return own, None
    whose = np.repeat(np.arange(items.users), items.counts)
    many = np.bincount(whose, weights=rows.astype(np.float64), minlength=items.users)
    share = np.minimum(many, cap) / cap
    return own, np.column_stack([share, share * means(told[:, None], items, rows)[:, 0]])


def places_said(said: Vector, scale: float) -> tuple[Vector, Vector]:
    """Share of rows below each end of a place, (PLACES + 1,), made to ascend, by waves that stand out of the noise.

    And what one deviation of the noise of each wave, seen or not, changes in it, (PLACES + 1, PLACES - 1).
    """
    waves = held_out.waves(PLACES, held_out.STEEP)
    weight = waves[:, 0] / np.cos(np.pi * np.arange(PLACES) * 0.5 / PLACES)
    total = max(float(said[0] / weight[0]), 1e-3)
    seen = np.where(np.abs(said[1:]) > SURE * scale, said[1:], 0.0)
    told = 2 * np.cos(np.pi * np.outer(np.arange(PLACES) + 0.5, np.arange(1, PLACES)) / PLACES)
    told = np.vstack([np.zeros(PLACES - 1), np.cumsum(told / (PLACES * weight[1:] * total), axis=0)])
    risen = np.arange(PLACES + 1) / PLACES + told @ seen
    up, down = np.maximum.accumulate(risen), np.minimum.accumulate(risen[::-1])[::-1]
    level = np.clip((up + down) / 2, 0.0, 1.0) + 1e-9 * np.arange(PLACES + 1)
    return level, scale * told


def _edges(scorer: Scorer, cells: int, level: Vector) -> Vector:
    """Of cells that hold about as many rows each of a crowd half of which is of either class, as the model says."""
    ends, rows = np.arange(PLACES + 1) / PLACES, np.diff(level)
    middle, width = scorer.spread
    chance = expit(middle + width * ndtri((ends[1:] + ends[:-1]) / 2)) if scorer.probable else np.full(PLACES, 0.5)
    both = [rows * each + 1e-12 for each in (chance, 1 - chance)]
    risen = np.concatenate([[0.0], np.cumsum(sum(each / each.sum() for each in both))]) / 2
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
    """Shares of each user's rows by place, (k, many); zeros for users without rows."""
    whose = np.repeat(np.arange(items.users), items.counts)[rows]
    counts = np.bincount(whose * many + at[rows], minlength=items.users * many).reshape(items.users, many)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))

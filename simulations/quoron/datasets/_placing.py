"""Rows on their way into chunks: a value is read once from its column, and written once, scaled, where it will stay.

Rows come in runs, a run being neighbouring rows of one user. Where a run begins among the placed rows is settled by the
index and the order alone, before any value is read. A row that is left out makes its run shorter.
"""

from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic

TILE = 256  # rows that are scaled before they are written: a kilobyte of a column is read in one go
_APART = 16  # numbers between columns of a tile: a power of two apart, they would drive each other out of the cache


@njit(cache=True, nogil=True, error_model="numpy")
def settle(places: Any, lengths: Any, chunk_of: Any, step: int, starts: Any, runs: Any, base: Any) -> None:
    """Where runs (R,) begin if they lie chunk by chunk, in their order within one: `base` (R,).

    `places` are those of their users, -1 for one who is not wanted. Chunk b has room for the rows from starts[b] on,
    and for its runs from runs[b] on (K + 1,), whole steps of both.
    """
    starts[:] = 0
    runs[:] = 0
    for r in range(len(places)):
        if places[r] >= 0:
            b = chunk_of[places[r]] + 1
            starts[b] += lengths[r]
            runs[b] += 1
    # Counts become places: every chunk begins at a whole step, so none shares one with its neighbour.
    for b in range(1, len(starts)):
        starts[b] = starts[b - 1] + (starts[b] + step - 1) // step * step
        runs[b] = runs[b - 1] + (runs[b] + step - 1) // step * step
    at = starts.copy()
    for r in range(len(places)):
        if places[r] >= 0:
            b = chunk_of[places[r]]
            base[r] = at[b]
            at[b] += lengths[r]


def _at(context: Any, address: Any, like: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], target.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), generate  # type: ignore[no-untyped-call]


# _column(address, like): numbers of the type of `like`. A list of arrays would cost as much as the work on a few rows.
_column: Any = intrinsic(_at)


@njit(cache=True, nogil=True, error_model="numpy")
def place_rows(
    columns: Any,
    like: Any,
    first: int,
    last: int,
    low: Any,
    high: Any,
    scale: float,
    drop: bool,
    constant: float,
    bound: float,
    labels: Any,
    weights: Any,
    usable: Any,
    run: int,
    done: int,
    places: Any,
    lengths: Any,
    base: Any,
    kept: Any,
    features: Any,
    out_labels: Any,
    out_weights: Any,
) -> bool:
    """Rows `first` to `last` of columns to where their runs lie. The first of them is row `done` of run `run`.

    `columns` (p,) are addresses of numbers of the type of `like`. A column is brought from [low, high] to [-1, 1] in
    float32, and then times `scale`; as it is if that is 0. Of a run, kept[run] rows are there already. Returns whether
    no row is longer than `bound`. Ranges of rows that have no run in common may be placed at the same time.
    """
    longest, squares = 0.0, np.empty(TILE)
    # The length of a row is that of what is written, float32, and the constant column is part of it.
    end = np.float64(np.float32(constant))
    tile = np.empty((len(columns), TILE + _APART), np.float32)
    there, good = np.empty(TILE, np.int64), np.empty(TILE, np.bool_)
    # Columns come one after the other and rows go out one after the other: a tile turns one into the other, in cache.
    for start in range(first, last, TILE):
        many = min(TILE, last - start)
        for i in range(many):
            good[i] = usable[start + i]
        squares[:] = end * end
        for j in range(len(columns)):
            values = carray(_column(columns[j], like), last)[start : start + many]
            # Scaled, a value that is not finite is the middle of its range, and `drop` says whether its row counts.
            if scale == 0.0:
                for i in range(many):
                    tile[j, i] = np.float32(values[i])
            elif _scale(values, low[j], high[j], scale, tile[j]) and drop:
                for i in range(many):
                    good[i] = good[i] and np.isfinite(values[i])
            _add_squares(tile[j, :many], squares)
        run, done = _settle_rows(good[:many], run, done, places, lengths, base, kept, there)
        _write(tile, there[:many], constant, features)
        for i in range(many):
            longest = max(longest, squares[i])
        for i in range(many):
            if there[i] >= 0:
                out_labels[there[i]] = labels[start + i]
                if len(out_weights):
                    out_weights[there[i]] = weights[start + i]
    within: bool = np.sqrt(longest) <= bound
    return within


@njit(cache=True, nogil=True, error_model="numpy")
def _settle_rows(
    good: Any, run: int, done: int, places: Any, lengths: Any, base: Any, kept: Any, there: Any
) -> tuple[int, int]:
    """Where each of some rows belongs, -1 for nowhere, from row `done` of run `run` on; and where the next is."""
    i = 0
    while i < len(good):
        while done == lengths[run]:
            run, done = run + 1, 0
        stop = min(len(good), i + lengths[run] - done)
        done += stop - i
        if places[run] < 0:
            there[i:stop] = -1
        else:
            # Rows that are left out leave no gap: the next one takes their place.
            at = base[run] + kept[run]
            for k in range(i, stop):
                there[k] = at if good[k] else -1
                at += good[k]
            kept[run] = at - base[run]
        i = stop
    return run, done


@njit(cache=True, nogil=True, error_model="numpy")
def _scale(values: Any, low: float, high: float, scale: float, out: Any) -> bool:
    """Some values of a column, scaled; whether one is not finite, which is taken to be in the middle."""
    span, amiss = high - low, 0
    for i in range(len(values)):
        value = np.float64(values[i])
        amiss += not abs(value) < np.inf
        held = min(max((2.0 * value - low - high) / span, -1.0), 1.0)
        out[i] = np.float32(np.float64(np.float32(held)) * scale)
    if amiss == 0:
        return False
    middle = 0.5 * low + 0.5 * high
    held = min(max((2.0 * middle - low - high) / span, -1.0), 1.0)
    for i in range(len(values)):
        if not np.isfinite(values[i]):
            out[i] = np.float32(np.float64(np.float32(held)) * scale)
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def _add_squares(values: Any, squares: Any) -> None:
    for i in range(len(values)):
        squares[i] += np.float64(values[i]) * np.float64(values[i])


@njit(cache=True, nogil=True, error_model="numpy")
def _write(tile: Any, there: Any, constant: float, features: Any) -> None:
    """The columns of a tile as rows there[i] (-1: none), with the constant at the end where there is one."""
    columns, width, last = len(tile), features.shape[1], np.float32(constant)
    for i in range(len(there)):
        at = there[i]
        if at < 0:
            continue
        for j in range(columns):
            features[at, j] = tile[j, i]
        if width > columns:
            features[at, columns] = last


@njit(cache=True, nogil=True, error_model="numpy")
def sort_runs(
    places: Any, lengths: Any, base: Any, kept: Any, chunk_of: Any, starts: Any, runs: Any, features: Any, labels: Any,
    weights: Any, out: Any,
) -> None:  # fmt: skip
    """Runs chunk by chunk: the user's place, where it begins in its chunk, and its rows, `out` (all room, 3).

    Room that is left is zeros.
    """
    out[:] = 0
    at, ends = runs.copy(), starts.copy()
    for r in range(len(places)):
        if places[r] >= 0:
            b = chunk_of[places[r]]
            out[at[b], 0] = places[r]
            out[at[b], 1] = base[r] - starts[b]
            out[at[b], 2] = kept[r]
            at[b] += 1
            ends[b] += lengths[r]
            _clear(base[r] + kept[r], ends[b], features, labels, weights)
    for b in range(len(starts) - 1):
        _clear(ends[b], starts[b + 1], features, labels, weights)


@njit(cache=True, nogil=True, error_model="numpy")
def _clear(first: int, last: int, features: Any, labels: Any, weights: Any) -> None:
    for i in range(first, last):
        features[i] = 0.0
        labels[i] = 0.0
        if len(weights):
            weights[i] = 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def gather(runs: Any, first: int, begins: Any, ends: Any) -> bool:
    """Where each user's rows are, of runs (R, 3) as above; `first` is the chunk's first place.

    False if some user's rows are apart: then `ends` - `begins` are still how many there are.
    """
    begins[:] = 0
    ends[:] = 0
    together = True
    for r in range(len(runs)):
        user, begin, rows = runs[r, 0] - first, runs[r, 1], runs[r, 2]
        if rows == 0:
            continue
        if ends[user] == begins[user]:
            begins[user] = begin
            ends[user] = begin
        elif ends[user] != begin:
            together = False
        ends[user] += rows
    return together


@njit(cache=True, nogil=True, error_model="numpy")
def lay_out(runs: Any, first: int, at: Any, rows: Any) -> None:
    """Rows user by user, in the order of their runs: `rows` (N,); `at` (k,) is where each user's begin among them."""
    for r in range(len(runs)):
        user = runs[r, 0] - first
        for i in range(runs[r, 2]):
            rows[at[user]] = runs[r, 1] + i
            at[user] += 1

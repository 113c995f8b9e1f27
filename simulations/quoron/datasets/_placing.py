"""Items on their way into chunks, where they will stay.

Rows come in runs, a run being neighbouring rows of one user. Where a run begins among the placed rows is settled by the
index and the order alone, before any value is read. A row that is left out makes its run shorter.
"""

from typing import Any

import numpy as np

from quoron_privacy.kernels.shipped import njit


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


@njit(cache=True, nogil=True, error_model="numpy")
def place_rows(
    features: Any, labels: Any, weights: Any, marks: Any, bound: float, run: int, done: int, places: Any, lengths: Any,
    base: Any, kept: Any, out_features: Any, out_labels: Any, out_weights: Any,
) -> bool:  # fmt: skip
    """Rows that are items to where their runs lie, if they can be used. The first of them is row `done` of run `run`.

    Of a run, kept[run] rows are there already. Returns whether no row is longer than `bound`. Ranges of rows that have
    no run in common may be placed at the same time.
    """
    longest, there = 0.0, np.empty(len(labels), np.int64)
    _settle_rows(marks, run, done, places, lengths, base, kept, there)
    for i in range(len(there)):
        at, squares = there[i], 0.0
        if at < 0:
            continue
        for j in range(features.shape[1]):
            value = features[i, j]
            out_features[at, j] = value
            squares += np.float64(value) * np.float64(value)
        longest = max(longest, squares)
        out_labels[at] = labels[i]
        if len(weights):
            out_weights[at] = weights[i]
    within: bool = np.sqrt(longest) <= bound
    return within


@njit(cache=True, nogil=True, error_model="numpy")
def _settle_rows(marks: Any, run: int, done: int, places: Any, lengths: Any, base: Any, kept: Any, there: Any) -> None:
    """Where each of some rows belongs, -1 for nowhere, from row `done` of run `run` on."""
    i = 0
    while i < len(there):
        while done == lengths[run]:
            run, done = run + 1, 0
        stop = min(len(there), i + lengths[run] - done)
        done += stop - i
        if places[run] < 0:
            there[i:stop] = -1
        else:
            # Rows that are left out leave no gap: the next one takes their place.
            at = base[run] + kept[run]
            for k in range(i, stop):
                good = marks[k, 0] & 1 == 0
                there[k] = at if good else -1
                at += good
            kept[run] = at - base[run]
        i = stop


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

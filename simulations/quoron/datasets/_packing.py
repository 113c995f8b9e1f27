"""Items as rows of 32-bit words on their way to and from a deck: a compiled pass to deal them out, one to pick them up.

A row is the user's place in the deck, the label (two words), the weight (two words, where there are weights), and the
features.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

HEAD = 3  # words before the features, without weights

Words = NDArray[np.float32]


@njit(cache=True, nogil=True)
def deal(
    features: Any, labels: Any, weights: Any, kept: Any, places: Any, bucket_of: Any, width: int, out: Any, ends: Any
) -> int:
    """Rows that are kept and have a place (>= 0), by bucket, into `out`; ends[b] is one past bucket b's last row.

    Within a bucket rows stay in their order. Returns the number of rows.
    """
    ends[:] = 0
    count = len(places)
    for i in range(count):
        if kept[i] and places[i] >= 0:
            ends[bucket_of[places[i]]] += 1
    total = 0
    for b in range(len(ends)):
        rows = ends[b]
        ends[b] = total
        total += rows
    halves = labels.view(np.float32)
    shares = weights.view(np.float32)
    head = width - features.shape[1]
    tags = out.view(np.int32)
    for i in range(count):
        if kept[i] and places[i] >= 0:
            b = bucket_of[places[i]]
            at = ends[b]
            ends[b] = at + 1
            tags[at, 0] = places[i]
            out[at, 1] = halves[2 * i]
            out[at, 2] = halves[2 * i + 1]
            if head == 5:
                out[at, 3] = shares[2 * i]
                out[at, 4] = shares[2 * i + 1]
            for j in range(features.shape[1]):
                out[at, head + j] = features[i, j]
    return total


@njit(cache=True, nogil=True)
def tally(words: Any, first: int, counts: Any) -> None:
    """Rows of each place from `first` on, added to `counts`."""
    tags = words.view(np.int32)
    for i in range(len(tags)):
        counts[tags[i, 0] - first] += 1


@njit(cache=True, nogil=True)
def pick_up(words: Any, first: int, cursors: Any, features: Any, labels: Any, weights: Any) -> None:
    """Each row to its user's next place (`cursors`, where the users' items begin), in order."""
    tags = words.view(np.int32)
    halves = labels.view(np.float32)
    shares = weights.view(np.float32)
    head = words.shape[1] - features.shape[1]
    for i in range(len(words)):
        user = tags[i, 0] - first
        at = cursors[user]
        cursors[user] = at + 1
        halves[2 * at] = words[i, 1]
        halves[2 * at + 1] = words[i, 2]
        if head == 5:
            shares[2 * at] = words[i, 3]
            shares[2 * at + 1] = words[i, 4]
        for j in range(features.shape[1]):
            features[at, j] = words[i, head + j]

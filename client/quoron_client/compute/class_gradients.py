"""Loops of the softmax loss: K predictions and K sums over the same block of rows."""

from typing import Any

import numpy as np
from numba import float64

from quoron_client.compute.products import accumulate, predict
from quoron_client.compute.user_loops import user_loop
from quoron_client.losses.exponential import exponential
from quoron_privacy.kernels.compiled import helper, read_only, writable
from quoron_privacy.kernels.lanes import aligned

_MATRIX, _VECTOR = read_only(float64, 2), read_only(float64, 1)
_BLOCK = 64  # items whose scores are held at a time


@helper
def _chances(scores: Any, labels: Any, first: int, count: int, tops: Any, sums: Any, chosen: Any) -> None:
    """Scores (K, count) become e^(score - top), their sums, and the labels' own scores less the top.

    An item whose scores are not finite, or whose label is no class number, has NaN for its sum.
    """
    classes = len(scores)
    for i in range(count):
        tops[i], sums[i], chosen[i] = scores[0, i], np.nan, np.nan
    for k in range(classes):
        for i in range(count):
            tops[i] = max(tops[i], scores[k, i])
            # A class number is compared, never used as a place.
            sums[i] = 0.0 if labels[first + i] == k else sums[i]
            chosen[i] = scores[k, i] if labels[first + i] == k else chosen[i]
    # Sums are 0 for a label that is a class, and NaN for any other. 0 · v makes them NaN where a score is not finite.
    for k in range(classes):
        for i in range(count):
            sums[i] += 0.0 * scores[k, i]
    # The largest score leaves first: no exponential overflows, and one of them is 1.
    for k in range(classes):
        for i in range(count):
            scores[k, i] = exponential(scores[k, i] - tops[i])
    for k in range(classes):
        for i in range(count):
            sums[i] += scores[k, i]
    for i in range(count):
        chosen[i] -= tops[i]


@user_loop(read_only(float64, 3), _VECTOR, _VECTOR, _MATRIX, _VECTOR, _MATRIX, _VECTOR, writable(float64, 3))
def class_gradients(
    features: Any,
    labels: Any,
    begins: Any,
    ends: Any,
    points: Any,
    weights: Any,
    item_weights: Any,
    shrink: Any,
    scale: Any,
    centre: Any,
    user_weights: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    """Of the softmax loss: K predictions and K sums over the same block of rows, which stays in the nearest cache."""
    classes, dimension, flat = points.shape[1], features.shape[1], features.reshape(-1)
    scores, coefficients = np.zeros((classes, _BLOCK)), np.empty((classes, _BLOCK))
    totals = aligned(classes, dimension)
    tops, sums, chosen = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for u in range(start, stop):
        begin, end = begins[u], ends[u]
        if begin == end:
            out[u] = 0.0
            continue
        # The rows of a block are read 2K times, K predictions and K sums, all but the first time from cache.
        for first in range(begin, end, _BLOCK):
            count = min(_BLOCK, end - first)
            coefficients[:] = 0.0
            for p in range(len(points)):
                for k in range(classes):
                    predict(flat, first, count, dimension, points[p, k], scores[k], 0)
                _chances(scores, labels, first, count, tops, sums, chosen)
                for k in range(classes):
                    for i in range(count):
                        # Compared and never an index: a label that is no class reads and writes nowhere else.
                        wanted = 1.0 if labels[first + i] == k else 0.0
                        coefficients[k, i] += weights[p] * (scores[k, i] / sums[i] - wanted)
            if item_weights.size > 0:
                for k in range(classes):
                    for i in range(count):
                        coefficients[k, i] *= item_weights[first + i]
            for k in range(classes):
                accumulate(flat, first, count, dimension, coefficients[k], 0, totals[k], first == begin)
        share = scale[u] / (end - begin)
        for k in range(classes):
            for j in range(out.shape[2]):
                moved = share * totals[k, j] + scale[u] * shrink[k, j] - centre[k, j]
                out[u, k, j] = user_weights[u] * moved


@user_loop(_MATRIX, _VECTOR, writable(float64, 1))
def class_losses(
    features: Any, labels: Any, begins: Any, ends: Any, point: Any, item_weights: Any, out: Any, start: int, stop: int
) -> None:
    """The average loss of every user."""
    flat, scores, values = features.reshape(-1), np.zeros((len(point), _BLOCK)), np.empty(_BLOCK)
    tops, sums, chosen = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    for u in range(start, stop):
        begin, end, summed = begins[u], ends[u], 0.0
        for first in range(begin, end, _BLOCK):
            count = min(_BLOCK, end - first)
            for k in range(len(point)):
                predict(flat, first, count, features.shape[1], point[k], scores[k], 0)
            _chances(scores, labels, first, count, tops, sums, chosen)
            # log Σ e^score less the label's score: the largest score is taken off both, and cancels.
            for i in range(count):
                values[i] = np.log(sums[i]) - chosen[i]
            if item_weights.size > 0:
                for i in range(count):
                    values[i] *= item_weights[first + i]
            for i in range(count):
                summed += values[i]
        out[u] = summed / max(end - begin, 1)

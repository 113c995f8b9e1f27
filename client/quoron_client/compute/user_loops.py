"""Compiled loops over the users of a batch.

They take a range of users and release the interpreter lock, so that plain threads share the work. A user's result
depends on that user's items alone and is computed by one thread: every split gives the same bits.

Inner products with rows of items and sums of such rows, four numbers at a time, for compiled loops.

What numba keeps on disk of a loop is renewed when the loop's own file changes: after a change here, touch its callers.
"""

from collections.abc import Callable
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numba
import numpy as np
from numba import float64, int64, types

from quoron_client.data.items import ItemBatch, Items
from quoron_privacy.kernels.compiled import SUMS, helper, read_only
from quoron_privacy.kernels.prebuilt import njit
from quoron_privacy.kernels.simd import (
    STRIDE,
    WIDTH,
    alike,
    first_lanes,
    fused,
    keep,
    keep_first,
    lanes,
    plus,
    sum_of,
    sums_of,
)
from quoron_privacy.kernels.threads import all_threads, at_once

_SMALL = 1 << 19  # numbers in a batch that one thread reads in a few times what it takes to wake another
_USER = 64  # numbers of items that take as long as all else of a user
_LARGE, _PIECES = 1 << 21, 4  # numbers in a piece, at least, if there are several a thread; and how many at most


class UserLoop:
    """A compiled loop over the users of a batch.

    The function's arguments are features, labels, begins and ends (rows begins[u] to ends[u] are user u's), then its
    own (of the given numba types), then the first and one past the last user to do.
    """

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments

    @cached_property
    def _float32(self) -> Any:
        return self._compile(numba.float32)

    @cached_property
    def _float64(self) -> Any:
        return self._compile(float64)

    def compile(self) -> None:
        """Compile for both precisions now, rather than at the first call."""
        _ = self._float32, self._float64

    def _compile(self, element: Any) -> Any:
        batch = (read_only(element, 2), read_only(float64, 1), read_only(int64, 1), read_only(int64, 1))
        return njit(types.void(*batch, *self._arguments, int64, int64), **SUMS)(self._function)

    def __call__(self, batch: Items, *arguments: Any) -> None:
        """Run over all users of `batch`, on as many threads as `pieces` says."""
        bounds, threads = pieces(batch)
        at_once([partial(self.over, batch, first, last, *arguments) for first, last in pairwise(bounds)], threads)

    def over(self, batch: Items, first: int, last: int, *arguments: Any) -> None:
        """Run over users `first` to `last` on this thread."""
        loop: Any = self._float32 if batch.features.dtype == np.float32 else self._float64
        loop(batch.features, batch.labels, batch.begins, batch.ends, *arguments, first, last)


def pieces(batch: Items) -> tuple[list[int], int]:
    """Return where pieces of users with about equally many items begin, then the number of users; and how many threads.

    As many as numba was given, or one where others would cost more than they save. There are as many pieces as threads,
    or a few times that where there is much to do: a slower thread then takes fewer.
    """
    threads = 1 if batch.size + _USER * batch.users < _SMALL else all_threads()
    if threads == 1 or batch.users < threads:
        return [0, batch.users], 1
    so_far = batch.ends if isinstance(batch, ItemBatch) else np.cumsum(batch.counts)
    number = min(_PIECES * threads, max(threads, int(so_far[-1]) * batch.dimension // _LARGE))
    shares = [int(so_far[-1]) * part // number for part in range(1, number)]
    return [0, *so_far.searchsorted(shares).tolist(), batch.users], threads


def user_loop(*arguments: Any) -> Callable[[Callable[..., None]], UserLoop]:
    """Decorator for `UserLoop`; the arguments are the numba types of the loop's own arguments."""
    return lambda function: UserLoop(function, arguments)


SHORT = 32  # numbers of a row below which more time goes into its one sum than into its products


@helper
def predict(flat: Any, first: int, count: int, dimension: int, x: Any, out: Any, place: int) -> None:
    """⟨row, x⟩ for `count` rows from `first` on, into out[place] and on; x is padded with zeros.

    Rows one after the other, as memory is read best; short ones four at a time, which changes no bit.
    """
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    fours, strides = 0, whole // STRIDE * STRIDE
    if dimension < SHORT:
        fours, strides = count // 4 * 4, 0
    # Short rows: four side by side, whose four sums at the end are one shuffle.
    for i in range(0, fours, 4):
        row = (first + i) * dimension
        second, third, fourth = row + dimension, row + 2 * dimension, row + 3 * dimension
        a = b = c = d = alike(0.0)
        for j in range(0, whole, WIDTH):
            at = lanes(x, j)
            a, b = fused(lanes(flat, row + j), at, a), fused(lanes(flat, second + j), at, b)
            c, d = fused(lanes(flat, third + j), at, c), fused(lanes(flat, fourth + j), at, d)
        if rest > 0:
            at = lanes(x, whole)
            a = fused(first_lanes(flat, row + whole, rest), at, a)
            b = fused(first_lanes(flat, second + whole, rest), at, b)
            c = fused(first_lanes(flat, third + whole, rest), at, c)
            d = fused(first_lanes(flat, fourth + whole, rest), at, d)
        keep(out, place + i, sums_of(a, b, c, d))
    # Long rows: four sums of one row, as a sum waits for the last product of its own.
    for i in range(fours, count):
        row = (first + i) * dimension
        a = b = c = d = alike(0.0)
        for j in range(0, strides, STRIDE):
            a = fused(lanes(flat, row + j), lanes(x, j), a)
            b = fused(lanes(flat, row + j + WIDTH), lanes(x, j + WIDTH), b)
            c = fused(lanes(flat, row + j + 2 * WIDTH), lanes(x, j + 2 * WIDTH), c)
            d = fused(lanes(flat, row + j + 3 * WIDTH), lanes(x, j + 3 * WIDTH), d)
        for j in range(strides, whole, WIDTH):
            a = fused(lanes(flat, row + j), lanes(x, j), a)
        if rest > 0:
            a = fused(first_lanes(flat, row + whole, rest), lanes(x, whole), a)
        out[place + i] = sum_of(plus(plus(a, b), plus(c, d)))


@helper
def predict_both(
    flat: Any, first: int, count: int, dimension: int, x: Any, y: Any, out: Any, other: Any, place: int
) -> None:
    """Like `predict`, for two points: each row is read and widened once."""
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    fours, strides = 0, whole // STRIDE * STRIDE
    if dimension < SHORT:
        fours, strides = count // 4 * 4, 0
    # a to d are sums for the one point, e to h for the other; p and q are what both read.
    for i in range(0, fours, 4):
        row = (first + i) * dimension
        second, third, fourth = row + dimension, row + 2 * dimension, row + 3 * dimension
        a = b = c = d = e = f = g = h = alike(0.0)
        for j in range(0, whole, WIDTH):
            at, to = lanes(x, j), lanes(y, j)
            p, q = lanes(flat, row + j), lanes(flat, second + j)
            a, b, e, f = fused(p, at, a), fused(q, at, b), fused(p, to, e), fused(q, to, f)
            p, q = lanes(flat, third + j), lanes(flat, fourth + j)
            c, d, g, h = fused(p, at, c), fused(q, at, d), fused(p, to, g), fused(q, to, h)
        if rest > 0:
            at, to = lanes(x, whole), lanes(y, whole)
            p, q = first_lanes(flat, row + whole, rest), first_lanes(flat, second + whole, rest)
            a, b, e, f = fused(p, at, a), fused(q, at, b), fused(p, to, e), fused(q, to, f)
            p, q = first_lanes(flat, third + whole, rest), first_lanes(flat, fourth + whole, rest)
            c, d, g, h = fused(p, at, c), fused(q, at, d), fused(p, to, g), fused(q, to, h)
        keep(out, place + i, sums_of(a, b, c, d))
        keep(other, place + i, sums_of(e, f, g, h))
    for i in range(fours, count):
        row = (first + i) * dimension
        a = b = c = d = e = f = g = h = alike(0.0)
        for j in range(0, strides, STRIDE):
            p, q = lanes(flat, row + j), lanes(flat, row + j + WIDTH)
            r, s = lanes(flat, row + j + 2 * WIDTH), lanes(flat, row + j + 3 * WIDTH)
            a, e = fused(p, lanes(x, j), a), fused(p, lanes(y, j), e)
            b, f = fused(q, lanes(x, j + WIDTH), b), fused(q, lanes(y, j + WIDTH), f)
            c, g = fused(r, lanes(x, j + 2 * WIDTH), c), fused(r, lanes(y, j + 2 * WIDTH), g)
            d, h = fused(s, lanes(x, j + 3 * WIDTH), d), fused(s, lanes(y, j + 3 * WIDTH), h)
        for j in range(strides, whole, WIDTH):
            p = lanes(flat, row + j)
            a, e = fused(p, lanes(x, j), a), fused(p, lanes(y, j), e)
        if rest > 0:
            p = first_lanes(flat, row + whole, rest)
            a, e = fused(p, lanes(x, whole), a), fused(p, lanes(y, whole), e)
        out[place + i] = sum_of(plus(plus(a, b), plus(c, d)))
        other[place + i] = sum_of(plus(plus(e, f), plus(g, h)))


@helper
def accumulate(
    flat: Any, first: int, count: int, dimension: int, coefficients: Any, place: int, out: Any, anew: bool
) -> None:
    """out += Σ coefficient · row over `count` rows from `first` on, row after row; coefficients from `place` on.

    From zero, if `anew`. Four rows at a time where there are as many, which changes no bit; `out` is padded.
    """
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    fours = count // 4 * 4
    # Four rows for each time that `out` is read and written. a to d are where rows begin, e to h their coefficients.
    for i in range(0, fours, 4):
        a = (first + i) * dimension
        b, c, d = a + dimension, a + 2 * dimension, a + 3 * dimension
        e, f = alike(coefficients[place + i]), alike(coefficients[place + i + 1])
        g, h = alike(coefficients[place + i + 2]), alike(coefficients[place + i + 3])
        for j in range(0, whole, WIDTH):
            s = fused(lanes(flat, a + j), e, alike(0.0) if anew else lanes(out, j))
            s = fused(lanes(flat, b + j), f, s)
            keep(out, j, fused(lanes(flat, d + j), h, fused(lanes(flat, c + j), g, s)))
        if rest > 0:
            j = whole
            s = fused(first_lanes(flat, a + j, rest), e, alike(0.0) if anew else lanes(out, j))
            s = fused(first_lanes(flat, b + j, rest), f, s)
            s = fused(first_lanes(flat, c + j, rest), g, s)
            keep(out, j, fused(first_lanes(flat, d + j, rest), h, s))
        anew = False
    for i in range(fours, count):
        a, e = (first + i) * dimension, alike(coefficients[place + i])
        for j in range(0, whole, WIDTH):
            keep(out, j, fused(lanes(flat, a + j), e, alike(0.0) if anew else lanes(out, j)))
        if rest > 0:
            keep(out, whole, fused(first_lanes(flat, a + whole, rest), e, alike(0.0) if anew else lanes(out, whole)))
        anew = False


@helper
def copied(source: Any, first: int, count: int, out: Any, place: int) -> None:
    """out[place:] = source[first:], `count` numbers."""
    whole, rest = count // WIDTH * WIDTH, count % WIDTH
    for i in range(0, whole, WIDTH):
        keep(out, place + i, lanes(source, first + i))
    if rest > 0:
        keep_first(out, place + whole, rest, first_lanes(source, first + whole, rest))


@helper
def within(flat: Any, first: int, count: int, most: float) -> bool:
    """Return whether each of `count` numbers from flat[first] on is finite and at most `most` in magnitude."""
    good = True
    for j in range(first, first + count):
        good = good and abs(flat[j]) <= most and np.isfinite(flat[j])
    return good

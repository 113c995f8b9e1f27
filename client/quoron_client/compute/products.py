"""Inner products with rows of items and sums of such rows, eight numbers at a time, for compiled loops.

What numba keeps on disk of a loop is renewed when the loop's own file changes: after a change here, touch its callers.
"""

from typing import Any

from quoron_client.compute.compiled import helper
from quoron_privacy.lanes import (
    STRIDE,
    WIDTH,
    alike,
    first_lanes,
    fused,
    keep,
    lanes,
    larger,
    max_of,
    plus,
    sum_of,
)


@helper
def predict(flat: Any, first: int, count: int, dimension: int, x: Any, out: Any, place: int) -> None:
    """⟨row, x⟩ for `count` rows from `first` on, into out[place] and on; x is padded with zeros."""
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    strides = whole // STRIDE * STRIDE
    for i in range(count):
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
            b = fused(first_lanes(flat, row + whole, rest), lanes(x, whole), b)
        out[place + i] = sum_of(plus(plus(a, b), plus(c, d)))


@helper
def predict_both(
    flat: Any, first: int, count: int, dimension: int, x: Any, y: Any, out: Any, other: Any, place: int
) -> None:
    """Like `predict`, for two points: each row is read and widened once."""
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    strides = whole // STRIDE * STRIDE
    for i in range(count):
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
            b, f = fused(p, lanes(x, whole), b), fused(p, lanes(y, whole), f)
        out[place + i] = sum_of(plus(plus(a, b), plus(c, d)))
        other[place + i] = sum_of(plus(plus(e, f), plus(g, h)))


@helper
def accumulate(flat: Any, first: int, count: int, dimension: int, coefficients: Any, place: int, out: Any) -> None:
    """out += Σ coefficient · row over `count` rows from `first` on, row after row; coefficients from `place` on.

    Four rows at a time where there are as many, which changes no bit; `out` is padded.
    """
    whole, rest = dimension // WIDTH * WIDTH, dimension % WIDTH
    fours = count // 4 * 4
    for i in range(0, fours, 4):
        a = (first + i) * dimension
        b, c, d = a + dimension, a + 2 * dimension, a + 3 * dimension
        e, f = alike(coefficients[place + i]), alike(coefficients[place + i + 1])
        g, h = alike(coefficients[place + i + 2]), alike(coefficients[place + i + 3])
        for j in range(0, whole, WIDTH):
            s = fused(lanes(flat, b + j), f, fused(lanes(flat, a + j), e, lanes(out, j)))
            keep(out, j, fused(lanes(flat, d + j), h, fused(lanes(flat, c + j), g, s)))
        if rest > 0:
            j = whole
            s = fused(first_lanes(flat, a + j, rest), e, lanes(out, j))
            s = fused(first_lanes(flat, b + j, rest), f, s)
            s = fused(first_lanes(flat, c + j, rest), g, s)
            keep(out, j, fused(first_lanes(flat, d + j, rest), h, s))
    for i in range(fours, count):
        a, e = (first + i) * dimension, alike(coefficients[place + i])
        for j in range(0, whole, WIDTH):
            keep(out, j, fused(lanes(flat, a + j), e, lanes(out, j)))
        if rest > 0:
            keep(out, whole, fused(first_lanes(flat, a + whole, rest), e, lanes(out, whole)))


@helper
def within(row: Any, most: float) -> bool:
    """Whether every number is finite and at most `most` in magnitude."""
    whole, rest = row.size // WIDTH * WIDTH, row.size % WIDTH
    largest = nothing = zero = alike(0.0)
    for j in range(0, whole, WIDTH):
        part = lanes(row, j)
        largest, nothing = larger(largest, part), fused(part, zero, nothing)
    if rest > 0:
        part = first_lanes(row, whole, rest)
        largest, nothing = larger(largest, part), fused(part, zero, nothing)
    good: bool = sum_of(nothing) == 0.0 and max_of(largest) <= most
    return good

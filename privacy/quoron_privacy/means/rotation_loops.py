"""Compiled loops of `rotation` and `private_range`: a fast Walsh-Hadamard transform, counts and clamped sums.

Three index bits at a time are done in registers, the lowest ones by exchanging the lanes of one register; long rows are
split until a block fits the first cache. Rows go one after the other: the bits do not depend on how many there are.
"""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from quoron_privacy.kernels.prebuilt import njit

_REGISTER = 64  # bytes
_BLOCK = 4096  # numbers of a row in work at once: 32 KiB of float64


def _butterflies(bits: int, lanes: bool) -> Any:
    """f(flat, first, stride, scale): sums and differences of 2^bits registers, `stride` numbers apart, from `first` on.

    With `lanes` also of the numbers within each register, after multiplying by `scale`. All loads precede the stores.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        size = signature.args[0].dtype.bitwidth // 8
        width, registers = _REGISTER // size, 1 << bits
        vector = ir.VectorType(context.get_data_type(signature.args[0].dtype), width)
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        places, parts = [], []
        for q in range(registers):
            at = builder.add(values[1], builder.mul(values[2], ir.Constant(values[2].type, q)))
            places.append(builder.bitcast(builder.gep(data, [at]), vector.as_pointer()))
            part = builder.load(places[q])
            part.align = size
            parts.append(builder.fmul(part, _spread(builder, vector, values[3])) if lanes else part)
        for h in [1 << level for level in range(width.bit_length() - 1)] if lanes else []:
            partner = ir.Constant(ir.VectorType(ir.IntType(32), width), [lane ^ h for lane in range(width)])
            signs = ir.Constant(vector, [-1.0 if lane & h else 1.0 for lane in range(width)])
            for q in range(registers):
                other = builder.shuffle_vector(parts[q], ir.Constant(vector, ir.Undefined), partner)
                parts[q] = builder.fadd(other, builder.fmul(parts[q], signs))  # the product is exact
        for h in [1 << level for level in range(bits)]:
            for q in range(registers):
                if not q & h:
                    first, second = parts[q], parts[q + h]
                    parts[q], parts[q + h] = builder.fadd(first, second), builder.fsub(first, second)
        for place, part in zip(places, parts, strict=True):
            builder.store(part, place).align = size
        return context.get_dummy_value()

    def typed(typing: Any, flat: Any, first: Any, stride: Any, scale: Any) -> Any:
        return types.void(flat, types.intp, types.intp, flat.dtype), generate

    return intrinsic(typed)


def _spread(builder: Any, vector: Any, value: Any) -> Any:
    """Return a register that holds `value` in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    lanes = ir.VectorType(ir.IntType(32), vector.count)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(lanes, [0] * vector.count))


_within, _within_two, _within_four, _within_eight = (_butterflies(bits, True) for bits in range(4))
_two, _four, _eight = (_butterflies(bits, False) for bits in range(1, 4))


@njit(cache=True)
def _short(flat, start, length, scale):  # type: ignore[no-untyped-def]
    """A row shorter than a register."""
    for j in range(start, start + length):
        flat[j] *= scale
    h = 1
    while h < length:
        for a in range(start, start + length, 2 * h):
            for j in range(a, a + h):
                flat[j], flat[j + h] = flat[j] + flat[j + h], flat[j] - flat[j + h]
        h *= 2


@njit(cache=True)
def _block(flat, start, length, scale):  # type: ignore[no-untyped-def]
    """A block that fits the first cache: lanes and up to three bits in one pass, then three bits a pass."""
    width = _REGISTER // flat.itemsize
    if length < width:
        _short(flat, start, length, scale)
    elif length == width:
        _within(flat, start, width, scale)
    elif length == 2 * width:
        _within_two(flat, start, width, scale)
    elif length == 4 * width:
        _within_four(flat, start, width, scale)
    else:
        for a in range(start, start + length, 8 * width):
            _within_eight(flat, a, width, scale)
        h = 8 * width
        while 8 * h <= length:
            for a in range(start, start + length, 8 * h):
                for j in range(a, a + h, width):
                    _eight(flat, j, h, scale)
            h *= 8
        for j in range(start, start + h, width):
            if 4 * h == length:
                _four(flat, j, h, scale)
            elif 2 * h == length:
                _two(flat, j, h, scale)


@njit(cache=True)
def _row(flat, start, length, scale):  # type: ignore[no-untyped-def]
    width = _REGISTER // flat.itemsize
    span = length
    while span > _BLOCK:  # the widest strides first
        h = span // 8
        for a in range(start, start + length, span):
            for j in range(a, a + h, width):
                _eight(flat, j, h, scale)
        span = h
    for a in range(start, start + length, span):
        _block(flat, a, span, scale)


@njit(cache=True)
def transform(rows, scale):  # type: ignore[no-untyped-def]
    """Every row of (k, d₂) in place, times `scale`."""
    flat, length = rows.reshape(-1), rows.shape[1]
    for start in range(0, flat.size, length):
        _row(flat, start, length, scale)


@njit(cache=True)
def rotate(rows, signs, scale, out):  # type: ignore[no-untyped-def]
    """The transform of every row times `signs`, padded with zeros, times `scale`; out (k, d₂)."""
    flat, dimension, length = out.reshape(-1), rows.shape[1], out.shape[1]
    for i in range(len(rows)):
        start = i * length
        for j in range(dimension):
            flat[start + j] = rows[i, j] * signs[j]
        for j in range(dimension, length):
            flat[start + j] = 0.0
        _row(flat, start, length, scale)


@njit(cache=True)
def tally(rotated, half_width, counts):  # type: ignore[no-untyped-def]
    """Add every row to the bins of its coordinates; counts (d₂, bins)."""
    bins = counts.shape[1]
    for i in range(len(rotated)):
        for j in range(rotated.shape[1]):
            place = (rotated[i, j] / half_width + 1.0) * (bins / 2)
            # The comparisons are False for NaN, which an overflow of finite rows could leave.
            index = np.int64(place) if 0.0 <= place < bins else (bins - 1 if place >= bins else 0)
            counts[j, index] += 1


@njit(cache=True)
def add_clamped(rotated, middles, half_width, unit, total):  # type: ignore[no-untyped-def]
    """Add every row's ⌊clamp((y - a) / h, ±1) · unit⌋ towards zero to `total`; return how many were clamped."""
    clamped = 0
    for i in range(len(rotated)):
        for j in range(rotated.shape[1]):
            share = (rotated[i, j] - middles[j]) / half_width
            if share >= 1.0:
                clamped += 1
                total[j] += np.int64(unit)
            elif share > -1.0:
                total[j] += np.int64(share * unit)
            else:  # NaN, which an overflow of finite rows could leave, too
                clamped += 1
                total[j] -= np.int64(unit)
    return clamped

"""Four numbers at a time for compiled loops: what a processor does in one instruction, written as one call.

    >>> import numpy as np
    >>> from numba import njit
    >>> @njit
    ... def squares(values):
    ...     return sum_of(fused(lanes(values, 0), lanes(values, 0), alike(0.0)))
    >>> squares(np.arange(4, dtype=np.float32))
    14.0

A sum has one order here, whatever the compiler makes of the loop around it: the same bits on every machine, wherever
arrays lie in memory. float32 numbers are widened in registers. No index is checked: who calls keeps within the arrays.
Four and not eight, as processors that have twice as wide registers widen no more numbers with them in the same time.
Where an answer is certified with digits to spare, sixteen float32 numbers are taken as they are.
"""

from struct import pack
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import float64, int64, intp, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from quoron_privacy.kernels.prebuilt import njit

WIDTH = 4
STRIDE = 4 * WIDTH  # independent sums at once: one waits for the last of its own
SINGLES = 16  # float32 numbers at a time, where a certified answer needs no more digits

_NUMBERS, _FLAGS = ir.VectorType(ir.DoubleType(), WIDTH), ir.VectorType(ir.IntType(1), WIDTH)
LINE = 16  # float32 numbers in a cache line
_LINE = 8  # float64 numbers in one
_WORD = ir.IntType(32)
_declared: Any = cgutils.get_or_insert_function


class _Lanes(types.Type):
    def __init__(self, name: str, vector: Any) -> None:
        super().__init__(name=name)
        self.vector = vector


_LANES = _Lanes("Lanes", _NUMBERS)
_SINGLES = _Lanes("Singles", ir.VectorType(ir.FloatType(), SINGLES))


@register_model(_Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, kind.vector)  # type: ignore[no-untyped-call]


@njit(cache=True)
def aligned(rows: int, columns: int) -> Any:
    """Zeros of shape (rows, `columns` or a little more, a multiple of `WIDTH`), whose rows start on cache lines.

    A row read across lines takes twice as long.
    """
    stride = (columns + _LINE - 1) // _LINE * _LINE
    flat = np.zeros(rows * stride + _LINE)
    first = (-(flat.ctypes.data // 8)) % _LINE
    return flat[first : first + rows * stride].reshape(rows, stride)


def _chosen(places: Any) -> Any:
    return ir.Constant(ir.VectorType(_WORD, len(places)), list(places))


def _everywhere(builder: Any, value: Any, width: int = WIDTH) -> Any:
    kind = ir.VectorType(value.type, width)
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, nothing, _chosen([0] * width))


def _address(target: Any, builder: Any, kind: Any, array: Any, index: Any, width: int = WIDTH) -> tuple[Any, Any, int]:
    """Return where so many elements lie, as a pointer to their vector; its type; bytes of an element."""
    element = target.get_value_type(kind.dtype)
    vector = ir.VectorType(element, width)
    data = array if isinstance(kind, types.CPointer) else target.make_array(kind)(target, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer()), vector, kind.dtype.bitwidth // 8


def _wide(builder: Any, value: Any) -> Any:
    return value if value.type == _NUMBERS else builder.fpext(value, _NUMBERS)


def _lanes(context: Any, array: Any, index: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, _, size = _address(target, builder, signature.args[0], values[0], values[1])
        return _wide(builder, builder.load(place, align=size))

    return _LANES(array, intp), generate


def _pointer(context: Any, array: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        return target.make_array(signature.args[0])(target, builder, values[0]).data

    return types.CPointer(array.dtype)(array), generate  # type: ignore[no-untyped-call]


def _there(builder: Any, count: Any) -> Any:
    """Return which lanes are the first few."""
    return builder.icmp_signed("<", _chosen(range(WIDTH)), _everywhere(builder, builder.trunc(count, _WORD)))


def _first_lanes(context: Any, array: Any, index: Any, count: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, vector, size = _address(target, builder, signature.args[0], values[0], values[1])
        there = _there(builder, values[2])
        kind = ir.FunctionType(vector, [place.type, _WORD, _FLAGS, vector])
        name = f"llvm.masked.load.v{WIDTH}f{8 * size}.p0"
        call = _declared(builder.module, kind, name)
        zeros = ir.Constant(vector, [0.0] * WIDTH)
        return _wide(builder, builder.call(call, [place, ir.Constant(_WORD, size), there, zeros]))

    return _LANES(array, intp, intp), generate


def _keep(context: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, vector, size = _address(target, builder, signature.args[0], values[0], values[1], value.vector.count)
        kept = values[2] if vector == value.vector else builder.fptrunc(values[2], vector)
        builder.store(kept, place, align=size)
        return target.get_dummy_value()

    return types.void(array, intp, value), generate


def _narrow(builder: Any, value: Any) -> Any:
    return value if value.type == _SINGLES.vector else builder.fptrunc(value, _SINGLES.vector)


def _singles(context: Any, array: Any, index: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, _, size = _address(target, builder, signature.args[0], values[0], values[1], SINGLES)
        return _narrow(builder, builder.load(place, align=size))

    return _SINGLES(array, intp), generate


def _turned(context: Any, array: Any, begins: Any, index: Any, count: Any, out: Any, place: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        array, begins, index, count, out, place = values
        every, starts, into = (signature.args[at] for at in (0, 1, 4))
        there = builder.icmp_signed(
            "<", _chosen(range(SINGLES)), _everywhere(builder, builder.trunc(count, _WORD), SINGLES)
        )
        rows = []
        for user in range(SINGLES):
            at, _, _ = _address(target, builder, starts, begins, ir.Constant(index.type, user), 1)
            begin = builder.extract_element(builder.load(at, align=8), ir.Constant(_WORD, 0))
            at, vector, size = _address(target, builder, every, array, builder.add(begin, index), SINGLES)
            kind = ir.FunctionType(vector, [at.type, _WORD, there.type, vector])
            call = _declared(builder.module, kind, f"llvm.masked.load.v{SINGLES}f{8 * size}.p0")
            zeros = ir.Constant(vector, [0.0] * SINGLES)
            rows.append(_narrow(builder, builder.call(call, [at, ir.Constant(_WORD, size), there, zeros])))
        half = SINGLES // 2
        low = [place for pair in zip(range(half), range(SINGLES, SINGLES + half), strict=True) for place in pair]
        high = [place + half for place in low]
        for _ in range(SINGLES.bit_length() - 1):  # a perfect shuffle of rows and of what is in them, four times
            pairs = [(rows[user], rows[user + half]) for user in range(half)]
            rows = [builder.shuffle_vector(*pair, _chosen(places)) for pair in pairs for places in (low, high)]
        for number, row in enumerate(rows):
            at = builder.add(place, ir.Constant(place.type, number * SINGLES))
            builder.store(row, _address(target, builder, into, out, at, SINGLES)[0], align=4)
        return target.get_dummy_value()

    return types.void(array, begins, intp, intp, out, intp), generate


def _keep_first(context: Any, array: Any, index: Any, count: Any, value: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, _, size = _address(target, builder, signature.args[0], values[0], values[1])
        kind = ir.FunctionType(ir.VoidType(), [_NUMBERS, place.type, _WORD, _FLAGS])
        call = _declared(builder.module, kind, f"llvm.masked.store.v{WIDTH}f64.p0")
        builder.call(call, [values[3], place, ir.Constant(_WORD, size), _there(builder, values[2])])
        return target.get_dummy_value()

    return types.void(array, intp, intp, _LANES), generate


def _add_whole(context: Any, array: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        place, vector, size = _address(target, builder, signature.args[0], values[0], values[1])
        total = builder.load(place, align=size)
        for value in values[2:]:
            total = builder.add(total, _cut(builder, value, vector))
        builder.store(total, place, align=size)
        return target.get_dummy_value()

    return types.void(array, intp, *[_LANES] * 4), generate


def _whole(context: Any, value: Any) -> Any:
    return int64(float64), lambda target, builder, signature, values: _cut(builder, values[0], ir.IntType(64))


def _cut(builder: Any, value: Any, integer: Any) -> Any:
    """As integers, towards zero, of magnitude at most 2⁵¹: whole numbers are the last bits of 2⁵² + 2⁵¹ + them.

    Processors without AVX-512 have no instruction for it, and would take four numbers one by one.
    """
    kind, middle = value.type, 2.0**52 + 2.0**51
    four = isinstance(kind, ir.VectorType)
    name = f"llvm.trunc.v{WIDTH}f64" if four else "llvm.trunc.f64"
    cut = builder.call(_declared(builder.module, ir.FunctionType(kind, [kind]), name), [value])
    bits = int.from_bytes(pack(">d", middle), "big")
    shifted = builder.fadd(cut, ir.Constant(kind, [middle] * WIDTH if four else middle))
    return builder.sub(builder.bitcast(shifted, integer), ir.Constant(integer, [bits] * WIDTH if four else bits))


def _prefetch(context: Any, array: Any, index: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = target.make_array(signature.args[0])(target, builder, values[0]).data
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, _WORD, _WORD, _WORD])
        call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        read, near, of_data = (ir.Constant(_WORD, value) for value in (0, 3, 1))
        builder.call(call, [builder.bitcast(builder.gep(data, [values[1]]), byte), read, near, of_data])
        return target.get_dummy_value()

    return types.void(array, intp), generate


def _alike(context: Any, value: Any) -> Any:
    return _LANES(float64), lambda target, builder, signature, values: _everywhere(builder, values[0])


def _single(context: Any, value: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _everywhere(builder, builder.fptrunc(values[0], ir.FloatType()), SINGLES)

    return _SINGLES(float64), generate


def _fused(context: Any, a: Any, b: Any, c: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(a.vector, [a.vector] * 3)
        bits = 64 if a is _LANES else 32
        return builder.call(_declared(builder.module, kind, f"llvm.fma.v{a.vector.count}f{bits}"), values)

    return a(a, a, a), generate


def _binary(operation: str) -> Any:
    def of(context: Any, a: Any, b: Any) -> Any:
        return a(a, a), lambda target, builder, signature, values: getattr(builder, operation)(*values)

    return intrinsic(of)


def _larger(context: Any, a: Any, b: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(_NUMBERS, [_NUMBERS])
        magnitude = _declared(builder.module, kind, f"llvm.fabs.v{WIDTH}f64")
        size = builder.call(magnitude, [values[1]])
        return builder.select(builder.fcmp_ordered(">", size, values[0]), size, values[0])

    return _LANES(_LANES, _LANES), generate


def _held(context: Any, value: Any, most: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        value, most = values
        value = builder.select(builder.fcmp_ordered(">", value, most), most, value)
        least = builder.fneg(most)
        return builder.select(builder.fcmp_ordered("<", value, least), least, value)

    return _LANES(_LANES, _LANES), generate


def _halves(builder: Any, value: Any, join: Any) -> Any:
    width = WIDTH
    while width > 1:
        width //= 2
        low, high = _chosen(range(width)), _chosen(range(width, 2 * width))
        value = join(builder.shuffle_vector(value, value, low), builder.shuffle_vector(value, value, high))
    return builder.extract_element(value, ir.Constant(_WORD, 0))


def _sum_of(context: Any, value: Any) -> Any:
    return float64(_LANES), lambda target, builder, signature, values: _halves(builder, values[0], builder.fadd)


def _sums_of(context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        def joined(left: Any, right: Any, low: Any, high: Any) -> Any:
            halves = (builder.shuffle_vector(left, right, _chosen(places)) for places in (low, high))
            return builder.fadd(*halves)

        first, second, third, fourth = values
        ab = joined(first, second, (0, 1, 4, 5), (2, 3, 6, 7))
        cd = joined(third, fourth, (0, 1, 4, 5), (2, 3, 6, 7))
        return joined(ab, cd, (0, 2, 4, 6), (1, 3, 5, 7))

    return _LANES(*[_LANES] * 4), generate


def _max_of(context: Any, value: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        def join(a: Any, b: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", b, a), b, a)

        return _halves(builder, values[0], join)

    return float64(_LANES), generate


# pointer(array): to its first element. A call that is handed one counts no reference, which costs more than a short row
# does. The array must be mentioned afterwards, or in the same loop: it is let go of after its last mention.
pointer: Any = intrinsic(_pointer)
lanes: Any = intrinsic(_lanes)  # lanes(array, index): four elements of a one-dimensional array, or from a pointer on
first_lanes: Any = intrinsic(_first_lanes)  # first_lanes(array, index, count): the first few; others 0, and not read
prefetch: Any = intrinsic(_prefetch)  # prefetch(array, index): ask for an element's cache line; past the end is allowed
keep: Any = intrinsic(_keep)  # keep(array, index, value): write them, rounded where elements are float32
keep_first: Any = intrinsic(_keep_first)  # keep_first(array, index, count, value): write the first few
# add_whole(integers, index, a, b, c, d): add all four, cut towards zero, exactly; of magnitude at most 2⁵¹
add_whole: Any = intrinsic(_add_whole)
whole: Any = intrinsic(_whole)  # whole(number): an integer, cut towards zero; of magnitude at most 2⁵¹
single: Any = intrinsic(_single)  # single(number): the same number, rounded to float32, sixteen times
singles: Any = intrinsic(
    _singles
)  # singles(array, index): sixteen elements, as float32; for keep, fused, plus, ... too
# turned(array, begins, index, count, out, place): out[place + 16 j + u] = array[begins[u] + index + j] as float32, for
# u and j below 16; 0 for j from `count` on, which is not read. begins (16,) and out are arrays.
turned: Any = intrinsic(_turned)
alike: Any = intrinsic(_alike)  # alike(number): the same number four times
fused: Any = intrinsic(_fused)  # fused(a, b, c): a · b + c, rounded once
plus: Any = _binary("fadd")
minus: Any = _binary("fsub")
times: Any = _binary("fmul")
over: Any = _binary("fdiv")
larger: Any = intrinsic(_larger)  # larger(a, b): max(a, |b|), and a where b is NaN
held: Any = intrinsic(_held)  # held(a, most): a within ±most; NaN stays
sum_of: Any = intrinsic(_sum_of)  # sum_of(a): (a0 + a2) + (a1 + a3)
sums_of: Any = intrinsic(_sums_of)  # sums_of(a, b, c, d): the four sums, each as sum_of has it
max_of: Any = intrinsic(_max_of)  # max_of(a): of the four

"""How loops are compiled, with one set of flags, on first use, kept on disk; and how one calls another by its address.

    >>> @cfunc(types.void(types.CPointer(types.float64), types.float64))
    ... def doubled(out, number):
    ...     out[0] = 2.0 * number
    >>> @njit
    ... def doubles(address, out):
    ...     run(address, (out, 21.0))
    >>> answer = np.zeros(1)
    >>> doubles(doubled.address, answer)
    >>> answer
    array([42.])

numba's own arguments for functions cost 30 microseconds each, whenever a loop is called: as much as the gradients of a
hundred small users.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import float64, intp, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import ArrayLike, NDArray

from quoron_privacy.kernels.prebuilt import cfunc, njit

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and fused. NaN and infinities keep their meaning: they are how a bad row is recognised.
SUMS: Any = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract"}}


def read_only(element: Any, dimensions: int) -> Any:
    """Numba type of a C-ordered array that the loop does not write; writable arrays are accepted too."""
    return types.Array(element, dimensions, "C", readonly=True)


def writable(element: Any, dimensions: int) -> Any:
    """Numba type of a C-ordered array that the loop fills."""
    return types.Array(element, dimensions, "C")


_NUMBERS: Any = types.CPointer(float64)  # type: ignore[no-untyped-call]
POINTWISE: Any = types.void(
    _NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, intp
)  # predictions, labels, parameters, out; how many


_unpacked: Any = cgutils.unpack_tuple


def _run(context: Any, address: Any, arguments: Any) -> Any:
    def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
        kinds = signature.args[1].types
        given = [
            target.make_array(kind)(target, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(kinds, _unpacked(builder, values[1], len(kinds)), strict=True)
        ]
        function = ir.FunctionType(ir.VoidType(), [value.type for value in given])
        builder.call(builder.inttoptr(values[0], function.as_pointer()), given)
        return target.get_dummy_value()

    return types.void(address, arguments), generate


# run(address, arguments): call what a `cfunc` has there; arrays are handed over as pointers to their first element.
run: Any = intrinsic(_run)


def helper(function: F) -> F:
    """Compile a function that compiled loops of the same file call.

    Of the same file, because numba's stored code is renewed when its own file changes, not when a called one does.
    """
    compiled: F = njit(**SUMS, forceinline=True)(function)  # a call that stays one counts references
    return compiled


class Pointwise:
    """A scalar function of (prediction, label, parameter), compiled over arrays; see `POINTWISE`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    @cached_property
    def compiled(self) -> Any:
        """The compiled loop, whose `address` is passed to user loops: a value, so a new loss recompiles none."""
        return cfunc(POINTWISE, cache=True, error_model="numpy")(self._function)

    def once(self, prediction: float, label: float, parameter: float) -> float:
        """Return one value, with nothing compiled."""
        out = [0.0]
        self._function([prediction], [label], [parameter], out, 1)
        return float(out[0])

    def __call__(self, predictions: ArrayLike, labels: ArrayLike, parameters: ArrayLike) -> NDArray[np.float64]:
        """Values of the function, elementwise, with the usual broadcasting."""
        arguments = np.broadcast_arrays(*(np.asarray(given, np.float64) for given in (predictions, labels, parameters)))
        first, second, third = (np.array(values, order="C").ravel() for values in arguments)
        out = np.empty(first.size)
        _apply(self.compiled.address, first, second, third, out)
        return out.reshape(arguments[0].shape)


@helper
def _apply(address: int, predictions: Any, labels: Any, parameters: Any, out: Any) -> None:
    run(address, (predictions, labels, parameters, out, out.size))

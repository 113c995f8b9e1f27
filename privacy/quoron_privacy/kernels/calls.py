"""Compiled functions as numbers: how a compiled loop is told at run time which other loop to call.

    >>> import numpy as np
    >>> from numba import cfunc, njit, types
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

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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

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

Compiled loops that come with an installation: nobody's first run waits for a compiler.

`python -m quoron.kernels --ship` compiles every loop for a level of processors, not for the one at hand, and puts what
comes out into `SHIPPED`. Every module with loops has its `njit` from here, so that numba looks there: what was compiled
of the same source by the same numba, for something that this processor can do, is copied into numba's own folder,
wherever that is. All else numba compiles, as it would have.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import cfunc as cfunc
from numba import float64, intp, types
from numba import njit as njit
from numba.core import cgutils
from numba.core.caching import CacheImpl, IndexDataCacheFile
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import ArrayLike, NDArray

_PYTHON = f"{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
SHIPPED = Path(__file__).parent / "ahead" / f"numba{numba.__version__}-python{_PYTHON}"
Target = tuple[str, str, str]  # triple, name and features of a processor, as numba calls them
# What a processor can do that carries out what was compiled for a level of x86-64, by the level's name.
LEVELS = {"x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")}


class ShippedKernels:
    """Numba's own choice of a folder for a function, into which what was shipped of the function is copied first."""

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """The locator that numba would have taken."""
        theirs: Any = CacheImpl._locator_classes
        found = (each.from_function(function, file) for each in theirs if each is not cls)
        locator = next((each for each in found if each is not None), None)
        if locator is not None:
            with suppress(OSError):  # then it is compiled
                _copy(function, locator)
        return locator


def base_name(function: Any, locator: Any) -> str:
    """What numba calls the files of a function."""
    name = function.__qualname__.replace("<", "").replace(">", "")
    return f"{function.__module__.rpartition('.')[2]}.{name}-{locator.get_disambiguator()}.py{_PYTHON}"


def fits(made: Target, processor: Target) -> bool:
    """Whether a processor carries out what was compiled for another, or for a level."""
    (triple, name, _), features = made, processor[2].split(",")
    able = triple == processor[0] and name in LEVELS and all(f"+{each}" in features for each in LEVELS[name])
    return able or made == processor


def _copy(function: Any, locator: Any) -> None:
    name, folder = base_name(function, locator), SHIPPED / function.__module__.rpartition(".")[0]
    if not (folder / f"{name}.nbi").exists():
        return
    stamp, processor = locator.get_source_stamp(), here()
    own: Any = IndexDataCacheFile(locator.get_cache_path(), name, stamp)
    shipped: Any = IndexDataCacheFile(str(folder), name, stamp)  # empty if of another source or another numba
    known, added = own._load_index(), {}
    for (signature, made, code), file in shipped._load_index().items():
        key = (signature, processor, code)
        if key not in known and fits(made, processor):
            data = (folder / file).read_bytes()
            added[key] = f"{name}.{sha256(data).hexdigest()[:32]}.nbc"  # what one installation called 1 another calls 2
            with own._open_for_write(own._data_path(added[key])) as copy:
                copy.write(data)
    if added:
        own._save_index(known | added)


@cache
def here() -> Target:
    """This processor, as numba compiles for it."""
    context: Any = cpu_target.target_context
    found: Target = context.codegen().magic_tuple()
    return found


# The one list of places that numba knows; where NUMBA_CACHE_LOCATOR_CLASSES names others it looks there alone.
_places: Any = CacheImpl._locator_classes
_places.insert(0, ShippedKernels)


F = TypeVar("F", bound=Callable[..., Any])

_FLAGS: Any = {"cache": True, "nogil": True, "error_model": "numpy"}
# Sums may be reordered and fused. NaN and infinities keep their meaning: they are how a bad row is recognised.
SUMS = _FLAGS | {"fastmath": {"reassoc", "contract"}}


def read_only(element: Any, dimensions: int) -> Any:
    """Numba type of a C-ordered array that the loop does not write; writable arrays are accepted too."""
    return types.Array(element, dimensions, "C", readonly=True)


def writable(element: Any, dimensions: int) -> Any:
    """Numba type of a C-ordered array that the loop fills."""
    return types.Array(element, dimensions, "C")


_NUMBERS: Any = types.CPointer(float64)
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

    def __init__(self, function: Callable[..., None], *, kept: bool = True) -> None:
        self._function, self._kept = function, kept

    @classmethod
    def of_scalar(cls, function: Callable[[float, float, float], float]) -> "Pointwise":
        """The loop over a function of one (prediction, label, parameter), which is compiled anew in every process."""

        def loop(predictions: Any, labels: Any, parameters: Any, out: Any, count: int) -> None:
            for i in range(count):
                out[i] = scalar(predictions[i], labels[i], parameters[i])

        scalar: Any = njit(**_FLAGS | {"cache": False})(function)
        return cls(loop, kept=False)

    @cached_property
    def compiled(self) -> Any:
        """The compiled loop, whose `address` is what user loops are told: a value, so a new loss recompiles none."""
        return cfunc(POINTWISE, cache=self._kept, error_model="numpy")(self._function)

    def once(self, prediction: float, label: float, parameter: float) -> float:
        """One value, with nothing compiled."""
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

"""Compiled loops that come with an installation: nobody's first run waits for a compiler.

`python -m quoron.kernels --ship` compiles every loop for a level of processors, not for the one at hand, and puts what
comes out into `PREBUILT`. Every module with loops has its `njit` from here, so that numba looks there. Code that was
compiled of the same source by the same numba, for a level that this processor has, is copied into numba's own folder,
wherever that is. All else numba compiles, as it would have.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numba
from llvmlite.binding import add_symbol  # type: ignore[import-untyped]
from numba import cfunc as cfunc
from numba import njit as njit
from numba.core.caching import Cache, CacheImpl, IndexDataCacheFile
from numba.core.registry import cpu_target

_PYTHON = f"{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
PREBUILT = Path(__file__).parent / "binaries" / f"numba{numba.__version__}-python{_PYTHON}"
Target = tuple[str, str, str]  # triple, name and features of a processor, as numba calls them
# What a processor can do that carries out what was compiled for a level of x86-64, by the level's name.
LEVELS = {"x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")}


class PrebuiltKernels:
    """Numba's own choice of a folder for a function, into which what was prebuilt of the function is copied first."""

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """Return the locator that numba would have taken."""
        theirs: Any = CacheImpl._locator_classes
        found = (locator.from_function(function, file) for locator in theirs if locator is not cls)
        locator = next((locator for locator in found if locator is not None), None)
        if locator is not None:
            with suppress(OSError):  # then it is compiled
                _copy(function, locator)
        return locator


def base_name(function: Any, locator: Any) -> str:
    """Return numba's name for the files of a function."""
    name = function.__qualname__.replace("<", "").replace(">", "")
    return f"{function.__module__.rpartition('.')[2]}.{name}-{locator.get_disambiguator()}.py{_PYTHON}"


def fits(made: Target, processor: Target) -> bool:
    """Return whether a processor carries out what was compiled for another, or for a level."""
    (triple, name, _), features = made, processor[2].split(",")
    able = triple == processor[0] and name in LEVELS and all(f"+{feature}" in features for feature in LEVELS[name])
    return able or made == processor


def _copy(function: Any, locator: Any) -> None:
    name, folder = base_name(function, locator), PREBUILT / function.__module__.rpartition(".")[0]
    if not (folder / f"{name}.nbi").exists():
        return
    stamp, processor = locator.get_source_stamp(), here()
    own: Any = IndexDataCacheFile(locator.get_cache_path(), name, stamp)
    prebuilt: Any = IndexDataCacheFile(str(folder), name, stamp)  # empty if of another source or another numba
    with _alone(own):
        known, added = own._load_index(), {}
        for (signature, made, code), file in prebuilt._load_index().items():
            key = (signature, processor, code)
            if key not in known and fits(made, processor):
                data = (folder / file).read_bytes()
                added[key] = f"{name}.{sha256(data).hexdigest()[:32]}.nbc"  # one installation's 1 is another's 2
                with own._open_for_write(own._data_path(added[key])) as copy:
                    copy.write(data)
        if added:
            own._save_index(known | added)


@contextmanager
def _alone(files: Any) -> Iterator[None]:
    """Lock a folder of numba's: numba reads an index, adds a signature, writes it back, and would lose another's."""
    folder = os.open(files._cache_path, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):  # also for a process that was forked meanwhile
            fcntl.flock(folder, fcntl.LOCK_UN)
        os.close(folder)


def _save(files: Any, key: Any, data: Any) -> None:
    with _alone(files):
        _numbers_save(files, key, data)


def _load(kept: Any, signature: Any, context: Any) -> Any:
    ours = kept._py_func.__module__.startswith("quoron")  # others' code may need more, such as the seed of their hashes
    found = _code(kept, signature, context) if ours else None
    return _numbers_load(kept, signature, context) if found is None else found


@cache
def here() -> Target:
    """This processor, as numba compiles for it."""
    context: Any = cpu_target.target_context
    found: Target = context.codegen().magic_tuple()
    return found


# The one list of places that numba knows; where NUMBA_CACHE_LOCATOR_CLASSES names others it looks there alone.
_places: Any = CacheImpl._locator_classes
_places.insert(0, PrebuiltKernels)
_numbers_save: Any = IndexDataCacheFile.save
setattr(IndexDataCacheFile, "save", _save)  # noqa: B010 - numba has no place for it
# Before it loads code numba declares all that a compiler knows, for a tenth of a second. Code needs its runtime alone.
_numbers_load: Any = Cache.load_overload
with suppress(ImportError, AttributeError):  # a numba that keeps it elsewhere loads as it always did
    from numba.core.runtime._nrt_python import c_helpers

    for _name, _address in c_helpers.items():
        add_symbol(_name if _name.startswith("_") else f"NRT_{_name}", _address)
    _code: Any = Cache._load_overload
    setattr(Cache, "load_overload", _load)  # noqa: B010

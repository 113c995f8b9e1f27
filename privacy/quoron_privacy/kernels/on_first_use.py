"""How something is done apart from what is done: a module that is imported when one of its names is first asked for.

    >>> loops = OnFirstUse("math")
    >>> loops.isqrt(17)
    4

A statement stands in NAME.py and its loops in NAME_loops.py: who reads or plans a mechanism needs no compiler. So do
the samplers behind a stream, and factorisations behind what all of them say of themselves.
"""

from importlib import import_module
from typing import Any


class OnFirstUse:
    """The names of a module; each is looked up once. Threads may ask at the same time."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._module), name)
        setattr(self, name, found)
        return found

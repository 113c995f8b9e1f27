"""A module that is imported when one of its names is first used.

    >>> loops = OnFirstUse("math")
    >>> loops.isqrt(17)
    4

For what few need of those who import a module: compiled loops (NAME_loops.py beside NAME.py), a file's format, a second
server, each with its reason. It is no way out of a ring: `tests/test_layout.py` counts what is imported so.
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

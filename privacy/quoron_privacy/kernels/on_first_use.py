"""Modules that are imported when one of their names is first used.

    >>> loops = OnFirstUse("math")
    >>> loops.isqrt(17)
    4

For what few need of those who import a module: compiled loops (NAME_loops.py beside NAME.py), a file's format, a second
server, each with its reason. It is no way out of a ring: `tests/test_layout.py` counts what is imported so.
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


class OnFirstUse:
    """The names of a module; each is looked up once. Threads may ask at the same time."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._module), name)
        setattr(self, name, found)
        return found


def public_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names stand in __init__.pyi, each with its home.

    A module is imported when one of its names is first used.
    """
    tree = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    homes = {
        alias.name: f"{package}.{node.module}" if node.level else str(node.module)
        for node in imports
        for alias in node.names
    }

    def look_up(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return look_up, lambda: list(homes), list(homes)

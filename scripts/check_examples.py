"""Run every `>>>` example: in the docs, the README and all modules."""

import doctest
import importlib
import pkgutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FRAMEWORKS = ("quoron.torch", "quoron.jax")  # `scripts/test-models` has them
PACKAGES = ("quoron_protos", "quoron_privacy", "quoron_client", "quoron_server", "quoron")
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def modules() -> list[str]:
    """Names of all modules but `__main__`."""
    names = []
    for package in PACKAGES:
        found = importlib.import_module(package)
        inner = pkgutil.walk_packages(found.__path__, f"{package}.")
        names += [package, *(each.name for each in inner if not each.name.endswith("__main__"))]
    return [name for name in names if not name.startswith(FRAMEWORKS)]


def main() -> int:
    """The number of pages and modules with a failing example."""
    ran = failed = 0
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    results = [doctest.testfile(str(page), module_relative=False, optionflags=FLAGS) for page in pages]
    imported = [importlib.import_module(name) for name in modules()]  # all first: some bring others on first use
    results += [doctest.testmod(module, optionflags=FLAGS) for module in imported]
    for result in results:
        ran, failed = ran + result.attempted, failed + (result.failed > 0)
    print(f"{ran} examples in {len(results)} pages and modules, {failed} with failures")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())

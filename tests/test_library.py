"""docs/library.md: five tasks on a user's own arrays, in ten lines at most, from public names alone.

That the lines run and give what they say is checked by scripts/check_examples.py.
"""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import quoron_privacy
from quoron_privacy import mechanisms as loops

PAGE = (Path(__file__).parent.parent / "docs/library.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
TASKS = {title: text for title, _, text in (section.partition("\n") for section in SECTIONS[1:])}
IN_LOOPS = ("OutlierMean", "PrefixNoise", "TruncatedMean")
OURS = ("quoron", "quoron_privacy", "quoron_server", "quoron_client")


def lines(text: str) -> list[str]:
    """The code of the examples."""
    return [line.strip()[4:] for line in text.splitlines() if re.match(r" {4}(>>>|\.\.\.) ", line)]


def test_the_five_tasks_are_there() -> None:
    assert list(TASKS) == [
        "A private mean",
        "A private mean without outlier users",
        "An account, and its inverse",
        "Noise for a stream of gradients",
        "One round of any algorithm",
        "Check our ε with your own accountant",
    ]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_takes_ten_lines_at_most(task: str) -> None:
    assert 1 <= len(lines(TASKS[task])) <= 10


@pytest.mark.parametrize("task", TASKS)
def test_a_task_uses_public_names_alone(task: str) -> None:
    for node in ast.walk(ast.parse("\n".join(lines(TASKS[task])))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
            if node.module == "quoron_privacy.accounts":
                assert {each.name for each in node.names} <= {"gdp", "pair", "subsampling", "lifetime"}
            else:
                assert node.module in OURS, f"{task} reaches into {node.module}"
                assert {each.name for each in node.names} <= set(importlib.import_module(node.module).__all__)


def mechanisms() -> Iterator[tuple[str, type]]:
    """Classes that release or decide something, wherever they stand."""
    for module in pkgutil.walk_packages(quoron_privacy.__path__, "quoron_privacy."):
        for name, found in vars(importlib.import_module(module.name)).items():
            own = inspect.isclass(found) and found.__module__ == module.name and not name.startswith("_")
            if own and any(callable(getattr(found, each, None)) for each in ("release", "decide")):
                yield name, found


def test_every_mechanism_has_a_public_name() -> None:
    """What a plan's releases are made of can be taken to arrays of one's own, from `quoron_privacy` alone.

    Three have a mechanism of a loop in their place, which has the same name.
    """
    found = {name: getattr(loops, name) if name in IN_LOOPS else each for name, each in mechanisms()}
    assert {"GaussianNoise", "LaplaceGate", "NormCountMean"} <= set(found)
    assert {name for name, each in found.items() if getattr(quoron_privacy, name, None) is not each} == set()

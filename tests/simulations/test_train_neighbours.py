"""Whole runs of every algorithm on twenty neighbours: output, files, sizes and status are equal but for releases.

What is compared, and how answers are held alike, is in test_train_leaks.py, whose broken twins must be caught.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from contracts.scenes import SMALL
from cover import by_default
from quoron_server.algorithms import ALGORITHMS
from simulations.test_train_leaks import MORE, differing, fixed, on_the_first_table

__all__ = ["differing", "fixed", "on_the_first_table"]  # fixtures

# What each algorithm needs of a table of 2,400 users with three numbers to be feasible, and short.
MANY = 2400
LARGE = """
[population]
kind = "table"
items_per_user = 4
path = "people.csv"
user = "who"
label = "ill"
columns.numeric = { age = [0, 100], dose = [0, 5] }
[domain]
radius = 2.0
[privacy]
epsilon = 8.0
delta = 1e-3
allow_large_delta = true
"""
OPTIONS: dict[str, dict[str, Any]] = {name: SMALL.get(name, {}) for name in ALGORITHMS if name != "sgd"}


def rules_for(name: str) -> str:
    rules = LARGE
    if name == "one-round-least-squares":
        rules = rules.replace('label = "ill"', 'label = { column = "ill", range = [-1, 1] }')
    if name == "median-sgd":
        rules = rules.replace("radius = 2.0", 'kind = "box"\nradius = 1.0\n[loss]\nactive_features = 1')
    if ALGORITHMS[name].guarantees.adjacency == ("zero-out",):
        rules = rules.replace("delta = 1e-3", 'delta = 1e-3\nadjacency = "zero-out"') + f"[train]\nusers = {MANY + 2}\n"
    options = "".join(f"{key} = {json.dumps(value)}\n" for key, value in OPTIONS[name].items())
    return f'{rules}[algorithm]\nname = "{name}"\n[algorithm.options]\n{options}'


FEW = ("tracking-srgd", "outlier-iterates", "local-model")  # all else they have in common with the others


@pytest.mark.parametrize("name", by_default(OPTIONS, FEW))
@pytest.mark.parametrize("neighbour", by_default(MORE, ("nothing at all", "ten times the rows")))
def test_whole_runs_of_every_algorithm_differ_in_nothing_but_releases(
    name: str, neighbour: str, differing: Callable[..., list[str]]
) -> None:
    """Output, files, sizes and status of twenty neighbours: with `-m slow`, each algorithm by each of them."""
    assert differing(neighbour, f"file of {name}", rules=rules_for(name), users=MANY) == []

"""Plans, runs, models, messages, errors, tables, databases and folders are as they were: `scripts/regold` if not."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cover import EVERY_QUESTION, by_default
from golden import recording

PARTS = [(name, part) for name, (parts, _) in recording.RECORDERS.items() for part in parts]
# Of those that take long and are recorded by others in the main: `runs` has every algorithm, `plans` every constraint.
ALIKE = {
    "releases": {
        "tune",
        "train rows",
        "train a rare label",
        "train undeclared",
        "train undeclared with people held out",
        "evaluate",
    },
    "commands": {"classes", "predict"},
    "judged": {"sampled lottery"},
    "verdicts": {"outlier-gd"},
    "mechanisms": {f"{form}, sampled{how}" for form in ("pair", "lattice") for how in (" often", ", there or not")}
    | {"lattice, choices", "pair, gaussian and sampled", "searches"},
    "models": {*recording.RECORDERS["models"][0]} - {*EVERY_QUESTION, "dp-sgd-wor"},
    "constants": {"two classes of two outputs", "a tenth may be hostile", "a rare class", "a pull"}
    | {"a near optimum", "ten classes", "known gradients"},
    "plans": {"linear", "one item from each user", "five hundred users of one item, epsilon 8", "mean-sgd as printed"}
    | {"a million users, epsilon 0.4", "a minimum cohort", "local-model as printed", "as printed, few users"}
    | {"least squares", "ten silos", "nine in ten answer"},
}


@cache
def golden_of(name: str) -> dict[str, Any]:
    return recording.read(name)


@pytest.mark.parametrize(
    ("name", "part"), by_default(PARTS, [(name, part) for name, part in PARTS if part not in ALIKE.get(name, ())])
)
def test_results_are_as_they_were(name: str, part: str, tmp_path: Path) -> None:
    golden = {title: value for title, value in golden_of(name).items() if recording.part_of(name, title) == part}
    found = dict(recording.RECORDERS[name][1](tmp_path, part))
    changed = list(recording.differences(golden, found, tolerance=recording.ROUNDED.get(name, recording.TOLERANCE)))
    assert not changed, "\n".join(["scripts/regold writes what is meant:", *changed[:20]])


def test_every_result_belongs_to_a_part_that_is_recorded_again() -> None:
    parts = {(name, recording.part_of(name, title)) for name in recording.RECORDERS for title in golden_of(name)}
    assert parts == set(PARTS)


def test_a_number_that_moves_by_a_millionth_is_seen() -> None:
    golden = {"plan": {"scales": [0.5, 1.0], "rounds": 3}}
    assert list(recording.differences(golden, {"plan": {"scales": [0.5, 1.0 + 1e-12], "rounds": 3}})) == []
    moved = {"plan": {"scales": [0.5, 1.000001], "rounds": 4}}
    assert list(recording.differences(golden, moved)) == [
        ".plan.scales[1]: 1.0, now 1.000001",
        ".plan.rounds: 3, now 4",
    ]
    assert list(recording.differences(golden, {"plan": {"scales": [0.5]}})) == [
        ".plan.scales: [0.5, 1.0], now [0.5]",
        ".plan.rounds: is gone",
    ]

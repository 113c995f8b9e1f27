"""Whole runs that buy, look, whiten and measure, replayed: of a neighbour nothing differs but what noise hides.

test_train_leaks holds answers alike, so it cannot see what is made of them. Here they are each table's own, clipped and
summed as they are, and only what is *released* is held: every Gaussian release of the second run is that of the first.
Then output, warnings, log lines, statuses, files and their sizes have to be the same to the byte, and no release may
have moved by more than its sensitivity. Names are released among those that somebody holds, so they are held as names.
Broken twins tell something that is no release.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cover import by_default
from quoron.training import run
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.histograms.private_bounds import EstimatedBounds
from quoron_server.algorithms.whitened.method import WhitenedTracking
from simulations.test_train_leaks import MORE, hold_chance, honest, left_behind

USERS = 300
UNDECLARED = """
[population]
kind = "table"
path = "people.csv"
user = "who"
label = "ill"
[privacy]
epsilon = 8.0
delta = 1e-5
[train]
holdout = 0.3
"""
ZERO_OUT = UNDECLARED.replace("1e-5", '1e-5\nadjacency = "zero-out"').replace(
    "[train]", f"[train]\nusers = {USERS + 9}"
)
CLASSES = UNDECLARED.replace(
    '"ill"', '{ column = "ward", classes = ["north", "south"] }\ncolumns.numeric = { age = [0, 100] }'
)
# Under these the same secret draw holds out other users, or others' rows add up in another order. Under zero-out none
# of all leaves a user out.
OTHERS_TOO = ("another name", "sorted first")
SOME = ("ten times the rows", "another name")


class Tape:
    """What was released, in the order of the first run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[tuple[Any, Any, Any]] = []  # what is public of it, what it is of, what was released
        self.at: int | None = None  # of a replay
        self.moved = 0.0  # in sensitivities, at most
        release, names = GaussianNoise.release, EstimatedBounds.release_names

        def released(noise: GaussianNoise, value: Any, stream: Any) -> Any:
            return self.told((noise, np.shape(value)), value, lambda: release(noise, value, stream).copy()).copy()

        def named(paid: EstimatedBounds, counts: Any, stream: Any, **more: Any) -> Any:
            with monkeypatch.context() as plain:
                plain.setattr(GaussianNoise, "release", release)
                return self.told((paid, len(counts)), None, lambda: names(paid, counts, stream, **more))

        monkeypatch.setattr(GaussianNoise, "release", released)
        monkeypatch.setattr(EstimatedBounds, "release_names", named)

    def told(self, public: Any, value: Any, draw: Callable[[], Any]) -> Any:
        if self.at is None:
            self.held.append((public, None if value is None else value.copy(), draw()))
            return self.held[-1][-1]
        before, first, released = self.held[self.at]
        assert before == public, "another release, or another noise"
        if value is not None:
            self.moved = max(self.moved, float(np.linalg.norm(value - first)) / public[0].sensitivity)
        self.at += 1
        return released


@pytest.fixture(scope="module")
def tapes() -> dict[str, Any]:
    """The first runs, by rules: once for all neighbours."""
    return {}


@pytest.fixture
def differing(tapes, tmp_path, capsys, caplog, monkeypatch) -> Callable[..., list[str]]:
    """Names of what differs between a run on the first table and one on its neighbour, released alike."""
    hold_chance(monkeypatch)
    tape = Tape(monkeypatch)

    def compare(neighbour: str, rules: str = UNDECLARED, *, twin: bool = False) -> list[str]:
        rows = honest(USERS)
        if twin or rules not in tapes:
            first = left_behind(tmp_path / "a", rows, capsys, caplog, monkeypatch, rules=rules)
            assert first["status"] == 0, first["err"]
            if not twin:
                tapes[rules] = first, tape.held
        else:
            first, tape.held = tapes[rules]
        tape.at, tape.moved = 0, 0.0
        second = left_behind(tmp_path / "b", MORE[neighbour](rows), capsys, caplog, monkeypatch, rules=rules)
        assert tape.at == len(tape.held)
        if rules != ZERO_OUT and neighbour not in OTHERS_TOO:
            assert 0.1 < tape.moved <= 1
        return [name for name in {**first, **second} if first.get(name) != second.get(name)]

    return compare


@pytest.mark.parametrize("neighbour", by_default(MORE, SOME))
@pytest.mark.parametrize(
    "rules", by_default({"estimates": UNDECLARED, "zero-out": ZERO_OUT, "classes": CLASSES}, ("estimates",))
)
def test_all_that_a_run_shows_and_keeps_is_a_function_of_its_releases(rules, neighbour, differing):
    assert differing(neighbour, {"estimates": UNDECLARED, "zero-out": ZERO_OUT, "classes": CLASSES}[rules]) == []


@pytest.mark.slow
def test_a_round_that_tells_how_long_answers_are_is_caught(differing, monkeypatch):
    step = WhitenedTracking.update

    def telling(self: Any, state: Any, answers: Any, noise: Any) -> Any:
        update = step(self, state, answers, noise)
        return replace(update, public={**update.public, "radius": float(np.abs(answers.values).sum())})

    monkeypatch.setattr(WhitenedTracking, "update", telling)
    assert "run/rounds.parquet" in differing("other values", twin=True)


def test_an_evaluation_that_tells_how_many_rows_it_read_is_caught(differing, monkeypatch):
    ending = run.evaluated.of_model

    def counting(prepared: Any, apart: Any) -> Any:
        inner, items = ending(prepared, apart), prepared.setup.rows.items

        def ended(weights: Any, number: int) -> Any:
            entries, told = inner.release(weights, number)
            return entries, {**told, "rows": int(items.counts.sum())}

        return replace(inner, release=ended)

    monkeypatch.setattr(run.evaluated, "of_model", counting)
    assert "run/ledger.sqlite" in differing("ten times the rows", twin=True)

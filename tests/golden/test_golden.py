"""Plans, runs, models, messages, errors, tables, databases and folders are as they were: `scripts/regold` if not."""

from pathlib import Path

import pytest

from golden import recording


@pytest.mark.parametrize("name", recording.RECORDERS)
def test_results_are_as_they_were(name: str, tmp_path: Path) -> None:
    golden, found = recording.read(name), dict(recording.RECORDERS[name](tmp_path))
    changed = list(recording.differences(golden, found))
    assert not changed, "\n".join(["scripts/regold writes what is meant:", *changed[:20]])


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

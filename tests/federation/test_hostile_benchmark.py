"""`benchmarks/hostile.py` measures all that its table says in clean phases, rounds of its run among it."""

import importlib
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

others = sys.modules.pop("federation", None)  # these tests' folder, which has the name of a benchmark
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
try:
    hostile: Any = importlib.import_module("hostile")
finally:
    sys.path.pop(0)
    sys.modules.pop("federation", None)
    if others is not None:
        sys.modules["federation"] = others


@pytest.mark.programs
def test_clean_phases_have_rounds_and_calls_of_every_kind(tmp_path: Path) -> None:
    hostile.prepare(tmp_path)
    found = hostile.measured("bogus tokens, control", tmp_path, 1, 3.0)
    for kind in hostile.KINDS:
        assert math.isfinite(statistics.median(found["clean"].took[kind])), kind


def test_a_table_without_a_clean_round_is_refused_by_name() -> None:
    found = {kind: hostile.Phases() for kind in ("clean", "attack", "sink")}
    for kind in ("enrol", "message", "connect"):
        found["clean"].took[kind].append(0.01)
    with pytest.raises(SystemExit, match="Expected calls of each kind in clean phases, got none of round"):
        hostile.row("bogus tokens, control", found)

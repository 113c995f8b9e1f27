"""What `benchmarks/default.py` measures is what its table says: tables, the oracle, cells, and the table itself."""

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
try:
    cells: Any = importlib.import_module("cells")
    default: Any = importlib.import_module("default")
    default_summary: Any = importlib.import_module("default_summary")
    shapes: Any = importlib.import_module("shapes")
finally:
    sys.path.pop(0)


def test_the_slopes_behind_the_oracle_are_those_of_the_gradients():
    people = shapes.table("unequal", 60, 4)
    point, users, nudge = np.array([0.3, -0.2, 0.5, 0.1]), np.arange(60), 1e-6
    gradients, rows, bends, owners = cells._curved(people, point, users)
    hessians = np.zeros((60, 4, 4))
    np.add.at(hessians, owners, bends[:, None, None] * rows[:, :, None] * rows[:, None, :])
    for k, unit in enumerate(np.eye(4)):
        moved = cells._curved(people, point + nudge * unit, users)[0]
        assert (moved - gradients) / nudge == pytest.approx(hessians[:, k], abs=1e-5)


def test_the_oracle_is_half_the_noise_where_clipping_costs_nothing_and_at_most_the_start():
    """Of unit rows with labels ±1 drawn alike, all whitened gradients at the optimum are nearly of one length."""
    people = shapes.table("plain", 400, 3)
    start = cells.start_excess(people)
    found = [cells.oracle(people, epsilon) for epsilon in (0.01, 1.0, 8.0)]
    assert found[0] == start
    assert start > found[1] > found[2] > 0
    mus = [cells.mu_for(epsilon, cells.DELTA) for epsilon in (50.0, 100.0)]
    at_50, at_100 = cells.oracle(people, 50.0), cells.oracle(people, 100.0)
    assert at_50 / at_100 == pytest.approx((mus[1] / mus[0]) ** 2, rel=0.5)  # noise rules, and falls with μ²

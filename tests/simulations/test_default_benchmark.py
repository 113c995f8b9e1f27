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


def test_a_cell_says_what_auto_leaves_and_repeats_no_run():
    lines = cells.cell("plain", 400, 3, 4.0, algorithms=("auto", "whitened-tracking"), seeds=1)
    auto, named = lines
    assert (auto["asked"], named["asked"]) == ("auto", "whitened-tracking")
    assert {key: value for key, value in auto.items() if key != "asked"} == {
        key: value for key, value in named.items() if key != "asked"
    }
    assert 0 < auto["left"][0] < 100
    assert auto["nu"] == pytest.approx(cells.nu(400, 3, 4.0), rel=0.01)
    (refused,) = cells.cell("plain", 400, 3, 0.01, algorithms=("auto",), seeds=1)
    assert "left" not in refused
    assert "n=400" in refused["refused"]


def test_what_a_file_has_lines_of_is_not_carried_out_again():
    job = default.Job("grid", "plain", 3, (400,), (4.0,), ("auto", "dp-sgd-wor"), seeds=1, most_gradients=1)
    found = list(default.carried_out(job))
    assert [("left" in each, "left out" in each) for each in found] == [(True, False), (False, True)]
    assert list(default.carried_out(job, frozenset(map(default.name_of, found)))) == []
    assert [each["asked"] for each in default.carried_out(job, frozenset([default.name_of(found[0])]))] == [
        "dp-sgd-wor"
    ]
    assert "dp-sgd-wor" not in default_summary.summary(found)


def line(asked: str, left: list[float], **more: Any) -> dict[str, Any]:
    about = {"part": "grid", "shape": "plain", "users": 3_000, "columns": 5, "epsilon": 1.0, "nu": 300.0}
    return about | {"asked": asked, "left": left, "oracle": 1.0, "auc": [0.7], "best auc": 0.71, "forecast": 8.0} | more


def test_a_fall_is_between_runs_of_as_many_seeds_where_both_ends_were_measured():
    grid = [line("auto", [2.0])]
    high = [line("auto", [8.0], part="epsilon"), line("auto", [2.0], part="epsilon", epsilon=8.0)]
    assert "4 times: plain" in default_summary.summary([*grid, *high])
    assert "1 times: plain" in default_summary.summary([*grid, high[1]])


def test_the_table_counts_what_was_asked_for():
    lines = [
        *(line("auto", [2.0, 4.0]), line("recentred-sgd", [1.0])),
        *(line("auto", [6.0], users=1_000), line("recentred-sgd", [5.0], users=1_000)),
        *(line("auto", [100.0], columns=60, forecast=400.0), line("recentred-sgd", [90.0], columns=60)),
        line("auto", [1.4], epsilon=8.0, part="epsilon"),
    ]
    lines += [
        {"part": "growth", "shape": "plain", "columns": 5, "users": users, "auc": auc}
        for users, auc in ((5_000, [0.8, 0.81, 0.8]), (10_000, [0.79, 0.80, 0.789]), (20_000, [0.8, 0.8, 0.8]))
    ]
    table = default_summary.summary(lines)
    assert "| grid: cells of `auto` within 1.5 times the best | 95 % | 67 % of 3 |" in table
    assert "3 times: plain, 3,000 users, 5 columns, ε = 1" in table
    assert "| grid: cells within 5 times the oracle |  | 50 % of 2 |" in table
    assert "| all | 100 % of 1 |" in table  # 1.4 is within 1.5 times the oracle
    assert "1 of 3 steps; at most 0.0103" in table
    assert "| runs that held them | 90 % | 100 % of 3 |" in table
    assert "| 80 % | 67 % |" in table


def test_there_are_thirty_large_cells_of_known_shapes():
    names = default.LARGE
    assert len(set(names)) == len(names) >= 30
    assert {shape for shape, *_ in names} <= {*shapes.SHAPES, "family"}
    parts = {job.part for job in default.jobs([*default.PARTS, "large"], default.arguments().parse_args([]))}
    assert parts == {*default.PARTS, "large"}

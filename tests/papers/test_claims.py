"""The claims of the papers as experiments: the whole command in miniature, its slopes, its verdicts, its page."""

import importlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    claims: Any = importlib.import_module("claims")
    benchmark: Any = importlib.import_module("paper_claims")
finally:
    sys.path.pop(0)

BASE = next(experiment for experiment in benchmark.EXPERIMENTS if experiment.name == "L1")
BASE = replace(BASE, rows=BASE.rows[:1])


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `python benchmarks/paper_claims.py --quick` writes."""
    out = tmp_path_factory.mktemp("claims")
    assert benchmark.main(["--quick", "--out", str(out), "--processes", "1"]) == 0
    return out


@pytest.mark.slow
def test_the_miniature_measures_every_paper_and_states_a_verdict_for_every_claim(quick):
    page = (quick / "docs/papers/claims.md").read_text(encoding="utf-8")
    opening = page.split("## All claims")[1].split("\n## ")[0].strip().splitlines()[2:]
    names = [line.split(":")[0].removeprefix("| ") for line in opening]
    assert names == [each.name for each in benchmark.EXPERIMENTS if benchmark.small(each) is not None]
    assert {name[0] for name in names} == {"G", "L", "B", "C"}
    verdicts = ("confirmed", "not confirmed", "outside its regime", "not measured")
    assert all(any(f"**{verdict}**" in line for verdict in verdicts) for line in opening)
    assert "`python benchmarks/paper_claims.py --quick` made this page" in page
    for paper in benchmark.PAPERS:
        picture = (quick / f"docs/images/papers-{paper}.svg").read_text(encoding="utf-8")
        assert picture.count("<polyline") >= 2  # measured and claimed


@pytest.mark.slow
def test_gradients_of_one_pass_grow_as_n_and_the_filter_removes_what_is_an_outlier(quick):
    lines = claims.Lines(quick / "docs/papers/claims.jsonl")
    small = {each.name: benchmark.small(each) for each in benchmark.EXPERIMENTS}
    (gradients,) = claims.analyse(small["G3"], lines, 2)
    assert gradients.slope == pytest.approx(1.0, abs=0.01)
    assert gradients.verdict == "confirmed"
    (removed,) = claims.analyse(small["G4"], lines, 2)
    for point in removed.points:
        assert point.value == pytest.approx(point.sizes.share, rel=1.0)  # 18 outliers at least


@pytest.mark.slow
def test_an_interrupted_call_goes_on_where_it_stopped(quick, tmp_path, monkeypatch):
    path = tmp_path / "docs/papers/claims.jsonl"
    path.parent.mkdir(parents=True)
    whole = (quick / "docs/papers/claims.jsonl").read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*whole[:-1], whole[-1][:40]]), encoding="utf-8")
    asked = []

    def simulated(preset: str, settings: tuple[str, ...], seed: int) -> dict[str, Any]:
        asked.append((preset, list(settings), seed))
        return {key: value for key, value in json.loads(whole[-1]).items() if key not in ("preset", "settings", "seed")}

    monkeypatch.setattr(claims, "simulated", simulated)
    assert benchmark.main(["--quick", "--out", str(tmp_path), "--processes", "1"]) == 0
    last = json.loads(whole[-1])
    assert asked == [(last["preset"], last["settings"], last["seed"])]
    for name in ("docs/papers/claims.md", *(f"docs/images/papers-{paper}.svg" for paper in benchmark.PAPERS)):
        assert (tmp_path / name).read_bytes() == (quick / name).read_bytes()


def lines_of(tmp_path: Path, experiment: Any, seeds: int, excess: Any) -> Any:
    """Lines of made-up runs: `excess` of sizes, place of the signal or rounds among the variants, and seed."""
    path = tmp_path / "claims.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for row in experiment.rows:
            for sizes in experiment.points:
                task = claims.task_of(experiment, row, sizes)
                for value, settings in task.variants():
                    for seed in range(1, seeds + 1):
                        figures = {"excess": excess(sizes, value, seed), "start": 1.0, "rounds": 1, "failed": False}
                        key = {"preset": task.preset, "settings": settings, "seed": seed}
                        file.write(json.dumps({**key, **figures, "gradients": value * sizes.users}) + "\n")
    return claims.Lines(path)


def test_the_slope_of_a_power_is_its_exponent_with_the_error_of_its_seeds(tmp_path):
    def excess(sizes: Any, value: float, seed: int) -> float:
        peak = math.exp(-((value - 3) ** 2))  # the worst signal is the eighth multiple
        return peak * sizes.users**-0.7 * (1 + 0.1 * np.random.default_rng([sizes.users, seed]).uniform(-1, 1))

    lines = lines_of(tmp_path, BASE, 8, excess)
    (found,) = claims.analyse(BASE, lines, 8)
    assert found.claimed == pytest.approx(-0.5)
    assert found.slope == pytest.approx(-0.7, abs=0.05)
    logs = np.log([sizes.users for sizes in BASE.points])
    expected = 0.1 / math.sqrt(3 * 8) / math.sqrt(np.sum((logs - logs.mean()) ** 2))
    assert 0.4 * expected < found.error < 1.6 * expected
    assert found.verdict == "confirmed"


@pytest.mark.parametrize(
    ("slope", "error", "points", "inside", "exact", "verdict"),
    [
        (-0.45, 0.02, 4, 4, False, "confirmed"),
        (-0.9, 0.02, 4, 0, False, "confirmed"),
        (-0.9, 0.02, 4, 4, True, "not confirmed"),
        (-0.03, 0.02, 4, 4, False, "not confirmed"),
        (-0.03, 0.02, 4, 2, False, "outside its regime"),
        (-0.5, 0.02, 2, 2, False, "not measured"),
        (-0.5, 0.3, 4, 4, False, "not measured"),
        (-0.5, math.nan, 4, 4, False, "not measured"),
    ],
)
def test_a_verdict_says_whether_the_slope_is_above_the_claim_and_whether_the_theorem_applies(
    slope, error, points, inside, exact, verdict
):
    assert claims.judged(slope, error, -0.5, points, inside, exact=exact) == verdict


def test_a_claim_without_runs_is_not_measured_and_a_refused_plan_is_quoted(tmp_path):
    path = tmp_path / "claims.jsonl"
    (found,) = claims.analyse(BASE, claims.Lines(path), 8)
    assert found.verdict == "not measured"
    assert "not run" in "\n".join(claims.details(BASE, [found]))
    task = claims.task_of(BASE, BASE.rows[0], BASE.points[0])
    record = {"preset": task.preset, "settings": task.variants()[0][1], "seed": 1, "refused": "needs n >= 9"}
    path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    (found,) = claims.analyse(BASE, claims.Lines(path), 8)
    assert "* No figure: outlier-iterates, n = 2,000: needs n >= 9" in claims.details(BASE, [found])


def test_the_page_is_that_of_the_runs_beside_it(tmp_path):
    runs = ROOT / "docs/papers/claims.jsonl"
    (tmp_path / "docs/papers").mkdir(parents=True)
    (tmp_path / "docs/papers/claims.jsonl").write_bytes(runs.read_bytes())
    assert benchmark.main(["--render", "--out", str(tmp_path)]) == 0
    for name in ("docs/papers/claims.md", *(f"docs/images/papers-{paper}.svg" for paper in benchmark.PAPERS)):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes(), (
            f"run benchmarks/paper_claims.py --render: {name}"
        )

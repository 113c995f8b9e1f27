"""The runbook, line by line: each fault raises its one alarm within two rounds, and what the line says clears it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import gen_faults
import pytest
from gen_faults import BY_NAME, FAULTS

from federation.crowd import carried_out
from federation.faults import rehearsed
from federation.rehearsal import REHEARSALS, ROUND, Scene, Shot
from quoron_server.service import metrics

ROOT = Path(__file__).parents[2]
STEP, BEFORE, LATER = 15, 120, 900  # seconds between two scrapes, before the fault, and until all is forgotten
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
SUFFIX = 'instance="hub:9464",job="quoron"'


def test_every_fault_has_a_dry_run_a_rule_and_a_row_of_the_runbook() -> None:
    assert set(BY_NAME) == set(REHEARSALS)
    assert len(BY_NAME) == len(FAULTS) >= 15
    assert gen_faults.rules() == metrics.ALARMS.read_text(encoding="utf-8")
    assert gen_faults.page() == gen_faults.PAGE.read_text(encoding="utf-8")


def test_every_rule_reads_metrics_that_the_page_lists() -> None:
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8").partition("\n## Metrics")[2]
    known = set(re.findall(r"`(?:quoron)?_?(\w+)", page))
    for fault in FAULTS:
        for name in (name.removeprefix("quoron_") for name in fault.metrics):
            assert name in known or name.removeprefix("run_") in known, name


def series(scene: Scene) -> dict[str, str]:
    """Values of each series as promtool takes them, one at every scrape."""
    times = range(0, BEFORE + LATER + STEP, STEP)
    names = {name for shot in (scene.well, scene.mended, *(each for _, each in scene.faulty)) for name in shot}

    def at(time: float) -> Shot:
        if time < BEFORE:
            return scene.well
        if time > BEFORE + 2 * ROUND:
            return scene.mended
        return [shot for after, shot in scene.faulty if after <= time - BEFORE][-1]

    def value(name: str, time: int) -> str:
        shot = at(time)
        if name not in shot:
            return "stale"
        if name == "quoron_start_time_seconds":
            return str(-86400)  # it has been there for long
        return repr(shot[name] + (time if name == "quoron_clock_seconds" else 0.0))

    return {labelled(name): " ".join(value(name, time) for time in times) for name in names}


def labelled(name: str) -> str:
    return f"{name[:-1]},{SUFFIX}}}" if name.endswith("}") else f"{name}{{{SUFFIX}}}"


def firing(alarms: set[str], at: float) -> dict[str, Any]:
    """That exactly these alarms are raised at a time."""
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alarms)]
    expr = 'count by (alertname) (count by (alertname, instance) (ALERTS{alertstate="firing"}))'
    return {"expr": expr, "eval_time": f"{round(at)}s", "exp_samples": samples}


def unit_test(name: str, given: dict[str, str], expected: list[dict[str, Any]]) -> dict[str, Any]:
    inputs = [{"series": each, "values": values} for each, values in sorted(given.items())]
    return {"name": name, "interval": f"{STEP}s", "input_series": inputs, "promql_expr_test": expected}


def check(folder: Path, tests: list[dict[str, Any]], rules: Path = metrics.ALARMS) -> None:
    (folder / "tests.yml").write_text(
        json.dumps({"rule_files": [str(rules)], "evaluation_interval": f"{STEP}s", "tests": tests})
    )
    done = subprocess.run(["promtool", "test", "rules", "tests.yml"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
@pytest.mark.programs
@pytest.mark.parametrize("fault", REHEARSALS)
def test_a_fault_raises_its_one_alarm_within_two_rounds_and_its_line_clears_it(fault: str, tmp_path: Path) -> None:
    scene = carried_out(rehearsed(fault, tmp_path))
    alarm = BY_NAME[fault].alarm
    expected = [firing(set(), BEFORE - 1), firing({alarm}, BEFORE + 2 * ROUND), firing(set(), BEFORE + LATER)]
    check(tmp_path, [unit_test(fault, series(scene), expected)])


@promtool
@pytest.mark.programs
def test_rules_that_leave_out_nothing_are_caught_at_it(tmp_path: Path) -> None:
    scene = carried_out(rehearsed("database-away", tmp_path))
    test = unit_test("broken", series(scene), [firing({"QuoronDatabaseAway"}, BEFORE + 2 * ROUND)])
    check(tmp_path, [test])
    broken = re.sub(r"\n +unless .*", "", metrics.ALARMS.read_text(encoding="utf-8"))
    (tmp_path / "broken.yml").write_text(broken)
    with pytest.raises(AssertionError, match="QuoronRunStuck"):
        check(tmp_path, [test], tmp_path / "broken.yml")


OTHER_WAYS = {  # into an alarm: a metric before and after
    "a run below its minimum cohort": ("QuoronClientsAway", 'quoron_runs_ended{how="below-min-cohort"}', 0, 1),
    "a minimum cohort of nine tenths": ("QuoronClientsAway", 'quoron_run_members_connected{run="x"}', 950, 850),
    "a limit that leaves nothing": ("QuoronLimitReached", 'quoron_epsilon_left{group="x"}', 1, 0),
    "a certificate that has ended": ("QuoronCertificateEnds", 'quoron_certificate_days_left{of="coordinator"}', 40, -1),
    "a client whose has": ("QuoronCertificateEnds", 'quoron_calls_refused_total{why="expired"}', 0, 3),
    "a revoked client that comes back": ("QuoronClientRevoked", 'quoron_calls_refused_total{why="revoked"}', 0, 1),
    "a clock that was put back": ("QuoronClockJumped", "quoron_clock_seconds", 0, -3600),
    "nothing, with a run of which half are here": (None, 'quoron_run_members_connected{run="y"}', 100, 50),
    "nothing, with a store that was restored": (None, 'quoron_runs_ended{how="cancelled"}', 3, 2),
    "nothing, with a slow round": (None, 'quoron_run_idle_seconds{run="x"}', 60, 110),
}
STANDING = {  # what is well beside it
    'quoron_run_members{run="x"}': 1000,
    'quoron_run_members_connected{run="x"}': 1000,
    'quoron_run_min_cohort{run="x"}': 0.9,
    'quoron_run_round_seconds{run="x"}': 66,
    'quoron_run_members{run="y"}': 100,
    'quoron_mu_left{group="x"}': 0,
    "quoron_clock_seconds": 0,
    "quoron_start_time_seconds": -86400,
}


@promtool
@pytest.mark.programs
def test_other_ways_into_an_alarm_or_past_it(tmp_path: Path) -> None:
    tests = []
    for way, (alarm, name, before, after) in OTHER_WAYS.items():
        scene = Scene(tmp_path, pytest.MonkeyPatch())
        scene.well = {"up": 1.0} | STANDING | {name: before}
        scene.faulty, scene.mended = [(0.0, scene.well | {name: after})], scene.well
        expected = [firing(set(), BEFORE - 1), firing({alarm} - {None}, BEFORE + 2 * ROUND)]
        tests.append(unit_test(way, series(scene), expected))
    check(tmp_path, tests)


@promtool
@pytest.mark.programs
def test_the_rules_are_rules(tmp_path: Path) -> None:
    done = subprocess.run(["promtool", "check", "rules", str(metrics.ALARMS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

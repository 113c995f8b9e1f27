"""Comparisons: the bits of single runs, nothing done twice, nothing lost by a kill, risks that can be compared."""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import quoron
from quoron import config as configs
from quoron.api import simulating
from quoron.cli.app import invoke
from quoron.cli.tables import sweep
from quoron.engine import processes
from quoron.engine.choice import Inline
from quoron.reports import terminal as progress
from quoron.reports.summary import Summary
from quoron.run_folder import RunFolder
from quoron.simulation import comparison
from quoron.simulation import run as runs
from quoron.simulation.comparison import Request, cell_rows, run_row
from quoron_privacy.errors import ConfigError, RunError
from quoron_server.rounds import RoundEvent
from quoron_server.serial import dumps
from quoron_server.wording import plan_json
from small_run import TOML, Watched
from summaries import EXAMPLE

ONE = Inline(workers=1)
SMALL = configs.parse(TOML, "small", ["algorithm.options={}"])
REQUEST = Request.of(
    SMALL, algorithms=["recentred-sgd", "local-model", "filtered-sgd"], vary={"privacy.epsilon": [2.0, 8.0]}, seeds=2
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> comparison.Comparison:
    return comparison.carry_out(
        REQUEST, tmp_path_factory.mktemp("compared"), watcher=Watched(), engine=Inline(workers=1)
    )


def test_what_is_complete_is_not_carried_out_again(compared: comparison.Comparison) -> None:
    watched = Watched()
    again = comparison.carry_out(REQUEST, compared.directory, watcher=watched, engine=ONE)
    assert (watched.runs, again.cells, again.runs) == (0, compared.cells, compared.runs)
    assert comparison.stored(compared.directory).cells == compared.cells
    more = replace(REQUEST, seeds=3, algorithms=("recentred-sgd", "filtered-sgd"))
    missing = comparison._missing(comparison._jobs(more, compared.directory))
    assert sum(job.cell.algorithm == "recentred-sgd" for job in missing) == 2


def test_cells_are_ordered_and_summed_up_as_a_plain_reading_of_the_runs_says(compared: comparison.Comparison) -> None:
    for row in compared.cells:
        same = [
            each for each in compared.runs if all(each[key] == row[key] for key in ("privacy.epsilon", "algorithm"))
        ]
        if row["infeasible"]:
            assert row["runs"] == 0
            continue
        risks = [each["excess_risk"] for each in same]
        low, high = stats.t.interval(0.95, 1, np.mean(risks), stats.sem(risks))
        assert row["excess_risk"] == pytest.approx(np.mean(risks))
        assert (row["low"], row["high"]) == pytest.approx((max(low, 0.0), high))
        assert row["of_start"] == pytest.approx(np.mean(risks) / same[0]["excess_risk_at_start"])
        assert row["rounds"] == np.mean([each["rounds"] for each in same])
    order = [(row["privacy.epsilon"], row["excess_risk"] or np.inf) for row in compared.cells]
    assert order == sorted(order)
    assert list(compared.to_pandas()["algorithm"]) == [row["algorithm"] for row in compared.cells]


def outcome(algorithm: str, seed: int, excess: float, initial: float, held_back: float = 0.0) -> Mapping[str, Any]:
    risks = {"excess_risk": excess, "excess_risk_initial": initial, "held_back": held_back}
    summary = Summary(**{**EXAMPLE, "algorithm": algorithm, **risks})
    return run_row(CELLS[algorithm], seed, "", summary)


CELLS = {cell.algorithm: cell for cell in Request.of(SMALL, algorithms=["recentred-sgd", "srgd"], seeds=1).cells()}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"algorithms": ["mean-sdg"]}, "'mean-sdg'"),
        ({"vary": {"algorithm.name": ["srgd"]}}, "Give algorithms instead"),
        ({"vary": {"run.seed": [1, 2]}}, "Give seeds instead"),
        ({"vary": {"privacy.epsilon": [1, 1]}}, "different values"),
        ({"vary": {"privacy.epsilom": [1]}}, "epsilom"),
    ],
)
def test_a_wrong_request_is_refused_by_name_before_any_work(given: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Request.of(SMALL, **given)


def test_sweeps_on_the_command_line_are_toml_lists() -> None:
    assert sweep(["privacy.epsilon=[0.5, 1]", "loss.name=['hinge', 'logistic']"]) == {
        "privacy.epsilon": [0.5, 1],
        "loss.name": ["hinge", "logistic"],
    }
    for wrong in ("privacy.epsilon", "privacy.epsilon=[1"):
        with pytest.raises(ConfigError, match=r"privacy\.epsilon"):
            sweep([wrong])
    with pytest.raises(ConfigError, match="once"):
        sweep(["a.b=[1]", "a.b=[2]"])


def test_engines_that_cannot_compare_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"inline for a comparison, got Flower"):
        quoron.compare(SMALL, engine="flower")
    assert invoke(["compare", "--engine", "flower"]) == 2
    assert invoke(["compare", "--engine", "inline:address=here:1"]) == 2
    assert "engine inline KEY=VALUE of workers, got 'address=" in capsys.readouterr().err


def test_a_folder_of_something_else_is_left_alone(
    workers_here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"empty folder or one of a comparison, got .*other"):
        quoron.compare(SMALL, out=tmp_path / "other")
    with pytest.raises(ConfigError, match="the file"):
        quoron.compare(SMALL, out=tmp_path / "other" / "letter.txt")
    assert (tmp_path / "other" / "letter.txt").read_text() == "mine"
    (tmp_path / "runs" / "run-compare-1").mkdir(parents=True)
    found = quoron.compare(SMALL, algorithms=["one-pass-dp-sgd"], seeds=1, engine=ONE)
    assert found.directory.name == "run-compare-2"


@pytest.mark.parametrize("form", ["nothing", "lines", "bars"])
def test_progress_is_lines_or_bars_on_standard_error_or_nothing(form: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job = comparison.Job(CELLS["srgd"], 0, CELLS["srgd"].config, Path("x"))
    finished = RoundEvent(
        round=1, rounds=20, asked=50, messages=50, gradient_evaluations=250, bytes_down=1, bytes_up=1,
        total_messages=50, total_gradient_evaluations=250, total_bytes_down=1, total_bytes_up=1,
        seconds_clients=0.0, seconds_server=0.0, public={"halted": True}, diagnostics={"excess_risk": 0.25},
    )  # fmt: skip
    with progress.Display(form) as shown:
        shown.planned(1)
        shown.waiting("waiting for somebody")
        shown.started(runs.prepare(CELLS["srgd"].config, Path()).planned.plan)
        shown.round_finished(finished)
        shown.finished(np.zeros(3))
        shown.ended(job, "failed", "its reason")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert ("run 1/1, srgd seed 0: failed: its reason" in printed.err) is (form == "lines")


def test_a_terminal_or_notebook_has_bars_unless_nobody_wants_them_or_ipywidgets_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as notebook:
        notebook.setattr("rich.console._is_jupyter", lambda: True)
        for found, form in ((object(), "bars"), (None, "lines")):
            notebook.setattr(progress, "find_spec", lambda name, found=found: found)
            assert progress.display(None).form == form
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert (progress.display(None).form, progress.display(False).form) == ("bars", "nothing")


def of_two(first: list[float], second: list[float]) -> list[dict]:
    """Cells of two methods with these risks, seed by seed."""
    done = [
        outcome(name, seed, risk, 0.7)
        for name, some in (("srgd", first), ("recentred-sgd", second))
        for seed, risk in enumerate(some)
    ]
    return list(cell_rows(done, []))


def test_a_winner_is_named_only_where_the_differences_of_all_seeds_part_from_zero() -> None:
    users = [0.1, 0.5, 0.3, 0.2, 0.4]  # they differ far more by their seeds than methods do
    rows = of_two(users, [each + 0.01 + 0.001 * place for place, each in enumerate(users)])
    assert comparison.best_words(rows) == "Least excess risk: srgd, 0.3, less than all others after 5 seeds."
    assert rows[1]["behind_low"] > 0
    assert rows[1]["low"] < rows[0]["high"]  # though the intervals of the two means overlap
    differences = [0.1, -0.09, 0.05, -0.04, 0.01]
    rows = of_two(users, [each + change for each, change in zip(users, differences, strict=True)])
    assert comparison.best_words(rows).startswith(
        "No difference shown after 5 seeds between srgd (mean excess risk 0.3)"
    )
    assert (rows[1]["behind_low"] or 0.0) <= 0 < rows[1]["behind_high"]
    low, high = stats.t.interval(0.95, 4, np.mean(differences), stats.sem(differences))
    assert (rows[1]["behind_low"], rows[1]["behind_high"]) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.programs
def test_a_worker_that_is_killed_loses_nothing_that_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker dies at its second run; the same call then does what is missing, and no run twice."""
    request = Request.of(SMALL, algorithms=["recentred-sgd"], seeds=2)

    class Killing(Watched):
        def ended(self, job: comparison.Job, end: str, why: str | None) -> None:
            os.kill(numbers[-1], signal.SIGKILL)

    numbers, start = [], processes.Worker

    def recorded(*arguments):
        worker = start(*arguments)
        numbers.append(worker.number)
        return worker

    monkeypatch.setattr(processes, "Worker", recorded)
    with pytest.raises(RunError, match=r"A worker ended at recentred-sgd seed 1: try fewer workers"):
        comparison.carry_out(request, tmp_path, watcher=Killing(), engine=ONE)
    assert not any(Path(f"/proc/{number}").exists() for number in numbers)
    with pytest.raises(RunError, match="Complete it with `quoron resume"):
        simulating.stored(tmp_path)
    (done,) = tmp_path.glob("runs/*/summary.json")
    written = done.stat().st_mtime_ns
    complete = quoron.resume(tmp_path)
    assert isinstance(complete, comparison.Comparison)
    assert [row["runs"] for row in complete.cells] == [2]
    assert done.stat().st_mtime_ns == written


def test_every_run_has_the_bits_of_the_same_simulation(compared: comparison.Comparison, tmp_path: Path) -> None:
    done = [row for row in compared.runs if not row["infeasible"]]
    assert len(done) == 8
    for row in done[:4]:
        folder = RunFolder(compared.directory / str(row["folder"]))
        alone = runs.carry_out(
            runs.prepare(folder.config(), Path()), _made(tmp_path / str(row["folder"])), report=False
        )
        np.testing.assert_array_equal(folder.model(), alone.weights)
        plan = json.loads(dumps(plan_json(alone.plan)))
        assert plan == {key: folder.read_json("plan.json")[key] for key in plan}
        assert row["excess_risk"] == alone.summary.excess_risk


def _made(folder: Path) -> RunFolder:
    folder.mkdir(parents=True)
    return RunFolder(folder)

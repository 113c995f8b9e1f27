"""Progress goes to standard error, in every form it has, and leaves the terminal tidy."""

from pathlib import Path

import numpy as np
import pytest

from quoron import config as configs
from quoron.reports.progress import Bar, Display, Lines, display
from quoron.simulation import run as runs
from quoron_server.rounds import RoundEvent
from small_run import TOML

PLAN = runs.prepare(configs.parse(TOML), Path()).planned.plan


def event(round_: int) -> RoundEvent:
    return RoundEvent(
        round=round_, rounds=20, asked=50, messages=50, gradient_evaluations=250, bytes_down=1, bytes_up=1,
        total_messages=50, total_gradient_evaluations=250, total_bytes_down=1, total_bytes_up=1,
        seconds_clients=0.0, seconds_server=0.0, public={"halted": True}, diagnostics={"excess_risk": 0.25},
    )  # fmt: skip


@pytest.mark.parametrize("kind", [Display, Lines, Bar])
def test_no_form_of_progress_writes_to_standard_output(kind: type[Display], capsys: pytest.CaptureFixture[str]) -> None:
    with kind() as shown:
        shown.said("waiting for somebody")
        shown.started(PLAN)
        for round_ in range(20):
            shown.round_finished(event(round_))
        shown.finished(np.zeros(3))
    assert capsys.readouterr().out == ""


def test_plain_lines_are_few_and_say_where_the_run_stands(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for round_ in range(20):
        lines.round_finished(event(round_))
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 11
    assert printed[-1] == "round 20/20, 50 users, excess risk 0.25, halted"


def test_what_is_waited_for_stands_in_front_of_the_bar_until_the_next_round() -> None:
    bar = Bar()
    for what in ("starting 5 nodes", "2 of 5 nodes are there"):
        bar.said(what)
        assert bar._bar.tasks[0].description == what
    bar.started(PLAN)
    bar.said("3 of 5 nodes have answered")
    bar.round_finished(event(0))
    assert (bar._bar.tasks[0].description, bar._bar.tasks[0].completed) == (PLAN.algorithm, 1)


def test_the_form_follows_the_terminal_and_the_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert type(display(quiet=True)) is Display
    assert type(display(quiet=False)) is Bar
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    assert type(display(quiet=False)) is Lines

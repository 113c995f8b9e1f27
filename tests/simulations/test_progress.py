"""Progress goes to standard error, in every form it has, and leaves the terminal tidy."""

from pathlib import Path

import numpy as np
import pytest

from quoron import config as configs
from quoron.reports.progress import Bar, Display, Lines
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

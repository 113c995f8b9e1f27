"""From Python in three lines, with typed results; a DataFrame is a population."""

import json
from pathlib import Path

import numpy as np
import pytest

import quoron
from quoron import config as configs
from quoron_privacy.errors import ConfigError
from quoron_server.wording import SEEDED, sentence
from small_run import TOML

SMALL = configs.parse(TOML)
pytestmark = pytest.mark.usefixtures("planned_once")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_stored_configuration_runs_again_to_the_same_bits(place: Path) -> None:
    run = quoron.simulate(SMALL, out="mine")
    again = quoron.simulate(place / "mine" / "config.toml", out="again")
    assert np.array_equal(run.weights, again.weights)


def test_a_run_that_nobody_measures_has_the_same_bits_and_no_figures_of_data(place: Path) -> None:
    measured, alone = (
        quoron.simulate(SMALL, out="measured"),
        quoron.simulate(SMALL, out="alone", settings=["run.evaluate=false"]),
    )
    assert np.array_equal(measured.weights, alone.weights)
    assert measured.summary.excess_risk is not None
    summary = alone.summary
    assert (summary.excess_risk, summary.excess_risk_initial, summary.test) == (None, None, {})
    assert not [row for row in alone.records() if "simulation.excess_risk" in row]
    assert (place / "alone" / "report.html").exists()
    with pytest.raises(ConfigError, match=r"run\.evaluate for a comparison"):
        quoron.compare(SMALL, settings=["run.evaluate=false"])


def test_noise_from_a_seed_is_never_told_as_a_promise(tmp_path: Path) -> None:
    run = quoron.simulate(SMALL, out=tmp_path / "run")
    text = json.loads((tmp_path / "run" / "plan.json").read_text())["statement"]
    for statement in (run.summary.statement, sentence(run.plan.guarantee), text):
        assert statement.startswith(SEEDED)
        assert "With secret noise: (4, " in statement
    assert SEEDED in (tmp_path / "run" / "report.html").read_text()
    assert not sentence(quoron.plan(SMALL).plan.guarantee).startswith(SEEDED)

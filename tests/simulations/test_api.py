"""From Python in three lines, with typed results; a DataFrame is a population."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import Keep, Method
from quoron import config as configs
from quoron.run_folder import RunFolder
from quoron_privacy.errors import ConfigError, DataError
from quoron_server.wording import SEEDED, sentence
from said import said
from small_run import TOML

SMALL = configs.parse(TOML)
pytestmark = pytest.mark.usefixtures("planned_once")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Visits of 600 patients, 1 to 6 each; long stays depend on age and ward."""
    generator = np.random.default_rng(7)
    patient = np.repeat(np.arange(600), generator.integers(1, 7, 600))
    age = generator.uniform(0, 100, len(patient))
    ward = generator.choice(["north", "south"], len(patient))
    stay = age / 10 + 3 * (ward == "south") + generator.normal(0, 1, len(patient))
    return pd.DataFrame({"patient": [f"p{number}" for number in patient], "age": age, "ward": ward, "stay": stay})


def test_the_reference_without_privacy_says_so_and_claims_nothing() -> None:
    run = quoron.simulate(SMALL, method=Method("sgd"))
    assert (run.summary.epsilon, run.summary.exposure) == (None, "none")
    assert "none: the non-private reference" in str(run.summary)
    assert "No privacy" in (run.directory / "report.html").read_text()
    assert "public.epsilon_spent" not in RunFolder(run.directory).rounds()[0]


def test_the_stored_configuration_runs_again_to_the_same_bits(place: Path) -> None:
    run = quoron.simulate(SMALL, keep=Keep("mine"))
    again = quoron.simulate(place / "mine" / "config.toml", keep=Keep("again"))
    assert np.array_equal(run.model, again.model)


def test_a_data_frame_is_a_population_and_its_run_resumes(frame: pd.DataFrame) -> None:
    asked = {"user": "patient", "label": "stay > 6", "numeric": {"age": (0, 100)}, "categorical": ["ward"]}
    run = quoron.simulate(frame, **said(**asked, epsilon=8.0, algorithm="one-pass-dp-sgd", out="mine"))  # type: ignore[arg-type]
    assert run.plan.problem.users == 480
    assert run.summary.test["auc"] > 0.6
    assert np.array_equal(quoron.resume("mine").model, run.model)


def test_wrong_frames_are_refused_with_the_column_or_the_argument(frame: pd.DataFrame) -> None:
    with pytest.raises(ConfigError, match="Expected user and label with a table"):
        quoron.simulate(frame)
    with pytest.raises(DataError, match="Expected column 'wrad' in the table, got columns patient, age"):
        quoron.simulate(frame, user="patient", label="stay > 6", categorical=["wrad"])
    with pytest.raises(DataError, match="patients"):
        quoron.simulate(frame, user="patients", label="stay > 6", numeric={"age": (0, 100)})
    with pytest.raises(DataError, match=r"Expected a DataFrame, the path of a table .*, got 3"):
        quoron.simulate(3, user="patient", label="stay")
    with pytest.raises(ConfigError, match="Expected user with a DataFrame"):
        quoron.simulate(SMALL, user="patient")


def test_automatic_choice_says_why_and_tells_why_not_the_others() -> None:
    planned = quoron.plan(SMALL, settings=["algorithm={name='auto', options={}}"])
    assert planned.choice is not None
    assert planned.choice.startswith(f"{planned.plan.algorithm}: ")
    assert all(each.reason for each in planned.candidates if each.plan is None)
    assert any(each.reason.startswith("Infeasible: filtered-sgd") for each in planned.candidates)


def test_a_run_resumes_before_its_ledger_exists(place: Path) -> None:
    run = quoron.simulate(SMALL, keep=Keep("mine"))
    for name in ("ledger.sqlite", "ledger.sqlite-acknowledged", "summary.json", "model.npz"):
        (place / "mine" / name).unlink()
    assert np.array_equal(quoron.resume("mine").model, run.model)


def test_noise_from_a_seed_is_never_told_as_a_promise(tmp_path: Path) -> None:
    """Two runs of one seed draw the same noise in units of its scale: their difference shows the mean without any."""
    options = ["population.users=2000", "algorithm.options.rounds=1", "algorithm.options.step_size=1.0"]
    runs_ = {
        epsilon: quoron.simulate(
            method=Method("one-pass-dp-sgd"), keep=Keep(tmp_path / f"{epsilon}"), epsilon=epsilon, settings=options
        )
        for epsilon in (1.0, 2.0)
    }
    for epsilon, run in runs_.items():
        text = json.loads((tmp_path / f"{epsilon}" / "plan.json").read_text())["statement"]
        page = (tmp_path / f"{epsilon}" / "report.html").read_text()
        for statement in (run.summary.statement, sentence(run.plan.guarantee), text):
            assert statement.startswith(SEEDED)
            assert f"With secret noise: ({epsilon:g}, " in statement
        assert SEEDED in page
    assert not sentence(quoron.plan(method=Method("one-pass-dp-sgd")).plan.guarantee).startswith(SEEDED)

"""From Python in three lines, with typed results; a DataFrame is a population."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import Keep
from quoron import config as configs
from quoron_privacy.errors import ConfigError, DataError
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


def test_a_run_resumes_before_its_ledger_exists(place: Path) -> None:
    run = quoron.simulate(SMALL, keep=Keep("mine"))
    for name in ("ledger.sqlite", "ledger.sqlite-acknowledged", "summary.json", "model.npz"):
        (place / "mine" / name).unlink()
    assert np.array_equal(quoron.resume("mine").model, run.model)

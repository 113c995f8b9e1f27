"""What users that a simulation holds out would tell of each method's model, privately."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron.comparing.cells import Outcome, cell_rows, told_of
from quoron.comparing.request import Request
from quoron.evaluating import measuring
from quoron.simulation import told
from quoron_privacy.errors import ConfigError, Infeasible
from said import said

COLUMNS: dict[str, Any] = {"user": "who", "label": "ill", "numeric": {"age": (0, 100), "dose": (0, 5)}}


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    draw = np.random.Generator(np.random.Philox(3))
    age, dose = draw.uniform(0, 100, 2000), draw.uniform(0, 5, 2000)
    ill = age + 10 * dose + draw.normal(0, 20, 2000) > 75
    return pd.DataFrame({"who": np.arange(2000), "age": age, "dose": dose, "ill": ill})


def simulate(people: pd.DataFrame, out: Path, algorithm: str, **more: Any) -> Any:
    settings = [f"algorithm.name={algorithm}", "train.evaluate=0.15"]
    if algorithm != "non-private":
        settings.append("algorithm.options.rounds=3")
    return quoron.simulate(people, **said(out=out, epsilon=4.0, settings=settings, **COLUMNS | more))


def test_every_method_is_measured_on_the_same_users_and_its_cell_has_the_figures(people, tmp_path, monkeypatch):
    """Seeded: the noise is what it is. Each interval holds what all users that are held out say, without noise."""
    measured, release = [], measuring.release

    def watched(held, scorer, batches, noise):
        measured.extend(each.labels.tolist() for each in batches())
        return release(held, scorer, batches, noise)

    monkeypatch.setattr(measuring, "release", watched)
    algorithms = ["one-pass-dp-sgd", "recentred-sgd"]
    found = [simulate(people, tmp_path / name, name) for name in algorithms]
    assert measured[0] == measured[1]
    assert len(measured[0]) == 300
    config = found[0].config
    cells = Request.of(config, algorithms=algorithms).cells()
    outcomes = [Outcome(cell, 0, "", each.summary) for cell, each in zip(cells, found, strict=True)]
    rows = {row["algorithm"]: row for row in cell_rows(outcomes)}
    for name, each in zip(algorithms, found, strict=True):
        assert told_of(rows[name]) == each.summary.told
        for figure in ("accuracy", "AUC"):
            value, low, high = each.summary.told[f"{figure} per user"]
            assert low <= each.summary.test[figure.lower()] <= high
            assert low < value < high
        assert any(label == "AUC per user, with 95 %" for label, _ in each.summary.rows())
    assert simulate(people, tmp_path / "again", "recentred-sgd").summary.told == found[1].summary.told


def test_users_that_nobody_holds_out_or_that_are_too_few_are_refused_before_any_run(people, tmp_path):
    with pytest.raises(ConfigError, match=r"evaluate=0\.3 to be of the 400 users that a simulation holds out of 2,000"):
        quoron.compare(people, **said(out=tmp_path / "a", **COLUMNS), evaluate=0.3, algorithms=["recentred-sgd"])
    with pytest.raises(ConfigError, match="made-up users, of whom nobody is held out"):
        quoron.compare(evaluate=0.1, algorithms=["recentred-sgd"], keep=quoron.Keep(tmp_path / "b"))
    with pytest.raises(Infeasible, match="2 users to measure"):
        quoron.compare(people, **said(out=tmp_path / "c", **COLUMNS), evaluate=0.001, algorithms=["recentred-sgd"])


def test_without_a_share_nothing_is_told(people, tmp_path):
    found = simulate(people, tmp_path / "one", "recentred-sgd")
    config = found.config.model_copy(update={"train": found.config.train.model_copy(update={"evaluate": None})})
    assert told.told(config, None, found.model, "replace-one") == {}  # type: ignore[arg-type]

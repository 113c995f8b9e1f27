"""Where noise is secret nobody's default is spent: without ε every function and every command refuses, before it reads.

Simulations, whose noise comes from a seed, may have a default. A function or a command that is new has to join here.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer.main

import quoron
from quoron import config as configs
from quoron.cli.app import app, invoke
from quoron.federation import submission
from quoron.flower import train_privately
from quoron.model import Model
from quoron.sklearn import PrivateLogisticRegression, PrivateRidge
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Numeric
from quoron_client.losses import make_loss
from quoron_privacy.errors import QuoronError

NOISELESS = {"serve", "client", "example"}  # whose --set says nothing of a run
SIMULATED = {"simulate", "compare", "plan"} | NOISELESS  # noise from a seed, or none
METHOD = {"items_per_user": 1, "radius": 1.0, "clip_norm": 1.0}
TABLE: dict[str, Any] = {"user": "who", "label": "ill", "columns": {"numeric": {"age": (0, 100)}}}
NAMED = r"(?i)expected epsilon|argument.*'epsilon'"
FEDERATED = """
[population]
kind = "table"
items_per_user = 1
path = "visits.csv"
user = "who"
label = "ill"
columns.numeric = { age = [0, 100] }
"""
COMMANDS = {
    "train": ["visits.csv", "--user", "who", "--label", "ill"],
    "train, dry": ["visits.csv", "--user", "who", "--label", "ill", "--dry-run"],
    "train, a file": ["visits.toml"],
    "tune": ["visits.csv", "--user", "who", "--label", "ill", "--vary", "loss.ridge=[0, 0.1]"],
    "tune, dry": ["visits.csv", "--user", "who", "--label", "ill", "--vary", "loss.ridge=[0, 0.1]", "--dry-run"],
    "stats": ["visits.csv", "mean of age", "--user", "who"],
    "bounds": ["visits.csv", "--user", "who", "--items"],
    "evaluate": ["model.json", "visits.csv", "--user", "who"],
    "submit": ["visits.toml", "--run", "summer", "--users", "2000"],
    "submit, dry": ["visits.toml", "--run", "summer", "--users", "2000", "--dry-run"],
}


class Unread:
    """A table with columns that fails the test when it is read."""

    columns, index = ("who", "ill", "age"), None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__arrow_c_stream__":
            raise AttributeError(name)
        return pytest.fail(f"the table was read: {name}")


def unasked(*_: Any) -> Any:
    """What would compute with somebody's data."""
    return pytest.fail("asked")


def model() -> Model:
    encoding = Encoding((Numeric("age", 0, 100),), Signs("ill"), intercept=True, feature_norm=1.0)
    return Model(np.array([1.0, 0.0]), encoding, make_loss("logistic", feature_norm=1.0), None)


def fit(estimator: Any) -> Any:
    return estimator.fit(np.zeros((9, 1)), np.arange(9) % 2, groups=np.arange(9))


VARIED: dict[str, Any] = {"vary": {"loss.ridge": [0, 0.1]}}
CALLS: dict[str, Callable[[], Any]] = {
    "train": lambda: quoron.train(Unread(), **TABLE),
    "train, delta": lambda: quoron.train(Unread(), **TABLE, delta=1e-6),
    "train, a Config": lambda: quoron.train(configs.parse(FEDERATED)),
    "plan_training": lambda: quoron.train(Unread(), **TABLE, dry_run=True),
    "tune": lambda: quoron.tune(Unread(), **TABLE, **VARIED),
    "plan_tuning": lambda: quoron.tune(Unread(), **TABLE, **VARIED, dry_run=True),
    "evaluate": lambda: quoron.evaluate(model(), Unread(), user="who"),
    "statistics": lambda: quoron.statistics(Unread(), "mean of age", user="who"),
    "find_bounds": lambda: quoron.find_bounds(Unread(), user="who", items=True),
    "train_rows": lambda: quoron.train_rows(unasked, users=9, dimension=2, **METHOD),
    "train_privately": lambda: train_privately(None, users=9, dimension=2, **METHOD, out="books"),
    "mean": lambda: quoron.mean(np.zeros((9, 2)), bound=1.0),  # type: ignore[call-arg]
    "PrivateRidge": lambda: fit(PrivateRidge()),
    "PrivateLogisticRegression": lambda: fit(PrivateLogisticRegression(settings=["privacy.delta=1e-6"])),
    "submit": lambda: submission.specify(configs.parse(FEDERATED), run="summer", users=2000, seconds=60.0),
}


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a charge would be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    rows = pd.DataFrame({"who": np.arange(600), "age": np.arange(600) % 90, "ill": np.arange(600) % 2})
    rows.to_csv("visits.csv", index=False)
    Path("visits.toml").write_text(FEDERATED)
    model().save("model.json")
    return tmp_path / "lifetime.sqlite"


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_spent_by_a_function_that_was_not_given_epsilon(call: str, ledger: Path) -> None:
    with pytest.raises((QuoronError, TypeError), match=NAMED):
        CALLS[call]()
    assert not ledger.exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_spent_by_a_command_that_was_not_given_epsilon(
    command: str, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([command.split(",")[0], *COMMANDS[command]]) == 2
    printed = capsys.readouterr()
    assert "epsilon" in printed.err
    assert len(printed.err) < 400
    assert not printed.out
    assert not ledger.exists()


def test_every_function_that_takes_epsilon_is_asked() -> None:
    names = [name for name in dir(quoron) if inspect.isfunction(getattr(quoron, name))]
    private = {
        name for name in names if {"epsilon", "privacy"} & set(inspect.signature(getattr(quoron, name)).parameters)
    }
    assert private - SIMULATED <= {each.split(",")[0] for each in CALLS}
    assert len(private) > 8


def test_every_command_that_takes_epsilon_is_asked() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    private = {
        name for name, command in commands.items() if {"epsilon", "settings"} & {each.name for each in command.params}
    }
    assert private - SIMULATED <= {each.split(",")[0] for each in COMMANDS}
    assert len(private) > 8


def test_an_estimator_with_a_seed_has_the_default_of_simulations() -> None:
    with pytest.warns(UserWarning, match="protects nobody"):
        fitted = PrivateLogisticRegression(
            bounds=(0, 1), classes=[0, 1], random_state=0, data_quality=0.0, algorithm="one-pass-dp-sgd", rounds=2
        ).fit(np.random.default_rng(0).uniform(size=(300, 2)), np.arange(300) % 2, groups=np.arange(300))
    assert fitted.plan_.guarantee.epsilon == pytest.approx(1.0)


def test_a_simulation_has_a_default_and_a_file_that_has_epsilon_gives_it() -> None:
    settings = ["privacy.delta=1e-4", "budget.rounds=2"]
    assert quoron.plan("visits.toml", settings=settings).plan.guarantee.epsilon == 1.0
    Path("given.toml").write_text(FEDERATED + "[privacy]\nepsilon = 3.0\n")
    assert quoron.train("given.toml", settings=settings, dry_run=True).plan.problem.users == 600

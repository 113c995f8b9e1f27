"""Whatever is promised over a seed of noise begins with SIMULATED.

The list is of all that is public: a function that is new stands in it, or the test says so. Estimators have
scikit-learn's `random_state`: with a number they promise nothing (test_estimators.py).
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
import quoron.flower
from cover import by_default
from flower.plugged import CLIP, SMALL, USERS
from quoron import config as configs
from quoron.engine.choice import Inline
from quoron.model import Model
from quoron.releases.bounds import find_bounds
from quoron.training import lifetime
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Numeric
from quoron_client.losses import make_loss
from quoron_server.wording import sentence
from small_run import TOML

SIMULATED = "SIMULATED"


def _mean(method: str) -> Callable[[int | None, Path], str]:
    users = np.random.default_rng(0).normal(0.3, 0.01, (20_000, 3))
    more = {"outliers": 0.01} if method == "robust" else {}

    def said(seed: int | None, folder: Path) -> str:
        given: dict[str, Any] = {"bound": 20.0, "spread": 2.0, "method": method, "seed": seed, **more}
        return quoron.mean(users, epsilon=4.0, **given).statement

    return said


def _declared(seed: int | None, folder: Path) -> str:
    table = pd.DataFrame({"who": np.arange(900), "age": np.arange(900) % 90})
    asked: dict[str, Any] = {"user": "who", "epsilon": 4.0, "numeric": ["age"], "ledger": folder / "own.sqlite"}
    return find_bounds(table, seed=seed, **asked).toml().removeprefix("# ")


def _rows(seed: int | None, folder: Path) -> str:
    given: dict[str, Any] = {"users": USERS, "dimension": 2, "epsilon": 8.0, "delta": 1e-3, "clip_norm": CLIP}
    given |= {"radius": 2.0, "options": SMALL["one-pass-dp-sgd"], "smoothness": 1.0, "out": folder / "rows"}
    done = quoron.train_rows(lambda users, point: np.tile(point, (len(users), 1)), seed=seed, **given)
    return sentence(done.guarantee)


def _simulated(seed: int | None, folder: Path) -> str:
    return quoron.simulate(configs.parse(TOML), seed=seed, out=folder / "run").summary.statement


def _compared(seed: int | None, folder: Path) -> str:
    asked: dict[str, Any] = {"algorithms": ["recentred-sgd"], "seeds": 1, "out": folder / "compared"}
    asked["engine"] = Inline(workers=1)
    asked["settings"] = [] if seed is None else [f"run.seed={seed}"]
    made = quoron.compare(configs.parse(TOML), **asked)
    return next(iter(made.directory.glob("runs/*/summary.json"))).read_text().partition('"statement": "')[2]


def _table() -> pd.DataFrame:
    ages = np.random.default_rng(1).uniform(0, 90, 1500)
    return pd.DataFrame({"who": np.arange(1500), "age": ages, "sick": ages > 45})


def _answered(seed: int | None, folder: Path) -> str:
    asked = {"user": "who", "epsilon": 2.0, "numeric": {"age": (0, 90)}, "ledger": folder / "own.sqlite"}
    return quoron.statistics(_table(), "mean of age", seed=seed, **asked).statement


def _measured(seed: int | None, folder: Path) -> str:
    encoding = Encoding((Numeric("age", 0, 90),), Signs("sick"), intercept=True, feature_norm=1.0)
    model = Model(np.array([1.0, 0.0]), encoding, make_loss("logistic", feature_norm=1.0), None)
    asked = {"user": "who", "epsilon": 2.0, "ledger": folder / "own.sqlite"}
    return quoron.evaluate(model, _table(), seed=seed, **asked).statement


def _searched(seed: int | None, folder: Path) -> str:
    asked: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-5, "out": folder / "run", "ledger": folder / "own.sqlite"}
    asked |= {"user": "who", "label": "sick", "columns": {"numeric": {"age": (0, 90)}}, "n_trials": 2.0}
    tried: dict[str, Any] = {"algorithms": ["one-pass-dp-sgd"], "vary": {"loss.ridge": [0.0, 1.0]}}
    return quoron.tune(_table(), **tried, seed=seed, **asked).statement


SAID: dict[str, Callable[[int | None, Path], str]] = {
    **{f"quoron.mean {method}": _mean(method) for method in ("learnt", "clip", "two-stage", "range", "robust")},
    "quoron.find_bounds": _declared,
    "quoron.statistics": _answered,
    "quoron.evaluate": _measured,
    "quoron.tune": _searched,
    "quoron.train_rows": _rows,
    "quoron.simulate": _simulated,
    "quoron.compare": _compared,
}
ALWAYS = ("quoron.simulate", "quoron.compare")  # simulations, whatever their seed: by default 0
# tests/models, which have torch and JAX, and tests/flower/test_training.py
ELSEWHERE = {"quoron.torch.train", "quoron.jax.train", "quoron.flower.train_privately"}


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lifetime.VARIABLE, str(tmp_path / "lifetime.sqlite"))
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    monkeypatch.chdir(tmp_path)


def test_every_public_function_with_a_seed_of_noise_is_tried_here() -> None:
    doors = {"quoron": quoron, "quoron.flower": quoron.flower}
    public = {
        f"{name}.{each}"
        for name, door in doors.items()
        for each in door.__all__
        if inspect.isfunction(it := getattr(door, each)) and "seed" in inspect.signature(it).parameters
    }
    public |= {"quoron.compare", *ELSEWHERE}
    assert public == {each.partition(" ")[0] for each in SAID} | ELSEWHERE


@pytest.mark.parametrize(
    "door", by_default(SAID, [each for each in SAID if each not in ("quoron.compare", "quoron.tune")])
)
def test_what_is_promised_over_a_seed_begins_with_simulated(door: str, tmp_path: Path) -> None:
    for seed in (7, None):
        (place := tmp_path / str(seed)).mkdir()
        said = SAID[door](seed, place)
        assert "differential" in said
        assert said.startswith(SIMULATED) == (seed is not None or door in ALWAYS), said

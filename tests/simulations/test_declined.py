"""A problem too small to learn from is declined before anything is charged, at every door, with what would do."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import config as configs
from quoron.federation.submission import specify
from quoron.sklearn import PrivateLogisticRegression
from quoron_privacy.errors import Infeasible

USERS, COLUMNS = 60, 8
NAMES = [f"x{column}" for column in range(COLUMNS)]
RANGES = dict.fromkeys(NAMES, (-3.0, 3.0))
WORDS = r"needs n >= [\d,]+, or [\d.]+ times this epsilon; or name an algorithm"
TABLE = f"""
[population]
kind = "table"
items_per_user = 1
path = "people.csv"
user = "who"
label = "ill > 0"
columns.numeric = {{ {", ".join(f"{name} = [-3, 3]" for name in NAMES)} }}

[privacy]
epsilon = 1.0
delta = 1e-4
"""


def people(users: int = USERS) -> pd.DataFrame:
    draw = np.random.Generator(np.random.Philox(1))
    return pd.DataFrame(draw.normal(size=(users, COLUMNS)), columns=NAMES).assign(
        ill=draw.integers(0, 2, users), who=range(users)
    )


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of lifetime charges: of a run that is declined there is none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    people().to_csv("people.csv", index=False)
    Path("people.toml").write_text(TABLE)
    return tmp_path / "lifetime.sqlite"


def declared(folder: Path) -> Any:
    return quoron.train(
        people(),
        user="who",
        label="ill",
        columns={"numeric": RANGES},
        out=folder,
        settings=["privacy.delta=1e-4"],
        epsilon=1.0,
    )


def undeclared(folder: Path) -> Any:
    """Here it is declarations that so few users could not tell from noise."""
    return quoron.train(people(), user="who", label="ill", out=folder, epsilon=1.0, delta=1e-4)


def estimator(folder: Path) -> Any:
    del folder
    table = people()
    model = PrivateLogisticRegression(epsilon=1.0, delta=1e-4, bounds=((-3,) * COLUMNS, (3,) * COLUMNS), classes=[0, 1])
    return model.fit(table[NAMES].to_numpy(), table["ill"].to_numpy(), table["who"].to_numpy())


def simulated(folder: Path) -> Any:
    return quoron.simulate("people.toml", out=folder)


def submitted(folder: Path) -> Any:
    del folder
    return specify(configs.parse(TABLE), run="trial", users=USERS, seconds=60.0)


def through_flower(folder: Path) -> Any:
    del folder
    return specify(configs.parse(TABLE), run="trial", users=USERS, seconds=60.0, whole=True)


DOORS = (declared, undeclared, estimator, simulated, submitted, through_flower)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_every_door_declines_before_the_charge_and_says_what_would_do(door: Any, ledger: Path) -> None:
    with pytest.raises(Infeasible, match=r"needs 748 users" if door is undeclared else WORDS):
        door(ledger.parent / "run")
    assert not ledger.exists()
    assert not (ledger.parent / "run").exists()


def test_what_is_said_would_do_does() -> None:
    with pytest.raises(Infeasible) as refused:
        submitted(Path())
    users, times = re.search(r"n >= ([\d,]+), or ([\d.]+) times", str(refused.value)).groups()  # type: ignore[union-attr]
    assert specify(configs.parse(TABLE), run="trial", users=int(users.replace(",", "")), seconds=60.0)
    more = TABLE.replace("epsilon = 1.0", f"epsilon = {1.02 * float(times)}")
    assert specify(configs.parse(more), run="trial", users=USERS, seconds=60.0)

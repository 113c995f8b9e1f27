"""A table of which nobody declared anything, and how tests train on it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import quoron
from quoron_server.plan import ESTIMATES
from quoron_server.storage.ledger import Ledger

USERS = 1500
QUICK: dict[str, Any] = {"epsilon": 4.0, "algorithm": "one-pass-dp-sgd", "settings": ["algorithm.options.rounds=3"]}
TABLE = """
[population]
kind = "table"
path = "people.csv"
user = "who"
label = "ill"
{more}
[privacy]
epsilon = 4.0
[algorithm]
name = "one-pass-dp-sgd"
[algorithm.options]
rounds = 3
"""


def crowd(users: int = USERS) -> pd.DataFrame:
    draw = np.random.Generator(np.random.Philox(3))
    age, dose = draw.uniform(20, 90, users), draw.uniform(0, 5, users)
    ward = draw.choice(["north", "south", "west"], users, p=[0.5, 0.3, 0.2])
    ill = np.where(age + 10 * dose + draw.normal(0, 10, users) > 80, "yes", "no")
    return pd.DataFrame({"who": np.arange(users), "age": age, "dose": dose, "ward": ward, "ill": ill})


def train(people: Any, out: Path, **more: Any) -> Any:
    return quoron.train(people, out=out, user="who", **{"label": "ill"} | QUICK | more)


def estimates(out: Path) -> Any:
    with Ledger.open(out / "ledger.sqlite") as own:
        return own.released(ESTIMATES)

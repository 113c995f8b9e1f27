"""What declarations and types alone show is refused at every door, before anything is charged."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import quoron
from patients import patients
from quoron.declare import declare
from quoron.sections import Privacy
from quoron_privacy.errors import ConfigError, DataError
from said import said

USERS = 1000


@pytest.fixture
def people() -> pd.DataFrame:
    return patients(USERS)


PLAIN = {"user": "who", "label": "ill", "numeric": {"age": (0, 100)}}


def arrow(people: pd.DataFrame, **columns: pa.Array) -> pa.Table:
    table = pa.Table.from_pandas(people, preserve_index=False)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    return table


@pytest.mark.parametrize(
    ("change", "columns", "error", "why"),
    [
        ({}, {"categorical": {"age": [1, 2]}}, ConfigError, "every feature once"),
        ({}, {"numeric": {"age": (0, 100), "who": (0, 1000)}}, ConfigError, "user column 'who'"),
        ({}, {"label": "who > 3"}, ConfigError, "user column 'who'"),
        ({}, {"delta": 1e-2}, ConfigError, r"delta <= 1/n = 0\.001\d* for n="),
        ({}, {"settings": ["loss.name=least_squares"]}, ConfigError, "public range of label"),
        ({"ill": pa.array(["no", "yes"] * USERS)}, {}, DataError, "what the texts of label 'ill'"),
        ({"ill": pa.array([1, 2] * USERS)}, {"classes": ["no", "yes"]}, DataError, "can hold"),
        ({"age": pa.array([0, 1] * USERS, pa.uint8())}, {"numeric": {"age": (300, 400)}}, DataError, "one end"),
    ],
)
@pytest.mark.parametrize("door", ["train", "simulate", "plan"])
def test_what_declarations_and_types_show_is_refused_at_every_door_before_the_charge(
    door, change, columns, error, why, people, ledger, tmp_path
):
    table = arrow(people, **change)
    given = PLAIN | {"algorithm": "one-pass-dp-sgd", "epsilon": 1.0} | columns
    with pytest.raises(error, match=why):
        getattr(quoron, door)(table, **said(**given, **({"out": tmp_path / "run"} if door != "plan" else {})))
    assert not ledger.exists()
    assert not (tmp_path / "run").exists()


def test_a_large_delta_is_taken_where_somebody_says_so(people, ledger, tmp_path):
    taken = PLAIN | {"algorithm": "one-pass-dp-sgd", "epsilon": 1.0, "delta": 1e-2, "allow_large_delta": True}
    trained = quoron.train(people, **said(**taken, out=tmp_path / "a"))
    assert trained.summary.delta == 1e-2
    with pytest.raises(ConfigError, match="allow_large_delta"):
        declare(people, user="who", privacy=Privacy(1.0, 1e-2), categorical=["ill"])
    declared = declare(people, user="who", privacy=Privacy(1.0, 1e-2, allow_large_delta=True), categorical=["ill"])
    assert declared.delta == 1e-2
    given = {"users": 20, "dimension": 2, "epsilon": 1.0, "delta": 0.1, "clip_norm": 1.0, "radius": 1.0}
    with pytest.raises(ConfigError, match="allow_large_delta"):
        quoron.train_rows(lambda users, point: np.zeros((len(users), 2)), **said(**given))


def test_the_user_column_is_no_fact_to_release(people, ledger):
    with pytest.raises(ConfigError, match="other than the user's own"):
        declare(people, user="who", privacy=Privacy(1.0), categorical=["who"])

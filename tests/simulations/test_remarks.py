"""Silence is a defect: what does not fit its rules is named in a simulation, with the fix; what fits is not."""

import numpy as np
import pandas as pd
import pytest

from quoron.populations import Categorical, Numeric, from_table
from quoron_client.data.encoding import Classes, Range
from quoron_client.losses import LeastSquares
from quoron_client.protocol.domains import L2Ball

USERS, ROWS = 40, 400
FEATURES = (Numeric("age", 0, 100), Categorical("ward", ("A", "B")))


def visits(**columns):
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, ROWS)
    known = {
        "who": np.arange(ROWS) % USERS,
        "age": age,
        "ward": rng.choice(["A", "B"], ROWS),
        "sick": (rng.random(ROWS) < 1 / (1 + np.exp((50 - age) / 40))).astype(int),
        "cost": 300 + 4 * age + rng.normal(0, 10, ROWS),
    }
    return pd.DataFrame(known | columns)


def remarks(frame=None, model=(0.0, 0.0, 0.0, 0.0), **changes):
    arguments = {"user": "who", "label": "sick", "features": FEATURES, "items_per_user": 5, "domain": L2Ball(5.0)}
    crowd = from_table(visits() if frame is None else frame, **(arguments | changes))
    return crowd.beside(np.array(model)).remarks


def said_of(*found):
    assert len(found) == 1
    return found[0]


class TestRemarks:
    @pytest.mark.parametrize(
        ("frame", "changes", "words"),
        [
            (visits(age=np.arange(ROWS) * 0.5), {}, ("49.8 % of the values of 'age'", "Declare a wider range")),
            (visits(ward=["A", "C", "B", "D"] * 100), {}, ("50 % of the values of 'ward'", "Declare them")),
            (visits(age=[None] * 200 + [1.0] * 200), {}, ("50 % of the rows", "'age' (200)", "missing = 'middle'")),
            (visits(sick=["Y"] * 200 + ["1", "0"] * 100), {}, ("50 % of the rows", "'sick' (200)", "positive = value")),
            (
                visits(sick=["Y", "N", "maybe"] * 133 + ["Y"]),
                {"label": Classes("sick", ("N", "Y"))},
                ("33.2 % of the rows", "Declare all classes"),
            ),
            (visits(who="me"), {}, ("one user", "Name the column that tells users apart")),
            (visits(who=np.arange(ROWS)), {}, ("one row", "user-level privacy is then item-level")),
            (visits(), {"items_per_user": None}, ("items_per_user is not declared", "problem.items_per_user")),
            (visits(), {"features": (FEATURES[0], Categorical("ward", "from-data"))}, ("'ward'", "List them")),
            (
                visits(),
                {"label": Range("cost", 0, 600), "loss": LeastSquares()},
                ("of the labels 'cost' lie outside label_range", "Declare a wider label_range"),
            ),
        ],
    )
    def test_name_what_is_amiss_and_the_fix(self, frame, changes, words):
        found = said_of(*remarks(frame, **changes))
        for word in words:
            assert word in found

    def test_of_users_without_a_usable_row_name_their_share(self):
        frame = visits()
        frame.loc[frame.who < 4, "age"] = np.nan
        found = remarks(frame)
        assert len(found) == 2
        assert "10 % of the users have no row that can be used" in found[0]

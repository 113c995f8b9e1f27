"""A table of several people is told from that of one, by rules that are written down and without a value of it."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from quoron.cli.app import app
from quoron_client.data import tables
from quoron_client.data.people import several
from quoron_client.federation.own_table import check_one_user
from quoron_privacy.errors import DataError

DRAW = np.random.default_rng(1)


def hospital(patients: int = 300, visits: int = 5, ids: str = "{}", *, shuffled: bool = False) -> pd.DataFrame:
    """Visits of patients, with a column `x` that says whose each is."""
    who = np.repeat(np.arange(patients), visits)
    rows = len(who)
    frame = pd.DataFrame({
        "x": [ids.format(each) for each in 7 * who + 1000],
        "age": (20 + who * 37 % 60),
        "pressure": np.round(DRAW.normal(120, 15, rows), 1),
        "sick": DRAW.integers(0, 2, rows),
    })  # fmt: skip
    return frame.sample(frac=1.0, random_state=3) if shuffled else frame


def diary(days: int = 60, rows: int = 4) -> pd.DataFrame:
    """One person's, several entries a day."""
    many = days * rows
    day = np.repeat(np.arange(days), rows)
    return pd.DataFrame({
        "date": [str(np.datetime64("2024-01-01") + int(each)) for each in day],
        "compact": [int(str(np.datetime64("2024-01-01") + int(each)).replace("-", "")) for each in day],
        "year": 1950 + day, "at": [f"{each % 24:02}:{each % 60:02}" for each in day],
        "weekday": day % 7, "hours": np.round(DRAW.uniform(4, 9, many), 1), "steps": DRAW.integers(0, 20_000, many),
        "heart": np.round(DRAW.normal(70, 8, many)), "half": 0.5 * day, "food": DRAW.choice(["bread", "soup"], many),
        "note": "none", "client_version": 3,
    })  # fmt: skip


class TestSeveralPeople:
    @pytest.mark.parametrize("ids", ["{}", "P{:05}", "{:08x}-ward"])
    def test_are_known_by_a_column_in_blocks(self, ids):
        for patients, visits in ((20, 2), (300, 5), (3000, 3)):
            assert "values in column 1 that repeat" in str(several(tables.read(hospital(patients, visits, ids))))

    def test_are_said_without_a_value(self, tmp_path):
        hospital(ids="secret{}").to_csv(tmp_path / "all.csv", index=False)
        with pytest.raises(
            DataError, match=r"all\.csv.*values in column 1 that repeat like an identifier.*--one-user"
        ) as caught:
            check_one_user(tmp_path / "all.csv", one_user=False, items_per_user=None)
        assert "secret" not in str(caught.value)
        assert "300" not in str(caught.value)
        check_one_user(tmp_path / "all.csv", one_user=True, items_per_user=1)


class TestOnePerson:
    def test_has_columns_of_any_type(self):
        frame = diary().assign(when=pd.Timestamp("2020"), gone=None, flag=True)
        assert several(tables.read(frame)) is None


def test_the_check_of_the_command_line_ends_with_a_status(tmp_path):
    """2 and the fix for a hospital, 0 for a person and for a hospital that says that it is one user."""
    hospital().to_csv(tmp_path / "all.csv", index=False)
    diary().to_csv(tmp_path / "one.csv", index=False)
    run = CliRunner().invoke
    for arguments, status in ((["all.csv"], 2), (["all.csv", "--one-user"], 0), (["one.csv"], 0),
                              (["one.csv", "--items-per-user", "2"], 2), (["none.csv"], 2)):  # fmt: skip
        result = run(app, ["client", "--check", "--data", str(tmp_path / arguments[0]), *arguments[1:]])
        found = result.exception.exit_code if isinstance(result.exception, DataError) else result.exit_code
        assert found == status, result.output
    environment = {"QUORON_DATA": str(tmp_path / "all.csv"), "QUORON_ONE_USER": "1"}
    assert run(app, ["client", "--check"], env=environment).exit_code == 0

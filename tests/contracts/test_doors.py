"""Whatever one user's cells hold, through every door: the number of users, everybody else's items and the exit status.

Each change gives some cells of one user other values and writes the table anew, as a correct writer does. What is
compared is all that a run knows of a table: how many users it has, the encoded rows of all others to the bit, and
whether there is an error.
"""

from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset

from contracts.doors import (
    CHANGES,
    NUMBER_KINDS,
    ROWS,
    RULES,
    TEXT_KINDS,
    USERS,
    WRITERS,
    Table,
    alike,
    as_csv,
    base,
    changed,
    every_change,
    fitting,
    others,
    outcome,
    spread,
    stored,
    terms_of,
    typed,
)
from contracts.odd_values import NUMBERS, OBJECTS, TEXTS
from cover import by_default
from quoron import config as configs
from quoron.data import index
from quoron.data.population import from_dataset
from quoron.releases import bounds
from quoron.simulation.problem import encoding_of
from quoron.sklearn import owners
from quoron.training.table import load_rows
from quoron_client.data import columns, tables
from quoron_client.federation.own_table import check_one_user, own_items, read_own_table
from quoron_client.losses import Logistic


class TestDataFrame:
    """With the dtypes that pandas itself gives the values, and with those that are named."""

    DTYPES = (None, None, object, "category")

    @classmethod
    def frame(cls, table: Table, number: int) -> pd.DataFrame:
        return pd.DataFrame({
            name: cls.series(cells, None if name == "who" else cls.DTYPES[(number + place) % len(cls.DTYPES)])
            for place, (name, cells) in enumerate(table.items())
        })  # fmt: skip

    @staticmethod
    def series(cells: list[Any], dtype: Any) -> pd.Series:
        try:
            return pd.Series(cells, dtype=dtype)
        except Exception:  # what pandas does not take so
            held = np.empty(len(cells), dtype=object)
            held[:] = cells
            return pd.Series(held, dtype=object)

    @pytest.mark.parametrize("count", spread(2 * CHANGES))
    def test_a_users_cells_are_its_own(self, count, tmp_path):
        for number, table in every_change(count, lambda name: OBJECTS):
            missing = ("drop", "midpoint")[number // 4 % 2]
            found = outcome(self.frame(table, number), tmp_path, missing)
            assert found == expected_frame(missing), number

    @pytest.mark.parametrize("every", [9, pytest.param(1, id="all", marks=pytest.mark.slow)])
    def test_one_odd_value_of_each_kind_in_each_column(self, every, tmp_path):
        """Decimal as a category, a bool, a float32: each once, alone among everybody's plain values."""
        row = base()["who"].index("u03")
        for name in ("age", "ward", "code", "sick", "count"):
            for number, value in enumerate(OBJECTS[len(TEXTS) :] if name == "ward" else OBJECTS[::every]):
                cells = list(base()[name])
                cells[row] = value
                frame = pd.DataFrame(base()).assign(**{name: self.series(cells, (None, "category")[number % 2])})
                assert outcome(frame, tmp_path) == expected_frame("drop"), (name, number)
                if every == 1:
                    frame = frame.assign(**{name: self.series(cells, (None, "category")[1 - number % 2])})
                    assert outcome(frame, tmp_path) == expected_frame("drop"), (name, number)

    @pytest.mark.parametrize(
        "dtype",
        by_default(
            ["float32", "Float64", "float64[pyarrow]", "string", "str", "Int64", "boolean"],
            ["float32", "Float64", "Int64", "boolean"],
        ),
    )
    def test_of_named_dtypes_too(self, dtype, tmp_path):
        plain = {"age": base()["age"], "Int64": base()["code"], "boolean": [bool(each % 2) for each in base()["code"]]}
        cells: list[Any] = list(plain.get(dtype, plain["age"]))
        cells = [str(each) for each in cells] if dtype.startswith("str") else cells
        odd: dict[str, tuple[Any, ...]] = {"Int64": (None, 2**62, -1), "boolean": (None, True)}
        among = odd.get(
            dtype,
            TEXTS if dtype.startswith("str") else (*(each for each in NUMBERS if not 1e38 < abs(each) < 1e309), None),
        )
        before, row = pd.DataFrame(base()), base()["who"].index("u03")
        expected = outcome(before.assign(age=pd.Series(cells, dtype=dtype)), tmp_path)
        for value in among:
            own = [value if place == row else cell for place, cell in enumerate(cells)]
            assert outcome(before.assign(age=pd.Series(own, dtype=dtype)), tmp_path) == expected

    def test_users_are_who_their_own_value_says(self):
        one = ["1", 1, 1.0, np.float32(1), np.int64(1), "1"]
        frame = pd.DataFrame({"who": pd.Series([*one, True, "true", b"b", "b", 2**70], dtype=object)})
        names = columns.texts(tables.read(frame), "who").to_pylist()
        assert names == ["1"] * 6 + ["true"] * 2 + ["b"] * 2 + [str(2**70)]
        assert owners(frame["who"].to_numpy(), len(frame)).to_pylist() == names
        assert owners([*one, True, "true"], 8).to_pylist() == names[:8]


@cache
def expected_frame(missing: str) -> tuple[Any, ...]:
    """The outcome of the plain table."""
    return outcome(pd.DataFrame(base()), Path(), missing)


class TestParquet:
    @pytest.mark.parametrize("count", spread(CHANGES))
    def test_a_users_cells_are_its_own(self, count, tmp_path):
        kinds = len(TEXT_KINDS) * len(NUMBER_KINDS)
        draw = np.random.default_rng(4)
        expected = []
        for number in range(kinds):
            pq.write_table(typed(base(), number), tmp_path / "base.parquet")
            expected.append(outcome("base.parquet", tmp_path))
        for number in range(count):
            among = fitting(number)
            table = alike(number, among) if number % 3 == 0 else changed(draw, base(), among)
            pq.write_table(typed(table, number), tmp_path / "table.parquet")
            assert outcome("table.parquet", tmp_path) == expected[number % kinds], number

    def test_decimals_are_the_numbers_that_they_say(self, tmp_path):
        said = ["12.34", "0.10", "100.00", None, "99.99"]
        for width in (pa.decimal128(20, 2), pa.decimal256(60, 2), pa.decimal64(10, 2)):
            table = pa.table({"age": pa.array(said).cast(pa.decimal128(20, 2)).cast(width)})
            np.testing.assert_array_equal(columns.numbers(table, "age"), [12.34, 0.1, 100.0, np.nan, 99.99])
            assert columns.texts(table, "age").to_pylist() == ["12.34", "0.1", "100", None, "99.99"]


class TestFolder:
    @pytest.mark.parametrize("count", spread(CHANGES // 8))
    def test_a_users_cells_are_its_own(self, count, tmp_path, monkeypatch):
        kinds = len(TEXT_KINDS) * len(NUMBER_KINDS)
        draw = np.random.default_rng(6)
        expected = {
            number: self.outcome(tmp_path / f"base{number}", typed(base(), number))
            for number in range(min(kinds, count))
        }
        for number in range(count):
            among = fitting(number)
            table = alike(number, among) if number % 3 == 0 else changed(draw, base(), among)
            assert self.outcome(tmp_path / f"d{number}", typed(table, number)) == expected[number % kinds], number

    @classmethod
    def outcome(cls, folder: Path, table: pa.Table) -> tuple[Any, ...]:
        """Of a table whose rows are sorted by user."""
        folder.mkdir()
        pq.write_table(table.slice(0, 7), folder / "0.parquet", row_group_size=3)
        pq.write_table(table.slice(7), folder / "1.parquet", row_group_size=5)
        return cls.of(folder)

    @pytest.mark.parametrize("words", [pa.string(), pa.dictionary(pa.int8(), pa.string())])
    def test_a_file_without_a_value_is_a_file_of_missing_values(self, words, tmp_path, monkeypatch):
        """As pandas writes a file of one user, of whom nobody noted anything: its column has no type."""
        table, found = pa.table(base()), []
        table = table.set_column(table.column_names.index("ward"), "ward", table.column("ward").cast(words))
        for place in (0, 3, USERS - 1):
            nothing = pa.nulls(ROWS, pa.null()), pa.nulls(ROWS, pa.null())
            folder = tmp_path / f"d{place}"
            folder.mkdir()
            for user in range(USERS):
                own = table.slice(ROWS * user, ROWS)
                for name, cells in zip(("ward", "note"), nothing, strict=True) if user == place else ():
                    own = own.set_column(own.column_names.index(name), name, cells)
                pq.write_table(own, folder / f"{user}.parquet")
            held = tables.read(str(folder))
            assert held.column("ward").null_count == ROWS
            found.append([each for row, each in enumerate(held.to_pylist()) if row // ROWS not in (0, 3, USERS - 1)])
            assert self.of(folder)[0] == USERS
        assert found[0] == found[1] == found[2]

    @staticmethod
    def of(folder: Path) -> tuple[Any, ...]:
        """Of a folder that is written; an error with its status."""
        rules = configs.parse(RULES.format(path=str(folder), missing="drop"))
        held = load_rows(rules, folder)
        crowd = from_dataset(folder, held.encoding, user="who", loss=Logistic(), test_fraction=0.0, items_per_user=3)
        assert index.opened(folder, "who").users == held.declared.users
        return (held.declared.users, *others(crowd.items(np.arange(held.declared.users))))


class TestHive:
    """Of a folder whose paths hold values: whatever a user's are, keys are text to everybody."""

    KEYS = ("age", "ward", "code", "sick", "count", "note", "day")
    SHORT = tuple(each for each in TEXTS if len(quote(each, safe="")) < 200)  # a step of a path has 255 bytes at most

    @pytest.mark.parametrize("count", spread(CHANGES // 13))
    @pytest.mark.parametrize("key", by_default(KEYS, ("ward", "code", "sick", "day")))
    def test_a_users_keys_are_its_own(self, key, count, tmp_path, monkeypatch):
        expected = self.outcome(tmp_path / "base", base(), key)
        paths = [quote(str(cell), safe="") + "/" for cell in base()[key]]  # a folder's rows are in their order
        order = sorted(range(len(paths)), key=paths.__getitem__)
        as_csv({name: [cells[row] for row in order] for name, cells in base().items()}, "minimal", tmp_path / "b.csv")
        assert expected == outcome("b.csv", tmp_path)
        among = lambda name: (*self.SHORT, None)  # noqa: E731
        every = max(1, 2 * CHANGES // count)  # each key's tables are others
        for number, table in islice(every_change(max(count, 2 * CHANGES), among), self.KEYS.index(key), None, every):
            assert self.outcome(tmp_path / f"d{number}", table, key) == expected, number

    @pytest.mark.parametrize("stranger", ["x", "007", "7.0", None])
    def test_users_who_are_keys_are_who_their_text_says(self, stranger, tmp_path, monkeypatch):
        """Users 7 and 07 are two, and one whose name is no number changes nobody's place but its own."""
        names = ["07", "10", "7", "9", *([] if stranger is None else [stranger])]
        cells = {"who": names, "age": [7.0] * len(names), "sick": ["yes"] * len(names)}
        table = pa.table(cells)
        partitioned(table, "who", tmp_path / "d")
        assert index.opened(tmp_path / "d", "who").users == len(names)
        assert sorted(tables.read(str(tmp_path / "d"), ["who"]).column("who").to_pylist()) == sorted(names)

    @staticmethod
    def outcome(folder: Path, table: Table, key: str) -> tuple[Any, ...]:
        partitioned(pa.table(as_text(table)), key, folder)
        return TestFolder.of(folder)


def as_text(table: Table) -> dict[str, pa.Array]:
    """What a CSV file has of it."""
    return {name: stored(pa.string(), cells) for name, cells in table.items()}


def partitioned(table: pa.Table, key: str, folder: Path) -> None:
    """A folder for each value of a column, as Arrow writes them."""
    parts = dataset.partitioning(pa.schema([(key, pa.string())]), flavor="hive")
    dataset.write_dataset(table, folder, format="parquet", partitioning=parts, use_threads=False)


class TestClient:
    """Of a client only its own rows are there: whether it takes part, and what is asked of its items."""

    @pytest.mark.parametrize("count", spread(CHANGES))
    @pytest.mark.parametrize("suffix", by_default([".csv", ".parquet"], [".parquet"]))
    def test_takes_part_whatever_its_cells_hold(self, suffix, count, tmp_path):
        rules = configs.parse(RULES.format(path="mine", missing="drop"))
        section = rules.population
        assert isinstance(section, configs.TableSection)
        encoding = encoding_of(section, Logistic())
        terms = terms_of(encoding)
        draw = np.random.default_rng(8)
        own = [row for row, name in enumerate(base()["who"]) if name == "u03"]
        for number in range(count):
            among = fitting(number) if suffix == ".parquet" else lambda name: TEXTS
            table = alike(number, among) if number % 3 == 0 else changed(draw, base(), among)
            mine = {name: [cells[row] for row in own] for name, cells in table.items()}
            path = tmp_path / f"mine{suffix}"
            if suffix == ".csv":
                as_csv(mine, WRITERS[number % 5], path)
            else:
                pq.write_table(typed(mine, number), path)
            check_one_user(path, one_user=False)
            assert read_own_table(path).num_rows == ROWS
            items = own_items(path, terms)
            assert items.batch.features.shape[1] == encoding.dimension
            assert len(items.batch.labels) in range(1, ROWS + 1)


def test_the_same_values_are_the_same_items_through_every_door(tmp_path):
    """Text as text, whole numbers as integers, others as float64 that their text says exactly."""
    table = pa.table(base())
    pq.write_table(table, tmp_path / "t.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    frame = pd.DataFrame(base())
    names = ("who", "ward", "sick", "note")
    views, coded = table, table
    for name in names:  # as polars has them, and its categories
        place, cells = table.column_names.index(name), table.column(name)
        code = cells.combine_chunks().dictionary_encode()
        code = pa.DictionaryArray.from_arrays(code.indices, code.dictionary.cast(pa.string_view()))
        views = views.set_column(place, name, cells.cast(pa.string_view()))
        coded = coded.set_column(place, name, code)
    frames = [frame, frame.astype(object), frame.astype("category"), frame.convert_dtypes()]
    found = [outcome(source, tmp_path) for source in ("t.parquet", "t.csv", table, views, coded, *frames)]
    assert [bounds.read(each, "who", ["ward"])[2] for each in (table, views, coded)] == [USERS] * 3
    assert found[0][0] == USERS
    assert all(each == found[0] for each in found)
    assert TestFolder.outcome(tmp_path / "d", table) == found[0]

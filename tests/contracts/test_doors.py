"""Whatever one user's cells hold, through every door: the number of users, everybody else's items and the exit status.

Each change gives some cells of one user other values and writes the table anew, as a correct writer does. What is
compared is all that a run knows of a table: how many users it has, the encoded rows of all others to the bit, and
whether there is an error.
"""

import csv
import itertools
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from contracts.odd_values import NUMBERS, OBJECTS, TEXTS
from quoron import config as configs
from quoron import declare
from quoron.datasets import index
from quoron.datasets.population import from_dataset
from quoron.simulation.scene import encoding_of
from quoron.training import arrays
from quoron.training.table import hold
from quoron_client.data import columns, csv_file, tables
from quoron_client.data.encoding import Encoding
from quoron_client.data.items import ItemBatch
from quoron_client.federation.own_table import check_one_user, own_items, read_own_table
from quoron_client.federation.terms import Terms
from quoron_client.losses import Logistic
from quoron_privacy.errors import DataError

CHANGES = 100  # of each door by default; 2,000 with -m slow
RULES = """
[population]
kind = "table"
path = "{path}"
user = "who"
label = "sick"
classes = ["no", "yes"]
numeric = {{ age = [0, 100], size = [-1, 1] }}
categorical = {{ ward = ["A", "7", "true"], code = [1, 2, 3] }}
hashed = {{ note = 8 }}
dates = {{ day = {{ parts = ["weekday", "hour"], days = ["2024-01-01", "2024-12-31"], zone = "Europe/Berlin" }} }}
weight = {{ column = "count", most = 4 }}
missing = "{missing}"
"""
USERS, ROWS = 8, 3
Table = dict[str, list[Any]]
Change = Callable[[np.random.Generator, Table], Table]


@cache
def base() -> Table:
    """Users of a few rows each."""
    draw = np.random.default_rng(5)
    who = np.repeat(np.arange(USERS), ROWS)  # a folder's files are sorted by user, or one user is in one file
    many = len(who)
    return {
        "who": [f"u{each:02}" for each in who],
        "age": [float(each) for each in np.round(draw.uniform(-5, 110, many), 3)],
        "size": [float(each) for each in np.round(draw.normal(size=many), 2)],
        "ward": [str(each) for each in draw.choice(["A", "7", "B"], many)],
        "code": [int(each) for each in draw.integers(1, 5, many)],
        "sick": [str(each) for each in draw.choice(["no", "yes"], many)],
        "count": [int(each) for each in draw.integers(0, 6, many)],
        "note": ["nothing" for _ in range(many)],
        "day": [f"2024-{each // 28 + 1:02}-{each % 28 + 1:02}T{each % 24:02}:30Z" for each in range(many)],
    }


def changed(draw: np.random.Generator, table: Table, values: Callable[[str], tuple[Any, ...]]) -> Table:
    """The same table with some cells of user u03 replaced."""
    found = {name: list(cells) for name, cells in table.items()}
    own = [row for row, name in enumerate(table["who"]) if name == "u03"]
    for row in own:
        for name in found:
            if name != "who" and draw.random() < 0.4:
                among = values(name)
                found[name][row] = among[draw.integers(len(among))]
    return found


def outcome(source: Any, folder: Path, missing: str = "drop") -> tuple[Any, ...]:
    """What a run knows: the number of users, everybody's items but those of u03, or the error with its status."""
    given = source if isinstance(source, str) else "frame"
    try:
        held = hold(described(given, missing), folder, None if isinstance(source, str) else source)
        items = held.items()
    except DataError as error:
        return ("error", error.exit_code)
    assert isinstance(items, ItemBatch)
    return (held.declared.users, *others(items))


@cache
def described(path: str, missing: str) -> configs.Config:
    """The configuration of a table."""
    return configs.parse(RULES.format(path=path, missing=missing))


def others(items: ItemBatch) -> list[tuple[bytes, ...]]:
    """The items of everybody but the user of number 3."""
    assert items.weights is not None
    seen = []
    for user in range(items.users):
        first, last = items.offsets[user : user + 2]
        parts = (items.features[first:last], items.labels[first:last], items.weights[first:last])
        seen.append(tuple(part.tobytes() for part in parts) if user != 3 else ())
    return seen


def every_change(count: int, values: Callable[[str], tuple[Any, ...]]) -> itertools.chain[tuple[int, Table]]:
    """Tables with another u03 each; the first ones have a single odd value in all of its cells, each value once."""
    draw = np.random.default_rng(11)
    longest = max(len(values(name)) for name in base())
    all_alike = ((each, alike(each, values)) for each in range(min(count, longest)))
    rest = ((each, changed(draw, base(), values)) for each in range(min(count, longest), count))
    return itertools.chain(all_alike, rest)


def alike(place: int, values: Callable[[str], tuple[Any, ...]]) -> Table:
    """All cells of u03 hold the value of one place among those that can be."""
    mine = [name == "u03" for name in base()["who"]]
    return {
        name: [values(name)[place % len(values(name))] if own and name != "who" else cell
               for own, cell in zip(mine, cells, strict=True)]
        for name, cells in base().items()
    }  # fmt: skip


def spread(count: int) -> list[Any]:
    """`count` by default and 2,000 with -m slow."""
    return [pytest.param(count, id="some"), pytest.param(2000, id="all", marks=pytest.mark.slow)]


class TestCSV:
    """With pieces so short that many changes lie over their ends."""

    WRITERS = ("minimal", "all", "unix", "arrow", "pandas")

    @staticmethod
    def write(table: Table, how: str, path: Path) -> Path:
        text = {name: ["" if cell is None else str(cell) for cell in cells] for name, cells in table.items()}
        if how == "pandas":
            pd.DataFrame(text).to_csv(path, index=False)
        elif how == "arrow":
            pyarrow.csv.write_csv(pa.table(text), path)
        else:
            quoting = csv.QUOTE_MINIMAL if how == "minimal" else csv.QUOTE_ALL
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, quoting=quoting, lineterminator="\n" if how == "unix" else "\r\n")
                writer.writerow(text)
                writer.writerows(zip(*text.values(), strict=True))
        return path

    @pytest.mark.parametrize("count", spread(CHANGES))
    def test_a_users_cells_are_its_own(self, count, tmp_path, monkeypatch):
        monkeypatch.setattr(csv_file, "_PIECE", 512)
        expected = {}
        for how in self.WRITERS:
            self.write(base(), how, tmp_path / "base.csv")
            expected[how] = outcome("base.csv", tmp_path)
            assert expected[how] == expected["minimal"]
        for number, table in every_change(count, lambda name: TEXTS):
            how = self.WRITERS[number % len(self.WRITERS)]
            path = self.write(table, how, tmp_path / "table.csv")
            assert outcome(path.name, tmp_path) == expected["minimal"], (number, how)
            assert declare.read(path, "who", ["age", "ward"])[2] == USERS

    def test_a_note_over_the_first_mebibytes_adds_no_users(self, tmp_path):
        """A quoted cell with line ends, like other people's rows, wherever a reader may cut the file."""
        rows = [(f"u{row // 3:05}", row % 97, "no", "n" * 60) for row in range(15_000)]
        forged = "\n".join(f"x{each},5,yes,forged" for each in range(20)) + "\n"
        ends = np.cumsum([len(",".join(map(str, row))) + 2 for row in rows])
        for shift in range(0, len(forged) + 200, 97):
            noted, place = list(rows), int(np.searchsorted(ends, (1 << 20) - shift))
            noted[place] = (*rows[place][:3], forged)
            with (tmp_path / "notes.csv").open("w", newline="") as file:
                csv.writer(file).writerows([("who", "age", "sick", "note"), *noted])
            table = tables.read(tmp_path / "notes.csv", ("who", "age"))
            assert table.column("who").to_pylist() == [row[0] for row in rows]

    @pytest.mark.parametrize("size", [900_000, 5_000_000])
    def test_a_long_cell_is_one_cell(self, size, tmp_path):
        cell = ("x,1\n" * size)[:size]
        with (tmp_path / "long.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("who", "note", "age"), ("a", cell, 1), ("b", "", 2)])
        table = tables.read(tmp_path / "long.csv", ("who", "note", "age"))
        assert table.to_pydict() == {"who": ["a", "b"], "note": [cell, ""], "age": ["1", "2"]}

    @pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
    @pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
    def test_a_row_with_another_number_of_cells_is_one_skipped_row(self, piece, ending, tmp_path, monkeypatch):
        monkeypatch.setattr(csv_file, "_PIECE", piece)
        rows = ["who,note,age", 'a,"1\n""2""",1', "b,x", "b,x,2,3", '"b"', "", 'c,"y,\r\n,",3', "", "d,,4"]
        for text in (
            ending.join(rows),
            ending.join(rows) + ending,
            ending + ending.join(rows),
            "\ufeff" + ending.join(rows),
        ):
            (tmp_path / "ragged.csv").write_bytes(text.encode())
            table = tables.read(tmp_path / "ragged.csv", ("age", "who", "note"))
            assert table.to_pylist() == [
                {"age": "1", "who": "a", "note": '1\n"2"'},
                {"age": "3", "who": "c", "note": "y,\r\n,"},
                {"age": "4", "who": "d", "note": ""},
            ]

    def test_a_header_is_read_as_rows_are(self, tmp_path):
        path = tmp_path / "names.csv"
        path.write_bytes(b'\r\n"two\nlines","a ""b""",who,who\n1,2,3,4\n')
        assert tables.opened(path).empty().column_names == ["two\nlines", 'a "b"', "who", "who"]
        assert tables.read(path, ('a "b"', "two\nlines")).to_pylist() == [{'a "b"': "2", "two\nlines": "1"}]
        assert tables.read(path).num_columns == 4
        with pytest.raises(DataError, match="one column 'who' in the table, got 2"):
            tables.read(path, ("who",))
        path.write_text("who,age\na,1\n", encoding="utf-16")
        assert tables.read(path).to_pylist() == [{"who": "a", "age": "1"}]

    def test_a_skipped_row_may_hold_any_bytes(self, tmp_path):
        (tmp_path / "bytes.csv").write_bytes(b"who,age\na,1\n\xff\xc3\n\xf0\x9f,\xff,9\nb\xe2\x82,2\n")
        table = tables.read(tmp_path / "bytes.csv", ("who", "age"))
        assert table.to_pydict() == {"who": ["a", "b\ufffd"], "age": ["1", "2"]}

    @pytest.mark.parametrize("piece", [1, 40, 1 << 20])
    @pytest.mark.parametrize(
        ("row", "said"),
        [
            ('a,5" pipe,2', ""),  # by what comes later, as of any odd number of quotes
            ('a,5"" pipe,2', "a quote within a cell without quotes"),
            ('a, "x",2', "a quote within a cell without quotes"),
            ('a,"x" ,2', "something between a closing quote and the next comma"),
            ('a,"x"y,2', "something between a closing quote and the next comma"),
            ('a,"x"\r,2', "something between a closing quote and the next comma"),
            ('a,"x,2', ""),
        ],
    )
    def test_a_malformed_file_is_refused_whole_and_without_a_value(self, row, said, piece, tmp_path, monkeypatch):
        monkeypatch.setattr(csv_file, "_PIECE", piece)
        for rest in ("", "b,x,2\n", 'b,"x",2\n' * 9):
            (tmp_path / "bad.csv").write_bytes(b"who,note,age\nq,q,1\n" + row.encode() + b"\n" + rest.encode())
            with pytest.raises(DataError, match="correctly quoted CSV file, got .*" + said) as caught:
                tables.read(tmp_path / "bad.csv", ("who", "age"))
            assert "pipe" not in str(caught.value)

    def test_a_row_without_an_end_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(csv_file, "_PIECE", 100)
        monkeypatch.setattr(csv_file, "LONGEST", 1000)
        (tmp_path / "bad.csv").write_text('who,age\na,"' + "1\n" * 10_000)
        with pytest.raises(DataError, match="a row of more than 256 MiB, or a quote that is never closed"):
            tables.read(tmp_path / "bad.csv", ("who",))
        (tmp_path / "bad.csv").write_text('"who,age\na,b' + "1\n" * 10_000)
        with pytest.raises(DataError, match="a first row that does not end"):
            tables.opened(tmp_path / "bad.csv").empty()

    def test_every_cell_is_what_a_reader_of_its_own_says(self, tmp_path, monkeypatch):
        """Against csv.reader, cell by cell, with pieces of any length."""
        draw = np.random.default_rng(2)
        for number in range(60):
            monkeypatch.setattr(csv_file, "_PIECE", int(draw.integers(1, 400)))
            table = {name: [str(draw.choice(TEXTS)) for _ in range(9)] for name in ("a", "b", "c")}
            how = ("minimal", "all", "unix", "arrow")[number % 4]
            path = self.write(table, how, tmp_path / "table.csv")
            with path.open(newline="", encoding="utf-8") as file:
                expected = list(csv.reader(file))[1:]
            found = tables.read(path, ("c", "a", "b")).select(["a", "b", "c"]).to_pylist()
            assert [[*row.values()] for row in found] == expected

    @pytest.mark.parametrize("count", [200, pytest.param(4000, id="all", marks=pytest.mark.slow)])
    def test_any_bytes_are_what_a_reader_of_one_letter_at_a_time_says(self, count, tmp_path, monkeypatch):
        """The same rows, or the same refusal, wherever pieces end."""
        draw, path = np.random.default_rng(7), tmp_path / "any.csv"
        parts = [*'a,,,"""\n\nb', '""', '"\n"', '"a,b"', "\r\n", "\r"]
        accepted = 0
        for _ in range(count):
            body = "".join(draw.choice(parts, draw.integers(0, 24)))
            path.write_bytes(("x,y\n" + body).encode())
            expected = letter_by_letter(body)
            accepted += expected is not None
            for piece in (1, 2, 5, 1 << 20):
                monkeypatch.setattr(csv_file, "_PIECE", piece)
                try:
                    batches = tables.opened(path).batches()
                    found = [[*row.values()] for batch in batches for row in batch.to_pylist()]
                except DataError:
                    found = None
                assert found == expected, body
        assert 0.1 * count < accepted < 0.9 * count


def letter_by_letter(body: str) -> list[list[str]] | None:
    """The rows of two cells below a header that LF ends; None where the file is malformed."""
    body += "\n" if body and body[-1] != "\n" else ""
    rows, row, cell, state, place = [], [], "", "start", 0
    while place < len(body):
        letter, rest = body[place], body[place:]
        place += 1
        if state == "quoted":
            if letter != '"':
                cell += letter
            elif rest[1:2] == '"':
                cell, place = cell + '"', place + 1
            else:
                state = "closed"
        elif letter in ",\n" or rest.startswith(("\r\n", "\r\r\n")):
            row, cell, state = [*row, cell], "", "start"
            if letter != ",":
                rows, row, place = [*rows, row], [], place + rest.index("\n")
        elif state == "closed" or (letter == '"' and state == "plain"):
            return None
        else:
            state = "quoted" if letter == '"' else "plain"
            cell += "" if letter == '"' else letter.replace("\r", "\ufffd")
    return None if state == "quoted" else [each for each in rows if len(each) == 2]


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
            missing = ("drop", "middle")[number // 4 % 2]
            found = outcome(self.frame(table, number), tmp_path, missing)
            assert found == expected_frame(missing), number

    @pytest.mark.parametrize("every", [3, pytest.param(1, id="all", marks=pytest.mark.slow)])
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

    @pytest.mark.parametrize("dtype", ["float32", "Float64", "float64[pyarrow]", "string", "str", "Int64", "boolean"])
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
        assert arrays.owners(frame["who"].to_numpy(), len(frame)).to_pylist() == names
        assert arrays.owners([*one, True, "true"], 8).to_pylist() == names[:8]


@cache
def expected_frame(missing: str) -> tuple[Any, ...]:
    """The outcome of the plain table."""
    return outcome(pd.DataFrame(base()), Path(), missing)


def stored(kind: pa.DataType, cells: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return stored(kind.value_type, cells).dictionary_encode()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.array([None if each is None else str(each) for each in cells], pa.large_string()).cast(kind)
    return pa.array(cells, pa.float64()).cast(kind, safe=False)


TEXT_KINDS = (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view())
NUMBER_KINDS = (pa.float64(), pa.float32(), pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.float16())


def typed(table: Table, number: int) -> pa.Table:
    """The table in types of Arrow that go round with the number; odd values are those that fit."""
    words, figures = TEXT_KINDS[number % len(TEXT_KINDS)], NUMBER_KINDS[number % len(NUMBER_KINDS)]
    kinds = {"age": figures, "size": figures, "code": figures, "count": pa.float64()}
    return pa.table({name: stored(kinds.get(name, words), cells) for name, cells in table.items()})


def fitting(number: int) -> Callable[[str], tuple[Any, ...]]:
    """Values that a writer can put into the types of that number."""
    figures = NUMBER_KINDS[number % len(NUMBER_KINDS)]
    plain = pa.types.is_floating(figures)

    def among(name: str) -> tuple[Any, ...]:
        if name in ("ward", "sick", "note") or (name in ("age", "size", "code") and not plain):
            return (*TEXTS, None)
        return (*NUMBERS, None)

    return among


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
    @pytest.mark.parametrize("count", spread(CHANGES // 4))
    def test_a_users_cells_are_its_own(self, count, tmp_path, monkeypatch):
        monkeypatch.setenv("QUORON_CACHE", str(tmp_path / "cache"))
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

    @staticmethod
    def outcome(folder: Path, table: pa.Table) -> tuple[Any, ...]:
        """Of a table whose rows are sorted by user."""
        folder.mkdir()
        pq.write_table(table.slice(0, 7), folder / "0.parquet", row_group_size=3)
        pq.write_table(table.slice(7), folder / "1.parquet", row_group_size=5)
        rules = configs.parse(RULES.format(path=str(folder), missing="drop"))
        held = hold(rules, folder)
        crowd = from_dataset(folder, held.encoding, user="who", loss=Logistic(), test_fraction=0.0, items_per_user=3)
        assert index.opened(folder, "who").users == held.declared.users
        return (held.declared.users, *others(crowd.items(np.arange(held.declared.users))))


class TestClient:
    """Of a client only its own rows are there: whether it takes part, and what is asked of its items."""

    @pytest.mark.parametrize("count", spread(CHANGES))
    @pytest.mark.parametrize("suffix", [".csv", ".parquet"])
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
                TestCSV.write(mine, TestCSV.WRITERS[number % 5], path)
            else:
                pq.write_table(typed(mine, number), path)
            check_one_user(path, one_user=False, items_per_user=None)
            assert read_own_table(path).num_rows == ROWS
            items = own_items(path, terms)
            assert items.batch.features.shape[1] == encoding.dimension
            assert len(items.batch.labels) in range(1, ROWS + 1)


def terms_of(encoding: Encoding) -> Terms:
    """A run that anybody could announce."""
    return Terms(
        run="r", algorithm="a", statement="s", epsilon=1.0, delta=1e-6, adjacency="replace-one", exposure="broadcast",
        rounds=1, participations=1, dimension=encoding.dimension, loss={"name": "logistic", "feature_norm": 1.0},
        domain={"l2-ball": 1.0}, columns=encoding,
    )  # fmt: skip


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
    assert [declare.read(each, "who", ["ward"])[2] for each in (table, views, coded)] == [USERS] * 3
    assert found[0][0] == USERS
    assert all(each == found[0] for each in found)
    assert TestFolder.outcome(tmp_path / "d", table) == found[0]

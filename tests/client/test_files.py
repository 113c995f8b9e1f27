"""Files of any kind as rows: the same whatever holds them, and nobody's bytes in another's row or in an error."""

import codecs
import csv
import gzip
import io
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from cover import by_default
from quoron.cli.app import app
from quoron.data.user_rows import group
from quoron_client.data import columns, tables, text_files
from quoron_client.data.files import unreadable
from quoron_client.data.formats import Dialect
from quoron_client.federation.own_table import check_one_user, several
from quoron_privacy.errors import DataError

ROWS: list[dict[str, Any]] = [
    {"who": "ada", "age": 36.5, "ward": "nörth"},
    {"who": "bob", "age": None, "ward": None},
    {"who": "ada", "age": -7.0, "ward": "a;b,c\t\"d\""},
    {"who": "eve", "age": 1e-300, "ward": "two\nlines"},
] * 50  # fmt: skip
TABLE = pa.Table.from_pylist(ROWS)
TEXT = [[*ROWS[0]], *([row["who"], "" if row["age"] is None else repr(row["age"]), row["ward"] or ""] for row in ROWS)]


def csv_text(rows: list[list[str]], separator: str = ",", **how: Any) -> str:
    held = io.StringIO()
    csv.writer(held, delimiter=separator, **how).writerows(rows)
    return held.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "a.csv": lambda: csv_text(TEXT).encode(),
    "a.csv.gz": lambda: gzip.compress(csv_text(TEXT).encode()),
    "two.csv.gz": lambda: b"".join(map(gzip.compress, (csv_text(TEXT[:9]).encode(), csv_text(TEXT[9:]).encode()))),
    "a.tsv": lambda: csv_text(TEXT, "\t").encode(),
    "semicolon.csv": lambda: csv_text(TEXT, ";").encode(),
    "bar.csv": lambda: csv_text(TEXT, "|").encode("utf-8-sig"),
    "wide.csv": lambda: csv_text(TEXT).encode("utf-16"),
    "wide.csv.gz": lambda: gzip.compress(codecs.BOM_UTF16_BE + csv_text(TEXT, ";").encode("utf-16-be")),
}
NAMES = ("ward", "who", "age")


def cells_of(held: tables.Opened, rows: int = 1 << 16) -> dict[str, Any]:
    """As encoding reads them, from all batches."""
    found = list(held.batches(NAMES, rows=rows))
    assert all(0 < each.num_rows <= rows and each.column_names == [*NAMES] for each in found)
    assert all(each.schema == held.empty(NAMES).schema for each in found)
    whole = pa.concat_tables(found)
    texts = {name: columns.texts(whole, name).to_pylist() for name in ("who", "ward")}
    return texts | {"age": columns.numbers(whole, "age").tobytes()}


EXPECTED = {
    "who": [row["who"] for row in ROWS],
    "ward": [row["ward"] for row in ROWS],
    "age": np.array([np.nan if row["age"] is None else row["age"] for row in ROWS]).tobytes(),
}


@pytest.fixture(params=["small pieces", "as they are"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small pieces":
        monkeypatch.setattr(text_files, "_PIECE", 50)


class TestEveryFormat:
    @pytest.mark.parametrize(
        "name",
        by_default(FILES, [name for name in FILES if name not in ("two.csv.gz", "wide.csv", "a.csv.gz", "bar.csv")]),
    )
    def test_of_a_file_gives_the_same_rows_each_time(self, name: str, tmp_path: Path, pieces: None) -> None:
        path = tmp_path / name
        path.write_bytes(FILES[name]())
        held = tables.opened(path)
        assert held.names == ("who", "age", "ward")
        for rows in (7, 1 << 16):
            assert cells_of(held, rows) == EXPECTED
        assert cells_of(tables.opened(path.as_uri())) == EXPECTED
        assert held.rows in (None, len(ROWS))
        assert not held.schema

    def test_of_batches_that_come_once_is_held_and_gives_the_same_rows_each_time(self) -> None:
        held = tables.opened(TABLE.to_reader(7))
        assert held.names == ("who", "age", "ward")
        for rows in (5, 1 << 16):
            assert cells_of(held, rows) == EXPECTED


class TestErrors:
    def test_of_a_file_that_changes_while_it_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(text_files, "_PIECE", 50)
        for name in ("a.csv", "a.csv.gz"):
            path = tmp_path / name
            path.write_bytes(FILES[name]())
            held = tables.opened(path)
            reading = held.batches(["who"], rows=5)
            next(reading)
            path.write_bytes(FILES[name]() + b"\n")
            with pytest.raises(DataError, match=f"Expected '{name}' as it was when it was opened, but it has changed"):
                list(reading)
            with pytest.raises(DataError, match="has changed"):
                [*held.batches(["who"])]
        pq.write_table(TABLE, tmp_path / "t.parquet")
        held = tables.opened(tmp_path / "t.parquet")
        pq.write_table(TABLE.slice(0, 9), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=r"Expected 't\.parquet' .*has changed"):
            [*held.batches()]

    def test_of_what_cannot_be_read_name_the_file_and_no_value(self, tmp_path: Path) -> None:
        secret = b"\xaeSECRET" * 300
        for name, data in [
            ("cut.csv.gz", gzip.compress(b"a,b\n" + secret)[:-20]),
            ("other.csv.gz", b"a,b\n" + secret),
            ("other.parquet", b"PAR1" + secret),
        ]:
            (tmp_path / name).write_bytes(data)
            with pytest.raises(DataError, match=f"^Expected '{name}'") as refused:
                [*tables.opened(tmp_path / name).batches()]
            assert "SECRET" not in str(refused.value)

    def test_of_a_file_of_somebody_else(self) -> None:
        assert "Expected 'a.csv' to be a file that this program may read" in str(unreadable("a.csv", PermissionError()))


class TestDialect:
    def test_is_told_from_the_header_and_the_name_and_never_from_a_row(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        for text, names in [
            ("a;b\n1,2,3\n", ("a", "b")),
            ("a,b\n1;2;3\n", ("a", "b")),
            ('"a;x",b\n', ("a;x", "b")),
            ("a\tb\n", ("a", "b")),
            ("a|b\n", ("a", "b")),
            ("alone\n1,2\n", ("alone",)),
        ]:
            path.write_text(text)
            assert tables.opened(path).names == names
        (tmp_path / "t.tsv").write_text("a,b\tc;d\n")
        assert tables.opened(tmp_path / "t.tsv").names == ("a,b", "c;d")

    def test_of_a_header_that_may_be_two_is_asked_for(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_text("a;b,c\n1;2,3\n")
        with pytest.raises(DataError, match=r"got ',' and ';'\. Declare separator"):
            tables.opened(path)
        assert tables.opened(path, Dialect(separator=";")).names == ("a", "b,c")
        assert tables.opened(path, Dialect(separator=",")).names == ("a;b", "c")

    def test_that_contradicts_the_first_bytes_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("a,b\n", encoding="utf-16")
        with pytest.raises(DataError, match="to be latin-1, as declared, got what begins like UTF-16"):
            tables.opened(tmp_path / "t.csv", Dialect(encoding="latin-1"))


class TestEdges:
    """Of files and of pieces."""

    @pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
    @pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
    def test_of_a_csv_file_lose_no_row(self, ending: str, mark: bytes, tmp_path: Path, pieces: None) -> None:
        path, body = tmp_path / "t.csv", ["1,x", "2,", ",", "3,y"]
        expected = [("1", "x"), ("2", ""), ("", ""), ("3", "y")]
        for text in (
            ending.join(["a,b", *body]),
            ending.join(["a,b", "", *body, "", ""]),
            ending * 2 + ending.join(["a,b", *body]),
        ):
            path.write_bytes(mark + text.encode())
            found = [row for batch in tables.opened(path).batches() for row in batch.to_pylist()]
            assert [tuple(row.values()) for row in found] == expected

    def test_of_cells_at_the_border_of_a_piece(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "t.csv"
        rows = [["a", "b"], *([f'{each}\n"', "é,"] for each in range(9))]
        path.write_bytes(csv_text(rows).encode())
        for piece in range(1, 90):
            monkeypatch.setattr(text_files, "_PIECE", piece)
            assert [[*row.values()] for row in tables.read(path).to_pylist()] == rows[1:]

    def test_of_a_mark_at_the_beginning_of_a_piece(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is a letter of its cell, wherever others' rows have moved it."""
        path = tmp_path / "t.csv"
        path.write_text("a,b\n" + "\ufeffx,1\n" * 9, "utf-8")
        for piece in (4, 8, 9, 1 << 20):
            monkeypatch.setattr(text_files, "_PIECE", piece)
            assert tables.read(path)["a"].to_pylist() == ["\ufeffx"] * 9


PLAIN = b"who,age\na,1\nb,2\n"


class TestNamesThatNobodyCanRead:
    NAMES = (b"M\xfcller", b"M\xf6ller", b"M\xe4ller", b"M\xfcller", b"\xed\xb2\x80", "M\ufffdller".encode())

    def test_of_text_stay_different_users_from_every_source(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_bytes(b"who\n" + b"\n".join(self.NAMES) + b"\n")
        raw = pa.array(self.NAMES)
        pq.write_table(pa.table({"who": raw, "text": raw.view(pa.string())}), tmp_path / "t.parquet")
        found = [group(tables.read(tmp_path / name, ["who"]), "who") for name in ("t.csv", "t.parquet")]
        found.append(group(tables.read(tmp_path / "t.parquet", ["text"]), "text"))
        assert {many for many, _ in found} == {5}
        assert len({tuple(owners) for _, owners in found}) == 1

    def test_of_bytes_stay_as_many_users_as_they_are(self) -> None:
        users = [uuid.UUID(int=each * 0x9E3779B97F4A7C15 % 2**64 << 60).bytes for each in range(500)]
        for kind in (pa.binary(16), pa.binary(), pa.large_binary(), *([pa.uuid()] if hasattr(pa, "uuid") else [])):
            assert group(pa.table({"who": pa.array(users * 2, kind)}), "who")[0] == 500
        assert group(pa.table({"who": columns.text_array(users)}), "who")[0] == 500


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_that_is_not_as_declared_shows_nobodys_rows(encoding: str, tmp_path: Path) -> None:
    """All of it is one row then, and its header would be told where a column is missing."""
    (tmp_path / "t.csv").write_bytes(PLAIN * 9)
    with pytest.raises(DataError, match=rf"to be {encoding}, as declared, got a first row that does not end") as told:
        tables.read(tmp_path / "t.csv", ["age"], dialect=Dialect(encoding=encoding))
    assert str(told.value).isascii()
    (tmp_path / "t.csv").write_bytes(PLAIN.decode().encode("utf-16-le"))
    assert tables.opened(tmp_path / "t.csv", Dialect(encoding="utf-16-le")).names == ("who", "age")


def test_a_quote_in_the_header_that_closes_in_a_row_shows_nobodys_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b'who,"age\nSecret,1\nb",x\nc,3,4\n')
    with pytest.raises(DataError, match="got columns who, age, x") as told:
        tables.read(tmp_path / "t.csv", ["who", "ill"])
    assert "Secret" not in str(told.value)


@pytest.mark.parametrize("how", ["t.parquet", "folder", "a reader"])
def test_names_of_columns_that_are_no_utf8_are_told(how: str, tmp_path: Path) -> None:
    """Bytes of another encoding where a schema has names, which Arrow finds only when one is asked for."""
    table, sink = pa.table({"who": ["a"], "ag--e": [1.0]}), pa.BufferOutputStream()
    if how.endswith((".parquet", "folder")):
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    data = sink.getvalue().to_pybytes().replace(b"ag--e", b"ag\xff\xfee")
    path = tmp_path / ("t.parquet" if how == "folder" else how)
    path.write_bytes(data)
    source = {"folder": tmp_path, "a reader": None}.get(how, path)
    for names in (None, ["who"], ["age"]):
        source = pa.ipc.open_stream(data) if how == "a reader" else source
        with pytest.raises(DataError, match=r"Expected the names of columns in '.*' in UTF-8, got other bytes"):
            tables.read(source, names)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("who, Age ", "got columns who,  Age . Did you mean ' Age '? Names are compared letter by letter"),
        ("who,agee", "got columns who, agee. Did you mean 'agee'?"),
        ("who,43,1.75", "got columns whose names are numbers. The table's first row has to name its columns"),
        ("who," + ",".join(f"x{each}" for each in "abcdefghijklmnopqrstuvwxyz"), "xs and 7 more. The table's"),
    ],
)
def test_a_column_that_is_not_there_is_told_with_the_fix(header, said, tmp_path):
    (tmp_path / "t.csv").write_text(header + "\n1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match="Expected column 'age' in the table, got ") as caught:
        tables.read(tmp_path / "t.csv", ("who", "age"))
    assert said in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("how", ["csv", "tsv", "csv.gz", "parquet", "pandas", "arrow"])
@pytest.mark.parametrize("row", ["Ann,AGEE,secret", " Who , Age ,secret", "agee,agee,secret"])
def test_a_first_row_without_any_wanted_name_is_somebodys_and_not_shown(row, how, tmp_path):
    """Not even what is nearly a name: whose names a table's columns have is said by the row itself."""
    path, cells = tmp_path / f"t.{how}", row.split(",")
    frame = pd.DataFrame([["1", "2", "3"]], columns=cells)
    source = {"pandas": frame, "arrow": None}.get(how, path)
    if how == "arrow":
        source = pa.table([pa.array(["1"])] * 3, names=cells)
    elif how == "parquet":
        pq.write_table(pa.table([pa.array(["1"])] * 3, names=cells), path)
    elif how != "pandas":
        text = (row.replace(",", "\t") if how == "tsv" else row) + "\n1\t2\t3\n"
        path.write_bytes(gzip.compress(text.encode()) if how == "csv.gz" else text.encode())
    for wanted in (("who", "age"), ("age",), ("ward", "who")):
        with pytest.raises(DataError, match=r"none of the wanted columns in its header.* above the rows") as caught:
            tables.read(source, wanted)
        assert not any(cell.strip() in str(caught.value) for cell in cells)
        assert ("upper and lower case" in str(caught.value)) == (row[0] == " " and wanted[0] != "ward")


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
    dates = np.datetime64("2024-01-01") + day.astype("timedelta64[D]")
    return pd.DataFrame({
        "date": [str(date) for date in dates],
        "compact": [int(str(date).replace("-", "")) for date in dates],
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
            check_one_user(tmp_path / "all.csv", one_user=False)
        assert "secret" not in str(caught.value)
        assert "300" not in str(caught.value).replace(str(tmp_path), "")
        check_one_user(tmp_path / "all.csv", one_user=True)


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
                              (["none.csv"], 2)):  # fmt: skip
        result = run(app, ["client", "--check", "--data", str(tmp_path / arguments[0]), *arguments[1:]])
        found = result.exception.exit_code if isinstance(result.exception, DataError) else result.exit_code
        assert found == status, result.output
    environment = {"QUORON_DATA": str(tmp_path / "all.csv"), "QUORON_ONE_USER": "1"}
    assert run(app, ["client", "--check"], env=environment).exit_code == 0

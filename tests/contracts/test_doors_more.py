"""The same contract for everything else that a table may come as: whatever one user's cells hold, nobody else's change.

`test_doors` has plain CSV, Parquet, folders, pandas and a client's own file, and says what is compared. Here are other
separators, encodings and quotes, packed files and frames that speak Arrow's protocol, each as a correct
writer writes it; what any bytes make of a file; and what people are shown.
"""

import csv
import gzip
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.doors import (
    ROWS,
    RULES,
    Table,
    alike,
    base,
    changed,
    every_change,
    fitting,
    outcome,
    spread,
    terms_of,
    typed,
)
from contracts.odd_values import TEXTS
from cover import by_default
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.simulation.problem import encoding_of
from quoron_client.data import columns, tables, text_files
from quoron_client.data.formats import Dialect
from quoron_client.federation.own_table import own_items, read_own_table
from quoron_client.losses import Logistic
from quoron_privacy.errors import QuoronError

CHANGES = 6  # of each way to write by default; 2,000 with -m slow
HALVES = ("\ud800", "a\udfff,", "\udc00\ud800", "\ud83d\n", "\ud83d,\ude00")  # of letters, as programs write them
WORDS = (*TEXTS, *HALVES)
Write = Callable[[Table, Path], Any]


def text(table: Table, separator: str, ending: str = "\r\n") -> str:
    """As Python's own writer writes it: quotes where they are needed."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator, lineterminator=ending)
    writer.writerow(table)
    writer.writerows(
        zip(*(["" if cell is None else str(cell) for cell in cells] for cells in table.values()), strict=True)
    )
    return file.getvalue()


def separated(name: str, separator: str, encoding: str = "utf-8", ending: str = "\r\n") -> Write:
    """Cells as text."""

    def write(table: Table, folder: Path) -> Any:
        data = text(table, separator, ending).encode(encoding, errors="surrogatepass")
        (folder / name).write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
        return name

    return write


WRITERS: dict[str, Write] = {
    "gz": separated("t.csv.gz", ","),
    "semicolons": separated("t.csv", ";"),
    "tabs": separated("t.tsv", "\t", ending="\n"),
    "bars": separated("t.csv", "|", ending="\n"),
    "utf-16": separated("t.csv", ",", "utf-16"),
    "utf-16 packed": separated("t.csv.gz", ";", "utf-16"),
    "byte order mark": separated("t.csv", ",", "utf-8-sig"),
}


class Streamed:
    """What polars and others are to whoever knows none of them: Arrow's protocol, and no method of pandas."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        del requested_schema
        return self._table.__arrow_c_stream__()


ARROW: dict[str, Callable[[pa.Table, Path], Any]] = {
    "the protocol": lambda table, folder: Streamed(table),
    "in chunks": lambda table, folder: pa.concat_tables([table.slice(0, 5), table.slice(5, 1), table.slice(6)]),
}


@pytest.fixture
def small_pieces(monkeypatch):
    """So that many changes lie over their ends."""
    monkeypatch.setattr(text_files, "_PIECE", 512)


@pytest.mark.parametrize("count", spread(CHANGES))
@pytest.mark.parametrize("how", by_default(WRITERS, ("tabs", "utf-16 packed", "byte order mark")))
def test_cells_of_a_text_file_are_their_users_own(how, count, tmp_path, small_pieces):
    write = WRITERS[how]
    expected = outcome(write(base(), tmp_path), tmp_path)
    assert expected[0] == len({*base()["who"]})
    for number, table in picked(count, WORDS):
        assert outcome(write(table, tmp_path), tmp_path) == expected, number


@pytest.mark.parametrize("count", spread(CHANGES))
@pytest.mark.parametrize("how", ARROW)
def test_cells_of_arrow_are_their_users_own(how, count, tmp_path):
    write, draw = ARROW[how], np.random.default_rng(9)
    expected = {}
    for number in range(count):
        among = fitting(number)
        kind = number % 20
        if kind not in expected:
            expected[kind] = outcome(write(typed(base(), kind), tmp_path), tmp_path)
        table = alike(number, among) if number % 3 == 0 else changed(draw, base(), among)
        assert outcome(write(typed(table, kind), tmp_path), tmp_path) == expected[kind], number


def picked(count: int, among: tuple[Any, ...]) -> Any:
    """Tables with another u03 each: single values throughout, evenly chosen, and then mixtures."""
    every = list(every_change(count if count > CHANGES else len(among) + count // 2, lambda name: among))
    single, mixed = every[: len(among)], every[len(among) :]
    return every if count > CHANGES else [*single[:: max(1, 2 * len(single) // count)], *single[-12:], *mixed]


def test_the_same_values_are_the_same_items_however_they_are_written(tmp_path):
    table = pa.table(base())
    found = [outcome(write(base(), tmp_path), tmp_path) for write in WRITERS.values()]
    found += [outcome(write(table, tmp_path), tmp_path) for write in ARROW.values()]
    assert all(each == outcome(table, tmp_path) for each in found)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16-le", "utf-16-be"])
def test_of_a_declared_encoding_too(encoding, tmp_path, small_pieces):
    """Other people's cells, to the letter: a letter that cannot be written is somebody else's matter."""
    dialect = Dialect(encoding=encoding)
    for number, table in picked(CHANGES // 2, TEXTS):
        path = tmp_path / "t.csv"
        path.write_bytes(text(table, ",").encode(encoding, errors="replace"))
        assert others(tables.read(path, dialect=dialect)) == others(pa.table(rows(base()))), number


def test_without_quotes_a_line_is_a_row(tmp_path, small_pieces):
    """Of a file whose writer knows no quotes: a cell may hold anything but what separates cells and rows."""
    dialect = Dialect(separator="\t", quoting="none")
    words = tuple(each for each in TEXTS if not {*"\t\n\r\0"} & {*each})
    assert '"a' in words
    for number, table in picked(CHANGES, words):
        path = tmp_path / "t.tsv"
        found = rows(table)
        path.write_bytes("\n".join("\t".join(row) for row in [found, *zip(*found.values(), strict=True)]).encode())
        assert others(tables.read(path, dialect=dialect)) == others(pa.table(rows(base()))), number


def rows(table: Table) -> dict[str, list[str]]:
    """All cells as text."""
    return {name: ["" if cell is None else str(cell) for cell in cells] for name, cells in table.items()}


def others(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of everybody but u03."""
    return [row for row in table.to_pylist() if row["who"] != "u03"]


@pytest.mark.parametrize("name", by_default(["mine.csv.gz", "mine.tsv", "mine16.csv"], ["mine16.csv"]))
def test_a_client_takes_part_whatever_its_own_file_holds(name, tmp_path, small_pieces):
    rules = configs.parse(RULES.format(path="mine", missing="drop")).population
    assert isinstance(rules, configs.TableSection)
    encoding = encoding_of(rules, Logistic())
    terms, path = terms_of(encoding), tmp_path / name
    own = [row for row, who in enumerate(base()["who"]) if who == "u03"]
    written = {
        "mine.csv.gz": separated(name, ","),
        "mine.tsv": separated(name, "\t"),
        "mine16.csv": separated(name, ";", "utf-16"),
    }
    for _, table in picked(CHANGES, WORDS):
        written[name]({key: [cells[row] for row in own] for key, cells in table.items()}, tmp_path)
        items = own_items(path, terms)
        assert items.batch.features.shape[1] == encoding.dimension
        assert len(items.batch.labels) in range(1, ROWS + 1)


SHOWN = """
[privacy]
epsilon = 4.0
delta = 1e-3
allow_large_delta = true
[algorithm]
name = "one-pass-dp-sgd"
options = { rounds = 2 }
[domain]
radius = 3.0
"""


@pytest.mark.parametrize("how", ["gz", "utf-16", "semicolons"])
def test_what_is_shown_before_the_charge_is_the_same(how, tmp_path, monkeypatch, capsys):
    """Standard output, standard error and the exit status of a dry run, for the oddest cells there are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    write = WRITERS[how]
    name = write(base(), tmp_path)
    (tmp_path / "t.toml").write_text(RULES.format(path=name, missing="drop") + SHOWN, encoding="utf-8")
    tables_shown = [base(), *(table for _, table in picked(CHANGES, WORDS)[-3:])]
    said = []
    for table in tables_shown:
        write(table, tmp_path)
        status = invoke(["train", "t.toml", "--dry-run"])
        said.append((status, *capsys.readouterr()))
    assert said[0][0] == 0, said[0]
    assert all(each == said[0] for each in said[1:])


BYTES = st.one_of(
    st.binary(max_size=300),
    st.lists(
        st.sampled_from([b"who", b"age", b"secret-7", b",", b";", b"\t", b"\n", b"\r\n", b"\r", b'"', b'""', b"{", b"}",
                         b'{"who": "secret-7", "age": 1}', b":", b"\\ud800", b"\xff", b"\xff\xfe", b"\xef\xbb\xbf",
                         b"\x00", b"1e999", b"NaN", b"[" * 50, b"\xed\xa0\x80", b"\x1f\x8b"]),
        max_size=40,
    ).map(b"".join),
)  # fmt: skip
SUFFIXES = ("csv", "tsv", "csv.gz", "jsonl", "parquet", "feather", "arrow", "txt", "xlsx")
HEADS = (
    b"",
    b"who,age\n",
    "who;age\n".encode("utf-16"),
    gzip.compress(b"who,age\nu1,1\n", mtime=0)[:25],
    b"PAR1",
    b"ARROW1\0\0",
)


@given(body=BYTES, head=st.sampled_from(HEADS), suffix=st.sampled_from(SUFFIXES), packed=st.booleans())
def test_any_bytes_are_a_table_or_a_told_error_without_a_value(tmp_path_factory, body, head, suffix, packed):
    """Rows, or DataError: nothing else is ever raised, and no cell below the header is in a message."""
    path = once(tmp_path_factory) / f"any.{suffix}"
    data = head + body
    path.write_bytes(gzip.compress(data, mtime=0) if packed and suffix.endswith("gz") else data)
    said = fault(path)
    assert not said or ("Expected" in said and len(said) < 2000)
    if head == b"who,age\n":
        assert "secret-7" not in said


@given(body=BYTES, cut=st.integers(0, 400), place=st.integers(0, 2000))
def test_a_damaged_file_is_a_told_error_or_a_table(tmp_path_factory, body, cut, place):
    """A written one of which bytes have been replaced, or the end is missing."""
    data = bytearray(stored())
    where = place % len(data)
    data[where : where + len(body)] = body
    path = once(tmp_path_factory) / "damaged.parquet"
    path.write_bytes(bytes(data[: len(data) - cut] if cut % 2 else data))
    assert "u03" not in fault(path)


def fault(path: Path) -> str:
    """What is said of a file that is no table; nothing of one that is."""
    try:
        table = tables.read(path, ("who", "age"))
        columns.numbers(table, "age")
        columns.texts(table, "who").to_pylist()
    except QuoronError as error:
        return str(error)
    return ""


@cache
def stored() -> bytes:
    """The plain table as a Parquet file."""
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table(base()), sink)
    return bytes(sink.getvalue().to_pybytes())


_FOLDERS: list[Path] = []


def once(factory: pytest.TempPathFactory) -> Path:
    """A folder of this process."""
    if not _FOLDERS:
        _FOLDERS.append(factory.mktemp("any"))
    return _FOLDERS[0]


def test_a_client_says_the_same_of_a_file_that_is_none(tmp_path):
    for name in ("mine.txt", "mine.xlsx", "mine"):
        (tmp_path / name).write_bytes(b"who,age\nsecret-7,1\n")
        with pytest.raises(QuoronError, match=r"ends in \.csv") as caught:
            read_own_table(tmp_path / name)
        assert "secret-7" not in str(caught.value)

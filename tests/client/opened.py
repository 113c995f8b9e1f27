"""One table, written in every format that is read, and how it is read back."""

import codecs
import csv
import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather

from quoron_client.data import columns, tables

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


def json_text() -> str:
    return "".join(json.dumps(row) + "\n" for row in ROWS)


def arrow_bytes(new: Callable[..., Any], compression: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    with new(sink, TABLE.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_table(TABLE, 7)
    return bytes(sink.getvalue())


FILES: dict[str, Callable[[], bytes]] = {
    "a.csv": lambda: csv_text(TEXT).encode(),
    "a.csv.gz": lambda: gzip.compress(csv_text(TEXT).encode()),
    "two.csv.gz": lambda: b"".join(map(gzip.compress, (csv_text(TEXT[:9]).encode(), csv_text(TEXT[9:]).encode()))),
    "a.tsv": lambda: csv_text(TEXT, "\t").encode(),
    "semicolon.csv": lambda: csv_text(TEXT, ";").encode(),
    "bar.csv": lambda: csv_text(TEXT, "|").encode("utf-8-sig"),
    "wide.csv": lambda: csv_text(TEXT).encode("utf-16"),
    "wide.csv.gz": lambda: gzip.compress(codecs.BOM_UTF16_BE + csv_text(TEXT, ";").encode("utf-16-be")),
    "a.jsonl": lambda: json_text().encode(),
    "a.ndjson": lambda: json_text().replace("\n", "\r\n\n").encode("utf-8-sig"),
    "a.jsonl.gz": lambda: gzip.compress(json_text().encode()[:-1]),
    "a.feather": lambda: arrow_bytes(pa.ipc.new_file, None),
    "lz4.feather": lambda: arrow_bytes(pa.ipc.new_file, "lz4"),
    "zstd.arrow": lambda: arrow_bytes(pa.ipc.new_file, "zstd"),
    "stream.arrow": lambda: arrow_bytes(pa.ipc.new_stream, "zstd"),
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

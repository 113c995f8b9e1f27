"""One way in for tables: the same rows from whatever holds them, each time, and nobody's bytes in another's row."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from client.opened import EXPECTED, FILES, ROWS, TABLE, cells_of
from quoron_client.data import csv_file, json_lines, tables
from quoron_client.data.files import unreadable
from quoron_privacy.errors import DataError


class TestEveryFormat:
    @pytest.mark.parametrize("name", FILES)
    def test_of_a_file_gives_the_same_rows_each_time(self, name: str, tmp_path: Path, pieces: None) -> None:
        path = tmp_path / name
        path.write_bytes(FILES[name]())
        held = tables.opened(path)
        assert held.names == (() if "json" in name else ("who", "age", "ward"))
        for rows in (7, 1 << 16):
            assert cells_of(held, rows) == EXPECTED
        assert cells_of(tables.opened(path.as_uri())) == EXPECTED
        assert held.rows in (None, len(ROWS))
        assert {*held.schema} == ({"who", "age", "ward"} if "feather" in name or "arrow" in name else set())

    @pytest.mark.parametrize("compression", ["NONE", "snappy", "zstd"])
    def test_of_parquet_files_too(self, compression: str, tmp_path: Path) -> None:
        folder = tmp_path / "rows"
        folder.mkdir()
        for number in range(2):
            part = TABLE.slice(100 * number, 100)
            pq.write_table(part, folder / f"{number}.parquet", compression=compression, row_group_size=30)
        pq.write_table(TABLE, tmp_path / "one.parquet", compression=compression, row_group_size=90)
        for source in (folder, str(folder), folder.as_uri(), tmp_path / "one.parquet"):
            held = tables.opened(source)
            assert (held.rows, held.schema["age"]) == (len(ROWS), pa.float64())
            assert cells_of(held, 13) == cells_of(held) == EXPECTED

    @pytest.mark.parametrize("kind", [None, object, "category", "string"])
    def test_of_pandas_frames_by_their_dtypes(self, kind: Any) -> None:
        frame = TABLE.to_pandas()
        frame[["who", "ward"]] = frame[["who", "ward"]].astype(kind or frame["who"].dtype)
        held = tables.opened(frame)
        assert (held.schema, held.rows) == ({}, len(ROWS))
        assert cells_of(held, 13) == cells_of(held) == EXPECTED

    def test_of_frames_whose_index_cannot_be_cut(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """pandas compares values of an index when it is cut, and of categories that are one."""
        frame = pd.DataFrame({"x": pd.Categorical(list("abca")), "n": range(4)}, index=list("wxyz"))

        def cut(*_: object) -> None:
            raise TypeError("argument must be an integer")

        monkeypatch.setattr(pd.Index, "_getitem_slice", cut)
        held = tables.opened(frame)
        assert held.empty().column_names == ["x", "n"]
        found = [row for batch in held.batches(rows=3) for row in batch.to_pylist()]
        assert found == [{"x": each, "n": place} for place, each in enumerate("abca")]

    def test_of_tables_and_frames_that_arrow_knows(self) -> None:
        polars = pytest.importorskip("polars")
        batch = TABLE.combine_chunks().to_batches()[0]
        for source in (TABLE, batch, pa.concat_tables([TABLE.slice(0, 9), TABLE.slice(9)]), polars.from_arrow(TABLE)):
            held = tables.opened(source)
            assert (held.rows, {*held.schema}) == (len(ROWS), {"who", "age", "ward"})
            assert cells_of(held, 13) == cells_of(held) == EXPECTED
            assert tables.opened(held) is held

    def test_of_batches_that_come_once_is_read_once(self) -> None:
        held = tables.opened(TABLE.to_reader(7))
        assert held.names == ("who", "age", "ward")
        assert cells_of(held, 5) == EXPECTED
        with pytest.raises(DataError, match="can be read again, got a RecordBatchReader that has been read"):
            next(held.batches())

    def test_of_a_frame_is_no_second_copy(self) -> None:
        """What batches of a frame take is some of it, at any time."""
        frame = pd.DataFrame({"x": np.arange(1_000_000.0), "who": np.arange(1_000_000)})
        held = tables.opened(frame)
        for batch in held.batches(rows=10_000):
            assert batch.nbytes <= 160_000


class TestErrors:
    def test_of_a_file_that_changes_while_it_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(csv_file, "_PIECE", 50)
        monkeypatch.setattr(json_lines, "_PIECE", 50)
        for name in ("a.csv", "a.jsonl", "a.feather", "a.csv.gz"):
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
            ("other.feather", b"ARROW1\0\0" + secret),
            ("other.arrow", secret),
            ("other.parquet", b"PAR1" + secret),
            ("cut.feather", FILES["lz4.feather"]()[:900]),
        ]:
            (tmp_path / name).write_bytes(data)
            with pytest.raises(DataError, match=f"^Expected '{name}'") as refused:
                [*tables.opened(tmp_path / name).batches()]
            assert "SECRET" not in str(refused.value)

    def test_of_a_file_of_somebody_else(self) -> None:
        assert "Expected 'a.csv' to be a file that this program may read" in str(unreadable("a.csv", PermissionError()))

    def test_of_places_without_a_table(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").touch()
        for source, said in [
            (tmp_path, "Expected Parquet files in"),
            (tmp_path / "nowhere.csv", "found no such file"),
            (tmp_path / "nowhere.jsonl", "found no such file"),
            (tmp_path / "a.xlsx", r"Expected a table that ends in .csv, .*got 'a.xlsx'"),
            (tmp_path / "a.parquet.gz", "Expected a table that ends in"),
            ("s3://ada:secret@bucket/a.csv", "a URL without credentials"),
            ("nowhere://bucket/a.csv", "Expected to reach"),
            (7, "Expected a path, a DataFrame or a pyarrow Table, got int"),
        ]:
            with pytest.raises(DataError, match=said) as refused:
                tables.opened(source)
            assert "secret" not in str(refused.value)

    def test_of_columns_come_before_any_row(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("a,a,b\n1,2,3\n")
        held = tables.opened(tmp_path / "t.csv")
        with pytest.raises(DataError, match="Expected column 'c' in the table, got columns a, a, b"):
            held.batches(["b", "c"])
        with pytest.raises(DataError, match="one column 'a' in the table, got 2"):
            held.empty(["a"])

"""One way in for tables: the same rows from whatever holds them, each time, and nobody's bytes in another's row."""

import gzip
from pathlib import Path

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

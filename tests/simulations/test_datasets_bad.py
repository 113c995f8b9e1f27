"""Folders of Parquet that are damaged, or change under a run: every wrong file is named, and nothing is lost."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quoron
from quoron.datasets.index import opened, renewed
from quoron.datasets.population import from_dataset
from quoron.sections import Keep
from quoron_client.data.files import Files
from quoron_client.losses import Logistic
from quoron_privacy.errors import DataError
from row_files import RULES, Stop, Stopping, described, in_order, little, rows

pytestmark = pytest.mark.usefixtures("planned_once")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many pieces and buckets of little data."""
    little(monkeypatch, tmp_path)


class TestBadFiles:
    def items(self, folder: Path):
        return from_dataset(folder, RULES, user="who", loss=Logistic(), test_fraction=0.0).items(np.arange(10))

    @pytest.mark.parametrize("column", ["a", "b", "sick"])
    def test_a_damaged_page_is_named_by_file_row_group_and_column(self, column, tmp_path):
        in_order(rows(400), tmp_path / "d")
        path = tmp_path / "d" / "part-001.parquet"
        footer = pq.ParquetFile(path).metadata
        place = footer.schema.names.index(column)
        chunk = footer.row_group(2).column(place)
        data = bytearray(path.read_bytes())
        at = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size // 2
        for k in range(at, at + 8):
            data[k] ^= 0xFF
        path.write_bytes(bytes(data))
        with pytest.raises(
            DataError, match=rf"'part-001.parquet' to be readable, but column '{column}' of its row group 2"
        ):
            self.items(tmp_path / "d")

    def test_another_type_and_a_missing_column_are_named(self, tmp_path):
        table = rows(60)
        in_order(table, tmp_path / "d")
        path, own = tmp_path / "d" / "part-001.parquet", pq.read_table(tmp_path / "d" / "part-001.parquet")
        pq.write_table(own.set_column(1, "a", own["a"].cast(pa.float64())), path)
        with pytest.raises(DataError, match=r"column 'a' of 'part-001.parquet' to be float, .*got double"):
            self.items(tmp_path / "d")
        pq.write_table(own.drop_columns(["b"]), path)
        renewed(tmp_path / "d", "who")
        with pytest.raises(DataError, match=r"one column 'b' in 'part-001.parquet', as in 'part-000.parquet', got 0"):
            self.items(tmp_path / "d")

    def test_a_file_of_a_partition_is_named_without_the_partitions_value(self, tmp_path):
        """A path may hold a user's cell: what is said is its key, and which of all files it is."""
        for number, zip_ in enumerate(("02139", "secret%2F7", "secret'8")):
            folder = tmp_path / "d" / f"zip={zip_}"
            folder.mkdir(parents=True)
            pq.write_table(rows(30 * (number + 1)).slice(30 * number), folder / "p.parquet")
        opened(tmp_path / "d", "who")
        for path in sorted((tmp_path / "d").glob("zip=s*/*")):
            path.write_bytes(path.read_bytes()[:-200])
            for read in (self.items, lambda folder: renewed(folder, "who")):
                with pytest.raises(DataError, match=r"'zip=\.\.\./p.parquet'? ") as error:
                    read(tmp_path / "d")
                assert "secret" not in str(error.value)
        assert "(file 2)" in str(error.value)

    def test_nothing_there_is_said(self, tmp_path):
        (tmp_path / "d").mkdir()
        with pytest.raises(DataError, match="Expected Parquet files in"):
            Files.found(tmp_path / "d")
        with pytest.raises(DataError, match="Expected to reach 'nostore://x'"):
            Files.found("nostore://x")

    def test_a_file_that_changes_under_the_run_is_a_clear_error(self, tmp_path):
        in_order(rows(60), tmp_path / "d")
        crowd = from_dataset(tmp_path / "d", RULES, user="who", loss=Logistic(), test_fraction=0.0)
        path = tmp_path / "d" / "part-002.parquet"
        kept = path.read_bytes()
        os.utime(path, ns=(1, 1))
        with pytest.raises(DataError, match=r"'part-002.parquet' in .* as it was, but it has changed"):
            crowd.items(np.arange(10))
        path.unlink()
        with pytest.raises(DataError, match=r"'part-002.parquet' in .*, but it has disappeared"):
            crowd.items(np.arange(10))
        assert kept


def test_an_index_of_other_lengths_is_refused(tmp_path):
    in_order(rows(300), tmp_path / "d")
    made = opened(tmp_path / "d", "who")
    path = made.folder / "piece-000001.lengths"
    lengths = np.frombuffer(path.read_bytes(), "<i4")
    for wrong in (lengths[:-1], lengths + 1, lengths[::-1], lengths[:0]):
        path.write_bytes(wrong.tobytes())
        with pytest.raises(DataError, match="Make it again with `quoron index`"):
            opened(tmp_path / "d", "who").held()
    path.unlink()
    with pytest.raises(DataError, match=r"got FileNotFoundError\. Make it again with `quoron index`"):
        opened(tmp_path / "d", "who").held()
    np.testing.assert_array_equal(renewed(tmp_path / "d", "who").held(), made.held())


def test_a_run_whose_files_change_loses_nothing(tmp_path):
    """Interrupted, then the folder differs: refused by name; put back, the run goes on to the same bits."""
    in_order(rows(1200), tmp_path / "d")
    whole = quoron.simulate(described(tmp_path, "d"), keep=Keep(tmp_path / "whole"))

    with pytest.raises(Stop):
        quoron.simulate(described(tmp_path, "d"), keep=Keep(tmp_path / "run"), observers=[Stopping()])
    path = tmp_path / "d" / "part-000.parquet"
    stood = path.stat().st_mtime_ns
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match=r"'part-000.parquet'"):
        quoron.resume(tmp_path / "run")
    os.utime(path, ns=(stood, stood))
    np.testing.assert_array_equal(quoron.resume(tmp_path / "run").model, whole.model)

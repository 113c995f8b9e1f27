"""What is refused of a folder of files: users who cannot be numbered, damaged files, and those that have changed."""

import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quoron
from quoron.data.index import Index, opened
from quoron.data.population import from_dataset
from quoron_client.data.files import Files
from quoron_client.losses import Logistic
from quoron_privacy.errors import DataError, OtherVersion
from row_files import RULES, Stop, Stopping, described, in_buckets, in_order, little, rows


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many pieces and buckets of little data."""
    little(monkeypatch, tmp_path)


LAID = pytest.mark.parametrize("laid", [in_order, in_buckets])


def said(index: Index) -> list[bytes]:
    """All that an index says to whoever reads rows by it."""
    found = [repr((index.users, index.sorted, index.pieces, index.digest)).encode(), index.order.tobytes()]
    for piece in index.pieces:
        ranks, lengths = index.runs(piece)
        found += [ranks.tobytes(), lengths.tobytes()]
        found += [repr(index.part_with(piece, np.arange(index.users) % 7 == 0)).encode()]
    return found


def rewritten(path: Path, change) -> None:
    """Other rows in a Parquet file of the same size, at the same time of change."""
    found, table = path.stat(), pq.read_table(path)
    pq.write_table(change(table), path, row_group_size=137, use_dictionary=False, compression="none")
    assert path.stat().st_size == found.st_size
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def flat(table: pa.Table, folder: Path) -> Path:
    """One file whose size does not depend on its names."""
    folder.mkdir()
    path = folder / "x.parquet"
    pq.write_table(table, path, row_group_size=137, use_dictionary=False, compression="none")
    return path


def as_another(table: pa.Table) -> pa.Table:
    """The last row of a user of several becomes the next one's."""
    who = table["who"].to_pylist()
    last = next(row for row in range(1, len(who)) if who[row - 1] == who[row] != who[row + 1])
    who[last] = who[last + 1]
    return table.set_column(table.column_names.index("who"), "who", [who])


class TestTheIndex:
    @LAID
    def test_says_the_same_when_it_is_made_again_and_in_another_process(self, laid, tmp_path):
        laid(rows(200), tmp_path / "d")
        made = opened(tmp_path / "d", "who")
        assert (made.users, made.sorted) == (200, laid is in_order)
        assert said(opened(tmp_path / "d", "who")) == said(pickle.loads(pickle.dumps(made))) == said(made)

    def test_of_a_user_column_that_changed_under_the_same_size_and_time_is_another(self, tmp_path):
        path = flat(rows(400), tmp_path / "d")
        config = described(tmp_path, str(path.parent))
        with pytest.raises(Stop):
            quoron.train(config, out=tmp_path / "run", observers=[Stopping()])
        rewritten(path, as_another)
        with pytest.raises(OtherVersion, match="the same table, but it began with another"):
            quoron.train(config, out=tmp_path / "run")

    def test_a_user_in_two_unsorted_files_is_refused_by_the_files_names(self, tmp_path):
        in_buckets(rows(100), tmp_path / "d")
        path = tmp_path / "d" / "bucket-002.parquet"
        stray = pq.read_table(tmp_path / "d" / "bucket-000.parquet").slice(0, 1)
        pq.write_table(pa.concat_tables([pq.read_table(path), stray]), path, row_group_size=50)
        with pytest.raises(
            DataError,
            match=r"of column 'who' in one file.*in 'bucket-000.parquet' and in 'bucket-002",
        ) as error:
            opened(tmp_path / "d", "who")
        assert "u000" not in str(error.value)

    def test_is_made_again_of_files_that_have_changed(self, tmp_path):
        in_order(rows(60), tmp_path / "d")
        opened(tmp_path / "d", "who")
        (tmp_path / "d" / "part-002.parquet").unlink()
        assert opened(tmp_path / "d", "who").users < 60


class TestBadFiles:
    def items(self, folder: Path):
        return from_dataset(folder, RULES, user="who", loss=Logistic(), test_fraction=0.0).items(np.arange(10))

    @pytest.mark.parametrize("column", ["a", "b", "sick"])
    def test_a_damaged_page_is_named_by_file_and_row_group(self, column, tmp_path):
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
        with pytest.raises(DataError, match=r"'part-001\.parquet' to be readable, but its row group 2 is not"):
            self.items(tmp_path / "d")

    def test_another_type_and_a_missing_column_are_named(self, tmp_path):
        table = rows(60)
        in_order(table, tmp_path / "d")
        path, own = tmp_path / "d" / "part-001.parquet", pq.read_table(tmp_path / "d" / "part-001.parquet")
        pq.write_table(own.set_column(1, "a", own["a"].cast(pa.float64())), path)
        with pytest.raises(DataError, match=r"column 'a' of 'part-001.parquet' to be float, .*got double"):
            self.items(tmp_path / "d")
        pq.write_table(own.drop_columns(["b"]), path)
        opened(tmp_path / "d", "who")
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
            for read in (self.items, lambda folder: opened(folder, "who")):
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


def test_a_run_whose_files_change_loses_nothing(tmp_path):
    """Interrupted, then the folder differs: refused by name; put back, the run goes on to the same bits."""
    in_order(rows(1200), tmp_path / "d")
    whole = quoron.simulate(described(tmp_path, "d"), out=tmp_path / "whole")

    with pytest.raises(Stop):
        quoron.simulate(described(tmp_path, "d"), out=tmp_path / "run", observers=[Stopping()])
    path = tmp_path / "d" / "part-000.parquet"
    stood = path.stat().st_mtime_ns
    os.utime(path, ns=(1, 1))
    with pytest.raises(OtherVersion, match="Go on with the data"):
        quoron.resume(tmp_path / "run")
    os.utime(path, ns=(stood, stood))
    np.testing.assert_array_equal(quoron.resume(tmp_path / "run").weights, whole.weights)

"""Nothing of an index or a file is believed as it lies there: forged, flipped, linked, stale, damaged, it is refused.

A promise to every user stands on it: an index that has four hundred users as two thousand would let one user count
five times.
"""

import dataclasses
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quoron
from quoron.data import index
from quoron.data.index import Index, opened
from quoron.data.population import from_dataset
from quoron_client.data.files import Files
from quoron_client.losses import Logistic
from quoron_privacy.errors import DataError, OtherVersion, QuoronError, RunError
from row_files import RULES, Stop, Stopping, described, in_buckets, in_order, little, rows


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many pieces and buckets of little data."""
    little(monkeypatch, tmp_path)


LAID = pytest.mark.parametrize("laid", [in_order, in_buckets])


def said(index: Index) -> list[bytes]:
    """All that an index says to whoever reads rows by it."""
    found = [repr((index.users, index.sorted, index.parts)).encode(), index.order.tobytes()]
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
    """The last row of the twentieth user becomes the twenty-first's."""
    who = table["who"].to_pylist()
    names = sorted(set(who))
    who[who.index(names[20]) - 1] = names[20]
    return table.set_column(table.column_names.index("who"), "who", [who])


class TestWhatTheIndexSays:
    @LAID
    def test_a_flipped_byte_is_found_or_changes_nothing(self, laid, tmp_path):
        laid(rows(200), tmp_path / "d")
        made = opened(tmp_path / "d", "who")
        expected, draw = said(made), np.random.Generator(np.random.Philox(1))
        files = sorted(path for path in made.folder.iterdir() if path.stat().st_size)
        found = 0
        for _ in range(60):
            path = files[draw.integers(len(files))]
            kept = path.read_bytes()
            at = int(draw.integers(len(kept)))
            flipped = bytearray(kept)
            flipped[at] ^= 1 << int(draw.integers(8))
            path.write_bytes(flipped)
            try:
                assert said(opened(tmp_path / "d", "who")) == expected, (path.name, at)
            except DataError:
                found += 1
            path.write_bytes(kept)
        assert found > 30
        assert said(opened(tmp_path / "d", "who")) == expected

    def test_one_that_is_damaged_is_made_again_and_a_damaged_piece_of_it_is_named(self, tmp_path):
        in_buckets(rows(200), tmp_path / "d")
        made = opened(tmp_path / "d", "who")
        expected = said(made)
        for name in ("piece-000000.ranks", "piece-000001.lengths"):
            (made.folder / name).write_bytes(b"{}")
            with pytest.raises(DataError, match=r"got another\. Delete the folder .* and it is made again"):
                said(opened(tmp_path / "d", "who"))
            shutil.rmtree(made.folder)
            assert said(opened(tmp_path / "d", "who")) == expected
        (made.folder / "index").write_bytes(b"{}")
        assert said(opened(tmp_path / "d", "who")) == expected


class TestWhereItLies:
    def test_never_with_the_data_and_what_lies_there_is_not_looked_at(self, tmp_path):
        in_order(rows(60), tmp_path / "d")
        (tmp_path / "d" / "_quoron").mkdir()
        (tmp_path / "d" / "_quoron" / "index.json").write_text("{}")
        before = sorted(tmp_path.joinpath("d").rglob("*"))
        made = opened(tmp_path / "d", "who")
        assert made.folder.is_relative_to(tmp_path / "cache")
        assert sorted(tmp_path.joinpath("d").rglob("*")) == before
        assert made.folder.stat().st_mode & 0o777 == 0o700
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in made.folder.iterdir())

    @pytest.mark.parametrize("name", ["index", "piece-000000.lengths"])
    def test_no_link_is_followed_or_written_through(self, name, tmp_path):
        in_order(rows(60), tmp_path / "d")
        made = opened(tmp_path / "d", "who")
        path, mine = made.folder / name, tmp_path / "mine"
        mine.write_bytes(path.read_bytes())
        mine.chmod(0o600)
        kept = mine.read_bytes()
        path.unlink()
        path.symlink_to(mine)
        with pytest.raises(DataError, match="got a symbolic link"):
            said(opened(tmp_path / "d", "who"))
        path.unlink()
        (made.folder / "index").unlink(missing_ok=True)
        expected = said(opened(tmp_path / "d", "who"))
        assert mine.read_bytes() == kept
        assert said(opened(tmp_path / "d", "who")) == expected

    @pytest.mark.parametrize("which", ["indices", "quoron", "cache"])
    @pytest.mark.parametrize("mode", [0o770, 0o702])
    def test_a_folder_that_others_may_write_is_refused(self, which, mode, tmp_path):
        in_order(rows(60), tmp_path / "d")
        folder = opened(tmp_path / "d", "who").folder
        next(each for each in folder.parents if each.name == which).chmod(mode)
        with pytest.raises(RunError, match=r"nobody else writes, but .* set XDG_CACHE_HOME"):
            opened(tmp_path / "d", "who")

    def test_a_file_that_others_may_read_or_write_is_refused(self, tmp_path):
        in_order(rows(60), tmp_path / "d")
        made = opened(tmp_path / "d", "who")
        (made.folder / "index").chmod(0o660)
        with pytest.raises(DataError, match=r"a file of yours alone \(mode 0600\)"):
            opened(tmp_path / "d", "who")

    def test_a_folder_of_an_index_that_is_a_link_is_refused(self, tmp_path):
        in_order(rows(60), tmp_path / "d")
        made = opened(tmp_path / "d", "who")
        made.folder.rename(tmp_path / "elsewhere")
        made.folder.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(RunError, match="is a symbolic link"):
            opened(tmp_path / "d", "who")

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder to somebody else")
    def test_a_folder_of_somebody_else_is_refused(self, tmp_path):
        in_order(rows(60), tmp_path / "d")
        made = opened(tmp_path / "d", "who")
        os.chown(made.folder, 4321, 4321)
        with pytest.raises(RunError, match="belongs to user 4321"):
            opened(tmp_path / "d", "who")


class TestWhoseRowsTheyAre:
    def test_a_user_column_that_changed_under_the_same_size_and_time_ends_a_run_before_any_release(self, tmp_path):
        path = flat(rows(400), tmp_path / "d")
        config = described(tmp_path, str(path.parent))
        made = opened(path.parent, "who")
        rewritten(path, as_another)
        with pytest.raises(DataError, match=r"group \d+ of 'x.parquet' to have the users .*Delete .*/indices/"):
            quoron.train(config, out=tmp_path / "run")
        assert not (tmp_path / "run" / "model.json").exists()
        shutil.rmtree(made.folder)
        shutil.rmtree(tmp_path / "run")
        assert (quoron.train(config, out=tmp_path / "run").directory / "model.json").is_file()

    def test_an_index_that_makes_one_user_several_is_refused_however_it_came_there(self, tmp_path):
        """Written whole, with fitting digests, in the right place: only the rows themselves can tell."""
        table = rows(80)
        in_order(table, tmp_path / "d")
        own = opened(tmp_path / "d", "who")
        split = [f"{name}{row % 5}" for row, name in enumerate(table["who"].to_pylist())]
        in_order(table.set_column(0, "who", [split]).sort_by("who"), tmp_path / "other")
        forged = dataclasses.replace(opened(tmp_path / "other", "who"), files=own.files)
        assert forged.users > own.users
        crowd = from_dataset(tmp_path / "d", RULES, user="who", loss=Logistic(), test_fraction=0.0)
        with pytest.raises(DataError, match="users that it was indexed with"):
            from_index(crowd, forged).items(np.arange(10))

    def test_another_machine_makes_its_own_and_both_have_to_agree(self, tmp_path, monkeypatch):
        table = in_buckets(rows(80), tmp_path / "d")
        sent = pickle.dumps(opened(tmp_path / "d", "who"))
        expected = said(pickle.loads(sent))
        shutil.rmtree(tmp_path / "cache")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
        assert said(pickle.loads(sent)) == expected
        shutil.rmtree(tmp_path / "there")
        shutil.rmtree(tmp_path / "d")
        in_buckets(table.slice(0, table.num_rows - 1), tmp_path / "d")
        with pytest.raises(DataError, match="the same on every machine"):
            said(pickle.loads(sent))


def from_index(crowd, index: Index):
    """The same population behind another index."""
    own, everybody = dataclasses.replace(crowd.store.rows, index=index, users=index.users), np.arange(index.users)
    return dataclasses.replace(crowd, store=type(crowd.store)(own, everybody, everybody, crowd.loss))


KINDS = {
    "text": pa.array(["b", "a", "a", "ä", "a" * 40, "x"]),
    "large text": pa.array(["b", "a", "a", "", "c", "x"], pa.large_string()),
    "integers": pa.array([1, 2, 2, -(2**62), 5, 6]),
    "small integers": pa.array([1, 2, 2, 4, 5, 6], pa.int16()),
    "numbers": pa.array([0.5, 2, 2, -0.0, 1e300, 6]),
    "decimals": pa.array([1, 2, 2, 4, 5, 6]).cast(pa.decimal128(20, 1)),
    "bytes": pa.array([b"a", b"", b"", b"\x00", b"\xff", b"b"]),
    "words of a size": pa.array([b"aa", b"bb", b"bb", b"\x00a", b"dd", b"ee"], pa.binary(2)),
    "flags": pa.array([True, False, False, True, False, True]),
    "days": pa.array([1, 2, 2, 4, 5, 6], pa.int32()).cast(pa.date32()),
}


class TestTheDigestOfUsers:
    @staticmethod
    def digest(*batches: pa.Array) -> str:
        whose = index.Names()
        for each in batches:
            whose.add(each)
        return whose.digest()

    @pytest.mark.parametrize("kind", KINDS)
    def test_is_that_of_the_rows_whatever_the_batches(self, kind):
        values = KINDS[kind]
        whole = self.digest(values)
        for first in range(len(values) + 1):
            for last in range(first, len(values) + 1):
                assert self.digest(values[:first], values[first:last], values[last:]) == whole
        assert self.digest(pa.concat_arrays([values, values])[len(values) :]) == whole

    @pytest.mark.parametrize("kind", KINDS)
    def test_is_another_for_other_rows(self, kind):
        values = KINDS[kind]
        others = [values[:-1], values[1:], values.take(pa.array([0, 0, 2, 3, 4, 5])), values[::-1]]
        others += [values.take(pa.array([0, 1, 1, 2, 3, 4, 5])), values.take(pa.array([0, 1, 3, 4, 5]))]
        others += [pa.concat_arrays([values[:-1], pa.nulls(1, values.type)])]
        assert len({self.digest(each) for each in (values, *others)}) == len(others) + 1


def test_a_place_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(QuoronError, match=r"Cannot make a folder for the index.*XDG_CACHE_HOME"):
        index.place("indices", "x")


class TestTheIndex:
    def test_is_made_once_and_keeps_no_name(self, tmp_path):
        in_buckets(rows(200), tmp_path / "d")
        made = opened(tmp_path / "d", "who")
        again = opened(tmp_path / "d", "who")
        assert made.users == again.users == 200
        assert not made.sorted
        np.testing.assert_array_equal(made.held(), again.held())
        kept = [path for path in made.folder.iterdir() if path.is_file()]
        assert all(b"u000" not in path.read_bytes() for path in kept)
        assert all(path.stat().st_mode & 0o077 == 0 for path in kept)

    def test_survives_a_kill(self, tmp_path):
        in_buckets(rows(300), tmp_path / "d")
        program = (
            "import os, sys\nfrom quoron.data import index\nindex.PIECE = 300\n"
            "count = []\ndone = index.write\ndef write(path, data):\n    done(path, data)\n    count.append(path)\n"
            "    if len(count) == 9: os.kill(os.getpid(), 9)\n"
            "index.write = write\nindex.opened(sys.argv[1], 'who')\n"
        )
        ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "d")], env=dict(os.environ), check=False)
        assert ended.returncode == -9
        made = opened(tmp_path / "d", "who")
        assert made.users == 300
        assert made.rows == rows(300).num_rows

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


def test_an_index_of_other_lengths_is_refused(tmp_path):
    in_order(rows(300), tmp_path / "d")
    made = opened(tmp_path / "d", "who")
    path = made.folder / "piece-000001.lengths"
    lengths = np.frombuffer(path.read_bytes(), "<i4")
    for wrong in (lengths[:-1], lengths + 1, lengths[::-1], lengths[:0]):
        path.write_bytes(wrong.tobytes())
        with pytest.raises(DataError, match=r"got another\. Delete the folder"):
            opened(tmp_path / "d", "who").held()
    path.unlink()
    with pytest.raises(DataError, match=r"got FileNotFoundError\. Delete the folder"):
        opened(tmp_path / "d", "who").held()


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

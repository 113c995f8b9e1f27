"""Folders of Parquet, here or in a store: the bits of the same rows in memory, and what is refused of them by name."""

import errno
import logging
import os
import pickle
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

import quoron
from cover import by_default
from quoron.data import TablePopulation, index
from quoron.data import population as on_disk
from quoron.data.index import Index, opened
from quoron.data.population import DatasetPopulation, ItemStore, from_dataset
from quoron.data.table import from_table
from quoron.engine import inline
from quoron.engine.choice import Inline, ShardedEngine
from quoron.engine.inline import InlineEngine
from quoron_client.compute.enforcement import bounded
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.data.features import Categorical, Numeric
from quoron_client.data.files import Files
from quoron_client.losses import Logistic
from quoron_client.protocol.questions import MomentAndGradient, Question
from quoron_privacy.errors import ConfigError, DataError, OtherVersion, RunError
from row_files import RULES, Stop, Stopping, described, in_buckets, in_order, little, rows
from worker_here import WorkerHere

WRITE = {"sorted": in_order, "buckets": in_buckets}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many pieces and buckets of little data."""
    little(monkeypatch, tmp_path)


def both(folder: Path, table: pa.Table, **changes: object) -> tuple[DatasetPopulation, TablePopulation]:
    given: dict = {"user": "who", "loss": Logistic(), "test_fraction": 0.2, "items_per_user": 4, **changes}
    return from_dataset(folder, RULES, **given), from_table(table, RULES, **given)


def assert_same(found, expected) -> None:
    for name in ("features", "labels", "offsets", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize("layout", WRITE)
def test_items_of_any_users_in_any_order_are_those_of_the_table(layout, tmp_path, monkeypatch):
    table = WRITE[layout](rows(400), tmp_path / "d")
    ours, theirs = both(tmp_path / "d", table)
    assert (ours.users, ours.dimension, ours.encoding.names) == (theirs.users, theirs.dimension, theirs.encoding.names)
    order = np.random.Generator(np.random.Philox(1)).permutation(ours.users)
    for crowd in (ours, ours.read_in(order), in_memory(ours, monkeypatch)):
        for users in (order, np.sort(order), order[7:90], order[::-1], order[:1], order[:0]):
            assert_same(crowd.items(users), theirs.items(users))
            seen = crowd.all_items.seen(users).of(np.arange(len(users)))
            assert_same(seen, bounded(theirs.items(users), crowd.loss))


def in_memory(crowd: DatasetPopulation, monkeypatch: pytest.MonkeyPatch) -> DatasetPopulation:
    """The same users, with room for all of them, none of whose bytes go to the disk."""
    monkeypatch.setenv("QUORON_MEMORY", "1e9")
    monkeypatch.setattr(on_disk, "Scratch", lambda: pytest.fail("written to disk"))
    inline = crowd.read_in(np.arange(crowd.users))
    assert inline.all_items.places(np.arange(3)).tolist() == [0, 1, 2]
    return inline


@pytest.mark.parametrize("counts", [(1, 300), (300, 1), (200, 1, 200), (1, 1, 300, 1), (301,)])
def test_users_with_more_rows_than_a_chunk_are_read_like_others(counts, tmp_path, monkeypatch):
    monkeypatch.setattr(on_disk, "STAGE", (0, 2000))
    who = np.repeat([f"u{each}" for each in range(len(counts))], counts)
    table = rows(len(who), most=1).set_column(0, "who", pa.array(who))
    ours, theirs = both(tmp_path / "d", in_order(table, tmp_path / "d"), test_fraction=0.0)
    assert_same(ours.items(np.arange(ours.users)), theirs.items(np.arange(ours.users)))


def test_keys_of_hive_partitions_are_columns(tmp_path):
    draw = np.random.Generator(np.random.Philox(2))
    for ward in ("x", "y y"):
        for year in (2023, 2024):
            folder = tmp_path / "d" / f"ward={ward.replace(' ', '%20')}" / f"year={year}"
            folder.mkdir(parents=True)
            who = [f"{ward}-{year}-{k // 2:03}" for k in range(40)]
            pq.write_table(
                pa.table({"who": who, "a": draw.random(40), "sick": draw.integers(0, 2, 40)}), folder / "p.parquet"
            )
    rules = Encoding(
        (Categorical("ward", ("x", "y y")), Numeric("year", 2020, 2030), Numeric("a", 0, 1)), label=read_label("sick")
    )
    crowd = from_dataset(tmp_path / "d", rules, user="who", loss=Logistic(), test_fraction=0.0)
    assert crowd.encoding.names == ("ward=x", "ward=y y", "year", "a", "intercept")
    first = crowd.items(np.array([0, crowd.users - 1])).features / crowd.encoding.scale
    np.testing.assert_allclose(first[0, :3], [1, 0, -0.4], atol=1e-6)
    np.testing.assert_allclose(first[-1, :3], [0, 1, -0.2], atol=1e-6)


@pytest.mark.parametrize(
    "algorithm", by_default(["tracking-srgd", "filtered-sgd", "local-model"], ["tracking-srgd", "local-model"])
)
def test_simulating_a_folder_gives_the_bits_of_the_table(algorithm, tmp_path):
    table = in_buckets(rows(2000), tmp_path / "d")
    pq.write_table(table, tmp_path / "one.parquet")
    runs = [
        quoron.simulate(described(tmp_path, path, algorithm=algorithm), out=tmp_path / f"run-{path}")
        for path in ("d", "one.parquet")
    ]
    np.testing.assert_array_equal(runs[0].weights, runs[1].weights)
    assert runs[0].summary.excess_risk == runs[1].summary.excess_risk


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were read at a time, of column "a"."""
    seen: list[int] = []
    batches = Files.batches

    def counting(self, part, columns, *given, **named):
        for group, each in batches(self, part, columns, *given, **named):
            seen.append(each.num_rows if "a" in columns else 0)
            yield group, each

    monkeypatch.setattr(Files, "batches", counting)
    return seen


@pytest.mark.parametrize("layout", by_default(WRITE, ["sorted"]))
def test_users_far_apart_in_one_file_have_all_their_rows(layout, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "PIECE", 1 << 22)
    table = WRITE[layout](rows(400, most=40), tmp_path / "d", files=2, group=50)
    ours, theirs = both(tmp_path / "d", table, test_fraction=0.0)
    draw = np.random.Generator(np.random.Philox(4))
    for own in ([7, 250], [0, 399], np.sort(draw.choice(400, 30, replace=False))):
        assert_same(ours.part(np.array(own)).items(np.array(own)), theirs.items(np.array(own)))


def test_every_row_is_read_from_its_file_once_by_a_run_of_one_pass(tmp_path, monkeypatch, read):
    table = in_order(rows(1500), tmp_path / "d")
    crowd = from_dataset(tmp_path / "d", RULES, user="who", loss=Logistic(), test_fraction=0.0)
    order = np.random.Generator(np.random.Philox(1)).permutation(crowd.users)
    crowd = crowd.read_in(order)
    opened_chunks: list[int] = []
    read_back = on_disk.ItemStore._read_back

    def noted(self, chunk):
        opened_chunks.append(chunk)
        return read_back(self, chunk)

    monkeypatch.setattr(on_disk.ItemStore, "_read_back", noted)
    for cohort in np.array_split(order, 17):
        crowd.items(cohort)
    assert sum(read) == table.num_rows
    assert len(opened_chunks) > 10
    assert len(opened_chunks) == len(set(opened_chunks))


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        ("pwritev", errno.ENOSPC, r"No space left on device.*Make room, or set QUORON_SCRATCH"),
        ("preadv", errno.EIO, r"back from .*Input/output error. Set QUORON_SCRATCH .* and resume"),
    ],
)
def test_a_disk_that_is_full_or_cannot_be_read_is_named_and_no_thread_stays(call, error, said, tmp_path, monkeypatch):
    in_order(rows(400), tmp_path / "d")
    broken = OSError(error, os.strerror(error))
    monkeypatch.setattr(os, call, lambda *given: (_ for _ in ()).throw(broken))
    crowd = from_dataset(tmp_path / "d", RULES, user="who", loss=Logistic(), test_fraction=0.0)
    with pytest.raises(RunError, match=said):
        crowd.items(np.arange(10))
    names = [each.name for each in threading.enumerate()]
    assert not [name for name in names if name.startswith(("quoron-ahead", "quoron-writer"))]


def test_a_scratch_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    in_order(rows(60), tmp_path / "d")
    monkeypatch.setenv("QUORON_SCRATCH", str(tmp_path / "nowhere"))
    with pytest.raises(RunError, match=r"nowhere.*Set QUORON_SCRATCH"):
        from_dataset(tmp_path / "d", RULES, user="who", loss=Logistic()).items(np.arange(10))


def test_memory_that_is_no_number_is_named(tmp_path, monkeypatch):
    in_order(rows(60), tmp_path / "d")
    for bytes_ in ("8GB", "nan", "inf", "-1", "0"):
        monkeypatch.setenv("QUORON_MEMORY", bytes_)
        with pytest.raises(ConfigError, match=rf"QUORON_MEMORY to be a number of bytes such as 4e9, got '{bytes_}'"):
            from_dataset(tmp_path / "d", RULES, user="who", loss=Logistic()).items(np.arange(3))


@pytest.mark.parametrize("draw", range(6))
def test_a_byte_that_comes_back_as_another_is_noticed(draw, tmp_path, monkeypatch):
    in_buckets(rows(400), tmp_path / "d")
    crowd = from_dataset(tmp_path / "d", RULES, user="who", loss=Logistic(), test_fraction=0.0)
    scratch = crowd.all_items._scratch
    size = os.fstat(scratch._file.fileno()).st_size
    random = np.random.Generator(np.random.Philox(draw))
    at, bit = int(random.integers(size)), 1 << int(random.integers(8))
    read, flipped = os.preadv, []

    def flipping(file, data, start):
        done = read(file, data, start)
        whole = np.concatenate([np.frombuffer(each, np.uint8) for each in data]) if start <= at < start + done else None
        if whole is not None:
            flipped.append(at)
            place = at - start
            for each in data:
                if place < len(each):
                    each[place] ^= bit
                    break
                place -= len(each)
        return done

    monkeypatch.setattr(os, "preadv", flipping)
    with pytest.raises(RunError, match=r"back from .* as they were written, got others.* and resume the run"):
        [crowd.items(piece) for piece in crowd.pieces(np.arange(crowd.users))]
    assert flipped


def test_a_checksum_is_of_every_bit_and_of_the_order_of_pages():
    data = np.random.Generator(np.random.Philox(1)).integers(0, 1 << 32, 4 * 1024, np.uint32)
    kept = on_disk.checksum([data])
    assert on_disk.checksum([data[:1024], data[1024:].view(np.float32)]) == kept
    assert on_disk.checksum([data[1024:], data[:1024]]) != kept
    for at in (0, 2000, len(data) - 1):
        for bit in range(32):
            data[at] ^= np.uint32(1 << bit)
            assert on_disk.checksum([data]) != kept
            data[at] ^= np.uint32(1 << bit)


def test_users_are_numbered_as_in_memory_whatever_type_their_names_have(tmp_path):
    draw = np.random.Generator(np.random.Philox(5))
    for number, names in enumerate([np.arange(-50, 50), np.arange(100) * 0.5, [f"é{k}" for k in range(100)]]):
        table = pa.table({"who": np.repeat(names, 3), "a": draw.random(300), "sick": draw.integers(0, 2, 300)})
        folder = tmp_path / str(number)
        read = in_buckets(table, folder) if isinstance(names, list) else table
        if not isinstance(names, list):
            folder.mkdir()
            keep = draw.permutation(300)
            read = table.take(pa.array(keep))
            pq.write_table(read, folder / "all.parquet", row_group_size=40)
        rules = Encoding((Numeric("a", 0, 1),), label=read_label("sick"))
        given = {"user": "who", "loss": Logistic(), "test_fraction": 0.0}
        ours, theirs = from_dataset(folder, rules, **given), from_table(read, rules, **given)
        users = np.arange(ours.users)
        np.testing.assert_array_equal(ours.items(users).features, theirs.items(users).features)
        np.testing.assert_array_equal(ours.items(users).offsets, theirs.items(users).offsets)


def second_moments(crowd: DatasetPopulation | TablePopulation) -> Question:
    return Question(0, np.arange(crowd.users), MomentAndGradient(crowd.dimension, np.full(crowd.dimension, 0.1)))


def test_second_moments_of_users_on_disk_are_made_again_from_each_chunk_once_a_pass(tmp_path, monkeypatch):
    """In memory of one block and the chunks that a store holds: as many chunks are read as there are, not as blocks."""
    ours, theirs = both(tmp_path / "d", in_order(rows(400), tmp_path / "d"))
    question, reads, honest = second_moments(theirs), [], ItemStore._read_back
    whole = InlineEngine(theirs).ask(question).values
    for name in ("MAX_BYTES", "BLOCK"):
        monkeypatch.setattr(inline, name, 5 * 8 * whole.shape[1])
    monkeypatch.setattr(ItemStore, "_read_back", lambda self, chunk: reads.append(chunk) or honest(self, chunk))
    crowd = ours.read_in(np.arange(ours.users))
    chunks = len(crowd.all_items._sizes)
    assert chunks > 10
    for engine in (InlineEngine(crowd), in_shards(crowd)):
        values = engine.ask(question).values
        assert isinstance(values, inline.RecomputedRows)
        for _ in range(2):
            reads.clear()
            for first in range(0, ours.users, 20):
                np.testing.assert_array_equal(values[first : first + 20], whole[first : first + 20])
            assert len(reads) <= 2 * chunks
    reads.clear()
    scattered = InlineEngine(ours.read_in(np.random.Generator(np.random.Philox(2)).permutation(ours.users)))
    np.testing.assert_array_equal(scattered.ask(question).values[:], whole)
    assert len(reads) > 10 * chunks


def test_who_asks_workers_for_second_moments_reads_no_row_himself(tmp_path):
    ours, theirs = both(tmp_path / "d", in_order(rows(400), tmp_path / "d"))
    crowd = ours.read_in(np.arange(ours.users))
    found = in_shards(crowd).ask(second_moments(theirs))
    assert "_held" not in vars(crowd.store)
    np.testing.assert_array_equal(found.values, InlineEngine(theirs).ask(second_moments(theirs)).values)


def in_shards(crowd: DatasetPopulation) -> ShardedEngine:
    return ShardedEngine(InlineEngine(crowd), 2, WorkerHere)


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


@dataclass(frozen=True)
class Store:
    """An S3 server with one bucket."""

    address: str  # host:port

    def url(self, path: str = "visits") -> str:
        """A folder in the bucket."""
        return f"s3://clinic/{path}?endpoint_override={self.address}&scheme=http&region=us-east-1"

    @property
    def files(self) -> Any:
        """Its file system."""
        return pyarrow.fs.FileSystem.from_uri(f"{self.url('')}&allow_bucket_creation=true")[0]


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        yield Store("{}:{}".format(*running.get_host_and_port()))
    finally:
        running.stop()


@pytest.fixture
def store(server: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    """With two files in `visits`, the same as in tmp_path / "d"."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    in_buckets(rows(1200), tmp_path / "d", files=2)
    server.files.create_dir("clinic")
    for path in sorted((tmp_path / "d").glob("*.parquet")):
        upload(server, path, path.name)
    return server


def upload(store: Store, path: Path, name: str) -> None:
    with store.files.open_output_stream(f"clinic/visits/{name}", compression=None) as stream:
        stream.write(path.read_bytes())


def test_a_run_on_a_store_has_the_bits_of_the_folder(store, tmp_path):
    assert opened(store.url(), "who").users == 1200
    here = quoron.simulate(described(tmp_path, "d"), out=tmp_path / "here")
    config = described(tmp_path, store.url())
    there = quoron.simulate(config, out=tmp_path / "there")
    np.testing.assert_array_equal(there.weights, here.weights)
    assert there.summary.excess_risk == here.summary.excess_risk


@pytest.mark.programs
def test_workers_on_a_store_release_the_model_of_the_folder(store, tmp_path):
    here = quoron.simulate(described(tmp_path, "d"), out=tmp_path / "here")
    engine = Inline(workers=2)
    shared = quoron.simulate(described(tmp_path, store.url()), out=tmp_path / "shared", engine=engine)
    np.testing.assert_array_equal(shared.weights, here.weights)


def test_an_object_that_changes_or_disappears_is_named_by_a_run_and_counts_in_the_next(store, tmp_path):
    crowd = from_dataset(store.url(), RULES, user="who", loss=Logistic(), test_fraction=0.0)
    pq.write_table(pq.read_table(tmp_path / "d" / "bucket-001.parquet").slice(9), tmp_path / "other.parquet")
    upload(store, tmp_path / "other.parquet", "bucket-001.parquet")
    with pytest.raises(DataError, match=r"'bucket-001.parquet' in .* as it was, but it has changed"):
        crowd.items(np.arange(10))
    store.files.delete_file("clinic/visits/bucket-001.parquet")
    with pytest.raises(DataError, match=r"'bucket-001.parquet' in .*, but it has disappeared"):
        crowd.items(np.arange(10))
    assert opened(store.url(), "who").users < 1200


def test_credentials_in_a_url_are_refused_and_not_repeated():
    with pytest.raises(DataError, match="URL without credentials") as error:
        Files.found("s3://somebody:something@clinic/visits")
    assert "something" not in str(error.value)

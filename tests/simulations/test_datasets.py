"""Folders of Parquet: the same bits as of the same rows in memory, whatever the disk does."""

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quoron
from cover import by_default
from quoron.data import TablePopulation, index
from quoron.data import population as on_disk
from quoron.data.index import RowSpan
from quoron.data.population import DatasetPopulation, ItemStore, from_dataset
from quoron.data.table import from_table
from quoron.engine import inline
from quoron.engine.choice import ShardedEngine
from quoron.engine.inline import InlineEngine
from quoron_client.compute.enforcement import bounded
from quoron_client.data import fused
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.data.features import Categorical, Numeric
from quoron_client.data.files import Files
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Linear, Logistic
from quoron_client.protocol.questions import MomentAndGradient, Question
from quoron_privacy.errors import ConfigError, RunError
from row_files import RULES, described, in_buckets, in_order, little, rows
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


@given(
    values=st.lists(st.one_of(st.floats(), st.none()), min_size=1, max_size=30),
    missing=st.sampled_from(["drop", "midpoint"]),
    narrow=st.booleans(),
    unit=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_fast_encoding_is_the_encoding(values, missing, narrow, unit):
    kind = pa.float32() if narrow else pa.float64()
    with np.errstate(all="ignore"):
        held = pa.array(values, pa.float64()).cast(kind, safe=False)
    table = pa.table(
        {"a": held, "n": range(len(values)), "c": ["u", "v"] * (len(values) // 2) + ["w"] * (len(values) % 2)}
    )
    rules = Encoding(
        (Numeric("a", -3, 1e30), Categorical("c", ("v", "u")), Numeric("n", 1, 7)),
        label=None,
        missing=missing,
        normalize=unit,
    )
    found, expected = placed(rules, table), fused.encoded(rules, table)
    kept = expected.kept
    np.testing.assert_array_equal(found.features, expected.features[kept])
    np.testing.assert_array_equal(found.labels, expected.labels[kept])
    loss = Logistic() if rules.label else Linear()
    items = ItemBatch(found.features, found.labels, np.array([0, len(found.labels)]))
    assert bounded(items, loss).features is items.features  # no row is out of bounds, nothing is enforced again


def placed(rules: Encoding, table: pa.Table) -> ItemBatch:
    """The rows of a table that are kept, all of one user, as a store makes them."""
    many = table.num_rows
    buffer = on_disk.room_for(many, rules.dimension, weighted=rules.weight is not None)
    span = RowSpan(np.zeros(1, np.int32), np.array([many], np.int32), iter([table]))
    kept = int(on_disk._Placer(rules).place(span, np.zeros(1, np.int64), buffer)[0])
    whole = buffer.part(0, kept)
    return ItemBatch(whole.features, whole.labels, np.array([0, kept]), whole.weights if rules.weight else None)


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


def test_a_user_at_the_border_of_two_sorted_files_is_one(tmp_path):
    table = in_order(rows(60, most=40), tmp_path / "d", files=9)
    ours, theirs = both(tmp_path / "d", table)
    assert_same(ours.items(np.arange(ours.users)), theirs.items(np.arange(ours.users)))


def folder_and_file(tmp_path):
    pq.write_table(in_buckets(rows(1200), tmp_path / "d"), tmp_path / "one.parquet")
    return "d", "one.parquet"


def test_questions_take_a_folder(tmp_path):
    risks = [quoron.plan(described(tmp_path, path), risk="50%").advice for path in folder_and_file(tmp_path)]
    assert risks[0] == risks[1]


def test_a_full_disk_is_said_and_no_thread_stays(tmp_path, monkeypatch):
    in_order(rows(400), tmp_path / "d")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(os, "pwritev", lambda *given: (_ for _ in ()).throw(full))
    crowd = from_dataset(tmp_path / "d", RULES, user="who", loss=Logistic(), test_fraction=0.0)
    with pytest.raises(RunError, match=r"No space left on device.*Make room, or set QUORON_SCRATCH"):
        crowd.items(np.arange(10))
    names = [each.name for each in threading.enumerate()]
    assert not [name for name in names if name.startswith(("quoron-ahead", "quoron-writer"))]


def test_a_disk_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    in_order(rows(400), tmp_path / "d")
    broken = OSError(errno.EIO, os.strerror(errno.EIO))
    monkeypatch.setattr(os, "preadv", lambda *given: (_ for _ in ()).throw(broken))
    crowd = from_dataset(tmp_path / "d", RULES, user="who", loss=Logistic(), test_fraction=0.0)
    with pytest.raises(RunError, match=r"back from .*Input/output error. Set QUORON_SCRATCH .* and resume"):
        crowd.items(np.arange(10))


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


pytestmark = pytest.mark.usefixtures("planned_once")


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

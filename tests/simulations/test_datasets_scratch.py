"""Memory and disk of items from files: full, refused, unreadable; the same bits whichever way."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from quoron.datasets import _scratch, _seal
from quoron.datasets._seal import Seal
from quoron.datasets.population import from_dataset
from quoron.populations.table import encoded_table
from quoron_client.losses import Logistic
from quoron_privacy.errors import ConfigError, RunError
from row_files import RULES, in_buckets, in_order, little, rows


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many pieces and buckets of little data."""
    little(monkeypatch, tmp_path)


def test_memory_is_lent_again_only_when_nothing_in_it_is_used():
    memory = _scratch.ReusedMemory()
    taken = memory.take(64)
    at, part = taken.ctypes.data, taken[8:24].view(np.float64)
    del taken
    assert memory.take(64).ctypes.data != at
    assert memory.take(64).ctypes.data != at
    del part
    assert at in [memory.take(64).ctypes.data, memory.take(64).ctypes.data]


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


@pytest.mark.parametrize("direct", [True, False])
def test_disks_that_refuse_to_go_past_the_cache_are_asked_through_it(direct, tmp_path, monkeypatch):
    table = in_buckets(rows(400), tmp_path / "d")
    if direct:  # the flag is taken, and the calls are refused
        calls = {"pwritev": os.pwritev, "preadv": os.preadv}
        for name, call in calls.items():
            monkeypatch.setattr(os, name, refusing(call))
    else:
        monkeypatch.setattr(_scratch, "_directly", lambda file, wanted: False)
    ours, theirs = (
        make(given, RULES, user="who", loss=Logistic())
        for make, given in ((from_dataset, tmp_path / "d"), (encoded_table, table))
    )
    found, expected = (each.items(np.arange(ours.users)) for each in (ours, theirs))
    for name in ("features", "labels", "offsets"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def refusing(call):
    """A system call that says EINVAL as long as it is to go past the cache."""

    def refused(file, arrays, at):
        if fcntl.fcntl(file, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "Invalid argument")
        return call(file, arrays, at)

    return refused


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
    scratch = crowd.held._scratch
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


class TestASeal:
    @pytest.mark.parametrize("words", [1, 2, 1023, 1024, 1025, 2047, 2048, 2049, 5000])
    def test_is_of_every_bit_and_every_length(self, words):
        seal = Seal()
        data = np.random.Generator(np.random.Philox(words)).integers(0, 1 << 32, words, np.uint32)
        kept = seal.of([data])
        assert seal.of([data.copy()]) == kept
        assert seal.of([data.view(np.float32)]) == kept
        for at in {0, words // 2, words - 1}:
            for bit in range(32):
                data[at] ^= np.uint32(1 << bit)
                assert seal.of([data]) != kept
                data[at] ^= np.uint32(1 << bit)
        assert seal.of([data[:-1]]) != kept
        assert seal.of([np.append(data, np.uint32(0))]) != kept
        assert seal.of([data[:1], data[1:]]) != kept
        assert Seal().of([data]) != kept

    def test_is_the_sum_of_its_definition(self):
        seal = Seal()
        data = np.random.Generator(np.random.Philox(1)).integers(0, 1 << 32, 3000, np.uint32)
        sums = np.empty(2, np.uint64)
        _seal._sums(data, seal._words, sums)
        padded, half = np.append(data, np.zeros(2 * _seal.BLOCK - 3000, np.uint32)), _seal.BLOCK // 2
        for block in range(2):
            own = (padded[block * _seal.BLOCK :][: _seal.BLOCK] + seal._words).astype(object)
            if block == 1:  # zeros that are not there meet no product of two secrets
                own[3000 - _seal.BLOCK : half] = 0
            assert int(sums[block]) == int((own[:half] * own[half:]).sum()) % 2**64

"""Folders of Parquet files for tests: sorted by user, or in buckets of a hash; and their rows in memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quoron.data import index
from quoron.data import population as on_disk
from quoron_client.data.encoding import Encoding, Weight, read_label
from quoron_client.data.features import Categorical, Numeric
from quoron_server.rounds import Observer

RULES = Encoding(
    (Numeric("a", 0, 100), Categorical("ward", ("x", "y")), Numeric("b", 0, 5), Numeric("n", 0, 9)),
    label=read_label("sick"),
    weight=Weight("w", 0.8),
)


def rows(users: int, *, seed: int = 0, most: int = 8, names: str = "u{:05}") -> pa.Table:
    """Ragged users sorted by name, with values missing, infinite and out of range."""
    draw = np.random.Generator(np.random.Philox(seed))
    counts = draw.integers(1, most + 1, users)
    who = np.repeat(np.arange(users), counts)
    many = len(who)
    b = np.where(draw.random(many) < 0.1, np.nan, 5 * draw.random(many))
    return pa.table(
        {
            "who": [names.format(each) for each in who],
            "a": draw.normal(50, 40, many).astype(np.float32),
            "b": np.where(draw.random(many) < 0.02, np.inf, b),
            "n": pa.array(draw.integers(0, 10, many), mask=draw.random(many) < 0.05),
            "ward": draw.choice(["x", "y", "z"], many),
            "sick": draw.integers(0, 2, many),
            "w": draw.random(many),
        }
    )


def in_order(table: pa.Table, folder: Path, files: int = 3, *, group: int = 137) -> pa.Table:
    """Consecutive rows in each file; the rows as they are read."""
    folder.mkdir(parents=True)
    for number, part in enumerate(np.array_split(np.arange(table.num_rows), files)):
        own = table.slice(int(part[0]), len(part))
        pq.write_table(own, folder / f"part-{number:03}.parquet", row_group_size=group, write_page_checksum=True)
    return table


def in_buckets(table: pa.Table, folder: Path, files: int = 3, *, group: int = 137) -> pa.Table:
    """Every user in one file, in whatever order; the rows as they are read."""
    folder.mkdir(parents=True)
    whose = np.array([hash_of(name) % files for name in table["who"].to_pylist()])
    draw, read = np.random.Generator(np.random.Philox(3)), []
    for number in range(files):
        own = table.take(pa.array(draw.permutation(np.flatnonzero(whose == number))))
        pq.write_table(own, folder / f"bucket-{number:03}.parquet", row_group_size=group)
        read.append(own)
    return pa.concat_tables(read)


def hash_of(name: str) -> int:
    """Of a user's name, the same in every process."""
    return sum(31**place * byte for place, byte in enumerate(name.encode()))


TOML = """
[population]
kind = "table"
path = "{path}"
user = "who"
label = "sick"
columns.numeric = {{ a = [0, 100], b = [0, 5] }}
columns.categorical = {{ ward = ["x", "y"] }}
columns.weight = {{ column = "w", most = 0.8 }}
test_fraction = 0.1
[privacy]
trust_model = "central-release"
epsilon = 8.0
delta = 1e-3
allow_large_delta = true
adjacency = "{adjacency}"
[algorithm]
name = "{algorithm}"
"""


def described(folder: Path, path: str, *, algorithm: str = "tracking-srgd", adjacency: str = "replace-one") -> Path:
    """A configuration over a folder or file, beside it."""
    file = folder / f"{path.replace('/', '_').replace(':', '_')}.toml"
    file.write_text(TOML.format(path=path, algorithm=algorithm, adjacency=adjacency), encoding="utf-8")
    return file


def little(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Many pieces and buckets of little data; a ledger of the test's own, in `folder`."""
    monkeypatch.setattr(index, "PIECE", 300)
    monkeypatch.setattr(on_disk, "CHUNK", 4000)
    monkeypatch.setattr(on_disk, "HELD", 20_000)
    monkeypatch.setattr(on_disk, "STAGE", (0, 30_000))
    monkeypatch.setattr(on_disk, "BLOCK", 40)
    monkeypatch.setenv("QUORON_MEMORY", "1")
    monkeypatch.setenv("QUORON_LEDGER", str(folder / "lifetime.sqlite"))


class Stop(Exception):
    """What ends a run in the middle."""


class Stopping(Observer):
    """A run ends after its second round."""

    def round_finished(self, event):
        if event.round == 1:
            raise Stop

"""A run of `train` that is killed while its table is read goes on for one charge, whatever file it is in."""

import gzip
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dying
import quoron
from dying import Moment
from patients import patients
from quoron.cli.app import invoke
from quoron.training import lifetime
from quoron_server.storage.ledger import Ledger

USERS, ROUNDS = 1000, 3
TABLE = """
[population]
kind = "table"
path = "{path}"
user = "who"
label = "ill"
columns.numeric = {{ age = [0, 100], dose = [0, 5] }}
[privacy]
epsilon = 1.0
[algorithm]
name = "one-pass-dp-sgd"
options = {{ rounds = 3 }}
"""


def people() -> pd.DataFrame:
    made = patients(USERS, rows=3, seed=5)
    return made.assign(ill=made.ill.astype(int))


def as_folder(path: Path) -> None:
    path.mkdir()
    table = pa.Table.from_pandas(people(), preserve_index=False)
    for part in range(4):
        pq.write_table(table.slice(part * 750, 750), path / f"{part}.parquet")


FILES: dict[str, Callable[[Path], object]] = {
    "t.csv.gz": lambda path: path.write_bytes(gzip.compress(people().to_csv(index=False).encode("utf-16"), mtime=0)),
    "t.csv": lambda path: people().to_csv(path, index=False),
    "folder": as_folder,
}


@pytest.mark.programs
@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("t.csv.gz", Moment("encode", "before")),
        ("t.csv", Moment("encode", "after")),
        ("folder", Moment("encode", "after", left=3)),
        ("folder", Moment("commit", "before", round=1)),
    ],
)
def test_a_run_that_is_killed_while_it_reads_goes_on_for_one_charge(name, moment, tmp_path, monkeypatch):
    monkeypatch.setenv("QUORON_SCRATCH", str(tmp_path))
    FILES[name](tmp_path / name)
    (tmp_path / "t.toml").write_text(TABLE.format(path=name), encoding="utf-8")
    out, life = tmp_path / "run", tmp_path / "life.sqlite"
    command = ["--quiet", "train", str(tmp_path / "t.toml"), "--out", str(out), "--set", f"train.ledger={life}"]
    killed = subprocess.run(dying.words(moment, "quoron", *command), capture_output=True, timeout=600)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not (out / "model.json").exists()
    assert invoke(command) == 0
    with lifetime.opened(life) as kept:
        assert len(kept.charges("everyone")) == 1
    with Ledger.open(out / "ledger.sqlite") as own:
        numbers = [number for number, _ in own.releases() if number >= 0]
    assert sorted(set(numbers)) == list(range(ROUNDS))
    assert quoron.load(out).promise is not None
    left = [each for each in tmp_path.iterdir() if each.name.startswith((".", "quoron"))]
    assert not left  # nothing of a killed reading lies about

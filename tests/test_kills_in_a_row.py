"""Thirty kills of one run, one after the other, over all it writes: of a real run what was committed stands to the bit,
each round is released once and the run is charged once; a simulation ends with the bits of a run without kills."""

import gzip
import json
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dying
import quoron
from committed import Committed, committed
from dying import Moment
from quoron.cli.app import invoke
from quoron.training import lifetime
from quoron_server.storage.ledger import Ledger

ROUNDS, USERS = 5, 300
# Each user once; all of them in every round, behind a test; cohorts by secret coins.
ALGORITHMS = {
    "one-pass-dp-sgd": {"rounds": ROUNDS},
    "outlier-gd": {"rounds": ROUNDS},
    "dp-sgd-wor": {"rounds": ROUNDS, "rate": 0.5},
}


BEGUN = (("charge", "before"), ("charge", "after"), ("commit", "before"), ("commit", "after"))
ROUND = (("spend", "before"), ("spend", "after"), ("commit", "before"), ("commit", "after"))
ENDED = (("finish", "before"), ("finish", "after"), ("replace", "before"), ("replace", "after"))
TOLD = (("end", "before"), ("end", "after"))
TRAIN = (*BEGUN, *ROUND * ROUNDS, *ENDED, *TOLD)
FILES = range(1, 9)  # that a run puts in their places, one after the other
SIMULATE = (*ENDED[2:], *BEGUN[2:], *ROUND * ROUNDS, *ENDED, *ENDED[3:], *ENDED[3:])
Write = Callable[[pd.DataFrame, Path], None]
Lives = tuple[tuple[str, str] | tuple[str, str, int], ...]


@dataclass(frozen=True)
class Scene:
    """One run on the same users in a folder of its own."""

    folder: Path
    kind: str  # of run: "train" or "simulate"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def command(self) -> list[str]:
        """That begins it or goes on."""
        begun = self.kind == "simulate" and (self.run / "config.toml").is_file()
        if begun or (self.run / "model.json").is_file():
            return ["--quiet", "resume", str(self.run)]
        more = ["--set", f"train.ledger={self.folder / 'life.sqlite'}"] if self.kind == "train" else []
        return ["--quiet", self.kind, str(self.folder / "people.toml"), "--out", str(self.run), *more]

    def killed(self, at: str, when: str, left: int = 1) -> None:
        """One life."""
        words = dying.words(Moment(at, when, left=left), "quoron", *self.command())
        life = subprocess.run(words, capture_output=True, timeout=600)
        assert life.returncode == -signal.SIGKILL, (at, when, life.stdout.decode(), life.stderr.decode())


def csv(people: pd.DataFrame, path: Path) -> None:
    people.to_csv(path, index=False)


def packed(people: pd.DataFrame, path: Path) -> None:
    path.write_bytes(gzip.compress(people.to_csv(index=False).encode("utf-16"), mtime=0))


def parts(people: pd.DataFrame, path: Path) -> None:
    path.mkdir()
    for part in range(4):
        people[part * USERS : (part + 1) * USERS].to_parquet(path / f"{part}.parquet")


def scene(folder: Path, kind: str, algorithm: str, name: str = "people.csv", write: Write = csv) -> Scene:
    """A table, and what is to be done with it."""
    draw, rows = np.random.default_rng(3), 4 * USERS
    people = pd.DataFrame({"who": np.repeat(np.arange(USERS), 4), "age": draw.uniform(0, 100, rows)})
    people["ill"] = (draw.uniform(size=rows) < people.age / 100).astype(int)
    write(people, folder / name)
    options = "\n".join(f"{key} = {json.dumps(value)}" for key, value in ALGORITHMS[algorithm].items())
    (folder / "people.toml").write_text(
        '[population]\nkind = "table"\nuser = "who"\nlabel = "ill"\n'
        f'path = "{name}"\n'
        "columns.numeric = { age = [0, 100] }\n"
        f'[privacy]\nepsilon = 8.0\ndelta = 1e-3\n[algorithm]\nname = "{algorithm}"\n[algorithm.options]\n{options}\n',
        encoding="utf-8",
    )
    return Scene(folder, kind)


def charges(folder: Path) -> list[str]:
    """Kinds of rows of the lifetime account."""
    with lifetime.opened(folder / "life.sqlite") as kept:
        kept.verify()
        return [row["kind"] for row in kept.rows()]


def killed_in_a_row(here: Scene, lives: Lives) -> None:
    """After each kill all that any life before has committed is there, to the bit."""
    before = Committed()
    for moment in lives:
        here.killed(*moment)
        now = committed(here.run)
        assert now.goes_on_from(before), moment
        before = now
    assert invoke(here.command()) == 0
    after = committed(here.run)
    assert after.goes_on_from(before)
    assert [number for number, _, _ in after.rounds] == list(range(ROUNDS))
    with Ledger.open(here.run / "ledger.sqlite") as ledger:
        assert ledger.finished
        assert ledger.spent()["rounds"] == ROUNDS


@pytest.mark.parametrize(
    ("algorithm", "lives"),
    [
        *(pytest.param(name, TRAIN, marks=pytest.mark.slow) for name in ALGORITHMS),
        *(pytest.param("dp-sgd-wor", (("replace", "before", each),), marks=pytest.mark.slow) for each in FILES),
        pytest.param("dp-sgd-wor", (*ROUND[1:3], *ROUND, *ENDED[:2]), marks=pytest.mark.programs),
    ],
)
def test_a_table_s_run_that_is_killed_again_and_again_releases_each_round_once_for_one_charge(
    algorithm: str, lives: Lives, tmp_path: Path
) -> None:
    here = scene(tmp_path, "train", algorithm)
    killed_in_a_row(here, lives)
    assert not list(here.run.glob(".*.new"))
    assert charges(tmp_path) == ["charge", "release", "end"]
    first = (here.run / "model.json").read_bytes()
    assert invoke(here.command()) == 0
    assert (here.run / "model.json").read_bytes() == first
    assert np.isfinite(quoron.load(here.run).weights).all()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_simulation_that_is_killed_thirty_times_comes_to_the_bits_of_one_that_is_not(
    algorithm: str, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    whole = scene(tmp_path / "whole", "simulate", algorithm)
    assert invoke(whole.command()) == 0
    here = scene(tmp_path, "simulate", algorithm)
    killed_in_a_row(here, SIMULATE)
    assert committed(here.run).model == committed(whole.run).model
    assert (here.run / "model.npz").read_bytes() == (whole.run / "model.npz").read_bytes()


@pytest.mark.programs
@pytest.mark.parametrize(
    ("name", "write", "life"),
    [
        ("t.csv.gz", packed, ("encode", "before")),
        ("t.csv", csv, ("encode", "after")),
        ("folder", parts, ("encode", "after", 3)),
        ("folder", parts, ("commit", "before", 2)),
    ],
)
def test_a_run_that_is_killed_while_it_reads_goes_on_for_one_charge(
    name: str, write: Write, life: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORON_SCRATCH", str(tmp_path))
    here = scene(tmp_path, "train", "dp-sgd-wor", name, write)
    here.killed(*life)
    assert not (here.run / "model.json").exists()
    assert invoke(here.command()) == 0
    assert charges(tmp_path) == ["charge", "release", "end"]
    assert [number for number, _, _ in committed(here.run).rounds] == list(range(ROUNDS))
    assert quoron.load(here.run).promise is not None
    assert not [each for each in tmp_path.iterdir() if each.name.startswith((".", "quoron"))]  # nothing lies about


def test_thirty_kills_are_thirty() -> None:
    assert (len(TRAIN), len(SIMULATE)) == (30, 30)

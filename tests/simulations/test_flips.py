"""Whatever a promise stands on is checked when it is read: a flipped bit is found and named, or changes nothing.

An interrupted run and a complete one, over a folder of files, with their lifetime ledger. One bit of
one file is flipped, and the run is gone on with, or read again. It is refused by name, or counts the same users,
promises the same and is charged the same. What a run writes and reads itself is in `test_datasets`.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from committed import limit
from quoron.training import lifetime
from quoron_privacy.errors import QuoronError
from row_files import Stop, Stopping, described, in_buckets, little, rows

USERS = 120
KINDS = {  # where the files of each kind are
    "the lifetime ledger": "lifetime.sqlite*",
    "the ledger of an open run": "open/ledger.sqlite*",
    "what an open run is": "open/*.json",
    "the configuration of an open run": "open/config.toml",
    "the ledger of a complete run": "done/ledger.sqlite*",
    "what a complete run is": "done/run.json",
    "the plan of a complete run": "done/plan.json",
    "the summary of a complete run": "done/summary.json",
    "the configuration of a complete run": "done/config.toml",
    "the model": "done/model.json",
}


class Scene:
    """The two runs in a folder, and a copy from which they are put back."""

    def __init__(self, at: Path) -> None:
        self.at, self.kept = at / "here", at / "kept"
        self.expected: dict[str, Any] = {}

    @classmethod
    def made(cls, at: Path, monkeypatch: pytest.MonkeyPatch) -> "Scene":
        scene = cls(at)
        scene.at.mkdir()
        little(monkeypatch, scene.at)
        in_buckets(rows(USERS, most=2), at / "d")
        config = described(at, str(at / "d"), algorithm="one-pass-dp-sgd")
        settings = ["algorithm.options.rounds=4"]
        limit(scene.at / "lifetime.sqlite", epsilon=40.0, delta=0.1)
        quoron.train(config, out=scene.at / "done", settings=settings)
        with pytest.raises(Stop):
            quoron.train(config, out=scene.at / "open", settings=settings, observers=[Stopping()])
        shutil.copytree(scene.at, scene.kept)
        scene.expected = {name: scene.read(name) for name in ("open", "done")}
        return scene

    def put_back(self) -> None:
        shutil.rmtree(self.at)
        shutil.copytree(self.kept, self.at)

    def read(self, name: str) -> list[Any]:
        """What whoever goes on with a run, or reads it, is told; afterwards all is as before."""
        try:
            run = quoron.resume(self.at / name)
            with lifetime.opened(self.at / "lifetime.sqlite") as ledger:
                charges, account = ledger.charges("everyone"), ledger.account("everyone")
            found = [
                run.summary.users,
                run.summary.statement,
                run.summary.rounds,
                run.plan["problem"],
                charges,
                account,
            ]
            found += [run.model.promise, run.model.encoding, run.summary.group_limit]
            found += (
                [run.model.weights.tolist(), run.summary] if name == "done" else [np.isfinite(run.model.weights).all()]
            )
            return found
        finally:
            self.put_back()

    def flipped(self, kind: str, draw: np.random.Generator) -> tuple[bool, str]:
        """Whether a flipped bit was found; and which it was."""
        paths = sorted(path for path in self.at.glob(KINDS[kind]) if path.is_file() and path.stat().st_size)
        path = paths[draw.integers(len(paths))]
        data = bytearray(path.read_bytes())
        at, bit = int(draw.integers(len(data))), int(draw.integers(8))
        data[at] ^= 1 << bit
        path.write_bytes(data)
        where = f"bit {bit} of byte {at} of {path.relative_to(self.at)}"
        try:
            name = "done" if "done" in KINDS[kind] else "open"
            assert self.read(name) == self.expected[name], where
        except QuoronError:
            return True, where
        except Exception as error:
            raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
        return False, where


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene.made(tmp_path, monkeypatch)


def swept(scene: Scene, flips: int, seed: int) -> dict[str, int]:
    """How many of so many flips were found, by kind."""
    draw, found = np.random.Generator(np.random.Philox(seed)), dict.fromkeys(KINDS, 0)
    for number in range(flips):
        kind = list(KINDS)[number % len(KINDS)]
        found[kind] += scene.flipped(kind, draw)[0]
    return found


def test_of_some_flipped_bits_each_is_found_or_changes_nothing(scene):
    found = swept(scene, 4 * len(KINDS), seed=1)
    assert sum(found.values()) > len(KINDS)


@pytest.mark.slow
def test_of_a_thousand_flipped_bits_each_is_found_or_changes_nothing(scene):
    found = swept(scene, 1012, seed=2)
    print(found)
    assert all(found[kind] > 0 for kind in KINDS)

"""A run folder: every file is complete or not there at all, and what is read again is what was written.

| file           | holds                                                     |
| -------------- | --------------------------------------------------------- |
| run.json       | of a run of `quoron train`: its name, its public seed      |
| tune.json      | of a run of `quoron tune`: the same, and what it tries     |
| choice.json    | of the same: the setting that was chosen, and its price    |
| rows.json      | of a run of `quoron.train_rows`: the same, and its settings |
| start.npz      | of the same: the public model that it began with, if not zero |
| config.toml    | the configuration, every default written out               |
| plan.json      | what was fixed before any data was touched                 |
| ledger.sqlite  | rounds, releases and the state to resume from              |
| rounds.parquet | one row a round                                            |
| model.npz      | the released model, key `model`                            |
| model.json     | the same with the columns of its table, if it is of one    |
| summary.json   | what the run reached and what it cost                      |
| report.html    | all of it for people, one self-contained page              |
| model-card.md  | of what was trained: the same in Markdown, beside a model that is passed on |

A JSON file has a digest of all that it says as its last key, and the ledger has those of the configuration and of the
plan. They find what an editor, a copy or a disk has changed. They have no key, so they do not protect the owner of the
folder from an attacker who can write there.
"""

import hashlib
import io
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quoron import config as configs
from quoron.config import Config
from quoron_client.durable import PUBLIC, SHARED, clear, locked, make_folder, replace_whole
from quoron_privacy.errors import ConfigError, DataError, RunError
from quoron_server.serial import dumps

if TYPE_CHECKING:  # only a stored table needs the first, and only what begins the others
    import pyarrow as pa

    from quoron_server.runs import Run
    from quoron_server.storage.ledger import Ledger


CARD = "model-card.md"
MODEL = "model.json"  # the released model, with its columns
FRAME = "population.parquet"  # a DataFrame that is simulated on; one that is trained on is stored nowhere
RECORD = "run.json"  # written first, by `quoron train` alone
CHOICE = "choice.json"  # what a search chose, and what it cost
SEARCH = "tune.json"  # written by `quoron tune` alone
DIGEST = "sha256"  # of the rest of a JSON file
_OF_CLIENTS = ("messages", "bytes_", "total_messages", "total_bytes_", "seconds_", "encoded_", "diagnostics")
ROWS = "rows.json"  # written first, by `quoron.train_rows` and what is built on it alone


@dataclass(frozen=True, slots=True)
class Identity:
    """Which run this is: public, and fixed when it begins."""

    run: str  # its name in the lifetime ledger
    seed: int  # public randomness of the plan: partition and rotations, never noise
    began: str  # the day, in UTC

    @classmethod
    def fresh(cls, name: str) -> "Identity":
        """Of a run that begins now."""
        day = datetime.now(UTC).date().isoformat()
        return cls(f"{name}-{secrets.token_hex(6)}", secrets.randbits(62), day)

    @classmethod
    def stored(cls, folder: "RunFolder | None", record: str) -> "Identity | None":
        """Of the run that began in a folder with this record, if one did: without its noise key it is another."""
        if folder is None or not ((folder.path / record).is_file() and folder.ledger.is_file()):
            return None
        contents = folder.read_json(record)
        return cls(**contents.get("identity", contents))


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run on disk."""

    path: Path

    @classmethod
    def created(cls, path: Path) -> "RunFolder":
        """Return the folder, made if it is not there; RunError where it cannot be."""
        try:
            make_folder(path)
        except OSError as error:
            raise _cannot(path, error) from error
        return cls(path)

    @property
    def is_training(self) -> bool:
        """Whether it is one of `quoron train`."""
        return (self.path / RECORD).is_file()

    @property
    def is_search(self) -> bool:
        """Whether it is one of `quoron tune`."""
        return (self.path / SEARCH).is_file()

    @property
    def ledger(self) -> Path:
        """Path of the ledger."""
        return self.path / "ledger.sqlite"

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Note on an interruption, and where a table cannot be read once its run is charged, how to go on."""
        try:
            yield
        except KeyboardInterrupt as stopped:
            stopped.add_note(f"Interrupted. Continue with: quoron resume {self.path}")
            raise
        except DataError as error:
            if self.is_training and self.ledger.is_file():
                error.add_note(
                    f"The run has begun and is charged. Go on, for that charge, with: quoron resume {self.path}"
                )
            raise

    def begin(self, run: "Run", files: Mapping[str, str | Mapping[str, Any]]) -> "Ledger":
        """Return the ledger of a run here; before there is one, write what was fixed, files of text or JSON by name.

        OtherVersion if another run began here, by its plan or its data.
        """
        with locked(self.path):  # of two at once the second finds what the first has begun
            if not self.ledger.is_file():
                for name, contents in files.items():
                    if isinstance(contents, str):
                        self.write_text(name, contents)
                    else:
                        self.write_json(name, contents)
            return run.begin(self.ledger)

    def config(self) -> Config:
        """Return the stored configuration; ConfigError if this is no run folder."""
        stored = self.path / "config.toml"
        if (self.path / ROWS).is_file():
            raise ConfigError(
                f"Expected a run that its folder describes, got {self.path} of rows that a program computes. Go on "
                f"with the same call and out={str(self.path)!r}."
            )
        if not stored.is_file():
            raise ConfigError(
                f"Expected a run folder with a config.toml, got {self.path}. Runs are listed under runs/."
            )
        return configs.from_tree(configs.read(stored))

    def summary(self) -> dict[str, Any]:
        """Return the stored summary; RunError before the run is complete."""
        return self.read_json("summary.json")

    def rounds(self) -> list[dict[str, Any]]:
        """Return the stored rounds, one flat mapping a round; empty if none are stored. RunError for a damaged file."""
        import pyarrow.parquet as pq

        stored = self.path / "rounds.parquet"
        if not stored.is_file():
            return []
        try:
            return list(pq.read_table(stored).to_pylist())
        except Exception as error:  # whatever a reader makes of other bytes
            raise RunError(_unlike(stored, type(error).__name__)) from None

    def model(self) -> NDArray[np.float64]:
        """Return the stored model, shape (d,). RunError for a file that is damaged: it has checksums."""
        path = self.path / "model.npz"
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:
                return np.asarray(arrays["model"], dtype=np.float64)
        except Exception as error:
            raise RunError(_unlike(path, type(error).__name__)) from None

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file, complete or not at all, and return its path."""
        write(self.path / name, text.encode())
        return self.path / name

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file, complete or not at all; non-finite numbers become null, and its digest comes last."""
        plain = json.loads(dumps(value))
        self.write_text(name, dumps(plain | {DIGEST: digest(plain)}) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """Return what `write_json` wrote; RunError if there is none, or something else."""
        path = self.path / name
        if not path.is_file():
            raise RunError(f"Expected {path}, found none. Complete the run with `quoron resume {self.path}`.")
        try:
            contents = dict(json.loads(path.read_text(encoding="utf-8")))
            same = contents.pop(DIGEST) == digest(contents)
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            same = False
        if not same:
            raise RunError(_unlike(path, "another"))
        return contents

    def write_model(self, model: NDArray[np.float64]) -> None:
        """Write model.npz, complete or not at all."""
        buffer = io.BytesIO()
        np.savez(buffer, model=model)
        write(self.path / "model.npz", buffer.getvalue())

    def write_table(self, table: "pa.Table") -> bytes:
        """Write a simulation's table unless that has begun, and return SHA-256 of its file."""
        data = as_parquet(table)
        if not self.ledger.exists():
            write(self.path / FRAME, data)
        return hashlib.sha256(data).digest()

    def write_rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rounds.parquet, complete or not at all; what is missing or not finite in some rounds is null there."""
        import pyarrow as pa
        from pyarrow.json import read_json  # unlike `pa.array` of a list it does not import pandas

        table = read_json(io.BytesIO("\n".join(map(dumps, rows)).encode())) if rows else pa.table({})
        write(self.path / "rounds.parquet", as_parquet(table))


def claim(config: Config, name: str) -> RunFolder:
    """Return the folder for a run of `config`: `run.out`, or the first free runs/<name>-<number>.

    A folder that holds a run of the same configuration is taken as it is; ConfigError if it belongs to another one or
    holds something else.
    """

    def holds(path: Path) -> bool:
        names = (entry.name for entry in path.iterdir())  # a run that was killed before its configuration has no others
        if all(name == RECORD or (name.startswith(".") and name.endswith(".new")) for name in names):
            return True
        if not (path / "config.toml").is_file():
            return False
        theirs, ours = RunFolder(path).config().digest(), config.digest()
        if theirs != ours:
            raise ConfigError(
                f"Expected {path} to hold a run of this configuration (digest {ours[:12]}), but it belongs to another "
                f"({theirs[:12]}). Choose another folder with --out, or continue that run with `quoron resume {path}`."
            )
        return True

    return claim_for(config.run.out, name, holds, "a run")


def claim_for(out: str | Path | None, name: str, holds: Callable[[Path], bool], what: str) -> RunFolder:
    """The folder `out` of `what`, or the first free runs/<name>-<number>. ConfigError if it has anything that `holds`
    does not know."""
    if out is None:
        return numbered(Path("runs"), name)
    path = Path(out)
    if path.exists() and not path.is_dir():
        raise ConfigError(f"Expected a folder for {what}, got the file {path}. Choose another with --out.")
    if path.is_dir() and any(path.iterdir()) and not holds(path):
        raise ConfigError(f"Expected an empty folder or one of {what}, got {path}. Choose another with --out.")
    return RunFolder.created(path)


def write(path: Path, data: bytes, *, advice: str = "", mode: int = PUBLIC) -> None:
    """Write a file so that it is complete or not there at all, even after a power cut.

    RunError if it cannot be, with `advice`; by default on how to go on with the run whose folder this is.
    """
    try:
        clear(path.with_name(f".{path.name}."))  # what a write that was killed has left
        replace_whole(path, data, mode=mode)
    except OSError as error:
        advice = advice or f"Make room, then continue with `quoron resume {path.parent}`."
        raise RunError(f"Cannot write {path}: {error.strerror}. {advice}") from error


def as_parquet(table: "pa.Table") -> bytes:
    """Return a table as the bytes of a Parquet file; equal tables give equal bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    repeated = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    # dictionaries of measurements take ten times as long, and no reader uses statistics
    buffer = io.BytesIO()
    pq.write_table(table, buffer, use_dictionary=repeated, write_statistics=False)
    return buffer.getvalue()


def digest(contents: Mapping[str, Any]) -> str:
    """Return SHA-256 of all that a JSON file says, however it is laid out, as hexadecimal digits."""
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _unlike(path: Path, got: str) -> str:
    return f"Expected {path} as it was written, got {got}: it has changed since. Put it back, or begin a new run."


def flat(event: Mapping[str, Any]) -> dict[str, Any]:
    """One round's event with its public figures and diagnostics as columns `public.x` and `simulation.x`."""
    row = {key: value for key, value in event.items() if key not in ("public", "diagnostics")}
    for prefix, table in (("public", event.get("public", {})), ("simulation", event.get("diagnostics", {}))):
        row.update({f"{prefix}.{key}": value for key, value in table.items()})
    return row


def public_row(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of one round without clients, clocks and networks."""
    return {key: value for key, value in flat(event).items() if not key.startswith(_OF_CLIENTS)}


def numbered(parent: Path, name: str) -> RunFolder:
    """Make and return the first free folder `name`-1, `name`-2, ...: concurrent callers get different ones."""
    RunFolder.created(parent)
    number = 1
    while True:
        path = parent / f"{name}-{number}"
        try:
            path.mkdir(mode=SHARED)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise _cannot(path, error) from error
        else:
            return RunFolder(path)


def _cannot(path: Path, error: OSError) -> RunError:
    return RunError(f"Cannot make the run folder {path}: {error.strerror}. Choose another with --out.")

"""Which run this is, and the model that it began with, kept in its folder: an interrupted run goes on from there.

A script that makes its module again, without a seed of its own, makes another one each time. The start is public,
so it must be made of what is public. What of a module is not trained is kept beside it, since rows depend on it too.
"""

import hashlib
import io
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.run_folder import RunFolder, write
from quoron_privacy.errors import LedgerError

Vector = NDArray[np.float64]
Bytes = NDArray[np.uint8]
FILE = "start.npz"
_WEIGHTS, _FIXED = "start", "fixed "  # keys in the file; a name follows the second


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
    def kept(cls, folder: RunFolder | None, record: str) -> "Identity | None":
        """Of the run that began in a folder with this record, if one did: without its noise key it is another."""
        if folder is None or not ((folder.path / record).is_file() and folder.ledger.is_file()):
            return None
        contents = folder.read_json(record)
        return cls(**contents.get("identity", contents))


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Where training starts."""

    weights: Vector  # (d,)
    fixed: Mapping[str, Bytes] = field(default_factory=dict)  # by name, the bytes of what is not trained

    @classmethod
    def read(cls, path: Path) -> "Start | None":
        """Return what `write` wrote; None if there is no such file. LedgerError for another file."""
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as arrays:
                weights = np.asarray(arrays[_WEIGHTS], np.float64)
                names = [name for name in arrays.files if name.startswith(_FIXED)]
                return cls(weights, {name.removeprefix(_FIXED): np.asarray(arrays[name], np.uint8) for name in names})
        except (OSError, ValueError, KeyError) as error:
            raise LedgerError(
                f"Expected the start of the run in {path}, got a file that cannot be read ({type(error).__name__}). "
                "Put back the file that the run wrote."
            ) from None

    @property
    def shapes(self) -> tuple[int, dict[str, int]]:
        """Return how many numbers it has, and how many bytes of what is not trained."""
        return len(self.weights), {name: len(found) for name, found in self.fixed.items()}

    @property
    def digest(self) -> str:
        """What makes a start this one and no other."""
        found = hashlib.sha256(self.weights.astype("<f8").tobytes())
        for name in sorted(self.fixed):
            found.update(f"{name} {len(self.fixed[name])} ".encode() + self.fixed[name].tobytes())
        return found.hexdigest()

    def write(self, path: Path) -> None:
        """Write it completely or not at all; no file where it is zero, the default."""
        if not self.fixed and not self.weights.any():
            path.unlink(missing_ok=True)
            return
        short = self.weights.astype(np.float32)
        exact = short if np.array_equal(short, self.weights) else self.weights
        arrays: dict[str, Any] = {_WEIGHTS: exact} | {_FIXED + name: found for name, found in self.fixed.items()}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        write(path, buffer.getvalue())

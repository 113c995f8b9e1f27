"""What a search knows while it goes on, and nobody may: how many trials are done, and the best so far.

One file, mode 0600, in a folder that nobody else may open; encrypted by the run's noise key, always as long, written
whole after every trial. At the end the key is erased from the run's ledger, and then the file: what a disk keeps of it
says nothing.
"""

import base64
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_client.durable import OWN, PRIVATE, make_folder, replace_whole, sync_folder
from quoron_privacy.errors import LedgerError, RunError
from quoron_server.algorithms.one_round.method import MOST_COLUMNS

FOLDER, FILE = "private", "search"
WORST = -np.finfo(np.float64).max.item()  # the score of a trial whose numbers are not finite: below all others
_BASE, _NUMBER, _ROUND = 4096, 32, 512  # bytes: of the whole, of a number as text, of a round's few public numbers
_NONCE = 12
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one trial would release."""

    score: float  # with noise, higher is better
    weights: Vector  # (d,)
    events: tuple[Mapping[str, Any], ...] = ()  # what its rounds made public

    @property
    def settled(self) -> "Outcome":
        """With the worst score, and zeros, where any number is not finite: a trial that fails says nothing by itself.

        Were it raised, whoever looks on would be told of a trial that is not released.
        """
        finite = bool(np.isfinite(self.score) & np.isfinite(self.weights).all())
        return self if finite else Outcome(WORST, np.zeros(self.weights.shape))


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """How far a search is."""

    done: int = 0  # trials
    best: Outcome | None = None
    candidate: int = -1  # of the best one

    def after(self, candidate: int, outcome: Outcome, *, counts: bool) -> "Known":
        """With one trial more; of equal scores the earlier one stays, which is as good as tossing a coin."""
        better = counts and (self.best is None or outcome.score > self.best.score)
        known = replace(self, done=self.done + 1)
        return replace(known, best=outcome, candidate=candidate) if better else known


@dataclass(frozen=True, slots=True)
class PrivateState:
    """The file of one search."""

    run: Path  # its folder
    key: bytes = field(repr=False)  # of the run's noise
    room: int  # bytes, at least as many as any candidate's outcome takes: so the file's size tells none

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.run / FOLDER / FILE

    def read(self) -> Known:
        """How far it is. LedgerError for another file than this run wrote."""
        if not self.path.is_file():
            return Known()
        try:
            raw = self.path.read_bytes()
            said = json.loads(self._cipher.decrypt(raw[:_NONCE], raw[_NONCE:], None))
            best = said["best"]
            kept = None if best is None else Outcome(best["score"], _vector(best["weights"]), tuple(best["events"]))
            return Known(said["done"], kept, said["candidate"])
        except Exception:  # whatever is wrong is wrong with the file; nothing of it may be told
            raise LedgerError(
                f"Expected {self.path} as this search wrote it, got another file. Put it back, or begin a new search."
            ) from None

    def write(self, known: Known) -> None:
        """Keep it: complete or not at all. RunError where it cannot be."""
        best = known.best
        kept = None if best is None else {"score": best.score, "weights": _text(best.weights), "events": best.events}
        text = json.dumps({"done": known.done, "candidate": known.candidate, "best": kept}).encode()
        if len(text) > self.room:
            raise LedgerError(f"Expected an outcome within {self.room} bytes, as planned, got a larger one.")
        nonce, padded = secrets.token_bytes(_NONCE), text.ljust(self.room)
        try:
            make_folder(self.path.parent, mode=OWN)
            replace_whole(self.path, nonce + self._cipher.encrypt(nonce, padded, None), mode=PRIVATE)
        except OSError as error:
            raise RunError(f"Cannot write {self.path}: {error.strerror}. Make room, then continue.") from error

    @property
    def _cipher(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # planning needs none

        return ChaCha20Poly1305(blake2b(b"", key=self.key, digest_size=32, person=b"quoron-search").digest())


def erase(run: Path) -> None:
    """Remove whatever a search kept in the folder of its run."""
    folder = run / FOLDER
    if folder.is_dir():
        for path in folder.iterdir():
            handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
            try:
                os.ftruncate(handle, 0)
            finally:
                os.close(handle)
        shutil.rmtree(folder)
        sync_folder(run)


def room_for(dimension: int, rounds: int = 0) -> int:
    """Bytes that no outcome exceeds of a model of so many numbers, and of what so many rounds make public.

    A run of one round may make its second moments public; others a few numbers a round.
    """
    moments = (dimension + 1) * (dimension + 2) // 2 if rounds == 1 and dimension <= MOST_COLUMNS else 0
    return _BASE + _NUMBER * (dimension + moments) + _ROUND * rounds


def _text(weights: Sequence[float] | Vector) -> str:
    return base64.b64encode(np.asarray(weights, "<f8").tobytes()).decode()


def _vector(text: str) -> Vector:
    return np.frombuffer(base64.b64decode(text), "<f8").astype(np.float64)

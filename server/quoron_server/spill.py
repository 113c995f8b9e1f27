"""Room for the answers of a round: in memory, or where they are too long for it in a file without a name.

    values = room_for(users, (d,), spill_folder("sqlite:////srv/coordinator.sqlite"))

Only second moments are that long: d (d + 1) / 2 numbers of every user, once a run. The file is its owner's alone, has
no name to be opened by, lies where the coordinator's books do unless QUORON_SCRATCH says otherwise, and is gone with
the round, or with the process. Room on disk is taken before anybody is asked.
"""

import os
import tempfile
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import RunError

HELD = 1 << 28  # bytes of answers that are held in memory
SCRATCH = "QUORON_SCRATCH"
BOOKS = "sqlite:///"  # what stands before the file of books that are one


def fits(rows: int, shape: tuple[int, ...]) -> bool:
    """Whether so many answers are held in memory."""
    return 8 * rows * prod(shape) <= HELD


def room_for(rows: int, shape: tuple[int, ...], folder: Path) -> NDArray[np.float64]:
    """Zeros of shape (rows, *shape). RunError where there is no room on disk."""
    size = 8 * rows * prod(shape)
    if fits(rows, shape):
        return np.zeros((rows, *shape))
    try:
        with tempfile.TemporaryFile(prefix="quoron-", dir=folder) as file:
            reserve = getattr(os, "posix_fallocate", None)  # macOS has none
            if reserve is None:
                file.truncate(size)
            else:
                reserve(file.fileno(), 0, size)  # what is written later finds its place
            return np.memmap(file, np.float64, "r+", shape=(rows, *shape))
    except OSError as error:
        raise RunError(
            f"Expected room for the answers of a round ({size:,} bytes) in {folder}, got too little: {error.strerror}. "
            f"Set {SCRATCH} to a folder on a disk with room, and go on with the run."
        ) from None


def spill_folder(database: str | None = None) -> Path:
    """Where such files lie: QUORON_SCRATCH, else beside books in a file, else where large temporary files do."""
    if given := os.environ.get(SCRATCH):
        return Path(given)
    if database is not None and database.startswith(BOOKS):
        return Path(database.removeprefix(BOOKS)).resolve().parent
    return Path("/var/tmp") if os.access("/var/tmp", os.W_OK) else Path(tempfile.gettempdir())


def free_disk(folder: Path) -> int:
    """Bytes that may be written there; 0 where there is no such folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize

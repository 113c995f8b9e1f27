"""The folder of an index: the first that can be made, and one process at a time in it."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quoron_privacy.errors import RunError
from quoron_server.books.durable import OWN, PRIVATE, make_folder


def writable(folders: Sequence[Path]) -> Path:
    """The first of the folders that can be made."""
    for folder in folders:
        try:
            make_folder(folder, mode=OWN)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise RunError(
        f"Cannot make a folder for the index at {' or '.join(map(str, folders))}. Make one of them writable."
    )


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """One process at a time."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

"""A lock on the files of a folder: a process that reads a file and then writes it does both before the next begins.

with locked(file.parent):
    replace_whole(file, changed(file.read_bytes()), mode=PRIVATE)
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quoron_privacy.errors import ConfigError


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Wait until no other process or thread is in such a block for `folder`, and be the one that is.

    The lock is on the folder itself: it leaves nothing behind, and a process that dies gives it back. Not to be nested.
    Raises ConfigError for a folder that is not there or cannot be locked, and without `wait` for one that is in use.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"Expected a folder {folder} to write in, got: {error.strerror}.") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"Expected a folder {folder} that no other process uses, got one that is in use. Stop that process."
            ) from None
        except OSError as error:  # some network file systems cannot
            raise ConfigError(
                f"Expected a folder {folder} that can be locked, got: {error.strerror}. Keep it on a local disk."
            ) from None
        yield
    finally:
        os.close(handle)

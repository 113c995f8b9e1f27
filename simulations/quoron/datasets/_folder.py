"""The place of an index: below the owner's own cache, where nobody else writes, and never beside the data.

    folder = place("indices", "3f2a")
    data = read(folder / "index")

Whoever may write an index decides whose the rows of a table are, and so what one user can move. A folder of data is
often one that several people write. So an index lies in a folder of the user who reads it (mode 0700, files 0600):
every folder from there up to the root belongs to that user or to the system and can be written by nobody else, and no
symbolic link is followed to a file of an index, neither for reading nor for writing.
"""

import errno
import fcntl
import hashlib
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from quoron_client.durable import OWN, PRIVATE, make_folder, replace_whole
from quoron_privacy.errors import DataError, RunError

_OTHERS, _WRITE = 0o077, 0o022
_READING = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_ELSEWHERE = "Put that right, or set XDG_CACHE_HOME to a folder of your own."


def place(*steps: str) -> Path:
    """A folder of quoron's in the user's cache; `steps` are made, private. RunError where others could write there."""
    top = user_cache_path("quoron")
    folder = top.joinpath(*steps)
    try:
        make_folder(folder, mode=OWN)
    except OSError as error:
        raise RunError(f"Cannot make a folder for the index at {folder}: {error.strerror}. {_ELSEWHERE}") from None
    for above in dict.fromkeys(_upwards(Path(os.path.abspath(top))) + _upwards(top.resolve())):
        _check(above, private=False)
    for number in range(len(steps)):
        _check(top.joinpath(*steps[: number + 1]), private=True)
    return folder


def _upwards(folder: Path) -> list[Path]:
    return [folder, *folder.parents]


def _check(folder: Path, *, private: bool) -> None:
    """RunError for a folder through which others could change an index."""
    found, own = folder.lstat(), os.geteuid()
    trusted = {own} if private else {own, 0, Path("/").stat().st_uid}
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        wrong = "is a symbolic link" if private or found.st_uid not in trusted else None
    elif not stat.S_ISDIR(found.st_mode):
        wrong = "is no folder"
    elif found.st_uid not in trusted:
        wrong = f"belongs to user {found.st_uid}"
    elif private and mode & _OTHERS:
        wrong = f"is open to others (mode {mode:04o})"
    elif mode & _WRITE and not mode & stat.S_ISVTX:
        wrong = f"can be written by others (mode {mode:04o})"
    else:
        wrong = None
    if wrong is not None:
        raise RunError(f"Expected a place for the index that nobody else writes, but {folder} {wrong}. {_ELSEWHERE}")


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """One process at a time."""
    path = folder / "lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE)
    except OSError as error:
        raise RunError(f"Cannot use {path}: {error.strerror}. Delete it.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write(path: Path, data: bytes) -> None:
    """A file that is whole or not there. RunError where there is no room."""
    try:
        replace_whole(path, data, mode=PRIVATE)
    except OSError as error:
        raise RunError(
            f"Cannot write the index {path}: {error.strerror}. Make room, and give the command again."
        ) from None


def read(path: Path) -> bytes:
    """A file of the index. OSError if there is none; DataError for a link, or one that is not the user's own alone."""
    with _opened(path) as handle, open(handle, "rb", closefd=False) as stream:
        return stream.read()


def mapped(path: Path) -> mmap.mmap | bytes:
    """The same, left on disk."""
    with _opened(path) as handle:
        return mmap.mmap(handle, 0, access=mmap.ACCESS_READ) if os.fstat(handle).st_size else b""


def fingerprint(data: bytes | mmap.mmap) -> str:
    """BLAKE2b of 32 bytes, as hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=32).hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        handle = os.open(path, _READING)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise DataError(f"Expected {path} to be a file of yours alone, got a symbolic link. Delete it.") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
            raise DataError(f"Expected {path} to be a file of yours alone (mode 0600), got another. Delete it.")
        yield handle
    finally:
        os.close(handle)

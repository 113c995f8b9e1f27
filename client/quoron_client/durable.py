"""What is still there after a power cut: files that were replaced, and how much a database acknowledged. And files and
folders with modes of their own, which the umask can narrow and never widen.

>>> import tempfile
>>> file = Path(tempfile.mkdtemp()) / "tokens.json"
>>> replace_whole(file, b"{}", mode=PRIVATE)
>>> file.read_bytes(), oct(file.stat().st_mode & 0o777)
(b'{}', '0o600')
"""

import fcntl
import glob
import math
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quoron_privacy.errors import ConfigError, LedgerError

PRIVATE = 0o600  # at most, of a file
PUBLIC = 0o644  # at most, of files
OWN, SHARED = 0o700, 0o755  # at most, of folders
PAUSE = 0.005  # seconds between two looks at a lock


def sync_folder(folder: Path) -> None:
    """Make what was created or renamed in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_whole(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file so that it is complete or not there at all, even with concurrent writers and after a power cut.

    Callers that read and then write must take turns: the last to write wins.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def erase(path: Path, *, secret: bool) -> None:
    """Remove a file, a secret one overwritten as far as a file system can; one that is gone is erased."""
    if not path.exists():
        return
    if secret:
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(handle, bytes(os.fstat(handle).st_size), 0)
            os.fsync(handle)
        finally:
            os.close(handle)
    path.unlink()
    sync_folder(path.parent)


class HighWaterMark:
    """How many transactions a SQLite file has acknowledged, kept beside it, with the head of its audit log if any.

    SQLite reads a journal up to the first page whose checksum is wrong and takes what follows for never written: one
    flipped byte undoes everything since the journal was last folded, without a word. The file's own count is then
    below this one. An audit log cannot tell that its last rows are gone: the head that is kept is then not in it.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + "-acknowledged")

    def read(self) -> tuple[int, str] | None:
        """Return the count and the head, "" without; None without a count. OSError, or ValueError for another file."""
        if not self.path.exists():
            return None
        found = re.fullmatch(rb"([0-9]{20})(?: ([0-9a-f]{64}))?\n", self.path.read_bytes())
        if found is None:
            raise ValueError("not a count")
        return int(found[1]), (found[2] or b"").decode()

    def write(self, count: int, head: str = "") -> None:
        """Keep both, durably. They lie in one sector: whole, as they are or as they were."""
        kept = f"{count:020d}{head and ' ' + head}\n".encode()
        if not self.path.exists() or self.path.stat().st_size != len(kept):  # its length may be durable before the rest
            for draft in self.path.parent.glob(f".{self.path.name}.*.new"):  # of a process that was killed just then
                draft.unlink()
            replace_whole(self.path, kept, mode=PRIVATE)
            return
        handle = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(handle, kept, 0)
            os.fdatasync(handle)
        finally:
            os.close(handle)


def make_folder(folder: Path, *, mode: int = SHARED) -> None:
    """Make a folder and what is missing above it, each with this mode at most; one that is there stays as it is."""
    if not folder.is_dir():
        make_folder(folder.parent, mode=mode)
        folder.mkdir(mode=mode, exist_ok=True)


def public(path: str, flags: int) -> int:
    """Return an `opener` for files that others may read and never write; no symbolic link is followed."""
    return os.open(path, flags | os.O_NOFOLLOW, PUBLIC)


def clear(draft: Path) -> None:
    """Remove what an attempt to make it has left."""
    for leftover in draft.parent.glob(glob.escape(draft.name) + "*"):
        leftover.unlink()


def require_no_rest(path: Path) -> None:
    """Raise LedgerError if there was a ledger: SQLite would read the journal of a removed file into the new one."""
    journal, tally = path.with_name(path.name + "-wal"), HighWaterMark(path)
    try:
        empty = not (journal.exists() and journal.stat().st_size) and (tally.read() or (0, ""))[0] == 0
    except (OSError, ValueError):
        empty = False
    if not empty:
        raise LedgerError(
            f"Expected no ledger at {path}, found what one has left beside it: the file was removed. Put it back with "
            "all that stands beside it, or choose another folder."
        )


def acquired(handle: int, *, seconds: float, shared: bool = False) -> bool:
    """Take the lock of an open file or folder, within so many seconds, infinitely many too; whether it was free.

    It is given back when the last process that has the handle closes it, or dies.
    """
    ends, mode = time.monotonic() + seconds, fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    while True:
        try:
            fcntl.flock(handle, mode if seconds == math.inf else mode | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= ends:
                return False
            time.sleep(PAUSE)


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Wait until no other process or thread is in such a block for `folder`, and be the one that is.

        with locked(file.parent):  # reads and then writes, before the next one reads
            replace_whole(file, changed(file.read_bytes()), mode=PRIVATE)

    The lock is on the folder itself: it leaves nothing behind, and a process that dies gives it back. Not to be nested.
    Raises ConfigError for a folder that is not there or cannot be locked, and without `wait` for one that is in use.
    """
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"Expected a folder {folder} to write in, got: {error.strerror}.") from None
    try:
        try:
            free = acquired(handle, seconds=math.inf if wait else 0)
        except OSError as error:  # some network file systems cannot
            raise ConfigError(
                f"Expected a folder {folder} that can be locked, got: {error.strerror}. Keep it on a local disk."
            ) from None
        if not free:
            raise ConfigError(
                f"Expected a folder {folder} that no other process uses, got one that is in use. Stop that process."
            )
        yield
    finally:
        os.close(handle)

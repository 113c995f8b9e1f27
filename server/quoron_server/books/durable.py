"""Files and folders with modes of their own, which the umask can narrow and never widen; what a power cut leaves."""

import glob
import os
from pathlib import Path

from quoron_client.durable import PRIVATE, Tally, replace_whole, sync_folder
from quoron_privacy.errors import LedgerError

__all__ = [
    "OWN",
    "PRIVATE",
    "PUBLIC",
    "SHARED",
    "Tally",
    "clear",
    "make_folder",
    "public",
    "replace_whole",
    "require_no_rest",
    "sync_folder",
]
PUBLIC = 0o644  # at most, of files
OWN, SHARED = 0o700, 0o755  # at most, of folders


def make_folder(folder: Path, *, mode: int = SHARED) -> None:
    """Make a folder and what is missing above it, each with this mode at most; one that is there stays as it is."""
    if not folder.is_dir():
        make_folder(folder.parent, mode=mode)
        folder.mkdir(mode=mode, exist_ok=True)


def public(path: str, flags: int) -> int:
    """An `opener` for files that others may read and never write; no symbolic link is followed."""
    return os.open(path, flags | os.O_NOFOLLOW, PUBLIC)


def clear(draft: Path) -> None:
    """Remove what an attempt to make it has left."""
    for leftover in draft.parent.glob(glob.escape(draft.name) + "*"):
        leftover.unlink()


def require_no_rest(path: Path) -> None:
    """LedgerError if there was a ledger: SQLite would read the journal of a removed file into the new one."""
    journal, tally = path.with_name(path.name + "-wal"), Tally(path)
    try:
        empty = not (journal.exists() and journal.stat().st_size) and (tally.read() or (0, ""))[0] == 0
    except (OSError, ValueError):
        empty = False
    if not empty:
        raise LedgerError(
            f"Expected no ledger at {path}, found what one has left beside it: the file was removed. Put it back with "
            "all that stands beside it, or choose another folder."
        )

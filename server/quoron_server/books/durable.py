"""Files and folders with modes of their own, which the umask can narrow and never widen; what a power cut leaves."""

import os
from pathlib import Path

from quoron_client.durable import PRIVATE, Tally, replace_whole, sync_folder

__all__ = ["OWN", "PRIVATE", "PUBLIC", "SHARED", "Tally", "make_folder", "public", "replace_whole", "sync_folder"]
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

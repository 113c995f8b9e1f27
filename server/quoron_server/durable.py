"""What makes a file system's promise: a file that was created or renamed is still there after a power cut."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make what was created or renamed in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Clients whose certificates are no longer good, by the fingerprint of their key: a renewal does not bring them back.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "revoked.json"
    >>> make(file)
    >>> revoked = Revocations(file)
    >>> add(file, 64 * "a", name="client-7")
    >>> 64 * "a" in revoked, 64 * "b" in revoked
    (True, False)

The file is a JSON object, fingerprint to name, and is read again when it changes.
"""

import json
import logging
import os
from pathlib import Path

from quoron_protos.errors import ConfigError

FILE = "revoked.json"  # in an authority's folder
WORDS = "This client's certificate was revoked. Ask whoever issued it."
_log = logging.getLogger("quoron")


def make(file: Path) -> None:
    """An empty list, unless there is one."""
    if not file.exists():
        _write(file, {})


def add(file: Path, fingerprint: str, *, name: str) -> None:
    """Enter a fingerprint, with a name for people; again is the same. ConfigError for a list that cannot be read."""
    make(file)
    _write(file, read(file) | {fingerprint: name})


def read(file: Path) -> dict[str, str]:
    """Name by fingerprint; ConfigError if there is no such list."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        well_formed = isinstance(entries, dict) and all(map(_is_fingerprint, entries))
    except (OSError, ValueError):
        well_formed = False
    if not well_formed:
        raise ConfigError(
            f"Expected a list of revoked certificates at {file}, got none. `quoron certs FOLDER` makes an empty one."
        )
    return dict(entries)


class Revocations:
    """The list in a file as it is now. A file that has become unreadable leaves what was read before in force."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError if there is no list yet."""
        self._file, self._seen = file, _version(file)
        self._fingerprints = frozenset(read(file))

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self.now()

    def now(self) -> frozenset[str]:
        """Every fingerprint on the list, which is read again if it has changed."""
        found = _version(self._file)
        if found != self._seen:
            self._seen = found
            try:
                self._fingerprints = frozenset(read(self._file))
            except ConfigError as error:
                _log.error("%s The last list stays in force.", error)
        return self._fingerprints


def _version(file: Path) -> tuple[int, int, int] | None:
    """Another one whenever the file was written or replaced."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _is_fingerprint(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def _write(file: Path, entries: dict[str, str]) -> None:
    draft = file.with_name(f".{file.name}.new")
    with draft.open("w", encoding="utf-8") as stream:
        json.dump(entries, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(draft, file)

"""Clients whose certificates are no longer good, by the fingerprint of their key: a renewal does not bring them back.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "revoked.json"
    >>> make(file)
    >>> revoked = Revocations(file)
    >>> add(file, 64 * "a", name="client-7")
    >>> 64 * "a" in revoked, 64 * "b" in revoked
    (True, False)

The file is a JSON object, fingerprint to name, and is read again when it changes. While it has changed and cannot be
read, nobody knows who is revoked: then the door is closed to everybody. Two authorities may have a list each.
"""

import json
import logging
from pathlib import Path

from quoron_client.durable import PUBLIC, replace_whole
from quoron_privacy.errors import ConfigError
from quoron_server.service import journal
from quoron_server.service.folder_lock import locked

FILE = "revoked.json"  # in an authority's folder
WORDS = "This client's certificate was revoked. Ask whoever issued it."
MOST_NAMED = 20  # clients, in a line of the log
CLOSED = "The coordinator cannot tell now who is revoked. Come back later."
Version = tuple[int, ...] | None  # of a file
_log = logging.getLogger("quoron")


def make(file: Path) -> None:
    """An empty list, unless there is one."""
    with locked(file.parent):
        _make(file)


def add(file: Path, fingerprint: str, *, name: str) -> None:
    """Enter a fingerprint, with a name for people; again is the same. ConfigError for a list that cannot be read.

    Whoever adds takes turns with everybody else: what is reported is on the list, and on the disk.
    """
    with locked(file.parent):
        _make(file)
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
            f"Expected a list of revoked certificates at {file}, got none. `quoron admin certs FOLDER` makes one."
        )
    return dict(entries)


class Revocations:
    """The lists in files as they are now. Only what was read counts as seen; what could not be is read again."""

    def __init__(self, *files: Path) -> None:
        """Raises ConfigError if one of them is no list yet."""
        self._files, self._seen = files, tuple(map(version, files))
        self._fingerprints = frozenset(self._read())
        self._closed = False

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self.now()

    def now(self) -> frozenset[str]:
        """Every fingerprint on a list, which is read again if it has changed.

        ConfigError while one cannot be read: then no certificate is known to be good.
        """
        found = tuple(map(version, self._files))  # before the reading: what is written meanwhile is another version
        if None in found or found != self._seen:
            try:
                listed = self._read()
            except ConfigError as error:
                if not self._closed:
                    _log.error("%s Until there is one, no client is let in.", error)
                self._closed = True
                raise
            new = sorted(name for each, name in listed.items() if each not in self._fingerprints)
            if new:
                journal.revoked(len(listed), ", ".join(new[:MOST_NAMED]) + (", …" if len(new) > MOST_NAMED else ""))
            self._fingerprints, self._seen = frozenset(listed), found
        if self._closed:
            _log.info("the list of revoked certificates at %s can be read again", " and ".join(map(str, self._files)))
        self._closed = False
        return self._fingerprints

    def _read(self) -> dict[str, str]:
        return {each: name for file in self._files for each, name in read(file).items()}


def version(file: Path) -> Version:
    """Another one whenever the file was written or replaced; None if it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_fingerprint(text: str) -> bool:
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def _make(file: Path) -> None:
    if not file.exists():
        _write(file, {})


def _write(file: Path, entries: dict[str, str]) -> None:
    replace_whole(file, json.dumps(entries, indent=1).encode(), mode=PUBLIC)

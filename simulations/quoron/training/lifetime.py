"""What a person's own runs have promised over time: a lifetime ledger in the usual place for a program's data.

    with opened(None) as ledger:
        ledger.charge("visits-3f2a", "everyone", epsilon=1.0, delta=1e-6)

Runs are charged to a population: a name that the caller declares for "these people". It is never guessed from the
data, and a fingerprint of the data is stored nowhere: either would reveal something of who is in the table.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_data_path

from quoron_client.durable import OWN, PRIVATE, acquired, make_folder
from quoron_privacy.errors import LedgerError, LedgerUnavailable
from quoron_server.storage.lifetime_ledger import Known, PopulationLedger
from quoron_server.storage.store import Store

VARIABLE = "QUORON_LEDGER"
TIMEOUT = 60.0  # seconds that a run waits for others, which hold the file for a few milliseconds each
READERS = 10.0  # seconds that a run waits for a program that takes no turn, such as a database browser


def place(given: str | Path | None) -> Path:
    """The ledger's file: as given, else as QUORON_LEDGER says, else where the platform keeps a program's data."""
    chosen = given or os.environ.get(VARIABLE)
    return Path(chosen).expanduser() if chosen else user_data_path("quoron") / "ledger.sqlite"


@contextmanager
def opened(given: str | Path | None, *, create: bool = True) -> Iterator[PopulationLedger]:
    """The ledger at its `place`, held for as long as the block takes: keep it short, as others wait.

    What this process has verified of it is not verified again, unless somebody has written the file since.
    LedgerUnavailable after a minute in which others held it; LedgerError for a file that is none.
    """
    path = place(given)
    if create:
        try:
            make_folder(path.parent, mode=OWN)
        except OSError as error:
            raise LedgerError(
                f"Cannot make a folder for the lifetime ledger {path}: {error.strerror}. Choose another by "
                "QUORON_LEDGER."
            ) from error
    elif not path.is_file():
        raise LedgerError(f"Expected a lifetime ledger at {path}, found none: nothing has been charged there.")
    with _turn(path):
        whole = path.resolve()
        known, stamp = _MEMORY.pop(whole, (Known(), None))
        if stamp is None or stamp != _stamp(path):
            known = Known()
        with Store(whole, create=create, timeout=READERS) as file:
            yield PopulationLedger(file, known=known)
        _MEMORY[whole] = known, _stamp(path)


# What this process has read of each ledger, and the file as it was left.
_MEMORY: dict[Path, tuple[Known, tuple[int, ...] | None]] = {}


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return what is another when somebody has written the file; None while it has a journal, or there is none."""
    if not path.is_file() or path.with_name(path.name + "-wal").exists():
        return None
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Wait for those who hold the ledger, a minute at most; one process, and one thread of it, at a time.

    A lock of the operating system lets the next one in at once, and is gone with a process that is killed. SQLite's
    own would do as well, but those who wait for it stand in each other's way.
    """
    lock = path.with_name(path.name + ".lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError as error:
        raise LedgerError(f"Cannot use the lifetime ledger {path}: {lock.name}: {error.strerror}.") from error
    try:
        if not acquired(handle, seconds=TIMEOUT):
            raise LedgerUnavailable(
                f"Cannot use the lifetime ledger {path}: others have held it for a minute. Try again."
            )
        yield
    finally:
        os.close(handle)

"""Commands of the helper's operator, whether it serves or not: by a socket in the folder of keys, or from the books.

    said = ask("continue", "summer", "sqlite:///helper.sqlite", Path("run-keys"))

The folder is its owner's alone, so whoever reaches the socket is the operator. What a command does is one call of
`Helped`, behind the same lock as the calls of coordinators: no list is answered while a run is being ended.
"""

import json
import os
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from quoron_privacy.accounts.lifetime import Charge
from quoron_privacy.errors import ConfigError, LedgerError, QuoronError
from quoron_server.books.backup import together
from quoron_server.books.database import Database, parse
from quoron_server.helper.books import OPEN, HelpedRun, HelperBooks
from quoron_server.helper.keys import Keys
from quoron_server.helper.runs import Helped, as_consented
from quoron_server.runs import charge_of

COMMANDS = ("runs", "close", "continue")
PATIENCE = 5.0  # seconds for the words of a command
ANSWER = 600.0  # seconds for what it says: a list may be summed meanwhile
_LONGEST = 64 << 10  # bytes of a command; of a reply a thousand times as many
_SOCKET = "operator.sock"


class Desk:
    """Where a helper that serves hears its operator. `with` opens and closes it."""

    def __init__(self, helped: Helped, database: Database) -> None:
        self._helped, self._database = helped, database

    def __enter__(self) -> "Desk":
        folder = self._helped.keys.folder
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            raise ConfigError(f"Expected a folder of keys that is its owner's alone, got {folder}. Use chmod 700.")
        if (other := _connected(folder)) is not None:
            other.close()
            raise ConfigError(f"Expected a folder of this server's own keys, got {folder}: another serves there.")
        self._socket, self._over = socket.socket(socket.AF_UNIX), threading.Event()
        with _reached(folder) as path:
            Path(path).unlink(missing_ok=True)  # of one that was killed
            self._socket.bind(path)
        self._socket.listen(4)
        self._thread = threading.Thread(target=self._listen, name="operator", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which wakes its thread
        self._socket.close()
        self._thread.join(PATIENCE)
        (self._helped.keys.folder / _SOCKET).unlink(missing_ok=True)

    def _listen(self) -> None:
        while True:
            try:
                caller = self._socket.accept()[0]
            except OSError:
                if self._over.wait(PATIENCE):  # else, say, no more files may be open: they may be later
                    return
                continue
            with closing(caller), suppress(OSError):
                caller.settimeout(PATIENCE)
                caller.sendall(json.dumps(self._answered(_line(caller, _LONGEST))).encode() + b"\n")

    def _answered(self, line: bytes) -> dict[str, str]:
        try:
            said = json.loads(line)
            command, run, database = str(said["command"]), str(said["run"]), str(said["database"])
        except (ValueError, KeyError, TypeError):
            return {"error": "Expected a command of quoron second-server, got something else."}
        if database != _place(self._database):
            return {"error": f"Expected the books of the second server, {_place(self._database)}, got {database}."}
        try:
            return {"said": _done(self._helped, command, run)}
        except QuoronError as error:
            return {"error": str(error)}
        except Exception as error:  # such as keys that cannot be removed: the operator hears it, and asks again
            return {"error": f"{type(error).__name__}: {error}"}


def ask(command: str, run: str, database: str, keys: Path) -> str:
    """What a command says, of a helper that serves or of one that does not. LedgerError for what cannot be done."""
    caller = _connected(keys)
    if caller is not None:
        with closing(caller):
            where = str(Path(parse(database).database or "").resolve())
            said = {"command": command, "run": run, "database": where}
            caller.settimeout(ANSWER)
            try:
                caller.sendall(json.dumps(said).encode() + b"\n")
                reply = json.loads(_line(caller, 1000 * _LONGEST))
            except (OSError, ValueError):
                raise LedgerError("Expected an answer of the second server that serves, got none. Ask again.") from None
        if "error" in reply:
            raise LedgerError(reply["error"])
        return str(reply["said"])
    if command != "runs" and not keys.is_dir():
        raise LedgerError(f"Expected the folder of the second server's keys, got {keys}, where there is none.")
    with Database(database, create=False) as opened:
        if command == "runs":
            return _listed(HelperBooks(opened))
        helped = Helped(HelperBooks(opened), Keys(keys), Ed25519PrivateKey.generate(), threads=1)  # it signs nothing
        try:
            return _done(helped, command, run)
        finally:
            helped.close_threads()


def _done(helped: Helped, command: str, run: str) -> str:
    if command == "runs":
        return _listed(helped.books)
    if command == "close":
        if helped.books.run(run) is None:
            raise LedgerError(
                f"Expected a run that was consented to, got {run!r}. `quoron second-server runs` lists them."
            )
        there = helped.keys.holds(run)
        state = "closed" if helped.end(run) else "was not open"
        keys = "its keys are destroyed" if there else f"no keys of it are in {helped.keys.folder}"
        return f"{run}: {state}; {keys}."
    if command == "continue":
        helped.go_on(run)
        found = helped.books.run(run)
        return f"{run}: goes on.\n{'' if found is None else listed(found)}"
    raise ConfigError(f"Expected one of {', '.join(COMMANDS)}, got {command!r}.")


def listed(run: HelpedRun) -> str:
    """A line about a run for the helper's operator; of an open one in several copies what they promise together."""
    if run.state != OPEN or run.copies == 1:
        return run.words()
    try:
        _, plan = as_consented(run)
    except QuoronError:
        return run.words(", of which this version of quoron cannot say what they guarantee: it plans the run otherwise")
    copies = [Charge(run.run, "", **charge_of(plan))] * run.copies
    return run.words(f", which guarantee {together(copies).words()} for replacing one user")


def _listed(books: HelperBooks) -> str:
    return "\n".join(map(listed, books.runs()))


def _place(database: Database) -> str:
    return database.name if database.path is None else str(database.path.resolve())


def _connected(folder: Path) -> socket.socket | None:
    """To a helper that serves with this folder of keys; None if there is none."""
    made = socket.socket(socket.AF_UNIX)
    try:
        with _reached(folder) as path:
            made.connect(path)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        made.close()
        return None
    except OSError as error:
        made.close()
        raise LedgerError(f"Cannot reach the second server by {folder / _SOCKET}: {error.strerror or error}.") from None
    return made


@contextmanager
def _reached(folder: Path) -> Iterator[str]:
    """A name of the socket, however long that of its folder is: sockets' names have at most a hundred bytes."""
    if sys.platform != "linux":
        yield str(folder / _SOCKET)
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{_SOCKET}"
    finally:
        os.close(handle)


def _line(caller: socket.socket, longest: int) -> bytes:
    """Up to the end of a line, or to that of what is sent."""
    data = bytearray()
    while b"\n" not in data and len(data) < longest and (some := caller.recv(64 << 10)):
        data += some
    return bytes(data)


def hold(database: str) -> list[str]:
    """Take books that were put back, or lost their count, for all that there is; names of open runs, which are held."""
    with Database(database, create=False, as_it_is=True) as opened:
        return list(HelperBooks(opened).hold())

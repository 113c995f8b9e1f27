"""A coordinator's books that no process has open, with the methods of `Control` that need no coordinator.

The process that opens them is their owner meanwhile: a coordinator that is started then waits, or is refused.
"""

import getpass
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from quoron_privacy.accounts.lifetime import Promise
from quoron_privacy.errors import ConfigError
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.books.store import Store

if TYPE_CHECKING:  # one's own ledger needs no SQLAlchemy
    from quoron_server.federation import Books


class StoredBooks:
    """The books of a database; of one's own file only the ledger. ConfigError where a run is not known."""

    def __init__(self, database: Store, name: str = "") -> None:
        self.name, self._database = name or f"the database {database.name}", database

    def cancel(self, run: str) -> dict[str, Any]:
        """End a run without a model; its state."""
        return {"state": _known(run, self._books().cancel(run, by=_here()))}

    def forget_user(self, user: str, *, sure: bool) -> dict[str, Any]:
        """`Seats.forget` of a user, by number, name or fingerprint."""
        from quoron_server.books.roster import Seats

        books = self._books()
        return Seats(books.registry.roster, books.population).forget(user, sure=sure)

    def backup(self, out: Path | None) -> tuple[str, str]:
        """Copy the books to a file: its name and SHA-256."""
        from quoron_server.books.backup import back_up

        if out is None:
            raise ConfigError("Expected a file to write the backup to, got none.")
        return str(out), back_up(self._books().database, out)

    def ledger(self) -> dict[str, Any]:
        """The population's lifetime ledger."""
        return dict(json.loads(PopulationLedger(self._database).export()))

    def limit(self, group: str, *, exceeded: bool = False, **numbers: float) -> str:
        """`PopulationLedger.limit`; the limit in words."""
        return PopulationLedger(self._database).limit(group, exceeded=exceeded, by=_here(), **numbers).words()

    def charge(self, run: str, group: str, *, note: str = "", **promise: Unpack[Promise]) -> str:
        """Enter what another tool spends on `group`; the charge in words."""
        ledger = PopulationLedger(self._database)
        return ledger.charge(run, group, statement=note, elsewhere=True, by=_here(), **promise).words()

    def _books(self) -> "Books":
        from quoron_server.books.database import Database
        from quoron_server.federation import Books

        assert isinstance(self._database, Database)  # commands on runs and users never open one's own ledger
        return Books(self._database)


def _known(run: str, found: Any) -> Any:
    if found is None:
        raise ConfigError(f"Expected the name of a run in these books, got {run!r}.")
    return found


def _here() -> str:
    """Who acts, as the chain will say."""
    try:
        return f"{getpass.getuser()}, in the books"
    except (OSError, KeyError):  # a user without a name, as in containers
        return f"user {os.getuid()}, in the books"

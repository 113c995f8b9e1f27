"""A coordinator's store that no process has open, with the commands that need no coordinator.

The process that opens it is its owner meanwhile: a coordinator that is started then waits, or is refused.
"""

import getpass
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron_privacy.errors import ConfigError
from quoron_server.storage.lifetime_ledger import PopulationLedger

if TYPE_CHECKING:  # one's own ledger needs no SQLAlchemy
    from quoron_server.federation import RunStore
    from quoron_server.storage.database import Database


class OfflineStore:
    """The ledger of a database, and all else of one that is a coordinator's. ConfigError where a run is not known."""

    def __init__(self, ledger: PopulationLedger, name: str, database: "Database | None" = None) -> None:
        self.name, self._ledger, self._database = name, ledger, database

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Carry out a command, as `Control.call`: cancel, forget_user, ledger, limit or charge."""
        if command == "cancel":
            run = arguments["run"]
            if (state := self._store().cancel(run, by=_actor())) is None:
                raise ConfigError(f"Expected the name of a run in this database, got {run!r}.")
            return {"state": state}
        if command == "forget_user":
            return self._store().forget_user(arguments["user"], sure=arguments["sure"])
        if command == "limit":
            return {"limit": self._ledger.limit(by=_actor(), **arguments).words()}
        if command == "charge":
            note, mu = arguments.pop("note"), arguments.pop("mu") or None
            charge = self._ledger.charge(by=_actor(), elsewhere=True, statement=note, mu=mu, **arguments)
            return {"charged": charge.words()}
        return dict(json.loads(self._ledger.export()))

    def backup(self, out: Path | None) -> tuple[str, str]:
        """Copy the store to a file: its name and SHA-256."""
        from quoron_server.storage.backup import back_up

        if out is None:
            raise ConfigError("Expected a file to write the backup to, got none.")
        return str(out), back_up(self._store().database, out)

    def _store(self) -> "RunStore":
        from quoron_server.federation import RunStore

        assert self._database is not None  # commands on runs and users never open one's own ledger
        return RunStore(self._database)


def _actor() -> str:
    """Return who acts, as the chain will say."""
    try:
        return f"{getpass.getuser()}, in the database"
    except (OSError, KeyError):  # a user without a name, as in containers
        return f"user {os.getuid()}, in the database"

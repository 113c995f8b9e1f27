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
from quoron_server.storage.store import Store

if TYPE_CHECKING:  # one's own ledger needs no SQLAlchemy
    from quoron_server.federation import RunStore


class OfflineStore:
    """The store of a database; of one's own file only the ledger. ConfigError where a run is not known."""

    def __init__(self, database: Store, name: str = "") -> None:
        self.name, self._database = name or f"the database {database.name}", database

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Carry out a command, as `Control.call`: cancel, forget_user, ledger, limit or charge."""
        commands = (self._cancel, self._forget_user, self._ledger, self._limit, self._charge)
        return {each.__name__: each for each in commands}[f"_{command}"](**arguments)

    def backup(self, out: Path | None) -> tuple[str, str]:
        """Copy the store to a file: its name and SHA-256."""
        from quoron_server.storage.backup import back_up

        if out is None:
            raise ConfigError("Expected a file to write the backup to, got none.")
        return str(out), back_up(self._store().database, out)

    def _cancel(self, *, run: str) -> dict[str, Any]:
        if (state := self._store().cancel(run, by=_here())) is None:
            raise ConfigError(f"Expected the name of a run in this database, got {run!r}.")
        return {"state": state}

    def _forget_user(self, *, user: str, sure: bool) -> dict[str, Any]:
        return self._store().forget_user(user, sure=sure)

    def _ledger(self) -> dict[str, Any]:
        return dict(json.loads(PopulationLedger(self._database).export()))

    def _limit(self, *, group: str, **numbers: Any) -> dict[str, Any]:
        return {"limit": PopulationLedger(self._database).limit(group, by=_here(), **numbers).words()}

    def _charge(self, *, run: str, group: str, note: str, mu: float, **promise: Any) -> dict[str, Any]:
        promise |= {"statement": note, "mu": mu or None, "elsewhere": True}
        return {"charged": PopulationLedger(self._database).charge(run, group, by=_here(), **promise).words()}

    def _store(self) -> "RunStore":
        from quoron_server.federation import RunStore
        from quoron_server.storage.database import Database

        assert isinstance(self._database, Database)  # commands on runs and users never open one's own ledger
        return RunStore(self._database)


def _here() -> str:
    """Return who acts, as the chain will say."""
    try:
        return f"{getpass.getuser()}, in the database"
    except (OSError, KeyError):  # a user without a name, as in containers
        return f"user {os.getuid()}, in the database"

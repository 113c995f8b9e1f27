"""What operators say of groups' lifetime accounts: limits, and what other tools spend. Each is on the chain by name."""

from typing import Any

from quoron_privacy.accounts.lifetime import Charge, Limit
from quoron_privacy.errors import ConfigError
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.service import journal
from quoron_server.service.records import retried_once

_LONGEST = 64  # characters of a group's name or a run's, as in a specification


class Accounts:
    """The accounts of one coordinator. Its methods belong to the event loop; the database is used in threads."""

    def __init__(self, population: PopulationLedger) -> None:
        self._population = population

    async def limit(self, group: str, *, by: str = "", **numbers: Any) -> Limit:
        """From now on refuse runs that would bring `group` beyond (ε, δ). ConfigError for numbers that are none, and
        for a limit that is exceeded already, unless that is said."""
        _check("population", group)
        limit = await retried_once(lambda: self._population.limit(group, by=by, **numbers))
        journal.limited(group, by, limit.words())
        return limit

    async def charge(self, run: str, group: str, *, by: str = "", **promise: Any) -> Charge:
        """Enter what another tool spends on a group's users; as `PopulationLedger.charge`, whose errors it raises."""
        _check("population", group)
        _check("run", run)
        charge = await retried_once(lambda: self._population.charge(run, group, elsewhere=True, by=by, **promise))
        journal.charged(run, by, group, charge.words())
        return charge


def _check(what: str, name: str) -> None:
    if not 1 <= len(name) <= _LONGEST:
        raise ConfigError(f"Expected a {what}'s name of 1 to {_LONGEST} characters, got {len(name)}.")

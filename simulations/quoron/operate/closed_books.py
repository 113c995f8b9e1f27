"""What is done in a coordinator's books that no process has open: a run is cancelled or goes on, a user is forgotten.

Whoever opens them is their owner meanwhile: a coordinator that is started then waits, or is refused.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from quoron_privacy.errors import ConfigError, LedgerUnavailable
from quoron_server.books.database import Database
from quoron_server.books.seats import Seats
from quoron_server.federation import Books
from quoron_server.specification import planned

T = TypeVar("T")


def cancel(database: str, run: str, *, by: str) -> str:
    """End a run without a model; its state. ConfigError where there is none of that name."""
    return _of_run(database, run, lambda books: books.cancel(run, by=by))


def continue_held(database: str, run: str, *, by: str) -> int:
    """Let a held run go on; for how many more copies it is charged. ConfigError where there is none of that name."""
    return _of_run(database, run, lambda books: books.continue_held(run, planned, by=by))


def forget(database: str, word: str, *, sure: bool) -> dict[str, Any]:
    """`Seats.forget` of a user, by number, name or fingerprint."""
    with Database(database, create=False) as opened:
        books = Books(opened)
        return Seats(books.registry.roster, books.population).forget(word, sure=sure)


def _of_run(database: str, run: str, act: Callable[[Books], T | None]) -> T:
    try:
        opened = Database(database, create=False)  # as its owner: whoever carries out its runs is not there
    except LedgerUnavailable as error:
        raise LedgerUnavailable(f"{error} Ask a coordinator that has it with --coordinator.") from None
    with opened:
        found = act(Books(opened))
    if found is None:
        raise ConfigError(f"Expected the name of a run in these books, got {run!r}.")
    return found

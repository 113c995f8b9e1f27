"""The helper's books for its operator, while no helper serves from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quoron_server.books.database import Database
from quoron_server.helper.books import HelperBooks
from quoron_server.helper.keys import Keys, signing_key
from quoron_server.helper.runs import Helped


@contextmanager
def books(database: str, *, as_it_is: bool = False) -> Iterator[HelperBooks]:
    """Those that are there; `as_it_is` takes them for all that there is."""
    with Database(database, create=False, as_it_is=as_it_is) as opened:
        yield HelperBooks(opened)


@contextmanager
def helped(database: str, keys: Path, signing: Path) -> Iterator[Helped]:
    """What the helper does, with these books and keys."""
    with books(database) as opened:
        made = Helped(opened, Keys(keys), signing_key(signing), threads=1)
        try:
            yield made
        finally:
            made.close_threads()

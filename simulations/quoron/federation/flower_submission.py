"""Submitting a run to a federation of Flower: `quoron submit --superlink HOST:PORT`.

with operator("127.0.0.1:8000", authority) as connection:
    number = submit(connection, specification, waiting=600)
    follow(connection, number, print)
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from quoron.federation.flower_commands import FlowerConnection, last_error, write_bundle
from quoron_client.federation.config import check_plaintext
from quoron_privacy.errors import ConfigError, RunError
from quoron_server.specification import RunSpecification

COMPONENTS = {"server": "quoron.federation.flower_app:server_app", "client": "quoron_client.flower.app:app"}
SAYS = "quoron: "  # before each line of ours in the ServerApp's log
_PATIENCE = 600.0  # seconds that a SuperLink may be away
_KEPT = 1000  # last lines of the ServerApp's log, of which the last error is passed on


@contextmanager
def operator(
    address: str, authority: Path | None, *, insecure: bool = False, anywhere: bool = False
) -> Iterator[FlowerConnection]:
    """A connection for Flower's command line, with a home that is gone afterwards.

    `authority` signed the SuperLink's certificate; `insecure` is plaintext, on this machine alone or `anywhere`.
    ConfigError for both or neither.
    """
    check_plaintext(address, insecure=insecure, anywhere=anywhere)
    insecure = insecure or anywhere
    if (authority is None) is not insecure:
        raise ConfigError(
            f"Expected QUORON_AUTHORITY=CA.pem or QUORON_INSECURE=1, or a profile with either, to reach the SuperLink "
            f"{address}, got {'both' if insecure else 'neither'}."
        )
    if authority is not None and not authority.is_file():
        raise ConfigError(f"Expected an authority's certificate at {authority}, found none.")
    with TemporaryDirectory(prefix="quoron-flower-") as scratch:
        connection = FlowerConnection(Path(scratch), address, None if authority is None else authority.resolve())
        connection.begin()
        yield connection


def submit(connection: FlowerConnection, specification: RunSpecification, *, waiting: float) -> int:
    """Start the ServerApp of a run; Flower's number of it. The same run again goes on from its ledger.

    `waiting` seconds for its users to come. Raises RunError if Flower does not take it.
    """
    settings: dict[str, str | int | float] = {"specification": specification.as_text(), "waiting": float(waiting)}
    app = write_bundle(connection.home / "app", name="quoron", settings=settings, **COMPONENTS)
    return connection.run(app)


def follow(connection: FlowerConnection, number: int, say: Callable[[str], None]) -> None:
    """Say what the ServerApp tells of a run until its end; RunError if it ends without a model."""
    shown, seen = 0, time.monotonic()
    lines: deque[str] = deque(maxlen=_KEPT)
    while True:
        for index, line in enumerate(connection.stream(number)):
            if index >= shown:
                lines.append(line)
                if line.startswith(SAYS):
                    say(line.removeprefix(SAYS))
            shown = max(shown, index + 1)
            seen = time.monotonic()
        try:
            status, details = connection.status_and_details(number)
        except RunError:
            if time.monotonic() - seen > _PATIENCE:
                raise
        else:
            if status.startswith("finished"):
                break
        time.sleep(2.0)
    if status != "finished:completed":
        raise RunError(f"Flower's run {number} has ended without a model ({status}). {details}{last_error(lines)}")

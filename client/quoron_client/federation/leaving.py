"""A user leaves: its client answers nothing any more, and what it kept is erased but for what must stay.

    receipt = leave(Path("mine.sqlite"), certificate=Path("mine.pem"), key=Path("mine.key"))
    print(receipt.words())

What is done, in this order, and done again to the same end where it was interrupted:

| what                                                            | how                                              |
| --------------------------------------------------------------- | ------------------------------------------------ |
| every run, answer and coordinator's store in the record          | erased, in the transaction that says "has left"  |
| the key, if it is given                                         | overwritten and removed: nobody is this user     |
| the certificate, if it is given                                 | removed                                          |

What was released stays, and the promise covers it: docs/leaving.md. The owner's own data are the owner's, and are not
touched: no copy of them is kept anywhere here.
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from quoron_client.durable import erase
from quoron_client.federation.record import Record
from quoron_client.federation.record_file import Farewell
from quoron_client.protocol import identity
from quoron_privacy.errors import ConfigError, IdentityError

STAYS = {
    "that this user has left, and when": "a client that is started with this record again answers nothing",
    "the sum of ε and of δ that was spent": "what was released stays released, and bounds what may follow",
    "the number of writes, in the record and beside it": "an older copy of the record is distinguished from this one",
    "what was released before": "it is out; its guarantee bounds, by ε and δ, what it can say of this user's items",
}


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was erased, and what stays: of the record, and of files beside it."""

    record: str
    farewell: Farewell
    files: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON."""
        fields = asdict(self.farewell)
        erased = {"runs": fields.pop("runs"), "answers": fields.pop("answers"), "books": fields.pop("books")}
        return (
            {"left": fields.pop("time"), "record": self.record}
            | fields
            | {"erased": erased | {"files": self.files}, "stays": STAYS}
        )

    def words(self) -> str:
        """For people."""
        left = self.farewell
        return "\n".join(
            [
                f"This user has left, at {left.time}. Nothing is answered with {self.record} any more.",
                "",
                "Erased:",
                f"  {left.runs} runs, {left.answers} answers and {left.books} coordinators' stores in the record",
                *(f"  {file}" for file in self.files),
                "",
                "Stays:",
                *(f"  {what}: {why}" for what, why in STAYS.items()),
                f"  spent: ε = {left.epsilon:g}, δ = {left.delta:g}",
                *(
                    ["", f"Tell the coordinator's operator to forget the key {left.key} (quoron admin users forget)."]
                    if left.key
                    else []
                ),
            ]
        )


def would_erase(record: Path, *, certificate: Path | None = None, key: Path | None = None) -> list[str]:
    """Return what `leave` would erase, as lines. ConfigError without a record, IdentityError for an unreadable file."""
    _check(record, certificate, key)
    files = [str(path) for path in (key, certificate) if path is not None]
    return [f"all that {record} has kept of runs, answers and coordinators' stores", *files]


def leave(record: Path, *, certificate: Path | None = None, key: Path | None = None) -> Receipt:
    """Leave for good. What is given of key and certificate is erased too.

    ConfigError without a record or for a key that is another's, LedgerError for a file that is no whole record,
    IdentityError for a file that cannot be read or erased. A process that answers with the record is ended by it.
    """
    user = _check(record, certificate, key)
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}+00:00"
    with Record.open(record, epsilon=inf, delta=inf, anew=True, leaving=True) as kept:
        farewell = kept.leave(key=user, time=now)
    if user and farewell.key and user != farewell.key:
        raise IdentityError(
            f"Expected the certificate of the user who left with {record}, key {farewell.key[:16]}…, got that of "
            f"{user[:16]}… in {certificate}. It is untouched."
        )
    for path in (key, certificate):
        if path is not None:
            _erase(path, secret=path == key)
    return Receipt(str(record), farewell, tuple(str(path) for path in (key, certificate) if path is not None))


def _check(record: Path, certificate: Path | None, key: Path | None) -> str:
    """The fingerprint of the key, as far as a certificate says; empty where it was erased before or is not given."""
    if not record.is_file():
        raise ConfigError(f"Expected a client's state, got {record}, which is not there. Give --state.")
    if key is not None and certificate is None:
        raise ConfigError(f"Expected --certificate with --key {key}: its certificate says which key it is.")
    if certificate is None or not certificate.exists():
        return ""
    if key is not None and key.exists() and key.stat().st_size and key.read_bytes().strip(b"\0"):
        identity.check_pair(certificate, key)
    return identity.fingerprint(identity.load(certificate))


def _erase(path: Path, *, secret: bool) -> None:
    try:
        erase(path, secret=secret)
    except OSError as error:
        raise IdentityError(
            f"Expected to erase {path}, cannot: {error.strerror}. The record is done; erase it yourself, or make it "
            "yours to write and say the same again."
        ) from None

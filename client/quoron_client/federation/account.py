"""The account of a silo's record: the guarantee of each run, and how much of each person's budget is spent.

    with ClientState(Path("silo.sqlite"), epsilon=inf, delta=inf) as record:
        print(account(record, Path("silo.sqlite"))["runs"])
        print(of_each(record, ["patient 17"]))

For the silo and its auditors alone: how many answered may reveal who was in a secret cohort. No person's
name is in an account; `of_each` needs the names from the silo, as the record has none.

And leaving, which is final: a person leaves a silo (`depart`), or the owner of the record leaves (`leave`):

    print(leave(Path("mine.sqlite"), certificate=Path("mine.pem"), key=Path("mine.key")).words())

What is done when an owner leaves, in this order, and done again to the same end where it was interrupted:

| what                                                    | how                                             |
| ------------------------------------------------------- | ----------------------------------------------- |
| every run, answer and coordinator's store in the record | erased, in the transaction that says "has left" |
| the key, if it is given                                 | overwritten and removed: no one is this user    |
| the certificate, if it is given                         | removed                                         |

What was released stays, and the promise covers it: docs/leaving.md. The owner's own data are the owner's, and are not
touched: no copy of them is kept anywhere here.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from quoron_client.durable import erase
from quoron_client.federation.client_state import Agreement, ClientState, Persons, at
from quoron_client.protocol import identity
from quoron_privacy.errors import ConfigError, IdentityError

UNKNOWN = "unknown: a coordinator says that this key has agreed to it, and the client state was made after"
DEPARTED = {
    "that this person has left, and when": "its rows are left out as soon as the silo's table is read",
    "a salted digest of its name, and its number": "so that it is known if its rows are still there, or come back",
    "which runs it was charged for, and their ε and δ": "what was released stays released, and bounds what may follow",
    "what was released before": "it is out; its guarantee bounds, by ε and δ, what it can say of this person's rows",
}


@dataclass(frozen=True, slots=True)
class PersonAccount:
    """The account of one person, for a caller who has its name."""

    name: str
    number: int | None  # None: the record does not know this name
    epsilon: float
    delta: float
    runs: tuple[str, ...]  # that it is charged for
    answered: tuple[str, ...]  # those of them in which it has answered
    left: str | None  # when


def account(record: ClientState, path: Path) -> dict[str, Any]:
    """Return what the record in this file says of its runs and persons, without a line on any one person, as JSON."""
    everybody = np.arange(max(1, record.people))
    counted = Counter((float(epsilon), float(delta)) for epsilon, delta in record.charged(everybody))
    spending = [{"epsilon": e, "delta": d, "persons": many} for (e, d), many in sorted(counted.items(), reverse=True)]
    runs = [_run(*agreement, everybody) for agreement in record.agreements()]
    told = {"made": _now(), "record": str(path), "persons": len(everybody), "departures": record.departures}
    return told | {"spending": spending, "runs": runs}


def of_each(record: ClientState, those: Sequence[str]) -> list[PersonAccount]:
    """Return what each of these names has spent, in their order."""
    numbers, left = record.known(those)
    sums = record.charged(numbers)
    runs = [(run.run, run.charges(numbers), at(run.answered, numbers)) for run, _ in record.agreements()]
    found = []
    for index, (name, number) in enumerate(zip(those, numbers.tolist(), strict=True)):
        if number < 0:
            found.append(PersonAccount(name, None, 0.0, 0.0, (), (), None))
            continue
        charged = tuple(run for run, charges, _ in runs if charges[index])
        answered = tuple(run for run, _, answers in runs if answers[index])
        epsilon, delta = float(sums[index, 0]), float(sums[index, 1])
        found.append(PersonAccount(name, number, epsilon, delta, charged, answered, left[index]))
    return found


def _run(run: Agreement, rounds: int, everybody: Persons) -> dict[str, Any]:
    """Return a run that was agreed to: what was announced of it, and what it came to."""
    unknown: dict[str, Any] = {"statement": UNKNOWN, "epsilon": None, "delta": None, "simulation": False}
    unknown |= dict.fromkeys(("algorithm", "theorem", "adjacency", "trust_model", "participation"), "")
    return {
        "run": run.run,
        "agreed": run.agreed or "",  # ISO 8601, UTC; empty if it is not known
        **unknown,
        **(json.loads(run.promise) if run.promise else {}),
        "charged_epsilon": run.epsilon,  # of a person who is charged: for replacing its rows
        "charged_delta": run.delta,
        "state": "ended" if run.ended else "open",
        "rounds_answered": rounds,
        "persons": run.people,  # that the silo had while it was open
        "persons_charged": int(run.charges(everybody).sum()),
        "persons_answered": int(run.answered.sum()),
    }


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}+00:00"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was erased, and what stays, for people and, with all of `fields`, as JSON."""

    done: str
    erased: tuple[str, ...]
    stays: Mapping[str, str]  # what, and why
    fields: Mapping[str, Any]
    last: str = ""  # what is left to do

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON."""
        return {**self.fields, "stays": dict(self.stays)}

    def words(self) -> str:
        """For people."""
        erased, stays = [f"  {what}" for what in self.erased], [f"  {what}: {why}" for what, why in self.stays.items()]
        last = ["", self.last] if self.last else []
        return "\n".join([self.done, "", "Erased:", *erased, "", "Stays:", *stays, *last])


def depart(record: ClientState, path: Path, name: str) -> Receipt:
    """A person leaves for good; said again it ends the same, with the time of the first. ConfigError for a name that
    the record in this file does not know."""
    number, left, answers = record.depart(name, time=_now())
    epsilon, delta = record.charged(np.array([number]))[0].tolist()
    told = {"person": name, "number": number, "left": left, "record": str(path)}
    return Receipt(
        f"{name} has left, at {left}. No answer of {path} has this person's rows any more.",
        (f"{answers} kept answers that had this person's row",),
        DEPARTED | {"spent": f"ε = {epsilon:g}, δ = {delta:g}"},
        told | {"epsilon": epsilon, "delta": delta, "answers": answers},
        "The silo's own table is not touched: erase this person's rows there, and in your copies of it.",
    )


STAYS = {
    "that this user has left, and when": "a client that is started with this record again answers nothing",
    "the sum of ε and of δ that was spent": "what was released stays released, and bounds what may follow",
    "the number of writes, in the record and in its count": "an older copy of the record is distinguished from it",
    "what was released before": "it is out; its guarantee bounds, by ε and δ, what it can say of this user's items",
}


def would_erase(record: Path, *, certificate: Path | None = None, key: Path | None = None) -> list[str]:
    """Return what `leave` would erase, as lines. ConfigError without a record, IdentityError for an unreadable file."""
    _check(record, certificate, key)
    files = [str(path) for path in (key, certificate) if path is not None]
    return [f"all that {record} has kept of runs, answers and coordinators' stores", *files]


def leave(record: Path, *, certificate: Path | None = None, key: Path | None = None) -> Receipt:
    """Leave, which is final. What is given of key and certificate is erased too.

    ConfigError without a record or for a key that is another's, LedgerError for a file that is no whole record,
    IdentityError for a file that cannot be read or erased. A process that answers with the record is ended by it.
    """
    user = _check(record, certificate, key)
    with ClientState(record, epsilon=inf, delta=inf, new_record=True, leaving=True) as kept:
        left = kept.leave(key=user, time=_now())
    if user and left.key and user != left.key:
        raise IdentityError(
            f"Expected the certificate of the user who left with {record}, key {left.key[:16]}…, got that of "
            f"{user[:16]}… in {certificate}. It is untouched."
        )
    for path in (key, certificate):
        if path is not None:
            _erase(path, secret=path == key)
    files = tuple(str(path) for path in (key, certificate) if path is not None)
    erased = {"runs": left.runs, "answers": left.answers, "stores": left.stores, "files": files}
    spent = {"key": left.key, "epsilon": left.epsilon, "delta": left.delta}
    kept_before = f"{left.runs} runs, {left.answers} answers and {left.stores} coordinators' stores in the client state"
    tell = f"Tell the coordinator's operator to forget the key {left.key} (quoron admin users forget)."
    return Receipt(
        f"This user has left, at {left.time}. Nothing is answered with {record} any more.",
        (
            kept_before,
            *files,
        ),
        STAYS | {"spent": f"ε = {left.epsilon:g}, δ = {left.delta:g}"},
        {"left": left.time, "record": str(record), **spent, "erased": erased},
        tell if left.key else "",
    )


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

"""A chain of rows: each with the hash of the one before, so that none is changed, removed or moved unseen.

    >>> row = {"sequence": 0, "time": "", "kind": "end", "payload": {"run": "summer", "state": "complete"}}
    >>> verify_rows([row | {"hash": row_hash(START, row)}]) == row_hash(START, row)
    True

`acts` reads who did what, with which version of the code: what operators do is signed, and what is spent.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from quoron_privacy.errors import LedgerError

START = "0" * 64
KINDS = ("limit", "charge", "release", "end", "seat", "submit", "cancel")
SIGNED = ("by", "software")  # who did it, where an operator did, and with which code: beside what it says
Row = dict[str, Any]

_TOLD = {name: name for name in ("software", "run", "plan", "epsilon", "delta")} | {"group": "population"}


@functools.cache
def software() -> str:
    """The code that runs here, by its version."""
    try:
        return f"quoron {version('quoron')}"
    except PackageNotFoundError:
        return "quoron, not installed"


def signed(by: str = "") -> Row:
    """What stands beside what a row says; by nobody where a run does it in its course."""
    return {"software": software()} | ({"by": by} if by else {})


def unsigned(payload: Row) -> Row:
    """What a row says, without that."""
    return {name: value for name, value in payload.items() if name not in SIGNED}


def acts(rows: Sequence[Row]) -> list[Row]:
    """Who submitted, cancelled and limited what, and what was spent, in order and with which code, of a verified chain.

    Each has `time`, `what`, `by`, `software` and, as far as they belong to it, `run`, `population`, `plan`, `epsilon`
    and `delta`. A charge is by whoever has submitted its run, unless another tool's was entered.
    """
    found: list[Row] = []
    submitted: dict[Any, Row] = {}
    for row in rows:
        payload = row["payload"]
        if row["kind"] not in ("submit", "cancel", "limit", "charge"):
            continue
        act = {"time": row["time"], "what": row["kind"], "by": payload.get("by", "")}
        act |= {word: payload[name] for name, word in _TOLD.items() if name in payload}
        run = payload.get("run")
        if row["kind"] == "submit":
            submitted[run] = payload
        elif row["kind"] == "charge" and run in submitted:
            act |= {"plan": submitted[run].get("plan", ""), "by": act["by"] or submitted[run].get("by", "")}
        found.append(act)
    return found


def row_hash(previous: str, row: Row) -> str:
    """SHA-256 of the previous row's hash and this row without its own, as hexadecimal digits."""
    return hash_of(previous, row, canonical(row["payload"]))


def hash_of(previous: str, row: Row, payload: str) -> str:
    """The same, of a payload that is canonical JSON already."""
    kind, time = json.dumps(row["kind"]), json.dumps(row["time"])
    text = f'{{"kind":{kind},"payload":{payload},"sequence":{json.dumps(row["sequence"])},"time":{time}}}'
    return hashlib.sha256((previous + text).encode()).hexdigest()


def verify_rows(rows: Sequence[Row], expected_head: str | None = None) -> str:
    """The head of a chain of rows; LedgerError names the first row that does not belong where it is."""
    head, heads = START, {START}
    for sequence, row in enumerate(rows):
        if row["sequence"] != sequence:
            raise LedgerError(_gone(sequence, row))
        if row["kind"] not in KINDS or row_hash(head, row) != row["hash"]:
            raise LedgerError(_changed(sequence, row))
        head = row["hash"]
        heads.add(head)
    if expected_head is not None and expected_head not in heads:
        raise LedgerError(
            f"Population ledger: no row has the hash {expected_head}; rows at the end are gone or were written anew. "
            "Compare with the export that it came from."
        )
    return head


def verify_export(text: str, expected_head: str | None = None) -> str:
    """The head of an export, after checking every row; LedgerError if it is none or does not hold together."""
    try:
        document = json.loads(text)
        rows, stated = list(document["rows"]), document["head"]
        head = verify_rows(rows, expected_head)
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError("Expected an export of a population ledger, got something else.") from error
    if head != stated:
        raise LedgerError(f"Expected the export to end at its head {stated}, got {head}. Rows at the end are gone.")
    return head


def verify_stored(rows: Sequence[Row], head: str, first: int) -> None:
    """LedgerError names the first of stored rows behind a head that does not belong where it is.

    The hash is of the text as it is stored: whatever says the same in other words is not what was written.
    """
    for sequence, row in enumerate(rows, first):
        if row["sequence"] != sequence:
            raise LedgerError(_gone(sequence, row))
        try:
            whole = row["kind"] in KINDS and hash_of(head, row, row["payload"]) == row["hash"]
        except (ValueError, TypeError):  # of another type, or no text
            whole = False
        if not whole:
            raise LedgerError(_changed(sequence, row))
        head = row["hash"]


def _gone(sequence: int, row: Row) -> str:
    return f"Population ledger: expected row {sequence}, found row {row['sequence']}. Rows are gone."


def _changed(sequence: int, row: Row) -> str:
    return (
        f"Population ledger: row {sequence} ({row['kind']}) is not what was written, or what came before it is not. "
        "Compare with your last export."
    )


def canonical(value: Any) -> str:
    """JSON of which there is one for each value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)

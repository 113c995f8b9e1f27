"""Answers to two servers, of whom neither can read one: their messages, and what the second server signs.

    >>> consent = helper.HelperConsent(run="r", plan_digest=bytes(32), spec_digest=bytes(32))
    >>> check_signature(consent, signature_of(consent, key := Ed25519PrivateKey.generate()), key.public_key())

The second server signs its consent to one plan with a long-lived key, which clients have from its operator; seals are
for the key of one run that the consent names, and are destroyed with it. Source: docs/privacy/two-servers.md.
"""

from collections.abc import Mapping
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from numpy.typing import NDArray

from quoron_client.protocol.wire import MAX_NUMBERS, array_from_wire, array_to_wire
from quoron_privacy.errors import ConfigError, IdentityError, WireError
from quoron_privacy.two_servers import rows as kinds
from quoron_privacy.two_servers.rows import RingReduction
from quoron_privacy.two_servers.seals import SEALED
from quoron_privacy.two_servers.specification import RoundSpec
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1 import helper_pb2 as helper

TWO_SERVERS = "two-servers"
Words = NDArray[np.uint64]
_OWN = "spec", "chains"  # of the plan and of the servers: no question says them
_ROWS: Mapping[str, type] = {
    name: kind for name, kind in vars(kinds).items() if name.endswith("Rows") and isinstance(kind, type)
}


def question_digest(run: str, round_: int, name: bytes, task: bytes) -> bytes:
    """Return the digest that binds a seal to a question `name`: 32 bytes, of all that it asks; `task` is its digest."""
    parts = run.encode(), str(round_).encode(), name, task
    return sha256(b"quoron masked question 1\n" + _listed(parts)).digest()


def row_to_wire(reduction: RingReduction) -> federation.Row:
    """Return all of a reduction but its specification, which a client has from the plan."""
    reduction = getattr(reduction, "own", reduction)  # that only some count is the coordinator's
    message = federation.Row(kind=type(reduction).__name__)
    if message.kind not in _ROWS:
        raise ConfigError(f"Expected rows of {', '.join(sorted(_ROWS))}, got {message.kind}.")
    for each in fields(reduction):  # type: ignore[arg-type]  # each of them is a dataclass
        value = getattr(reduction, each.name)
        if isinstance(value, np.ndarray) and each.name not in _OWN:
            message.arrays[each.name].CopyFrom(array_to_wire(value.astype(np.float64)))
        elif value is not None and each.name not in _OWN:
            message.numbers[each.name] = value
    return message


def row_from_wire(message: federation.Row, spec: RoundSpec) -> RingReduction:
    """Return the rows of a question, by the specification of the agreed plan. WireError for what is none."""
    kind = _ROWS.get(message.kind)
    if kind is None:
        raise WireError(f"Expected rows that this client knows, got {message.kind[:40]!r}. Update the client.")
    arrays = {
        name: array_from_wire(each, dtype="float64", max_numbers=MAX_NUMBERS) for name, each in message.arrays.items()
    }
    known = {each.name: each.type for each in fields(kind)}
    whole = {name for name, kind_ in known.items() if kind_ in (int, bool, "int", "bool")}
    numbers: dict[str, Any] = {
        name: int(value) if name in whole and value == value // 1 and abs(value) < 2**53 else value
        for name, value in message.numbers.items()
    }
    try:
        made: RingReduction = kind(spec=spec, **numbers, **arrays)
    except (TypeError, ValueError, ConfigError) as error:
        raise WireError(f"Expected rows of the announced specification, got others: {error}") from None
    return made


def answer_to_wire(run: str, round_: int, digest: bytes, values: Words, sealed: bytes) -> federation.MaskedAnswer:
    """Return one user's answer: integers plus a mask, and the mask's seed for the second server."""
    return federation.MaskedAnswer(
        run=run, round=round_, digest=digest, values=values.astype("<u8").tobytes(), sealed=sealed
    )


def answer_from_wire(message: federation.MaskedAnswer, length: int) -> tuple[Words, bytes] | None:
    """Words of that length and a sealed seed; None for what is not of this protocol. Never raises."""
    values, sealed = message.values, message.sealed
    if len(values) != 8 * length or len(sealed) != SEALED:
        return None
    return np.frombuffer(values, "<u8").astype(np.uint64, copy=False), sealed


def signature_of(message: helper.HelperConsent | helper.Reply, key: Ed25519PrivateKey) -> bytes:
    """Of all of a consent or a reply, but for what a reply says of another list than was sent."""
    return key.sign(_signed(message))


def check_signature(message: helper.HelperConsent | helper.Reply, signature: bytes, key: Ed25519PublicKey) -> None:
    """Raise IdentityError unless the second server with this key has signed it."""
    try:
        key.verify(signature, _signed(message))
    except InvalidSignature:
        raise IdentityError(
            "Expected the signature of the second server whose key was given, got another. Have the key's file from "
            "the second server's operator, and from nobody else."
        ) from None


def read_second_server_key(path: Path) -> Ed25519PublicKey:
    """Return the second server's long-lived public key, of a PEM file. IdentityError for anything else."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise IdentityError(f"Cannot read the second server's key in {str(path)!r}: {error.strerror}.") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise IdentityError(
            f"Expected the second server's public key, of Ed25519 in PEM form, in {str(path)!r}, got something else. "
            "Its operator writes it with `quoron second-server key`."
        )
    return key


def _signed(message: helper.HelperConsent | helper.Reply) -> bytes:
    """Every field by name, each with its length, so that no two messages have one text."""
    kind = message.DESCRIPTOR.name
    skipped = ("signature", "fingerprints")
    parts = [f"quoron {kind} 1".encode()]
    for each in message.DESCRIPTOR.fields:
        if each.name not in skipped:
            value = getattr(message, each.name)
            said = value if isinstance(value, bytes) else repr(value).encode()
            parts += [each.name.encode(), said]
    return _listed(parts)


def _listed(parts: Any) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)

"""Answers to two servers, of whom neither can read one: their messages, and what the second server signs.

    >>> consent = helper.HelperConsent(run="r", plan_digest=bytes(32), spec_digest=bytes(32))
    >>> check_signature(consent, signature_of(consent, key := Ed25519PrivateKey.generate()), key.public_key())

The second server signs its consent to one plan with a long-lived key, which clients have from its operator; seals are
for the key of one run that the consent names, and are destroyed with it.

A client takes part in such a run by the second server's word for the plan alone, and hides what it answers:

    masking = pinned.agree(announcement, terms)              # WireError or IdentityError: it takes no part
    sent = masking.answer(name, body, rows, values)          # to be kept before it is sent

The coordinator gets integers plus a mask, the second server the mask's seed: neither alone says anything. Whatever is
wrong with items or numbers is the zero row, which nobody can tell from another. What is kept is what is sent: no row,
and no seed. The unit that a row is measured by is the agreed plan's, whatever a question says.

Statement and proof: docs/privacy/two-servers.md.
"""

import logging
import secrets
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from numpy.typing import NDArray

from quoron_client.protocol.identity import fingerprint, load
from quoron_client.protocol.wire import reduction_from_wire
from quoron_privacy.errors import ConfigError, IdentityError, WireError
from quoron_privacy.two_servers import rows as ring
from quoron_privacy.two_servers import seals
from quoron_privacy.two_servers.rows import RingRows
from quoron_privacy.two_servers.seals import SEALED
from quoron_privacy.two_servers.specification import MechanismSpec, RoundSpec
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1 import helper_pb2 as helper

if TYPE_CHECKING:
    from quoron_client.federation.terms import Promised

_LOG = logging.getLogger("quoron.client")
DIGEST = 32  # bytes of fingerprints, of digests and of chains
Words = NDArray[np.uint64]


def question_digest(run: str, round_: int, name: bytes, task: bytes) -> bytes:
    """Return the digest that binds a seal to a question `name`: 32 bytes, of all that it asks; `task` is its digest."""
    parts = run.encode(), str(round_).encode(), name, task
    return sha256(b"quoron masked question 1\n" + _listed(parts)).digest()


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


def split_digests(digests: bytes) -> list[bytes]:
    """Return digests that stand one after the other."""
    return [digests[at : at + DIGEST] for at in range(0, len(digests), DIGEST)]


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
    """Return every field by name, each with its length, so that no two messages have one text."""
    kind = message.DESCRIPTOR.name
    skipped = ("signature", "fingerprints")
    parts = [f"quoron {kind} 1".encode()]
    for field in message.DESCRIPTOR.fields:
        if field.name not in skipped:
            value = getattr(message, field.name)
            said = value if isinstance(value, bytes) else repr(value).encode()
            parts += [field.name.encode(), said]
    return _listed(parts)


def _listed(parts: Any) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a client knows before anything is announced: the second server's key, of its operator, and who itself is."""

    second_server: Ed25519PublicKey
    fingerprint: bytes  # SHA-256 of this client's public key

    @classmethod
    def read(cls, second_server_key: Path, certificate: Path) -> "Pinned":
        """Of two files. IdentityError for what is none."""
        return cls(read_second_server_key(second_server_key), bytes.fromhex(fingerprint(load(certificate))))

    def agree(self, message: federation.Announcement, terms: "Promised") -> "Masking":
        """By public terms alone. Raises WireError and IdentityError, which say why this client takes no part."""
        consent = message.consent
        check_signature(consent, consent.signature, self.second_server)
        spec = MechanismSpec.read(message.spec)
        _require("suite", consent.suite, seals.SUITE)
        _require("run", consent.run, terms.run)
        _require("spec", consent.spec_digest.hex(), spec.digest().hex())
        _require("epsilon", consent.epsilon, terms.epsilon)
        _require("delta", consent.delta, terms.delta)
        _require("adjacency", consent.adjacency, terms.adjacency)
        _require("simulation", consent.simulation, terms.simulation)
        _require("rounds", len(spec.rounds), terms.rounds)
        _require("participations", consent.participations, spec.participations)
        _require("separation", consent.separation, spec.separation)
        _require("bytes of a plan's digest", len(consent.plan_digest), 32)
        try:
            seals.seal(consent.run_key, bytes(32), b"")  # now, and not when an answer is due
        except ConfigError as error:
            raise WireError(f"Expected the second server's consent to hold the run's key: {error}") from None
        if consent.expires <= time.time():
            raise WireError("Expected a valid consent of the second server, got one that is over. Check both clocks.")
        return Masking(terms.run, consent.plan_digest, spec, consent.run_key, consent.expires, self.fingerprint)


@dataclass(frozen=True, slots=True)
class Masking:
    """What both sides have agreed to in one run of two servers."""

    run: str
    plan_digest: bytes
    spec: MechanismSpec
    run_key: bytes
    expires: int
    fingerprint: bytes

    def rows(self, round_: int, message: federation.Question) -> RingRows:
        """Return what a question makes of an answer, by the plan's spec. WireError for what is none of its rounds."""
        if not message.HasField("row"):
            raise WireError("Expected a question that says what rows are made of an answer, got none.")
        try:
            return RingRows(self.spec.rounds[round_], reduction_from_wire(message.row))
        except ConfigError as error:
            raise WireError(f"Expected rows of the announced specification, got others: {error}") from None

    def answer(
        self, name: tuple[str, int, bytes], body: bytes, rows: RingRows, values: NDArray[np.float64] | None
    ) -> bytes:
        """Return a new answer to a question, of whose task `body` is the digest: the zero row without `values`."""
        run, round_, digest = name
        spec = self.spec.rounds[round_]
        row = _row(rows, spec, values)
        asked = question_digest(run, round_, digest, body)
        seed = ring.seed_for(secrets.token_bytes(32), run, round_, asked, row)
        about = seals.info(seals.SUITE, run, self.plan_digest, round_, asked, self.fingerprint)
        sealed = seals.seal(self.run_key, seed, about)
        hidden = ring.added(row, ring.mask(seed, spec.length))
        return answer_to_wire(run, round_, digest, hidden, sealed).SerializeToString()


def _row(rows: RingRows, spec: RoundSpec, values: NDArray[np.float64] | None) -> NDArray[np.int64]:
    """The integers of one user, within the plan's unit in whole numbers, whatever the question and the items do."""
    try:
        with np.errstate(all="ignore"):
            if values is not None and np.isfinite(values).all():
                row: NDArray[np.int64] = rows.rows(values.reshape(1, -1), np.ones(1, np.bool_))[0]
                if ring.fits(row, spec):
                    return row
    except Exception:  # whatever it is, nobody else may learn of it
        _LOG.debug("The row could not be made.", exc_info=True)
    return np.zeros(spec.length, np.int64)


def _require(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise WireError(f"Expected the second server's consent to the announced {what}, {wanted}, got {found}.")

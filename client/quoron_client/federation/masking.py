"""A client's part in a run of two servers: whose word it takes for the plan, and how it hides what it answers.

    masking = pinned.agree(announcement, terms)              # WireError or IdentityError: it takes no part
    sent = masking.answer(name, task, rows, values)          # to be kept before it is sent

Of an answer the coordinator gets integers plus a mask, the second server the mask's seed: neither alone says anything.
Whatever is wrong with items or numbers is the zero row, which nobody can tell from another. What is kept is what is
sent: no row, and no seed. The unit that a row is measured by is the agreed plan's, whatever a question says. Statement
and proof: docs/privacy/two-servers.md.
"""

import logging
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from quoron_client.federation.terms import Terms
from quoron_client.protocol import masked
from quoron_client.protocol.identity import fingerprint, load
from quoron_privacy.errors import ConfigError, WireError
from quoron_privacy.two_servers import rows as ring
from quoron_privacy.two_servers import seals
from quoron_privacy.two_servers.rows import RingReduction
from quoron_privacy.two_servers.specification import MechanismSpec, RoundSpec
from quoron_protos.v1 import federation_pb2 as federation

_LOG = logging.getLogger("quoron.client")


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a client knows before anything is announced: the second server's key, of its operator, and who itself is."""

    second_server: Ed25519PublicKey
    fingerprint: bytes  # SHA-256 of this client's public key

    @classmethod
    def read(cls, second_server_key: Path, certificate: Path) -> "Pinned":
        """Of two files. IdentityError for what is none."""
        return cls(masked.read_second_server_key(second_server_key), bytes.fromhex(fingerprint(load(certificate))))

    def agree(self, message: federation.Announcement, terms: Terms) -> "Masking":
        """By public terms alone. Raises WireError and IdentityError, which say why this client takes no part."""
        consent = message.consent
        masked.check_signature(consent, consent.signature, self.second_server)
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

    def may(self, before: Collection[int], round_: int) -> bool:
        """Return whether the plan lets one user answer in a round, after those `before`: count, separation, phase."""
        return self.spec.admits(before, round_)

    def rows(self, round_: int, message: federation.Question) -> RingReduction:
        """Return what a question makes of an answer, by the plan's spec. WireError for what is none of its rounds."""
        if not message.HasField("row"):
            raise WireError("Expected a question that says what rows are made of an answer, got none.")
        return masked.row_from_wire(message.row, self.spec.rounds[round_])

    def answer(
        self, name: tuple[str, int, bytes], body: bytes, rows: RingReduction, values: NDArray[np.float64] | None
    ) -> bytes:
        """Return a new answer to a question, of whose task `body` is the digest: the zero row without `values`."""
        run, round_, digest = name
        spec = self.spec.rounds[round_]
        row = _row(rows, spec, values)
        asked = masked.question_digest(run, round_, digest, body)
        seed = ring.seed_for(secrets.token_bytes(32), run, round_, asked, row)
        about = seals.info(seals.SUITE, run, self.plan_digest, round_, asked, self.fingerprint)
        sealed = seals.seal(self.run_key, seed, about)
        hidden = ring.added(row, ring.mask(seed, spec.length))
        return masked.answer_to_wire(run, round_, digest, hidden, sealed).SerializeToString()


def _row(rows: RingReduction, spec: RoundSpec, values: NDArray[np.float64] | None) -> NDArray[np.int64]:
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

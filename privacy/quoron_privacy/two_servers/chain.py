"""The chain of lists: what noise is labelled by, so that no noise serves two histories.

    >>> one = next_chain(FIRST, 0, [Entry(bytes(32), b"question", b"sealed")])
    >>> one != next_chain(FIRST, 0, [Entry(bytes(32), b"question", b"other")])
    True

The coordinator's chain is of the rows that *it has added*; the helper's of the lists that it was sent, from which, with
its keys, follows whose seals did not open. A list holds fingerprints and fresh ciphertexts, so nothing of anybody's
data. Equal lists give equal chains; docs/privacy/two-servers.md#chain says why all lists so far must be in.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from quoron_privacy.errors import ConfigError

FIRST = bytes(32)


class Entry(NamedTuple):
    """One user of a list."""

    fingerprint: bytes  # SHA-256 of the client's public key
    question_digest: bytes
    sealed: bytes
    group: int = 0  # of a plan with several: each has a sum and noise of its own


def next_chain(before: bytes, round_: int, entries: Iterable[Entry | tuple[bytes, bytes, bytes]]) -> bytes:
    """The chain after the entries of all groups that were taken into a round's sums, 32 bytes; there may be none.

    ConfigError unless entries ascend by fingerprint, each once: so a user is in one group of a round at most.
    """
    if len(before) != 32:
        raise ConfigError(f"Expected a chain of 32 bytes, got {len(before)}.")
    digest, number, last = sha256(b"quoron two-servers list 1\n"), 0, b""
    for fingerprint, question, sealed, *group in entries:
        if len(fingerprint) != 32 or fingerprint <= last:
            raise ConfigError("Expected entries in ascending order of fingerprints of 32 bytes, each once.")
        for part in (fingerprint, question, sealed):
            digest.update(len(part).to_bytes(8, "little") + part)
        digest.update((group[0] if group else 0).to_bytes(8, "little"))
        number, last = number + 1, fingerprint
    numbers = b"".join(each.to_bytes(8, "little") for each in (round_, number))
    return sha256(b"quoron two-servers chain 1\n" + before + numbers + digest.digest()).digest()


def simulated_chain(before: Sequence[bytes], round_: int) -> bytes:
    """The chain after a round's list in a simulation, of whoever answers: in one process and in two, the same noise."""
    entry = Entry(sha256(b"everybody").digest(), b"simulation", b"")
    return next_chain(before[-1] if before else FIRST, round_, [entry])

"""The chain of lists: what noise is labelled by, so that no noise serves two histories.

    >>> one = next_chain(FIRST, 0, 0, [Entry(bytes(32), b"question", b"sealed")])
    >>> one != next_chain(FIRST, 0, 0, [Entry(bytes(32), b"question", b"other")])
    True

A list names who *is in a sum*: the entries of those whose seals did not open are not in it, on either server, and the
coordinator makes it of the rows that it has added. It holds fingerprints and fresh ciphertexts, so nothing of anybody's
data. Equal lists give equal chains; docs/privacy/two-servers.md#chain says why all lists so far must be in.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from quoron_privacy.errors import ConfigError

FIRST = bytes(32)


class Entry(NamedTuple):
    """One user of a list."""

    fingerprint: bytes  # SHA-256 of the client's public key
    question_digest: bytes
    sealed: bytes
    group: int = 0  # of a plan with several: each has a chain of its own


def next_chain(before: bytes, round_: int, group: int, entries: Iterable[Entry | tuple[bytes, bytes, bytes]]) -> bytes:
    """The chain after the entries that were taken into a sum, 32 bytes; a round that took nobody has none.

    ConfigError unless entries ascend by fingerprint, each once.
    """
    if len(before) != 32:
        raise ConfigError(f"Expected a chain of 32 bytes, got {len(before)}.")
    digest, number, last = sha256(b"quoron two-servers list 1\n"), 0, b""
    for fingerprint, question, sealed, *_ in entries:
        if len(fingerprint) != 32 or fingerprint <= last:
            raise ConfigError("Expected entries in ascending order of fingerprints of 32 bytes, each once.")
        for part in (fingerprint, question, sealed):
            digest.update(len(part).to_bytes(8, "little") + part)
        number, last = number + 1, fingerprint
    numbers = b"".join(each.to_bytes(8, "little") for each in (round_, group, number))
    return sha256(b"quoron two-servers chain 1\n" + before + numbers + digest.digest()).digest()


def next_chains(before: bytes, round_: int, entries: Sequence[Entry]) -> bytes:
    """The chains of all groups, one after the other, after a round's list of all. ConfigError as `next_chain`.

    A user is once in the whole list, so in one group of a round at most.
    """
    groups = apart(before)
    fingerprints = [each.fingerprint for each in entries]
    if any(one >= two for one, two in pairwise(fingerprints)) or any(not 0 <= e.group < len(groups) for e in entries):
        raise ConfigError(f"Expected users in ascending order, each once and in one of {len(groups)} groups.")
    each = [[entry for entry in entries if entry.group == group] for group in range(len(groups))]
    return b"".join(next_chain(own, round_, group, each[group]) for group, own in enumerate(groups))


def apart(chains: bytes) -> list[bytes]:
    """Chains of groups that stand one after the other."""
    return [chains[at : at + 32] for at in range(0, len(chains), 32)]

"""The noise of one server: whole steps for every coordinate, a function of its key and of all lists so far.

    >>> from quoron_privacy.two_servers.sheet import Block, RoundSheet
    >>> sheet = Sheet((RoundSheet((Block("sum", 4, 1 << 28, "clipped"),)),))
    >>> noise = ServerNoise(b"k" * 32, "run", bytes(32), sheet)
    >>> bool((noise.of(0, [bytes(32)]) == noise.of(0, [bytes(32)])).all())
    True

Coordinator and helper have one each, with keys of their own. Labels are (key, run, plan, round, group, chain): no
nonce, so equal lists give equal bits after a crash, and other lists independent noise. Correlated blocks subtract what
earlier noise already puts into their row (prefix-noise#c2), of the same chains. docs/privacy/two-servers.md.

The chain of lists: what noise is labelled by, so that no noise serves two histories.

    >>> one = next_chain(FIRST, 0, [Entry(bytes(32), b"question", b"sealed")])
    >>> one != next_chain(FIRST, 0, [Entry(bytes(32), b"question", b"other")])
    True

The coordinator's chain is of the rows that *it has added*; the helper's of the lists that it was sent, from which, with
its keys, follows whose seals did not open. A list holds fingerprints and fresh ciphertexts, so nothing of anybody's
data. Equal lists give equal chains; docs/privacy/two-servers.md#chain says why all lists so far must be in.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.sources import SecureNoise
from quoron_privacy.two_servers.account import factors_of
from quoron_privacy.two_servers.sheet import SUMS, Sheet

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


Words = NDArray[np.uint64]
Steps = NDArray[np.int64]


@dataclass(eq=False)
class ServerNoise:
    """See above; what earlier rounds left is kept beside it, and made anew for other chains."""

    key: bytes = field(repr=False)
    run: str
    plan_digest: bytes
    sheet: Sheet
    _known: dict[int, tuple[tuple[bytes, ...], int, NDArray[np.float64]]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.plan_digest) != 32:
            raise ConfigError(f"Expected a plan digest of 32 bytes, got {len(self.plan_digest)}.")
        self._source = SecureNoise(self.key)

    def of(self, round_: int, chains: Sequence[bytes], group: int = 0) -> Words:
        """The noise of a round, (k,): `chains` are those after rounds 0 to `round_`, this one's list included."""
        history = tuple(chains)
        if not 0 <= round_ < len(self.sheet.rounds) or len(history) != round_ + 1:
            raise ConfigError(f"Expected the chains of rounds 0 to {round_}, got {len(history)}.")
        if any(len(chain) != 32 for chain in history):
            raise ConfigError("Expected chains of 32 bytes, got others. Use next_chain.")
        series = self.sheet.correlated
        parts = [
            self._correlated(series.index(round_), history, group, at)
            if block.name == SUMS and round_ in series
            else self._independent(round_, history, group, at)
            for at, block in enumerate(self.sheet.rounds[round_].blocks)
        ]
        return np.concatenate(parts).view(np.uint64)

    def labels(self, round_: int, history: tuple[bytes, ...], group: int) -> tuple[str | int, ...]:
        """What streams of a round are told apart by, beside the key: nothing of anybody's data is in it."""
        return "two-servers", self.run, self.plan_digest.hex(), round_, group, history[round_].hex()

    def _independent(self, round_: int, history: tuple[bytes, ...], group: int, at: int) -> Steps:
        stream = self._source.stream(*self.labels(round_, history, group), at)
        return stream.gaussian_steps(self.sheet.rounds[round_].blocks[at].length)

    def _correlated(self, now: int, history: tuple[bytes, ...], group: int, at: int) -> Steps:
        """Noise number `now` of the series: Z less what earlier noise puts into its row, as `PrefixNoise.release`."""
        factors, rounds = factors_of(self.sheet), self.sheet.correlated
        chains, done, memory = self._known.get(group, ((), 0, np.empty(0)))
        if not done or done > now or history[: len(chains)] != chains:
            done, memory = 0, np.zeros((factors.slots, self.sheet.rounds[rounds[0]].blocks[at].length))
        for t in range(done, now + 1):
            seed = self._independent(rounds[t], history, group, at)
            own: Steps = seed - np.rint(factors.predict(t, memory)).astype(np.int64)
            if t < now:
                memory = factors.remember(t, memory, own.astype(np.float64))
        # kept without this round, which a crash may bring again
        self._known[group] = history[: rounds[now]], now, memory
        return own

"""The noise of one server: whole steps for every coordinate, a function of its key and of all lists so far.

    >>> from quoron_privacy.two_servers.sheet import Block, RoundSheet
    >>> sheet = Sheet((RoundSheet((Block("sum", 4, 1 << 28, "clipped"),)),))
    >>> noise = ServerNoise(b"k" * 32, "run", bytes(32), sheet)
    >>> bool((noise.of(0, [bytes(32)]) == noise.of(0, [bytes(32)])).all())
    True

Coordinator and helper have one each, with keys of their own. Labels are (key, run, plan, round, group, chain): no
nonce, so equal lists give equal bits after a crash, and other lists independent noise. Correlated blocks subtract what
earlier noise already puts into their row (prefix-noise#c2), of the same chains. docs/privacy/two-servers.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError
from quoron_privacy.noise.sources import SecureNoise
from quoron_privacy.prefix.factorisations import Factorisation
from quoron_privacy.two_servers.account import factors_of
from quoron_privacy.two_servers.sheet import SUMS, Sheet

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
        """The noise of a round, (k,): `chains` are those after the lists of rounds 0 to `round_`, this one's too."""
        history = tuple(chains)
        if not 0 <= round_ < len(self.sheet.rounds) or len(history) != round_ + 1:
            raise ConfigError(f"Expected the chains of rounds 0 to {round_}, got {len(history)}.")
        total = [
            self._correlated(round_, history, group)
            if round_ in self.sheet.correlated and block.name == SUMS
            else self._fresh(round_, history, group, at)
            for at, block in enumerate(self.sheet.rounds[round_].blocks)
        ]
        return np.concatenate(total).view(np.uint64)

    def _fresh(self, round_: int, history: tuple[bytes, ...], group: int, at: int) -> Steps:
        block, chain = self.sheet.rounds[round_].blocks[at], history[round_].hex()
        labels = ("two-servers", self.run, self.plan_digest.hex(), round_, group, chain, at)
        return self._source.stream(*labels).gaussian_steps(block.length)

    def _correlated(self, round_: int, history: tuple[bytes, ...], group: int) -> Steps:
        """Z less what earlier noise puts into this row, as `PrefixNoise.release`, in steps."""
        factors, rounds = factors_of(self.sheet), self.sheet.correlated
        now = rounds.index(round_)
        chains, done, memory = self._known.get(group, ((), 0, np.empty(0)))
        if history[: len(chains)] != chains or done > now or not done:
            done, memory = 0, np.zeros((factors.slots, self._block(round_)[1].length))
        own = np.empty(0, np.int64)
        for t in range(done, now + 1):
            own = self._own(factors, rounds[t], t, history, group, memory)
            if t < now:
                memory = factors.remember(t, memory, own.astype(np.float64))
        # kept without this round, which a crash may bring again
        self._known[group] = history[: rounds[now - 1] + 1] if now else (), now, memory
        return own

    def _own(
        self,
        factors: Factorisation,
        round_: int,
        t: int,
        history: tuple[bytes, ...],
        group: int,
        memory: NDArray[np.float64],
    ) -> Steps:
        seed = self._fresh(round_, history, group, self._block(round_)[0])
        return seed - np.rint(factors.predict(t, memory)).astype(np.int64)

    def _block(self, round_: int):  # type: ignore[no-untyped-def]
        return next((at, each) for at, each in enumerate(self.sheet.rounds[round_].blocks) if each.name == SUMS)

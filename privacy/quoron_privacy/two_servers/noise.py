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

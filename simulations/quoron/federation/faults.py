"""What is to go wrong in a simulation by a local federation: who is silent, slow or killed, and who sends what.

    >>> Kill.parse("3@2"), Slow.parse("10%:2s")
    (Kill(client=3, round=2), Slow(share=0.1, seconds=2.0))

Only simulations have faults: a federation that is kept to be operated has none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from quoron.data.users import Purpose, uniforms, words
from quoron_privacy.errors import ConfigError

_KILL = re.compile(r"(\d{1,9})@(\d{1,9})")
_SLOW = re.compile(r"(?:(\d+(?:\.\d+)?)%:)?(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Kill:
    """A client's process is killed (SIGKILL) when it is asked in a round; then it is started again."""

    client: int  # from 1
    round: int  # from 1, as displays count

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `CLIENT@ROUND`."""
        found = _KILL.fullmatch(text.strip())
        if found is None or not int(found[1]) or not int(found[2]):
            raise ConfigError(f"Expected a kill as CLIENT@ROUND, such as 3@2, got {text!r}.")
        return cls(int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class Slow:
    """This share of the clients, those with the highest numbers, takes so many seconds more to answer."""

    share: float
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `SHARE%:SECONDSs`; without a share everybody is slow."""
        found = _SLOW.fullmatch(text.strip())
        share = None if found is None else float(found[1] or 100) / 100
        if found is None or share is None or share > 1:
            raise ConfigError(f"Expected slow clients as 10%:2s, or 2s for all, got {text!r}.")
        return cls(share, float(found[2]) * (1e-3 if found[3] == "ms" else 1.0))


@dataclass(frozen=True, slots=True)
class Faults:
    """All that was ordered."""

    kills: tuple[Kill, ...] = ()
    slow: Slow | None = None
    dropout: float = 0.0  # probability that an asked client does not answer, drawn as by the inline engine

    @classmethod
    def parse(cls, *, kills: Sequence[str] = (), slow: str | None = None, dropout: float = 0.0) -> Self:
        """Of the texts of the command line."""
        return cls(tuple(map(Kill.parse, kills)), None if slow is None else Slow.parse(slow), dropout)

    def check(self, clients: int, rounds: int) -> None:
        """ConfigError for a client, or a round, that there is not."""
        for kill in self.kills:
            if kill.client > clients:
                raise ConfigError(f"Expected a client to kill among {clients:,}, got number {kill.client:,}.")
            if kill.round > rounds:
                raise ConfigError(f"Expected a client to be killed in one of {rounds:,} rounds, got {kill.round:,}.")
        if len({kill.client for kill in self.kills}) < len(self.kills):
            raise ConfigError("Expected every client to be killed once at most, got two kills of one. Name others.")

    def killed(self, client: int, round_: int, *, before: bool) -> bool:
        """Whether a client dies when it is asked in a round (from 0); `before`: it has died already."""
        return not before and any((each.client, each.round - 1) == (client, round_) for each in self.kills)

    def delay(self, client: int, clients: int) -> float:
        """Seconds that a client takes more."""
        return (
            self.slow.seconds if self.slow is not None and client > clients - round(self.slow.share * clients) else 0.0
        )

    def silent(self, client: int, round_: int, seed: int) -> bool:
        """Whether a client does not answer in a round: the coins of the inline engine."""
        if not self.dropout:
            return False
        users = np.array([client - 1], np.int64)
        drawn = uniforms(words(seed=seed, purpose=Purpose.DROPOUT, users=users, block=round_)[:, 0])
        return bool(drawn[0] < self.dropout)

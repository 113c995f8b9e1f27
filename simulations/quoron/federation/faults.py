"""What is to go wrong in a simulation by a local federation: who is silent, slow or killed, and who sends what.

    >>> Faults.parse(kills=["3@2"], slow="10%:2s")
    Faults(kills=((3, 2),), slow=(0.1, 2.0), dropout=0.0)

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
class Faults:
    """The faults of one simulation."""

    kills: tuple[tuple[int, int], ...] = ()  # client and round, both from 1, in which its process gets a SIGKILL
    slow: tuple[float, float] = (0.0, 0.0)  # share of the clients, those with the highest numbers, and their seconds
    dropout: float = 0.0  # probability that an asked client does not answer, drawn as by the inline engine

    @classmethod
    def parse(cls, *, kills: Sequence[str] = (), slow: str | None = None, dropout: float = 0.0) -> Self:
        """Read the texts of the command line: CLIENT@ROUND, and SHARE%:SECONDSs, without a share of all clients."""
        return cls(tuple(map(_kill, kills)), (0.0, 0.0) if slow is None else _slow(slow), dropout)

    def check(self, clients: int, rounds: int) -> None:
        """ConfigError for a client, or a round, that there is not."""
        for client, round_ in self.kills:
            if client > clients:
                raise ConfigError(f"Expected a client to kill among {clients:,}, got number {client:,}.")
            if round_ > rounds:
                raise ConfigError(f"Expected a client to be killed in one of {rounds:,} rounds, got {round_:,}.")
        if len(dict(self.kills)) < len(self.kills):
            raise ConfigError("Expected every client to be killed once at most, got two kills of one. Name others.")

    def killed(self, client: int, round_: int, *, before: bool) -> bool:
        """Whether a client dies when it is asked in a round (from 0); `before`: it has died already."""
        return not before and (client, round_ + 1) in self.kills

    def delay(self, client: int, clients: int) -> float:
        """Seconds that a client takes more."""
        share, seconds = self.slow
        return seconds if client > clients - round(share * clients) else 0.0

    def silent(self, client: int, round_: int, seed: int) -> bool:
        """Whether a client does not answer in a round: the coins of the inline engine."""
        if not self.dropout:
            return False
        users = np.array([client - 1], np.int64)
        drawn = uniforms(words(seed=seed, purpose=Purpose.DROPOUT, users=users, block=round_)[:, 0])
        return bool(drawn[0] < self.dropout)


def _kill(text: str) -> tuple[int, int]:
    found = _KILL.fullmatch(text.strip())
    if found is None or not int(found[1]) or not int(found[2]):
        raise ConfigError(f"Expected a kill as CLIENT@ROUND, such as 3@2, got {text!r}.")
    return int(found[1]), int(found[2])


def _slow(text: str) -> tuple[float, float]:
    found = _SLOW.fullmatch(text.strip())
    share = 2.0 if found is None else float(found[1] or 100) / 100
    if found is None or share > 1:
        raise ConfigError(f"Expected slow clients as 10%:2s, or 2s for all, got {text!r}.")
    return share, float(found[2]) * (1e-3 if found[3] == "ms" else 1.0)

"""What is to go wrong in a simulated federation, by order: who is silent, slow or killed, and over which network.

    >>> Kill.parse("3@2"), Slow.parse("10%:2s")
    (Kill(client=3, round=2, comes_back=True), Slow(share=0.1, seconds=2.0))

Only simulations have faults: a federation that is kept to be operated has none.
"""

import re
from dataclasses import dataclass
from typing import Self

import numpy as np

from quoron.network import Link, Network
from quoron.populations.users import Purpose, uniforms, words
from quoron_privacy.errors import ConfigError

_KILL = re.compile(r"(\d{1,9})@(\d{1,9})(:gone)?")
_SLOW = re.compile(r"(?:(\d+(?:\.\d+)?)%:)?(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Kill:
    """A client's process is killed (SIGKILL) when it is asked in a round; then it is started again, or not."""

    client: int  # from 1
    round: int  # from 1, as displays count
    comes_back: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of `CLIENT@ROUND`, and `:gone` behind it for one that is not started again."""
        found = _KILL.fullmatch(text.strip())
        if found is None or not int(found[1]) or not int(found[2]):
            raise ConfigError(f"Expected a kill as CLIENT@ROUND, such as 3@2, or 3@2:gone, got {text!r}.")
        return cls(int(found[1]), int(found[2]), found[3] is None)


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
    network: Network | None = None  # every client's, carried out; who drops out is drawn as by the inline engine

    @classmethod
    def parse(cls, *, kills: tuple[str, ...] = (), slow: str | None = None, network: str | None = None) -> Self:
        """Of the texts of the command line."""
        return cls(
            tuple(Kill.parse(each) for each in kills),
            None if slow is None else Slow.parse(slow),
            None if network is None else Network.parse(network),
        )

    def check(self, clients: int) -> None:
        """ConfigError for a client that there is not."""
        for kill in self.kills:
            if kill.client > clients:
                raise ConfigError(f"Expected a client to kill among {clients:,}, got number {kill.client:,}.")
        if len({kill.client for kill in self.kills}) < len(self.kills):
            raise ConfigError("Expected every client to be killed once at most, got two kills of one. Name others.")

    def check_rounds(self, rounds: int) -> None:
        """ConfigError for a round that the run has not."""
        for kill in self.kills:
            if kill.round > rounds:
                raise ConfigError(f"Expected a client to be killed in one of {rounds:,} rounds, got {kill.round:,}.")

    def killed(self, client: int, round_: int, *, before: bool) -> bool:
        """Whether a client dies when it is asked in a round (from 0); `before`: it has died already."""
        return not before and any((each.client, each.round - 1) == (client, round_) for each in self.kills)

    def gone(self, client: int) -> bool:
        """Whether it is not started again when it has died."""
        return any(each.client == client and not each.comes_back for each in self.kills)

    def delay(self, client: int, clients: int) -> float:
        """Seconds that a client takes more."""
        return (
            self.slow.seconds if self.slow is not None and client > clients - round(self.slow.share * clients) else 0.0
        )

    def silent(self, client: int, round_: int, seed: int) -> bool:
        """Whether a client does not answer in a round: the coins of the inline engine."""
        if self.network is None or not self.network.dropout:
            return False
        users = np.array([client - 1], np.int64)
        drawn = uniforms(words(seed=seed, purpose=Purpose.DROPOUT, users=users, block=round_)[:, 0])
        return bool(drawn[0] < self.network.dropout)

    def links(self, clients: int) -> tuple[Link, ...]:
        """How each of `clients` reaches the coordinator, if not at once; otherwise nothing."""
        links = () if self.network is None else self.network.clients(clients)
        slow = any(each.rtt > 0 or each.jitter > 0 or each.up < np.inf or each.down < np.inf for each in links)
        return links if slow else ()

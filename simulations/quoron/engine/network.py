"""What a run would take over a network, from the counts of its rounds.

    >>> network = Network.parse("rtt=80ms,up=1Mbps,down=10Mbps,deadline=5s")
    >>> network.links[0].rtt, network.links[0].up, network.deadline
    (0.08, 1000000.0, 5.0)
    >>> times = network.project(Counts(asked=1000, wire_down=180_000, wire_up=150_000))
    >>> f"{times.total:.3f} s, of them {times.waiting:.3f} s waiting"
    '5.500 s, of them 4.999 s waiting'
    >>> mixed = Network.parse("phones:0.9+datacentre:0.1,deadline=30s")
    >>> mixed.shares, mixed.links[1].up
    ((0.9, 0.1), 10000000000.0)

Model, assumptions, limits, and where the figures of `PRESETS` are from: docs/comparing.md.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import pairwise
from operator import le
from statistics import NormalDist
from typing import Any, Literal, get_args

from quoron.toml_text import pairs
from quoron_privacy.errors import ConfigError
from quoron_server.rounds import due_at, opening

Ends = Literal["deadline", "early"]

SECONDS = {"s": 1.0, "ms": 1e-3}
SHARES = {"%": 0.01, "": 1.0}
BITS = {"bps": 1.0, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9}
DEADLINE = 60.0  # seconds, where none is given: as a service's rounds
SERVER = 2_000.0  # answers a second that a coordinator takes, where none are given
PRESETS: Mapping[str, str] = {
    "phones": "rtt=40ms,down=13Mbps,up=6Mbps,spread=5.7,ends=early",
    "hospitals": "rtt=21ms,down=100Mbps,up=100Mbps,ends=early",
    "datacentre": "rtt=0.25ms,jitter=0.05ms,down=10Gbps,up=10Gbps,ends=early",
}
"""Kinds of clients that were measured, by name; what measured them stands in docs/comparing.md."""

_DECILE = NormalDist().inv_cdf(0.9)


@dataclass(frozen=True, slots=True)
class Counts:
    """What one round takes, over all users asked."""

    asked: int  # users
    wire_down: int  # bytes to all of them, as on the wire
    wire_up: int
    items: float = 0.0  # item gradients of one user
    computing: float = 0.0  # measured seconds of one user; used where the network names no speed
    aggregating: float = 0.0  # measured seconds of the coordinator


@dataclass(frozen=True, slots=True)
class Times:
    """Projected seconds by part; nothing overlaps."""

    waiting: float = 0.0  # for light to travel, for the slowest, and for those who never answer
    download: float = 0.0
    computing: float = 0.0  # on the client
    upload: float = 0.0
    serving: float = 0.0  # the coordinator sends questions and takes answers
    aggregating: float = 0.0

    @property
    def total(self) -> float:
        """Wall-clock seconds."""
        return math.fsum(asdict(self).values())

    def as_json(self) -> dict[str, float]:
        """Each part and the total, in seconds."""
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True, slots=True)
class Link:
    """How one kind of client reaches the coordinator, how often it drops out, and how fast it computes."""

    rtt: float = 0.0  # seconds there and back
    jitter: float = 0.0  # seconds: mean of an exponential delay on top, each client's own, again in every round
    up: float = math.inf  # bits a second; of the median client where they spread
    down: float = math.inf
    spread: float = 1.0  # how many times slower than the median one client in ten is: rates are lognormal
    dropout: float = 0.0  # probability that an asked user never answers
    compute: float | None = None  # item gradients a second of one client; None: as measured

    def seconds(self, counts: Counts) -> tuple[float, float, float]:
        """Of one user with the median rates: download, computing, upload."""
        users = max(1, counts.asked)
        computing = counts.computing if self.compute is None else counts.items / self.compute
        return 8 * counts.wire_down / users / self.down, computing, 8 * counts.wire_up / users / self.up

    def late(self, time: float, counts: Counts) -> float:
        """Probability that the answer of one of these clients, who does not drop out, is not there by then."""
        down, computing, up = self.seconds(counts)
        spread = self.spread > 1 and down + up > 0
        on_top = time - self.rtt - computing - (0 if spread else down + up)
        if on_top <= 0.0:
            return 1.0
        if spread:
            return 0.5 * math.erfc(math.log(on_top / (down + up)) / math.log(self.spread) * _DECILE / math.sqrt(2.0))
        return math.exp(-on_top / self.jitter) if self.jitter else 0.0

    def slowest(self, counts: Counts, late: float) -> float:
        """Seconds by which an answer is late with this probability."""
        down, computing, up = self.seconds(counts)
        deviations = -NormalDist().inv_cdf(min(late, 1.0 - 1e-9))
        slower = math.exp(deviations / _DECILE * math.log(self.spread))
        return self.rtt + computing + (down + up) * slower - self.jitter * math.log(late)


@dataclass(frozen=True, slots=True)
class Network:
    """Kinds of clients with their shares, and what holds for all: the deadline, the coordinator, when rounds end."""

    links: tuple[Link, ...] = (Link(),)
    shares: tuple[float, ...] = (1.0,)  # of each kind, among all clients
    deadline: float = DEADLINE  # seconds that a round takes answers
    server: float = SERVER  # answers a second
    ends: Ends = "deadline"  # or early, once all have answered

    @classmethod
    def parse(cls, text: str) -> "Network":
        """From a name of `PRESETS`, a mix of them, `key=value` pairs with units, or a name or mix and pairs on top.

        ConfigError names the key, the value and the form that it takes.
        """
        first, *others = [piece.strip() for piece in text.split(",") if piece.strip()] or [""]
        if not first:
            raise ConfigError(f"Expected a network such as 'phones' or 'rtt=80ms,up=1Mbps,down=10Mbps', got {text!r}.")
        mix = "" if "=" in first else first
        pairs = _pairs(others if mix else [first, *others])
        own = {key: value for key, value in pairs.items() if key in _LINK}
        kinds = [_preset(each) for each in mix.split("+")] if mix else [(1.0, {})]
        shares = tuple(share for share, _ in kinds)
        if not math.isclose(math.fsum(shares), 1.0, abs_tol=1e-9):
            raise ConfigError(f"Expected the shares of a network to sum to 1, got {first}, {math.fsum(shares):.6g}.")
        links = []
        for _, known in kinds:
            link = Link(**{key: value for key, value in known.items() if key in _LINK} | own)
            if link.jitter > 0 and link.spread > 1:
                raise ConfigError(
                    f"Expected jitter or spread of a kind of clients, got both in {text!r}. Set jitter=0s or spread=1."
                )
            links.append(link)
        whole = {"ends": "early"} if mix else {}
        return cls(tuple(links), shares, **whole | {key: pairs[key] for key in pairs if key not in _LINK})

    @property
    def dropout(self) -> float:
        """Probability that a user of unknown kind does not answer."""
        return math.fsum(share * link.dropout for share, link in self._kinds)

    @property
    def computes(self) -> bool:
        """Whether the speed of every kind is given, so that none is measured."""
        return all(link.compute is not None for link in self.links)

    @property
    def _kinds(self) -> tuple[tuple[float, Link], ...]:
        return tuple(zip(self.shares, self.links, strict=True))

    def held(self) -> "Network":
        """The same with rounds that last their whole time, as those of a promise that rests on secret cohorts must."""
        return replace(self, ends="deadline")

    def answer_seconds(self, counts: Counts) -> float:
        """From question to answer on the way of the mean size, without jitter, by the median client of the slowest
        kind."""
        return max(link.rtt + math.fsum(link.seconds(counts)) for link in self.links)

    def project(self, counts: Counts) -> Times:
        """Expected seconds of one round.

        It lasts until its deadline and the rest behind it, also when all have answered long before. With early ends it
        lasts until the slowest of the k asked has answered, or the deadline D. With F(t) the chance that one user has
        answered by t, the expectation of that is the integral of 1 - F(t)^k from 0 to D (docs/comparing.md).
        """
        parts = [(share, link.seconds(counts)) for share, link in self._kinds]
        down, computing, up = (math.fsum(share * each[i] for share, each in parts) for i in range(3))
        serving, work, busy = counts.asked / self.server, counts.aggregating, down + computing + up
        if self.ends == "deadline":
            whole = opening(due_at(0.0, self.deadline), self.deadline + work, self.deadline)
            return Times(max(0.0, whole - busy - serving - work), down, computing, up, serving, work)
        open_ = self._open(counts)
        fits = min(1.0, open_ / busy) if busy else 1.0  # where rates spread, fast clients may be faster than the median
        return Times(open_ - fits * busy, fits * down, fits * computing, fits * up, serving, work)

    def require_time(self, counts: Counts) -> None:
        """ConfigError if an answer of the mean size, from the median client of a kind, would be late."""
        taken = self.answer_seconds(counts)
        if taken > self.deadline:
            raise ConfigError(
                f"Expected the network's deadline to be above the {taken:.3g} s that an answer takes, "
                f"got deadline={self.deadline:g}s. Give more time or a faster link."
            )

    def _open(self, counts: Counts) -> float:
        """Expected seconds until the slowest of `counts.asked` users has answered, at most the deadline."""
        from scipy.integrate import quad

        asked = counts.asked
        if not asked:
            return 0.0
        kinds = [(share * (1.0 - link.dropout), link) for share, link in self._kinds if share > 0]
        shares = 1.0, 0.5, 1 / asked, 1e-9 / asked, 1e-26 / asked
        turns = {link.slowest(counts, share) for _, link in kinds for share in shares}  # between them it is smooth

        def unfinished(time: float) -> float:
            late = math.fsum(share * link.late(time, counts) for share, link in kinds) + self.dropout
            return -math.expm1(asked * math.log1p(-late)) if late < 1.0 else 1.0

        ends = sorted({0.0, self.deadline, *(turn for turn in turns if turn < self.deadline)})
        return math.fsum(quad(unfinished, *between)[0] for between in pairwise(ends))


def several(text: str) -> dict[str, Network]:
    """One network or, of names and mixes alone, several: each by its text.

    >>> list(several("phones, hospitals")), list(several("phones,deadline=30s"))
    (['phones', 'hospitals'], ['phones,deadline=30s'])
    """
    pieces = [piece.strip() for piece in text.split(",") if piece.strip()]
    texts = [text] if any("=" in piece for piece in pieces) or not pieces else pieces
    if len(set(texts)) < len(texts):
        raise ConfigError(f"Expected each network once, got {text!r}.")
    return {each: Network.parse(each) for each in texts}


def total(rounds: Sequence[Times]) -> Times:
    """The sum, part by part."""
    return Times(**{part.name: math.fsum(getattr(each, part.name) for each in rounds) for part in fields(Times)})


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(0.0123), duration(75.0), duration(1200.0), duration(7322.0)
    ('12.3 ms', '75 s', '20 min', '2.03 h')
    """
    for unit, length, least in (("h", 3600.0, 3600.0), ("min", 60.0, 600.0), ("s", 1.0, 0.5)):
        if seconds >= least:
            return f"{seconds / length:.3g} {unit}"
    return f"{1000 * seconds:.3g} ms"


def _preset(text: str) -> tuple[float, dict[str, Any]]:
    """Share and values of `phones` or `phones:0.9`."""
    name, sign, share = (part.strip() for part in text.partition(":"))
    if name not in PRESETS:
        raise ConfigError(
            f"Expected a network of {', '.join(PRESETS)}, of a mix such as phones:0.9+datacentre:0.1, or of key=value "
            f"pairs with keys {', '.join(READERS)}, got {name!r}."
        )
    return _read("share", share, _SHARE) if sign else 1.0, _pairs(PRESETS[name].split(","))


def _pairs(pieces: Iterable[str]) -> dict[str, Any]:
    typed = pairs("a network's", pieces, READERS, otherwise="Names of networks come first.")
    return {key: _read(key, value.strip(), READERS[key]) for key, value in typed.items()}


Reader = tuple[Mapping[str, float], str, Callable[[Any], bool]]  # units, the form in words, whether it may be this one


def _read(key: str, value: str, reader: Reader) -> Any:
    """The value of a key: a number with one of its units, within its range, or a word."""
    units, form, allowed = reader
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([^\d\s.]*)", value)
    number = math.nan if match is None or match[2] not in units else float(match[1]) * units[match[2]]
    read: Any = number if units else value
    if not allowed(read):
        raise ConfigError(f"Expected the network's {key} to be {form}, got {key}={value}.")
    return read


def _positive(number: float) -> bool:
    return 0 < number < math.inf


_RATE = BITS, "a rate above 0 in bps, kbps, Mbps or Gbps, such as 10Mbps", _positive
_TIME = SECONDS, "a time such as 80ms or 0.08s", partial(le, 0.0)
_SHARE = SHARES, "a share above 0 such as 90% or 0.9", _positive  # of a kind in a mix
READERS: Mapping[str, Reader] = {
    "rtt": _TIME,
    "jitter": _TIME,
    "up": _RATE,
    "down": _RATE,
    "spread": ({"": 1.0}, "a number of times from 1 such as 5.7", lambda times: 1 <= times < math.inf),
    "dropout": (SHARES, "a share below 1 such as 5% or 0.05", lambda share: 0 <= share < 1),
    "deadline": (SECONDS, "a time above 0 such as 60s", _positive),
    "compute": ({"items/s": 1.0}, "a speed above 0 such as 2000items/s", _positive),
    "server": ({"answers/s": 1.0}, "a speed above 0 such as 2000answers/s", _positive),
    "ends": ({}, " or ".join(get_args(Ends)), get_args(Ends).__contains__),
}
_LINK = frozenset(part.name for part in fields(Link))

"""What a run would take over a network, from the counts of its rounds.

    >>> network = Network.parse("rtt=80ms,up=1Mbps,down=10Mbps,deadline=5s")
    >>> network.rtt, network.up, network.deadline
    (0.08, 1000000.0, 5.0)
    >>> times = network.project(Counts(asked=1000, wire_down=180_000, wire_up=150_000))
    >>> f"{times.total:.3f} s, of them {times.waiting:.3f} s waiting"
    '5.500 s, of them 4.999 s waiting'

Model, assumptions and limits: docs/network.md.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast, get_args

from quoron_privacy.errors import ConfigError
from quoron_server.round_clock import due_at, opening

Ends = Literal["deadline", "early"]

SECONDS = {"s": 1.0, "ms": 1e-3}
BITS = {"bps": 1.0, "kbps": 1e3, "Mbps": 1e6, "Gbps": 1e9}
DEADLINE = 60.0  # seconds, where none is given: as a service's rounds
SERVER = 2_000.0  # answers a second that a coordinator takes, where none are given


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
class Network:
    """Every client's link, how many drop out, and how fast both ends are."""

    rtt: float = 0.0  # seconds there and back
    jitter: float = 0.0  # seconds: mean of an exponential delay on top, each client's own
    up: float = math.inf  # bits a second
    down: float = math.inf
    dropout: float = 0.0  # probability that an asked user never answers
    deadline: float = DEADLINE  # seconds that a round takes answers
    compute: float | None = None  # item gradients a second of one client; None: as measured
    server: float = SERVER  # answers a second
    ends: Ends = "deadline"  # or early, once all have answered

    @classmethod
    def parse(cls, text: str) -> "Network":
        """From `key=value` pairs with units; ConfigError names the key, the value and the form that it takes."""
        given: dict[str, Any] = {}
        for pair in filter(None, map(str.strip, text.split(","))):
            key, sign, value = (part.strip() for part in pair.partition("="))
            if not sign or key not in READERS:
                raise ConfigError(
                    f"Expected a network of key=value pairs with keys {', '.join(READERS)}, got {pair!r}."
                )
            if key in given:
                raise ConfigError(f"Expected each key of a network once, got {key} twice.")
            given[key] = READERS[key](key, value)
        if not given:
            raise ConfigError(f"Expected a network such as 'rtt=80ms,up=1Mbps,down=10Mbps', got {text!r}.")
        return cls(**given)

    def answer_seconds(self, counts: Counts) -> float:
        """From question to answer of one user on the way of the mean size, without jitter."""
        down, computing, up = self._link(counts)
        return self.rtt + down + computing + up

    def project(self, counts: Counts) -> Times:
        """Expected seconds of one round.

        It lasts until its deadline and the rest behind it, also when all have answered long before. With early ends it
        waits rtt, and for the slowest of the a = asked · (1 - dropout) who answer: jitter · H_a, the expected maximum
        of a exponentials (H_a the harmonic number). With probability 1 - (1 - dropout)^asked somebody misses, and the
        round then lasts until its deadline.
        """
        down, computing, up = self._link(counts)
        if self.ends == "deadline":
            serving, work = counts.asked / self.server, counts.aggregating
            whole = opening(due_at(0.0, self.deadline), self.deadline + work, self.deadline)
            busy = down + computing + up + serving + work
            return Times(max(0.0, whole - busy), down, computing, up, serving, work)
        slowest = self.rtt + self.jitter * _harmonic(counts.asked * (1.0 - self.dropout))
        missed = -math.expm1(counts.asked * math.log1p(-self.dropout))
        idle = missed * max(0.0, self.deadline - slowest - down - computing - up)
        return Times(slowest + idle, down, computing, up, counts.asked / self.server, counts.aggregating)

    def require_time(self, counts: Counts) -> None:
        """ConfigError if an answer of the mean size would come after the deadline."""
        taken = self.answer_seconds(counts)
        if taken > self.deadline:
            raise ConfigError(
                f"Expected the network's deadline to be above the {taken:.3g} s that an answer takes, "
                f"got deadline={self.deadline:g}s. Give more time or a faster link."
            )

    def _link(self, counts: Counts) -> tuple[float, float, float]:
        """Seconds of one user: download, computing, upload."""
        users = max(1, counts.asked)
        computing = counts.computing if self.compute is None else counts.items / self.compute
        return 8 * counts.wire_down / users / self.down, computing, 8 * counts.wire_up / users / self.up


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


def _harmonic(count: float) -> float:
    """H_a = 1 + 1/2 + ... + 1/a, its smooth continuation in between; 0 below one half."""
    if count < 0.5:
        return 0.0
    return math.fsum(1 / i for i in range(1, round(count) + 1)) if count < 50 else _harmonic_large(count)


def _harmonic_large(count: float) -> float:
    """By Euler and Maclaurin; for 50 and above right to 1e-9."""
    return math.log(count) + 0.5772156649015329 + 1 / (2 * count) - 1 / (12 * count**2)


def _number(key: str, value: str, units: Mapping[str, float], form: str) -> float:
    """A number >= 0 with one of the units; the unit '' where it may be left out."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([^\d\s.]*)", value)
    if match is None or match[2] not in units:
        raise ConfigError(f"Expected the network's {key} to be {form}, got {key}={value}.")
    return float(match[1]) * units[match[2]]


def _time(key: str, value: str) -> float:
    return _number(key, value, SECONDS, "a time such as 80ms or 0.08s")


def _length(key: str, value: str) -> float:
    return _positive(key, value, SECONDS, "a time above 0 such as 60s")


def _rate(key: str, value: str) -> float:
    return _positive(key, value, BITS, "a rate above 0 in bps, kbps, Mbps or Gbps, such as 10Mbps")


def _share(key: str, value: str) -> float:
    form = "a share below 1 such as 5% or 0.05"
    share = _number(key, value, {"%": 0.01, "": 1.0}, form)
    if share >= 1:
        raise ConfigError(f"Expected the network's {key} to be {form}, got {key}={value}.")
    return share


def _speed(thing: str) -> Callable[[str, str], float]:
    return lambda key, value: _positive(key, value, {f"{thing}/s": 1.0}, f"a speed above 0 such as 2000{thing}/s")


def _positive(key: str, value: str, units: Mapping[str, float], form: str) -> float:
    number = _number(key, value, units, form)
    if not 0 < number < math.inf:
        raise ConfigError(f"Expected the network's {key} to be {form}, got {key}={value}.")
    return number


def _ends(key: str, value: str) -> Ends:
    if value not in get_args(Ends):
        raise ConfigError(f"Expected the network's {key} to be {' or '.join(get_args(Ends))}, got {key}={value}.")
    return cast(Ends, value)


READERS: Mapping[str, Callable[[str, str], Any]] = {
    "rtt": _time,
    "jitter": _time,
    "up": _rate,
    "down": _rate,
    "dropout": _share,
    "deadline": _length,
    "compute": _speed("items"),
    "server": _speed("answers"),
    "ends": _ends,
}

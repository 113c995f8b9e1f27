"""The two worlds of `replay`: what was drawn in the first, what forcing the second to the same took."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from quoron_privacy.noise.streams import GRID_BITS, RandomStream, SeededNoise
from quoron_server.plan import RunPlan


class Complaint(AssertionError):
    """Something in public tells the worlds apart, or costs more than the plan charges."""


class Charged(Exception):
    """What the plan's theorem charges to δ as a whole: there is nothing to replay."""


@dataclass(frozen=True)
class Draw:
    """One use of noise in the first world."""

    mechanism: str
    public: Any  # its scale and whatever else both worlds must agree on
    private: Any  # what noise was added to, or what was decided about
    outcome: Any  # noise, or the decision


@dataclass(frozen=True)
class Spent:
    """What forcing one release took."""

    round: int
    mechanism: str
    square: float  # of ‖noise' - noise‖, in standard deviations
    flips: int = 0  # coins of others that fell differently before it
    own: tuple[bool, bool, float] | None = None  # filtered-sgd: own user kept in both worlds, and its noise
    level: int = 0  # of a smooth test: where the larger score stands


@dataclass(eq=False)
class World:
    """A run's noise: recorded in the first world, forced upon the second."""

    plan: RunPlan
    first: "World | None" = None
    lenient: bool = False  # whether tests pass wherever they can, so that crowds as loose as a test lets through do
    draws: list[Draw] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)
    round: int = 0
    row: int | None = None  # the neighbour's in this round's cohort; of chains, the one that it was in
    open: bool = True  # whether noise may be drawn here
    flips: int = 0
    own: tuple[bool, bool, float] | None = None
    level: int = 0
    tests: Any = ()  # the noise of this round's tests, by row
    counted: int = 0  # rounds in which the minimum cohort's count has moved
    cutoff: int = 0  # by how much the phase's cutoff has to move with the own user

    def stream(self, *labels: str | int) -> "Stream":
        """The same words in both worlds, apart from what is forced."""
        return Stream(self, labels)

    def require_deployable(self) -> None: ...

    def export_key(self) -> bytes:
        return b""

    def fingerprint(self) -> str:
        return ""

    def meet(self, mechanism: str, public: Any, private: Any, outcome: Callable[[], Any]) -> Draw:
        """The first world's draw at this point: made now, or found on the tape and compared."""
        if self.first is None:
            with self.opened():
                self.draws.append(Draw(mechanism, public, private, outcome()))
            return self.draws[-1]
        if len(self.draws) == len(self.first.draws):
            raise Complaint(f"round {self.round}: {mechanism} draws noise in one world only")
        found = self.first.draws[len(self.draws)]
        same(f"round {self.round}: scale of {mechanism}", (found.mechanism, found.public), (mechanism, public))
        self.draws.append(found)
        return found

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Inside, noise may be drawn."""
        before, self.open = self.open, True
        try:
            yield
        finally:
            self.open = before

    def spend(self, mechanism: str, steps: np.ndarray) -> None:
        """Notes that noise was moved by that many steps of the grid."""
        square = float(np.sum(np.square(steps * 2.0**-GRID_BITS)))
        self.spent.append(Spent(self.round, mechanism, square, self.flips, self.own, self.level))
        self.flips = 0


class Stream(RandomStream):
    """A stream that knows its labels, and yields words to mechanisms that a world can force only."""

    __slots__ = ("labels", "world")

    def __init__(self, world: World, labels: tuple[str | int, ...]) -> None:
        draw = SeededNoise(11).stream(*labels).words

        def guarded(size: int) -> np.ndarray:
            if not world.open and labels[0] != "cohort":  # coins that the request has drawn, alike in both worlds
                raise Complaint(f"round {world.round}: noise {labels} goes into something that replay does not know")
            return draw(size)

        super().__init__(guarded)
        self.world, self.labels = world, labels


@dataclass(frozen=True)
class Given:
    """A source, and a stream, of these steps."""

    steps: Any

    def stream(self, *labels: str | int) -> "Given":
        return self

    def gaussian_steps(self, shape: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.steps, np.int64), shape)


def same(where: str, one: Any, other: Any, leave_out: frozenset[str] = frozenset()) -> None:
    """Raises Complaint unless both are the same, bit for bit."""
    if one is other:
        return
    if type(one) is not type(other):
        raise Complaint(f"{where}: {type(one).__name__} against {type(other).__name__}")
    if is_dataclass(one):
        for item in fields(one):
            if item.name not in leave_out:
                same(f"{where}.{item.name}", getattr(one, item.name), getattr(other, item.name), leave_out)
    elif isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape or one.tobytes() != other.tobytes():
            raise Complaint(f"{where}: {one} against {other}")
    elif isinstance(one, dict):
        same(f"{where}, names", sorted(one), sorted(other))
        for name in one:
            same(f"{where}, {name}", one[name], other[name])
    elif isinstance(one, tuple | list):
        same(f"{where}, number", len(one), len(other))
        for index, pair in enumerate(zip(one, other, strict=True)):
            same(f"{where}[{index}]", *pair, leave_out)
    elif (struct.pack("d", one) != struct.pack("d", other)) if isinstance(one, float) else one != other:
        raise Complaint(f"{where}: {one!r} against {other!r}")

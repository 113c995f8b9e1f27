"""The sheet of a plan for two servers: what rows each round admits, in whole steps of one noise.

    >>> moment = RoundSheet((Block("moment", 6, 1 << 28, "moment"),))
    >>> sheet = Sheet((moment,))
    >>> Sheet.read(sheet.as_json()) == sheet, len(sheet.digest())
    (True, 32)

Every coordinate of every round gets ⌊2³⁰ Z⌋ from each server, so a step is 2⁻³⁰ of a standard deviation, and how much
noise a plan wants is said by how *long* its rows are: U steps. No scale, radius, iterate or state is in a sheet; both
servers and every client derive it from the plan alone. What rows of a kind are, and how far apart two of them can be:
docs/privacy/two-servers.md#rows.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from math import floor, sqrt
from typing import Any

from quoron_privacy.errors import ConfigError, WireError, count
from quoron_privacy.noise.streams import GRID_BITS
from quoron_privacy.prefix.factorisations import FACTORISATIONS, LONGEST
from quoron_privacy.release import Adjacency

MOST_UNIT = 1 << 34  # 16 standard deviations: a longer row is protected by nothing
MOST_NUMBERS = 1 << 26  # of one round, half a gigabyte
ADJACENCIES: tuple[Adjacency, ...] = ("replace-one", "zero-out")


@dataclass(frozen=True, slots=True)
class Kind:
    """Of rows: by adjacency, how far apart two neighbours are and how long a row is, in units of U, rounded up.

    Apart is s; `cut` says what cutting to whole numbers adds to it for `length` numbers, in steps.
    """

    apart: Mapping[str, float]
    longest: Mapping[str, float]
    cut: float = 0.0  # replace-one, times √length
    shares: int = 0  # last numbers of the row that have a unit of their own block


_ACUTE = {"replace-one": 1.4142135623730952, "zero-out": 1.0}
_TWO = {"replace-one": 2.0, "zero-out": 1.0}
_ONE = {"replace-one": 1.0, "zero-out": 1.0}
KINDS: Mapping[str, Kind] = {
    "vector": Kind(_TWO, _ONE),
    "one-hot": Kind(_ACUTE, _ONE),
    "flag": Kind(_ONE, _ONE),
    "length": Kind(_ONE, _ONE),
    "moment": Kind(_ACUTE, _ONE, cut=2.0),
    "moment-here": Kind(_ACUTE, _ACUTE, cut=2.0),
    "shares": Kind(_TWO, _TWO, cut=1.0),
    "soft-shares": Kind(_TWO, _TWO, cut=1.0),
}


@dataclass(frozen=True, slots=True)
class Block:
    """Some numbers of a row: U steps are one unit of them.

    "shares" and "soft-shares" belong to the "vector" before them: together they are a row of free-presence#p3.
    """

    name: str
    length: int
    unit: int  # U
    kind: str
    correlated: bool = False  # whether its noise is correlated over rounds, by the sheet's factorisation

    def __post_init__(self) -> None:
        count(length=self.length, unit=self.unit)
        if self.kind not in KINDS:
            raise ConfigError(f"Expected kind in {sorted(KINDS)}, got kind={self.kind!r}.")
        if self.unit > MOST_UNIT:
            raise ConfigError(f"Expected unit <= 2**34 steps, got unit={self.unit}. Use a smaller epsilon.")


@dataclass(frozen=True)
class RoundSheet:
    """The blocks of one round's row, one after the other."""

    blocks: tuple[Block, ...]
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        if not self.blocks or len({each.name for each in self.blocks}) < len(self.blocks):
            raise ConfigError(f"Expected blocks with names of their own, got {[each.name for each in self.blocks]}.")
        if self.adjacency not in ADJACENCIES:
            raise ConfigError(f"Expected adjacency in {ADJACENCIES}, got adjacency={self.adjacency!r}.")
        if self.length > MOST_NUMBERS:
            raise ConfigError(f"Expected at most {MOST_NUMBERS:,} numbers of a round, got {self.length:,}.")

    @cached_property
    def length(self) -> int:
        """k: numbers of a row."""
        return sum(block.length for block in self.blocks)

    @property
    def most(self) -> int:
        """Σ U²: the largest sum of squares of an admissible row, each block by itself."""
        return sum(longest_square(block, self.adjacency) for block in self.blocks)

    def parts(self) -> tuple[tuple[Block, slice], ...]:
        """Each block with where it stands in a row."""
        starts = [sum(block.length for block in self.blocks[:i]) for i in range(len(self.blocks))]
        return tuple((block, slice(at, at + block.length)) for block, at in zip(self.blocks, starts, strict=True))


def longest_square(block: Block, adjacency: Adjacency) -> int:
    """Largest Σ z² of a block of an admissible row, an integer: the kind's length is the root of an integer."""
    return block.unit**2 * round(KINDS[block.kind].longest[adjacency] ** 2)


@dataclass(frozen=True)
class Sheet:
    """All rounds of a plan, and which of them may ask one user.

    A user takes part in each of the first `pilot` rounds at most once and then in no other; or in `participations` of
    the others, any two of them `separation` or more apart.
    """

    rounds: tuple[RoundSheet, ...]
    factorisation: str | None = None  # of the rounds that have a correlated block
    participations: int = 1
    separation: int = 1
    pilot: int = 0

    def __post_init__(self) -> None:
        count(participations=self.participations, separation=self.separation, rounds=len(self.rounds))
        if not 0 <= self.pilot <= len(self.rounds) <= LONGEST:
            raise ConfigError(f"Expected 0 <= pilot <= rounds <= {LONGEST}, got {self.pilot}, {len(self.rounds)}.")
        series = {(b.name, b.length) for each in self.rounds for b in each.blocks if b.correlated}
        alone = all(sum(b.correlated for b in each.blocks) <= 1 for each in set(self.rounds))
        if len(series) > 1 or not alone or bool(series) != (self.factorisation is not None):
            raise ConfigError(f"Expected one correlated block a round, the same in each, got {sorted(series)}.")
        if self.factorisation is not None and self.factorisation not in FACTORISATIONS:
            raise ConfigError(f"Expected factorisation in {FACTORISATIONS}, got {self.factorisation!r}.")

    @cached_property
    def correlated(self) -> tuple[int, ...]:
        """Rounds with a correlated block."""
        return tuple(t for t, each in enumerate(self.rounds) if any(block.correlated for block in each.blocks))

    def admits(self, before: Collection[int], round_: int) -> bool:
        """Whether a user of the rounds `before` may be asked in another one."""
        if not 0 <= round_ < len(self.rounds) or round_ in before:
            return False
        if round_ < self.pilot:
            return all(each < self.pilot for each in before)
        apart = all(abs(each - round_) >= self.separation for each in before)
        return apart and len(before) < self.participations and all(each >= self.pilot for each in before)

    def as_json(self) -> str:
        """One text for one sheet: equal rounds in a row are written once, with their number."""
        rounds = [[len(list(same)), _written(each)] for each, same in groupby(self.rounds)]
        own = {
            "rounds": rounds,
            "factorisation": self.factorisation,
            "participations": self.participations,
            "separation": self.separation,
            "pilot": self.pilot,
        }
        return json.dumps(own, sort_keys=True, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> "Sheet":
        """Of `as_json`; WireError for anything else."""
        try:
            own: dict[str, Any] = json.loads(text)
            if sum(number for number, _ in own["rounds"]) > LONGEST:
                raise WireError(f"Expected a sheet of at most {LONGEST} rounds, got more.")
            rounds = tuple(each for number, made in own.pop("rounds") for each in [_read(made)] * number)
            sheet = cls(rounds, **own)
        except (ValueError, TypeError, KeyError, AttributeError, ConfigError, RecursionError) as error:
            raise WireError(f"Expected the sheet of a plan, got something else ({error}).") from None
        if sheet.as_json() != text:
            raise WireError("Expected a sheet in its one spelling, got another. Use Sheet.as_json().")
        return sheet

    def digest(self) -> bytes:
        """32 bytes that no other sheet has."""
        return sha256(b"quoron two-servers sheet 1\n" + self.as_json().encode()).digest()


def _written(made: RoundSheet) -> dict[str, Any]:
    blocks = [[b.name, b.length, b.unit, b.kind, b.correlated] for b in made.blocks]
    return {"blocks": blocks, "adjacency": made.adjacency}


def _read(made: Mapping[str, Any]) -> RoundSheet:
    blocks = tuple(Block(*each) for each in made["blocks"])
    return RoundSheet(blocks, made["adjacency"])


def unit_for(mu: float, kind: str, adjacency: Adjacency, *, length: int = 1, column_norm: float = 1.0) -> int:
    """U = ⌊(2³⁰ μ / κ - cut) / s⌋, the longest row for which noise of one step in 2³⁰ is μ-GDP."""
    made = KINDS[kind]
    cut = made.cut * sqrt(length) if adjacency == "replace-one" else 0.0
    return floor((2.0**GRID_BITS * mu / column_norm - cut) / made.apart[adjacency] * (1 - 1e-12))

"""The specification of a plan for two servers: what rows each round admits, in whole steps of one server's noise.

    >>> moment = RoundSpec((Block("row", 7, 1 << 28, "shaped-moment"),))
    >>> spec = MechanismSpec((moment,))
    >>> MechanismSpec.read(spec.as_json()) == spec, len(spec.digest())
    (True, 32)

Every coordinate of every round gets ⌊2³⁰ Z⌋ from each server, so how much noise a plan wants is said by how *long* its
rows are: U steps. No scale, radius, iterate or state is in a spec; both servers and every client derive it from the
plan alone (`spec_of`).

What rows of a kind are, and how far apart two of them can be: docs/privacy/two-servers.md#rows.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from itertools import groupby
from math import comb, floor, sqrt
from typing import Any

import numpy as np
import scipy  # its parts when they are first used: a second server starts without

from quoron_privacy.arrays import Matrix, Vector
from quoron_privacy.errors import ConfigError, WireError, count
from quoron_privacy.noise.streams import GRID_BITS
from quoron_privacy.prefix.noise import FACTORISATIONS, LONGEST
from quoron_privacy.release import Adjacency, MaskedBlock

MOST_UNIT = 1 << 34  # 16 standard deviations: a longer row is protected by nothing
MOST_NUMBERS = 1 << 26  # of one round, half a gigabyte
ADJACENCIES: tuple[Adjacency, ...] = ("replace-one", "zero-out")

COUNTING = "norm-counts", "soft-norm-counts"
SUMS, SHARES = "sums", "shares"  # names of blocks: what a factorisation correlates, and what norms say beside it
MEANS = "means"  # what stands beside shares in rounds whose noise is independent


@dataclass(frozen=True, slots=True)
class Kind:
    """Of rows: how far apart two neighbours are, and how long a row is at most, in units of U.

    Pairs are for replace-one and zero-out. Cutting to whole numbers adds `cut` · √length steps to how far apart two
    rows are under replace-one, and nothing to how long one is.
    """

    square_apart: tuple[int, int]  # s²
    square_length: tuple[int, int]
    cut: float = 0.0


# Proofs: docs/privacy/two-servers.md#rows.
KINDS: Mapping[str, Kind] = {
    "clipped": Kind((4, 1), (1, 1)),  # a ball
    "length": Kind((1, 1), (1, 1)),  # free-presence#p1
    "columns": Kind((1, 1), (1, 1), cut=2.01),  # free-presence#p6
    "shaped-moment": Kind((2, 1), (2, 1), cut=2.01),  # free-presence#p2
    "moment": Kind((2, 1), (2, 1), cut=2.01),  # the same; without presence under zero-out
    "norm-counts": Kind((4, 1), (4, 1), cut=1.0),  # free-presence#p3: "sums" and "shares" are one row together
    "soft-norm-counts": Kind((4, 1), (4, 1), cut=1.0),  # free-presence#ac1
}


@dataclass(frozen=True, slots=True)
class Block:
    """Some numbers of a row: U steps are one unit of them."""

    name: str
    length: int
    unit: int  # U
    kind: str

    def __post_init__(self) -> None:
        count(length=self.length, unit=self.unit)
        if not isinstance(self.name, str) or not isinstance(self.kind, str) or self.kind not in KINDS:
            raise ConfigError(f"Expected kind in {sorted(KINDS)}, got kind={self.kind!r}.")
        if self.unit > MOST_UNIT:
            raise ConfigError(f"Expected unit <= 2**34 steps, got unit={self.unit}. Use a smaller epsilon.")


@dataclass(frozen=True)
class RoundSpec:
    """The blocks of one round's row, one after the other."""

    blocks: tuple[Block, ...]
    adjacency: Adjacency = "replace-one"

    def __post_init__(self) -> None:
        if not self.blocks or len({block.name for block in self.blocks}) < len(self.blocks):
            raise ConfigError(f"Expected blocks with names of their own, got {[block.name for block in self.blocks]}.")
        if self.adjacency not in ADJACENCIES:
            raise ConfigError(f"Expected adjacency in {ADJACENCIES}, got adjacency={self.adjacency!r}.")
        counting = [(block.name, block.kind) for block in self.blocks if block.kind in COUNTING]
        named = tuple(name for name, _ in counting) in ((SUMS, SHARES), (MEANS, SHARES))
        if counting and (len({kind for _, kind in counting}) > 1 or not named):
            raise ConfigError(
                f"Expected blocks {SUMS!r} or {MEANS!r}, and {SHARES!r}, where norms are counted, got {counting}."
            )
        if self.length > MOST_NUMBERS:
            raise ConfigError(f"Expected at most {MOST_NUMBERS:,} numbers of a round, got {self.length:,}.")

    @cached_property
    def length(self) -> int:
        """k: numbers of a row."""
        return sum(block.length for block in self.blocks)

    def parts(self) -> tuple[tuple[Block, slice], ...]:
        """Return each block with where it stands in a row."""
        starts = [sum(block.length for block in self.blocks[:i]) for i in range(len(self.blocks))]
        return tuple((block, slice(at, at + block.length)) for block, at in zip(self.blocks, starts, strict=True))

    @cached_property
    def together(self) -> tuple[tuple[tuple[Block, slice], ...], ...]:
        """The parts, those together that are one row of one kind: "sums" and "shares" where norms are counted."""
        counting = tuple(part for part in self.parts() if part[0].kind in COUNTING)
        others = tuple((part,) for part in self.parts() if part[0].kind not in COUNTING)
        return (counting, *others) if counting else others


@dataclass(frozen=True)
class MechanismSpec:
    """All rounds of a plan, and which of them may ask one user.

    A user takes part in `participations` of them at most, any two a multiple of `separation` apart.
    """

    rounds: tuple[RoundSpec, ...]
    factorisation: str | None = None  # of the blocks "sums", over the rounds that have one
    participations: int = 1
    separation: int = 1
    groups: int = 1  # of users, public, each with lists and noise of its own; released is their median

    def __post_init__(self) -> None:
        count(
            participations=self.participations, separation=self.separation, rounds=len(self.rounds), groups=self.groups
        )
        if self.groups % 2 == 0:
            raise ConfigError(f"Expected an odd number of groups, got groups={self.groups}.")
        if len(self.rounds) > LONGEST:
            raise ConfigError(f"Expected at most {LONGEST} rounds, got {len(self.rounds)}.")
        found = {
            (at, block.length)
            for made in set(self.rounds)
            for at, block in enumerate(made.blocks)
            if block.name == SUMS
        }
        if self.factorisation is not None and len(found) != 1:
            raise ConfigError(f"Expected a block {SUMS!r} of one place and length to correlate, got {sorted(found)}.")
        if self.factorisation is not None and self.correlated != tuple(
            range(self.correlated[0], self.correlated[-1] + 1)
        ):
            raise ConfigError(f"Expected rounds with a block {SUMS!r} one after the other, got others between.")
        if self.factorisation is not None and self.factorisation not in FACTORISATIONS:
            raise ConfigError(f"Expected factorisation in {FACTORISATIONS}, got {self.factorisation!r}.")

    @cached_property
    def correlated(self) -> tuple[int, ...]:
        """Rounds whose block "sums" has noise that is correlated over them."""
        if self.factorisation is None:
            return ()
        return tuple(t for t, made in enumerate(self.rounds) if any(block.name == SUMS for block in made.blocks))

    def admits(self, before: Collection[int], round_: int) -> bool:
        """Return whether a user of the rounds `before` may be asked in another one."""
        if not 0 <= round_ < len(self.rounds) or round_ in before:
            return False
        alike = all((earlier - round_) % self.separation == 0 for earlier in before)
        return alike and len(before) < self.participations

    def as_json(self) -> str:
        """Return one text for one specification: equal rounds in a row are written once, with their number."""
        rounds = []
        for made, same in groupby(self.rounds):
            blocks = [[b.name, b.length, b.unit, b.kind] for b in made.blocks]
            rounds.append([len(list(same)), {"blocks": blocks, "adjacency": made.adjacency}])
        own = {
            "rounds": rounds,
            "factorisation": self.factorisation,
            "participations": self.participations,
            "separation": self.separation,
            "groups": self.groups,
        }
        return json.dumps(own, sort_keys=True, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> "MechanismSpec":
        """Of `as_json`; WireError for anything else."""
        try:
            own: dict[str, Any] = json.loads(text)
            numbers = [number for number, _ in own["rounds"]]
            if min(numbers, default=0) < 1 or sum(numbers) > LONGEST:  # before any list is made so long
                raise WireError(f"Expected a specification of 1 to {LONGEST} rounds, got others.")
            rounds: list[RoundSpec] = []
            for number, made in own.pop("rounds"):
                blocks = tuple(Block(*block) for block in made["blocks"])
                rounds += [RoundSpec(blocks, made["adjacency"])] * number
            spec = cls(tuple(rounds), **own)
        except (ValueError, TypeError, KeyError, AttributeError, ConfigError, RecursionError) as error:
            raise WireError(f"Expected the specification of a plan, got something else ({error}).") from None
        if spec.as_json() != text:
            raise WireError("Expected a specification in its one spelling, got another. Use MechanismSpec.as_json().")
        return spec

    def digest(self) -> bytes:
        """32 bytes that no other specification has."""
        return sha256(b"quoron two-servers sheet 1\n" + self.as_json().encode()).digest()


def median(means: Matrix) -> Vector:
    """Return the coordinatewise median of released means (groups, d): of an even number the mean of the middle two.

    A user is in one group, so a release of every group costs what one release does, and one adversarial group moves no
    model (docs/privacy/two-servers.md#ts6).

        >>> median(np.array([[1.0, 5.0], [2.0, 4.0], [1e9, -1e9]])).tolist()
        [2.0, 4.0]
    """
    if means.ndim != 2 or not len(means) or not np.isfinite(means).all():
        raise ConfigError(f"Expected finite means, one row a group, got shape {means.shape}.")
    made: Vector = np.median(means, axis=0)
    return made


@cache
def noise_factor(groups: int) -> float:
    """Noise of the median of so many means of equal groups, over that of one mean of all; odd numbers of groups.

    √(∫ x² f(x) dx) · groups, f the density of the middle one of so many standard normal variables.

        >>> [round(noise_factor(groups), 2) for groups in (1, 3, 5)]
        [1.0, 2.01, 2.68]
    """
    count(groups=groups)
    if groups % 2 == 0:
        raise ConfigError(f"Expected an odd number of groups, got groups={groups}.")
    half = groups // 2
    chances = comb(groups, half) * (half + 1)

    def density(x: float) -> float:
        below = float(scipy.stats.norm.cdf(x))
        return x * x * chances * (below * (1 - below)) ** half * float(scipy.stats.norm.pdf(x))

    variance, _ = scipy.integrate.quad(density, -12, 12)
    return groups * sqrt(variance)


@dataclass(frozen=True, slots=True)
class Servers:
    """Beside what each of two servers is held to: what their noise makes together."""

    together_epsilon: float  # ε for an observer of releases alone, and of a plan of one server with as much noise
    groups: int = 1  # public groups of users, of whose means the median is taken


def spec_of(
    rounds: Iterable[tuple[int, tuple[MaskedBlock, ...]]],
    adjacency: Adjacency,
    factorisation: str | None = None,
    participations: int = 1,
    separation: int = 1,
    groups: int = 1,
) -> MechanismSpec:
    """Return the spec of rounds, so many in a row alike, by the size of rows in deviations of all noise in a release.

    >>> spec_of([(2, (("row", "clipped", 3, 0.25),))], "replace-one", participations=2).rounds[1].blocks[0].unit
    379625062

    A plan of two servers is one of a single server that has as much noise as both. So half of the variance is each
    one's, and a step is 2⁻³⁰ √½ of a deviation of the release.
    """
    made: list[RoundSpec] = []
    steps = sqrt(2.0) * 2.0**GRID_BITS
    for times, rows in rounds:
        blocks = (Block(name, size, floor(steps * far * louder(groups)), kind) for name, kind, size, far in rows)
        made += [RoundSpec(tuple(blocks), adjacency)] * times
    return MechanismSpec(tuple(made), factorisation, participations, separation, groups)


def louder(groups: int) -> float:
    """Return how much louder a median of groups is than one sum, to six digits: the same number on every machine."""
    return 1.0 if groups == 1 else round(noise_factor(groups), 6)

"""From the mechanisms of a plan to its sheet: one unit of a row in whole steps of one server's noise.

A plan of two servers is one of a single server that has as much noise as both. So half of the variance is each one's,
and a step is 2⁻³⁰ √½ of a deviation of what is released. Statement and proof: docs/privacy/two-servers.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, sqrt

from quoron_privacy.noise.streams import GRID_BITS
from quoron_privacy.release import Adjacency, MaskedBlock
from quoron_privacy.two_servers.groups import noise_factor
from quoron_privacy.two_servers.sheet import Block, RoundSheet, Sheet


@dataclass(frozen=True, slots=True)
class Servers:
    """Beside what each of two servers is held to: what their noise makes together."""

    together_epsilon: float  # ε of whoever sees only what is released, and of a plan of one server with as much noise
    groups: int = 1  # public groups of users, of whose means the median is taken


def sheet_of(
    rounds: Iterable[tuple[int, tuple[MaskedBlock, ...]]],
    adjacency: Adjacency,
    factorisation: str | None = None,
    participations: int = 1,
    separation: int = 1,
    groups: int = 1,
) -> Sheet:
    """The sheet of rounds, so many in a row alike, by what their rows are in deviations of all noise in a release.

    >>> sheet_of([(2, (("row", "clipped", 3, 0.25),))], "replace-one", participations=2).rounds[1].blocks[0].unit
    379625062
    """
    made = [
        each
        for times, rows in rounds
        for each in [RoundSheet(tuple(_block(each, groups) for each in rows), adjacency)] * times
    ]
    return Sheet(tuple(made), factorisation, participations, separation, groups)


def louder(groups: int) -> float:
    """How much louder a median of groups is than one sum, to six digits: the same number on every machine."""
    return 1.0 if groups == 1 else round(noise_factor(groups), 6)


def _block(rows: MaskedBlock, groups: int) -> Block:
    name, kind, length, deviations = rows
    return Block(name, length, floor(sqrt(2.0) * 2.0**GRID_BITS * deviations * louder(groups)), kind)

"""What a sheet promises against one server, and how long rows may be for it.

    >>> unit = unit_for(1.0, "clipped", "replace-one")
    >>> sheet = Sheet((RoundSheet((Block("sum", 9, unit, "clipped"),)),) * 4, participations=4)
    >>> round(server_mu(sheet), 6)  # a user of all four rounds
    2.0

Everything is in whole steps, 2³⁰ of which are a standard deviation of the noise of one server. Whoever knows
neither server's noise has both before them: √½ of it. Statement and proof:
docs/privacy/two-servers.md#a.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import floor, hypot, sqrt

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, count, positive
from quoron_privacy.noise.streams import GRID_BITS
from quoron_privacy.prefix.factorisations import Factorisation, factorise
from quoron_privacy.release import Adjacency
from quoron_privacy.two_servers.sheet import ADJACENCIES, COUNTING, KINDS, SUMS, RoundSheet, Sheet
from quoron_privacy.two_servers.sheet import Block as Block

Vector = NDArray[np.float64]

_ARITHMETIC = 1 + 1e-9  # rounding of plans, as in `prefix`
_STEP = 2.0**-GRID_BITS


def server_mu(sheet: Sheet, *, restored: int = 0) -> float:
    """μ of all that one server, or whoever it shows everything to, learns of one user of the sheet's rounds.

    The books of the other server were put back `restored` times. GDP for replace-one or zero-out, as the rows say.
    """
    moved = [_independent(each) ** 2 for each in sheet.rounds]
    alone = sqrt(_most(moved, sheet.participations, sheet.separation))
    if sheet.factorisation is not None:
        alone = _with_correlated(sheet, moved)
    return alone * sqrt(1 + restored) * _ARITHMETIC


def outsiders_mu(sheet: Sheet) -> float:
    """μ of all that is released, to whoever knows the noise of neither server: √½ of it, and what halving rounds off.

    A row is split into two halves, each with the noise of one server: docs/privacy/two-servers.md#c.
    """
    longest = max(each.length for each in sheet.rounds)
    reach, rounding = 0.0, 0.0
    if sheet.factorisation is not None:
        factors = factors_of(sheet)
        reach = factors.reach(sheet.participations, sheet.separation)
        sums = sheet.rounds[sheet.correlated[0]].blocks
        rounding = _rounding(sheet, factors, next(each.length for each in sums if each.name == SUMS))
    halves = (sqrt(sheet.participations) + reach) * sqrt(longest / 2) * _STEP
    return (server_mu(sheet) - rounding) * sqrt(0.5) * _ARITHMETIC + halves + sqrt(2.0) * rounding


def unit_for(
    mu: float, kind: str, adjacency: Adjacency = "replace-one", *, length: int = 1, column_norm: float = 1.0
) -> int:
    """U = ⌊(2³⁰ μ / κ - cut) / s⌋: how long rows of a block of `length` numbers may be for μ-GDP against each server.

    Of "sums" take off μ before what `rounding_mu` says. ConfigError where μ is less than what cutting to steps costs.
    """
    positive(mu=mu, column_norm=column_norm)
    count(length=length)
    made, which = KINDS[kind], ADJACENCIES.index(adjacency)
    cut = 0.0 if which else made.cut * sqrt(length)
    unit = floor((mu / column_norm / _STEP - cut) / sqrt(made.square_apart[which]) / _ARITHMETIC**2)
    if unit < 1:
        raise ConfigError(f"Expected mu above {cut * _STEP * column_norm:g}, got mu={mu:g}. Use fewer rounds.")
    return unit


def rounding_mu(factors: Factorisation, rounds: int, dimension: int) -> float:
    """What rounded predictions of correlated noise add to μ: 2ρ √(T d) steps (prefix-noise#c2)."""
    return 2 * factors.rounding * sqrt(rounds * dimension) * _STEP


def factors_of(sheet: Sheet) -> Factorisation:
    """B C of the sheet's correlated rounds, as `PrefixNoise` has it."""
    apart = sheet.separation if sheet.participations > 1 else None
    return factorise(str(sheet.factorisation), len(sheet.correlated), apart, sheet.participations)


def _apart(block: Block, adjacency: Adjacency) -> float:
    """How far apart rows of two neighbours are in a block, in standard deviations."""
    made, which = KINDS[block.kind], ADJACENCIES.index(adjacency)
    cut = 0.0 if which else made.cut * sqrt(block.length)
    return (sqrt(made.square_apart[which]) * block.unit + cut) * _STEP


@lru_cache(maxsize=64)
def _independent(made: RoundSheet) -> float:
    """Of a round whose noise is independent in every block."""
    return hypot(
        *(_counted(made, 1.0) if len(parts) > 1 else _apart(parts[0][0], made.adjacency) for parts in made.together)
    )


def _counted(made: RoundSheet, reach: float) -> float:
    """Of "sums" and "shares", which are one row, where the first is moved `reach` times as far by correlation."""
    sums, shares = (block for block in made.blocks if block.kind in COUNTING)
    return _apart(shares, made.adjacency) * max(1.0, reach * sums.unit / shares.unit)


def _sums_moved(made: RoundSheet, sums: Block, reach: float) -> float:
    return _counted(made, reach) if sums.kind in COUNTING else reach * _apart(sums, made.adjacency)


def _most(moved: Sequence[float], participations: int, separation: int) -> float:
    """The largest sum of so many squares in rounds that are multiples of `separation` apart."""
    classes = (sorted(moved[first::separation])[-participations:] for first in range(min(separation, len(moved))))
    return max((sum(each) for each in classes), default=0.0)


def _with_correlated(sheet: Sheet, moved: list[float]) -> float:
    """With "sums" moved as far as correlation does it, beside what moves in the same rounds, and what rounds off."""
    factors, squares = factors_of(sheet), moved.copy()
    for t, reach in zip(sheet.correlated, _reaches(sheet, factors), strict=True):
        made = sheet.rounds[t]
        sums = next(block for block in made.blocks if block.name == SUMS)
        squares[t] += _sums_moved(made, sums, reach) ** 2 - _sums_moved(made, sums, 1.0) ** 2
    total = sqrt(_most(squares, sheet.participations, sheet.separation))
    return total + _rounding(sheet, factors, sums.length)


def _rounding(sheet: Sheet, factors: Factorisation, dimension: int) -> float:
    """Of the series of all groups that one user may be in: each predicts from its own noise."""
    return rounding_mu(factors, len(sheet.correlated) * min(sheet.groups, sheet.participations), dimension)


def _reaches(sheet: Sheet, factors: Factorisation) -> Vector:
    """√R_t: how far correlation moves what a user adds in round t, with all its other rounds (free-presence#p5)."""
    rounds, apart = len(sheet.correlated), sheet.separation
    if sheet.participations == 1:
        return np.full(rounds, factors.column_norm)
    c = factors.coefficients
    if c is None or sheet.participations * apart < rounds:
        raise ConfigError(
            f"Expected a Toeplitz factorisation and rounds <= participations * separation, got {sheet.factorisation!r} "
            f"with {rounds} rounds, {sheet.participations} * {apart}."
        )
    reach = np.zeros(rounds)
    for lag in range(0, rounds, apart):
        common = np.cumsum(c[: rounds - lag] * c[lag:])[::-1]  # ⟨C[:, i], C[:, i + lag]⟩ for every i
        reach[: rounds - lag] += common
        if lag:
            reach[lag:] += common
    made: Vector = np.sqrt(reach)
    return made

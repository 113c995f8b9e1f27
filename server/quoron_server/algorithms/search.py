"""One search for all planners: candidates, the least predicted risk of them, and what works out exactly.

    tried = (Candidate(risk, price, option values) ...)        each with its risk, by estimates or by exact noise
    best(tried)                                                of about the least risk, the cheapest
    exactly(ranked(tried), calibrate)                          the first whose theorem has parameters for it

All of it is about public numbers: a plan is as private as its calibration says, whichever candidate is taken.

    >>> tried = [Candidate(1.00, (64,), "many"), Candidate(1.04, (16,), "few"), Candidate(1.30, (4,), "fewest")]
    >>> best(tried).of, [each.of for each in ranked(tried)]
    ('few', ['few', 'many', 'few', 'fewest'])
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from quoron_privacy.errors import Infeasible, QuoronError
from quoron_server.plan import Plan

C = TypeVar("C")
P = TypeVar("P")

NEAR = 1.05  # times the least predicted risk counts as about as good
SINGLY = 16  # rounds up to which a limit on them tries every number


@dataclass(frozen=True, slots=True)
class Candidate(Generic[C]):
    """Option values with what they are predicted to leave."""

    risk: float  # predicted excess risk
    price: tuple[float, ...]  # compared where risks are about as good: rounds, answers or gradients
    of: C


def best(tried: Iterable[Candidate[C]], *, near: float = NEAR) -> Candidate[C] | None:
    """The cheapest of those within `near` times the least risk; of equal ones the least risk, then the first.

    None where nothing was tried.
    """
    found = list(tried)
    least = min((each.risk for each in found), default=0.0)
    close = (each for each in found if each.risk <= near * least)
    return min(close, key=lambda each: (each.price, each.risk), default=None)


def ranked(tried: Iterable[Candidate[C]]) -> list[Candidate[C]]:
    """The `best`, then all of finite risk, the least first."""
    found = sorted((each for each in tried if math.isfinite(each.risk)), key=lambda each: each.risk)
    first = best(found)
    return [] if first is None else [first, *found]


def exactly(tried: Iterable[C], calibrate: Callable[[C], P | None], *, most: int) -> P | None:
    """What `calibrate` makes of the first candidate for which it neither raises Infeasible nor gives None.

    At most so many are tried: an exact account is slow, and the later ones promise less.
    """
    for each in islice(tried, most):
        with suppress(Infeasible):
            if (made := calibrate(each)) is not None:
                return made
    return None


def within_rounds(most: int, usual: Plan, exactly: Callable[[int], Plan]) -> Plan:
    """The plan of the least expected error of at most `most` rounds; `exactly` plans for a number of rounds.

    Tried are the rounds of the `usual` plan, chosen without a limit, and below it all up to SINGLY and `round_grid`.
    What is tried for one limit is tried for every larger one, so a larger limit never leaves more. Where none of these
    is feasible the fewest rounds that are will do, and Infeasible names them if they are more than `most`.
    """

    def planned(numbers: Iterable[int]) -> Iterator[Plan]:
        for rounds in numbers:
            with suppress(QuoronError):
                yield exactly(rounds)

    def price(plan: Plan) -> tuple[float, int]:
        known = plan.guessed_excess_risk
        return math.inf if known is None else known, -plan.cost.rounds

    longest = usual.cost.rounds
    grid = {*round_grid(longest), *range(1, min(longest, SINGLY) + 1)}
    found = min(planned(rounds for rounds in sorted(grid) if rounds <= most), key=price, default=None)
    if found is not None or longest <= most:
        return usual if found is None else found
    fewest = next(planned(range(1, longest)), usual)
    if fewest.cost.rounds <= most:
        return fewest
    limit = "1 round" if most == 1 else f"{most:,} rounds"
    raise Infeasible(usual.algorithm, f"{limit} will not do", f"budget.max_rounds >= {fewest.cost.rounds:,}")


def too_few(
    name: str,
    condition: str,
    enough: Callable[[int], bool],
    users: int,
    *,
    within: float = 1.1,
    most: int = 10**10,
    also: str = "",
    otherwise: str = "",
) -> Infeasible:
    """Why `users` do not do, and about how many are `enough`; `otherwise` is needed where none up to `most` are."""
    found = least_users(enough, users, within=within, most=most)
    return Infeasible.too_few(name, condition, found, also=also, otherwise=otherwise)


def round_grid(largest: int, *, smallest: int = 1) -> list[int]:
    """Integers from `smallest` to `largest`, a factor √2 apart."""
    count = max(0, math.floor(2 * math.log2(max(1, largest / smallest))))
    return sorted({round(smallest * 2 ** (k / 2)) for k in range(count + 1)} | {largest})


def halves(users: int, phases: int) -> list[int]:
    """Users of each phase: halves of what is left; the last phase has as many as the one before."""
    sizes = [max(users >> (k + 1), 1) for k in range(phases - 1)]
    return [*sizes, users - sum(sizes)]


def least_users(enough: Callable[[int], bool], too_few: int, *, within: float, most: int) -> int | None:
    """About the least number of users, by a factor `within`, that is `enough`, and it is; None beyond `most`.

    `too_few` is a number that is not.
    """
    low, high = too_few, 2 * too_few
    while not enough(high):
        low, high = high, 2 * high
        if high > most:
            return None
    while high > within * low + 1:
        middle = max(low + 1, math.isqrt(low * high))  # of a handful the root is `low` itself
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high

"""The page on members, by going through all worlds of a small federation; twins that break it are caught."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from quoron_server.silos import draw, seed_of

N, ROUNDS, EPSILON = 5, 2, 0.7
Items = tuple[int | None, ...]  # a bit of each user; None: items of which nothing can be computed
Law = Counter[tuple[object, ...]]


def said(bit: int | None) -> list[tuple[int, float]]:
    """What randomised response says of a bit, with its chances: ε-DP, and the neutral element is a bit too."""
    true = 0 if bit is None else bit
    keep = math.exp(EPSILON) / (1 + math.exp(EPSILON))
    return [(true, keep), (1 - true, 1 - keep)]


def shown(items: Items, n: int, active: Callable[[int, Items], Iterable[int]]) -> Law:
    """The law of all that two runs show, members included, each of whom is asked once a run."""
    law: Law = Counter({(): 1.0})
    for run in range(ROUNDS):
        members = draw(seed_of(str(run), "{}"), np.array(sorted(active(run, items))), n).tolist()
        after: Law = Counter()
        for each in itertools.product(*(said(items[user]) for user in members)):
            bits, chance = tuple(bit for bit, _ in each), math.prod(chance for _, chance in each)
            after.update({(*past, tuple(members), bits): was * chance for past, was in law.items()})
        law = after
    return law


def loss(one: Law, other: Law) -> float:
    """The largest log-ratio of two laws; infinite where one shows what the other never does."""
    return max(math.inf if not other[what] else math.log(chance / other[what]) for what, chance in one.items())


def worst(n: int, active: Callable[[int, Items], Iterable[int]]) -> float:
    """Over all worlds, and all replacements of one user's items."""
    values = (0, 1, None)
    found = 0.0
    for rest in itertools.product((0, 1), repeat=N - 1):
        for user in range(N):
            worlds = [shown((*rest[:user], value, *rest[user:]), n, active) for value in values]
            found = max(found, *(loss(one, other) for one, other in itertools.permutations(worlds, 2)))
    return found


def everybody(run: int, _: Items) -> Iterable[int]:
    """A roster that changes, as connections do: one user is gone in the second run."""
    return [user for user in range(N) if user != run + 1]


def usable(run: int, items: Items) -> Iterable[int]:
    """A broken twin: from the second run on whose items could not be used is away."""
    return [user for user in range(N) if not run or items[user] is not None]


@pytest.mark.parametrize("n", [2, 4])
def test_members_and_answers_together_cost_a_user_what_its_runs_cost_and_no_less(n: int) -> None:
    """Two runs of ε each, of which somebody is in both: 2ε exactly, whoever was drawn and of how many."""
    drawn = [draw(seed_of(str(run), "{}"), np.array([*everybody(run, ())]), n).tolist() for run in range(ROUNDS)]
    most = max(Counter(itertools.chain(*drawn)).values())
    assert worst(n, everybody) == pytest.approx(most * EPSILON, rel=1e-12)


def test_a_roster_that_follows_usable_answers_is_caught() -> None:
    assert worst(4, usable) == math.inf


def test_the_factor_of_a_secret_sample_would_claim_too_little() -> None:
    """n of N by a public draw: log(1 + (n/N)(e^ε − 1)) a run is less than what a member loses."""
    n = 2
    drawn = [draw(seed_of(str(run), "{}"), np.array([*everybody(run, ())]), n).tolist() for run in range(ROUNDS)]
    claimed = max(Counter(itertools.chain(*drawn)).values()) * math.log1p(n / (N - 1) * math.expm1(EPSILON))
    assert worst(n, everybody) > 1.5 * claimed

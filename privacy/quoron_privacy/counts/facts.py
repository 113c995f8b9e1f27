"""Facts about a table that nobody declared, each released for its own ε: items per user, categories.

    >>> from quoron_privacy.noise.sources import SeededNoise
    >>> held = np.repeat([5, 6, 7, 90], 500)
    >>> release_items_per_user(held, epsilon=0.2, stream=SeededNoise(1).stream("items")).value
    6
    >>> users_for_items(epsilon=0.2), holders_of_category(epsilon=0.2, delta=1e-6)
    (480, 173)

Items are a rank: every user votes for the bin of its own number, and the bin in which a declared rank falls is chosen
by the exponential mechanism. Ranges are `bought`, of all columns at once. What is too little to tell from noise is
refused before data is touched: an error is a function of the number of users and of the declared parameters.

All promises are for replacing one user; how many users there are is public. Proofs: docs/privacy/votes.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.counts.votes import HiddenBins
from quoron_privacy.errors import ConfigError, Infeasible, count
from quoron_privacy.means.private_range import bounded_range_mu, weights
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Release

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Category = str | int
T = TypeVar("T")

FAILURE = 1e-3  # β: chance that a rank is off by more than is declared
MOST_BELOW = 0.5  # declared share of users, where nothing else is said

_ITEM_EDGES = np.array(sorted({math.isqrt(2**power - 1) + 1 for power in range(2 * 40 + 1)}))  # ⌈√2^i⌉ up to 2⁴⁰
_LEAST, _LARGEST = 1e-6, 20.0  # of ε


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """A released value, and what it cost whoever is replaced."""

    value: T
    epsilon: float
    delta: float
    mu: float | None  # the release is μ-GDP; None: no such bound
    entries: tuple[Release, ...]


@dataclass(frozen=True, slots=True)
class RankChoice:
    """One of `bins` ordered bins, near the one in which a declared rank falls; each user votes for one bin.

    Formal guarantee: a choice is `epsilon`-bounded-range under replace-one, so ε-DP, for every dataset, without any δ:
    its integer weights are drawn from exactly (votes#v4).

    | input                               | what happens                                    |
    | ----------------------------------- | ----------------------------------------------- |
    | several bins at the same distance   | equally likely                                  |
    | fewer votes than the rank           | the last bin is the nearest, and the likeliest  |
    """

    epsilon: float
    bins: int

    def __post_init__(self) -> None:
        count(bins=self.bins)
        _check_epsilon(self.epsilon)

    @property
    def mu(self) -> float:
        """A choice is μ-GDP."""
        return bounded_range_mu(self.epsilon)

    @property
    def error(self) -> int:
        """Δ: users by which the rank is off at most, but with probability FAILURE / 2 (votes#v5)."""
        return math.ceil(2 / self.epsilon * math.log(2 * self.bins / FAILURE) * (1 + 1e-9))

    def choose(self, votes: Integers, rank: int, stream: RandomStream) -> int:
        """A bin, given the votes of each; shape (bins,). Beyond `farthest` distances are no longer told apart."""
        farthest = math.ceil(2 / self.epsilon * (math.log(self.bins) + 60))
        cost = np.minimum(distances(votes, rank), farthest)
        return stream.weighted_choice(weights(cost, self.epsilon))

    def entry(self) -> Release:
        """The ledger entry of a choice."""
        return Release("rank-choice", {"epsilon": self.epsilon, "bins": float(self.bins)})


def distances(votes: Integers, rank: int) -> Integers:
    """How many users would have to move for `rank` to fall into each bin; shape (bins,).

    max(0, users in earlier bins - rank, rank - users in it and earlier bins): one user moves it by at most one.
    """
    reached = np.cumsum(votes)
    far: Integers = np.maximum(0, np.maximum(reached - votes - rank, rank - reached))
    return far


def release_items_per_user(
    held: Integers, *, epsilon: float, stream: RandomStream, most_below: float = MOST_BELOW
) -> Fact[int]:
    """A number of items that most users hold at least, and some hold about.

    `held` has each user's number of items, shape (n,); less than one counts as one. Values are ⌈√2^i⌉. But with
    probability FAILURE at most a share `most_below` of the users hold fewer than the value, and somebody holds fewer
    than the next such value. Infeasible if there are fewer users than `users_for_items` says.
    """
    held = _whole(held, "held")
    choice = items_choice(len(held), epsilon=epsilon, most_below=most_below)
    cells = np.searchsorted(_ITEM_EDGES, np.maximum(held, 1), side="right") - 1
    votes = np.bincount(cells, minlength=len(_ITEM_EDGES)).astype(np.int64)
    chosen = choice.choose(votes, _rank(len(held), most_below, 2), stream)
    return Fact(int(_ITEM_EDGES[chosen]), epsilon, 0.0, choice.mu, (choice.entry(),))


def release_categories(
    values: Sequence[object],
    owners: Integers,
    *,
    epsilon: float,
    delta: float,
    stream: RandomStream,
    most_votes: int = 1,
) -> Fact[dict[Category, int]]:
    """The categories that enough users hold, the most frequent first, each with its noisy number of votes.

    Row i is values[i] of user owners[i], any integer; both (N,). Texts and integers are categories; anything else is
    none, such as None. Of a user with more than `most_votes` categories as many count, drawn from the stream.
    `holders_of_category` says how many votes a category needs. There may be none.
    """
    owners = _whole(owners, "owners")
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if len(listed) != len(owners):
        raise ConfigError(f"Expected one owner for each value, got {len(owners)} for {len(listed)}.")
    bins = HiddenBins.calibrate(most=most_votes, epsilon=epsilon, delta=delta)
    # Numbered by what they are, not by who came first: bins of equal count are shown in this order.
    found: list[Category] = sorted({value for value in listed if type(value) is int})
    found += sorted({value for value in listed if type(value) is str})
    numbers: dict[object, int] = {value: number for number, value in enumerate(found)}
    votes = np.array([numbers[value] if type(value) in (str, int) else -1 for value in listed], np.int64)
    shown, held = bins.release(owners[votes >= 0], votes[votes >= 0], stream)
    kept = {found[number]: int(times) for number, times in zip(shown, held, strict=True)}
    return Fact(kept, bins.epsilon, bins.delta, None, (bins.entry(),))


def users_for_items(*, epsilon: float, most_below: float = MOST_BELOW) -> int:
    """The fewest users from whom `release_items_per_user` tells anything."""
    return _users(RankChoice(epsilon, len(_ITEM_EDGES)), most_below, 2)


def holders_of_category(*, epsilon: float, delta: float, most_votes: int = 1, chance: float = 0.99) -> int:
    """Votes from which on `release_categories` shows a category with this `chance`, of one half or more."""
    return HiddenBins.calibrate(most=most_votes, epsilon=epsilon, delta=delta).kept_from(chance)


def items_choice(users: int, *, epsilon: float, most_below: float = MOST_BELOW) -> RankChoice:
    """What `release_items_per_user` draws from; Infeasible for too few users, with what would do."""
    choice = RankChoice(epsilon, len(_ITEM_EDGES))
    _check_users("items per user", choice, users, most_below, 2, f"epsilon={epsilon:g}, most_below={most_below:g}")
    return choice


def _check_users(what: str, choice: RankChoice, users: int, share: float, parts: int, declared: str) -> None:
    """The error of a choice may be the rank itself at most."""
    needed = _users(choice, share, parts)
    if users < needed:
        least = choice.epsilon * (parts // 2) * choice.error / max(_rank(users, share, parts), 1)
        raise Infeasible(
            what,
            f"{users:,} users do not tell a rank from noise at {declared}",
            f"{needed:,} users, or epsilon >= {1.005 * least:.3g}",
        )


def _users(choice: RankChoice, share: float, parts: int) -> int:
    """The fewest users of whose rank Δ is at most the whole."""
    users = math.ceil(parts * choice.error / _share(share))
    while _rank(users, share, parts) < choice.error:
        users += 1
    return users


def _rank(users: int, share: float, parts: int) -> int:
    """r: the rank asked for, a part of the users that may lie beyond."""
    return math.floor(_share(share) * users / parts)


def _share(share: float) -> float:
    if not 0.001 <= share <= 0.9:
        raise ConfigError(f"Expected a share of users in [0.001, 0.9], got {share}.")
    return share


def _whole(values: Integers, name: str) -> Integers:
    values = np.asarray(values)
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise ConfigError(f"Expected {name} as integers of shape (N,), got {values.dtype} {values.shape}.")
    return values.astype(np.int64)


def _check_epsilon(epsilon: float) -> None:
    if not _LEAST <= epsilon <= _LARGEST:
        raise ConfigError(f"Expected epsilon in [{_LEAST:g}, {_LARGEST:g}], got epsilon={epsilon:g}.")

"""A quorum: a run goes on only while enough of those it asks answer, by a count with noise.

    >>> quorum = calibrate(0.5, 0.05, (1000,) * 10, participations=1, rest=(0.95, 1e-6))
    >>> round(quorum.count_scale, 6), quorum.needed(1001)
    (20.0, 501)
    >>> present_fails, nobody_passes = chances(quorum, (1000,) * 10)
    >>> max(present_fails, nobody_passes) <= BETA
    True

Round t goes on iff answered_t + V_t >= q · asked_t + Ξ, all in whole users: V_t fresh noise, Ξ one secret draw a run. A
run that falls below ends for good. Whoever is asked in few rounds pays for those alone, and then Ξ is 0; otherwise all
rounds together cost what one of them does (sparse vectors). Statement, proof and symbols: docs/privacy/quorum.md#q1,
quorum-secret#q2.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError, count, positive, probability
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Release

BETA = 1e-6  # of either mistake: a run with everybody present ends, a round that nobody answers passes
SHARE = 0.05  # of ε, where nothing else is said
_MOST_DRAWS = 1 << 21  # of one run: more than any plan has rounds
_LARGEST = 1 << 40  # users in a cohort, beyond which none is looked for
_REACH, _CELLS = 60, 24_000  # of the grid on which Ξ is integrated, in scales and in all
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Quorum:
    """Numbers of a run's quorum, fixed before it starts.

    Formal guarantee: its decisions cost one user `epsilon`, beside what the algorithm itself costs (quorum#q1).
    """

    share: float  # q, of those asked in a round
    epsilon: float  # ε_q of all decisions together; 0 where attendance is seen anyway
    participations: int  # r: rounds that ask one user, at most
    threshold_scale: float  # s_Ξ, in users; 0: none
    count_scale: float  # s_V, in users; 0: none
    rest_epsilon: float  # what the algorithm itself promises
    rest_delta: float

    def needed(self, asked: int) -> int:
        """⌈q · asked⌉, with q the decimal number that it is written as."""
        return math.ceil(_exact(self.share) * asked)

    def entry(self, asked: int) -> Release:
        """The ledger entry of one decision, whichever way it went, of a round that asked so many."""
        scales = {"threshold_scale": self.threshold_scale, "count_scale": self.count_scale}
        return Release("quorum", {"share": self.share, "asked": asked, "epsilon": self.epsilon, **scales})

    @property
    def cost(self) -> Fraction:
        """What quorum#q1 certifies for all decisions: r / s_V, or 1 / s_Ξ + 2 / s_V."""
        if not self.count_scale:
            return Fraction(0)
        if not self.threshold_scale:
            return self.participations / Fraction(self.count_scale)
        return 1 / Fraction(self.threshold_scale) + 2 / Fraction(self.count_scale)

    @property
    def mu(self) -> float:
        """A μ for which everything that is ε_q-DP is μ-GDP, rounded up."""
        return -2 * float(ndtri(1 / (1 + math.exp(self.epsilon)))) * (1 + 1e-9)

    def pair(self, rounds: int) -> Pair:
        """What all decisions of a run cost, samplers included."""
        lack = total_variation(laplaces=self.draws(rounds))
        return (Pair.response(self.epsilon) if self.epsilon else Pair()).lacking(lack)

    def draws(self, rounds: int) -> int:
        """Samples of noise in a run."""
        return (rounds if self.count_scale else 0) + (1 if self.threshold_scale else 0)


def rest(epsilon: float, delta: float, quorum_epsilon: float) -> tuple[float, float]:
    """(ε, δ) that a quorum of ε_q leaves to the algorithm. ConfigError if it leaves too little."""
    left = epsilon - quorum_epsilon
    while _exact(left) + _exact(quorum_epsilon) > _exact(epsilon):
        left = math.nextafter(left, -math.inf)
    slack = total_variation(laplaces=_MOST_DRAWS) * (1 + math.exp(epsilon))
    if not (left >= 0.01 and delta - slack >= 1e-12):
        raise ConfigError(
            "Expected quorum_epsilon to leave an epsilon of at least 0.01 and a delta of a little more than 1e-12, got "
            f"quorum_epsilon={quorum_epsilon:g} of epsilon={epsilon:g} and delta={delta:g}."
        )
    return left, math.nextafter(delta - slack, 0.0)


def spent_on(share: float | None, epsilon: float, wanted: float | None) -> float:
    """ε_q: as `wanted`, else a twentieth of ε; 0 without a quorum, unless one is `wanted` for none, to be refused."""
    if wanted is not None:
        return wanted
    return 0.0 if share is None else SHARE * epsilon


def calibrate(
    share: float,
    epsilon: float,
    cohorts: Sequence[int],
    *,
    participations: int,
    rest: tuple[float, float],
    present: Callable[[int], int] = int,
    name: str = "this run",
) -> Quorum:
    """The quorum that needs the smallest cohorts; exact and free with ε_q = 0, for attendance that is seen anyway.

    `cohorts` are the users asked in each round, as planned, and `present` how many of a planned cohort are there at
    least when everybody is. Infeasible, naming what would do, if one of its two mistakes had a chance above BETA.
    """
    _check(share, epsilon, cohorts, participations)
    quorum = _scaled(share, epsilon, len(cohorts), participations, rest)
    if max(chances(quorum, cohorts, present)) <= BETA:
        return quorum

    def fits(other: Quorum, sizes: Sequence[int]) -> bool:
        return max(chances(other, sizes, present)) <= BETA

    ways = []
    smallest, rounds = min(cohorts), len(cohorts)
    least = _first(lambda size: fits(quorum, (size,) * rounds), smallest + 1)
    if least is not None:
        ways.append(f"{least:,} users in every round")
    enough = _first(
        lambda step: fits(_scaled(share, step * epsilon / 8, rounds, participations, rest), cohorts), 9, 1 << 20
    )
    if enough is not None and enough * epsilon / 8 < rest[0] + epsilon:
        ways.append(f"quorum_epsilon >= {enough * epsilon / 8:.3g}")
    raise Infeasible(
        name,
        f"a round of {smallest:,} users, with noise worth quorum_epsilon={epsilon:.3g}, does not tell a share of "
        f"{share:g} who answer from everybody or nobody in {rounds:,} rounds",
        " or ".join([*ways, "no quorum (`--quorum none`)"]),
    )


def verify(quorum: Quorum, epsilon: float, delta: float, cohorts: Sequence[int], *, participations: int) -> None:
    """quorum#q1 at the plan's own numbers, in exact fractions: VerificationError unless all of it is within (ε, δ)."""
    _check(quorum.share, quorum.epsilon, cohorts, quorum.participations)
    rounds, scales = len(cohorts), (quorum.threshold_scale, quorum.count_scale)
    slack = Fraction(total_variation(laplaces=quorum.draws(rounds))) * (1 + Fraction(math.exp(epsilon) * (1 + 1e-12)))
    for what, holds, got in (
        (f"participations >= {participations}", quorum.participations >= participations, quorum.participations),
        ("scales from 0 to 2**50", min(scales) >= 0 and max(scales) <= 2.0**50, quorum),
        (f"a cost of at most quorum.epsilon={quorum.epsilon}", quorum.cost <= _exact(quorum.epsilon), quorum.cost),
        (
            f"epsilon of algorithm and quorum <= {epsilon}",
            _exact(quorum.rest_epsilon) + _exact(quorum.epsilon) <= _exact(epsilon),
            (quorum.rest_epsilon, quorum.epsilon),
        ),
        (f"delta with the samplers <= {delta}", Fraction(quorum.rest_delta) + slack <= Fraction(delta), quorum),
    ):
        if not holds:
            raise VerificationError(f"Expected {what} in a quorum, got {got}.")


def chances(quorum: Quorum, cohorts: Sequence[int], present: Callable[[int], int] = int) -> tuple[float, float]:
    """Chance that a run with everybody present ends without a quorum, and that a round which nobody answers passes.

    Both rounded up, and for any round, after whatever went before: Ξ is integrated cell by cell, each at its worse end.
    """
    margins = Counter(present(size) - quorum.needed(size) for size in cohorts)
    needed = min(quorum.needed(size) for size in cohorts)
    ends, mass = _cells(quorum.threshold_scale)
    with np.errstate(divide="ignore"):
        log_passes = sum(
            times * np.log(_reaches(ends - margin, quorum.count_scale)) for margin, times in margins.items()
        )
    fails = -np.expm1(log_passes)  # grows with Ξ: at each cell's upper end
    passes = _reaches(ends + needed, quorum.count_scale)  # falls: at its lower end
    if quorum.threshold_scale:
        fails = np.append(fails, 1.0)
        passes = np.append(1.0, _reaches(ends + 1 + needed, quorum.count_scale))
    slack = (len(cohorts) + 1) * 2.0**-52  # of the sums; the samplers need next to nothing
    failing, passing = (min(1.0, float(mass @ worst) * (1 + 1e-9) + slack) for worst in (fails, passes))
    return failing, passing


def _scaled(share: float, epsilon: float, rounds: int, participations: int, rest: tuple[float, float]) -> Quorum:
    """The cheaper of two schemes: noise for the rounds of one user, or sparse vectors over all rounds."""
    if not epsilon:
        return Quorum(share, 0.0, participations, 0.0, 0.0, *rest)
    once, all_rounds = math.log(1 / (2 * BETA)), math.log(rounds / (2 * BETA))
    up = 1 + 1e-12
    alone = participations * all_rounds
    together = (math.sqrt(once) + math.sqrt(2 * all_rounds)) ** 2
    if alone <= together:
        return Quorum(share, epsilon, participations, 0.0, participations / epsilon * up, *rest)
    # Least s_Ξ · once + s_V · all_rounds with 1/s_Ξ + 2/s_V = ε_q.
    threshold = math.sqrt(together / once) / epsilon * up
    return Quorum(share, epsilon, participations, threshold, math.sqrt(2 * together / all_rounds) / epsilon * up, *rest)


def _reaches(levels: Integers, scale: float) -> Floats:
    """P(⌊L⌋ >= k) for L ~ Laplace(scale), k an integer; scale 0 is no noise."""
    if not scale:
        return np.where(levels <= 0, 1.0, 0.0)
    tail = 0.5 * np.exp(-np.abs(levels) / scale)
    return np.where(levels > 0, tail, 1 - tail)


def _cells(scale: float) -> tuple[Integers, Floats]:
    """Upper ends of the cells of Ξ, ascending, without the last one's, which is infinite; and every cell's chance.

    No cell but the first and the last is wider than a two-hundredth of the scale, or one. Without noise there is one.
    """
    if not scale:
        return np.zeros(1, np.int64), np.ones(1)
    reach = math.ceil(_REACH * scale)
    ends = np.unique(np.linspace(-reach, reach, _CELLS + 1).astype(np.int64))
    above = np.concatenate([[1.0], _reaches(ends + 1, scale), [0.0]])
    return ends, above[:-1] - above[1:]


def _first(holds: Callable[[int], bool], start: int, most: int = _LARGEST) -> int | None:
    """The least number from `start` on at which a condition that stays true becomes true; None beyond `most`."""
    high = start
    while not holds(high):
        high *= 2
        if high > most:
            return None
    low = max(start - 1, high // 2)
    while high > low + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _check(share: float, epsilon: float, cohorts: Sequence[int], participations: int) -> None:
    probability(share=share)
    if epsilon:
        positive(quorum_epsilon=epsilon)
    count(participations=participations)
    if not cohorts or min(cohorts) < 1 or len(cohorts) >= _MOST_DRAWS:
        raise ConfigError(f"Expected a quorum for 1 to {_MOST_DRAWS - 1:,} rounds that ask somebody, got {cohorts}.")


@lru_cache(maxsize=256)
def _exact(value: float) -> Fraction:
    """The decimal number as it is written."""
    return Fraction(repr(float(value)))

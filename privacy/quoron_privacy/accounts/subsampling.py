"""What T rounds on random samples cost together: on random cohorts of users, or a random share of every user's items.

    >>> round(wor_epsilon(0.01, 1000, 0.5, 1e-6), 2)
    0.83

* `wor_*`: uniform cohorts of fixed size, replace-one. Every round is μ-GDP given its cohort (subsampling#k1).
* `poisson_*`: every user joins independently, fixed divisor. Add/remove or zero-out: every round is μ-GDP (#k2);
  replace-one: a Gaussian release that one user's contribution moves by μ standard deviations at most (#k3).
* `epsilon`, `multiplier`, `profile`: every item joins independently and in secret, for all items of one user together.

`composition` has the sum over rounds. Statement and proof: docs/privacy/subsampling.md; of items:
docs/privacy/group-privacy.md#g2.
"""

import math
from functools import lru_cache, partial

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.special import ndtr

from quoron_privacy.accounts import composition, gdp
from quoron_privacy.errors import ConfigError, count, non_negative, positive, probability
from quoron_privacy.release import Adjacency

Vector = NDArray[np.float64]

_LOST = 1e-22  # chance of more chosen items than are resolved: those count as all m
_ROUNDING = 4e-15  # of the tails that a profile is the difference of


@lru_cache(maxsize=1024)
def wor_epsilon(rate: float, rounds: int, mu: float, delta: float) -> float:
    """ε at δ of `rounds` μ-GDP rounds, each on a fresh uniform cohort of a share `rate` of the users; replace-one.

    rate = 1 is exact: ε of √rounds·μ.
    """
    _check(rate, rounds, delta)
    non_negative(mu=mu)
    if rate == 1 or mu == 0:
        return gdp.epsilon_for(math.sqrt(rounds) * mu, delta)
    return composition.epsilon_for(partial(_wor, rate, rounds, mu, least=delta), delta)


@lru_cache(maxsize=1024)
def wor_round_mu(rate: float, rounds: int, epsilon: float, delta: float) -> float:
    """Return the largest per-round μ with `wor_epsilon(rate, rounds, μ, δ) ≤ ε`, to a relative 1e-5, rounded down."""
    _check(rate, rounds, delta)
    positive(epsilon=epsilon)
    full = gdp.mu_for(epsilon, delta) / math.sqrt(rounds)
    if rate == 1:
        return full * (1 - 1e-15)
    return composition.largest(lambda mu: _wor(rate, rounds, mu, epsilon, least=delta), _typical(rate, full), delta)


@lru_cache(maxsize=1024)
def poisson_epsilon(rate: float, rounds: int, mu: float, delta: float, adjacency: Adjacency = "zero-out") -> float:
    """Return ε at δ of `rounds` rounds that each user joins with probability `rate`; zero-out is add/remove, too.

    μ is the round's parameter when one user's contribution is present against absent, under either adjacency.
    """
    _check(rate, rounds, delta)
    non_negative(mu=mu)
    if rate == 1 or mu == 0:
        return gdp.epsilon_for(math.sqrt(rounds) * _ends(adjacency) * mu, delta)
    return composition.epsilon_for(partial(_poisson, rate, rounds, mu, adjacency, least=delta), delta)


@lru_cache(maxsize=1024)
def poisson_round_mu(
    rate: float, rounds: int, epsilon: float, delta: float, adjacency: Adjacency = "zero-out"
) -> float:
    """Return the largest per-round μ with `poisson_epsilon(…, μ, δ, adjacency) ≤ ε`, to 1e-5 of it, rounded down."""
    _check(rate, rounds, delta)
    positive(epsilon=epsilon)
    full = gdp.mu_for(epsilon, delta) / math.sqrt(rounds) / _ends(adjacency)
    if rate == 1:
        return full * (1 - 1e-15)

    def cost(mu: float) -> float:
        return _poisson(rate, rounds, mu, adjacency, epsilon, least=delta)

    return composition.largest(cost, _typical(rate, full), delta)


def wor_profile(rate: float, mu: float, epsilon: Vector) -> Vector:
    """Return δ at each ε (any sign) of one μ-GDP round on a uniform cohort of a share `rate` < 1; replace-one."""
    size = np.abs(epsilon)
    inside: Vector = rate * np.asarray(gdp.delta_for(mu, np.log1p(np.expm1(size) / rate)))
    # Replace-one is symmetric, so the profile below ε = 0 is the mirror of the one above.
    return np.minimum(np.where(epsilon < 0, np.exp(-size) * inside - np.expm1(-size), inside), 1.0)


def absent_profile(rate: float, mu: float, epsilon: Vector) -> Vector:
    """Return δ at each ε >= 0 of (N(0, 1), (1-q) N(0, 1) + q N(μ, 1)); first order: `wor_profile` (subsampling#k2)."""
    excess = np.expm1(epsilon)
    share = rate - (1 - rate) * excess  # 1 - α (1 - q): beyond its zero nothing is left
    inside = np.where(share > 0, share, 1.0)
    with np.errstate(over="ignore"):
        found = inside * np.asarray(gdp.delta_for(mu, np.log1p(excess / inside)))
    most: Vector = np.where(share > 0, found, 0.0)
    return most


def replaced_profile(rate: float, mu: float, epsilon: Vector) -> Vector:
    """Return δ at each ε >= 0 of ((1-q) N(0, 1) + q N(μ, 1), (1-q) N(0, 1) + q N(-μ, 1)), its own mirror (#k3).

    Where the likelihood ratio is e^ε, y = e^{μx} solves q' y² - (e^ε - 1)(1 - q) y - e^ε q' = 0, q' = q e^{-μ²/2}.
    """
    excess = np.expm1(epsilon)
    half = excess * (1 - rate) / 2
    logs = math.log(rate) - mu * mu / 2  # of q'
    # y = (h + √(h² + α q'²)) / q', as logarithms: q' may underflow
    with np.errstate(divide="ignore"):
        root = np.logaddexp(2 * np.log(half), epsilon + 2 * logs) / 2
        x = (np.logaddexp(np.log(half), root) - logs) / mu
    tails = scipy.special.ndtr(mu - x), scipy.special.ndtr(-x), scipy.special.ndtr(-mu - x)
    off = np.exp(np.minimum(epsilon + np.log(np.maximum(tails[2], 1e-320)), 0.0))  # e^ε Φ(-μ - x), without overflow
    gain = rate * (tails[0] - off) - (1 - rate) * excess * tails[1]
    # Any x gives no more than the truth; the terms' own rounding is some units in the last place, and of the tails
    # a share that grows with x² (erfc).
    terms = rate * (tails[0] + off) + (1 - rate) * excess * tails[1]
    rounding = (4e-15 + 1e-15 * np.minimum(x * x, 1500.0)) * terms
    most: Vector = np.minimum(np.maximum(gain, 0.0) + rounding + 1e-300, 1.0)
    return most


def _check(rate: float, rounds: int, delta: float) -> None:
    probability(delta=delta)
    count(rounds=rounds)
    if not 0 < rate <= 1:
        raise ConfigError(f"Expected rate in (0, 1], got rate={rate}.")


def _ends(adjacency: Adjacency) -> int:
    return 2 if adjacency == "replace-one" else 1


def _wor(rate: float, rounds: int, mu: float, epsilon: float, *, least: float) -> float:
    """δ of the composition. One order suffices: the pair of a round is its own mirror."""
    profile = partial(wor_profile, rate, mu)
    return composition.delta(profile, profile, rounds, epsilon, least=least)


def _poisson(rate: float, rounds: int, mu: float, adjacency: Adjacency, epsilon: float, *, least: float) -> float:
    """δ of the composition, the worse of both orders."""
    if adjacency == "replace-one":
        profile = partial(replaced_profile, rate, mu)
        return composition.delta(profile, profile, rounds, epsilon, least=least)
    present, absent = partial(wor_profile, rate, mu), partial(absent_profile, rate, mu)
    return max(
        composition.delta(present, absent, rounds, epsilon, least=least),
        composition.delta(absent, present, rounds, epsilon, least=least),
    )


def _typical(rate: float, mu: float) -> float:
    """A guess at the μ of a round on a sample that is worth about `mu` without one: e^{μ²} - 1 = (mu / q)²."""
    return math.sqrt(math.log1p((mu / rate) ** 2))


@lru_cache(maxsize=256)
def epsilon(rate: float, items: int, rounds: int, z: float, delta: float, adjacency: Adjacency) -> float:
    """Return ε at δ of `rounds` rounds with noise z in units of one item's clip; `items` is m, `rate` is q.

    rate = 1 is exact: ε of √rounds · m/z, twice that for replace-one.
    """
    _check_items(rate, items, rounds, delta, adjacency)
    positive(z=z)
    if rate == 1:
        return gdp.epsilon_for(math.sqrt(rounds) * _ends(adjacency) * items / z, delta)
    return composition.epsilon_for(lambda at: _delta(rate, items, rounds, z, at, delta, adjacency), delta)


@lru_cache(maxsize=256)
def multiplier(rate: float, items: int, rounds: int, epsilon: float, delta: float, adjacency: Adjacency) -> float:
    """Return the least z with `epsilon(rate, items, rounds, z, δ) ≤ ε`, to a relative 1e-5, rounded up.

    >>> round(multiplier(0.01, 50, 100, 1.0, 1e-6, "zero-out"), 2)
    21.34
    >>> round(multiplier(0.01, 50, 100, 1.0, 1e-6, "replace-one"), 2)
    42.25
    """
    _check_items(rate, items, rounds, delta, adjacency)
    positive(epsilon=epsilon)
    mu = gdp.mu_for(epsilon, delta)
    if rate == 1:
        return math.sqrt(rounds) * _ends(adjacency) * items / mu * (1 + 1e-15)

    def cost(inverse: float) -> float:
        return _delta(rate, items, rounds, 1 / inverse, epsilon, delta, adjacency)

    return 1 / composition.largest(cost, 1 / ranking_multiplier(rate, items, rounds, mu, adjacency), delta)


def ranking_mu(rate: float, items: int, rounds: int, z: float, adjacency: Adjacency) -> float:
    """Return μ of all rounds by the central limit, from the second moment of a round's loss: for ranking plans only."""
    chances, shifts = _shifts(rate, items)
    growth = np.expm1(np.minimum(np.outer(shifts, shifts) / z**2, 500.0))
    square = float(chances @ growth @ chances)
    if adjacency == "replace-one":
        square = 2 * square - 2 * float(chances @ np.expm1(-np.outer(shifts, shifts) / z**2) @ chances)
    return math.sqrt(rounds * square)


def ranking_multiplier(rate: float, items: int, rounds: int, mu: float, adjacency: Adjacency) -> float:
    """Return the z at which `ranking_mu` is `mu`: ranks plans only."""
    logs = np.linspace(math.log(1e-2), math.log(10.0 * items * math.sqrt(rounds) / mu), 60)
    found = [math.log(max(ranking_mu(rate, items, rounds, math.exp(log), adjacency), 1e-300)) for log in logs]
    return math.exp(float(np.interp(-math.log(mu), -np.array(found), logs)))


def profile(
    rate: float, items: int, z: float, adjacency: Adjacency, epsilons: Vector, *, own_left: bool = True
) -> Vector:
    """Return δ at each ε (any sign) of a round, shape (k,): the mixture on the own items against that of `adjacency`.

    Without `own_left` the other way round. Replace-one is its own mirror.

    A round releases the sum of vectors of norm at most 1, one for each item chosen, plus N(0, z² I). The number j of
    chosen own items is Bin(m, q) and secret, so a round is at most as telling as

        zero-out     Σ_j Bin(m, q)(j) N(j, z²)  against  N(0, z²),
        replace-one  Σ_j Bin(m, q)(j) N(j, z²)  against  Σ_j Bin(m, q)(j) N(-j, z²).
    """
    chances, shifts = _shifts(rate, items)
    other = _other(shifts, adjacency)
    with np.errstate(over="ignore"):
        if own_left:  # the loss grows with x: the own side is the likelier one above the crossing
            at = _crossing(rate, items, z, adjacency, epsilons)[:, None]
            left, right = ndtr((shifts - at) / z) @ chances, ndtr((other - at) / z) @ chances
        else:
            at = _crossing(rate, items, z, adjacency, -epsilons)[:, None]
            left, right = ndtr((at - other) / z) @ chances, ndtr((at - shifts) / z) @ chances
        # e^700 in place of more takes less off: a larger δ, and no infinity times zero.
        right = np.exp(np.minimum(epsilons, 700.0)) * right
        found: Vector = np.clip(left - right + _ROUNDING * (left + right), 0.0, 1.0)
    # No δ is below 1 - e^ε, and rounding may make none grow with ε.
    least = np.maximum(found, -np.expm1(np.minimum(epsilons, 0.0)))
    order = np.argsort(-epsilons, kind="stable")
    least[order] = np.maximum.accumulate(least[order])
    return least


def _check_items(rate: float, items: int, rounds: int, delta: float, adjacency: Adjacency) -> None:
    probability(delta=delta)
    count(items=items, rounds=rounds)
    if not 0 < rate <= 1:
        raise ConfigError(f"Expected rate in (0, 1], got rate={rate}.")
    if adjacency not in ("zero-out", "replace-one"):
        raise ConfigError(f"Expected adjacency zero-out or replace-one, got adjacency={adjacency!r}.")


def _ways(adjacency: Adjacency) -> tuple[bool, ...]:
    """Whether the own items are on the left: both orders, unless one is the mirror of the other."""
    return (True,) if adjacency == "replace-one" else (True, False)


@lru_cache(maxsize=16)
def _shifts(rate: float, items: int) -> tuple[Vector, Vector]:
    """Chances of j chosen items, and j; what is beyond all likelihood counts as all of them, which is worse."""
    most = min(items, int(scipy.stats.binom.isf(_LOST, items, rate)) + 1)
    shifts = np.arange(most + 1, dtype=np.float64)
    chances = scipy.stats.binom.pmf(shifts, items, rate)
    if most < items:
        lost = float(scipy.stats.binom.sf(most, items, rate))
        shifts, chances = np.append(shifts, float(items)), np.append(chances, lost)
    return chances, shifts


def _loss(chances: Vector, shifts: Vector, other: Vector, z: float, x: Vector) -> tuple[Vector, Vector]:
    """ln of the likelihood ratio at x, and its slope: positive, as the left side lies to the right everywhere."""
    with np.errstate(divide="ignore"):
        weights = np.log(chances)

    def log_sum(means: Vector) -> tuple[Vector, Vector]:
        exponents = weights + (x[:, None] - means / 2) * means / z**2
        top = exponents.max(axis=1)
        terms = np.exp(exponents - top[:, None])
        total = terms.sum(axis=1)
        return top + np.log(total), terms @ means / total / z**2

    (left, left_slope), (right, right_slope) = log_sum(shifts), log_sum(other)
    return left - right, left_slope - right_slope


def _other(shifts: Vector, adjacency: Adjacency) -> Vector:
    """Where the other law's components lie."""
    return 0.0 * shifts if adjacency == "zero-out" else -shifts


@lru_cache(maxsize=4)
def _table(rate: float, items: int, z: float, adjacency: Adjacency) -> tuple[Vector, Vector]:
    """Points on the line and the losses there; to be read only."""
    chances, shifts = _shifts(rate, items)
    reach = float(shifts[-1]) + 40 * z
    points = np.linspace(-reach, reach, 8001)
    return points, _loss(chances, shifts, _other(shifts, adjacency), z, points)[0]


def _crossing(rate: float, items: int, z: float, adjacency: Adjacency, epsilons: Vector) -> Vector:
    """Where the loss is ε, from a table and a step of Newton's; ∓∞ where it never is that small or large.

    The profile is largest there: what is wrong by a share r of z is wrong by r² in δ, and this is below 1e-8.
    """
    chances, shifts = _shifts(rate, items)
    points, losses = _table(rate, items, z, adjacency)
    guess = np.interp(epsilons, losses, points)
    at, slope = _loss(chances, shifts, _other(shifts, adjacency), z, guess)
    most = 2 * (points[1] - points[0])
    found = guess + np.clip((epsilons - at) / np.maximum(slope, 1e-300), -most, most)
    found = np.where(epsilons <= losses[0], -np.inf, found)
    return np.where(epsilons >= losses[-1], np.inf, found)


def _delta(rate: float, items: int, rounds: int, z: float, epsilon: float, least: float, adjacency: Adjacency) -> float:
    """δ of the composition at ε, the worst of the orders that there are."""
    return max(_one_way(rate, items, rounds, z, epsilon, least, adjacency, way) for way in _ways(adjacency))


def _one_way(
    rate: float, items: int, rounds: int, z: float, epsilon: float, least: float, adjacency: Adjacency, own_left: bool
) -> float:
    forward = partial(profile, rate, items, z, adjacency, own_left=own_left)
    mirrored = adjacency == "replace-one"
    backward = forward if mirrored else partial(profile, rate, items, z, adjacency, own_left=not own_left)
    return composition.delta(forward, backward, rounds, epsilon, least=least)

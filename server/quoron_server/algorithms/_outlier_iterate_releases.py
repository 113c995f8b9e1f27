"""The release of a phase that may lose some of its chains: a one-shot calibration whose test is lowered for it.

A calibration at full concentration passes with its chance at S = C² only. Lowering core and threshold together by s
moves every rung down by s·C: the same test passes with the same chance at S = C² - s·C, the aggregate's bound grows,
and the noise with it. What is certified in the end is the lowered release itself.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from quoron_protos.errors import Infeasible, VerificationError
from quoron_server.accounting import laplace_test, lottery
from quoron_server.accounting.laplace_test import LaplaceOneShot
from quoron_server.accounting.lottery import OneShot
from quoron_server.accounting.outlier_mean import Kappa, Kind, OutlierMean, best_mean

Test = Literal["lottery", "laplace"]
OneRelease = OneShot | LaplaceOneShot

STRAYING = 0.02  # of honest pairs, that may lie farther apart than τ without the test noticing
LARGEST_NOISE = 1e3  # in units of τ; beyond, a release says nothing


@dataclass(frozen=True, slots=True)
class Wish:
    """What a phase's release has to be: (ε, δ) after slack, and its form."""

    epsilon: float
    delta: float
    test: Test
    kind: Kind
    kappa: Kappa | None


def honest_chains(chains: int, lost: float) -> int:
    """Chains that are counted on when each is lost with this chance: three standard deviations below the mean."""
    return chains - math.ceil(chains * lost + 3 * math.sqrt(chains * lost * (1 - lost)))


def expected_score(chains: int, lost: float) -> int:
    """S that a phase reaches when chains are lost with this chance and STRAYING of the honest pairs are not close."""
    return math.floor((1 - STRAYING) * max(0, honest_chains(chains, lost)) ** 2)


def noise(wish: Wish, chains: int, score: int) -> float:
    """σ/τ of a release that passes at `score`, about; inf where there is none."""
    proposed = _proposed(wish, chains)
    if proposed is None:
        return math.inf
    full, multiplier = proposed
    mean = _lowered(wish, full, score)
    return math.inf if mean is None else multiplier * _growth(full, mean)


def release(wish: Wish, chains: int, score: int) -> OneRelease:
    """The release, certified. Raises Infeasible where there is none."""
    calibrate = lottery.calibrate if wish.test == "lottery" else laplace_test.calibrate
    base = calibrate(wish.epsilon, wish.delta, chains, kappa=wish.kappa, kind=wish.kind)
    mean = _lowered(wish, base.mean, score)
    if mean is not None:
        multiplier = base.noise_multiplier * _growth(base.mean, mean)
        while multiplier < LARGEST_NOISE:
            plan = _with(base, mean, multiplier)
            try:
                certify(plan, wish.epsilon, wish.delta)
            except VerificationError:
                multiplier *= 1.01  # random inclusion: flips do not scale with the shift
            else:
                return plan
    raise Infeasible("outlier-iterates", f"{chains:,} chains are too few", "more chains")


def certify(plan: OneRelease, epsilon: float, delta: float) -> float:
    """δ that the theorem of the plan's test certifies. Raises VerificationError above `delta`."""
    if isinstance(plan, OneShot):
        return lottery.verify_one_shot(plan, epsilon, delta)
    return laplace_test.verify_laplace_test(plan, epsilon, delta)


@lru_cache(maxsize=256)
def smallest(wish: Wish, lost: float) -> int:
    """C_min: the least number of chains with a release when chains are lost with this chance, however noisy."""
    low, high = 3, 4

    def feasible(chains: int) -> bool:
        return noise(wish, chains, expected_score(chains, lost)) < LARGEST_NOISE

    while not feasible(high):
        low, high = high, 2 * high
        if high > 2**19:
            return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return high


@lru_cache(maxsize=1024)
def _proposed(wish: Wish, chains: int) -> tuple[OutlierMean, float] | None:
    """(aggregate, about the noise) at full concentration."""
    if wish.test == "lottery":
        return lottery.estimate(wish.epsilon, wish.delta, chains, kappa=wish.kappa, kind=wish.kind)
    try:
        plan = laplace_test.calibrate(wish.epsilon, wish.delta, chains, kappa=wish.kappa, kind=wish.kind)
    except Infeasible:
        return None
    return plan.mean, plan.noise_multiplier


def _lowered(wish: Wish, full: OutlierMean, score: int) -> OutlierMean | None:
    """The aggregate when core and threshold are lowered for a test that passes at `score` as it did at C²."""
    chains = full.cohort_size
    core = full.core - -(-(chains**2 - score) // chains)
    return best_mean(chains, core, wish.kappa, wish.kind) if core > chains // 2 else None


def _growth(full: OutlierMean, lowered: OutlierMean) -> float:
    """By how much noise grows with the usual shift."""
    usual = [float(np.asarray(mean.shifts) @ np.asarray(mean.chances)) for mean in (full, lowered)]
    return usual[1] / usual[0] * (1 + 1e-9)


def _with(base: OneRelease, mean: OutlierMean, multiplier: float) -> OneRelease:
    """`base` lowered to the core of `mean`, with this noise."""
    if isinstance(base, OneShot):
        return OneShot(mean, lottery.Lottery(mean.cohort_size, mean.core, base.lottery.table), multiplier)
    drop = base.mean.core - mean.core
    test = laplace_test.LaplaceTest(mean.cohort_size, mean.core, base.test.scale, base.test.threshold - drop)
    return LaplaceOneShot(mean, test, multiplier)

"""About how much noise the tests of `accelerated-erm` need, for many cohorts at once; ranks plans, never sets noise."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.robust.lottery import core_for
from quoron_privacy.robust.outlier_mean import Kappa, Kind, best_mean, ramp_floor, weighted_shifts
from quoron_server.algorithms.averaged_sgd import ranking_mu

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]

LADDERS = ((11.0, 1.3), (14.0, 1.1), (25.0, 1.0))  # rungs over γ√T/μ, and the noise over that of their middle's shift
TAIL = 0.03  # of δ, for each tail of a noisy threshold
COSTS = (0.15, 0.3, 0.5)  # of ε, for its tests


def removing(kappa: Kappa | None, kind: Kind, hostile_share: float) -> Kappa | None:
    """κ as asked; else 1 with declared adversarial users, as it removes from τ on; else None: the one of less noise."""
    return 1 if kappa is None and kind == "weighted" and hostile_share > 0 else kappa


def lottery_noise(
    epsilon: float,
    delta: float,
    cohorts: Integers,
    rates: Sequence[float],
    often: Sequence[int],
    kappa: Kappa | None,
    kind: Kind,
    forgiven: Integers,
) -> Vector:
    """σ/τ of `subsampled_lottery.calibrate` for each cohort: within a fifth, but for small random cohorts a half."""
    total = mu_for(epsilon, delta)
    steepness = np.array(rates) * np.sqrt(often) / total
    each = np.array([ranking_mu(rate, count, total) for rate, count in zip(rates, often, strict=True)])
    found = np.full(len(cohorts), np.inf)
    for rungs, more in LADDERS:
        ladders = np.maximum(12, np.ceil(rungs * steepness)).astype(np.int64)
        shifts = _usual_shifts(cohorts, core_for(cohorts, ladders) - forgiven, forgiven, kappa, kind)
        found = np.minimum(found, more * shifts / each)
    return found


def _usual_shifts(cohorts: Integers, cores: Integers, forgiven: Integers, kappa: Kappa | None, kind: Kind) -> Vector:
    """The mean shift of the aggregate halfway up the ladder for each cohort and core; inf where there is none."""
    halfway = (cores + cohorts - forgiven) // 2
    if kind == "weighted":
        return np.where(cores >= ramp_floor(cohorts) + (kappa or 1), weighted_shifts(cohorts, halfway, kappa), np.inf)
    found = np.full(len(cohorts), np.inf)
    for place, (size, core, usual) in enumerate(zip(cohorts.tolist(), cores.tolist(), halfway.tolist(), strict=True)):
        if (mean := best_mean(size, core, kappa, kind)) is not None:
            shifts, chances = mean.shifts_at(np.array([size * usual]))
            found[place] = shifts[0] @ chances[0]
    return found


def threshold_noise(
    epsilon: float,
    delta: float,
    cohorts: Integers,
    rounds: Integers,
    often: Integers,
    kappa: Kappa | None,
    forgiven: Integers,
) -> Vector:
    """σ/τ of `above_threshold.calibrate` for each cohort, within about a fifth."""
    first, others = math.log(0.5 / (TAIL * delta)), np.log(0.5 * often / (TAIL * delta))
    width = math.sqrt(first + 7) + np.sqrt(2 * (others + np.log(rounds) + 7))
    found = np.full(len(cohorts), np.inf)
    for share in COSTS:
        cores = np.floor(cohorts - 2 - forgiven - 2 * width**2 / (share * epsilon)).astype(np.int64)
        each = mu_for((1 - share) * epsilon, 0.9 * delta) / np.sqrt(often)
        found = np.minimum(found, weighted_shifts(cohorts, cores, kappa) / each)
    return found

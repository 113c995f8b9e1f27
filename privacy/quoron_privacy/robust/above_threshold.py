"""A series of outlier means behind one noisy threshold, on a public schedule; ends for good at the first failure.

    >>> plan = calibrate(1.0, 1e-6, 10_000, releases=200)
    >>> verify_above_threshold(plan, 1.0, 1e-6) <= 1e-6
    True

One Laplace draw shifts the threshold of the whole series, a fresh one each score; while they pass, aggregates with
Gaussian noise are released. What the tests cost does not grow with their number, so from some thousand releases with
everybody in them (or shuffled epochs) this beats the lottery. There is no amplification by sampling here: batches are
fixed in advance, and `combinations` refuses anything else.

All is decided in integers of the score S: the threshold is C · θ rounded up, plus one for the grid, plus one secret
draw for the whole series.

Source: Lowy, Liu & Asi (2024), Algorithm 2, without its amplification, whose proof fails. Statement, proof and symbols:
docs/privacy/subsampled-lottery.md#o6.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
import scipy
from scipy.special import ndtr

from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.errors import Infeasible, VerificationError, count, positive, probability
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.release import Release
from quoron_privacy.robust.lottery import RELEASE
from quoron_privacy.robust.outlier_mean import (
    Kappa,
    OutlierMean,
    in_score_units,
    ramp_floor,
    recounted_step,
    require_exact,
    score_scale,
    score_step,
    verify_outlier_mean,
    weighted_mean,
)

_AIM = 1 - 1e-6


@dataclass(frozen=True, slots=True)
class AboveThreshold:
    """Pass iff S_t/C + Laplace(score_scale) >= threshold + Laplace(threshold_scale); after one failure, never again.

    Formal guarantee: (ε, δ) with subsampled-lottery#o6's numbers for users in at most r cohorts of a public schedule,
    up to `noise.LAPLACE_SLACK` in total variation for each decision and for the threshold.
    """

    cohort_size: int  # C
    threshold: float  # θ, of the average count S / C
    threshold_scale: float  # b_ξ
    score_scale: float  # b_v

    def __post_init__(self) -> None:
        count(cohort_size=self.cohort_size)
        positive(threshold=self.threshold, threshold_scale=self.threshold_scale, score_scale=self.score_scale)
        for scale in (self.threshold_scale, self.score_scale):
            score_scale(scale, self.cohort_size)

    def draw_limit(self, stream: RandomStream) -> int:
        """Return the phase's noisy threshold. Draw it once a phase and keep it secret."""
        noise = int(stream.laplace_steps(score_scale(self.threshold_scale, self.cohort_size), 1)[0])
        return in_score_units(self.threshold, self.cohort_size) + 1 + noise

    def decide(self, score: int, limit: int | None, stream: RandomStream) -> int | None:
        """`limit` again if a cohort of score S passes; None, which stays None, if it or an earlier one did not."""
        noise = stream.laplace_steps(score_scale(self.score_scale, self.cohort_size), 1)
        return limit if limit is not None and score + int(noise[0]) >= limit else None

    def entry(self) -> Release:
        """Return the ledger entry of one decision, whichever way it went."""
        scales = {"threshold_scale": self.threshold_scale, "score_scale": self.score_scale}
        return Release("above-threshold", {"cohort_size": self.cohort_size, "threshold": self.threshold, **scales})


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers of a series of releases, fixed before it starts. Made by `calibrate`, checked by
    `verify_above_threshold`."""

    mean: OutlierMean  # on batches of K; the weighted mean
    releases: int  # T
    participations: int  # r: batches that any one user is in, at most
    threshold_scale: float  # b_ξ
    score_scale: float  # b_v
    threshold_margin: float  # m_1
    score_margin: float  # m_2
    noise_multiplier: float  # σ/τ, per coordinate

    @property
    def threshold(self) -> float:
        """θ = k + ds + m_1 + m_2, compared with S/K."""
        size = self.mean.cohort_size
        return (self.mean.core + score_step(size) / size + self.threshold_margin + self.score_margin) * (1 + 1e-13)

    @property
    def test(self) -> AboveThreshold:
        """What decides every step."""
        return AboveThreshold(self.mean.cohort_size, self.threshold, self.threshold_scale, self.score_scale)


def calibrate(
    epsilon: float,
    delta: float,
    cohort_size: int,
    *,
    releases: int,
    participations: int | None = None,
    kappa: Kappa | None = None,
) -> Series:
    """Return the least noise found; the series passes with chance RELEASE if all answers of each batch lie within τ.

    participations=None: everybody may be in every batch. Raises Infeasible naming the smallest batch that would do.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)
    often = releases if participations is None else participations
    count(cohort_size=cohort_size, releases=releases, participations=often)
    plan = _calibrate(epsilon, delta, cohort_size, releases, min(often, releases), kappa)
    if plan is None:
        least = max(smallest_cohort(epsilon, delta, releases, participations=often), cohort_size + 1)
        why = f"for {releases} releases at epsilon={epsilon:g}, delta={delta:g}"
        raise Infeasible.small_cohort("above threshold (subsampled-lottery#o6)", cohort_size, why, least, 2 * least)
    return plan


@lru_cache(maxsize=64)
def smallest_cohort(epsilon: float, delta: float, releases: int, *, participations: int | None = None) -> int:
    """Return the least batch for which `calibrate` finds a plan. Useful noise needs two to three times that."""
    often = releases if participations is None else min(participations, releases)
    size = least_number(lambda n: _calibrate(epsilon, delta, n, releases, often, None) is not None, 4, low=2)
    assert size is not None
    return size


def verify_above_threshold(plan: Series, epsilon: float, delta: float) -> float:
    """δ that subsampled-lottery#o6 certifies at ε, its Gaussian term integrated from densities; at most `delta`. Raises
    VerificationError."""
    positive(
        epsilon=epsilon,
        noise_multiplier=plan.noise_multiplier,
        threshold_scale=plan.threshold_scale,
        score_scale=plan.score_scale,
    )
    probability(delta=delta)
    verify_outlier_mean(plan.mean)
    size = plan.mean.cohort_size
    sound = plan.mean.kind == "weighted" and 1 <= plan.participations <= plan.releases
    if not (sound and plan.threshold_margin >= 0 and plan.score_margin >= 0):
        raise VerificationError(f"Expected a weighted mean, 1 <= participations <= releases and margins >= 0: {plan}.")
    step, test = recounted_step(size) / size, plan.test
    least = Fraction(plan.mean.core) + Fraction(step) + Fraction(plan.threshold_margin) + Fraction(plan.score_margin)
    scales = test.threshold_scale >= plan.threshold_scale and test.score_scale >= plan.score_scale
    if not (test.threshold >= least and test.cohort_size == size and scales):
        raise VerificationError(f"Expected a test with threshold >= {float(least)} and the noise planned, got {test}.")
    for scale in (plan.threshold_scale, plan.score_scale):
        require_exact(test.threshold, scale, size)
    left = epsilon - step / plan.threshold_scale - 2 * step / plan.score_scale
    mu = math.sqrt(plan.participations) * max(plan.mean.shifts) / plan.noise_multiplier
    # H_{e^left} = ∫_{z > cut} φ(z − μ) − e^left φ(z) dz, the integrand rearranged to stay positive.
    cut = left / mu + mu / 2
    height, _ = scipy.integrate.quad(
        lambda z: -math.expm1(left - mu * z + mu * mu / 2) * math.exp(-0.5 * (z - mu) ** 2), cut, cut + 12 + mu,
        epsabs=0.0, epsrel=1e-10, limit=500,
    )  # fmt: skip
    gaussian = float(height) / math.sqrt(2 * math.pi) + float(ndtr(-(cut + 12)))
    certified: float = gaussian * math.exp(2 * step / plan.score_scale) * (1 + 1e-9)
    certified += 0.5 * math.exp(-plan.threshold_margin / plan.threshold_scale)
    certified += 0.5 * plan.participations * math.exp(-plan.score_margin / plan.score_scale)
    if not certified <= delta:
        raise VerificationError(f"Expected a certified delta <= {delta:g} at epsilon={epsilon:g}, got {certified:.6g}.")
    return certified


@lru_cache(maxsize=4096)
def _calibrate(
    epsilon: float, delta: float, size: int, releases: int, often: int, kappa: Kappa | None
) -> Series | None:
    step, aim = score_step(size) / size, delta * _AIM
    # The series ends early by bad luck with the threshold or with any of T scores: half of 1 − RELEASE each.
    unlucky = math.log(1 / (1 - RELEASE)), math.log(releases / (1 - RELEASE))
    best: Series | None = None
    for share in (0.003, 0.01, 0.03, 0.1, 0.3):  # of δ, for each of the two tails
        tail = share * aim
        margins = math.log(0.5 / tail), math.log(0.5 * often / tail)
        weights = math.sqrt(max(margins[0], 0.0) + unlucky[0]), math.sqrt(2 * (max(margins[1], 0.0) + unlucky[1]))
        for cost in np.linspace(0.04, 0.96, 47) * epsilon:
            # Least b_ξ·weights_0² + b_v·weights_1²/2 with ds/b_ξ + 2ds/b_v = cost.
            scales = step / cost * sum(weights) / weights[0], 2 * step / cost * sum(weights) / weights[1]
            core = math.floor(size - step - step / cost * sum(weights) ** 2)
            if core <= ramp_floor(size):
                continue
            main = (aim - 2 * tail) * math.exp(-2 * step / scales[1])
            mu = gdp.mu_for(float(epsilon - cost), main) / math.sqrt(often) * (1 - 1e-12)
            means = [
                weighted_mean(size, core, k) for k in (1, 2) if kappa in (None, k) and core >= ramp_floor(size) + k
            ]
            for mean in means:
                noise = mean.sensitivity / mu
                if best is None or noise < best.noise_multiplier:
                    wide, narrow = float(scales[0]), float(scales[1])
                    best = Series(mean, releases, often, wide, narrow, margins[0] * wide, margins[1] * narrow, noise)
    return best

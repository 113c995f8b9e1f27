"""What a pair of worlds may cost: the charges of a plan, in its own theorem's terms."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from contracts.worlds import Complaint, Spent
from quoron_privacy.accounts import gdp
from quoron_privacy.histograms.min_cohort import MinCohort
from quoron_privacy.robust.coordinate_median import MedianParameters
from quoron_privacy.robust.filter.outlier_filter import FilterParameters
from quoron_privacy.robust.laplace_gate import LaplaceOneShot
from quoron_privacy.robust.smooth_test import OneShot, SmoothTest
from quoron_privacy.robust.subsampled_test import SubsampledTest
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.printed.bassily_sun import RangeReports, VectorReports
from quoron_server.algorithms.printed.lowy_erm import AboveThreshold
from quoron_server.parameters import PrintedParameters
from quoron_server.plan import RunPlan
from quoron_server.schedule import PlannedRelease

ROUNDING = 1 + 1e-11  # of plans, which are re-checked to 1e-12; grids and sums are in what a plan charges


def require_charged(plan: RunPlan, spent: Sequence[Spent]) -> None:
    """Raises Complaint where a pair costs more than the plan's theorem has been given."""
    for name, cost, limit in charges(plan, spent):
        if not cost <= limit * ROUNDING:
            raise Complaint(f"{name}: the worlds are mu={cost:.9g} apart, the plan charges {limit:.9g}")


def charges(plan: RunPlan, spent: Sequence[Spent]) -> Iterator[tuple[str, float, float]]:
    """(what, what it cost, what the plan charges), both as μ: of each round that released something, and of the run.

    Of the run where a user is asked once: all rounds together cost what the round of that question is charged.
    """
    planned = plan.releases()
    found: list[tuple[float, float]] = []
    for round_ in sorted({each.round for each in spent}):
        here = [each for each in spent if each.round == round_]
        limits = [_limit(each, here) for each in planned if round_ in each.rounds]
        if not limits:
            raise Complaint(f"round {round_}: the plan of {plan.algorithm} releases nothing there")
        found.append((math.sqrt(math.fsum(each.square for each in here)), max(limits)))
        yield f"round {round_}", *found[-1]
    if not found:
        return
    info = ALGORITHMS[plan.algorithm]
    printed = isinstance(plan.parameters, PrintedParameters)  # of which each release is charged, and no whole run
    pairs = () if printed else info.guarantees.pairs(plan.parameters, plan.problem, plan.guarantee.adjacency)
    whole = pairs[0] if len(pairs) == 1 and pairs[0].is_gaussian else None
    if whole is not None and info.policy.many_passes:
        named = getattr(plan.parameters, "mu", math.inf)  # which `verify` compares with that of the scales
        yield "whole run", math.hypot(*(cost for cost, _ in found)), min(whole.mu, named)
    if not info.policy.many_passes:
        yield "run", math.hypot(*(cost for cost, _ in found)), max(limit for _, limit in found)


def _limit(release: PlannedRelease, spent: Sequence[Spent]) -> float:
    """What everything that one answer goes into is charged; where a theorem pays with (ε, δ), its own bound."""
    if release.mu is not None:
        return release.mu
    of = LIMITS.get(type(release.mechanism))
    if of is None:
        raise Complaint(f"replay does not know what {type(release.mechanism).__name__} charges")
    return of(release.mechanism, spent)


def mean_of(plan: RunPlan, round_: int) -> Any:
    """The outlier mean that a round's answers go into."""
    return next(
        each.mechanism.mean
        for each in plan.releases()
        if round_ in each.rounds and isinstance(each.mechanism, OUTLIER_MEANS)
    )


def _outlier_mean(release: Any, spent: Sequence[Spent]) -> float:
    """The shift after so many flips, behind a smooth test that of the larger score's level; `spent` is one release."""
    (one,) = spent
    shifts = release.mean.shifts
    if isinstance(release, OneShot | SubsampledTest):
        shifts = release.mean.shifts_at(release.test.scores[[one.level]])
    return float(shifts[min(one.flips, len(shifts) - 1)] / release.noise_multiplier)


def _outlier_filter(f: FilterParameters, spent: Sequence[Spent]) -> float:
    """ρ_A(ν)/s or ρ_B(ν)/s of outlier-filter#f1, replace-one; `spent` is one release."""
    ((kept, kept_too, noise),) = [each.own or (False, False, 0.0) for each in spent]
    if not (kept or kept_too):
        return 0.0
    size, noise = f.cohort_size, max(noise, 0.0)
    k1, k2 = f.threshold - noise - f.score_error, f.threshold - f.others_tail - f.score_error
    if kept and kept_too:
        shift = -math.log(2 * (k1 - 1) / (size - 1) - 1)
    else:
        shift = -math.log((k1 + k2) / size - 1)
        shift = min(shift, shift / -math.expm1(-shift) * (size - k1) / f.survivors)
    return shift / f.noise_multiplier


def _median(f: MedianParameters, spent: Sequence[Spent]) -> float:
    """R/s: both worlds' scores are above core · B, or the pair is charged to δ."""
    del spent
    return f.shift / f.noise_multiplier


def _report(reports: VectorReports, spent: Sequence[Spent]) -> float:
    """By what a client calibrates its noise to."""
    del spent
    return gdp.mu_for(reports.epsilon, reports.delta)


def _decision(test: Any, spent: Sequence[Spent]) -> float:
    """Nothing in μ: what tells two worlds' decisions apart is refused where they are forced."""
    del test, spent
    return 0.0


OUTLIER_MEANS = (OneShot, LaplaceOneShot, SubsampledTest)
LIMITS: dict[type, Callable[[Any, Sequence[Spent]], float]] = {
    **dict.fromkeys(OUTLIER_MEANS, _outlier_mean),
    **dict.fromkeys((SmoothTest, AboveThreshold, RangeReports, MinCohort), _decision),
    FilterParameters: _outlier_filter,
    MedianParameters: _median,
    VectorReports: _report,
}

"""Choosing the numbers of `outlier-iterates`: chains, phases, steps, radii; and the release of every phase.

Sizes, steps and radii bear on utility alone. The guarantee is what `outlier_iterates.verify` certifies for the result.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.special import chdtri

from quoron_protos.errors import ConfigError, Infeasible
from quoron_server.accounting.combinations import Aggregate, theorem_for
from quoron_server.accounting.outlier_mean import Kappa
from quoron_server.algorithms import _outlier_iterate_releases as releases
from quoron_server.algorithms._outlier_iterate_releases import OneRelease, Test, Wish
from quoron_server.algorithms._search import round_grid
from quoron_server.mechanisms.gaussian import GaussianNoise
from quoron_server.mechanisms.outlier_mean import LARGEST_COHORT, OutlierMean
from quoron_server.noise import total_variation
from quoron_server.plan import Privacy
from quoron_server.prediction import trivial_risk
from quoron_server.prediction_chains import Course, Stage, apart, course, distance
from quoron_server.problem import Problem

NAME = "outlier-iterates"
LARGEST_ROUNDS = 256  # that are tried unless asked for
NUMBERS = (1, 2, 3, 4, 6)  # of phases
SHRINKS = (1.0, 1.5, 2.2, 4.0)  # of the step from one phase to the next
AVERAGED = (1.0, 0.25)  # shares of a chain's users whose iterates are averaged
STEPS = 16
NEAR = 1.02  # times the least predicted risk is as good: fewer rounds win
STRAY = 0.01  # share of pairs in d dimensions that the usual radius may leave out
FAILURE = 1e-3  # chance that the guaranteed radius leaves out any pair of a phase
_KINDS: dict[str, Aggregate] = {"weighted": "weighted-mean", "random": "random-inclusion"}


@dataclass(frozen=True, slots=True)
class OutlierIterateOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None  # exactly: the lengths of all phases' chains together
    cohort_size: int | None = None  # C: chains side by side
    phases: int | None = None
    step_size: float | None = None  # η of the first phase
    test: Test = "lottery"
    aggregate: Literal["weighted", "random"] = "weighted"
    kappa: Literal["auto", 1, 2] = "auto"
    radius: Literal["usual", "guaranteed"] = "usual"
    radius_factor: float | None = None  # c: the usual radius in units of honest chains' rms distance
    tolerance: float | None = None  # share of users, hostile or absent, that may not stop a release; None: as declared
    broadcast: bool = False  # only chains of one user: no client sees anything un-noised


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase's public numbers."""

    users: int  # N: users of a chain, one after another, which is the phase's rounds
    averaged: int  # the iterates of the last so many of them are averaged
    step_size: float  # η
    radius: float  # τ
    release_scale: float  # σ, standard deviation per coordinate
    release: OneRelease  # test and aggregate

    def mechanism(self) -> OutlierMean:
        """The aggregate at this phase's radius."""
        mean = self.release.mean
        return OutlierMean(mean.cohort_size, self.radius, mean.removal_radius, mean.ramp_low, mean.ramp_high)


@dataclass(frozen=True, slots=True)
class OutlierIterateParameters:
    """Public numbers of one run."""

    cohort_size: int  # C: chains side by side, so users asked in a round
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    worst: float
    chains: int
    stages: tuple[Stage, ...]

    @property
    def rounds(self) -> int:
        return sum(stage.users for stage in self.stages)


def left_of_delta(privacy: Privacy, dimension: int) -> float:
    """δ less what the samplers lack. A user is in one phase; the others' noise has the same law in both worlds."""
    return privacy.delta - (1 + math.exp(privacy.epsilon)) * total_variation(gaussians=dimension, decisions=1)


def release_scale(release: OneRelease, radius: float, dimension: int) -> float:
    """σ of a phase: the theorem's, with room for the mean's arithmetic and for the grid of the noise.

    The grid costs the same μ whatever the shift, so the smallest shift needs the most room.
    """
    shift, mean = min(release.mean.shifts), release.mean
    mechanism = OutlierMean(mean.cohort_size, radius, mean.removal_radius, mean.ramp_low, mean.ramp_high)
    sensitivity = shift * radius * (1 + mechanism.rounding_slack(dimension))
    mu = shift / release.noise_multiplier
    return GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=dimension).scale


@lru_cache(maxsize=64)
def usual_factor(dimension: int) -> float:
    """c: 1.5, or more in few dimensions, where single pairs stray farther from the mean square."""
    return max(1.5, math.sqrt(float(chdtri(dimension, STRAY)) / dimension))


def choose(
    problem: Problem, privacy: Privacy, options: OutlierIterateOptions
) -> tuple[float, OutlierIterateParameters]:
    """(predicted risk, numbers) of the least predicted risk. Raises Infeasible naming C_min and the n that would do."""
    lost = problem.hostile_share if options.tolerance is None else options.tolerance
    kappa = _kappa(options, lost)
    theorem_for(options.test, _KINDS[options.aggregate], "one-release", kappa=kappa or 2)
    if not lost < 0.5:
        raise ConfigError(f"Expected algorithm.options.tolerance < 0.5, got {lost:g}.")
    wish = Wish(privacy.epsilon, left_of_delta(privacy, problem.dimension), options.test, options.aggregate, kappa)
    if wish.delta <= 0:
        raise Infeasible(NAME, f"delta={privacy.delta:g} is below the resolution of the noise", "a larger delta")
    found = list(_candidates(problem, wish, options, lost))
    best = min(found, key=lambda each: each.worst, default=None)
    if best is None or math.isinf(best.worst):
        raise _infeasible(problem, wish, options, lost)
    chosen = min(found, key=lambda each: (each.rounds if each.worst <= NEAR * best.worst else math.inf, each.worst))
    built = [releases.release(wish, chosen.chains, _score(chosen.chains, stage, lost)) for stage in chosen.stages]
    stages = [
        replace(stage, noise_multiplier=release.noise_multiplier)
        for stage, release in zip(chosen.stages, built, strict=True)
    ]
    forecast = _course(problem, stages, options)
    if forecast.risk >= trivial_risk(problem):
        least = releases.smallest(wish, lost)
        raise Infeasible(
            NAME,
            f"with n={problem.users:,} the predicted excess risk {forecast.risk:.2g} is no better than not training",
            f"more users (n >= {max(2 * problem.users, 20 * least):,} is a sensible start) or more items of each",
        )
    phases = tuple(
        Phase(
            users=stage.users,
            averaged=stage.averaged,
            step_size=stage.step_size,
            radius=radius,
            release_scale=release_scale(release, radius, problem.dimension),
            release=release,
        )
        for stage, radius, release in zip(stages, forecast.radii, built, strict=True)
    )
    return forecast.risk, OutlierIterateParameters(chosen.chains, phases)


def _candidates(problem: Problem, wish: Wish, options: OutlierIterateOptions, lost: float) -> Iterator[_Candidate]:
    least = releases.smallest(wish, lost)
    for rounds, chains in _sizes(problem, options, least):
        for counts in _splits(rounds, options):
            multipliers = [releases.noise(wish, chains, _score(chains, _stage(users), lost)) for users in counts]
            if math.inf in multipliers:
                continue
            honest = [float(releases.honest_chains(chains, _lost(users, lost))) for users in counts]
            for step in [options.step_size] if options.step_size else _steps(problem, counts[0]):
                for shrink in SHRINKS if len(counts) > 1 else (1.0,):
                    for share in AVERAGED if problem.curvature == "isotropic" and max(counts) > 1 else (1.0,):
                        stages = tuple(
                            Stage(
                                users=users,
                                averaged=max(1, round(share * users)),
                                step_size=step / shrink**index,
                                noise_multiplier=multipliers[index],
                                chains=honest[index],
                                lost=_lost(users, lost),
                                reach=float(wish.kappa or 2),
                            )
                            for index, users in enumerate(counts)
                        )
                        yield _Candidate(_course(problem, stages, options).worst, chains, stages)


def _sizes(problem: Problem, options: OutlierIterateOptions, least: int) -> Iterator[tuple[int, int]]:
    """(rounds, chains) to try: all users in use, unless options say otherwise."""
    if options.cohort_size:
        most = problem.users // options.cohort_size
        for rounds in [options.rounds] if options.rounds else round_grid(min(most, LARGEST_ROUNDS)) if most else []:
            if rounds <= most and options.cohort_size <= LARGEST_COHORT:
                yield rounds, options.cohort_size
        return
    for rounds in [options.rounds] if options.rounds else round_grid(min(problem.users, LARGEST_ROUNDS)):
        chains = min(problem.users // rounds, LARGEST_COHORT)
        if chains >= least:
            yield rounds, chains


def _splits(rounds: int, options: OutlierIterateOptions) -> Iterator[tuple[int, ...]]:
    """How many users of a chain each phase takes: equal and halving shares, and chains of one user."""
    seen = set()
    numbers: Sequence[int] = [options.phases] if options.phases else [*NUMBERS, *([rounds] if rounds <= 8 else [])]
    for number in [rounds] if options.broadcast else numbers:
        if number > rounds or (options.broadcast and options.phases not in (None, rounds)):
            continue
        halving = [2.0**-index for index in range(number)]
        for shares in ([1 / number] * number, [share / sum(halving) for share in halving]):
            counts = [max(1, int(share * rounds)) for share in shares]
            counts[0] += rounds - sum(counts)
            if counts[0] >= 1 and tuple(counts) not in seen:
                seen.add(tuple(counts))
                yield tuple(counts)


def _steps(problem: Problem, users: int) -> list[float]:
    """Step sizes on single items: up to 2/β, and around radius / (lipschitz √T), where the bound is least."""
    centre = problem.radius / (problem.lipschitz * math.sqrt(users * problem.items_per_user))
    if not problem.smoothness:
        return [float(centre * factor) for factor in np.geomspace(0.01, 30, STEPS)]
    largest = 2 / problem.smoothness
    return [float(step) for step in np.geomspace(min(largest / 1000, centre / 30), largest, STEPS)]


def _kappa(options: OutlierIterateOptions, lost: float) -> Kappa | None:
    """κ as asked; else 1 where outliers are expected, as it removes from τ on; else None: the one of less noise."""
    if options.kappa != "auto":
        return options.kappa
    if options.aggregate == "random":
        return 2
    return 1 if lost > 0 else None


def _stage(users: int) -> Stage:
    return Stage(users, users, 1.0, 1.0, 1.0)


def _lost(users: int, lost: float) -> float:
    """Chance that one of a chain's users is hostile or absent."""
    return 1 - (1 - lost) ** users


def _score(chains: int, stage: Stage, lost: float) -> int:
    return releases.expected_score(chains, _lost(stage.users, lost))


def _course(problem: Problem, stages: Sequence[Stage], options: OutlierIterateOptions) -> Course:
    def radius(stage: Stage, deviation: float) -> float:
        if options.radius == "guaranteed":
            return guaranteed_radius(problem, stage)
        return (options.radius_factor or usual_factor(problem.dimension)) * distance(problem, stage, deviation)

    return course(problem, stages, radius)


def guaranteed_radius(problem: Problem, stage: Stage) -> float:
    """τ that all pairs of `stage.chains` honest chains keep with probability 1 - FAILURE, by Theorem 7's tail bound."""
    steps, suffix = stage.users * problem.items_per_user, stage.averaged * problem.items_per_user
    pairs = max(stage.chains, 2.0) ** 2 / 2
    tail = math.sqrt(8 * math.log(16 * pairs / FAILURE)) / math.sqrt(2)
    return stage.step_size * problem.lipschitz * apart(steps, suffix) * tail


def _infeasible(problem: Problem, wish: Wish, options: OutlierIterateOptions, lost: float) -> Infeasible:
    least = releases.smallest(wish, lost)
    if options.cohort_size and options.cohort_size < least:
        return Infeasible(
            NAME,
            f"cohort_size={options.cohort_size:,} chains are too few for the test",
            f"cohort_size >= {least:,} (C_min; better {3 * least:,})",
        )
    if options.cohort_size and options.cohort_size > LARGEST_COHORT:
        return Infeasible(
            NAME, f"cohort_size={options.cohort_size:,} is too large", f"cohort_size <= {LARGEST_COHORT:,}"
        )
    if options.phases and options.rounds and options.phases > options.rounds:
        return Infeasible(NAME, f"{options.rounds} rounds hold no {options.phases} phases", "at least a round a phase")
    rounds = options.rounds or options.phases or 1
    chains = options.cohort_size or max(least, 1)
    if rounds * chains > problem.users:
        return Infeasible(
            NAME,
            f"n={problem.users:,} users fill {rounds:,} rounds with {problem.users // rounds:,} chains, and the test "
            f"needs {chains:,} (C_min)",
            f"n >= {rounds * chains:,} (better {3 * rounds * chains:,}), or fewer rounds",
        )
    return Infeasible(
        NAME,
        f"chains of {rounds:,} users lose too many when {100 * lost:g} % of users may be hostile or absent",
        "more phases, fewer rounds, or a smaller tolerance",
    )

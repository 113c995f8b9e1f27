"""Choosing public numbers by predicted excess risk: the grids every planner shares."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_server.algorithms.forecast import PhaseModel, PhaseModels, excess_risks
from quoron_server.problem import Problem

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]

MOST_ROUNDS = 1_000_000  # that any plan may have; beyond, planning alone would exhaust memory
SUFFIXES = (1.0, 0.5, 0.25)  # fractions of a phase's iterates that are averaged


def round_grid(largest: int, *, smallest: int = 1) -> list[int]:
    """Integers from `smallest` to `largest`, a factor √2 apart."""
    count = max(0, math.floor(2 * math.log2(max(1, largest / smallest))))
    return sorted({round(smallest * 2 ** (k / 2)) for k in range(count + 1)} | {largest})


def step_grid(problem: Problem, rounds: int, *, largest_product: float = 2.0) -> list[float]:
    """Step sizes η with ηβ up to `largest_product`; for rough or linear losses, around distance / (lipschitz √T)."""
    if not problem.beta:
        centre = problem.distance / (problem.lipschitz * math.sqrt(rounds))
        return [float(centre * factor) for factor in np.geomspace(0.1, 10, 17)]
    largest = largest_product if problem.beliefs.curvature == "isotropic" else min(1.0, largest_product)
    beta = problem.beta
    return [product / beta for product in _products(largest)]


@lru_cache(maxsize=16)
def _products(largest: float) -> tuple[float, ...]:
    """ηβ to try, up to `largest`."""
    return tuple(map(float, np.geomspace(largest / 100, largest, 17)))


def suffix_grid(problem: Problem, rounds: int) -> list[int]:
    """Numbers of iterates to average."""
    return sorted({max(1, round(rounds * share)) for share in suffix_shares(problem)})


def suffix_shares(problem: Problem) -> tuple[float, ...]:
    """Shares of the iterates to average; the bound for unknown curvature is about the average of all."""
    return SUFFIXES if problem.beliefs.curvature == "isotropic" else (1.0,)


def single_phases(
    problem: Problem, rounds: Iterable[int], variance: dict[int, float], steps: Sequence[float] | None = None
) -> list[tuple[float, PhaseModel]]:
    """(predicted excess risk, phase) for each T in `rounds`, with variance[T] the variance of one step."""
    phases = [
        PhaseModel(total, step, suffix, variance[total])
        for total in rounds
        for step in steps or step_grid(problem, total)
        for suffix in suffix_grid(problem, total)
    ]
    columns = zip(*((p.rounds, p.step_size, p.suffix, p.step_variance) for p in phases), strict=True)
    risks = excess_risks(problem, [PhaseModels(*(np.array(column, np.float64) for column in columns))])
    return [(float(risk), phase) for risk, phase in zip(np.broadcast_to(risks, len(phases)), phases, strict=True)]


def phase_grid(problem: Problem, rounds: Sequence[int], step_size: float | None) -> tuple[Vector, Integers]:
    """Step sizes (W, K) and numbers of averaged iterates (W, S) to try for W numbers of rounds."""
    steps = np.array([[step_size] if step_size else step_grid(problem, total) for total in rounds])
    return steps, np.maximum(1, np.rint(np.outer(rounds, suffix_shares(problem)))).astype(np.int64)


def best_phases(
    problem: Problem, rounds: Sequence[int], steps: Vector, suffixes: Integers, variances: Vector
) -> list[tuple[float, PhaseModel]]:
    """(predicted excess risk, phase) at the best of K steps and S suffixes for each of W numbers of rounds.

    `variances` of one step broadcast to shape (W, K, S).
    """
    totals, averaged = np.array(rounds, np.float64)[:, None, None], suffixes[:, None, :].astype(np.float64)
    risks = np.asarray(excess_risks(problem, [PhaseModels(totals, steps[:, :, None], averaged, variances)]))
    every = np.broadcast_to(variances, risks.shape)
    found = []
    for place, total in enumerate(rounds):
        step, suffix = np.unravel_index(np.argmin(risks[place]), risks[place].shape)
        phase = PhaseModel(
            rounds=total,
            step_size=float(steps[place, step]),
            suffix=int(suffixes[place, suffix]),
            step_variance=float(every[place, step, suffix]),
        )
        found.append((float(risks[place, step, suffix]), phase))
    return found


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

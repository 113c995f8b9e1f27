"""Choosing phases, steps and cohort sizes for localised SGD by predicted excess risk.

The papers' factor 4 and log n phases are for the proof of a rate; privacy holds for every public choice, so the plan
takes the one with the least predicted risk (docs/privacy/outlier-filter.md, "What is free").
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from quoron_protos.errors import Infeasible
from quoron_server.algorithms._search import step_grid, suffix_grid
from quoron_server.algorithms.localisation import Phase
from quoron_server.prediction import PhaseModel, excess_risk
from quoron_server.problem import Problem


@dataclass(frozen=True, slots=True)
class Schedule:
    """Cohort size and the phases' models."""

    cohort_size: int  # B
    phases: tuple[PhaseModel, ...]

    @property
    def rounds(self) -> int:
        """Rounds over all phases."""
        return sum(phase.rounds for phase in self.phases)

    @property
    def largest_step(self) -> float:
        """The first phase's step size; later ones are no larger."""
        return max(phase.step_size for phase in self.phases)


@dataclass(frozen=True, slots=True)
class Shape:
    """How users are split over phases, and how the step shrinks from one to the next."""

    shares: tuple[float, ...]  # of the rounds, per phase, summing to 1
    shrink: float


def shapes(numbers: Iterable[int] = (1, 2, 3), shrinks: Iterable[float] = (1.5, 2.0, 3.0, 4.0)) -> Iterator[Shape]:
    """Phases with equal shares and with halving shares."""
    for number in numbers:
        if number == 1:
            yield Shape((1.0,), 1.0)
            continue
        halving = [2.0**-phase for phase in range(number)]
        for shrink in shrinks:
            yield Shape((1 / number,) * number, shrink)
            yield Shape(tuple(share / sum(halving) for share in halving), shrink)


ReleaseScale = Callable[[int, float], float]  # (cohort size, largest step) -> σ / η of every phase; inf if infeasible


def candidates(
    problem: Problem,
    cohort_sizes: Iterable[int],
    release_scale: ReleaseScale,
    *,
    rounds: int | None = None,
    all_shapes: Iterable[Shape] | None = None,
    steps: list[float] | None = None,
) -> Iterator[tuple[float, Schedule]]:
    """(predicted excess risk, schedule), for every cohort size, shape, step and suffix on the grid.

    Without `rounds` there are as many as the users fill.
    """
    considered = list(shapes() if all_shapes is None else all_shapes)
    for cohort in cohort_sizes:
        variance = problem.user_deviation**2 / cohort
        total = rounds or problem.users // cohort
        for step in steps or step_grid(problem, total):
            scale = release_scale(cohort, step)
            if math.isinf(scale):
                continue
            for shape in considered:
                counts = [int(share * total) for share in shape.shares]
                if min(counts) < 1:
                    continue
                counts[0] += total - sum(counts)
                for fraction in {suffix / total for suffix in suffix_grid(problem, total)}:
                    phases = tuple(
                        PhaseModel(
                            rounds=count,
                            step_size=step / shape.shrink**index,
                            suffix=max(1, round(count * fraction)),
                            step_variance=variance,
                            release_scale=scale * step / shape.shrink**index,
                        )
                        for index, count in enumerate(counts)
                    )
                    yield excess_risk(problem, phases), Schedule(cohort, phases)


def cohort_for(name: str, problem: Problem, rounds: int, cohort_size: int | None) -> int:
    """Users asked in each of exactly `rounds` rounds; Infeasible if there are too few for disjoint cohorts."""
    cohort = cohort_size or problem.users // rounds
    if cohort < 1 or rounds * cohort > problem.users:
        least = max(1, cohort)
        raise Infeasible(
            name,
            f"n={problem.users:,} users cannot fill {rounds:,} cohorts of {least:,}",
            f"n >= {rounds * least:,}, or fewer rounds",
        )
    return cohort


def as_phases(schedule: Schedule, shift_per_step: float) -> tuple[Phase, ...]:
    """The schedule as an algorithm runs it; `shift_per_step` is b / η, the sensitivity per unit of step size."""
    return tuple(
        Phase(phase.rounds, phase.step_size, phase.suffix, phase.step_size * shift_per_step, phase.release_scale)
        for phase in schedule.phases
    )

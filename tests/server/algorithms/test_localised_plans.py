"""The search over schedules of localised SGD, against trying them one by one."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from problems import changed, problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_server.algorithms.averaged_sgd import PhaseModel, best_phases, excess_risk, step_grid, suffix_grid
from quoron_server.algorithms.localised.plan import best_schedule, shapes, steps_for

PROBLEM = problem_of(
    users=3000,
    items_per_user=5,
    dimension=4,
    domain=L2Ball(1.5),
    lipschitz=1.0,
    smoothness=0.5,
    curvature="isotropic",
    typical_curvature=0.2,
    least_curvature=0.1,
)


def one_by_one(problem, cohorts, scale, rounds, all_shapes):
    """(risk, cohort, phases) of every candidate."""
    for cohort in cohorts:
        total = rounds or problem.users // cohort
        for step in steps_for(problem, cohort, total) if total else []:
            noise = scale(cohort, step)
            if np.isinf(noise):
                continue
            for shape in all_shapes:
                counts = [int(share * total) for share in shape.shares]
                if min(counts) < 1:
                    continue
                counts[0] += total - sum(counts)
                for suffix in suffix_grid(problem, total):
                    phases = [
                        PhaseModel(
                            count,
                            step / shape.shrink**index,
                            max(1, round(count * (suffix / total))),
                            problem.user_deviation**2 / cohort,
                            noise * step / shape.shrink**index,
                        )
                        for index, count in enumerate(counts)
                    ]
                    yield excess_risk(problem, phases), cohort, phases


@given(
    cohorts=st.lists(st.integers(1, 4000), min_size=1, max_size=4),
    rounds=st.sampled_from([None, 1, 2, 7]),
    problem=st.sampled_from([PROBLEM, changed(PROBLEM, curvature="unknown"), replace(PROBLEM, smoothness=0.0)]),
    numbers=st.sampled_from([(1,), (1, 2), (3, 5)]),
    widest=st.floats(0.1, 4.0),
)
@settings(derandomize=True, deadline=None, max_examples=25)
def test_the_best_schedule_is_the_best_of_all(cohorts, rounds, problem, numbers, widest):
    def scale(cohort, step):  # long steps and small cohorts are infeasible
        return np.where((step < widest) & (cohort > 2), 3.0 / cohort, np.inf)

    every = list(shapes(numbers, (2.0, 3.0)))
    found = best_schedule(problem, cohorts, scale, rounds=rounds, all_shapes=every)
    expected = min(one_by_one(problem, cohorts, scale, rounds, every), key=lambda entry: entry[0], default=None)
    if expected is None:
        assert found is None
        return
    risk, schedule = found
    assert risk == pytest.approx(expected[0], rel=1e-12)
    assert excess_risk(problem, schedule.phases) == pytest.approx(risk, rel=1e-12)
    planned = sum(phase.rounds for phase in schedule.phases)
    assert planned == (rounds or problem.users // schedule.cohort_size)


@pytest.mark.parametrize("problem", [PROBLEM, changed(PROBLEM, curvature="unknown")])
def test_the_best_phases_are_the_best_of_each_predicted_alone(problem):
    variance = {1: 0.3, 5: 0.2, 12: 0.1}
    found = best_phases(problem, list(variance), np.array(list(variance.values())))
    for (total, noise), (risk, phase) in zip(variance.items(), found, strict=True):
        every = [
            PhaseModel(total, step, suffix, noise)
            for step in step_grid(problem, total)
            for suffix in suffix_grid(problem, total)
        ]
        assert phase in every
        assert risk == pytest.approx(min(excess_risk(problem, [each]) for each in every))


def test_steps_that_floating_point_cannot_follow_lose_against_every_other():
    steep = changed(PROBLEM, typical_curvature=2.4 * PROBLEM.smoothness / 2, least_curvature=None)
    for rounds in (256, 1448, 4096):
        with np.errstate(over="ignore", invalid="ignore"):  # as the registry plans
            [(risk, phase)] = best_phases(steep, [rounds], np.array([0.1]))
            wild = excess_risk(steep, [PhaseModel(rounds, 2 / PROBLEM.smoothness, rounds, 0.1)])
        assert np.isfinite(risk)
        assert phase.step_size * 2.4 * PROBLEM.smoothness / 2 < 2
        assert wild > 1e6 * risk

"""The search over schedules of localised SGD, against trying them one by one."""

import numpy as np
import pytest

from problems import changed, problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_server.algorithms.averaged_sgd import PhaseModel, best_phases, excess_risks, step_grid, suffix_grid

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
        assert risk == pytest.approx(min(excess_risks(problem, [each]) for each in every))


def test_steps_that_floating_point_cannot_follow_lose_against_every_other():
    steep = changed(PROBLEM, typical_curvature=2.4 * PROBLEM.smoothness / 2, least_curvature=None)
    for rounds in (256, 1448, 4096):
        with np.errstate(over="ignore", invalid="ignore"):  # as the registry plans
            [(risk, phase)] = best_phases(steep, [rounds], np.array([0.1]))
            wild = excess_risks(steep, [PhaseModel(rounds, 2 / PROBLEM.smoothness, rounds, 0.1)])
        assert np.isfinite(risk)
        assert phase.step_size * 2.4 * PROBLEM.smoothness / 2 < 2
        assert wild > 1e6 * risk

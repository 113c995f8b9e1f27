"""A round with an adaptive clip never costs more than its claimed ε: mean and counts together, seen as released."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from problems import problem_of
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers
from quoron_privacy.means.radius_cells import RadiusCells
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Plan, Privacy

EPSILON, DELTA, USERS, DRAWS = 2.0, 1e-3, 100, 3000
PROBLEM = problem_of(users=USERS, items_per_user=1, dimension=1, domain=L2Ball(1e6), lipschitz=1.0, smoothness=None)


def made() -> Plan:
    info = ALGORITHMS["one-pass-dp-sgd"]
    options = info.options(rounds=1, step_size=1.0, clip_norm=1.0, clip="adaptive")
    return info.plan(PROBLEM, Privacy(EPSILON, DELTA), options, "calibrated", 0)


def world(plan: Plan, own: float, seeds: int, seen: list[Any]) -> Any:
    """Draws of what tells best between a user just within the clip and one far out, opposite: its row, and its cell."""
    algorithm = ALGORITHMS[plan.algorithm].maker(plan)
    p, noise = plan.parameters, SeededNoise(0)
    state = algorithm.init()
    rows = np.full((USERS, 1), 0.75)
    rows[int(np.flatnonzero(algorithm.request(state, noise).cohort == 3)[0])] = own
    answers = Answers(rows, np.zeros(USERS, np.uint8))

    def draw(draws: int) -> np.ndarray:
        found = np.empty(draws)
        for number in range(draws):
            after = algorithm.update(state, answers, SeededNoise(seeds + 2 * number)).state
            _, half, whole = seen[-1]
            mean = -after.iterate[0]
            found[number] = -2 / USERS * mean / p.noise_scale**2 + (whole - half) / USERS / p.adaptive.cells.scale**2
        return found

    return draw


def audited(plan: Plan, monkeypatch: pytest.MonkeyPatch, draws: int = DRAWS) -> float:
    """Wrong with probability at most 1e-8."""
    seen: list[Any] = []
    original = RadiusCells.release

    def release(cells: RadiusCells, counts: np.ndarray, stream: Any) -> Any:
        seen.append(original(cells, counts, stream))
        return seen[-1]

    monkeypatch.setattr(RadiusCells, "release", release)
    return epsilon_lower_bound(world(plan, -0.99, 0, seen), world(plan, 9.0, 1, seen), delta=DELTA, draws=draws)


def test_a_round_with_an_adaptive_clip_never_costs_more_than_the_claimed_epsilon(monkeypatch) -> None:
    assert 0.2 < audited(made(), monkeypatch) <= EPSILON


def test_the_audit_catches_counts_with_a_sixteenth_of_the_noise(monkeypatch) -> None:
    plan = made()
    adaptive = plan.parameters.adaptive
    quiet = replace(adaptive, cells=replace(adaptive.cells, scale=adaptive.cells.scale / 16))
    broken = replace(plan, parameters=replace(plan.parameters, adaptive=quiet))
    assert audited(broken, monkeypatch) > EPSILON


def test_the_audit_catches_a_gradient_with_a_quarter_of_the_noise(monkeypatch) -> None:
    plan = made()
    broken = replace(plan, parameters=replace(plan.parameters, noise_scale=plan.parameters.noise_scale / 4))
    assert audited(broken, monkeypatch) > EPSILON

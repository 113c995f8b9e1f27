"""Runs of two servers with public groups of users: docs/privacy/two-servers.md#ts6."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contracts.scenes import PRIVACY, PROBLEM, PROBLEMS, Quadratic
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import Infeasible
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.two_servers import noise
from quoron_privacy.two_servers.specification import Block, MechanismSpec, RoundSpec, noise_factor
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.two_servers import BothServers, server_mu
from quoron_server.plan import RunPlan
from quoron_server.wording import sentence

TWO = replace(PRIVACY, trust_model="two-servers")
NAMES = "one-round-least-squares", "tracking-srgd", "one-pass-dp-sgd", "dp-ftrl"
SMALL: dict[str, dict[str, Any]] = {
    "tracking-srgd": {"rounds": 13},
    "one-pass-dp-sgd": {"rounds": 6, "clip": "adaptive", "clip_norm": 0.01},
    "dp-ftrl": {"rounds": 7, "epochs": 3, "inverse_step": 5.0, "factorisation": "blt"},
}


def planned(name: str, groups: int) -> RunPlan:
    info, privacy = ALGORITHMS[name], replace(TWO, groups=groups)
    plan = info.plan(PROBLEMS.get(name, PROBLEM), privacy, info.options(**SMALL.get(name, {})), "calibrated", 7)
    info.verify(plan)
    return plan


def carried_out(plan: RunPlan, group: int | None = None, by: int = 0) -> Any:
    """The model; `by` is added to each number of one group's sum of each round, as a hostile user can."""
    algorithm, noise = ALGORITHMS[plan.algorithm].make(plan), SeededNoise(5)
    engine, state = BothServers(Quadratic(), plan, b"5"), algorithm.init()
    while (question := algorithm.request(state, noise)) is not None:
        sums = engine.ask(question)
        if group is not None:
            total = sums.total.reshape(plan.spec.groups, -1).copy()
            total[group] += np.uint64(by % 2**64)
            sums = replace(sums, total=total.reshape(-1))
        state = algorithm.update(state, sums, noise).state
    return algorithm.model(state)


@pytest.mark.parametrize("name", NAMES)
def test_groups_cost_noise_and_no_privacy(name: str) -> None:
    one, three = planned(name, 1), planned(name, 3)
    mu = gdp.mu_for(PRIVACY.epsilon, PRIVACY.delta)
    for plan in (one, three):
        assert 0.999 * mu <= noise.server_mu(plan.spec) <= mu  # against each server
    units = [[block.unit for each in plan.spec.rounds for block in each.blocks] for plan in (one, three)]
    if len(units[0]) == len(units[1]):
        assert units[1] == pytest.approx(units[0], rel=0.05)  # rows are as long: a group has as much noise as all
    assert "released as the median of 3 public groups" in sentence(three.guarantee)
    assert "median" not in sentence(one.guarantee)


def test_forecasts_know_how_loud_a_median_is() -> None:
    one, three = planned("one-round-least-squares", 1), planned("one-round-least-squares", 3)
    ratio = three.parameters.moment_scale / one.parameters.moment_scale  # type: ignore[attr-defined]
    assert ratio == pytest.approx(noise_factor(3), rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("by", [2**55, -(2**62)])
def test_one_group_of_three_that_is_hostile_moves_the_model_no_further_than_noise_does(name: str, by: int) -> None:
    plan = planned(name, 3)
    honest, again = carried_out(plan), carried_out(plan)
    assert (honest == again).all()
    moved = np.linalg.norm(carried_out(plan, 1, by) - honest)
    assert moved <= 4 * np.linalg.norm(honest) + 4


def test_one_sum_is_moved_at_will() -> None:
    # the broken twin: without groups one user sets what is released
    plan = planned("one-pass-dp-sgd", 1)
    wild, honest = carried_out(plan, 0, 2**60), carried_out(plan)
    bounded = planned("one-pass-dp-sgd", 3)
    held = np.linalg.norm(carried_out(bounded, 0, 2**60) - carried_out(bounded))
    assert np.linalg.norm(wild - honest) > 5 * held


@pytest.mark.parametrize(("groups", "series"), [(1, 1), (3, 3), (9, 4)])
def test_every_group_that_a_user_comes_to_rounds_its_own_predictions(groups: int, series: int) -> None:
    made = RoundSpec((Block("sums", 1000, 1, "clipped"),))  # rows of one step: rounding is nearly all
    spec = MechanismSpec((made,) * 400, "blt", participations=4, separation=100, groups=groups)
    more = (series**0.5 - 1) * noise.rounding_mu(noise.factors_of(spec), 400, 1000)
    for mu in (noise.server_mu, server_mu):
        assert mu(spec) - mu(replace(spec, groups=1)) == pytest.approx(more, rel=1e-6, abs=1e-18)


def test_a_median_of_hostile_sums_is_a_number_on_every_machine() -> None:
    # two of three groups at the edge of the ring: unequal groups and `louder` carry it beyond 64 bits
    plan = planned("one-round-least-squares", 3)
    algorithm, noise = ALGORITHMS[plan.algorithm].make(plan), SeededNoise(5)
    state = algorithm.init()
    question = algorithm.request(state, noise)
    assert question is not None
    sums = BothServers(Quadratic(), plan, b"5").ask(question)
    wild = np.full_like(sums.total, 2**63 - 2**40)
    assert np.isfinite(algorithm.model(algorithm.update(state, replace(sums, total=wild), noise).state)).all()


def test_rounds_of_fewer_users_than_groups_are_refused() -> None:
    info, problem = ALGORITHMS["dp-ftrl"], replace(PROBLEM, users=40)
    options = info.options(rounds=13)
    with pytest.raises(Infeasible, match="fewer than its 9 groups"):
        info.plan(problem, replace(TWO, groups=9), options, "calibrated", 7)

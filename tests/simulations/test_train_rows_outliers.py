"""Rounds that leave out rows far from the others: on one machine, for any rows, with distances that hide nothing."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from audits.harness import epsilon_lower_bound
from cover import by_default
from flower.plugged import Killed, dying
from quoron.training import memory
from quoron.training.rows import RowsEngine, Setting, TrainedRows, problem_of
from quoron_privacy.errors import ConfigError, RunError
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.robust import outlier_mean
from quoron_privacy.robust.outlier_mean import OutlierMean, neighbour_counts
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan

pytestmark = pytest.mark.usefixtures("account")
USERS, OUTLIERS = 300, 4
POINTS = np.random.default_rng(0).normal(0.3, 0.05, (USERS, 3))
POINTS[:OUTLIERS] = 1e5
OPTIONS = {"rounds": 3, "step_size": 0.9, "radius": 1.0, "suffix": 1}


def pulls(users: np.ndarray, point: np.ndarray) -> np.ndarray:
    return point - POINTS[users]


def trained(out: Path, compute: Any = pulls, **changed: Any) -> TrainedRows[Any]:
    given = {"users": USERS, "dimension": 3, "epsilon": 8.0, "delta": 1e-3, "radius": 9.0, "seed": 5}
    return quoron.train_rows(compute, out=out, **given | {"algorithm": "outlier-gd", "options": OPTIONS} | changed)


def test_a_killed_run_goes_on_to_the_same_bits_though_little_memory_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(tmp_path / "whole").model
    with pytest.raises(Killed):
        trained(tmp_path / "run", dying(pulls, 2))
    monkeypatch.setattr(memory, "free_memory", lambda: 0)  # it was made sure of when the run began, and is charged
    with pytest.raises(RunError, match="memory for the answers of a round"):
        trained(tmp_path / "new")
    np.testing.assert_array_equal(trained(tmp_path / "run").weights, whole)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"clip_norm": 1.0}, "Expected no clip_norm"),
        ({"options": {"rounds": 3, "step_size": 0.9}}, "Expected options.radius"),
    ],
)
def test_what_such_rounds_need_is_asked_for_by_name(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        trained(tmp_path / "run", **changed)
    assert not (tmp_path / "run").exists()


@cache
def planned() -> RunPlan:
    problem = problem_of({"radius": 1e6}, users=USERS, dimension=2)
    options = {"rounds": 1, "step_size": 1.0, "radius": 1.0}
    promise = {"privacy": Privacy(2.0, 1e-3), "clip_norm": None}
    return Setting(problem=problem, algorithm="outlier-gd", options=options, **promise).plan(0)


def released(own: np.ndarray) -> Any:
    """Released means of rows of 300 users, all zero but for one; the statistic is where they were pulled."""
    plan = planned()
    algorithm = ALGORITHMS[plan.algorithm].make(plan)

    def compute(round_: int, users: np.ndarray, point: np.ndarray, noise: Any) -> np.ndarray:
        return np.where((users == 2)[:, None], own, 0.0)

    noise, state = SeededNoise(1), algorithm.init()
    question = algorithm.request(state, noise)
    answers = RowsEngine(compute, plan.problem, np.zeros(2), noise).ask(question)
    world = int(own.any())

    def draw(draws: int) -> np.ndarray:
        sources = (SeededNoise(2 * number + world) for number in range(draws))
        return np.array([algorithm.update(state, answers, noise).state.iterate[1] for noise in sources])

    return draw


def audited(own: float) -> float:
    """Of a user at the middle or this far along the second coordinate; wrong with probability at most 1e-8."""
    return epsilon_lower_bound(released(np.array([0.0, own])), released(np.zeros(2)), delta=1e-3, draws=500)


@pytest.mark.parametrize("own", by_default([0.999, 1.5, 1e5], [1e5]))
def test_rows_never_cost_more_than_the_claimed_epsilon(own: float) -> None:
    assert audited(own) <= 2.0


def test_the_audit_catches_outliers_that_are_left_in(monkeypatch: pytest.MonkeyPatch) -> None:
    observe = OutlierMean.observe

    def blind(mean: OutlierMean, points: Any, answered: Any, **where: Any) -> Any:
        seen = observe(mean, points, answered, **where)
        return outlier_mean.Observation(seen.score, np.full_like(seen.weights, mean.ramp_high - mean.ramp_low))

    monkeypatch.setattr(OutlierMean, "observe", blind)
    assert audited(1e5) > 2.0


def test_the_audit_catches_distances_from_a_projection_in_whose_kernel_a_user_hides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        outlier_mean, "neighbour_counts", lambda rows, there, radii: neighbour_counts(rows[:, :1], there, radii)
    )
    assert audited(1e5) > 2.0

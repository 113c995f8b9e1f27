"""Held-out users measure the model between rounds for the same ε; stopping early gives back what a theorem lets it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from committed import limit
from flower.plugged import Killed, dying
from quoron.training import lifetime
from quoron.training.rows import TrainedRows
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import BudgetExceeded, ConfigError, OtherVersion, VerificationError
from quoron_privacy.histograms.held_out import HeldMeans
from quoron_server.algorithms import ALGORITHMS
from quoron_server.rounds import Observer

pytestmark = pytest.mark.usefixtures("account")
USERS, DIMENSION, ROUNDS = 2000, 3, 24
DRAW = np.random.default_rng(3)
FEATURES = DRAW.normal(size=(USERS, DIMENSION))
LABELS = FEATURES @ np.array([1.0, -2.0, 0.5]) > 0


def rows(users: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Gradients of a logistic loss."""
    own = FEATURES[users]
    return (1 / (1 + np.exp(-own @ point)) - LABELS[users])[:, None] * own


def right(users: np.ndarray, point: np.ndarray) -> np.ndarray:
    return ((FEATURES[users] @ point > 0) == LABELS[users]).astype(float)


def trained(out: Path, compute: Any = rows, *, rate: float = 1.0, **changed: Any) -> TrainedRows[Any]:
    given = {"users": USERS, "dimension": DIMENSION, "epsilon": 4.0, "delta": 1e-5, "clip_norm": 1.0, "radius": 9.0}
    given |= {"algorithm": "dp-sgd-wor", "options": {"rounds": ROUNDS, "rate": rate, "step_size": 1.0}}
    given |= {"holdout": 0.25, "metrics": {"accuracy": right}, "evaluate_every": 4}
    return quoron.train_rows(compute, out=out, **given | changed)


def limited(path: Path) -> None:
    limit(path, epsilon=16.0, delta=1e-3, gaussian_share=0.9)


def counted(path: Path) -> list[float | None]:
    with lifetime.opened(path) as population:
        population.verify()
        return [charge.mu for charge in population.charges("everyone")]


def test_every_evaluation_is_released_once_and_told_to_observers(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Watching(Observer):
        def round_finished(self, event: Any) -> None:
            if "evaluation" in event.public:
                seen.append(event.round + 1)

    found = trained(tmp_path / "run", observers=[Watching()])
    assert [done for done, _ in found.history] == seen == [4, 8, 12, 16, 20]
    assert found.rounds == ROUNDS
    assert found.evaluation is not None
    held = found.plan.guarantee.held_out
    assert isinstance(held, HeldMeans)
    (planned,) = [each for each in found.plan.releases() if each.mechanism == held]
    assert planned.count == 6


def test_evaluations_cost_no_epsilon_and_a_plan_with_the_noise_of_one_is_refused(tmp_path: Path) -> None:
    plan = trained(tmp_path / "run", seed=1).plan
    held = plan.guarantee.held_out
    assert isinstance(held, HeldMeans)
    assert 0.999 * 1e-5 < gdp.delta_for(held.pair.mu, 4.0) <= 1e-5
    once = replace(held, scale=held.scale / np.sqrt(1 + len(held.rounds)))
    with pytest.raises(VerificationError, match="delta <= 1e-05 of those held out"):
        ALGORITHMS[plan.algorithm].verify(replace(plan, guarantee=replace(plan.guarantee, held_out=once)))


def test_a_killed_run_goes_on_and_measures_no_round_twice(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", seed=4, patience=2)
    with pytest.raises(Killed):
        trained(tmp_path / "run", dying(rows, 11), seed=4, patience=2)
    again = trained(tmp_path / "run", seed=4, patience=2)
    np.testing.assert_array_equal(again.weights, whole.weights)
    assert again.history == whole.history
    assert again.rounds == whole.rounds


def worsening(users: np.ndarray, point: np.ndarray) -> np.ndarray:
    return np.full(len(users), max(0.0, 1.0 - np.linalg.norm(point) / 9.0))


def test_a_run_whose_metric_falls_stops_and_leaves_room_for_the_rounds_that_it_did_not_take(
    tmp_path: Path, ledger: Path
) -> None:
    limited(ledger)
    found = trained(tmp_path / "run", metrics={"near": worsening}, patience=1)
    assert found.rounds < ROUNDS
    assert ("stopped early", f"after {found.rounds} of {ROUNDS} rounds") in found.rows()
    assert "after 4 rounds" in (found.directory / "model-card.md").read_text()
    whole = ALGORITHMS["dp-sgd-wor"].gaussian(found.plan)
    assert whole is not None
    assert counted(ledger) == pytest.approx([whole.mu * np.sqrt(found.rounds / ROUNDS)], rel=1e-7)
    assert counted(ledger)[0] >= whole.mu * np.sqrt(found.rounds / ROUNDS)
    assert found.guarantee.epsilon == 4.0  # when it stops depends on releases: of the model the whole is promised
    again = trained(tmp_path / "run", metrics={"near": worsening}, patience=1)
    np.testing.assert_array_equal(again.weights, found.weights)
    assert len(counted(ledger)) == 1


@pytest.mark.parametrize("where", ["round_finished", "finished"])
def test_a_run_that_is_killed_where_it_stops_early_is_measured_and_counted_once(
    tmp_path: Path, ledger: Path, where: str
) -> None:
    """After the commit of its last round, or after that of the model."""
    limited(ledger)
    kills = {"round_finished": lambda event: event.round == 7, "finished": lambda model: True}

    class Killing(Observer):
        def round_finished(self, event: Any) -> None:
            self.at("round_finished", event)

        def finished(self, model: Any) -> None:
            self.at("finished", model)

        def at(self, place: str, said: Any) -> None:
            if place == where and kills[place](said):
                raise Killed

    with pytest.raises(Killed):
        trained(tmp_path / "run", metrics={"near": worsening}, patience=1, observers=[Killing()])
    found = trained(tmp_path / "run", metrics={"near": worsening}, patience=1)
    assert found.rounds == 8
    assert [done for done, _ in found.history] == [4, 8]
    assert found.evaluation == found.history[-1][1]
    trained(tmp_path / "run", metrics={"near": worsening}, patience=1)
    with lifetime.opened(ledger) as population:
        assert [row["kind"] for row in population.rows()].count("give-back") == 1


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_nothing_is_given_back_without_a_limit_or_of_secret_cohorts(tmp_path: Path, ledger: Path, rate: float) -> None:
    if rate < 1:
        limited(ledger)
    found = trained(tmp_path / "run", rate=rate, metrics={"near": worsening}, patience=1)
    assert found.rounds < ROUNDS
    with lifetime.opened(ledger) as population:
        assert "give-back" not in {row["kind"] for row in population.rows()}


def test_nothing_is_given_back_once_somebody_else_was_charged(tmp_path: Path, ledger: Path) -> None:
    """Another charge between was admitted by what the account held then."""
    limited(ledger)

    class Charging(Observer):
        def round_finished(self, event: Any) -> None:
            if event.round == 0:
                with lifetime.opened(ledger) as population:
                    population.charge("other", "everyone", epsilon=1.0, delta=1e-6)

    found = trained(tmp_path / "run", metrics={"near": worsening}, patience=1, observers=[Charging()])
    assert found.rounds < ROUNDS
    with lifetime.opened(ledger) as population:
        assert "give-back" not in {row["kind"] for row in population.rows()}


def test_what_was_given_back_is_there_for_the_next_run_and_no_more(tmp_path: Path, ledger: Path) -> None:
    """The limit has room for one whole run and a half in μ²: the next whole run fits only if a part came back."""
    plan = trained(tmp_path / "plan", seed=1).plan
    whole = ALGORITHMS[plan.algorithm].gaussian(plan)
    assert whole is not None
    with lifetime.opened(ledger) as population:
        epsilon = gdp.epsilon_for(whole.mu * 1.5**0.5, 0.96 * 1e-3)
        population.limit("everyone", epsilon=epsilon, delta=1e-3, gaussian_share=1.0)
    found = trained(tmp_path / "first", metrics={"near": worsening}, patience=1)
    assert found.rounds <= ROUNDS // 2
    trained(tmp_path / "second")
    with pytest.raises(BudgetExceeded):
        trained(tmp_path / "third")


def test_noise_that_would_stop_a_run_by_chance_is_said_with_its_fix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for evaluate_every, told in ((12, 0), (1, 1)):
        trained(tmp_path / str(told), holdout=0.1, evaluate_every=evaluate_every, patience=1, seed=1)
        assert sum("larger evaluate_every" in each.message for each in caplog.records) == told


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"holdout": None, "metrics": None}, "Expected holdout with evaluate_every"),
        ({"evaluate_every": None, "patience": 1}, "Expected evaluate_every with patience"),
        ({"evaluate_every": 24}, "Expected evaluate_every below the 24 rounds"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"patience": 0}, "patience"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_by_name(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        trained(tmp_path / "run", **changed)


def test_an_interrupted_run_goes_on_only_with_the_same_evaluations(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        trained(tmp_path / "run", dying(rows, 1))
    with pytest.raises(OtherVersion, match="every"):
        trained(tmp_path / "run", evaluate_every=6)

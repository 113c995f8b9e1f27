"""Three classes from a table to a model: planned, simulated, and answered by the client that a federation runs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize

import quoron
from quoron import config as configs
from quoron.operate.submission import specify
from quoron.populations import Numeric, from_table
from quoron.populations._objective import TrainingObjective
from quoron.sections import Keep, Method, Privacy
from quoron.simulation.scene import setup
from quoron_client import L2Ball, make_loss
from quoron_client.data.labels import Classes
from quoron_privacy.errors import ConfigError
from quoron_server.problem import Wide
from quoron_server.specification import make_plan

pytestmark = pytest.mark.usefixtures("planned_once")

USERS, ITEMS, SEED = 3000, 4, 7
MANY = {"soft-filtered-sgd": 30_000, "local-model": 8_000}  # users that these need
RANGES = {"a": (-1.0, 1.0), "b": (-1.0, 1.0)}
SOFTMAX = ("population.classes=[0, 1, 2]", "loss.feature_norm=2.0", "domain.radius=4.0")


def frame(users=USERS):
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (ITEMS * users, 2))
    scores = np.stack([2 * x[:, 0], 2 * x[:, 1], -x.sum(axis=1)], axis=1) + rng.gumbel(size=(len(x), 3))
    who = np.repeat([f"person-{user:05d}" for user in range(users)], ITEMS)
    return pd.DataFrame({"who": who, "a": x[:, 0], "b": x[:, 1], "kind": scores.argmax(axis=1)})


def crowd(users=40, **changes):
    options = {"loss": make_loss("softmax", classes=3, feature_norm=2.0, ridge=0.01), "domain": L2Ball(4.0)}
    features = tuple(Numeric(name, *ends) for name, ends in RANGES.items())
    return from_table(
        frame(users), user="who", label=Classes("kind", (0, 1, 2)), features=features, **options | changes
    )


@pytest.mark.parametrize(
    ("algorithm", "part", "settings"),
    [
        pytest.param("one-pass-dp-sgd", 0.6, ("algorithm.options.rounds=12",), marks=pytest.mark.slow),
        pytest.param("dp-sgd-wor", 0.6, ("algorithm.options.rounds=12",), marks=pytest.mark.slow),
        ("recentred-sgd", 0.6, ("algorithm.options.rounds=12",)),
        ("tracking-srgd", 0.1, ("algorithm.options.rounds=16",)),
        pytest.param("soft-filtered-sgd", 0.9, (), marks=pytest.mark.slow),
        ("outlier-iterates", 0.8, ("algorithm.options.rounds=16",)),
        pytest.param("local-model", 0.5, (), marks=pytest.mark.slow),
    ],
)
def test_three_classes_are_learnt(algorithm, part, settings, tmp_path):
    result = quoron.simulate(
        frame(MANY.get(algorithm, USERS)),
        user="who",
        label="kind",
        numeric=RANGES,
        privacy=Privacy(8.0, 1e-5),
        method=Method(algorithm),
        keep=Keep(tmp_path / "run"),
        settings=[*SOFTMAX, *settings, "algorithm.trust_clients=true"],
    )
    assert result.plan.problem.outputs == 3
    assert result.plan.problem.dimension == 9  # two features and an intercept, for each class
    assert result.model.shape == (9,)
    assert result.summary.excess_risk < part * result.summary.excess_risk_initial


class TestObjective:
    def test_optimum_and_risk_are_those_of_a_slow_reference(self):
        weights = np.random.default_rng(5).uniform(0, 1, 40 * ITEMS)
        people = crowd(test_fraction=0.0)
        batch = people.training
        for held in (batch, replace(batch, weights=weights)):
            objective = TrainingObjective(held, people.loss)

            def risk(x, w=objective.items.weights):
                scores = batch.features.astype(np.float64) @ x.reshape(3, 3).T
                losses = np.logaddexp.reduce(scores, axis=1) - scores[np.arange(160), batch.labels.astype(int)]
                return np.mean(losses if w is None else w * losses) + 0.005 * x @ x  # users hold 4 items each

            slow = minimize(risk, np.zeros(9), method="BFGS", options={"gtol": 1e-9})
            best = objective.minimiser(L2Ball(50.0))
            np.testing.assert_allclose(best, slow.x, atol=1e-6)
            other = np.random.default_rng(6).standard_normal(9)
            assert objective.difference(other, best) == pytest.approx(risk(other) - risk(best), rel=1e-9)
            value, gradient, hessian = objective.expansion(other)
            nudges = 1e-5 * np.eye(9)
            numeric = [(risk(other + nudge) - risk(other - nudge)) / 2e-5 for nudge in nudges]
            assert value == pytest.approx(risk(other), rel=1e-12)
            np.testing.assert_allclose(gradient, numeric, atol=1e-9)
            bends = [
                (objective.expansion(other + nudge)[1] - objective.expansion(other - nudge)[1]) / 2e-5
                for nudge in nudges
            ]
            np.testing.assert_allclose(hessian, bends, atol=1e-8)


CONFIG = """
[population]
kind = "table"
path = "mine.csv"
user = "who"
label = "kind"
classes = [0, 1, 2]
numeric = { a = [-1, 1], b = [-1, 1] }
[problem]
items_per_user = 4
[privacy]
epsilon = 15.0
delta = 0.1
[algorithm]
trust_clients = true
"""


def specified(algorithm, *settings, users=20, **changes):
    given = [*SOFTMAX[1:], f"algorithm.name={algorithm}", *settings]
    wanted, _ = specify(
        configs.parse(CONFIG, settings=given), run="trial", users=users, seconds=60, simulation_seed=SEED
    )
    return wanted.model_copy(update=changes)


class TestWhatIsDeclared:
    def test_a_domain_that_is_left_open_is_refused(self):
        wanted = specified("one-pass-dp-sgd")
        open_ = replace(wanted.problem, wide=Wide(L2Ball(30.0), 0.1))
        with pytest.raises(ConfigError, match="Expected a problem with one domain"):
            make_plan(wanted.model_copy(update={"problem": open_}))

    def test_the_number_of_classes_has_to_be_given(self, tmp_path):
        frame(9).to_csv(tmp_path / "mine.csv", index=False)
        undeclared = configs.parse(CONFIG.replace("classes = [0, 1, 2]", ""), settings=["loss.name=softmax"])
        with pytest.raises(ConfigError, match=r"Expected loss\.classes for the softmax loss, got none"):
            setup(undeclared, tmp_path)

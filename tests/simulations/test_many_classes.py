"""Losses from a table to a model: three classes, slopes that jump, uneven columns, and what a risk means."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.optimize import minimize

import quoron
from quoron.data import from_table
from quoron.data.table import ExcessLoss, TrainingObjective
from quoron_client import L2Ball, make_loss
from quoron_client.data.encoding import Classes, Encoding
from quoron_client.data.features import Numeric

USERS, ITEMS = 3000, 4
MANY = {"local-model": 8_000}  # users that it needs
RANGES = {"a": (-1.0, 1.0), "b": (-1.0, 1.0)}
SOFTMAX = ("population.label.classes=[0, 1, 2]", "loss.feature_norm=2.0", "domain.radius=4.0")


def frame(users=USERS):
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (ITEMS * users, 2))
    scores = np.stack([2 * x[:, 0], 2 * x[:, 1], -x.sum(axis=1)], axis=1) + rng.gumbel(size=(len(x), 3))
    who = np.repeat([f"person-{user:05d}" for user in range(users)], ITEMS)
    return pd.DataFrame({"who": who, "a": x[:, 0], "b": x[:, 1], "kind": scores.argmax(axis=1)})


def crowd(users=40, **changes):
    options = {"loss": make_loss("softmax", classes=3, feature_norm=2.0, ridge=0.01), "domain": L2Ball(4.0)}
    features = tuple(Numeric(name, *ends) for name, ends in RANGES.items())
    rules = Encoding(features, label=Classes("kind", (0, 1, 2)), feature_norm=2.0)
    return from_table(frame(users), rules, user="who", **options | changes)


def learnt(people, label, algorithm, out, *settings):
    return quoron.simulate(
        people,
        user="who",
        label=label,
        columns={"numeric": RANGES},
        epsilon=8.0,
        delta=1e-5,
        algorithm=algorithm,
        out=out,
        settings=list(settings),
    )


@pytest.mark.parametrize(
    ("algorithm", "part", "settings"),
    [
        pytest.param("one-pass-dp-sgd", 0.6, ("algorithm.options.rounds=12",), marks=pytest.mark.slow),
        pytest.param("dp-sgd-wor", 0.6, ("algorithm.options.rounds=12",), marks=pytest.mark.slow),
        ("recentred-sgd", 0.6, ("algorithm.options.rounds=12",)),
        ("tracking-srgd", 0.1, ("algorithm.options.rounds=16",)),
        ("outlier-iterates", 0.8, ("algorithm.options.rounds=16",)),
        pytest.param("local-model", 0.5, (), marks=pytest.mark.slow),
    ],
)
def test_three_classes_are_learnt(algorithm, part, settings, tmp_path):
    central = "privacy.trust_model=central-release"
    people = frame(MANY.get(algorithm, USERS))
    result = learnt(people, "kind", algorithm, tmp_path / "run", *SOFTMAX, *settings, central)
    assert result.plan.problem.outputs == 3
    assert result.plan.problem.dimension == 9  # two features and an intercept, for each class
    assert result.weights.shape == (9,)
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
            assert ExcessLoss(objective, best).difference(other) == pytest.approx(risk(other) - risk(best), rel=1e-9)
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


@pytest.mark.parametrize("algorithm", ["recentred-sgd", "local-model"])
def test_the_hinge_is_learnt_through_its_envelope(algorithm, tmp_path):
    people = frame()
    people = people.assign(good=people.a + 0.3 * people.b > 0)
    settings = ["loss.name=hinge", "algorithm.options.smoothing=2.0", "algorithm.options.rounds=16"]
    result = learnt(people, "good", algorithm, tmp_path / "run", *settings)
    assert result.plan.parameters.smoothing == 2.0
    assert result.plan.parameters.smoothness == pytest.approx(0.5)
    assert result.summary.excess_risk < 0.6 * result.summary.excess_risk_initial


@pytest.mark.parametrize(
    ("name", "bounds", "most"),
    [
        ("logistic", {}, math.log(2)),
        ("softmax", {"classes": 5}, math.log(5)),
        ("hinge", {}, 1.0),
        ("least_squares", {"label_bound": 2.0}, 2.0),
        ("linear", {}, None),
    ],
)
def test_no_model_is_further_below_the_start_than_the_loss_at_zero(name: str, bounds: Any, most: float) -> None:
    found = make_loss(name, **bounds).start_loss
    assert found == (None if most is None else pytest.approx(most))


def test_no_noise_depends_on_what_is_known_of_the_label() -> None:
    people = frame(600)
    given = {"user": "who", "label": "ill", "columns": {"numeric": RANGES}, "epsilon": 4.0, "delta": 1e-6}
    plans = [
        quoron.train(people.assign(ill=people.kind == 0), **given, settings=said, dry_run=True).plan
        for said in ([], ["problem.label_rate=0.1"])
    ]
    assert plans[0].parameters == plans[1].parameters


def trained(width: float, method: str, users: int = 6_000) -> Any:
    """On columns that fill one `width`-th of their declared ranges, and a constant."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((users, 2))
    ill = rng.random(users) < 1 / (1 + np.exp(-values @ np.array([1.5, -1.0])))
    table = pa.table({"who": np.arange(users), "x0": values[:, 0], "x1": values[:, 1], "ill": ill})
    ends = (-3.0 * width, 3.0 * width)
    numeric = {"x0": ends, "x1": ends}
    return quoron.train(table, user="who", label="ill", columns={"numeric": numeric}, epsilon=8.0, algorithm=method)


def test_a_trained_model_says_so_where_columns_fill_a_thousandth_of_their_ranges_and_not_where_they_fill_them() -> None:
    for width, expected in ((1.0, False), (1000.0, True)):
        warnings = trained(width, "tracking-srgd").summary.warnings
        assert any("the pilot could not make the columns even" in each for each in warnings) == expected

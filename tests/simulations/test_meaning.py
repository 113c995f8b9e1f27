"""What a predicted excess risk means for a label: what is exact, what it is read beside; no noise depends on it."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import Keep, Privacy
from quoron.config import from_tree
from quoron.planning.meaning import meaning
from quoron.populations import Numeric, from_table
from quoron.simulation.scene import Setup, setup
from quoron_client.data.encoding import read_label
from quoron_client.losses import LeastSquares, make_loss
from quoron_client.protocol.domains import L2Ball
from quoron_server.algorithms.forecast import constant_risk, entropy, start_risk
from quoron_server.problem import Problem

USERS = 600
SAID: dict[str, Any] = {"user": "who", "numeric": {"a": (-3, 3), "b": (-3, 3)}, "privacy": Privacy(4.0, 1e-6)}


def people(rate: float = 0.1) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    numbers = draw.normal(size=(2 * USERS, 2))
    scores = numbers @ [1.0, -0.5]
    frame = pd.DataFrame(numbers, columns=["a", "b"]).assign(who=np.repeat(np.arange(USERS), 2))
    return frame.assign(ill=(scores + draw.normal(size=2 * USERS) > np.quantile(scores, 1 - rate)).astype(int),
                        cost=50_000 + 9_000 * scores + 4_000 * draw.normal(size=2 * USERS))  # fmt: skip


def scene(**more: Any) -> Setup:
    """Of a table, with more keys as section__key."""
    tree: dict[str, Any] = {
        "population": {"kind": "table", "path": "people.csv", "user": "who", "numeric": SAID["numeric"]}
    }
    for name, value in more.items():
        section, _, key = name.partition("__")
        tree.setdefault(section, {})[key] = value
    return setup(from_tree(tree), Path())


def problem_of(**more: Any) -> Problem:
    return scene(**more).problem


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "ledger.sqlite"))
    people().to_csv("people.csv", index=False)
    return tmp_path


class TestOfSquares:
    def test_predictions_are_as_far_from_the_best_models_as_it_says_in_the_labels_own_units(self) -> None:
        crowd = from_table(
            people(), user="who", label=read_label("cost", label_range=(0, 100_000)), loss=LeastSquares(),
            features=(Numeric("a", -3, 3), Numeric("b", -3, 3)), domain=L2Ball(1e3), items_per_user=2,
        )  # fmt: skip
        items, best = crowd.training, crowd.optimum
        near = best + 0.1 * np.random.default_rng(1).normal(size=3)
        apart = 50_000 * np.sqrt(np.mean((items.features.astype(float) @ (near - best)) ** 2))
        beliefs = {"label_bound": 1.0, "label_unit": 50_000.0, "start_loss": 0.5}
        known = replace(A_PROBLEM, beliefs=replace(A_PROBLEM.beliefs, **beliefs))
        read = meaning(known, crowd.excess_risk(near))
        assert read is not None
        assert read.apart == pytest.approx(apart, rel=1e-3)
        assert crowd.test_metrics(near)["rmse"] <= crowd.test_metrics(best)["rmse"] + 2 * read.apart


A_PROBLEM = Problem(
    users=1000, items_per_user=1, dimension=3, domain=L2Ball(100.0), lipschitz=100.0, smoothness=1.0,
    start_gradient=1.0, feature_norm=1.0, link_curvature=1.0,
)  # fmt: skip


class TestTheStart:
    @pytest.mark.parametrize(
        ("name", "bounds", "most"),
        [
            ("logistic", {}, math.log(2)),
            ("softmax", {"classes": 5}, math.log(5)),
            ("hinge", {}, 1.0),
            ("least_squares", {"label_bound": 2.0}, 2.0),
            ("absolute", {"label_bound": 2.0}, 2.0),
            ("linear", {}, None),
        ],
    )
    def test_no_model_is_further_below_it_than_the_loss_at_zero(self, name: str, bounds: Any, most: float) -> None:
        found = make_loss(name, **bounds).start_loss
        assert found == (None if most is None else pytest.approx(most))

    def test_a_rate_says_what_there_is_to_learn_beside_it_and_nothing_about_the_start(self, place: Path) -> None:
        bare, told = problem_of(population__label="ill"), problem_of(population__label="ill", problem__label_rate=0.1)
        assert start_risk(bare) == start_risk(told) == pytest.approx(math.log(2))
        assert (constant_risk(bare), constant_risk(told)) == (None, pytest.approx(entropy(0.1)))
        crowd = scene(population__label="ill").population
        assert crowd.excess_risk(np.zeros(3)) <= start_risk(told)
        constant = np.array([0.0, 0.0, 1.0])  # a row's constant is what is left of its norm
        steps = [crowd.excess_risk(constant * step) for step in np.linspace(-8, 0, 81)]
        assert min(steps) <= entropy(0.1)

    def test_no_noise_depends_on_what_is_known_of_the_label(self, place: Path) -> None:
        plans = [
            quoron.plan_training("people.csv", **SAID, label="ill", settings=said).plan
            for said in ([], ["problem.label_rate=0.1"])
        ]
        assert plans[0].parameters == plans[1].parameters


class TestDoors:
    def test_a_plan_its_json_and_a_report_say_the_same(self, place: Path) -> None:
        planned = quoron.plan_training("people.csv", **SAID, label="ill", settings=["problem.label_rate=0.1"])
        read = planned.forecast
        assert read is not None
        assert read.area is not None
        assert json.loads(json.dumps(planned.as_json()))["forecast"] == read.as_json()
        trained = quoron.train("people.csv", **SAID, label="ill", settings=["problem.label_rate=0.1"], keep=Keep("one"))
        assert trained.summary.forecast == read.as_json()
        assert (
            trained.model.forecast == trained.summary.foretold() == quoron.load(place / "one" / "model.json").forecast
        )
        assert read.words() in (place / "one" / "report.html").read_text(encoding="utf-8").replace("&#x27;", "'")

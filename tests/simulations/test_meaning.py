"""What a predicted excess risk means for a label: what is exact, what it is read beside; no noise depends on it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import Privacy
from quoron.config import from_tree
from quoron.simulation.scene import Setup, setup
from quoron_client.losses import make_loss
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

    def test_no_noise_depends_on_what_is_known_of_the_label(self, place: Path) -> None:
        plans = [
            quoron.plan_training("people.csv", **SAID, label="ill", settings=said).plan
            for said in ([], ["problem.label_rate=0.1"])
        ]
        assert plans[0].parameters == plans[1].parameters

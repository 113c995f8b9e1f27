"""Every door is told in the same words: few of them, one meaning each, and what is wrong is named with its place."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import Keep, Method, Privacy, declare, sections
from quoron import config as configs
from quoron.flower import train_privately
from quoron.model import Model
from quoron_client.data.encoding import Encoding
from quoron_client.data.features import Numeric
from quoron_client.data.labels import Signs
from quoron_client.losses import make_loss
from quoron_privacy.errors import ConfigError

ROOT = Path(__file__).parent.parent.parent
DOORS: dict[str, Any] = {
    "train": quoron.train,
    "plan_training": quoron.plan_training,
    "simulate": quoron.simulate,
    "compare": quoron.compare,
    "plan": quoron.plan,
    "ask": quoron.ask,
    "resume": quoron.resume,
    "train_rows": quoron.train_rows,
    "train_privately": train_privately,
    "private_mean": quoron.private_mean,
    "declare": declare.declare,
}


@pytest.mark.parametrize(
    ("door", "word", "home"),
    [
        ("train", {"adjacency": "zero-out"}, r"adjacency as privacy=Privacy\(adjacency=\.\.\.\) for train"),
        ("simulate", {"algorithm": "srgd"}, r"algorithm as method=Method\(algorithm=\.\.\.\)"),
        ("compare", {"workers": 2}, r"workers as engine=EngineChoice"),
        ("train_rows", {"radius": 1.0}, r"radius as method=Method\(radius=\.\.\.\) for train_rows"),
        ("train_privately", {"seconds": 3}, r"seconds as timing=Timing"),
    ],
)
def test_a_word_that_is_said_elsewhere_is_sent_there(door: str, word: dict[str, Any], home: str) -> None:
    with pytest.raises(ConfigError, match=home):
        DOORS[door](**word)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"privacy": Privacy(1.0, 1e-6, health=0.1)}, "health"),
        ({"method": Method(clip_norm=1.0)}, "radius=None"),
        ({"keep": Keep(run="first")}, "run"),
    ],
)
def test_rows_need_both_numbers_of_a_promise_and_a_radius(given: dict[str, Any], name: str) -> None:
    whole = {"privacy": Privacy(1.0, 1e-6), "method": Method(radius=1.0)} | given
    with pytest.raises(ConfigError, match=name):
        quoron.train_rows(lambda users, point: pytest.fail("asked"), users=9, dimension=2, **whole)  # type: ignore[arg-type]


def test_sections_are_the_settings_they_stand_for() -> None:
    texts = ["privacy.epsilon=2.0", "privacy.delta=1e-5", "algorithm.name=dp-ftrl", "algorithm.options.rounds=4"]
    texts += ["problem.items_per_user=3", "domain.radius=2.0", "run.seed=4", "train.group=clinic", "run.out=here"]
    method = Method("dp-ftrl", {"rounds": 4}, items_per_user=3, radius=2.0, seed=4)
    said = sections.sections(Privacy(2.0, 1e-5), method, Keep("here", group="clinic"), door="plan")
    assert configs.parse("", settings=[said]) == configs.parse("", settings=texts)


def test_a_number_that_is_said_is_never_taken_for_one_that_is_not(tmp_path: Path) -> None:
    """Zero is no promise to a door that would otherwise take what stands elsewhere, or what is usual."""
    assert sections.with_keywords(Privacy(delta=1e-3), "a door", epsilon=0.0).needed("a door") == (0.0, 1e-3)
    assert Privacy(0.0, 0.0).needed("a door", usual=1e-6) == (0.0, 0.0)
    assert Privacy(1.0).needed("a door", usual=1e-6) == (1.0, 1e-6)
    table = pd.DataFrame({"who": np.arange(600), "x": np.arange(600) % 2, "y": np.arange(600) % 2 == 0})
    encoding = Encoding((Numeric("x", 0, 1),), Signs("y"), intercept=True, feature_norm=1.0)
    model = Model(np.array([1.0, 0.0]), encoding, make_loss("logistic", feature_norm=1.0), None)
    for name, said in (("epsilon", Privacy(delta=1e-3)), ("delta", Privacy(1.0))):
        none: dict[str, Any] = {name: 0.0}
        with pytest.raises(ConfigError, match=f"Expected {name}"):
            quoron.evaluate(model, table, user="who", privacy=said, keep=Keep(ledger=tmp_path / "own.sqlite"), **none)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_is_its_path_and_three_words(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "ledger.sqlite"))
    dice = np.random.default_rng(0)
    rows = pd.DataFrame({"tail": np.arange(600) // 2, "hour": dice.uniform(0, 24, 600), "late": dice.random(600) < 0.3})
    rows.to_csv("flights.csv", index=False) if kind == "csv" else rows.to_parquet("flights.parquet")
    seen = {"numeric": {"hour": (0, 24)}, "settings": ["privacy.delta=1e-4", "budget.rounds=2"]}
    planned = quoron.plan_training(f"flights.{kind}", user="tail", label="late", epsilon=8, **seen)
    assert planned.plan.problem.users == 300
    trained = quoron.train(f"flights.{kind}", user="tail", label="late", epsilon=8, **seen)
    assert isinstance(trained, quoron.Trained)
    assert trained.statement == trained.summary.statement
    np.testing.assert_array_equal(trained.weights, trained.model.weights)
    assert trained.directory == Path("runs/flights-1")


def test_commands_that_run_something_go_through_the_doors() -> None:
    for name in ("app", "train", "compare"):
        text = (ROOT / "simulations" / "quoron" / "cli" / f"{name}.py").read_text(encoding="utf-8")
        imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        rooms = {node.module for node in imports}
        assert not rooms & {"quoron.simulation.run", "quoron.training.run", "quoron.comparing.comparison"}

"""Whatever is wrong with an argument is said by name: a QuoronError with the thing, its value and the fix."""

import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import EngineChoice, Keep, Method, Privacy
from quoron.declare import declare
from quoron_privacy.errors import QuoronError

NAN, INF, THING = float("nan"), float("inf"), object()
FRAME = pd.DataFrame(
    {"who": np.repeat(np.arange(300), 2), "age": np.arange(600) % 100, "ward": ["n", "s"] * 300, "ill": [0, 1, 1] * 200}
)
NO_NUMBER: tuple[Any, ...] = ("2", [2], True, THING, 1j, b"2")
NO_TEXT: tuple[Any, ...] = (3, ["who"], {"who": 1}, True, 1.5, b"who", THING, "")
NO_SWITCH: tuple[Any, ...] = ("yes", 3, [], THING)
NO_RANGE: tuple[Any, ...] = (5, (0,), (1, 0), ("a", "b"), "0:1", (0, NAN), (0, INF), True, THING, (0, 1, 2))
NO_SECTION: tuple[Any, ...] = ("2", 2, (2.0, 1e-6), {"epsilon": 2}, Privacy, Method, Keep, THING)
WRONG: dict[str, tuple[Any, ...]] = {
    "source": (
        *("nowhere.csv", "nowhere.toml", "nothing", "", Path("nowhere"), "nofolder/", 3, None, True, b"v.csv", THING),
        *([{"who": 1}], {"who": [1]}, np.zeros((3, 2)), (), iter([1]), FRAME["age"], FRAME[["who", "age"]]),
    ),
    "user": (*NO_TEXT, "whom"),
    "label": (*NO_TEXT, "sick", "ill >", "ill > x"),
    "numeric": (
        *(5, True, THING, [("age", 0, 100)], {"age": None}, {"age": "0:100"}, {"age": {"low": 0}}, {3: (0, 100)}),
        *({"ag": (0, 100)}, {"who": (0, 1)}, {"ill": (0, 1)}, *({"age": each} for each in NO_RANGE)),
    ),
    "categorical": (
        *(5, True, THING, [3], [["ward"]], {"wrad": ["n"]}, {"age": ["x"]}, {3: ["n"]}),
        *({"ward": each} for each in (5, "n", [1.5], ["n", "n"], [None], {"n", "s"}, [["n"]])),
    ),
    "ranges": (*NO_RANGE, "age", {"age": (0, 1)}, {"nope": (0, 1)}, [[0, 1]]),
    "hashed": (
        5,
        "ward",
        ["ward"],
        True,
        THING,
        {"wrad": 8},
        *({"ward": each} for each in (0, 1, 1.5, "x", None, 2**40)),
    ),
    "dates": (
        *(
            5,
            True,
            THING,
            [3],
            {"ward": 3},
            {"nope": ["month"]},
            {"ward": ["moon"]},
            {"ward": []},
            {"ward": ["day", "day"]},
        ),
        *({"ward": {"year": each}} for each in NO_RANGE),
        *({"ward": {"nope": 1}}, {"ward": {"days": ("x", "y")}}, {"ward": {"parts": ["month"], "zone": "Mars"}}),
    ),
    "exclude": (5, True, THING, [3], "age", {"age": 1}, [["age"]]),
    "buy": (5, True, THING, "age", [3], {"age": "nope"}, {"age": 3}, {"nope": "number"}, ["nope"], [["age"]]),
    "class_weight": (5, True, THING, "nope", {"1": 0}, {"1": -1}, {"1": "x"}, {"7": 2.0}, [1, 2], {}),
    "class_weight_cap": ("x", 0, -1, True, THING, [3], NAN, INF),
    "separator": (5, True, THING, "", "ab", [";"], "\n", '"'),
    "decimal": (5, True, THING, ";", [","]),
    "encoding": (5, True, THING, "klingon", ["utf-8"]),
    "quoting": (5, True, THING, "maybe", ["none"]),
    "positive": (1.5, [1], THING, {}, ("a",), NAN, b"a"),
    "classes": (
        "yes",
        3,
        ["a"],
        ["a", "a"],
        {"a", "b"},
        [1.5, 2.5],
        [None, "a"],
        True,
        THING,
        {"a": 1},
        [["a"], ["b"]],
    ),
    "label_range": NO_RANGE,
    "weight": (
        "age",
        5,
        True,
        THING,
        {"column": "age"},
        {"most": 3},
        {"column": "age", "most": 0},
        {"column": 3, "most": 3},
    ),
    "missing": ("keep", 3, True, [], THING),
    "intercept": NO_SWITCH,
    "unit_rows": NO_SWITCH,
    "epsilon": (*NO_NUMBER, -1, 0, NAN, INF, 1e9, 1e-30),
    "delta": (*NO_NUMBER, -1, 0, 3, NAN),
    "items_per_user": (*NO_NUMBER, -1, 0, 1.5, NAN),
    "privacy": (
        *NO_SECTION,
        *(Privacy(each) for each in (*NO_NUMBER, -1, 0, NAN)),
        *(Privacy(2.0, each) for each in (*NO_NUMBER, -1, 0, 3, NAN)),
        *(
            Privacy(2.0, **{key: "x"})
            for key in ("adjacency", "quorum", "health", "quorum_epsilon", "allow_large_delta")
        ),
        *(Privacy(2.0, quorum=3), Privacy(2.0, health=3)),
    ),
    "method": (
        *NO_SECTION,
        *(
            Method("nope"),
            Method(3),
            Method(options=3),
            Method(options={"rounds": 3}),
            Method("recentred-sgd", {"nope": 3}),
        ),
        *(Method(**{key: "x"}) for key in ("options", "items_per_user", "radius", "smoothness", "clip_norm", "chunk")),
        *(Method(**{key: -1}) for key in ("algorithm", "items_per_user", "radius", "smoothness")),
        *(Method("recentred-sgd", {"rounds": "x"}), Method(items_per_user=1.5), Method(clip_norm=1.0), Method(chunk=3)),
    ),
    "keep": (*NO_SECTION, Keep(3), Keep(THING), Keep(group="*"), Keep(group=3), Keep(ledger=3), Keep(run=3)),
    "settings": (
        *("privacy.delta=1e-7", 3, True, THING, [3], [None], ["nokey"], ["a=b=c"], ["privacy.nope=1"], ["privacy=3"]),
        *({"nope": {}}, {"privacy": 3}, {"privacy": {"nope": 1}}, {"privacy": {"delta": THING}}, {3: {}}),
    ),
    "observers": (3, "x", [3], [print], THING),
    "evaluate": ("x", 0, 1, -0.1, 2, float("nan"), [0.1], True, THING),
    "progress": ("yes", 3, []),
    "engine": ("nope", 3, None, [], True),
    "simulation_seed": ("x", -1, 1.5, 2**70, True, [1], THING),
    "algorithms": ("auto", "nope", 3, ["nope"], [3], [], [""], {"auto": 1}, THING),
    "vary": (3, "x", [], {"nope": [1]}, {"privacy.epsilon": 3}, {"privacy.epsilon": []}, {"privacy.epsilon": "12"}),
    "seeds": ("x", 0, -1, 1.5, True, [1], THING, None),
    "risk": ("x", -1, 0, [1], THING, True, "-5%"),
    "accuracy": ("x", [1], THING, True),
    "epsilons": ("x", 3, [], None),
    "compare": ("x", 3, [], None),
}
GOOD: dict[str, Any] = {"user": "who", "label": "ill", "numeric": {"age": (0, 100)}}
OWN = {
    "simulate": ("simulation_seed",),
    "compare": ("algorithms", "vary", "seeds"),
    "ask": ("risk", "accuracy", "epsilons"),
}
SHARED = ("settings", "user", "privacy", "keep", "engine", "observers", "progress")  # everywhere, read by the same code


def calls() -> Iterator[tuple[str, str, Any]]:
    """A door, the argument that is wrong, and its value: all of them at one door, at others what is read there."""
    for door in ("plan_training", "train", "simulate", "compare", "plan", "ask"):
        known = inspect.signature(getattr(quoron, door)).parameters
        for name in known if door == "plan_training" else [*SHARED, *OWN.get(door, ())]:
            yield from ((door, name, value) for value in WRONG[name] if name in known)


def refused(call: Any, *given: Any, **said: Any) -> str:
    """What is said of a wrong call; AssertionError where it is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            call(*given, **said)
        except QuoronError as error:
            return str(error)
        except Exception as error:  # what nobody should see
            return f"NOT BY NAME: {type(error).__name__}: {error}"
    return "NOT REFUSED"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "ledger.sqlite"))
    return tmp_path


def assert_named(told: dict[str, str]) -> None:
    wrong = {call: said for call, said in told.items() if said.startswith("NOT ") or not 15 < len(said) < 900}
    assert not wrong


def test_every_wrong_argument_of_a_door_is_refused_by_name() -> None:
    told: dict[str, str] = {}
    for door, name, value in calls():
        said = (
            GOOD
            | ({} if name == "privacy" else {"epsilon": 1.0})
            | {name: value}
            | ({"risk": "5%"} if door == "ask" and name not in OWN["ask"] else {})
        )
        told[f"{door}({name}={value!r})"] = refused(getattr(quoron, door), said.pop("source", FRAME), **said)
    assert len(told) > 300
    assert_named(told)


def rows(users: Any, point: Any) -> Any:
    """Rows of zeros."""
    return np.zeros((len(users), len(point)))


def test_what_takes_no_table_of_a_door_refuses_by_name_too() -> None:
    numbers, users = (*NO_NUMBER, -1, 0, NAN), np.zeros((50, 2))
    declared: dict[str, Any] = {"user": "who", "privacy": Privacy(2.0, simulation_seed=1), "numeric": ["age"]}
    by_rows: dict[str, Any] = {
        "users": 1000,
        "dimension": 2,
        "privacy": Privacy(2.0, 1e-5),
        "method": Method(radius=10, clip_norm=1),
    }
    sections = {"privacy": (None, *NO_SECTION, Privacy("2", 1e-5), Privacy(2.0, "x")), "keep": WRONG["keep"]}  # type: ignore[arg-type]
    tables = {
        quoron.private_mean: (
            {"users": users, "epsilon": 1.0, "delta": 1e-6, "bound": 1.0},
            {
                "users": (3, None, "x", THING, {"a": 1}, [], np.zeros((0, 2)), [["a"]]),
                **dict.fromkeys(("epsilon", "delta", "bound"), (*(each for each in numbers if each is not True), None)),
                **dict.fromkeys(("spread", "outliers"), (*NO_NUMBER[:2], THING, -1, NAN)),
                "method": ("no", 3, THING, None, []),
                "simulation_seed": ("no", THING, 1.5, []),
            },
        ),
        declare: (
            {"source": FRAME} | declared,
            {
                "source": (3, None, "no.csv", "no", THING, [{"who": 1}], np.zeros((3, 3)), b"v.csv"),
                "user": (*NO_TEXT, None, "whom"),
                **dict.fromkeys(
                    ("numeric", "categorical"), (3, None, "age", ["agee"], [3], THING, {"age": (0, 1)}, [["age"]])
                ),
                "items": (3, "x", THING, None),
                "most_votes": ("x", 1.5, THING, None, True),
                "most_outside": ("x", -1, 2, THING, None, NAN),
                **sections,
            },
        ),
        quoron.train_rows: (
            {"rows": rows} | by_rows,
            {
                "rows": (3, None, "x", THING),
                **dict.fromkeys(("users", "dimension"), (0, -1, 1.5, "x", None, THING, True)),
                "method": (None, *NO_SECTION, Method(), Method("no", radius=1, clip_norm=1), Method(radius=THING)),  # type: ignore[arg-type]
                "start": ("x", THING, [3], [3, "x"], np.zeros(3)),
                "watch": (3, "x"),
                "observers": WRONG["observers"],
                **sections,
            },
        ),
        quoron.load: ({}, {"path": (3, None, THING, [1], b"x", "nowhere")}),
        quoron.report: ({}, {"directory": (3, None, THING, [1], b"x", "nowhere")}),
        quoron.resume: (
            {"directory": "nowhere"},
            {"directory": (3, None, b"x", "no"), "engine": (3, None, "x", THING)},
        ),
        EngineChoice.of: (
            {},
            {
                "name": ("no", 3, None, THING, []),
                **dict.fromkeys(("workers", "nodes", "cpus", "clients"), ("x", 0, -1, 1.5, THING, True)),
                **dict.fromkeys(("superlink", "address", "slow", "kills", "keep", "insecure"), (3, THING)),
            },
        ),
    }
    told: dict[str, str] = {}
    for call, (good, wrong) in tables.items():
        for name, values in wrong.items():
            for value in values:
                told[f"{call.__name__}({name}={value!r})"] = refused(call, **{**good, name: value})
    assert len(told) > 250
    assert_named(told)


def test_predictions_and_files_of_a_model_refuse_by_name() -> None:
    trained = quoron.train(FRAME, **GOOD, epsilon=4.0, method=Method("recentred-sgd", {"rounds": 2}), keep=Keep("run"))
    tables = (3, None, THING, "nowhere.csv", [1], np.zeros((2, 2)), FRAME[["who"]], {"age": [1]}, [{"age": 1}])
    told = {f"predict({table!r})": refused(trained.model.predict, table) for table in tables}
    told |= {f"save({path!r})": refused(trained.model.save, path) for path in (3, None, THING, [])}
    assert_named(told)

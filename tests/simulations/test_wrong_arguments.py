"""Whatever is wrong with an argument is said by name, in the same words at every door, and shows no cell."""

import ast
import inspect
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron import arguments
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.data.columns import Label
from quoron.engine.choice import Flower, Inline, Ray, Service, from_spec
from quoron.flower import train_privately
from quoron.model import Model
from quoron.sklearn import PrivateLogisticRegression
from quoron.training.rows import items_of
from quoron_client.data.encoding import Encoding, Signs, read_label
from quoron_client.data.features import Categorical, Numeric
from quoron_client.losses import make_loss
from quoron_privacy.errors import ConfigError, DataError, QuoronError
from small_run import TOML

NAN, INF, THING = float("nan"), float("inf"), object()
FRAME = pd.DataFrame(
    {"who": np.repeat(np.arange(300), 2), "age": np.arange(600) % 100, "ward": ["n", "s"] * 300, "ill": [0, 1, 1] * 200}
)
NO_NUMBER: tuple[Any, ...] = ("2", [2], True, THING, 1j, b"2")
NO_TEXT: tuple[Any, ...] = (3, ["who"], {"who": 1}, True, 1.5, b"who", THING, "")
NO_COUNT: tuple[Any, ...] = ("x", 0, -1, 1.5, THING, True)
NO_SWITCH: tuple[Any, ...] = ("yes", 3, [], THING)
NO_RANGE: tuple[Any, ...] = (5, (0,), (1, 0), ("a", "b"), "0:1", (0, NAN), (0, INF), True, THING, (0, 1, 2))
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
    "hashed": (5, True, THING, {"wrad": 8}, {"ward": 0}, {"ward": "x"}, {"ward": 2**40}),
    "dates": (
        *(5, True, THING, {"ward": 3}, {"nope": ["month"]}, {"ward": ["moon"]}, {"ward": ["day", "day"]}),
        *({"ward": {"year": (1, 0)}}, {"ward": {"nope": 1}}, {"ward": {"parts": ["month"], "format": "Mars"}}),
    ),
    "exclude": (5, True, THING, [3], "age", {"age": 1}, [["age"]]),
    "estimate": (5, True, THING, "age", [3], {"age": "nope"}, {"age": 3}, {"nope": "number"}, ["nope"], [["age"]]),
    "csv": (
        *(5, True, THING, ";", [";"], {"sep": ";"}, *({"separator": each} for each in (5, "", "ab", [";"], "\n", '"'))),
        *(*({"decimal": each} for each in (5, ";")), {"encoding": "klingon"}, {"quoting": "maybe"}),
    ),
    "label.column": (3, ["a"], THING),
    "label.positive": (1.5, [1], THING, {}, ("a",), NAN, b"a"),
    "label.classes": ("yes", 3, ["a"], ["a", "a"], {"a", "b"}, [1.5, 2.5], [None, "a"], THING, [["a"], ["b"]]),
    "label.range": NO_RANGE,
    "weight": ("age", True, THING, {"column": "age"}, {"column": "age", "most": 0}, {"column": 3, "most": 3}),
    "missing": ("keep", 3, True, [], THING),
    "intercept": NO_SWITCH,
    "normalize": NO_SWITCH,
    "curves": (*NO_NUMBER, 0, -1, 1.5, 9, NAN),
    "pairs": (*NO_NUMBER, -1, 1.5, 9, NAN),
    "model": (*NO_TEXT, "automatic", "curve"),
    "columns": (3, "age", True, THING, ["age"], {"nope": 1}, {"numeri": {}}, {"user": "who"}, {3: 1}, {"numeric": 3}),
    "epsilon": (*NO_NUMBER, -1, 0, NAN, INF, 1e9, 1e-30),
    "delta": (*NO_NUMBER, -1, 0, 3, NAN),
    "items_per_user": (*NO_NUMBER, -1, 0, 1.5, NAN),
    "adjacency": ("x", 3, True, THING, ["zero-out"], ""),
    "allow_large_delta": NO_SWITCH,
    "algorithm": ("nope", *NO_TEXT),
    "options": (3, True, THING, "rounds=3", [3], {"nope": 3}),
    "population": ("*", 3, True, THING, ["clinic"], "", "a" * 65),
    **dict.fromkeys(("out", "ledger"), (3, True, THING, ["run"], 1.5)),
    "settings": (
        *("privacy.delta=1e-7", 3, True, THING, [3], [None], ["nokey"], ["a=b=c"], ["privacy.nope=1"], ["privacy=3"]),
        *({"nope": {}}, {"privacy": 3}, {"privacy": {"nope": 1}}, {"privacy": {"delta": THING}}, {3: {}}),
    ),
    "observers": (3, "x", [3], [print], THING),
    "holdout": ("x", 0, 1, -0.1, 2, float("nan"), [0.1], True, THING),
    "progress": ("yes", 3, []),
    "dry_run": NO_SWITCH,
    "engine": ("nope", 3, None, [], True),
    "data_quality": ("x", -1, 2, True, [1], THING),
    "seed": ("x", -1, 1.5, 2**70, True, [1], THING),
    "algorithms": ("auto", "nope", 3, ["nope"], [3], [], [""], {"auto": 1}, THING),
    "vary": (3, "x", [], {"nope": [1]}, {"privacy.epsilon": 3}, {"privacy.epsilon": []}, {"privacy.epsilon": "12"}),
    "seeds": ("x", 0, -1, 1.5, True, [1], THING, None),
    "risk": ("x", -1, 0, [1], THING, True, "-5%"),
    "compare": ("x", 3, [], None),
}
GOOD: dict[str, Any] = {"user": "who", "label": "ill", "columns": {"numeric": {"age": (0, 100)}}}
OWN = {
    "simulate": ("seed",),
    "compare": ("algorithms", "vary", "seeds"),
    "plan": ("risk",),
}
COLUMNS = (*quoron.Columns.__annotations__,)
LABEL = tuple(f"label.{key}" for key in Label.__annotations__)
SHARED = (
    "settings",
    "columns",
    "user",
    "delta",
    "out",
    "engine",
    "observers",
    "progress",
)  # everywhere, read by the same code


def calls() -> Iterator[tuple[str, str, Any]]:
    """A door, the argument that is wrong, and its value: all of them at one door, at others what is read there."""
    for door in ("train", "simulate", "compare", "plan"):
        known = inspect.signature(getattr(quoron, door)).parameters
        for name in [*known, *COLUMNS, *LABEL] if door == "train" else [*SHARED, *OWN.get(door, ())]:
            yield from ((door, name, value) for value in WRONG[name] if name in known or name in (*COLUMNS, *LABEL))


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
        given = {"columns": GOOD["columns"] | {name: value}} if name in COLUMNS else {name: value}
        if name in LABEL:
            given = {"label": {"column": "ill", name.removeprefix("label."): value}}
        said = GOOD | {"epsilon": 1.0} | given
        told[f"{door}({name}={value!r})"] = refused(getattr(quoron, door), said.pop("source", FRAME), **said)
    assert len(told) > 250
    assert_named(told)


def rows(users: Any, point: Any) -> Any:
    """Rows of zeros."""
    return np.zeros((len(users), len(point)))


def test_what_takes_no_table_of_a_door_refuses_by_name_too() -> None:
    numbers, users = (*NO_NUMBER, -1, 0, NAN), np.zeros((50, 2))
    declared: dict[str, Any] = {"user": "who", "epsilon": 2.0, "seed": 1, "numeric": ["age"]}
    by_rows: dict[str, Any] = {
        "users": 1000,
        "dimension": 2,
        "epsilon": 2.0,
        "delta": 1e-5,
        "radius": 10,
        "clip_norm": 1,
    }
    shared: dict[str, Any] = {name: WRONG[name] for name in ("epsilon", "delta", "population", "ledger", "seed")}
    tables = {
        quoron.mean: (
            {"users": users, "epsilon": 1.0, "delta": 1e-6, "bound": 1.0},
            {
                "users": (3, None, "x", THING, {"a": 1}, [], np.zeros((0, 2)), [["a"]]),
                **dict.fromkeys(("epsilon", "delta", "bound"), (*(each for each in numbers if each is not True), None)),
                **dict.fromkeys(("spread", "outliers"), (*NO_NUMBER[:2], THING, -1, NAN)),
                "method": ("no", 3, THING, None, []),
                "seed": ("no", THING, 1.5, []),
            },
        ),
        quoron.find_bounds: (
            {"source": FRAME} | declared,
            {
                "source": (3, None, "no.csv", "no", THING, [{"who": 1}], np.zeros((3, 3)), b"v.csv"),
                "user": (*NO_TEXT, None, "whom"),
                **dict.fromkeys(
                    ("numeric", "categorical"), (3, None, "age", ["agee"], [3], THING, {"age": (0, 1)}, [["age"]])
                ),
                "items": (3, "x", THING, None),
                **shared,
            },
        ),
        quoron.train_rows: (
            {"rows": rows} | by_rows,
            {
                "rows": (3, None, "x", THING),
                **dict.fromkeys(("users", "dimension"), (0, -1, 1.5, "x", None, THING, True)),
                "algorithm": WRONG["algorithm"],
                **dict.fromkeys(("radius", "clip_norm"), (*NO_NUMBER, -1, 0, NAN)),
                **dict.fromkeys(("items_per_user", "chunk"), (*NO_NUMBER, -1, 0, 1.5)),
                "start": ("x", THING, [3], [3, "x"], np.zeros(3)),
                "watch": (3, "x"),
                "observers": WRONG["observers"],
                **shared,
            },
        ),
        quoron.load: ({}, {"path": (3, None, THING, [1], b"x", "nowhere")}),
        quoron.resume: (
            {"directory": "nowhere"},
            {"directory": (3, None, b"x", "no"), "engine": (3, None, "x", THING)},
        ),
        from_spec: ({}, {"engine": ("no", 3, None, THING)}),
        **{
            kind: ({}, {each.name: NO_COUNT if each.type == int | None else (3, THING) for each in fields(kind)})
            for kind in (Inline, Ray, Flower, Service)
        },
    }
    told: dict[str, str] = {}
    for call, (good, wrong) in tables.items():
        for name, values in wrong.items():
            for value in values:
                told[f"{call.__name__}({name}={value!r})"] = refused(call, **{**good, name: value})
    assert len(told) > 250
    assert_named(told)


def test_predictions_and_files_of_a_model_refuse_by_name() -> None:
    trained = quoron.train(FRAME, **GOOD, epsilon=4.0, algorithm="recentred-sgd", options={"rounds": 2}, out="run")
    tables = (3, None, THING, "nowhere.csv", [1], np.zeros((2, 2)), FRAME[["who"]], {"age": [1]}, [{"age": 1}])
    told = {f"predict({table!r})": refused(trained.model.predict, table) for table in tables}
    told |= {f"save({path!r})": refused(trained.model.save, path) for path in (3, None, THING, [])}
    assert_named(told)


ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("function", "argument", "meant"),
    [
        (quoron.train, {"epsilonn": 1.0}, r"Did you mean 'epsilon'\?"),
        (quoron.simulate, {"algoritm": "srgd"}, r"Did you mean 'algorithm'\?"),
        (quoron.train_rows, {"clip": 1.0}, r"Did you mean 'clip_norm'\?"),
        (train_privately, {"second": 3}, r"Did you mean 'seconds'\?"),
        (quoron.train, {"seed": 3}, r"See help\(train\)\."),
    ],
)
def test_a_misspelt_argument_has_one_suggestion_and_no_list(
    function: Any, argument: dict[str, Any], meant: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^Expected an argument of \w+, got '{next(iter(argument))}'\. {meant}$"):
        function(**argument)


@pytest.mark.parametrize("missing", ["epsilon", "delta", "radius"])
def test_rows_need_both_numbers_of_a_guarantee_and_a_radius(missing: str) -> None:
    whole = {name: 1.0 for name in ("epsilon", "delta", "radius") if name != missing}
    with pytest.raises(ConfigError, match=missing):
        quoron.train_rows(lambda users, point: pytest.fail("asked"), users=9, dimension=2, **whole)


def test_arguments_are_the_settings_they_stand_for() -> None:
    texts = ["privacy.epsilon=2.0", "privacy.delta=1e-5", "algorithm.name=dp-ftrl", "algorithm.options.rounds=4"]
    texts += ["population.items_per_user=3", "run.seed=4", "train.population=clinic", "run.out=here"]
    said = {"epsilon": 2.0, "delta": 1e-5, "algorithm": "dp-ftrl", "options": {"rounds": 4}, "items_per_user": 3}
    tree = arguments.sections(said | {"seed": 4, "out": "here", "population": "clinic"})
    assert configs.parse("", settings=[tree]) == configs.parse("", settings=texts)
    shown = {*inspect.signature(quoron.train).parameters, *inspect.signature(quoron.simulate).parameters}
    assert arguments.KEYS.keys() < shown


@pytest.mark.parametrize("name", ["epsilon", "delta"])
def test_zero_is_no_guarantee_and_not_taken_for_what_is_usual(name: str, tmp_path: Path) -> None:
    table = pd.DataFrame({"who": np.arange(600), "x": np.arange(600) % 2, "y": np.arange(600) % 2 == 0})
    encoding = Encoding((Numeric("x", 0, 1),), Signs("y"), intercept=True, feature_norm=1.0)
    model = Model(np.array([1.0, 0.0]), encoding, make_loss("logistic", feature_norm=1.0), None)
    with pytest.raises(ConfigError, match=f"Expected {name}"):
        quoron.evaluate(model, table, user="who", ledger=tmp_path / "own.sqlite", **{"epsilon": 1.0, name: 0.0})


def test_commands_that_run_something_go_through_the_doors() -> None:
    for name in ("app", "tables"):
        text = (ROOT / "simulations" / "quoron" / "cli" / f"{name}.py").read_text(encoding="utf-8")
        imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        rooms = {node.module for node in imports}
        assert not rooms & {"quoron.simulation.run", "quoron.training.run", "quoron.simulation.comparison"}


SMALL = configs.parse(TOML)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Visits of 600 patients, 1 to 6 each; long stays depend on age and ward."""
    generator = np.random.default_rng(7)
    patient = np.repeat(np.arange(600), generator.integers(1, 7, 600))
    age = generator.uniform(0, 100, len(patient))
    ward = generator.choice(["north", "south"], len(patient))
    stay = age / 10 + 3 * (ward == "south") + generator.normal(0, 1, len(patient))
    return pd.DataFrame({"patient": [f"p{number}" for number in patient], "age": age, "ward": ward, "stay": stay})


def test_wrong_frames_are_refused_with_the_column_or_the_argument(frame: pd.DataFrame) -> None:
    with pytest.raises(ConfigError, match="Expected user and label with a table"):
        quoron.simulate(frame)
    with pytest.raises(DataError, match="Expected column 'wrad' in the table, got columns patient, age"):
        quoron.simulate(frame, user="patient", label="stay > 6", columns={"categorical": ["wrad"]})
    with pytest.raises(DataError, match="patients"):
        quoron.simulate(frame, user="patients", label="stay > 6", columns={"numeric": {"age": (0, 100)}})
    with pytest.raises(DataError, match=r"Expected a DataFrame, the path of a table .*, got 3"):
        quoron.simulate(3, user="patient", label="stay")
    with pytest.raises(ConfigError, match="Expected user with a DataFrame"):
        quoron.simulate(SMALL, user="patient")


def test_a_run_resumes_before_its_ledger_exists(place: Path) -> None:
    run = quoron.simulate(SMALL, out="mine")
    for name in ("ledger.sqlite", "ledger.sqlite-acknowledged", "summary.json", "model.npz"):
        (place / "mine" / name).unlink()
    assert np.array_equal(quoron.resume("mine").weights, run.weights)


CELLS = ["Annika", "Agee", "Harlem", "Whom"]  # three are nearly a name of a column
ASKED = "--user who --label ill"
FEATURES = "--numeric age=0:100 --categorical ward=north"
PRIVATE = "--epsilon 8 --delta 1e-3 --set privacy.allow_large_delta=true"


@pytest.fixture
def headerless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rows of forty people, of whom the first is where names should be, and a model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    rows = [",".join(CELLS), *(f"u{each},{each},north,{each % 2}" for each in range(40))]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "t.tsv").write_text("\n".join(rows).replace(",", "\t") + "\n")
    (tmp_path / "t.toml").write_text(
        '[population]\nkind = "table"\npath = "t.csv"\nuser = "who"\nlabel = "ill"\n'
        'columns.numeric = { "*" = [0, 1] }\n'
    )
    encoding = Encoding((Numeric("age", 0, 100), Categorical("ward", ("north",))), label=read_label("ill"))
    Model(np.zeros(encoding.dimension), encoding, make_loss("logistic"), None).save(tmp_path / "model.json")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        f"train t.csv {ASKED} {FEATURES} {PRIVATE}",
        f"train t.tsv {ASKED} {FEATURES} {PRIVATE} --dry-run",
        f"train t.csv {ASKED} {PRIVATE}",
        f"train t.csv {ASKED} --numeric *=0:1 {PRIVATE}",
        f"train t.csv {ASKED} --numeric age=0:1 --set 'population.columns.exclude=[\"A*\"]' {PRIVATE}",
        f"train t.toml {PRIVATE} --dry-run",
        f"plan t.csv {ASKED} {FEATURES} --epsilon 8",
        "plan t.toml",
        f"simulate t.csv {ASKED} {FEATURES}",
        f"tune t.csv {ASKED} {FEATURES} --epsilon 1 --vary domain.radius=[1,2]",
        "bounds t.csv --user who --numeric age --epsilon 1",
        "bounds t.csv --user who --numeric a* --epsilon 1",
        "stats t.csv 'mean of age' --user who --numeric age=0:100 --epsilon 1",
        "stats t.csv 'count by ward' --user who --epsilon 1",
        "evaluate model.json t.csv --user who --epsilon 1",
        "predict model.json t.csv",
        "client --check --data t.csv --user who",
    ],
)
def test_no_command_shows_a_cell_of_the_first_row(command, headerless, capsys):
    assert invoke(shlex.split(command)) != 0
    said = capsys.readouterr()
    assert not [cell for cell in CELLS if cell in said.out + said.err], said
    assert "is not shown. Write the names of the columns above the rows" in said.err


def test_nor_does_a_function_of_a_frame(headerless):
    frame = pd.read_csv("t.csv")
    roles = {"user": "who", "label": "ill"}
    asked = [
        lambda: quoron.train(frame, **roles, columns={"numeric": {"age": (0, 100)}}, epsilon=8.0),
        lambda: quoron.train(frame, **roles, columns={"numeric": {"*": (0, 1)}}, epsilon=8.0),
        lambda: quoron.simulate(frame, **roles, columns={"categorical": ["ward"]}),
        lambda: quoron.load("model.json").predict(frame),
        lambda: PrivateLogisticRegression(epsilon=8.0, bounds={"age": (0, 100), "dose": (0, 1)}).fit(
            frame, np.arange(40) % 2, groups=np.arange(40)
        ),
    ]
    for each in asked:
        with pytest.raises(QuoronError) as error:
            each()
        assert not [cell for cell in CELLS if cell in str(error.value)], error.value


def test_nor_does_a_feature_that_is_no_number():
    """numpy's own words quote the text that it cannot read."""
    columns = {"who": np.arange(2), "age": np.array(["7", "Annika"])}

    class Frame(dict):  # as a library gives columns of text with a type of their own
        """Columns by their names."""

        columns = ("who", "age")

    with pytest.raises(DataError, match="Expected features of numbers, got a column with some that are none") as error:
        items_of(Frame(columns), user="who", features=["age"])
    assert "Annika" not in str(error.value)


@pytest.mark.parametrize("function", [quoron.train, quoron.tune, quoron.simulate, quoron.compare, quoron.plan])
def test_what_is_said_of_columns_is_refused_outside_of_columns_with_the_fix(function: Any) -> None:
    for word in COLUMNS:
        said = refused(function, FRAME, "who", "ill", **{word: {"age": (0, 100)}})
        assert said.startswith(f"Expected columns={{{word!r}: ...}} for {function.__name__}, got {word}=...")


def test_a_wrong_key_of_columns_is_answered_with_one_suggestion() -> None:
    def said(**columns: Any) -> str:
        return refused(quoron.plan, FRAME, "who", "ill", columns=columns)

    assert "population.columns.categorial; did you mean population.columns.categorical?" in said(categorial=["ward"])
    assert "population.columns.xyzzy. Known in [population.columns]: categorical, csv" in said(xyzzy=1)

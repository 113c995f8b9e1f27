"""A released model: in raw units, as plain Python, by thresholds; refused by name where its file is another."""

import json
import math
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quoron
from cover import by_default
from patients import patients
from quoron import config as configs
from quoron import model as model_text
from quoron import model as models
from quoron.cli.app import invoke
from quoron.model import LabelShares, Model
from quoron.sklearn import PrivateLogisticRegression, PrivateRidge
from quoron.training import column_bounds
from quoron.training import run as training
from quoron.training.result import one_answer
from quoron_client.data import tables
from quoron_client.data.encoding import Classes, Encoding, Range, Signs, read_label
from quoron_client.data.features import Categorical, Feature, Hashed, Numeric
from quoron_client.losses import make_loss
from quoron_privacy.errors import ConfigError, DataError, UsageError

AGE, WARD = Numeric("age", 20, 80), Categorical("ward", ("north", "south"))
ROWS = pd.DataFrame(
    {"age": [20.0, 50.0, 71.5, 80.0], "ward": ["north", "south", "attic", "north"], "dose": [1, 2, 3, 4]}
)
finite = st.floats(-5, 5)
pytestmark = pytest.mark.usefixtures("ledger")


def model(label: Any, loss: Any = None, features: tuple[Feature, ...] = (AGE, WARD), **more: Any) -> Model:
    loss = make_loss("logistic") if loss is None else loss
    encoding = Encoding(features, label=label, feature_norm=loss.feature_norm, **more)
    weights = np.arange(1, encoding.dimension + 1) / 4
    return Model(weights, encoding, loss, None)


def in_raw_units(model: Model, rows: pd.DataFrame) -> np.ndarray:
    wards = np.stack([rows.ward == each for each in WARD.categories], axis=1)
    return np.column_stack([rows.age, wards]) @ model.coef_ + model.intercept_


@given(ages=st.lists(st.floats(20, 80), min_size=1, max_size=5), weights=st.lists(finite, min_size=4, max_size=4))
@settings(max_examples=30)
def test_scores_are_coefficients_times_raw_columns(ages, weights):
    made = model(read_label("ill"))
    made = Model(np.array(weights), made.encoding, made.loss, None)
    rows = pd.DataFrame({"age": ages, "ward": ["north", "south", "attic", "south", "north"][: len(ages)]})
    np.testing.assert_allclose(made.decision_function(rows), in_raw_units(made, rows), rtol=0, atol=2e-5)


def test_a_margin_has_no_probabilities():
    with pytest.raises(UsageError, match="decision_function"):
        model(read_label("ill"), make_loss("smoothed_hinge")).predict_proba(ROWS)


def test_rows_divided_by_their_own_length_have_no_coefficients_in_raw_units():
    made = model(read_label("ill"), normalize=True)
    with pytest.raises(UsageError, match="normalize"):
        made.coef_  # noqa: B018
    assert len(made.coefficients()) == 4


def test_rows_that_cannot_be_used_are_refused_with_their_number():
    rows = ROWS.assign(age=[20, None, 30, None])
    with pytest.raises(DataError, match="got 2 rows without, the first is row 1"):
        model(read_label("ill")).predict(rows)
    filled = model(read_label("ill"), missing="midpoint")
    assert filled.decision_function(rows)[1] == filled.decision_function(rows.assign(age=50.0))[1]


def test_predictions_of_a_file_are_those_of_its_rows(tmp_path: Path, capsys):
    made = model(read_label("state", classes=("well", "ill")))
    made.save(tmp_path / "model.json")
    ROWS.to_csv(tmp_path / "new.csv", index=False)
    assert invoke(["predict", str(tmp_path / "model.json"), str(tmp_path / "new.csv"), "--scores"]) == 0
    (tmp_path / "told.csv").write_text(capsys.readouterr().out)
    report = pd.read_csv(tmp_path / "told.csv")
    assert report.state.tolist() == made.predict(ROWS).tolist()
    np.testing.assert_allclose(report.probability_ill, made.predict_proba(ROWS)[:, 1])
    for name in ("told.parquet", "again.csv"):
        command = ["predict", str(tmp_path), str(tmp_path / "new.csv"), "--out", str(tmp_path / name)]
        assert invoke(command) == 0
    assert pd.read_parquet(tmp_path / "told.parquet").state.tolist() == report.state.tolist()
    assert invoke(["predict", str(tmp_path), str(tmp_path / "new.csv"), "--out", str(tmp_path / "x.txt")]) == 2


PROMISE = models.Promise("protects every user", 1.0, 1e-6, "replace-one", "tracking-srgd", "0" * 64, "2026-01-01")


def written() -> Model:
    loss = make_loss("huber", threshold=0.5)
    features = (Numeric("age", 20, 80), Categorical("ward", ("north", "south")))
    encoding = Encoding(features, label=read_label("cost", range=(0, 9)), feature_norm=loss.feature_norm)
    return Model(np.arange(2, encoding.dimension + 2) / 4, encoding, loss, PROMISE)


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """With the digest that fits, as a forger would give it."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return rest | {"digest": model_text.digest(rest)}


NAMES = ("a  b", "[ c", "d ]", " e ", "tab\t", "line\nbreak", "ü", '"', "\\", "{", "}, [ ]", "\u2028")


def model_file() -> dict[str, Any]:
    """What a good file says."""
    return dict(json.loads(written().as_text()))


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


def put(value: Any, *path: Any) -> bytes:
    """A good file with something else in one place, and a digest that fits it."""
    tree: Any = model_file()
    at = tree
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    rest = {name: each for name, each in tree.items() if name != "digest"}
    with suppress(ValueError, RecursionError):
        tree["digest"] = model_text.digest(rest)
    return json.dumps(tree).encode()


def without(*path: Any) -> bytes:
    tree: Any = model_file()
    at = tree
    for step in path[:-1]:
        at = at[step]
    del at[path[-1]]
    return json.dumps(tree if path == ("digest",) else sealed(tree)).encode()


def raw(old: str, new: str) -> bytes:
    """The text of a good file changed in one place."""
    text = json.dumps(model_file())
    assert old in text
    return text.replace(old, new, 1).encode("utf-8", "surrogatepass")


def widest(**feature: Any) -> bytes:
    """A line that stands for a million columns, or values, with the four weights of another model."""
    return put([{**model_file()["encoding"]["features"][0], **feature}], "encoding", "features")


WRONG: list[Any] = [None, True, -1, 1.5, "x", "", [], {}, [[]], [{}], {"a": 1}, 10**400, 1e308, "1", [None], "\ud800"]
PLACES = (
    *((name,) for name in ("format", "promise", "loss", "encoding", "weights", "coefficients")),
    *(("promise", name) for name in ("statement", "epsilon", "delta", "adjacency", "algorithm", "plan", "made")),
    *(("loss", name) for name in ("name", "threshold")),
    *(
        ("encoding", name)
        for name in ("features", "label", "weight", "intercept", "missing", "normalize", "feature_norm")
    ),
    ("encoding", "features", 0),
    ("weights", 0),
)
OPTIONAL = (
    *(("coefficients",), ("weights", 0), ("encoding", "features", 0), ("loss", "threshold")),
    *(("encoding", name) for name in ("label", "weight", "intercept", "missing", "normalize", "feature_norm")),
)
HOSTILE = {
    "nothing": b"",
    "a list": b"[]",
    "no UTF-8": b"\xff\xfe",
    "UTF-16": json.dumps({"format": models.FORMAT}).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "cut short": json.dumps(model_file()).encode()[:-20],
    "something behind": json.dumps(model_file()).encode() + b"{}",
    "deep lists": deep(100_000).encode(),
    **{
        f"{levels} lists in it": raw('"weights": [', '"weights": [' + deep(levels) + ", ")
        for levels in (100, 500, 1000, 50_000)
    },
    "deep objects": b'{"a":' * 50_000,
    "a key twice": raw('"weights": [', '"weights": [], "weights": ['),
    "a key twice within": raw('"epsilon": ', '"epsilon": 0.001, "epsilon": '),
    "not a number": raw('"delta": 1e-06', '"delta": NaN'),
    "endless": raw('"delta": 1e-06', '"delta": Infinity'),
    "endless in digits": raw('"delta": 1e-06', '"delta": 1e999'),
    "a million digits": raw('"delta": 1e-06', '"delta": ' + "9" * 10**6),
    "a million decimals": raw('"delta": 1e-06', '"delta": 0.' + "9" * 10**6),
    "a surrogate": raw('"made": "2026', '"made": "\\ud8002026'),
    "half a character": raw('"made": "2026', '"made": "\ud8002026'),
    "another version": raw(models.FORMAT, "quoron model 1"),
    "another guarantee": raw('"epsilon": 1.0', '"epsilon": 0.1'),
    "another weight": raw('"weights": [0.5', '"weights": [0.25'),
    "no digest": without("digest"),
    "a digest of nothing": json.dumps(model_file() | {"digest": None}).encode(),
    "one weight fewer": put([1.0], "weights"),
    "weights in rows": put([[1.0, 2.0], [3.0, 4.0]], "weights"),
    "ragged weights": put([1.0, [2.0]], "weights"),
    "a million columns": widest(column="age[0:1000000]"),
    "a million buckets": put([{"column": "code", "buckets": 2**20}], "encoding", "features"),
    "many million buckets": put([{"column": f"c{k}", "buckets": 2**20} for k in range(40)], "encoding", "features"),
    "shares of other labels": put({"shares": [0.5, 0.5], "error": 0.1}, "label_shares"),
    "an evaluation of nothing": put(
        {"figures": [], "calibration": [], "users": 9, "epsilon": 1.0, "delta": 0.0, "statement": "x", "remarks": []},
        "evaluation",
    ),
    "a guarantee of two lines": put("protects\nevery user", "promise", "statement"),
    "a guarantee with more": put("x", "promise", "more"),
    "a loss with more": put(1.0, "loss", "more"),
    "more than there is": put("x", "encoding", "more"),
    **{f"without {'.'.join(map(str, path))}": without(*path) for path in PLACES if path not in OPTIONAL},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_by_name(name, tmp_path):
    (tmp_path / "model.json").write_bytes(HOSTILE[name])
    with pytest.raises(DataError, match=r"model\.json"):
        quoron.load(tmp_path / "model.json")


@pytest.mark.parametrize("name", ["a million columns", "a million buckets", "many million buckets"])
def test_a_small_file_takes_little_memory(name, tmp_path):
    """Not a gigabyte for two kilobytes, however much they claim."""
    (tmp_path / "model.json").write_bytes(HOSTILE[name])
    (tmp_path / "good.json").write_text(written().as_text())
    tracemalloc.start()
    try:
        quoron.load(tmp_path / "good.json")
        with pytest.raises(DataError, match=r"model\.json"):
            quoron.load(tmp_path / "model.json")
        assert tracemalloc.get_traced_memory()[1] < 1 << 25
    finally:
        tracemalloc.stop()


CONTROLS = ("\x1b[2J", "\x00", "\x07", "\x7f", "\x9b31m", "\u202e", "\u2066", "\u2069")
TEXTS = (
    ("promise", "statement"),
    ("promise", "algorithm"),
    ("encoding", "features", 0, "column"),
    ("encoding", "features", 1, "categories", 0),
    ("encoding", "label", "column"),
    ("coefficients", "age"),
    ("no_interval",),
)


@pytest.mark.parametrize("control", CONTROLS)
def test_control_characters_in_any_text_are_refused_and_not_shown(control, tmp_path, capsys):
    """What moves a terminal's cursor or turns the order of words, as a value or as a key."""
    path = tmp_path / "model.json"
    for place in TEXTS:
        path.write_bytes(put(f"safe{control}", *place))
        with pytest.raises(DataError, match=r"without control characters at .*model\.json.*'safe\\") as error:
            quoron.load(path)
        assert control not in str(error.value)
    tree = model_file()
    path.write_text(json.dumps(sealed(tree | {f"x{control}": 1})))
    assert invoke(["predict", str(path), "none.csv"]) == 2
    said = capsys.readouterr()
    assert "without control characters" in said.err
    assert control not in said.out + said.err


@pytest.mark.parametrize("control", CONTROLS)
def test_names_that_no_model_can_hold_are_refused_before_a_charge(control, tmp_path, monkeypatch):
    """And are never bought: a run would be paid for, and its model could not be loaded."""
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    table = pd.DataFrame({"who": list("abcd"), "ward": ["north", f"n{control}"] * 2, "ill": [0, 1, 1, 0]})
    for columns in ({"categorical": {"ward": [f"n{control}"]}}, {"numeric": {f"age{control}": (0, 1)}}):
        with pytest.raises(ConfigError, match=r"names and values without control characters, got '.*Write it without"):
            quoron.train(table, user="who", label="ill", epsilon=1.0, columns=columns)
    assert not (tmp_path / "lifetime.sqlite").exists()
    codes, names = column_bounds.text_codes(tables.read(table), "ward")
    assert [names[int(each)] for each in codes if each == each] == ["north", "north"]


def test_whatever_stands_in_whichever_place_is_a_model_or_refused_by_name(tmp_path):
    path, taken = tmp_path / "model.json", 0
    for place in PLACES:
        for value in WRONG:
            path.write_bytes(put(value, *place))
            try:
                loaded = quoron.load(path)
            except DataError as error:
                assert "model.json" in str(error)  # noqa: PT017
                continue
            taken += 1
            assert np.isfinite(loaded.weights).all()
            assert loaded.as_text()
    assert taken < len(PLACES) * len(WRONG) / 4


@pytest.mark.parametrize("name", ["folder", "pipe\x00", "missing"])
def test_what_is_no_file_is_refused_by_name(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.json").mkdir()
    with pytest.raises(DataError, match="Expected a model file at"):
        Model.load(tmp_path / name)


def test_a_flipped_bit_of_a_model_is_found_or_changes_nothing(tmp_path):
    path, good = tmp_path / "model.json", json.dumps(model_file(), indent=1).encode()
    path.write_bytes(good)
    kept, draw = quoron.load(path).as_text(), np.random.Generator(np.random.Philox(5))
    for _ in range(300):
        flipped = bytearray(good)
        flipped[draw.integers(len(good))] ^= 1 << int(draw.integers(8))
        path.write_bytes(flipped)
        with suppress(DataError):
            assert quoron.load(path).as_text() == kept


USERS = 6000
ONE = {"algorithm": "one-round-least-squares"}


def frame(seed: int = 1) -> pd.DataFrame:
    """Cost is 100 + 2 age + 30 in the south, and noise."""
    rng = np.random.default_rng(seed)
    age, ward = rng.uniform(20, 80, USERS), rng.choice(["north", "south"], USERS)
    cost = 100 + 2 * age + 30 * (ward == "south") + rng.uniform(-40, 40, USERS)
    return pd.DataFrame({"who": np.arange(USERS), "age": age, "ward": ward, "cost": cost, "ill": cost > 200})


def trained(tmp_path: Path, columns=None, **words):
    known = {"numeric": {"age": (20, 80)}, "categorical": {"ward": ["north", "south"]}}
    asked = {
        "user": "who",
        "label": {"column": "cost", "range": (50, 400)},
        "epsilon": 8.0,
        **ONE,
        "out": tmp_path / "run",
    }
    return quoron.train(frame(), columns=known | (columns or {}), **asked | words)


def test_intervals_are_in_the_columns_own_units_and_hold_what_is_true(tmp_path):
    model = trained(tmp_path, {"intercept": False}).model
    (low, high), north, south, intercept = model.uncertainty
    assert low < 2 < high
    assert high - low < 2
    assert 0 < south[0] < south[1]
    assert south[1] - north[0] > 0
    assert intercept[0] < intercept[1]
    assert len(model.coefficients()) == 4
    assert model.no_interval is None


def test_values_of_a_category_beside_a_constant_are_not_determined_and_all_else_is(tmp_path):
    model = trained(tmp_path).model
    age, *others = model.uncertainty
    assert age[0] < 2 < age[1]
    assert others == [None, None, None]
    assert Model.load(tmp_path / "run" / "model.json").uncertainty == model.uncertainty


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"algorithm": None}, "no interval: whitened-tracking clips"),
        ({"algorithm": "tracking-srgd"}, "no interval: tracking-srgd releases no second moment"),
        ({"label": "ill"}, "not the best model of a logistic loss"),
        ({"columns": {"normalize": True}}, "divided by their own length"),
    ],
)
def test_whatever_nothing_is_proved_of_is_refused_by_name(words, why, tmp_path):
    model = trained(tmp_path, **words).model
    assert model.uncertainty is None
    assert why in model.no_interval


@pytest.mark.parametrize(
    "made",
    [
        model(read_label("ill")),
        model(read_label("cost > 15"), normalize=True),
        model(read_label("r2", positive="Y"), missing="midpoint"),
        model(read_label("cost", range=(0, 9)), make_loss("huber", threshold=0.5)),
        model(read_label("state", classes=("a", "b")), features=(Numeric("age", 0, 9),)),
        model(read_label("  y", classes=NAMES[:2]), features=(Categorical(" ill  at [ ] {", NAMES),)),
    ],
)
def test_a_saved_model_comes_back_the_same(made, tmp_path):
    made.save(tmp_path / "model.json")
    again = quoron.load(tmp_path / "model.json")
    np.testing.assert_array_equal(again.weights, made.weights)
    assert (again.encoding, again.loss, again.promise) == (made.encoding, made.loss, made.promise)
    assert again.as_text() == made.as_text()


FEATURES = (
    Numeric("age", 0, 100),
    Numeric("pay", -5, 20),
    Numeric("pay", -5, 20),
    Categorical("ward", ("north", "south")),
    Categorical("grade", (1, 2, 3)),
)
ANY_ROWS = st.fixed_dictionaries(
    {
        "age": st.one_of(st.none(), st.floats(-1e6, 1e6), st.sampled_from([0.0, 100.0, 50.0])),
        "pay": st.one_of(st.none(), st.floats(-50, 50), st.sampled_from([0.0, 7.5, -5.0])),
        "ward": st.sampled_from(["north", "south", "east", None]),
        "grade": st.integers(0, 4),
    }
)
KINDS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "two classes": (Classes("ill", ("no", "yes")), "logistic", {}),
    "signs": (Signs("ill"), "smoothed_hinge", {}),
    "three classes": (Classes("ill", ("a", "b", "c")), "softmax", {"classes": 3}),
    "a number": (Range("height", 10, 30), "least_squares", {"label_bound": 1.0}),
    "no label": (None, "linear", {}),
}


def model_of(kind: str, **bent: int) -> Model:
    label, name, bounds = KINDS[kind]
    loss, encoding = make_loss(name, **bounds), Encoding(FEATURES, label, missing="midpoint", **bent)
    weights = np.random.default_rng(3).normal(size=encoding.dimension * loss.outputs)
    shares = LabelShares((0.7, 0.2, 0.1), 0.01) if kind == "three classes" else None
    return Model(weights, encoding, loss, None, shares, "share" if shares else 0.5)


MODELS = {
    (kind, bent): model_of(kind, curves=4, pairs=2) if bent else model_of(kind) for kind in KINDS for bent in (0, 1)
}


@cache
def plain_of(kind: str, bent: int) -> dict[str, Any]:
    """What the model's plain Python defines."""
    plain: dict[str, Any] = {}
    exec(MODELS[kind, bent].as_python(), plain)
    return plain


@pytest.mark.parametrize(("kind", "bent"), by_default(MODELS, [(kind, bent) for kind, bent in MODELS if bent]))
@settings(max_examples=12)
@given(rows=st.lists(ANY_ROWS, min_size=1, max_size=9))
def test_plain_python_says_what_the_model_says(kind: str, bent: int, rows: list[dict[str, Any]]) -> None:
    model, plain = MODELS[kind, bent], plain_of(kind, bent)
    table = pd.DataFrame(rows).astype({"age": float, "pay": float, "ward": "string"})
    found = model.predict(table) if kind == "a number" else model.decision_function(table)
    classes = model.predict(table) if "predict" in plain else None
    shares = model.predict_proba(table) if "probabilities" in plain else None
    unit = 10.0 if kind == "a number" else 1.0
    for place, (row, scores) in enumerate(zip(rows, found, strict=True)):
        expected = np.atleast_1d(scores)
        np.testing.assert_allclose(plain["scores"](row), expected, atol=1e-5 * unit, rtol=0)
        margins = np.sort(expected - (0 if model.decision is None or len(expected) == 1 else model.decision))
        apart = margins[-1] - margins[-2] if len(margins) > 1 else abs(margins[0])
        if kind not in ("a number", "no label") and apart > 1e-4:
            assert plain["predict"](row) == classes[place]
        if shares is not None:
            np.testing.assert_allclose(plain["probabilities"](row), shares[place], atol=1e-5)
    assert ("probabilities" in plain) == (model.loss.name in ("logistic", "softmax"))


def test_it_imports_nothing_but_math_and_reads_texts_of_numbers() -> None:
    text = MODELS["two classes", 0].as_python()
    assert [line for line in text.splitlines() if "import" in line] == ["import math"]
    plain = plain_of("two classes", 0)
    row = {"age": 41.0, "pay": 3.0, "ward": "north", "grade": 2}
    assert plain["scores"](row) == plain["scores"](row | {"age": "41", "pay": "3.0"})
    assert plain["scores"](row | {"age": "4_1"}) == plain["scores"](row | {"age": math.nan})


def test_a_row_without_a_number_is_refused_where_the_model_refuses_it() -> None:
    encoding = Encoding(FEATURES, Signs("ill"))
    plain: dict[str, Any] = {}
    exec(Model(np.zeros(encoding.dimension), encoding, make_loss("logistic"), None).as_python(), plain)
    with pytest.raises(ValueError, match="Expected a number in 'age', got another value"):
        plain["predict"]({"age": "old", "pay": 1.0})


@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        (Encoding(FEATURES, Signs("ill"), normalize=True), "normalize"),
        (Encoding((Hashed("code", 4),), Signs("ill")), "'code'"),
    ],
)
def test_what_plain_python_cannot_say_is_refused_by_name(encoding: Encoding, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Model(np.zeros(encoding.dimension), encoding, make_loss("logistic"), None).as_python()


PATIENTS = 1500


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    """A tenth is ill."""
    table = patients(PATIENTS, spread=10.0, above=120.0)
    return table.assign(ill=np.where(table.ill, "yes", "no"))


MODEL = Encoding((Numeric("age", 0, 100), Categorical("ward", ("A", "B"))), label=Classes("ill", ("no", "yes")))
SHARES = LabelShares((0.96, 0.04), 0.001)
MANY_ROWS = pd.DataFrame({"age": np.linspace(0, 100, 24), "ward": ["A", "B", "C"] * 8})


def of_weights(weights: list[float], encoding: Encoding = MODEL, loss: Any = None, **more: Any) -> Model:
    return Model(np.array(weights, np.float64), encoding, loss or make_loss("logistic"), None, **more)


def test_share_is_the_rule_of_the_largest_mean_recall():
    """Chances over shares: by the definition, row by row."""
    model = of_weights([2.0, 0.3, -0.5, -1.5], MODEL, label_shares=SHARES)
    wanted = np.array(["no", "yes"])[np.argmax(model.predict_proba(MANY_ROWS) / SHARES.shares, axis=1)]
    assert model.predict(MANY_ROWS, threshold="share").tolist() == wanted.tolist()
    assert replace(model, threshold="share").predict(MANY_ROWS).tolist() == wanted.tolist()
    half = np.array(["no", "yes"])[(model.predict_proba(MANY_ROWS)[:, 1] > 0.5).astype(int)]
    assert model.predict(MANY_ROWS).tolist() == half.tolist()
    third = np.array(["no", "yes"])[(model.predict_proba(MANY_ROWS)[:, 1] > 0.3).astype(int)]
    assert model.predict(MANY_ROWS, threshold=0.3).tolist() == third.tolist()


def test_share_of_many_classes_gives_each_its_due_and_a_share_below_zero_is_two_errors():
    rules = replace(MODEL, label=Classes("kind", (1, 2, 3)))
    draw = np.random.Generator(np.random.Philox(5))
    loss = make_loss("softmax", classes=3)
    model = of_weights(draw.normal(size=12), rules, loss, label_shares=LabelShares((0.9, 0.12, -0.02), 0.01))
    wanted = np.argmax(model.predict_proba(MANY_ROWS) / [0.9, 0.12, 0.02], axis=1) + 1
    found = model.predict(MANY_ROWS, threshold="share")
    assert found.tolist() == wanted.tolist()
    assert found.dtype.kind == "i"
    with pytest.raises(UsageError, match="'share' with 3 classes"):
        model.predict(MANY_ROWS, threshold=0.3)


@pytest.mark.parametrize("threshold", [0.0, 1.0, -1, 2.5, np.nan, True, "shares"])
def test_a_threshold_that_cannot_be_meant_is_refused(threshold):
    with pytest.raises(UsageError, match="Expected a threshold in"):
        of_weights([1.0, 0, 0, 0], label_shares=SHARES).predict(MANY_ROWS, threshold=threshold)


@pytest.mark.parametrize(
    ("weights", "normalize", "always"),
    [
        ([1.0, 0.5, -0.5, -1.6], False, "no"),
        ([1.0, 0.5, -0.5, -1.4], False, None),
        ([0.0, 0.0, 0.0, 0.0], False, "no"),  # a score of zero is not above it
        ([1.0, 0.5, -0.5, 1.6], True, "yes"),
    ],
)
def test_a_model_of_one_answer_is_known_by_its_coefficients(weights, normalize, always):
    model = of_weights(weights, replace(MODEL, normalize=normalize), label_shares=SHARES)
    assert model.always() == always
    ages, wards = np.meshgrid([-50.0, 0, 40, 100, 1e9], ["A", "B", "C"])
    rows = pd.DataFrame({"age": ages.ravel(), "ward": wards.ravel()})
    if always is not None:
        assert set(model.predict(rows)) == {always}
    else:
        assert len(set(model.predict(rows))) == 2
    (warning,) = one_answer(model)
    assert ("for every row" in warning) == (always is not None)
    assert "--threshold share" in warning


def estimator(**more: Any) -> PrivateLogisticRegression:
    given = {"epsilon": 4.0, "bounds": (0, 100), "classes": ["no", "yes"], "random_state": 0, "items_per_user": 2}
    return PrivateLogisticRegression(**given | {"algorithm": "one-pass-dp-sgd", "rounds": 3} | more)


@pytest.mark.filterwarnings("ignore::quoron.sklearn.NoiseFromSeed")
def test_estimators_weigh_by_row(people):
    X, y, users = people[["age", "dose"]], people.ill, people.who
    plain = estimator().fit(X, y, users)
    weights = np.where(y == "yes", 9.0, 1.0)
    by_row = estimator(most_weight=9, data_quality=0).fit(X, y, users, sample_weight=weights)
    assert (by_row.predict(X) == "yes").mean() > (plain.predict(X) == "yes").mean()
    assert (estimator(threshold="share").fit(X, y, users).predict(X) == "yes").any()
    odd = weights.copy()
    odd[:4] = [np.nan, -1.0, np.inf, 1e300]
    assert np.isfinite(estimator(most_weight=9).fit(X, y, users, sample_weight=odd).coef_).all()


def test_an_estimator_of_numbers_takes_weights_of_rows(people):
    ridge = PrivateRidge(bounds=(0, 100), label_range=(0, 5), most_weight=3.0, random_state=0)
    with pytest.warns(Warning, match="protects nobody"):
        ridge.fit(people[["age"]], people.dose, people.who, sample_weight=np.full(len(people), 3.0))
    assert ridge.model_.encoding.weight.most == 3.0


def test_a_folder_of_files_is_weighed_as_the_same_rows_in_memory(people, tmp_path, monkeypatch):
    (tmp_path / "people").mkdir()
    counted = people.assign(counts=people.ill.map({"no": 1, "yes": 8}))
    pq.write_table(pa.Table.from_pandas(counted, preserve_index=False), tmp_path / "people" / "0.parquet")
    models = []
    for frame, rules in ((counted, config()), (None, configs.located(config("people"), tmp_path))):
        model, _, _ = training.simulate_training(rules, simulation_seed=3, frame=frame)
        models.append(model)
    np.testing.assert_array_equal(models[0].weights, models[1].weights)
    plain, _, _ = training.simulate_training(config(weight=None), simulation_seed=3, frame=people)
    assert not np.array_equal(plain.weights, models[0].weights)


def config(path: str = "frame", **more: Any) -> configs.Config:
    table: dict[str, Any] = {"kind": "table", "path": path, "user": "who"}
    table["label"] = {"column": "ill", "classes": ["no", "yes"]}
    weight = {"column": "counts", "most": 8}
    table["columns"] = {"numeric": {"age": [0, 100], "dose": [0, 5]}, "weight": weight} | more
    method = {"name": "one-pass-dp-sgd", "options": {"rounds": 3}}
    return configs.from_tree({"population": table, "privacy": {"epsilon": 2.0}, "algorithm": method})

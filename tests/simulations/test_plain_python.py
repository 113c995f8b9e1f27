"""A model as plain Python says what the model says, for every row that there can be."""

import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cover import by_default
from quoron.model import LabelShares, Model
from quoron_client.data.encoding import Classes, Encoding, Range, Signs
from quoron_client.data.features import Categorical, Hashed, Numeric
from quoron_client.losses import make_loss
from quoron_privacy.errors import UsageError

FEATURES = (
    Numeric("age", 0, 100),
    Numeric("pay", -5, 20),
    Numeric("pay", -5, 20),
    Categorical("ward", ("north", "south")),
    Categorical("grade", (1, 2, 3)),
)
ROWS = st.fixed_dictionaries(
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
@given(rows=st.lists(ROWS, min_size=1, max_size=9))
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

"""Thresholds by the shares that a run's data quality check releases, and what rows count."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from patients import patients
from quoron import config as configs
from quoron.model import LabelShares, Model
from quoron.sklearn import PrivateLogisticRegression, PrivateRidge
from quoron.training import run as training
from quoron.training.result import one_answer
from quoron_client.data.encoding import Classes, Encoding
from quoron_client.data.features import Categorical, Numeric
from quoron_client.losses import make_loss
from quoron_privacy.errors import UsageError

pytestmark = pytest.mark.usefixtures("ledger")

USERS = 1500


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    """A tenth is ill."""
    made = patients(USERS, spread=10.0, above=120.0)
    return made.assign(ill=np.where(made.ill, "yes", "no"))


MODEL = Encoding((Numeric("age", 0, 100), Categorical("ward", ("A", "B"))), label=Classes("ill", ("no", "yes")))
SHARES = LabelShares((0.96, 0.04), 0.001)
ROWS = pd.DataFrame({"age": np.linspace(0, 100, 24), "ward": ["A", "B", "C"] * 8})


def made(weights: list[float], encoding: Encoding = MODEL, loss: Any = None, **more: Any) -> Model:
    return Model(np.array(weights, np.float64), encoding, loss or make_loss("logistic"), None, **more)


def test_share_is_the_rule_of_the_largest_mean_recall():
    """Chances over shares: by the definition, row by row."""
    model = made([2.0, 0.3, -0.5, -1.5], MODEL, label_shares=SHARES)
    wanted = np.array(["no", "yes"])[np.argmax(model.predict_proba(ROWS) / SHARES.shares, axis=1)]
    assert model.predict(ROWS, threshold="share").tolist() == wanted.tolist()
    assert replace(model, threshold="share").predict(ROWS).tolist() == wanted.tolist()
    half = np.array(["no", "yes"])[(model.predict_proba(ROWS)[:, 1] > 0.5).astype(int)]
    assert model.predict(ROWS).tolist() == half.tolist()
    third = np.array(["no", "yes"])[(model.predict_proba(ROWS)[:, 1] > 0.3).astype(int)]
    assert model.predict(ROWS, threshold=0.3).tolist() == third.tolist()


def test_share_of_many_classes_gives_each_its_due_and_a_share_below_zero_is_two_errors():
    rules = replace(MODEL, label=Classes("kind", (1, 2, 3)))
    draw = np.random.Generator(np.random.Philox(5))
    loss = make_loss("softmax", classes=3)
    model = made(draw.normal(size=12), rules, loss, label_shares=LabelShares((0.9, 0.12, -0.02), 0.01))
    wanted = np.argmax(model.predict_proba(ROWS) / [0.9, 0.12, 0.02], axis=1) + 1
    found = model.predict(ROWS, threshold="share")
    assert found.tolist() == wanted.tolist()
    assert found.dtype.kind == "i"
    with pytest.raises(UsageError, match="'share' with 3 classes"):
        model.predict(ROWS, threshold=0.3)


@pytest.mark.parametrize("threshold", [0.0, 1.0, -1, 2.5, np.nan, True, "shares"])
def test_a_threshold_that_cannot_be_meant_is_refused(threshold):
    with pytest.raises(UsageError, match="Expected a threshold in"):
        made([1.0, 0, 0, 0], label_shares=SHARES).predict(ROWS, threshold=threshold)


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
    model = made(weights, replace(MODEL, normalize=normalize), label_shares=SHARES)
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
    for frame, given in ((counted, config()), (None, configs.located(config("people"), tmp_path))):
        model, _, _ = training.rehearse(given, simulation_seed=3, frame=frame)
        models.append(model)
    np.testing.assert_array_equal(models[0].weights, models[1].weights)
    plain, _, _ = training.rehearse(config(weight=None), simulation_seed=3, frame=people)
    assert not np.array_equal(plain.weights, models[0].weights)


def config(path: str = "frame", **more: Any) -> configs.Config:
    table: dict[str, Any] = {"kind": "table", "path": path, "user": "who"}
    table["label"] = {"column": "ill", "classes": ["no", "yes"]}
    weight = {"column": "counts", "most": 8}
    table["columns"] = {"numeric": {"age": [0, 100], "dose": [0, 5]}, "weight": weight} | more
    method = {"name": "one-pass-dp-sgd", "options": {"rounds": 3}}
    return configs.from_tree({"population": table, "privacy": {"epsilon": 2.0}, "algorithm": method})

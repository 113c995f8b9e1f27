"""A released model in the units of the table: coefficients, predictions, and a file that comes back the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron.cli.app import invoke
from quoron.model import Model
from quoron_client.data.encoding import Encoding, read_label
from quoron_client.data.features import Categorical, Feature, Numeric
from quoron_client.losses import make_loss
from quoron_privacy.errors import DataError, UsageError

AGE, WARD = Numeric("age", 20, 80), Categorical("ward", ("north", "south"))
ROWS = pd.DataFrame(
    {"age": [20.0, 50.0, 71.5, 80.0], "ward": ["north", "south", "attic", "north"], "dose": [1, 2, 3, 4]}
)
finite = st.floats(-5, 5)


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
    made = model(read_label("ill"), unit_rows=True)
    with pytest.raises(UsageError, match="unit_rows"):
        made.coef_  # noqa: B018
    assert len(made.table()) == 4


def test_rows_that_cannot_be_used_are_refused_with_their_number():
    rows = ROWS.assign(age=[20, None, 30, None])
    with pytest.raises(DataError, match="got 2 rows without, the first is row 1"):
        model(read_label("ill")).predict(rows)
    filled = model(read_label("ill"), missing="middle")
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
        command = ["predict", str(tmp_path), str(tmp_path / "new.csv"), "--file", str(tmp_path / name)]
        assert invoke(command) == 0
    assert pd.read_parquet(tmp_path / "told.parquet").state.tolist() == report.state.tolist()
    assert invoke(["predict", str(tmp_path), str(tmp_path / "new.csv"), "--file", str(tmp_path / "x.txt")]) == 2

"""Predictions for the rows of a file, as a table."""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quoron.model import Model, Threshold
from quoron.run_folder import as_parquet, write
from quoron_client.data import tables
from quoron_client.data.labels import in_words, meaning, outcomes
from quoron_privacy.errors import ConfigError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

MANY = 20  # rows that are rarely all of one class


def rows_of(model: Model, table: Any) -> "pa.Table":
    """The columns of a table that a model reads. DataError where it lacks one."""
    return tables.read(table, model.feature_names_in_)


def predictions(model: Model, table: Any, *, scores: bool, threshold: Threshold | None = None) -> "pa.Table":
    """The label of each row of a table, as its own column has it and by its name; of a comparison, true and false.

    With `scores` a column of probabilities, or of scores, of each class, by its name.
    """
    import pyarrow as pa

    if threshold is not None:
        model.check_threshold(threshold)
    rows, label = rows_of(model, table), model.encoding.label
    name = "prediction" if label is None else meaning(label)
    found = {name: pa.array(model.predict(rows, threshold=threshold))}
    if scores:
        found |= _scores(model, rows)
    return pa.table(found)


def threshold_of(typed: str | None) -> Threshold | None:
    """A threshold as people type it. ConfigError for neither a number nor `share`."""
    if typed is None or typed == "share":
        return typed  # type: ignore[return-value]  # mypy does not narrow to a literal
    try:
        return float(typed)
    except ValueError:
        raise ConfigError(f"Expected --threshold share or a number in (0, 1), got {typed!r}.") from None


def one_for_all(model: Model, table: "pa.Table", threshold: Threshold | None = None) -> str | None:
    """What whoever predicts should know if many rows are all of one class; None else. Of their own rows."""
    classes = outcomes(model.encoding.label)
    if not classes or table.num_rows < MANY or len(table.column(0).unique()) > 1:
        return None
    name, value = table.column_names[0], in_words(table.column(0)[0].as_py())
    fix = "" if threshold == "share" or model.label_shares is None else " With --threshold share rare classes count."
    certain = ", as any other rows would be" if model.always(threshold) is not None else ""
    return f"All {table.num_rows:,} rows are predicted {name}: {value}{certain}.{fix}"


def unread(model: Model, rows: "pa.Table") -> list[str]:
    """What whoever predicts should know of numbers that half of the rows or more do not say. Of their own rows.

    And of words that any row has and the model does not know: unless such rows were trained on, what it says of them is
    the constant and the other columns without any of the words that it always had beside them.
    """
    said = []
    for feature in model.encoding.features:
        found = feature.read(rows)
        numbers = found.dtype.kind == "f"
        many = int(np.count_nonzero(np.isnan(found) if numbers else found < 0))
        if not many or (numbers and 2 * many < rows.num_rows):
            continue
        what, so = (
            "no number or date",
            "the middle of its range is taken. Write it as in the table that was trained on.",
        )
        if not numbers:
            what, so = feature.misfit[1], "such rows are told well only if the table that was trained on had some."
        said.append(f"Column {feature.column!r} is {what} in {many:,} of {rows.num_rows:,} rows: {so}")
    return said


def write_predictions(table: "pa.Table", out: Path | None) -> None:
    """As CSV on standard output, or into a .csv or .parquet file, complete or not at all."""
    import pyarrow.csv

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"Expected --file to name a .csv or .parquet file, got {out}.")
    if out is not None and out.suffix == ".parquet":
        write(out, as_parquet(table), advice="Choose another file.")
        return
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(table, buffer)
    if out is None:
        sys.stdout.write(buffer.getvalue().decode())
    else:
        write(out, buffer.getvalue(), advice="Choose another file.")


def _scores(model: Model, rows: "pa.Table") -> "dict[str, pa.Array]":
    import pyarrow as pa

    try:
        found, word = model.predict_proba(rows), "probability"
    except UsageError:
        found, word = model.decision_function(rows), "score"
    if found.ndim == 1:  # of a number, or the second class
        return {word: pa.array(found)}
    return {f"{word}_{in_words(each)}": pa.array(column) for each, column in zip(model.classes_, found.T, strict=True)}

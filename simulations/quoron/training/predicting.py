"""Predictions for the rows of a file, as a table."""

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quoron.model import Model
from quoron.run_folder import as_parquet, write
from quoron_client.data import tables
from quoron_privacy.errors import ConfigError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa


def predictions(model: Model, table: Any, *, scores: bool) -> "pa.Table":
    """A column `prediction` for the rows of a table; with `scores` one of probabilities or scores a class."""
    import pyarrow as pa

    rows = tables.read(table, model.feature_names_in_)
    found = {"prediction": pa.array(model.predict(rows))}
    if scores:
        found |= _scores(model, rows)
    return pa.table(found)


def write_predictions(table: "pa.Table", out: Path | None) -> None:
    """As CSV on standard output, or into a .csv or .parquet file, complete or not at all."""
    import pyarrow.csv

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"Expected --out to name a .csv or .parquet file, got {out}.")
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
    if found.ndim == 1:
        return {word: pa.array(found)}
    return {f"{word}_{each}": pa.array(column) for each, column in zip(model.classes_, found.T, strict=True)}

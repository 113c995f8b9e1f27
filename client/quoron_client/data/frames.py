"""Frames of other libraries as Arrow tables: by the types of their columns alone, and never by a value."""

from typing import Any

import pyarrow as pa

from quoron_client.data import cells
from quoron_client.data.columns import large
from quoron_privacy.errors import DataError


def is_pandas(source: object) -> bool:
    """Whether it is a frame whose rows are found by their places."""
    return hasattr(source, "columns") and hasattr(source, "iloc")


def from_stream(source: Any) -> pa.Table:
    """A frame that Arrow can read, such as polars', without a copy. DataError for a column that Arrow has not."""
    try:
        return pa.table(source)
    except Exception as error:  # of another library; its words may quote a value
        kind = type(source).__name__
        raise DataError(
            f"Expected a DataFrame of columns that Arrow has, got {kind}: {type(error).__name__}."
        ) from None


class PandasColumn:
    """A column of a frame, of which rows are read as its dtype says."""

    def __init__(self, name: str, series: Any) -> None:
        self._name, self._series, self._categories = name, series, None
        if series.dtype == "category":
            values = series.cat.categories.to_series()
            self._series = series.cat.codes
            self._categories = PandasColumn(name, values).rows(0, len(values))

    def rows(self, first: int, last: int) -> pa.Array:
        """Rows `first` to `last`."""
        series = self._series.iloc[first:last]
        if self._categories is not None:
            codes = series.to_numpy()
            return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), self._categories)
        kind = pa.large_string() if series.dtype == object else None
        try:
            return pa.array(series, kind, from_pandas=True)
        except Exception as error:  # what a value of another type, or half a character, does
            if series.dtype.kind in "Oc":
                return cells.texts(series.tolist())
            said = type(error).__name__
            raise DataError(
                f"Expected column {self._name!r} to hold numbers or text, got type {series.dtype} ({said}). Convert it."
            ) from None


def without_views(table: pa.Table) -> pa.Table:
    """With large text for views of text, as polars has: Arrow cannot yet sort or filter them."""
    for place, field in enumerate(table.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            parts = [large(each) for each in table.column(place).chunks]
            whole = pa.chunked_array(parts) if parts else pa.chunked_array([large(pa.nulls(0, field.type))])
            table = table.set_column(place, field.name, whole)
    return table

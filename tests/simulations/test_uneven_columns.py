"""What a one-pass run says of itself where columns stayed uneven or its radius never settled: from what it released."""

from typing import Any

import numpy as np
import pyarrow as pa

import quoron
from quoron import Method


def pilot(*found: float) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [{"public": {"phase": "pilot", "unevenness": each}} for each in found]
    return [{"public": {}}, *events, {"public": {"phase": "main", "radius": 1.0}}, {}]


def trained(width: float, method: str, users: int = 6_000) -> Any:
    """On columns that fill one `width`-th of their declared ranges, and a constant."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((users, 2))
    ill = rng.random(users) < 1 / (1 + np.exp(-values @ np.array([1.5, -1.0])))
    table = pa.table({"who": np.arange(users), "x0": values[:, 0], "x1": values[:, 1], "ill": ill})
    ends = (-3.0 * width, 3.0 * width)
    numeric = {"x0": ends, "x1": ends}
    return quoron.train(table, user="who", label="ill", numeric=numeric, epsilon=8.0, method=Method(method))


def test_a_trained_model_says_so_where_columns_fill_a_thousandth_of_their_ranges_and_not_where_they_fill_them() -> None:
    for width, expected in ((1.0, False), (1000.0, True)):
        warnings = trained(width, "tracking-srgd").summary.warnings
        assert any("the pilot could not make the columns even" in each for each in warnings) == expected

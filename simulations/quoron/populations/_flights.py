"""Late or not, from the schedule alone: real flights, ragged and uneven users, shipped with the package.

    >>> late = flights()
    >>> late.users, late.dimension
    (3230, 32)

Aircraft are the users. The label is an arrival more than 15 minutes late (23.7 % of flights). Features: airline,
airport, month, hour, distance and weekend, with an evening slope of its own in June and July (thunderstorms) and in
winter; every row has norm 1. Vocabularies and ranges are public facts of 2013: the eleven larger airlines (the others
are all zeros), airports, months, opening hours, no destination beyond 5,000 miles. One value each of airport and month
is left out, as the intercept stands for it. Data: see data/README.md.
"""

from importlib.resources import files

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from quoron.populations.table import TablePopulation, from_table
from quoron.populations.users import Outliers
from quoron_client.data.features import Categorical, Feature, Numeric
from quoron_client.protocol.domains import Domain, L2Ball

_AIRLINES = ("9E", "AA", "B6", "DL", "EV", "FL", "MQ", "UA", "US", "VX", "WN")
_FEATURES: tuple[Feature, ...] = (
    Categorical("carrier", _AIRLINES),
    Categorical("origin", ("JFK", "LGA")),
    Categorical("month", tuple(range(2, 13))),
    Numeric("hour", -1, 1),
    Numeric("hour squared", -1, 1),
    Numeric("summer hour", -1, 1),
    Numeric("winter hour", -1, 1),
    Numeric("distance", 0, 5000),
    Numeric("distance squared", -1, 1),
    Numeric("weekend", -1, 1),
)


def flights(*, seed: int = 0, domain: Domain | None = None, outliers: Outliers | None = None) -> TablePopulation:
    """The flights task: 4,037 aircraft, a fifth held out by `seed`; logistic loss, 32 features, rows of norm 1."""
    with (files("quoron") / "data" / "flights.parquet").open("rb") as stored:
        table = pyarrow.parquet.read_table(stored)
    return from_table(
        _with_derived(table),
        user="tailnum",
        label="arr_delay > 15",
        features=_FEATURES,
        domain=L2Ball(10.0) if domain is None else domain,
        normalize=True,
        items_per_user=50,
        outliers=outliers,
        seed=seed,
    )


def _with_derived(table: pa.Table) -> pa.Table:
    """The table with columns that are public functions of one row."""
    hour = table["hour"].to_numpy() / 12.0 - 1.0
    month = table["month"].to_numpy()
    miles = table["distance"].to_numpy() / 2500.0 - 1.0
    derived = {
        "hour": hour,
        "hour squared": hour**2,
        "summer hour": hour * np.isin(month, (6, 7)),
        "winter hour": hour * np.isin(month, (12, 1, 2)),
        "distance squared": miles**2,
        "weekend": (table["weekday"].to_numpy() >= 5).astype(np.float64),
    }
    kept = table.select(["tailnum", "carrier", "origin", "month", "distance", "arr_delay"])
    for name, values in derived.items():
        kept = kept.append_column(name, pa.array(values))
    return kept

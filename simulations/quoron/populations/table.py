"""A table with a user column as a population: CSV, Parquet, a pandas DataFrame or a pyarrow Table.

    >>> import pandas as pd
    >>> visits = pd.DataFrame({"who": ["a", "a", "b", "c", "d"], "age": [30, 31, 62, 55, 80], "sick": [0, 0, 1, 0, 1]})
    >>> clinic = from_table(visits, user="who", label="sick", features=(Numeric("age", 0, 100),), test_fraction=0.25)
    >>> clinic.users, clinic.dimension
    (3, 2)

Features are scaled by public ranges and vocabularies, and every row to the loss's feature norm at most, so that what
one user holds changes nobody else's numbers. Held-out users are drawn by a public seed.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from quoron.populations import _metrics
from quoron.populations._base import Corruption, PublicKnowledge, Users, Vector
from quoron.populations._objective import TrainingObjective
from quoron.populations._outliers import Outliers
from quoron.populations._streams import Purpose, words
from quoron_client import columns
from quoron_client.columns import Categorical, Feature, Numeric
from quoron_client.domains import Domain, L2Ball
from quoron_client.items import Features, ItemBatch
from quoron_client.losses import Logistic, Loss
from quoron_protos.errors import ConfigError, DataError

__all__ = ["Categorical", "Feature", "Numeric", "TablePopulation", "from_table"]

_BINARY = frozenset({"logistic", "hinge", "smoothed_hinge"})


@dataclass(frozen=True, eq=False)
class TablePopulation:
    """Users whose items are rows of a table, kept ragged in one block of memory."""

    training: ItemBatch = field(repr=False)  # float32 features
    held_out: ItemBatch = field(repr=False)
    columns: tuple[str, ...]  # names of the d features
    items_per_user: int
    loss: Loss
    domain: Domain
    knowledge: PublicKnowledge
    outliers: Outliers
    seed: int

    @property
    def users(self) -> int:
        """Number of users to train on, n."""
        return self.training.users

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return self.training.dimension

    def items(self, users: Users) -> ItemBatch:
        """The rows of `users` (k,), in that order."""
        batch = _rows_of(self.training, users)
        flipped = np.repeat(self.corruption(users) == Corruption.SHIFTED, np.diff(batch.offsets))
        if not flipped.any():
            return batch
        if self.loss.name == "linear":
            features = np.where(flipped[:, None], -batch.features, batch.features)
            return ItemBatch(features, batch.labels, batch.offsets)
        return ItemBatch(batch.features, np.where(flipped, -batch.labels, batch.labels), batch.offsets)

    def corruption(self, users: Users) -> NDArray[np.uint8]:
        """`Corruption` of each of `users`, shape (k,)."""
        return self.outliers.corruption(np.array(users, np.int64), seed=self.seed)

    @cached_property
    def _best(self) -> Vector:
        return self._honest.minimiser(self.domain)

    @cached_property
    def _honest(self) -> TrainingObjective:
        honest = np.flatnonzero(self.corruption(np.arange(self.users)) == Corruption.HONEST)
        return TrainingObjective(
            self.training if len(honest) == self.users else _rows_of(self.training, honest), self.loss
        )

    @property
    def optimum(self) -> Vector:
        """Non-private minimiser over the domain of the mean over honest training users of their average loss."""
        return self._best.copy()

    def excess_risk(self, model: Vector) -> float:
        """Training objective of `model` minus that of the optimum (honest users)."""
        return self._honest.difference(np.asarray(model, np.float64), self._best)

    def test_metrics(self, model: Vector) -> dict[str, float]:
        """On all items of the held-out users: auc, accuracy and log_loss, or rmse; empty without such users."""
        if not self.held_out.users or self.loss.name == "linear":
            return {}
        scores = self.held_out.features.astype(np.float64) @ np.asarray(model, np.float64)
        figures = _metrics.binary if self.loss.name in _BINARY else _metrics.regression
        return figures(scores, self.held_out.labels)


@dataclass(frozen=True, slots=True)
class _Grouped:
    """Row numbers of each user, users in sorted order."""

    order: NDArray[np.int64] = field(repr=False)
    offsets: NDArray[np.int64] = field(repr=False)


def from_table(
    source: Any,
    *,
    user: str,
    label: str | None,
    features: tuple[Feature, ...],
    loss: Loss | None = None,
    domain: Domain | None = None,
    intercept: bool = True,
    unit_rows: bool = False,
    test_fraction: float = 0.2,
    items_per_user: int | None = None,
    outliers: Outliers | None = None,
    seed: int = 0,
) -> TablePopulation:
    """The users of a table as a population.

    `source` is a path (.csv, .parquet), a DataFrame or a pyarrow Table; `label` a column, or a comparison such as
    `arr_delay > 15`; None only for the linear loss. Rows are divided by the largest norm a row can have; with
    `unit_rows` each by its own norm instead, which uses the whole bound but is no longer linear in numeric features.
    `items_per_user` is the public nominal m; left out, the median is read from the data and the knowledge says so.

    Raises DataError for a table that cannot be read, a missing column, an unusable value (with column and count), a
    user without items; ConfigError for arguments out of range.
    """
    if not 0 <= test_fraction < 1:
        raise ConfigError(f"Expected test_fraction in [0, 1), got test_fraction={test_fraction}.")
    loss = Logistic() if loss is None else loss
    table = columns.read(source)
    assumptions = [
        f"the values of {f.column!r} were taken from the data as its vocabulary: for simulation only"
        for f in features
        if isinstance(f, Categorical) and f.categories == "from-data"
    ]
    resolved = columns.resolve(table, features)
    encoded = columns.encode(table, resolved, intercept=intercept)
    rows = columns.scaled(encoded, len(features) + intercept, loss.feature_norm, unit_rows=unit_rows)
    labels = _labels(table, label, loss)
    grouped = _group(table, user)
    everyone = ItemBatch(
        np.ascontiguousarray(rows[grouped.order]),
        np.ascontiguousarray(labels[grouped.order]),
        grouped.offsets,
    )
    chosen, held = _split(everyone.users, test_fraction, seed)
    if not len(chosen):
        raise DataError(
            f"Expected a user to train on, got none of {everyone.users} with test_fraction={test_fraction}."
        )
    if items_per_user is None:
        items_per_user = max(1, int(np.median(np.diff(everyone.offsets)[chosen])))
        assumptions.append("items_per_user is the median read from the data: for simulation only")
    names = tuple(name for feature in resolved for name in feature.names) + (("intercept",) if intercept else ())
    return TablePopulation(
        training=_rows_of(everyone, chosen),
        held_out=_rows_of(everyone, held),
        columns=names,
        items_per_user=items_per_user,
        loss=loss,
        domain=L2Ball(10.0) if domain is None else domain,
        knowledge=PublicKnowledge(assumptions=tuple(assumptions)),
        outliers=Outliers() if outliers is None else outliers,
        seed=seed,
    )


def _labels(table: pa.Table, expression: str | None, loss: Loss) -> Vector:
    if expression is not None:
        return columns.label(table, expression, binary=loss.name in _BINARY)
    if loss.name != "linear":
        raise ConfigError(f"Expected a label for the {loss.name} loss, got none.")
    return np.zeros(table.num_rows)


def _group(table: pa.Table, user: str) -> _Grouped:
    values = columns.column(table, user)
    unnamed = values.null_count
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        unnamed += pc.sum(pc.equal(values, "")).as_py() or 0  # what a CSV file makes of an empty field
    if unnamed:
        raise DataError(f"Expected a user in every row of column {user!r}, got {unnamed} null or empty.")
    declared = table.column(user).combine_chunks()
    distinct = pc.unique(values)
    if pa.types.is_dictionary(declared.type):
        absent = len(pc.unique(declared.dictionary)) - len(distinct)
        if absent:
            raise DataError(
                f"Expected items for every user of column {user!r}, got {absent} declared users without any; "
                "drop unused categories."
            )
    ranks = np.empty(len(distinct), np.int64)
    ranks[pc.sort_indices(distinct).to_numpy(zero_copy_only=False)] = np.arange(len(distinct))
    owners = ranks[pc.index_in(values, value_set=distinct).to_numpy(zero_copy_only=False)]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(distinct)))])
    return _Grouped(np.argsort(owners, kind="stable"), offsets.astype(np.int64))


def _split(users: int, fraction: float, seed: int) -> tuple[Users, Users]:
    """Users to train on and users held out, exactly round(fraction n) of the latter, in order."""
    ticket = words(seed=seed, purpose=Purpose.SPLIT, users=np.arange(users))[:, 0]
    held = np.zeros(users, np.bool_)
    held[np.argsort(ticket, kind="stable")[: round(fraction * users)]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def _rows_of(batch: ItemBatch, users: Users) -> ItemBatch:
    """The items of some users of a batch, in the given order."""
    counts = np.diff(batch.offsets)[users]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rows = np.arange(offsets[-1]) + np.repeat(batch.offsets[users] - offsets[:-1], counts)
    features: Features = batch.features[rows]
    return ItemBatch(features, batch.labels[rows], offsets)

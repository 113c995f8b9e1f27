"""A table with a user column as a population: CSV, Parquet, a pandas DataFrame or a pyarrow Table.

    >>> import pandas as pd
    >>> visits = pd.DataFrame({"who": ["a", "a", "b", "c", "d"], "age": [30, 31, 62, 55, 80], "sick": [0, 0, 1, 0, 1]})
    >>> clinic = from_table(visits, user="who", label="sick", features=(Numeric("age", 0, 100),), test_fraction=0.25)
    >>> clinic.users, clinic.dimension
    (3, 2)

Features are scaled by public ranges and vocabularies, and every row to the loss's feature norm at most, so that what
one user holds changes nobody else's numbers. Held-out users are drawn by a public seed.

Some users of a table in memory, and nothing of the others: what a worker is given.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from quoron.populations import metrics
from quoron.populations._objective import TrainingObjective
from quoron.populations._remarks import Fit, about_boundary, about_separation
from quoron.populations.outliers import Outliers, flipped
from quoron.populations.streams import Purpose, words
from quoron.populations.users import Beside, Corruption, Declared, PublicKnowledge, Users, Vector, held_back
from quoron_client.compute.enforcement import bounded
from quoron_client.data import fused, tables
from quoron_client.data.encoding import (
    Categorical,
    DateNumber,
    DatePart,
    Encoding,
    Feature,
    Hashed,
    Label,
    Numeric,
    Owners,
    Range,
    Weight,
    read_label,
)
from quoron_client.data.items import ItemBatch, ItemView
from quoron_client.data.users import group
from quoron_client.losses import Classification, Logistic, Loss
from quoron_client.protocol.domains import Domain, L2Ball, free_ball, on_boundary
from quoron_privacy.errors import ConfigError, DataError

if TYPE_CHECKING:
    from quoron_client.data.fused import Encoded


@dataclass(frozen=True)
class TableUsers(Declared):
    """Some users of a table in memory, under their numbers in it."""

    own: Users = field(kw_only=True)  # (k,), sorted
    batch: ItemBatch = field(kw_only=True)  # of k users
    outliers: Outliers = field(kw_only=True, default_factory=Outliers)
    seed: int = field(kw_only=True, default=0)

    def items(self, users: Users) -> ItemBatch:
        """The items of `users` (k,), in that order."""
        found = self.batch.of(np.searchsorted(self.own, users))
        return flipped(found, self.corruption(users), self.loss)

    @cached_property
    def held(self) -> ItemView:
        """Their items within the bounds of the loss, by number in the table: nobody else has any."""
        batch = bounded(self.batch, self.loss)
        begins, ends = np.zeros((2, self.users), np.int64)
        begins[self.own], ends[self.own] = batch.begins, batch.ends
        return batch.where(begins, ends)

    def part(self, users: Users) -> "TableUsers":
        """Some of them (j,), sorted by number."""
        return replace(self, own=users, batch=self.batch.of(np.searchsorted(self.own, users)))

    def corruption(self, users: Users) -> NDArray[np.uint8]:
        """`Corruption` of each of `users`, shape (k,)."""
        return self.outliers.corruption(np.array(users, np.int64), seed=self.seed)


Weighing = Callable[[Encoding, NDArray[np.bool_], Iterable[tuple[Owners, Any]]], Encoding]  # users trained on (n,)
__all__ = [
    "Categorical",
    "DateNumber",
    "DatePart",
    "Feature",
    "Hashed",
    "Numeric",
    "TablePopulation",
    "from_table",
]

_UNDECLARED = (
    "items_per_user is not declared: planned as if every user had 1. Set problem.items_per_user to a low typical "
    "number of items."
)
_UNBALANCED = (
    "class_weight='balanced' weighs all classes alike: with so few users, or train.data_quality = 0, nobody looks at "
    "their shares. Write a weight for each class."
)


@dataclass(frozen=True, eq=False)
class TablePopulation:
    """Users whose items are rows of a table, kept ragged in one block of memory."""

    training: ItemBatch = field(repr=False)  # float32 features
    held_out: ItemBatch = field(repr=False)
    encoding: Encoding
    items_per_user: int
    loss: Loss
    domain: Domain
    knowledge: PublicKnowledge
    usual: float | Vector  # the score, or K of them, that answers training items best if it is the same for all
    fit: Fit = field(repr=False)  # how the table fits its rules
    tested: NDArray[np.bool_] = field(repr=False)  # held-out items that are rows, and do not stand for none
    outliers: Outliers
    seed: int

    @property
    def users(self) -> int:
        """Number of users to train on, n."""
        return self.training.users

    @property
    def dimension(self) -> int:
        """Numbers of the model, d: as many as features, for each output of the loss."""
        return self.training.dimension * self.loss.outputs

    @property
    def everybody(self) -> int:
        """Number of users of the table, those held out among them."""
        return self.training.users + self.held_out.users

    def items(self, users: Users) -> ItemBatch:
        """The rows of `users` (k,), in that order."""
        return flipped(self.training.of(users), self.corruption(users), self.loss)

    @cached_property
    def held(self) -> ItemBatch:
        """All training users' items within the bounds of the loss: enforced once, copied only if that changes any."""
        return bounded(self.training, self.loss)

    def corruption(self, users: Users) -> NDArray[np.uint8]:
        """`Corruption` of each of `users`, shape (k,)."""
        return self.outliers.corruption(np.array(users, np.int64), seed=self.seed)

    def part(self, users: Users) -> TableUsers:
        """Some users (k,), sorted by number, and nothing of the others."""
        public = (self.users, self.items_per_user, self.dimension, self.loss, self.domain)
        return TableUsers(*public, own=users, batch=self.training.of(users), outliers=self.outliers, seed=self.seed)

    @cached_property
    def _best(self) -> Vector:
        return self._honest.minimiser(self.domain)

    @cached_property
    def _free(self) -> Vector:
        """The best model without a bound; where there is none, as of a linear loss, that of the domain."""
        if not on_boundary(self.domain, self._best) or not self._honest.has_infimum:
            return self._best
        found = self._honest.minimiser(free_ball(self.loss.feature_norm))
        return found if self._honest.difference(found, self._best) < 0 else self._best

    @cached_property
    def _honest(self) -> TrainingObjective:
        honest = np.flatnonzero(self.corruption(np.arange(self.users)) == Corruption.HONEST)
        return TrainingObjective(self.training if len(honest) == self.users else self.training.of(honest), self.loss)

    @property
    def optimum(self) -> Vector:
        """Non-private minimiser over the domain of the mean over honest training users of their average loss."""
        return self._best.copy()

    def excess_risk(self, model: Vector) -> float:
        """Training objective of `model` (honest users) minus its infimum over all models, in the domain or not.

        Where no model is best, as of classes that can be told apart, the infimum is approached to 1e-9. A linear loss
        has none: there it is that over the domain.
        """
        return self._honest.difference(np.asarray(model, np.float64), self._free)

    def test_metrics(self, model: Vector) -> dict[str, float]:
        """On usable items of held-out users: auc (of two classes), accuracy and log_loss, or rmse; empty without any.

        With the public range of a label, rmse is in the label's own units.
        """
        return self._figures(TrainingObjective(self.held_out, self.loss).scores(np.asarray(model, np.float64)))

    def _figures(self, scores: Vector) -> dict[str, float]:
        """Of scores of the held-out items, shape (N,), or (N, K) with an output for each class."""
        if not self.tested.any() or self.loss.name == "linear":
            return {}
        scores, labels = scores[self.tested], self.held_out.labels[self.tested]
        if self.loss.outputs > 1:
            return metrics.classes(scores, labels)
        if isinstance(self.loss, Classification):
            return metrics.binary(scores, labels)
        unit = self.encoding.label.unit if isinstance(self.encoding.label, Range) else 1.0
        return metrics.regression(unit * scores, unit * labels)

    def beside(self, model: Vector) -> Beside:
        """Figures of the start, of the best constant and of the optimum without a bound; and what is amiss."""
        items = len(self.held_out.labels)
        return Beside(
            start=self._figures(np.zeros((items, *np.shape(self.usual)))),
            baseline=self._figures(np.tile(self.usual, (items, *(1 for _ in np.shape(self.usual))))),
            unbounded=self.test_metrics(self._free),
            held_back=held_back(self),
            clipped=self.fit.clipped(),
            remarks=(
                *self.knowledge.assumptions,
                *self.fit.remarks(self.encoding),
                *about_boundary(self.domain, np.asarray(model, np.float64), self._best, held_back(self)),
                *about_separation(self._honest.separates(self._free)),
            ),
        )


def from_table(
    source: Any,
    *,
    user: str,
    label: Label | str | None,
    features: tuple[Feature, ...],
    loss: Loss | None = None,
    domain: Domain | None = None,
    intercept: bool = True,
    unit_rows: bool = False,
    weight: Weight | None = None,
    missing: Literal["drop", "middle"] = "drop",
    test_fraction: float = 0.2,
    items_per_user: int | None = None,
    outliers: Outliers | None = None,
    seed: int = 0,
) -> TablePopulation:
    """The users of a table as a population.

    `source` is a path (.csv, .parquet), a DataFrame or a pyarrow Table; `label` a kind of label, or as text a column
    of signs or a comparison such as `arr_delay > 15`; None only for the linear loss. What becomes of a row is said by
    `quoron_client.data.encoding.Encoding`, with the same arguments. `items_per_user` is the public nominal m; left
    out, it is 1.

    Raises DataError for a table that cannot be read, a missing column, a row without a user; ConfigError for arguments
    out of range and for labels that the loss does not take. No other value of a row is an error.
    """
    loss = Logistic() if loss is None else loss
    encoding = Encoding(
        features,
        label=read_label(label) if isinstance(label, str) else label,
        intercept=intercept,
        unit_rows=unit_rows,
        feature_norm=loss.feature_norm,
        weight=weight,
        missing=missing,
    )
    return encoded_table(
        source,
        encoding,
        user=user,
        loss=loss,
        domain=domain,
        test_fraction=test_fraction,
        items_per_user=items_per_user,
        outliers=outliers,
        seed=seed,
    )


def encoded_table(
    source: Any,
    encoding: Encoding,
    *,
    user: str,
    loss: Loss,
    domain: Domain | None = None,
    test_fraction: float = 0.2,
    items_per_user: int | None = None,
    outliers: Outliers | None = None,
    seed: int = 0,
    weighing: Weighing | None = None,
) -> TablePopulation:
    """The users of a table as a population, by rules made before. Arguments and errors are those of `from_table`.

    `weighing` finds class weights that wait for a look.
    """
    if not 0 <= test_fraction < 1:
        raise ConfigError(f"Expected test_fraction in [0, 1), got test_fraction={test_fraction}.")
    encoding.check_loss(loss)
    table = tables.read(source, (*encoding.columns, user))
    assumptions, asked = assumed(encoding, items_per_user), encoding
    encoding = encoding.resolved(table)
    users, owners = group(table, user)
    training = trained(users, test_fraction, seed)
    if weighing is not None:
        encoding = weighing(encoding, training, [(owners, table)])
    knowledge = PublicKnowledge(intercept=encoding.intercept, assumptions=(*assumptions, *unbalanced(asked, encoding)))
    return population_of(
        fused.encoded(encoding, table),
        owners,
        training,
        encoding=encoding,
        loss=loss,
        domain=L2Ball(10.0) if domain is None else domain,
        items_per_user=1 if items_per_user is None else items_per_user,
        knowledge=knowledge,
        outliers=Outliers() if outliers is None else outliers,
        seed=seed,
    )


def population_of(
    encoded: "Encoded",
    owners: Owners,
    training: NDArray[np.bool_],
    *,
    encoding: Encoding,
    loss: Loss,
    domain: Domain,
    items_per_user: int,
    knowledge: PublicKnowledge,
    outliers: Outliers,
    seed: int,
) -> TablePopulation:
    """A population of rows that are items already, row i being that of user owners[i].

    `training` (users,) says who is trained on; the others are held out.
    """
    users, chosen, held = len(training), np.flatnonzero(training), np.flatnonzero(~training)
    everyone = encoded.batch(users, owners)
    kept = np.bincount(owners[encoded.kept], minlength=users)
    return TablePopulation(
        training=bounded(everyone.of(chosen), loss) if loss.narrow else everyone.of(chosen),
        held_out=everyone.of(held),
        encoding=encoding,
        items_per_user=items_per_user,
        loss=loss,
        domain=domain,
        knowledge=knowledge,
        usual=_usual(encoded.labels[encoded.kept & training[owners]], loss),
        fit=Fit(encoded.counts, users, int(np.sum(kept == 0)), int(np.bincount(owners).max())),
        tested=np.repeat(kept[held] > 0, np.maximum(kept[held], 1)),
        outliers=outliers,
        seed=seed,
    )


def trained(users: int, test_fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which users are trained on, (users,): all but round(test_fraction n), drawn by `seed`. DataError if nobody is."""
    if not 0 <= test_fraction < 1:
        raise ConfigError(f"Expected test_fraction in [0, 1), got test_fraction={test_fraction}.")
    ticket = words(seed=seed, purpose=Purpose.SPLIT, users=np.arange(users))[:, 0]
    chosen = np.ones(users, np.bool_)
    chosen[np.argsort(ticket, kind="stable")[: round(test_fraction * users)]] = False
    if not chosen.any():
        raise DataError(f"Expected a user to train on, got none of {users} with test_fraction={test_fraction}.")
    return chosen


def assumed(encoding: Encoding, items_per_user: int | None) -> tuple[str, ...]:
    """What a reader must believe of a table's rules before its values were looked at."""
    taken = [
        f"The values of {f.column!r} were taken from the data as its vocabulary: for simulation only. List them."
        for f in encoding.features
        if f.is_open
    ]
    return (*taken, _UNDECLARED) if items_per_user is None else tuple(taken)


def unbalanced(asked: Encoding, found: Encoding) -> tuple[str, ...]:
    """What a reader is told where class weights were to follow from a look, and nobody looks."""
    return () if asked.class_weight is None or found.class_weight is not None else (_UNBALANCED,)


def _usual(labels: Vector, loss: Loss) -> float | Vector:
    """The scores that answer labels best whatever the row: a number, or one for each of more than two classes."""
    if loss.outputs > 1:
        return metrics.class_odds(labels, loss.outputs)
    return metrics.constant(labels, two_classes=isinstance(loss, Classification))

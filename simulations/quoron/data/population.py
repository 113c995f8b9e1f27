"""The users of a folder of Parquet files as a population, with the same bits as of the same rows in a table in memory.

    crowd = from_dataset("visits/", encoding, user="patient", loss=Logistic(), items_per_user=20, seed=0)

Who is held out, how users are numbered, and what each of them answers are as in `quoron.data.table`. Figures of
a simulation (the optimum, excess risk, figures on held-out users, remarks) are those of all users where they fit
into memory, and else of a sample of them, which the remarks say.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron.data.index import opened
from quoron.data.item_store import ItemStore
from quoron.data.rows import Rows
from quoron.data.table import DOMAIN, TablePopulation, alike, assumed, population_of, trained
from quoron.data.users import (
    ALL_HONEST,
    Beside,
    Corruption,
    Declared,
    Outliers,
    Purpose,
    TabularUsers,
    Users,
    Vector,
    flipped,
    words,
)
from quoron_client.data.encoding import Encoding
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss
from quoron_client.protocol.domains import Domain

SAMPLE = 4_000_000  # rows that figures of a simulation are taken on, about


class LazyStore:
    """A store of items that is made when it is first asked for, and shared by copies of its population."""

    def __init__(self, rows: Rows, numbers: Users | None, order: Users, loss: Loss) -> None:
        self._rows, self._numbers, self._order, self._loss = rows, numbers, order, loss

    @cached_property
    def filled(self) -> ItemStore:
        """The store; all rows are read for it."""
        return ItemStore(self._rows, self._numbers, self._order, self._loss)

    def of(self, users: Users) -> "LazyStore":
        """Return a separate store for some of the users, read in the same order."""
        own = np.zeros(int(self._order.max(initial=-1)) + 1, np.bool_)
        own[users] = True
        return LazyStore(self._rows, self._numbers, self._order[own[self._order]], self._loss)

    def storage(self, users: int) -> Users:
        """Position of each of all users (users,) in the order of the files."""
        return self._rows.storage(np.arange(users) if self._numbers is None else self._numbers)

    def __getstate__(self) -> dict[str, Any]:
        """Without the store, which stays on its machine."""
        return {name: held for name, held in vars(self).items() if name != "filled"}


@dataclass(frozen=True, eq=False)
class FileUsers(TabularUsers):
    """Users whose items are on disk, and nothing more: what answers for them."""

    store: LazyStore = field(kw_only=True, repr=False)

    def items(self, users: Users) -> ItemBatch:
        """Return the items of `users` (k,), in that order."""
        return flipped(self.held.items(users), self.corruption(users), self.loss)

    @property
    def held(self) -> ItemStore:
        """All users' items within the bounds of the loss; read for it when it is first asked for."""
        return self.store.filled

    def pieces(self, users: Users) -> Iterator[NDArray[np.int64]]:
        """Indices into `users` (k,) that are read together, in the order of reading."""
        return self.held.pieces(users)

    def storage(self) -> Users:
        """Position (n,) of each user among all, in the order of the files."""
        return self.store.storage(self.users)

    def part(self, users: Users) -> "FileUsers":
        """Some users, with a store of their own."""
        return FileUsers(**self.public(), store=self.store.of(users), outliers=self.outliers, seed=self.seed)


@dataclass(frozen=True, eq=False)
class DatasetPopulation(FileUsers):
    """The same with what figures of a simulation need; nothing of them is read before somebody is asked."""

    rows: Rows = field(kw_only=True, repr=False)
    numbers: Users = field(kw_only=True, repr=False)  # of the users to train on, in the index

    @property
    def encoding(self) -> Encoding:
        """How rows become items."""
        return self.rows.encoding

    @property
    def everybody(self) -> int:
        """Number of users of the table, those held out among them."""
        return self.rows.users

    def read_in(self, order: Users) -> "DatasetPopulation":
        """Return the same users, read fastest in this order (n,)."""
        return replace(self, store=LazyStore(self.rows, self.numbers, order, self.loss))

    @property
    def optimum(self) -> Vector:
        """Non-private minimiser over the domain of the mean over honest training users of their average loss."""
        return self._figures.optimum

    def excess_risk(self, model: Vector) -> float:
        """Training objective of `model` minus that of the optimum (honest users)."""
        return self._figures.excess_risk(model)

    def risk_by_sample(self, model: Vector) -> dict[str, float]:
        """Return the same for a round of a run, as of a table."""
        return self._figures.risk_by_sample(model)

    def test_metrics(self, model: Vector) -> dict[str, float]:
        """On usable items of held-out users, as of a table."""
        return self._figures.test_metrics(model)

    def beside(self, model: Vector) -> Beside:
        """As of a table; with a remark where figures are of a sample."""
        figures, seen = self._figures.beside(model), len(self._sampled)
        if seen == self.rows.users:
            return figures
        remark = (
            f"The optimum, the excess risk, figures on held-out users and these remarks are of a sample of {seen:,} of "
            f"the {self.rows.users:,} users, as all do not fit into memory. The model is of all users."
        )
        return replace(figures, remarks=(remark, *figures.remarks))

    @cached_property
    def _sampled(self) -> Users:
        """Users that figures are of, in the index's numbers, in order."""
        rows, users = self.rows.index.rows, self.rows.users
        if rows <= SAMPLE:
            return np.arange(users)
        ticket = words(seed=self.seed, purpose=Purpose.SPLIT, users=np.arange(users))[:, 1]
        drawn = np.argsort(ticket, kind="stable")
        few = np.sort(drawn[: int(np.searchsorted(np.cumsum(self.rows.index.held()[drawn]), SAMPLE)) + 1])
        whose = np.searchsorted(self.numbers, few)
        known = self.numbers[np.minimum(whose, self.users - 1)] == few
        honest = self.corruption(whose) == Corruption.HONEST
        figured: Users = few[~known | honest]  # figures are of honest users
        return figured

    @cached_property
    def _figures(self) -> TablePopulation:
        """The sample in memory."""
        sampled, all_of_them = self._sampled, len(self._sampled) == self.rows.users
        place = np.full(self.rows.users, -1, np.int64)
        place[sampled] = np.arange(len(sampled))
        tables, owners = [], []
        for own, table in self.rows.tables(place >= 0):
            chosen = place[own] >= 0
            tables.append(table if chosen.all() else table.filter(pa.array(chosen)))
            owners.append(place[own[chosen]])
        return population_of(
            self,
            pa.concat_tables(tables),
            np.concatenate(owners),
            np.isin(sampled, self.numbers, assume_unique=True),
            encoding=self.encoding,
            outliers=self.outliers if all_of_them else ALL_HONEST,
            seed=self.seed,
        )


def from_dataset(
    source: str | Path,
    encoding: Encoding,
    *,
    user: str,
    loss: Loss,
    domain: Domain = DOMAIN,
    test_fraction: float = 0.2,
    items_per_user: int | None = None,
    outliers: Outliers = ALL_HONEST,
    seed: int = 0,
) -> DatasetPopulation:
    """The users of a folder, or of what a URL names, as a population; arguments and errors are those of `from_table`.

    Users are counted by the source's index, which is made if there is none (`quoron.data.index`).
    """
    encoding.check_loss(loss)
    index = opened(source, user)
    rows = Rows.of(index, alike(encoding)).resolved()
    training = trained(index.users, test_fraction, seed)
    chosen = np.flatnonzero(training)
    sizes: dict[str, Any] = {"users": len(chosen), "items_per_user": items_per_user}
    declared = Declared.of_rows(rows.encoding, loss, domain, **sizes, assumptions=assumed(encoding, items_per_user))
    return DatasetPopulation(
        **declared.public(),
        store=LazyStore(rows, chosen, np.arange(len(chosen)), loss),
        rows=rows,
        numbers=chosen,
        outliers=outliers,
        seed=seed,
    )

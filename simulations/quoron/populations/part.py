"""Some users of a table in memory, and nothing of the others: what a worker is given."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quoron.populations.outliers import Outliers, flipped
from quoron.populations.users import Declared, Users
from quoron_client.compute.enforcement import bounded
from quoron_client.data.items import ItemBatch, ItemView


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

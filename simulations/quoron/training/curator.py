"""The users of a table that this machine holds, answering in this process.

Every user has one slot, in an order that nobody knows: a uniform permutation from the run's secret noise. So neither
how users are named nor how rows are sorted decides who is asked together, and a promise for a user's data is a promise
for its name as well. The order is the run's and stays when a run goes on; words of local reports are each start's own.
"""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quoron.populations.table import TableUsers
from quoron.populations.users import Declared
from quoron.sharding.choice import Sharing
from quoron.sharding.engine import KeyedRandomness, Settings, ShardedEngine
from quoron_client.data.items import ItemBatch
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.noise.ahead import of_the_run
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Sums
from quoron_server.algorithms.slots import partition

if TYPE_CHECKING:  # only a folder needs it
    from quoron.datasets.population import FileUsers
    from quoron.datasets.rows import Rows

Users = NDArray[np.int64]


class CuratorEngine:
    """Answers of all users, user by slot in a secret order; local reports draw on secret words.

    `items` are those of all users, or the rows of files. Of these a run with public `seed` reads each once a pass; None
    where everybody is asked in every round, in the order of slots.
    With `sharing` other processes answer, which `close` ends. `among` (k,) are those that are asked at all; None: all.
    """

    def __init__(
        self,
        declared: Declared,
        items: "ItemBatch | Rows",
        noise: NoiseSource,
        *,
        seed: int | None = 0,
        sharing: Sharing | None = None,
        among: Users | None = None,
    ) -> None:
        self._order = (
            of_the_run(noise).stream("order of users").permutation(declared.users if among is None else len(among))
        )
        self._order = self._order if among is None else among[self._order]
        people, settings = self._holders(declared, items, seed), Settings(randomness=KeyedRandomness(noise))
        self._engine = settings.engine(people) if sharing is None else sharing.engine(people, settings)

    def close(self) -> None:
        """End whatever other processes there are."""
        if isinstance(self._engine, ShardedEngine):
            self._engine.close()

    def _holders(self, declared: Declared, items: "ItemBatch | Rows", seed: int | None) -> Any:
        if isinstance(items, ItemBatch):
            return TableUsers(**_fields(declared), own=np.arange(declared.users), batch=items)
        asked = self._order if seed is None else self._order[partition(seed=seed, users=len(self._order))]
        return file_users(declared, items, asked)

    def ask(self, question: Question) -> Answers | Sums:
        """Answers of the question's cohort, in slot order, or their sums."""
        return self._engine.ask(replace(question, cohort=self._order[question.cohort]))


def file_users(declared: Declared, rows: "Rows", asked: Users) -> "FileUsers":
    """The users of a folder's rows, of whom these (k,) are asked, in this order."""
    from quoron.datasets.population import FileUsers, LazyStore

    return FileUsers(**_fields(declared), store=LazyStore(rows, None, asked, declared.loss))


def _fields(declared: Declared) -> dict[str, Any]:
    return {each.name: getattr(declared, each.name) for each in fields(declared)}

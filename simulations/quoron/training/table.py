"""The table of a data holder's run, in two steps: first what is public of it, later its items.

Public are the declared facts and the number of users: how many different names the user column holds, whatever becomes
of their rows. Under adjacency zero-out it is not public whether a user is there at all: the number is then declared.

The engine answers for its users in this process. Every user has one slot, in an order that nobody knows: a uniform
permutation from the run's secret noise. So neither how users are named nor how rows are sorted decides who is asked
together, and a promise for a user's data is a promise for its name as well. The order is the run's and stays when a run
goes on; words of local reports are each start's own."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron import config as configs
from quoron.config import Config
from quoron.data.declared_types import check_types
from quoron.data.index import Rows, ahead, opened
from quoron.data.table import TableUsers
from quoron.data.user_rows import max_rows
from quoron.data.users import Declared, Users
from quoron.engine.choice import INLINE, Inline, KeyedRandomness, Ray, ShardedEngine
from quoron.engine.inline import InlineEngine
from quoron.paths import dataset
from quoron.run_folder import FRAME, Identity, RunFolder
from quoron.simulation.problem import encoding_of, loss_of, make_domain
from quoron.simulation.wildcards import source_of, unread
from quoron.training.memory import BESIDE, ELSEWHERE, ONCE, UNCHARGED, make_sure_of_items, memory_for
from quoron_client.data import fused
from quoron_client.data.encoding import Encoding
from quoron_client.data.fused import Fitting, Gathering, Marks, RowCounts, declared_columns, declared_labels
from quoron_client.data.items import ItemBatch
from quoron_client.data.tables import Opened, types_of
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.errors import ConfigError, DataError
from quoron_privacy.noise.streams import NoiseSource, of_the_run
from quoron_privacy.release import Sums
from quoron_server.algorithms.slots import partition
from quoron_server.plan import check_delta

if TYPE_CHECKING:  # only a folder needs the first, and what is estimated the second
    from quoron.data.population import FileUsers
    from quoron.training.estimated import Declarations


class CuratorEngine:
    """Answers of all users, user by slot in a secret order; local reports draw on secret words.

    `items` are those of all users, or the rows of files. Of these a run with public `seed` reads each once a pass; None
    where everybody is asked in every round, in the order of slots.
    Workers of the `engine` answer, which `close` ends. `among` (k,) are those that are asked at all; None: all.
    """

    def __init__(
        self,
        declared: Declared,
        items: ItemBatch | Rows,
        noise: NoiseSource,
        *,
        seed: int | None = 0,
        engine: Inline | Ray = INLINE,
        among: Users | None = None,
    ) -> None:
        self._order = (
            of_the_run(noise).stream("order of users").permutation(declared.users if among is None else len(among))
        )
        self._order = self._order if among is None else among[self._order]
        self._in_memory = isinstance(items, ItemBatch)
        asked = self._order
        if seed is not None and not self._in_memory:
            asked = asked[partition(seed=seed, users=len(asked))]
        self._engine = engine.over(InlineEngine(users_of(declared, items, asked), randomness=KeyedRandomness(noise)))

    def close(self) -> None:
        """End whatever other processes there are."""
        if isinstance(self._engine, ShardedEngine):
            self._engine.close()

    def ask(self, question: Question) -> Answers | Sums:
        """Answers of the question's cohort, in slot order, or their sums."""
        everybody = self._in_memory and len(question.cohort) == len(self._order)
        unordered = everybody and question.reduction is not None and question.task.own is None  # as a sum is
        asked = self._order if unordered else self._order[question.cohort]
        return self._engine.ask(replace(question, cohort=asked))


def users_of(declared: Declared, items: ItemBatch | Rows, asked: Users) -> "TableUsers | FileUsers":
    """Return users with these items; of files these (k,) are asked, in this order."""
    if isinstance(items, ItemBatch):
        return TableUsers(**declared.public(), training=items)
    from quoron.data.population import FileUsers, ItemStore

    return FileUsers(**declared.public(), store=ItemStore(items, np.arange(declared.users), asked, declared.loss))


NUMBERS = 1 << 23  # of users, that are looked at together


@dataclass(frozen=True, slots=True, eq=False)
class TableRows:
    """Rows of users, of which nothing is shown but how many users there are.

    Of a table items and marks are in memory. Of a folder of files rows are put in order within a memory that is fixed,
    lie on disk, and are marked whenever they are read for a check. Under zero-out a user whose rows cannot be used has
    no item, like an empty slot: nobody's answer is the zero vector, whatever the ridge.
    """

    declared: Declared
    encoding: Encoding
    warnings: tuple[str, ...]  # of declarations, never of values
    zero_rows: bool  # whether a user without usable rows has an item of zeros: not under zero-out, where it is nobody
    items: ItemBatch | Rows = field(repr=False)  # of all slots, or rows to be read when a run begins
    _marks: list[tuple[NDArray[np.int32], Marks]] = field(default_factory=list, repr=False)  # (N,) owners; (N, B)

    def drop_marks(self) -> None:
        """Free the memory of the data quality check: `fitting` is over, or never comes."""
        self._marks.clear()

    def fitting(self, slots: Users) -> Iterator[Fitting]:
        """Of those that hold somebody of these slots (m,), some at a time: see `RowCounts.fitting`.

        Under zero-out a user without a row is nobody. Only rows of these users are looked at.
        """
        most = max(1, NUMBERS // (len(declared_columns(self.encoding)) + len(declared_labels(self.encoding)) + 2))
        if not isinstance(self.items, ItemBatch):  # in an order in which they are read fast
            index, chosen = self.items.index, np.zeros(self.declared.users, np.bool_)
            chosen[slots] = True
            slots = index.order[chosen[index.order]]
        for first in range(0, len(slots), most):
            some = slots[first : first + most]
            place, tally = np.full(self.declared.users, -1, np.int64), RowCounts(self.encoding, len(some))
            place[some] = np.arange(len(some))
            for owners, marks in self._marked(place >= 0):
                tally.add(owners, marks, place)
            yield tally.fitting(everybody=self.zero_rows)

    def _marked(self, wanted: NDArray[np.bool_]) -> Iterator[tuple[NDArray[Any], Marks]]:
        """Yield whose each row is, and its marks, of `wanted` users (users,) and perhaps of others."""
        if isinstance(self.items, ItemBatch):
            assert self._marks, "marks were dropped before the data quality check"
            yield self._marks[0]
            return
        for owners, table in self.items.tables(wanted[: self.items.index.users]):
            rows = np.flatnonzero(owners >= 0)
            if len(rows) < len(owners):
                owners, table = owners[rows], table.take(pa.array(rows))
            yield owners, fused.encoded(self.encoding, table).marks


@dataclass(frozen=True, slots=True, eq=False)
class TableSetup:
    """The users of a data holder's run, and which run that is."""

    rows: TableRows
    identity: Identity
    unchecked: str | None = None  # why no data quality check is made; None: one is made
    estimates: "Declarations | None" = None  # what of its declarations was estimated
    users_digest: bytes = b""  # of the users' names, then

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that a plan is shown with."""
        return self.rows.warnings


def load_rows(
    config: Config,
    base: Path,
    frame: Any = None,
    *,
    begun: bool = False,
    given: configs.TableSection | None = None,
    users_digest: bytes = b"",
) -> TableRows:
    """Read the table of a configuration, or take `frame`; a relative path is relative to `base`.

    Rows become items while they are read. A run that has `begun` is not refused for what memory the system says is
    left: it gets what there is. The section of the table before patterns were looked up is `given`: with what it
    excludes, and what it estimates. `users_digest` is of its users, where something of them was estimated.

    Raises ConfigError for what only a simulation can have, DataError for a table that cannot be read, a missing column
    and a row without a user, RunError where memory ends.
    """
    section = check_section(config)
    loss, domain = loss_of(config), make_domain(config.domain, config.loss.feature_norm)
    encoding = encoding_of(section, loss)
    items, zero_rows = config.population.items_per_user, config.privacy.adjacency != "zero-out"
    most = max_rows(items or 1, encoding.dimension, weighted=encoding.weighted)

    def declared(users: int) -> Declared:
        return Declared.of_rows(encoding, loss, domain, users=slots(config, users), items_per_user=items)

    source = dataset(section.path, base) if frame is None else None
    if source is not None:
        rows = Rows.of(opened(source, section.user), encoding)
        _check_same_users(users_digest, rows.index.digest.encode())
        encoding = check_types(encoding, types_of(rows.index.files.schema))
        public = declared(rows.users)
        rows = replace(rows, encoding=encoding, users=public.users, zero_rows=zero_rows, most=most)
        warnings = (*public.knowledge.assumptions, *unread(given or section, rows.index.files.schema.names))
        return TableRows(public, encoding, warnings, zero_rows, rows)
    then = ONCE if begun else f"{UNCHARGED} {ELSEWHERE}"
    with memory_for("the rows of this table", then):
        table = source_of(section, base, frame)
        ask = partial(make_sure_of_items, then, begun=begun)
        encoding, gathering = gather(table, encoding, section.user, most, ask=ask)
        gathered = gathering.end()
        if users_digest:
            _check_same_users(users_digest, gathering.people)
        public = declared(gathered.users)
        made = gathered.items(public.users, zero_rows=zero_rows)
        again = made.features.nbytes + BESIDE * len(made.labels)  # what a round may make of them
        make_sure_of_items(then, again + made.features.nbytes, again, begun=begun)
    warnings = (*public.knowledge.assumptions, *unread(given or section, table.names))
    return TableRows(public, encoding, warnings, zero_rows, made, [(gathered.owners, gathered.block.marks)])


def gather(table: Opened, encoding: Encoding, user: str, most: int, **more: Any) -> tuple[Encoding, Gathering]:
    """Read a table's rows, `most` of a user: its encoding by the types of its columns, and what was gathered.

    DataError for a table without the columns, or with columns of other types.
    """
    names = (*encoding.columns, user)
    encoding.check(table.empty(names))
    encoding = check_types(encoding, table.schema)
    gathering = Gathering(encoding, user, most, rows=table.rows, **more)
    with closing(ahead(table.batches(names))) as batches:
        for batch in batches:
            gathering.add(batch)
    return encoding, gathering


def _check_same_users(users_digest: bytes, now: bytes) -> None:
    """A slot is the same user's in all that a run does: evaluation#ev1."""
    if users_digest and users_digest != now:
        raise DataError("Expected the users of whom something was estimated, got others. Go on with that table.")


def check_section(config: Config) -> configs.TableSection:
    """Return the table of a configuration for real; ConfigError where it is none."""
    section, privacy = config.population, config.privacy
    if not isinstance(section, configs.TableSection):
        raise ConfigError(
            f"Expected population.kind='table' for training, got {section.kind!r}. "
            "Made-up users are for `quoron simulate`."
        )
    if section.outliers.share > 0:
        raise ConfigError(
            f"Expected population.outliers.share=0 for training, got {section.outliers.share}: "
            "nobody's answers are made up. To have real outliers removed, declare problem.adversarial_share."
        )
    if privacy.min_cohort.share not in (None, "none") or privacy.min_cohort.participation != "private":
        raise ConfigError("Expected no privacy.min_cohort for training, got one: everybody answers.")
    if privacy.trust_model in ("two-servers", "local"):
        raise ConfigError(
            f"Expected no privacy.trust_model for training, got {privacy.trust_model!r}: this machine holds the table."
        )
    if config.run.dropout:
        raise ConfigError(f"Expected no run.dropout for training, got {config.run.dropout:g}: nothing is sent.")
    return section


def refuse_frame(config: Config, folder: RunFolder, call: str) -> None:
    """Raise ConfigError for a run on a DataFrame, which only the same call can continue."""
    if config.population.kind == "table" and config.population.path == FRAME:
        raise ConfigError(
            f"Expected a run on a file, got {folder.path} on a DataFrame, which is stored nowhere. Go on with the same "
            f"call of {call} and out={str(folder.path)!r}."
        )


def slots(config: Config, users: int) -> int:
    """Return the number of slots: of users where that is public, as declared where it is not.

    ConfigError for a declaration that cannot be meant, and for a δ above one in so many; DataError for more users.
    """
    assert isinstance(config.population, configs.TableSection)
    privacy, declared = config.privacy, config.population.users
    if privacy.adjacency == "replace-one":
        if declared not in (None, users):
            raise ConfigError(
                f"Expected population.users={users}, the number of users in the table, which is public with "
                f"replace-one; got {declared}. Leave it out."
            )
        declared = users
    if declared is None:
        raise ConfigError(
            "Expected population.users with adjacency zero-out, got none: whether a user is in the table is private "
            "then. Declare the most users that it may hold."
        )
    if users > declared:
        raise DataError(f"Expected at most population.users={declared} users in the table, got more. Declare more.")
    check_delta(privacy.delta, declared, allowed=privacy.allow_large_delta)
    return declared

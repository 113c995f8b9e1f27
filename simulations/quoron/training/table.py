"""The table of a curator's run, in two steps: first what is public of it, later its items.

Public are the declared facts and the number of users: how many different names the user column holds, whatever becomes
of their rows. Under adjacency zero-out it is not public whether a user is there at all: the number is then declared.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron import config as configs
from quoron.config import Config
from quoron.paths import dataset, table_file
from quoron.populations.users import Declared, PublicKnowledge
from quoron.simulation.scene import encoding_of, loss_of, make_domain
from quoron.training.room import BLOCK, ELSEWHERE, UNCHARGED, Room, memory_for
from quoron_client.data import tables
from quoron_client.data.declared import check_types, types_of
from quoron_client.data.encoding import Categorical, Encoding, Owners, group
from quoron_client.data.first_rows import Reading, most_rows, only_first
from quoron_client.data.items import ItemBatch
from quoron_client.data.misfits import Fitting, Misfits, Tally, declared_columns, declared_labels
from quoron_privacy.errors import ConfigError, DataError
from quoron_server.budget import check_delta

if TYPE_CHECKING:  # only a folder needs it
    from quoron.datasets.rows import Rows

Slots = NDArray[np.int64]
NUMBERS = 1 << 23  # of users, that are looked at together
UNDECLARED = (
    "problem.items_per_user is not declared and planned as 1: declare what a user typically holds, for better steps "
    "and, with some methods, less noise."
)


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A table that is read and grouped by user, with no other value looked at."""

    declared: Declared
    encoding: Encoding
    warnings: tuple[str, ...]  # of declarations, never of values
    _zero_out: bool
    _table: pa.Table = field(repr=False)
    _owners: Owners = field(repr=False)

    def room(self) -> Room | None:
        """Memory for the items, made sure of before anything is charged; None if they are few. RunError if it is not.

        It depends on how many rows count, and on no value of theirs.
        """
        encoding, rows = self.encoding, len(self._owners)
        if rows * encoding.dimension <= BLOCK:
            return None
        weighted = encoding.weight is not None
        return Room.made(rows=rows, users=self.declared.users, features=encoding.dimension, weighted=weighted)

    def items(self, room: Room | None = None) -> ItemBatch:
        """The items of all slots, in the room that was made for them.

        A user whose rows cannot be used has one item of zeros. Under zero-out it has none, like an empty slot: then
        such a user is nobody, and nobody's answer is the zero vector, whatever the ridge.
        """
        if room is not None:
            return room.fill(self.encoding, self._table, self._owners, zero_rows=not self._zero_out)
        encoded = self.encoding.encode(self._table)
        return encoded.batch(self.declared.users, self._owners, zero_rows=not self._zero_out)

    def fitting(self, slots: Slots) -> Iterator[Fitting]:
        """Of those that hold somebody of these slots (m,), some at a time: see `Tally.fitting`.

        Under zero-out a user without a row is nobody. Only rows of these users are looked at.
        """
        for some in _some(slots, self.encoding):
            place = _places(some, self.declared.users)
            rows = np.flatnonzero(place[self._owners] >= 0)
            tally = Tally(self.encoding, len(some))
            table = self._table if len(rows) == len(self._owners) else self._table.take(pa.array(rows))
            tally.add(place[self._owners[rows]], Misfits.of(self.encoding, table))
            yield tally.fitting(everybody=not self._zero_out)


@dataclass(frozen=True, slots=True, eq=False)
class HeldFiles:
    """A folder of files whose users are counted, with no other value looked at."""

    declared: Declared
    encoding: Encoding
    warnings: tuple[str, ...]  # of declarations, never of values
    _rows: "Rows" = field(repr=False)

    def room(self) -> None:
        """None: rows are put in order within a memory that is fixed, and lie on disk."""

    def items(self, room: Room | None = None) -> "Rows":
        """The rows of all slots, to be read when a run begins. Users without usable rows are as in `Held.items`."""
        del room
        return self._rows

    def fitting(self, slots: Slots) -> Iterator[Fitting]:
        """As of `Held`: the files are read once more, users in their order."""
        index, encoding = self._rows.index, self.encoding
        chosen = _places(slots, self.declared.users)[: index.users] >= 0
        for some in _some(index.order[chosen[index.order]], encoding):
            place, tally = _places(some, index.users), Tally(encoding, len(some))
            for owners, table in self._rows.tables(place >= 0):
                rows = np.flatnonzero(place[owners] >= 0)
                tally.add(place[owners[rows]], Misfits.of(encoding, table.take(pa.array(rows))))
            yield tally.fitting(everybody=self._rows.zero_rows)


def hold(config: Config, base: Path, frame: Any = None) -> Held | HeldFiles:
    """Read the table of a configuration, or take `frame`; a relative path is relative to `base`.

    Raises ConfigError for what only a simulation can have, DataError for a table that cannot be read, a missing column
    and a row without a user, RunError where memory ends.
    """
    section = _section(config)
    loss, domain = loss_of(config.loss), make_domain(config.domain, config.loss.feature_norm)
    encoding = encoding_of(section, loss)
    encoding.check_loss(loss)
    encoding.check_meant(section.user)
    for feature in encoding.features:
        if isinstance(feature, Categorical) and feature.categories == "from-data":
            raise ConfigError(
                f"Expected the values of categorical column {feature.column!r}, got none: what is in the table is "
                "private. List them, or have them released with `quoron declare`."
            )
    items, zero_out = config.problem.items_per_user, config.privacy.adjacency == "zero-out"
    most = most_rows(items or 1, encoding.dimension, weighted=encoding.weight is not None)
    warnings = () if items else (UNDECLARED,)

    def declared(found: int) -> Declared:
        known, users = PublicKnowledge(intercept=encoding.intercept), _users(config, found)
        check_delta(config.privacy.delta, users, allowed=config.privacy.allow_large_delta)
        return Declared(users, items or 1, encoding.dimension * loss.outputs, loss, domain, known)

    source = dataset(section.path, base) if frame is None else None
    if source is not None:
        from quoron.datasets.index import opened
        from quoron.datasets.rows import Rows

        rows = Rows.of(opened(source, section.user), encoding)
        check_types(encoding, types_of(source, rows.index.files.schema))
        public = declared(rows.users)
        return HeldFiles(
            public, encoding, warnings, replace(rows, users=public.users, zero_rows=not zero_out, most=most)
        )
    given = table_file(section.path, base) if frame is None else frame
    with memory_for("the rows of this table", f"{UNCHARGED} {ELSEWHERE}"):
        table = tables.read(given, (*encoding.columns, section.user), Reading(most, section.user))
        encoding.check(table)
        check_types(encoding, types_of(given, table.schema))
        found, owners = group(table, section.user, without_rows=True)
        return Held(declared(found), encoding, warnings, zero_out, *only_first(table, owners, most))


def _some(slots: Slots, encoding: Encoding) -> Iterator[Slots]:
    """Slots whose shares are in memory together."""
    most = max(1, NUMBERS // (len(declared_columns(encoding)) + len(declared_labels(encoding)) + 2))
    return (slots[first : first + most] for first in range(0, len(slots), most))


def _places(slots: Slots, users: int) -> NDArray[np.int64]:
    """Of each of all slots (users,) its place among these, -1 for none."""
    place = np.full(users, -1, np.int64)
    place[slots] = np.arange(len(slots))
    return place


def _section(config: Config) -> configs.Table:
    """The table of a configuration for real; ConfigError where it is none."""
    section, privacy = config.population, config.privacy
    if not isinstance(section, configs.Table):
        raise ConfigError(
            f"Expected population.kind='table' for training, got {section.kind!r}. "
            "Made-up users are for `quoron simulate`."
        )
    if section.outlier_fraction > 0:
        raise ConfigError(
            f"Expected population.outlier_fraction=0 for training, got {section.outlier_fraction}: "
            "nobody's answers are made up. To have real outliers removed, declare problem.hostile_share."
        )
    if privacy.quorum not in (None, "none"):
        raise ConfigError(f"Expected no privacy.quorum for training, got {privacy.quorum}: everybody answers.")
    if not privacy.trust_server:
        raise ConfigError("Expected privacy.trust_server=true for training, got false: this machine holds the table.")
    if config.run.network is not None:
        raise ConfigError(f"Expected no run.network for training, got {config.run.network!r}: nothing is sent.")
    return section


def _users(config: Config, found: int) -> int:
    """The number of slots: of users where that is public, as declared where it is not."""
    declared, adjacency = config.train.users, config.privacy.adjacency
    if adjacency == "replace-one":
        if declared not in (None, found):
            raise ConfigError(
                f"Expected train.users={found}, the number of users in the table, which is public with replace-one; "
                f"got {declared}. Leave it out."
            )
        return found
    if declared is None:
        raise ConfigError(
            "Expected train.users with adjacency zero-out, got none: whether a user is in the table is private then. "
            "Declare the most users that it may hold."
        )
    if found > declared:
        raise DataError(f"Expected at most train.users={declared} users in the table, got more. Declare more.")
    return declared

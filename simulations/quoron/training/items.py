"""Items by user as arrays: from a table, arrays or tensors, or a Dataset in the manner of torch.

Which items users take when has the same shapes for all, whatever anybody holds:

    timetable = Timetable(items, items_per_user=50, local=LocalSGD(batch_size=10))
    minibatches = timetable.minibatches(round, users, noise)     # places and weights, (k, steps, batch)

Every user has the same `steps` x `batch` places: a place without an item repeats one of the user's own with weight
zero. So shapes say nothing of anybody's items, and the kernels that compute a user's row are the same whatever others
hold. A user of more than `items_per_user` items takes part with so many of them, drawn anew in each round.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron.training.rows import Metric, Rows, Training, Users, Vector
from quoron_privacy.errors import ConfigError, DataError, count, positive
from quoron_privacy.noise.streams import NoiseSource

Array = NDArray[Any]
Data = Any  # a DataFrame, a Dataset of Hugging Face, an array or tensor, a tuple of them, or a torch Dataset


class ModuleTraining(Training, total=False):
    """The arguments of every function that trains on items: whose each is, and of a table which columns it has."""

    user: str | Sequence[Any] | NDArray[Any] | None  # a column of a table, or whose each item is
    offsets: Sequence[int] | NDArray[np.int64] | None  # where items are sorted by user: user u has those from u's on
    features: Sequence[str] | None  # columns of a table
    label: str | None  # column of a table


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Items of n users, in the order of users; who has none is a user all the same."""

    parts: tuple[Array, ...]  # each (N, ...): what an item consists of, such as an image and its label
    offsets: NDArray[np.int64]  # (n + 1,): user u has items offsets[u] to offsets[u + 1]

    @property
    def users(self) -> int:
        """n."""
        return len(self.offsets) - 1

    @property
    def counts(self) -> NDArray[np.int64]:
        """m_u of each user, shape (n,). Private."""
        return np.diff(self.offsets)

    @property
    def at_least_one(self) -> tuple[Array, ...]:
        """The parts, of an item that is nobody's where there is none: users without items look somewhere too."""
        return self.parts if len(self.parts[0]) else self.blank(1)

    def blank(self, *shape: int) -> tuple[Array, ...]:
        """As many items that are nobody's: zeros of the items' shape and type."""
        return tuple(np.zeros((*shape, *part.shape[1:]), part.dtype) for part in self.parts)


def items_of(
    data: Data,
    *,
    user: str | Sequence[Any] | NDArray[Any] | None = None,
    offsets: Sequence[int] | NDArray[np.int64] | None = None,
    features: Sequence[str] | None = None,
    label: str | None = None,
    **_: Any,
) -> Items:
    """Items of `data`; `user` is a column of a table, or whose each item is, `offsets` says it for sorted arrays.

    DataError for what does not fit together, and for an item without a user.
    """
    if (user is None) == (offsets is None):
        raise DataError("Expected either user or offsets, which say whose each item is; got both or neither.")
    if (columns := _columns(data)) is not None:
        if not isinstance(user, str) or features is None:
            raise DataError("Expected user, a column, and features, columns, with a table.")
        wanted = [user, *features, *([] if label is None else [label])]
        if missing := [name for name in wanted if name not in columns]:
            raise DataError(f"Expected the columns {', '.join(missing)} in the table, found none of these names.")
        table = _read(data, wanted)
        parts = _features([table[name] for name in features])
        parts += [] if label is None else [_numbers(table[label])]
        owners: Any = table[user]
    else:
        if features is not None or label is not None or isinstance(user, str):
            raise DataError("Expected columns (user, features, label) with a table only.")
        parts, owners = _parts(data), None if user is None else np.asarray(user)
    sizes = {len(part) for part in parts}
    if len(sizes) != 1:
        raise DataError(f"Expected arrays of one length, one entry an item, got lengths {sorted(sizes)}.")
    (size,) = sizes
    if owners is None:
        return Items(tuple(parts), _checked_offsets(np.asarray(offsets), size))
    if owners.shape != (size,):
        raise DataError(f"Expected user to name one user for each of {size} items, got shape {owners.shape}.")
    if any(one is None or one != one for one in owners.tolist()):
        raise DataError("Expected a user for every item, got items without one. Leave them out.")
    names, codes = np.unique(owners, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=len(names)))]).astype(np.int64)
    return Items(tuple(part[order] for part in parts), ends)


def _columns(data: Data) -> list[str] | None:
    """Names of a table's columns: of a DataFrame, or a Dataset of Hugging Face; None for what is no table."""
    if hasattr(data, "columns"):
        return [str(name) for name in data.columns]
    return list(data.column_names) if hasattr(data, "column_names") and hasattr(data, "with_format") else None


def _read(data: Data, names: list[str]) -> dict[str, Array]:
    """Columns of a table as arrays, (N,) or, where entries are arrays of one shape, (N, ...)."""
    found = data if hasattr(data, "columns") else data.select_columns(names).with_format("numpy")[:]
    return {name: _dense(name, np.asarray(found[name])) for name in names}


def _dense(name: str, column: Array) -> Array:
    if column.dtype != object or not len(column) or np.ndim(column[0]) == 0:
        return column
    try:
        return np.stack(list(column))
    except ValueError as error:
        raise DataError(f"Expected entries of one shape in the column {name}, got several. Pad them.") from error


def _features(columns: list[Array]) -> list[Array]:
    """Columns of numbers are one array (N, p) of float32; each column of arrays is one of its own, of its own type."""
    if all(column.ndim == 1 and column.dtype != object for column in columns):
        try:
            return [np.column_stack([column.astype(np.float32) for column in columns])]
        except ValueError:  # whose words quote a value
            raise DataError("Expected features of numbers, got a column with some that are none. Encode it.") from None
    return [_numbers(column) for column in columns]


def _parts(data: Data) -> list[Array]:
    arrays = isinstance(data, tuple | list | str | Mapping) or hasattr(data, "dtype")
    if not arrays and hasattr(data, "__getitem__") and hasattr(data, "__len__"):  # a Dataset
        rows = [data[index] for index in range(len(data))]
        if not rows:
            raise DataError("Expected a Dataset with items, got an empty one.")
        rows = [row if isinstance(row, tuple | list) else (row,) for row in rows]
        return [_numbers(np.stack([_array(row[place]) for row in rows])) for place in range(len(rows[0]))]
    given = data if isinstance(data, tuple | list) else (data,)
    if not given:
        raise DataError("Expected at least one array of items, got none.")
    return [_numbers(part) for part in given]


def _array(part: Any) -> Array:
    """Of an array, or of a tensor anywhere."""
    return np.asarray(part.numpy(force=True) if hasattr(part, "detach") else part)


def _numbers(part: Any) -> Array:
    try:
        found = _array(part).copy()  # which nobody else writes
    except (TypeError, ValueError) as error:
        raise DataError(f"Expected numbers, got {type(part).__name__} that numpy cannot hold.") from error
    if found.dtype.kind not in "biuf":
        raise DataError(f"Expected numbers, got entries of type {found.dtype}. Encode and pad them.")
    if found.ndim == 0:
        raise DataError("Expected one entry an item, got a single number.")
    return found.astype(np.float32) if found.dtype == np.float64 else found


def _checked_offsets(offsets: Array, size: int) -> NDArray[np.int64]:
    good = offsets.ndim == 1 and len(offsets) >= 2 and np.issubdtype(offsets.dtype, np.integer)
    if not good or offsets[0] != 0 or offsets[-1] != size or (np.diff(offsets) < 0).any():
        raise DataError(f"Expected offsets that ascend from 0 to the {size} items, one more than users.")
    return offsets.astype(np.int64)


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """What a user does with the model: so many passes over its items in shuffled batches. A row is how far it went."""

    epochs: int = 1
    batch_size: int = 10
    step_size: float = 0.1  # η

    def __post_init__(self) -> None:
        count(epochs=self.epochs, batch_size=self.batch_size)
        positive(step_size=self.step_size)


@dataclass(frozen=True, slots=True, eq=False)
class Minibatches:
    """Which items users take when. All of a user's follows from how many items it has itself, and its own dice."""

    places: NDArray[np.int64]  # (k, steps, batch), into the items of all users
    weights: NDArray[np.float32]  # (k, steps, batch), each step's sum to one, or to zero where there is none


@dataclass(frozen=True, slots=True, eq=False)
class Timetable:
    """Minibatches of any users in any round. `local` None asks for average gradients."""

    items: Items
    items_per_user: int
    local: LocalSGD | None

    def __post_init__(self) -> None:
        count(items_per_user=self.items_per_user)

    @property
    def steps(self) -> int:
        """Gradients that each user takes one after the other."""
        return 1 if self.local is None else self.local.epochs * -(-self.items_per_user // self.local.batch_size)

    @property
    def batch(self) -> int:
        """Items of one gradient."""
        return self.items_per_user if self.local is None else min(self.local.batch_size, self.items_per_user)

    def dice(self, round_: int, users: Users, noise: NoiseSource) -> NDArray[np.uint64]:
        """A seed below 2^63 for each of `users` (k,), of its own, the same again for the same round."""
        words = [noise.stream("dice", round_, int(user)).words(1)[0] for user in users]
        return np.array(words, np.uint64) >> np.uint64(1)

    def minibatches(self, round_: int, users: Users, noise: NoiseSource) -> Minibatches:
        """Of `users` (k,), drawn by each with dice of its own."""
        places = np.zeros((len(users), self.steps, self.batch), np.int64)
        weights = np.zeros(places.shape, np.float32)
        for row, user in enumerate(users.tolist()):
            first, held = int(self.items.offsets[user]), int(self.items.counts[user])
            if held == 0:
                continue
            taken, stream = min(held, self.items_per_user), noise.stream("items", round_, user)
            chosen = first + (np.arange(held) if held == taken else stream.subset(held, taken))
            places[row] = chosen[0]
            passes = 1 if self.local is None else self.local.epochs
            a_pass = self.steps // passes
            for number in range(passes):
                order = chosen if self.local is None else chosen[stream.permutation(taken)]
                for step, at in enumerate(range(0, taken, self.batch), number * a_pass):
                    some = order[at : at + self.batch]
                    places[row, step, : len(some)] = some
                    weights[row, step, : len(some)] = 1 / len(some)
        return Minibatches(places, weights)


Parts = tuple[Any, ...]


def figures_of(
    items: Items, metrics: Mapping[str, Metric], model_at: Callable[[Vector], Any], parts_of: Callable[..., Parts]
) -> Rows:
    """Return the means over each user's items of metric(model, *parts), a column a metric.

    `model_at` makes the model of a point (d,), `parts_of` what it takes of arrays of items (m, ...). A user is shown to
    it alone, and what it says of others does not depend on it. Where it raises for a user's items, or says something of
    another shape, that user is one without items: an error would tell of them, and so would a warning.
    """

    def figures(users: Users, point: Vector) -> Any:
        model, rows = model_at(point), np.full((len(users), len(metrics)), np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever one is of, it is of private items
            for place, user in enumerate(users):
                own = slice(items.offsets[user], items.offsets[user + 1])
                if own.stop > own.start:
                    try:
                        parts = parts_of(*(part[own] for part in items.parts))
                        measured = [_measured(metric, model, parts) for metric in metrics.values()]
                        rows[place] = np.stack(measured, axis=1).reshape(own.stop - own.start, -1).mean(axis=0)
                    except Exception:  # as an error
                        continue
        return rows

    return figures


def require_metrics(items: Items, metrics: Mapping[str, Metric], model: Any, parts_of: Callable[..., Parts]) -> None:
    """Raise ConfigError, by items of nobody, for a metric that does not return one number an item."""
    for name, metric in metrics.items():
        try:
            said = _measured(metric, model, parts_of(*items.blank(2)))
        except Exception as error:
            raise ConfigError(
                f"Expected the metric {name!r} to take some items at once; on two of zeros it raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if said.shape != (2,):
            raise ConfigError(
                f"Expected the metric {name!r} to return one number an item, got shape {said.shape} for two items."
            )


def _measured(metric: Metric, model: Any, parts: Parts) -> NDArray[np.float64]:
    """Return the numbers of items (m,), in [0, 1]."""
    found = metric(model, *parts)
    rows = np.asarray(found.detach().cpu() if hasattr(found, "detach") else found, np.float64)
    return np.asarray(np.clip(rows[:, 0] if rows.ndim == 2 and rows.shape[1] == 1 else rows, 0.0, 1.0))

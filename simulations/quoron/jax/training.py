"""Training with JAX: a pure loss, parameters, users' items, a promise.

Rows of users are average gradients or local SGD, a chunk of users in one compiled call:

    compute = LossRows(loss, params, items, items_per_user=50, local=LocalSGD(batch_size=10), chunk=64)
    rows = compute(round, users, point, noise)              # (k, d)

Who takes which of its items when is `quoron.training.rows`'s. A chunk that is not full is filled with users who
hold nothing, so that all have one shape, and nothing is compiled twice. A user without items has the zero row.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from quoron.arguments import entry_point
from quoron.training.rows import (
    CHUNK,
    ITEMS,
    Data,
    Items,
    LocalSGD,
    ModuleTraining,
    Start,
    Timetable,
    TrainedRows,
    Users,
    Vector,
    completed,
    items_of,
    released,
    start_of,
    train_model,
)
from quoron_privacy.errors import ConfigError, count
from quoron_privacy.noise.streams import NoiseSource

Params = Any  # a tree of floating-point arrays
Loss = Callable[..., Any]  # parameters, the parts of an item, and a key if it draws -> one number


class LossRows:
    """Rows of any users at any point. A function of them, of their items and of dice: nothing is kept between calls."""

    def __init__(
        self,
        loss: Loss,
        params: Params,
        items: Items,
        *,
        items_per_user: int,
        local: LocalSGD | None,
        chunk: int,
        draws: bool = False,
    ) -> None:
        """`local` None asks for average gradients. ConfigError for a loss that takes no item, or is not one number."""
        for leaf in jax.tree.leaves(params):
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise ConfigError(
                    f"Expected parameters of floating-point numbers, got a leaf of {jnp.result_type(leaf)}. Let the "
                    "loss close over what is not trained."
                )
        flat, self.unflat = ravel_pytree(params)
        if not flat.size:
            raise ConfigError("Expected parameters to train, got an empty tree.")
        self.origin: NDArray[np.float64] = np.asarray(flat, np.float64)
        self._loss, self._local, self._chunk, self._draws = loss, local, chunk, draws
        self.type, self._items = flat.dtype, items
        self._timetable = Timetable(items, items_per_user, local)
        self._many = jax.jit(jax.vmap(self._one, in_axes=(None, 0, 0, 0)))
        self._require_loss()

    def __call__(self, round_: int, users: Users, point: Vector, noise: NoiseSource) -> NDArray[np.float64]:
        """Rows (k, d) of `users` (k,) at `point` (d,); `noise` has the dice, the same again for the same round."""
        minibatches = self._timetable.minibatches(round_, users, noise)
        seeds = self._timetable.dice(round_, users, noise) if self._draws else np.zeros(len(users), np.uint64)
        found = np.zeros((len(users), len(point)))
        for first in range(0, len(users), self._chunk):
            here = slice(first, first + self._chunk)
            given = minibatches.places[here], minibatches.weights[here], seeds[here]
            places, weights, keys = (_full(part, self._chunk) for part in given)
            rows = self._many(jnp.asarray(point, self.type), self._taken(places), weights, _halves(keys))
            found[here] = np.asarray(rows, np.float64)[: len(users) - first]
        found[self._items.counts[users] == 0] = 0.0
        return found

    def _taken(self, places: NDArray[np.int64]) -> tuple[NDArray[Any], ...]:
        return tuple(part[places] for part in self._items.at_least_one)

    def _one(self, point: Any, parts: Any, weights: Any, seed: Any) -> Any:
        """Return the row (d,) of one user: parts (steps, batch, ...), weights (steps, batch), a seed of two words."""
        start = self.unflat(point)
        keys = jax.random.split(jax.random.wrap_key_data(seed, impl="threefry2x32"), weights.shape)

        def total(params: Params, weight: Any, items: Any, dice: Any) -> Any:
            given = (*self._items.given(items), *([dice] if self._draws else []))
            each = jax.vmap(self._loss, in_axes=(None, *(0 for _ in given)))(params, *given)
            return (weight * each.reshape(weight.shape)).sum()

        if self._local is None:
            first = jax.tree.map(lambda part: part[0], parts)
            return ravel_pytree(jax.grad(total)(start, weights[0], first, keys[0]))[0]
        size = self._local.step_size

        def step(params: Params, now: Any) -> tuple[Params, None]:
            gradient = jax.grad(total)(params, *now)
            return jax.tree.map(lambda w, g: (w - size * g).astype(w.dtype), params, gradient), None

        end, _ = jax.lax.scan(step, start, (weights, parts, keys))
        return ravel_pytree(start)[0] - ravel_pytree(end)[0]

    def _require_loss(self) -> None:
        """ConfigError, by an item of nobody, for what is no loss of one item under any parameters."""
        blank = self._items.given(tuple(part[0] for part in self._items.blank(1)))
        given = (*blank, *([jax.random.key(0)] if self._draws else []))
        try:
            found = jax.eval_shape(self._loss, self.unflat(jnp.asarray(self.origin, self.type)), *given)
        except Exception as error:
            raise ConfigError(
                "Expected a pure loss that takes parameters and one item, and that JAX can trace; on an item of zeros "
                f"it raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} For branches on "
                "values take jax.lax.cond. For randomness, give draws=True, and take a key as the last argument."
            ) from error
        if not hasattr(found, "size") or found.size != 1:
            raise ConfigError(f"Expected a loss of one number, got {found}. Take its mean.")


def _full(rows: NDArray[Any], size: int) -> NDArray[Any]:
    """So many rows, the last of them zeros."""
    return np.concatenate([rows, np.zeros((size - len(rows), *rows.shape[1:]), rows.dtype)])


def _halves(seeds: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Each seed as two words, (k, 2)."""
    return np.stack([seeds >> np.uint64(32), seeds & np.uint64(0xFFFFFFFF)], axis=1).astype(np.uint32)


def load(folder: str | Path, params: Params) -> Params:
    """Return a tree like `params` with the numbers that the run in `folder` released.

    Raises:
        RunError: the run is not complete, or its files have changed.
        ConfigError: it trained a tree of another size.
    """
    flat, unflat = ravel_pytree(params)
    return unflat(jnp.asarray(released(folder, Start(np.asarray(flat, np.float64))).weights, flat.dtype))


@entry_point
def train(
    loss: Loss,
    params: Params,
    data: Data,
    *,
    local: LocalSGD | None = None,
    draws: bool = False,
    watch: Callable[[int, Params], None] | None = None,
    **training: Unpack[ModuleTraining],
) -> TrainedRows[Params]:
    """Train `params`, a tree of arrays, with (ε, δ)-differential privacy for all items of each user.

    `loss(params, *parts)` is a pure function of parameters and of the parts of one item, without a batch dimension; a
    number. Of a mapping it gets a mapping: loss(params, batch). With `draws=True` it has a key as its last argument, of
    the user's own: dropout. Data, and arguments that are not named here, are those of `quoron.torch.train` and
    `quoron.train_rows`.

    Args:
        items_per_user: 32 unless given; public: a user with more items takes part with so many, drawn in each round.
        local: a row is what `LocalSGD` makes of the parameters; None: the average gradient.
        chunk: users computed at once, 64 unless given. All chunks have this size, and are compiled once.
        watch: called before each round with the released parameters that it asks at.
        metrics: as for torch: metric(params, *parts) gets all items of one held-out user, (m, ...) each.

    The loss is traced by JAX, before anything is charged, so it cannot keep or branch on what it is given: ConfigError
    for one that cannot be traced. Other devices are JAX's own affair (`jax.default_device`).
    """
    people = items_of(data, **training)
    training = completed(training, people.users, sum(np.size(leaf) for leaf in jax.tree.leaves(params)))
    most = training["items_per_user"] or ITEMS
    chunk = CHUNK if training.get("chunk") is None else int(training["chunk"] or 0)
    count(chunk=chunk)
    compute = LossRows(loss, params, people, items_per_user=most, local=local, chunk=chunk, draws=draws)

    def tree(point: Vector) -> Params:
        return compute.unflat(jnp.asarray(point, compute.type))

    start, described = start_of(training, Start(compute.origin)), f"{jax.tree.structure(params)} {local} {draws}"
    return train_model(
        people,
        training,
        start,
        described,
        compute=compute,
        model_at=tree,
        measured_at=tree,
        parts_of=lambda *parts: parts,
        watch=watch,
    )

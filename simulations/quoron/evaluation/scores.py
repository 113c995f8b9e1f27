"""What a model says of encoded rows, beside their labels, as means over each user's rows.

A row's figures are functions of that row and of the model alone. Of classes: whether the model is right, its log loss
where it tells chances. Of numbers: the error as a share of the label's declared range.

Which users are held out is a uniform draw from the run's secret noise, the same whenever the run goes on; how many of
all slots is public. So neither how users are named nor how rows are sorted decides who is held out, and a promise for a
user's data is a promise for its name as well. A split by names or their hashes would move others, or parts' sizes, when
a name is another. Proof: docs/privacy/evaluation.md#ev1.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

from quoron.data.users import Users, Vector
from quoron_client.data.encoding import Encoding, Range, outcomes
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss
from quoron_privacy.errors import ConfigError, probability
from quoron_privacy.noise.streams import NoiseSource, of_the_run

MOST_LOSS = 20.0  # nats of one row that are distinguished
_LARGEST = 1e100  # of a weight: squares of scores are numbers


@dataclass(frozen=True, eq=False)
class Scorer:
    """A model as figures need it: public from before the first row is looked at."""

    weights: Vector  # (K p,), or (p,)
    loss: Loss
    encoding: Encoding
    needed: Vector | None = None  # (K,) taken from scores before the largest decides; None: nothing

    @property
    def classes(self) -> int:
        """K; 0 for a number."""
        return len(outcomes(self.encoding.label))

    @property
    def probable(self) -> bool:
        """Whether scores are chances."""
        return self.loss.name in ("logistic", "softmax")

    @property
    def unit(self) -> float:
        """What the whole declared range of a number is in encoded units."""
        label = self.encoding.label
        assert isinstance(label, Range)
        return 2 * label.bound

    @property
    def finite(self) -> bool:
        """Whether it is a model."""
        return bool(np.isfinite(self.weights).all())

    @cached_property
    def _own(self) -> Vector:
        """Its weights as they are reckoned with: zeros where it is none, of which `figures` tells nothing."""
        held = np.clip(self.weights, -_LARGEST, _LARGEST) if self.finite else np.zeros(self.weights.shape)
        return np.asarray(held, np.float64)

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Where scores of two classes are looked for, by the weights alone: a middle and a width."""
        own, scale = self._own, float(self.encoding.scale)
        if not self.encoding.intercept:
            return 0.0, max(scale * float(np.linalg.norm(own)) / 3**0.5, 1e-9)
        return scale * float(own[-1]), max(scale * float(np.linalg.norm(own[:-1])) / 3**0.5, 1e-9)

    @property
    def decides(self) -> float:
        """The score of two classes above which the model says the second."""
        return 0.0 if self.needed is None else float(self.needed[1] - self.needed[0])

    def scores(self, items: ItemBatch) -> Vector:
        """(N,), or (N, K) with more than two classes."""
        found = products(items, self._own, self.loss.outputs)
        return found[:, 0] if self.loss.outputs == 1 else found

    def positions(self, scores: Vector) -> Vector:
        """Scores of two classes (N,) as places in (0, 1), in the same order."""
        middle, width = self.spread
        return np.asarray(ndtr((scores - middle) / width))

    def labels(self, items: ItemBatch) -> NDArray[np.int64]:
        """Classes (N,), as places in `outcomes`."""
        if self.classes == 2:
            return (items.labels > 0).astype(np.int64)
        return items.labels.astype(np.int64)

    def right(self, scores: Vector, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the model decides for the label, (N,)."""
        if scores.ndim == 1:
            return np.asarray((scores > self.decides) == (labels == 1))
        needed = np.zeros(self.classes) if self.needed is None else self.needed
        return np.asarray(np.argmax(scores - needed, axis=1) == labels)

    def losses(self, scores: Vector, labels: NDArray[np.int64]) -> Vector:
        """Log losses (N,) in nats, held at MOST_LOSS; 0 where scores are no chances."""
        if not self.probable:
            return np.zeros(len(labels))
        if scores.ndim == 1:
            lost = np.logaddexp(0.0, np.where(labels == 1, -scores, scores))
        else:
            lost = logsumexp(scores, axis=1) - scores[np.arange(len(labels)), labels]
        return np.minimum(lost, MOST_LOSS)

    def errors(self, scores: Vector, items: ItemBatch) -> Vector:
        """Absolute errors (N,) as shares of the label's range, held at 1."""
        return np.minimum(np.abs(scores - items.labels) / self.unit, 1.0)


def products(items: ItemBatch, weights: Vector, outputs: int) -> Vector:
    """(N, K): every row with every output of a model, each by itself.

    Not with `@`, whose last bits depend on which rows lie beside: a user with a row more would move others' rows from
    one side of a cell's edge to the other.
    """
    features, models = items.features.astype(np.float64), weights.reshape(outputs, -1)
    with np.errstate(all="ignore"):  # a model beyond all numbers: what that does to whose row is shown to nobody
        return np.asarray(np.einsum("nd,kd->nk", features, models))


def usable(items: ItemBatch) -> NDArray[np.bool_]:
    """Return which items are rows (N,): a user without rows that can be used has one item of zeros, which is none."""
    return np.asarray((items.labels != 0) | items.features.any(axis=1))


def means(values: NDArray[np.floating], items: ItemBatch, rows: NDArray[np.bool_]) -> Vector:
    """Return means over each user's rows of values (N, F): (k, F); zeros for users without rows."""
    held = np.asarray(values, np.float64) * rows[:, None]
    total = np.zeros((items.users, held.shape[1]))
    whose = np.repeat(np.arange(items.users), items.counts)
    np.add.at(total, whose, held)
    many = np.bincount(whose, weights=rows.astype(np.float64), minlength=items.users)
    return np.asarray(total / np.maximum(many, 1.0)[:, None])


def held_users(users: int, share: float | None) -> int:
    """Return how many of so many users, or slots, are held out. ConfigError unless both parts have somebody."""
    if share is None:
        return 0
    probability(holdout=share)
    held = round(users * share)
    if not 0 < held < users:
        raise ConfigError(
            f"Expected holdout to leave users on both sides, got holdout={share:g} of {users:,} users. Take more."
        )
    return held


def parts(users: int, held: int, noise: NoiseSource) -> tuple[Users, Users]:
    """(those trained on, those held out), ascending, by the noise of a run. Secret."""
    apart = np.zeros(users, np.bool_)
    if held:
        apart[of_the_run(noise).stream("held out").subset(users, held)] = True
    return np.flatnonzero(~apart), np.flatnonzero(apart)

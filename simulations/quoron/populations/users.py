"""What a population is: many users on one machine, each with items, some perhaps faulty; and the truth to compare with.

Everything a plan may use is public: `users`, `dimension`, `items_per_user`, the loss with its bounds, and `knowledge`.
`optimum`, `excess_risk`, `test_metrics` and `corruption` are functions of private data, for simulation reports only.

Which users are outliers, and of which kind: keyed by (seed, user), so it does not depend on who else is asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from quoron.populations.streams import Purpose, uniforms, words
from quoron_client.data.items import ItemBatch, ItemView
from quoron_client.losses import Loss
from quoron_client.protocol.domains import Domain
from quoron_privacy.errors import ConfigError

Vector = NDArray[np.float64]
Users = NDArray[np.int64]


class Corruption(IntEnum):
    """What a simulated user sends instead of an honest answer."""

    HONEST = 0
    SHIFTED = 1  # an honest computation on flipped labels (for means: mirrored items)
    HUGE = 2  # 1e300 in every coordinate
    NAN = 3
    INF = 4
    MISSING = 5  # never answers
    ZERO = 6


@dataclass(frozen=True, slots=True)
class PublicKnowledge:
    """Facts about the distribution that a plan may use to predict risk and choose steps; never for privacy.

    Of a synthetic population they follow from its declared design, not from the drawn items. None means unknown.
    """

    typical_curvature: float | None = None  # expected eigenvalue of the Hessian at the optimum, isotropic design
    least_curvature: float | None = None  # the smallest such eigenvalue
    gradient_deviation: float | None = None  # sigma_g = sqrt(E |g - E g|^2) of an item's gradient at the optimum
    user_deviation: float | None = None  # the same between users' expected gradients; 0 for i.i.d. users
    user_smoothness: float | None = None  # what nearly every user's average Hessian stays below
    hostile_share: float = 0.0  # share of users that may send anything
    intercept: bool = False  # whether the last feature is the same for every item
    assumptions: tuple[str, ...] = ()  # what a reader must believe for the above, in words


@dataclass(frozen=True, slots=True)
class Beside:
    """What a model's figures on held-out users are read beside. Of private data: for simulation reports only."""

    start: Mapping[str, float] = field(default_factory=dict)  # the same figures of the model zero
    baseline: Mapping[str, float] = field(default_factory=dict)  # of always answering the training users' mean
    unbounded: Mapping[str, float] = field(default_factory=dict)  # of the optimum without the domain's bound
    held_back: float = 0.0  # excess risk of the best model of the domain: what its bound costs
    clipped: Mapping[str, float] = field(default_factory=dict)  # by column, share of values outside their range
    remarks: tuple[str, ...] = ()  # what is amiss, each with its fix


class Known(Protocol):
    """What is public of users: all that a plan may use."""

    @property
    def users(self) -> int:
        """Number of users to train on, n."""

    @property
    def dimension(self) -> int:
        """Numbers of the model, d: as many as features, for each output of the loss."""

    @property
    def items_per_user(self) -> int:
        """Public nominal number of items of a user, m."""

    @property
    def domain(self) -> Domain:
        """Where models live."""

    @property
    def loss(self) -> Loss:
        """The item loss with its public bounds."""

    @property
    def knowledge(self) -> PublicKnowledge:
        """Public facts for predictions."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What is declared of users whose items nobody has looked at: all that a plan may rest on."""

    users: int  # n, the number of slots
    items_per_user: int  # m
    dimension: int  # numbers of a model
    loss: Loss
    domain: Domain
    knowledge: PublicKnowledge = field(default_factory=PublicKnowledge)


class Population(Known, Protocol):
    """Users 0 to `users` - 1, whose items can be asked for in any order and any number of times."""

    @property
    def optimum(self) -> Vector:
        """Non-private minimiser over the domain of the honest users' expected loss, shape (d,)."""

    def items(self, users: Users) -> ItemBatch:
        """The items of `users` (k,), in that order; float32 features."""

    def corruption(self, users: Users) -> NDArray[np.uint8]:
        """Which `Corruption` each of `users` (k,) shows."""

    def excess_risk(self, model: Vector) -> float:
        """Expected loss of `model` (d,) minus its infimum over all models, in the domain or not."""

    def test_metrics(self, model: Vector) -> dict[str, float]:
        """Figures on users that are not trained on; empty where there are none."""

    def beside(self, model: Vector) -> Beside:
        """What to read these figures beside, and what is amiss with the data or the model (d,)."""


def held_back(population: Population) -> float:
    """What the bound of the domain costs: the excess risk of its best model; 0 where the best of all lies inside."""
    return max(0.0, population.excess_risk(population.optimum))


class Held(Protocol):
    """Items by number of user: an `ItemBatch`, an `ItemView`, or what reads them from a disk."""

    def of(self, users: Users) -> ItemBatch:
        """The items of some users (k,), in the given order: a copy."""

    def seen(self, users: Users) -> ItemView:
        """The same where they are, if that is one place."""


class Answering(Known, Protocol):
    """What it takes of users to have questions answered.

    One that keeps its users' items, within the bounds of its loss, may have them as `held` (`Held`): then those of
    users who alter nothing are read where they are. One that makes items when they are asked for, within the bounds of
    its loss and for several threads at a time, may say so with `makes`.
    """

    def items(self, users: Users) -> ItemBatch:
        """The items of `users` (k,), in that order; float32 features."""

    def corruption(self, users: Users) -> NDArray[np.uint8]:
        """Which `Corruption` each of `users` (k,) shows."""


OutlierKind = Literal["shifted", "huge", "nan", "inf", "missing", "zero"]


@dataclass(frozen=True, slots=True)
class Outliers:
    """Each user is an outlier with probability `fraction`, independently; what it then does is `kind`."""

    fraction: float = 0.0
    kind: OutlierKind = "shifted"

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ConfigError(f"Expected outlier_fraction in [0, 1], got outlier_fraction={self.fraction}.")
        if self.kind not in get_args(OutlierKind):
            allowed = ", ".join(get_args(OutlierKind))
            raise ConfigError(f"Expected outlier_kind to be one of {allowed}, got outlier_kind={self.kind!r}.")

    def corruption(self, users: Users, *, seed: int) -> NDArray[np.uint8]:
        """`Corruption` of each of `users`, shape (k,)."""
        shown = np.zeros(len(users), np.uint8)  # HONEST
        if self.fraction > 0:
            draws = uniforms(words(seed=seed, purpose=Purpose.USER, users=users)[:, 0])
            shown[draws < self.fraction] = Corruption[self.kind.upper()]
        return shown


def flipped(batch: ItemBatch, corruption: NDArray[np.uint8], loss: Loss) -> ItemBatch:
    """Items with those of SHIFTED users mirrored, or their labels; `corruption` is that of each user, (k,)."""
    shifted = np.repeat(corruption == Corruption.SHIFTED, np.diff(batch.offsets))
    if not shifted.any():
        return batch
    if loss.name == "linear":
        return replace(batch, features=np.where(shifted[:, None], -batch.features, batch.features))
    return replace(batch, labels=np.where(shifted, loss.opposite(batch.labels), batch.labels))

"""Means of coins on a cube: the instance of a lower bound, with its optimum and the bound itself.

    >>> from quoron_client.protocol.domains import Box
    >>> crowd = Cube(users=10_000, items_per_user=20, dimension=4, domain=Box(1.0), spread=0.01, seed=1)
    >>> bool(np.all(np.abs(crowd.optimum) == 1.0))
    True

Loss -⟨x, z⟩ on the box of half width D; an item z is -A or A in each coordinate, its mean μ drawn once, uniformly from
[-spread, spread]^d. The excess risk is D Σ|μ_k| - ⟨x, μ⟩: a sign that is wrong costs 2D|μ_k|.

Source: Ghazi, Kumar, Liu & Manurangsi, Theorem 23, with coins in place of truncated Gaussians, so that all constants
are explicit. Statement and proof: docs/privacy/linf-filter.md, "Lower bound".
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from quoron.populations._made_up import LinearRisk, MadeUp, in_ranges
from quoron.populations.users import Corruption, PublicKnowledge, Purpose, Users, Vector, fill_uniforms
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss, make_loss
from quoron_client.protocol.domains import Box
from quoron_privacy.errors import ConfigError, count, non_negative, positive, probability
from quoron_privacy.kernels.compiled import njit

_VARIANCE = math.sqrt(8 / 15)  # of (s² - μ²)/s², μ uniform on [-s, s]: the root of its mean square


def lower_bound(
    *,
    users: int,
    items_per_user: int,
    dimension: int,
    epsilon: float,
    delta: float,
    spread: float,
    bound: float = 1.0,
    half_width: float = 1.0,
) -> float:
    """What no (ε, δ)-DP method's mean excess risk is below on a `Cube` with this spread, over its draw of μ.

    The larger of what privacy and what finitely many items leave to any method; ε = inf for the second alone. Raises
    ConfigError for numbers out of range.
    """
    count(users=users, items_per_user=items_per_user, dimension=dimension)
    positive(spread=spread, bound=bound, half_width=half_width)
    non_negative(delta=delta)
    if not spread < bound:
        raise ConfigError(f"Expected spread < {bound:g}, got spread={spread:g}.")
    n, m, d, square = users, items_per_user, dimension, spread**2
    information = _VARIANCE * square / math.sqrt(bound**2 - square)
    statistical = d * information * math.sqrt(n * m)
    leak = 2 * delta * d * m * square * (bound + spread) / bound**2
    private = math.inf if epsilon > 700 else n * (math.sinh(epsilon) * information * math.sqrt(d * m) + leak)
    return half_width * max(0.0, d * spread - min(statistical, private)) / 2


def hardest_spread(
    *, users: int, items_per_user: int, dimension: int, epsilon: float, delta: float, bound: float = 1.0
) -> float:
    """The spread with the largest lower bound, to about 2 %."""
    probability(delta=delta)
    spreads = bound * np.geomspace(1e-9, 0.99, 1000)
    sizes = {"users": users, "items_per_user": items_per_user, "dimension": dimension}
    found = [lower_bound(**sizes, epsilon=epsilon, delta=delta, spread=float(s), bound=bound) for s in spreads]
    return float(spreads[int(np.argmax(found))])


@dataclass(frozen=True, kw_only=True)
class Cube(MadeUp):
    """The population of the lower bound; its `shifted` outliers send -z for z. ConfigError for a domain that is no box.

    See `MadeUp`.
    """

    spread: float  # s: every |μ_k| is at most this
    bound: float = 1.0  # A: |z_k|

    def __post_init__(self) -> None:
        MadeUp.__post_init__(self)
        positive(spread=self.spread, bound=self.bound)
        if not self.spread < self.bound:
            raise ConfigError(f"Expected spread < bound={self.bound:g}, got spread={self.spread:g}.")
        if not isinstance(self.domain, Box):
            raise ConfigError("Expected domain.kind='box' for population.kind='cube', got a ball.")

    @cached_property
    def loss(self) -> Loss:
        """Linear; its bounds hold for every item without clipping."""
        norm = self.bound * math.sqrt(self.dimension) * (1 + 1e-9)
        return make_loss("linear", feature_norm=norm, feature_bound=self.bound)

    @cached_property
    def mean(self) -> Vector:
        """μ, shape (d,)."""
        drawn = np.empty(self.dimension)
        stream = (np.uint64(self.seed), np.uint32(Purpose.SIGNAL))
        fill_uniforms(*stream, np.array([0]), np.array([0, self.dimension]), drawn)
        return self.spread * (2 * drawn - 1)

    @cached_property
    def _risk(self) -> LinearRisk:
        return LinearRisk(-self.mean, self.domain)

    def items(self, users: Users) -> ItemBatch:
        """The items of `users` (k,), in that order: features (k m, d) float32, labels zero."""
        asked = self._known(users)
        offsets = np.arange(len(asked) + 1, dtype=np.int64) * self.items_per_user
        features = np.empty((int(offsets[-1]), self.dimension), np.float32)
        side = np.float32(self.bound)
        if float(side) > self.bound:
            side = np.nextafter(side, np.float32(0))
        signs = np.where(self.corruption(asked) == Corruption.SHIFTED, -1.0, 1.0)
        chances = (1 + self.mean / float(side)) / 2
        streams = (np.uint64(self.seed), np.uint32(Purpose.FEATURES))
        in_ranges(
            lambda first, last: _coins(*streams, asked, offsets, signs, chances, side, features, first, last),
            offsets,
            self.dimension,
        )
        return ItemBatch(features, np.zeros(len(features)), offsets)

    @property
    def knowledge(self) -> PublicKnowledge:
        """Of the declared law: an item's deviation is at most A√d."""
        return PublicKnowledge(
            gradient_deviation=self.bound * math.sqrt(self.dimension),
            user_deviation=0.0,
            hostile_share=self.hostile_share,
            assumptions=("the declared law of coins is public: it sets predictions and steps, never privacy",),
        )


@njit(cache=True, nogil=True)
def _coins(seed, purpose, users, offsets, signs, chances, side, features, first, last):  # type: ignore[no-untyped-def]
    """Items offsets[i] to offsets[i + 1] of users[i]: a coin of its own chance in each coordinate."""
    d = features.shape[1]
    for i in range(first, last):
        start, stop = offsets[i], offsets[i + 1]
        drawn = np.empty((stop - start) * d)
        fill_uniforms(seed, purpose, users[i : i + 1], np.array([0, drawn.size]), drawn)
        sign = np.float32(signs[i])
        for item in range(stop - start):
            for j in range(d):
                up = drawn[item * d + j] < chances[j]
                features[start + item, j] = sign * (side if up else -side)

"""Server optimisers: what becomes of a released gradient. Functions of released values alone, so they cost no privacy.

    sgd        x ← Proj(x - η (g + λ x))
    momentum   m ← β₁ m + g;                          x ← Proj(x - η (m + λ x))
    adam       m ← β₁ m + (1 - β₁) g;  v ← β₂ v + (1 - β₂) g²
               x ← Proj(x - η (m/(1 - β₁^t) / (√(v/(1 - β₂^t)) + κ) + λ x)),   t = 1, 2, ...
    normalised v ← β₂ v + (1 - β₂) g²;  w = v/(1 - β₂^t);  u = g / √max(w/4, median w)
               a ← β₁ a + (1 - β₁) ⟨u, x₁ - x⟩/‖x₁ - x‖;  f' = f exp(10/T clip(a/(1 - β₁^t)/1.75 - 1)), in [1, 4]
               x ← Proj(x₁ + f'/f (x - x₁) - η (f' u + λ x));  f ← f'

`normalised` divides by the median second moment, which is the noise, and shortens numbers with far more. The whole
path from the start x₁ gets longer while gradients lead away from x₁: the noise of u is drawn after x, so it has mean 0
and deviation about 1 in the alignment ⟨u, x₁ - x⟩/‖x₁ - x‖. In the first tenth of the T rounds f is 1; clip is to
[-1, 1].

λ is decoupled weight decay: it draws towards the start of training, from which points count, and is never averaged.
With a schedule round t of T has the step η s(t/T): 1 (constant), 1 - x (linear), (1 + cos πx)/2 (cosine), or factors
that are given, one a round.

Source: Polyak (1964); Kingma & Ba (2015), Algorithm 1; Loshchilov & Hutter (2019), Algorithm 2. As server optimisers:
Reddi et al. (2021), *Adaptive federated optimization*. Steps that follow an alignment: Baydin et al. (2018),
*Hypergradient descent*; the rest of `normalised` is ours (docs/results.md).
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quoron_privacy.errors import ConfigError
from quoron_server.algorithm import Vector
from quoron_server.algorithms.search import within

Kind = Literal["sgd", "momentum", "adam", "normalised"]
Schedule = Literal["constant", "linear", "cosine"] | tuple[float, ...]  # by name, or the factors of all rounds

ALIGNED = 1.75  # alignment of a path that is long enough: above it the path grows
GROWTH = 10.0  # of the logarithm of f over all rounds, at most
LONGEST = 4.0  # f


@dataclass(frozen=True)  # several such mix-ins make an algorithm's options: no slots
class OptimiserOptions:
    """Options of algorithms that step along released gradients."""

    optimiser: Kind = "sgd"
    momentum: float = within(0.0, 1.0, 0.9)  # β₁, of momentum and adam; of the alignment of normalised
    second_momentum: float = within(0.0, 1.0, 0.999)  # β₂, of adam and normalised
    stability: float = 1e-8  # κ, of adam: beside the root of the second moment
    weight_decay: float = within(0.0, 1e9, 0.0)  # λ
    schedule: Schedule = "constant"  # of the steps over the rounds: a name, or a factor for each round
    suffix: int | None = None  # iterates averaged; None: the plan chooses, the last one alone with other optimisers

    def made(self, step_size: float | None, option: str = "step_size") -> "Optimiser":
        """Return the optimiser; ConfigError for numbers out of range, and without a step that no plan could choose."""
        own = self.optimiser, self.momentum, self.second_momentum, self.stability, self.weight_decay
        made = Optimiser(*own, self.schedule)
        if step_size is None and not made.plain:
            raise ConfigError(
                f"Expected options.{option} with optimiser={self.optimiser!r}, weight_decay={self.weight_decay:g} and "
                f"schedule={self.schedule!r}, got none: plans choose steps of plain SGD only."
            )
        return made

    def averaged(self, planned: int, rounds: int) -> int:
        """Of how many last iterates the model is the mean; ConfigError for numbers that do not fit the rounds."""
        if isinstance(self.schedule, tuple) and len(self.schedule) != rounds:
            raise ConfigError(f"Expected options.schedule of {rounds} factors, one a round, got {len(self.schedule)}.")
        if self.suffix is None:
            return planned if self.optimiser == "sgd" else 1
        if not 1 <= self.suffix <= rounds:
            raise ConfigError(f"Expected options.suffix from 1 to {rounds} rounds, got suffix={self.suffix}.")
        return self.suffix


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """What an optimiser remembers; released, like all that it is made of. Shape (d,), or (0,) where it is not used."""

    first: Vector  # m; of normalised (2,): a and log f
    second: Vector  # v


@dataclass(frozen=True, slots=True)
class Optimiser:
    """One of the rules above with its steps, all of it public."""

    kind: Kind = "sgd"
    momentum: float = 0.9  # β₁
    second_momentum: float = 0.999  # β₂
    stability: float = 1e-8  # κ
    weight_decay: float = 0.0  # λ
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        for name in ("momentum", "second_momentum"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"Expected {name} in [0, 1), got {name}={getattr(self, name)}.")
        if not self.stability > 0 or not self.weight_decay >= 0:
            raise ConfigError(
                f"Expected stability > 0 and weight_decay >= 0, got {self.stability} and {self.weight_decay}."
            )
        factors = self.schedule if isinstance(self.schedule, tuple) else (1.0,)
        if not all(0 <= factor < math.inf for factor in factors) or not any(factors):
            raise ConfigError("Expected options.schedule of finite factors >= 0, not all zero, got others.")

    @property
    def plain(self) -> bool:
        """Whether steps are those that predictions of risk are about: constant ones of SGD."""
        return self.kind == "sgd" and self.weight_decay == 0 and self.schedule == "constant"

    def start(self, dimension: int) -> Moments:
        """Nothing to remember."""
        first = {"sgd": 0, "normalised": 2}.get(self.kind, dimension)
        second = dimension if self.kind in ("adam", "normalised") else 0
        return Moments(np.zeros(first), np.zeros(second))

    def step(
        self, x: Vector, gradient: Vector, moments: Moments, step_size: float, *, t: int, rounds: int
    ) -> tuple[Vector, Moments]:
        """Return the point before its projection, (d,), and what is remembered, after round t of `rounds`, from 0."""
        step_size *= self.rate(t, rounds)
        direction, stretch = gradient, 1.0
        if self.kind == "momentum":
            direction = self.momentum * moments.first + gradient
            moments = Moments(direction, moments.second)
        elif self.kind == "adam":
            first = self.momentum * moments.first + (1 - self.momentum) * gradient
            second = self.second_momentum * moments.second + (1 - self.second_momentum) * gradient**2
            moments = Moments(first, second)
            rooted = np.sqrt(second / -math.expm1((t + 1) * _log(self.second_momentum)))
            direction = first / -math.expm1((t + 1) * _log(self.momentum)) / (rooted + self.stability)
        elif self.kind == "normalised":
            before = moments.first[1]
            unit, moments = self._normalised(x, gradient, moments, t, rounds)
            direction, stretch = math.exp(moments.first[1]) * unit, math.exp(moments.first[1] - before)
        if self.weight_decay:
            direction = direction + self.weight_decay * x
        return stretch * x - step_size * direction, moments

    def _normalised(self, x: Vector, gradient: Vector, moments: Moments, t: int, rounds: int) -> tuple[Vector, Moments]:
        """Return u, (d,), and what is remembered. Sums are NumPy's own, whose bits no number of threads changes."""
        alignment, growth = moments.first
        second = self.second_momentum * moments.second + (1 - self.second_momentum) * gradient**2
        squares = second / -math.expm1((t + 1) * _log(self.second_momentum))
        lengths = np.sqrt(np.maximum(squares / 4, np.median(squares)))
        unit = gradient / np.where(lengths > 0, lengths, 1.0)
        distance = math.sqrt(np.sum(x**2))
        along = -np.sum(unit * x) / distance if distance else 0.0
        alignment = self.momentum * alignment + (1 - self.momentum) * along
        if 10 * t >= rounds:
            excess = alignment / -math.expm1((t + 1) * _log(self.momentum)) / ALIGNED - 1
            growth = min(max(growth + GROWTH / rounds * min(max(excess, -1.0), 1.0), 0.0), math.log(LONGEST))
        return unit, Moments(np.array([alignment, growth]), second)

    def rate(self, t: int, rounds: int) -> float:
        """Return the factor of the step in round t, from 0, of so many."""
        if isinstance(self.schedule, tuple):
            return self.schedule[t]
        if self.schedule == "constant":
            return 1.0
        return 1 - t / rounds if self.schedule == "linear" else (1 + math.cos(math.pi * t / rounds)) / 2


SGD = Optimiser()


def _log(decay: float) -> float:
    return math.log(decay) if decay else -math.inf

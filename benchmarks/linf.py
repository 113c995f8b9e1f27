"""Measured excess risk on the cube of coins beside the lower bound: the worst over spreads, the mean over draws of μ.

    python benchmarks/linf.py [SETTING ...]

ε = 4, δ = 1e-6, users of 20 items, models in [-1, 1]^d. No private method has a mean excess risk below the bound at
that bound's hardest spread, so none has a smaller worst one. Parameters are the plan's.

Loss -⟨x, z⟩ on the box of half width D; an item z is -A or A in each coordinate, its mean μ drawn once, uniformly from
[-spread, spread]^d. The excess risk is D Σ|μ_k| - ⟨x, μ⟩: a sign that is wrong costs 2D|μ_k|.

Source: Ghazi, Kumar, Liu & Manurangsi, Theorem 23, with coins in place of truncated Gaussians, so that all constants
are explicit. Statement and proof: docs/privacy/linf.md, "Lower bound".
"""

import math
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from quoron.data import PublicKnowledge, Synthetic
from quoron.data.users import Purpose, fill_uniforms
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation import sources
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Loss, make_loss
from quoron_client.protocol.domains import Box
from quoron_privacy.errors import Infeasible
from quoron_server.problem import Beliefs

ITEMS, EPSILON, DELTA = 20, 4.0, 1e-6
RUNS = {  # name of the row: algorithm and its options
    "filtered-sgd": ("filtered-sgd", []),
    "median-sgd": ("median-sgd", ["algorithm.options.rounds=20"]),
    "phased-sgd": ("phased-sgd", ["algorithm.options.rounds=100"]),
}
VARIANCE = math.sqrt(8 / 15)  # of (s² - μ²)/s², μ uniform on [-s, s]: the root of its mean square


@dataclass(frozen=True, kw_only=True)
class Cube(Synthetic):
    """The population of the lower bound, A = 1: a linear loss on a box."""

    family: Literal["linear"] = "linear"
    spread: float  # s: every |μ_k| is at most this

    @cached_property
    def loss(self) -> Loss:
        """Linear; its bounds hold for every item without clipping."""
        norm = math.sqrt(self.dimension) * (1 + 1e-9)
        return make_loss("linear", feature_norm=norm, feature_bound=1.0)

    @cached_property
    def signal(self) -> np.ndarray:
        """μ, shape (d,)."""
        drawn = np.empty(self.dimension)
        stream = (np.uint64(self.seed), np.uint32(Purpose.SIGNAL))
        fill_uniforms(*stream, np.array([0]), np.array([0, self.dimension]), drawn)
        return self.spread * (2 * drawn - 1)

    def items(self, users: np.ndarray) -> ItemBatch:
        """The items of `users` (k,), in that order: features (k m, d) float32, labels zero."""
        asked, each = np.array(users, np.int64), self.items_per_user * self.dimension
        drawn = np.empty(len(asked) * each)
        starts = np.arange(len(asked) + 1, dtype=np.int64) * each
        fill_uniforms(np.uint64(self.seed), np.uint32(Purpose.FEATURES), asked, starts, drawn)
        up = drawn.reshape(-1, self.dimension) < (1 + self.signal) / 2
        features = np.where(up, np.float32(1), np.float32(-1))
        return ItemBatch(features, np.zeros(len(features)), starts // self.dimension)

    @cached_property
    def knowledge(self) -> PublicKnowledge:
        """Of the declared law: an item's deviation is at most √d."""
        said = ("the declared law of coins is public: it sets predictions and steps, never privacy",)
        return PublicKnowledge(Beliefs(gradient_deviation=math.sqrt(self.dimension)), assumptions=said)


def lower_bound(
    *, users: int, items_per_user: int, dimension: int, epsilon: float, delta: float, spread: float
) -> float:
    """What no (ε, δ)-DP method's mean excess risk is below on a `Cube` with this spread, over its draw of μ.

    The larger of what privacy and what finitely many items leave to any method; ε = inf for the second alone.
    """
    n, m, d, square = users, items_per_user, dimension, spread**2
    information = VARIANCE * square / math.sqrt(1 - square)
    statistical = d * information * math.sqrt(n * m)
    leak = 2 * delta * d * m * square * (1 + spread)
    private = math.inf if epsilon > 700 else n * (math.sinh(epsilon) * information * math.sqrt(d * m) + leak)
    return max(0.0, d * spread - min(statistical, private)) / 2


def hardest_spread(*, users: int, items_per_user: int, dimension: int, epsilon: float, delta: float) -> float:
    """The spread with the largest lower bound, to about 2 %."""
    spreads = np.geomspace(1e-9, 0.99, 1000)
    sizes = {"users": users, "items_per_user": items_per_user, "dimension": dimension}
    found = [lower_bound(**sizes, epsilon=epsilon, delta=delta, spread=float(s)) for s in spreads]
    return float(spreads[int(np.argmax(found))])


def measured(sizes: dict[str, int], spread: float, algorithm: str, settings: list[str]) -> float:
    """Mean excess risk over draws of μ and of noise."""
    risks = []
    for seed in range(3):
        crowd = Cube(**sizes, spread=spread, seed=seed, domain=Box(1.0))
        chosen = [f"population.{key}={value}" for key, value in sizes.items()]
        chosen += ["population.family=linear", "population.signal_norm=0.5", "domain.kind=box", "domain.radius=1"]
        chosen += [f"privacy.epsilon={EPSILON}", f"privacy.delta={DELTA}", f"algorithm.name={algorithm}"]
        chosen += ["problem.user_smoothness=item", f"run.seed={seed}", *settings]
        config, _ = sources.resolve("quickstart", chosen)
        prepared = runs.prepare(config, Path(), alternatives=False, population=crowd)
        with tempfile.TemporaryDirectory() as folder:
            risks.append(runs.carry_out(prepared, RunFolder(Path(folder)), report=False).summary.excess_risk or 0.0)
    return fmean(risks)


def main(settings: list[str]) -> None:
    """Print a row for each size and algorithm."""
    print("     users    d  lower bound  algorithm           worst measured  at spread  times the bound")
    for users, dimension in ((20_000, 10), (80_000, 10), (20_000, 40)):
        sizes = {"users": users, "items_per_user": ITEMS, "dimension": dimension}
        hardest = hardest_spread(**sizes, epsilon=EPSILON, delta=DELTA)
        bound = lower_bound(**sizes, epsilon=EPSILON, delta=DELTA, spread=hardest)
        for name, (algorithm, options) in RUNS.items():
            worst, at = 0.0, math.nan
            for spread in (0.02, 0.08, 0.3, 0.9):
                try:
                    worst, at = max((worst, at), (measured(sizes, spread, algorithm, [*options, *settings]), spread))
                except Infeasible as error:
                    print(f"{users:10,}  {dimension:3}  {name:18s}  {error}")
                    break
            figures = f"{worst:14.2g}  {at:9.2g}  {worst / bound:15.3g}"
            print(f"{users:10,}  {dimension:3}  {bound:11.2g}  {name:18s}  {figures}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

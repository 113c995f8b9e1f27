"""Class weights of a simulated table: those that `quoron train` would take from its look, by a look of the same noise.

    encoding = weighing(config)(encoding, training, tables)

A simulation's plan does not pay for the look; the shares of classes are those of a vector a user, clipped and released
as `quoron train` does, by noise from the run's seed.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron.config import Config
from quoron.populations.table import Weighing
from quoron_client.data import fused
from quoron_client.data.encoding import Balanced, Encoding, Owners
from quoron_client.data.misfits import Tally, declared_columns, declared_labels
from quoron_privacy.accounts import gdp
from quoron_privacy.counts import table_health
from quoron_privacy.counts.table_health import TableHealth, looked_at
from quoron_privacy.noise.sources import SeededNoise


def weighing(config: Config) -> Weighing:
    """What finds class weights for rules that wait for them, of users (n,) that are trained on, by their tables."""

    def found(encoding: Encoding, training: NDArray[np.bool_], tables: Iterable[tuple[Owners, pa.Table]]) -> Encoding:
        weights = encoding.class_weight
        if not isinstance(weights, Balanced):
            return encoding
        health = _health(config, encoding, int(np.count_nonzero(training)))
        if health is None:
            return replace(encoding, class_weight=None)
        noise, tally = SeededNoise(config.run.simulation_seed), Tally(encoding, health.users)
        known = np.flatnonzero(training)
        chosen = noise.stream("table health", "users").subset(len(known), health.users)
        place = np.full(len(training), -1, np.int64)
        place[known[chosen]] = np.arange(health.users)
        for owners, table in tables:
            rows = np.flatnonzero(place[owners] >= 0)
            tally.add(owners[rows], fused.marks_of(encoding, table.take(pa.array(rows))), place)
        vectors = health.vectors(*tally.fitting(everybody=config.privacy.adjacency != "zero-out"))
        sums = health.reduction.of(vectors, np.ones(len(vectors), np.bool_))
        seen = health.shares(health.release(sums, noise.stream("table health")))
        return replace(encoding, class_weight=weights.by(seen.labels, health.errors.unusable))

    return found


def _health(config: Config, encoding: Encoding, users: int) -> TableHealth | None:
    """The look that `quoron train` would plan for, by its share of μ²; None where it is too little to see anything."""
    columns, labels = len(declared_columns(encoding)), len(declared_labels(encoding))
    privacy, share = config.privacy, config.train.health
    mu, m = gdp.mu_for(privacy.epsilon, privacy.delta), looked_at(users)
    if share is None:
        share = table_health.share_for(users=m, columns=columns, labels=labels, mu=mu, adjacency=privacy.adjacency)
    if share < table_health.SMALLEST:
        return None
    own = mu * share**0.5
    return TableHealth.for_mu(users=m, columns=columns, labels=labels, mu=own, adjacency=privacy.adjacency)

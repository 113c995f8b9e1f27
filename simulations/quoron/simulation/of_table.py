"""The users of a table that is simulated on, and the weights of its classes where these wait for a look.

    people = users_of(config, encoding, folder, None, loss=loss, domain=domain, outliers=outliers)

Weights are those that `quoron train` would take from its look, by a look of the same noise. A simulation's plan does
not pay for it; the shares of classes are those of a vector a user, clipped and released as `quoron train` does, by
noise from the run's seed.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from quoron.config import Config, TableSection
from quoron.data.population import DatasetPopulation, from_dataset
from quoron.data.table import TablePopulation, Weighing, encoded_table
from quoron.paths import dataset, table_file
from quoron.run_folder import FRAME
from quoron_client.data import fused, tables
from quoron_client.data.encoding import Balanced, Encoding, Owners, check_types, types_of
from quoron_client.data.fused import Tally, declared_columns, declared_labels
from quoron_privacy.accounts import gdp
from quoron_privacy.counts import data_quality
from quoron_privacy.counts.data_quality import TableHealth, looked_at
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms.slots import partition


def users_of(
    config: Config, encoding: Encoding, folder: Path, table: pa.Table | None, **made_of: Any
) -> TablePopulation | DatasetPopulation:
    """The users of a configured table, in a relative path of `folder` or given as `table`; `made_of`: what they answer.

    Raises DataError where what is declared cannot be by the types of columns alone.
    """
    section = config.population
    assert isinstance(section, TableSection)
    encoding.check_meant(section.user)
    rules: dict[str, Any] = made_of | {
        "user": section.user,
        "test_fraction": section.test_fraction,
        "items_per_user": section.items_per_user,
        "seed": section.seed,
        "weighing": weighing(config) if isinstance(section.columns.class_weight, str) else None,
    }
    source = dataset(section.path, folder) if table is None else None
    if source is not None:
        crowd = from_dataset(source, encoding, **rules)
        check_types(crowd.encoding, types_of(source, crowd.rows.index.files.schema))
        return crowd.read_in(partition(seed=config.run.seed, users=crowd.users))
    given = tables.opened(table_file(section.path, folder) if table is None else table, section.dialect)
    if table is None and Path(section.path).name != FRAME:  # of a frame its own types were looked at
        check_types(encoding, given.schema)
    return encoded_table(given, encoding, **rules)


def weighing(config: Config) -> Weighing:
    """What finds class weights for rules that wait for them, of users (n,) that are trained on, by their tables."""

    def found(encoding: Encoding, training: NDArray[np.bool_], tables: Iterable[tuple[Owners, pa.Table]]) -> Encoding:
        weights = encoding.class_weight
        if not isinstance(weights, Balanced):
            return encoding
        health = _health(config, encoding, int(np.count_nonzero(training)))
        if health is None:
            return replace(encoding, class_weight=None)
        noise, tally = SeededNoise(config.run.seed), Tally(encoding, health.users)
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
    privacy, share = config.privacy, config.train.data_quality
    mu, m = gdp.mu_for(privacy.epsilon, privacy.delta), looked_at(users)
    if share is None:
        share = data_quality.share_for(users=m, columns=columns, labels=labels, mu=mu, adjacency=privacy.adjacency)
    if share < data_quality.SMALLEST:
        return None
    own = mu * share**0.5
    return TableHealth.for_mu(users=m, columns=columns, labels=labels, mu=own, adjacency=privacy.adjacency)

"""Shards on a Ray cluster of three nodes of this machine, one of which dies: `scripts/test-ray`."""

import gc
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from quoron import EngineChoice
from quoron.datasets.population import from_dataset
from quoron.populations import Outliers, Synthetic
from quoron.sharding import on_ray
from quoron.sharding.engine import ShardedEngine
from quoron.sharding.shard import Settings
from quoron_client.losses import Logistic
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.clipping import ClippedSum
from quoron_privacy.errors import DataError
from quoron_server.algorithms.slots import partition
from row_files import RULES, described, in_buckets, rows

pytestmark = [
    pytest.mark.slow,
    # Ray's own sockets and files are closed when they are collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
ray: Any = pytest.importorskip("ray")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Three raylets, none of which has room for all workers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(2):
            made.add_node(num_cpus=1)
        made.wait_for_nodes()
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        gc.collect()  # here, where what Ray leaves open is no error


def question(users: int, d: int, *, sums: bool) -> Question:
    draw = np.random.Generator(np.random.Philox(4))
    task = AverageGradient(draw.standard_normal((1, d)), (1.0,))
    return Question(0, draw.permutation(users)[:300], task, reduction=ClippedSum(0.3, 200) if sums else None)


def nodes_of(engine: ShardedEngine) -> dict[int, str]:
    """The node of every worker."""
    known = {each["actor_id"]: each["node_id"] for each in _actors()}
    return {shard: known[worker._actor._actor_id.hex()] for shard, worker in engine._workers.items()}  # type: ignore[attr-defined]


def _actors() -> list[dict[str, str]]:
    from ray._private.state import actors

    return [{"actor_id": number, "node_id": told["Address"]["NodeID"]} for number, told in actors().items()]


def test_a_cluster_answers_with_the_bits_of_one_process_and_a_node_that_dies_is_replaced(cluster, tmp_path: Path):
    in_buckets(rows(500), tmp_path / "d")
    given: dict[str, Any] = {"user": "who", "loss": Logistic(), "outliers": Outliers(0.2, "shifted")}
    files = from_dataset(tmp_path / "d", RULES, **given)
    files = files.read_in(partition(seed=1, users=files.users))
    made_up = Synthetic("logistic", users=500, items_per_user=4, dimension=3, domain=L2Ball(2.0), seed=3)
    start, settings = on_ray.starter(cluster.address), Settings(seed=5, dropout=0.1)
    engines = [ShardedEngine.of(each, 5, start, settings) for each in (files, made_up)]
    for engine, population in zip(engines, (files, made_up), strict=True):
        alone = settings.engine(population)
        rows_asked, sums_asked = (question(population.users, population.dimension, sums=each) for each in (False, True))
        np.testing.assert_array_equal(engine.ask(rows_asked).values, alone.ask(rows_asked).values)
        np.testing.assert_array_equal(engine.ask(sums_asked).total, alone.ask(sums_asked).total)
    homes = nodes_of(engines[0])
    assert len(set(homes.values())) > 1
    dying = next(node for node in cluster.worker_nodes if node.node_id in homes.values())
    cluster.remove_node(dying, allow_graceful=False)
    while not engines[0].replaced:  # an actor answers for a moment after its node has gone
        for engine, population in zip(engines, (files, made_up), strict=True):
            alone = settings.engine(population)
            for sums in (True, False):
                asked = replace(question(population.users, population.dimension, sums=sums), round=1)
                found, expected = engine.ask(asked), alone.ask(asked)
                name = "total" if sums else "values"
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    (tmp_path / "d" / "bucket-001.parquet").unlink()
    lost = ShardedEngine.of(files, 2, start, settings)
    with pytest.raises(DataError, match=r"'bucket-001.parquet' in .*, but it has disappeared"):
        lost.ask(question(files.users, files.dimension, sums=False))
    for engine in (*engines, lost):
        engine.close()


def test_a_run_on_ray_is_the_run_of_one_process_and_goes_on_without(cluster, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    logging.getLogger("ray").setLevel(logging.ERROR)
    in_buckets(rows(1000), tmp_path / "d")
    source = described(tmp_path, "d")
    whole = quoron.simulate(source, out=tmp_path / "whole")
    where = EngineChoice.of("ray", workers=3, address=cluster.address)

    class Stop(Exception):
        pass

    class Stopping:
        def started(self, plan):
            pass

        def round_finished(self, event):
            if event.round == 1:
                raise Stop

        def finished(self, model):
            pass

    with pytest.raises(Stop):
        quoron.simulate(source, out=tmp_path / "run", engine=where, observers=[Stopping()])
    np.testing.assert_array_equal(quoron.resume(tmp_path / "run").model, whole.model)
    np.testing.assert_array_equal(quoron.simulate(source, out=tmp_path / "ray", engine=where).model, whole.model)


def test_a_comparison_on_a_cluster_has_the_bits_of_one_here(cluster, tmp_path: Path):
    in_buckets(rows(1200), tmp_path / "d")
    asked: dict[str, Any] = {"algorithms": ["tracking-srgd"], "seeds": 2}
    there = quoron.compare(
        described(tmp_path, "d"),
        engine=EngineChoice.of("ray", workers=3, address=cluster.address),
        out=tmp_path / "there",
        **asked,
    )
    here = quoron.compare(described(tmp_path, "d"), workers=1, out=tmp_path / "here", **asked)
    assert [run["excess_risk"] for run in there.runs] == [run["excess_risk"] for run in here.runs]

"""Shards on a Ray cluster of three nodes of this machine, one of which dies: `scripts/test-ray`."""

import gc
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from quoron.data import Outliers, Synthetic
from quoron.data.population import from_dataset
from quoron.engine import on_ray
from quoron.engine.choice import Ray, ShardedEngine
from quoron.engine.inline import InlineEngine
from quoron_client.losses import Logistic
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import AverageGradient, Question
from quoron_privacy.errors import ConfigError, DataError
from quoron_privacy.means.clipping import ClippedSum
from quoron_server.algorithms.slots import partition
from row_files import RULES, Stop, Stopping, described, in_buckets, rows

pytestmark = [
    pytest.mark.slow,
    # Ray's own sockets and files are closed when they are collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
ray: Any = pytest.importorskip("ray")


@pytest.fixture(params=["guarded"])
def cluster(request, tmp_path: Path) -> Iterator[Any]:
    """Three raylets, none of which has room for all workers, with a token or "open" to everybody."""
    from ray.cluster_utils import Cluster

    with on_ray.private_folder() as (_, environment), pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        if request.param == "open":
            patch.setenv("RAY_AUTH_MODE", "disabled")
        read_again()
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


def read_again() -> None:
    """Have Ray read its environment, which it does once in a process, when it is imported."""
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config

    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")
    ray_constants.ENABLE_RAY_CLUSTER = False


def question(users: int, d: int, *, sums: bool) -> Question:
    draw = np.random.Generator(np.random.Philox(4))
    task = AverageGradient(draw.standard_normal((1, d)), (1.0,))
    return Question(0, draw.permutation(users)[:300], task, reduction=ClippedSum(0.3, 200) if sums else None)


# A process of somebody else's on this machine, who has found where a cluster is: Ray's list of processes says it.
INTRUDER = textwrap.dedent(
    """
    import logging, sys
    import ray

    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)

    @ray.remote(num_cpus=0)
    def theirs(path):
        open(path, "w").write("was here")

    ray.get(theirs.remote(sys.argv[2]), timeout=60)
    """
)


def intrudes(address: str, mark: Path, **environment: str) -> bool:
    """Whether a process without the token runs a program in the cluster."""
    strange = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    subprocess.run(
        [sys.executable, "-c", INTRUDER, address, str(mark)],
        env=strange | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} | environment,
        capture_output=True,
        check=False,
    )
    return mark.exists()


def nodes_of(engine: ShardedEngine) -> dict[int, str]:
    """The node of every worker."""
    known = {each["actor_id"]: each["node_id"] for each in _actors()}
    return {shard: known[worker._actor._actor_id.hex()] for shard, worker in engine._workers.items()}  # type: ignore[attr-defined]


def _actors() -> list[dict[str, str]]:
    from ray._private.state import actors

    return [{"actor_id": number, "node_id": each["Address"]["NodeID"]} for number, each in actors().items()]


def test_a_cluster_answers_with_the_bits_of_one_process_and_a_node_that_dies_is_replaced(cluster, tmp_path: Path):
    in_buckets(rows(500), tmp_path / "d")
    given: dict[str, Any] = {"user": "who", "loss": Logistic(), "outliers": Outliers(0.2, "shifted")}
    files = from_dataset(tmp_path / "d", RULES, **given)
    files = files.read_in(partition(seed=1, users=files.users))
    made_up = Synthetic(family="logistic", users=500, items_per_user=4, dimension=3, domain=L2Ball(2.0), seed=3)
    leave = on_ray.joined(cluster.address)
    alone_of = [InlineEngine(each, seed=5, dropout=0.1) for each in (files, made_up)]
    engines = [ShardedEngine(each, 5, on_ray.Actor, leave) for each in alone_of]
    for engine, alone in zip(engines, alone_of, strict=True):
        population = alone.population
        rows_asked, sums_asked = (question(population.users, population.dimension, sums=each) for each in (False, True))
        np.testing.assert_array_equal(engine.ask(rows_asked).values, alone.ask(rows_asked).values)
        np.testing.assert_array_equal(engine.ask(sums_asked).total, alone.ask(sums_asked).total)
    homes = nodes_of(engines[0])
    assert len(set(homes.values())) > 1
    dying = next(node for node in cluster.worker_nodes if node.node_id in homes.values())
    cluster.remove_node(dying, allow_graceful=False)
    while not engines[0].replaced:  # an actor answers for a moment after its node has gone
        for engine, alone in zip(engines, alone_of, strict=True):
            population = alone.population
            for sums in (True, False):
                asked = replace(question(population.users, population.dimension, sums=sums), round=1)
                found, expected = engine.ask(asked), alone.ask(asked)
                name = "total" if sums else "values"
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    (tmp_path / "d" / "bucket-001.parquet").unlink()
    lost = ShardedEngine(InlineEngine(files, seed=5, dropout=0.1), 2, on_ray.Actor)
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
    where = Ray(workers=3, address=cluster.address)

    with pytest.raises(Stop):
        quoron.simulate(source, out=tmp_path / "run", engine=where, observers=[Stopping()])
    np.testing.assert_array_equal(quoron.resume(tmp_path / "run").weights, whole.weights)
    np.testing.assert_array_equal(quoron.simulate(source, out=tmp_path / "ray", engine=where).weights, whole.weights)


def test_a_cluster_has_to_be_named():
    with pytest.raises(ConfigError, match="HOST:PORT or auto as the address of a Ray cluster, got None"):
        on_ray.joined(None)


@pytest.mark.parametrize("cluster", ["open"], indirect=True)
def test_a_cluster_that_asks_for_no_token_is_refused_by_name(cluster, tmp_path: Path):
    assert intrudes(cluster.address, tmp_path / "mark"), "anyone who reaches it is in it"
    with pytest.raises(ConfigError, match=r"asks for a token, got one at address=.*answers anyone who reaches it"):
        on_ray.joined(cluster.address)
    assert not ray.is_initialized()
    ray.init(cluster.address, logging_level=logging.ERROR)
    with pytest.raises(ConfigError, match=r"that this process is part of .* answers anyone who reaches it"):
        on_ray.joined(None)


def test_an_address_without_the_token_is_refused_with_what_it_takes(cluster, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    read_again()
    with pytest.raises(ConfigError, match=r"RAY_AUTH_MODE=token here, and its token in RAY_AUTH_TOKEN_PATH"):
        on_ray.joined(cluster.address)
    with pytest.raises(ConfigError, match="HOST:PORT or auto"):
        on_ray.joined(f"ray://{cluster.address}")


def test_a_ray_without_tokens_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(ray, "__version__", "2.51.3")
    for wanted in (None, "127.0.0.1:6379"):
        with pytest.raises(ConfigError, match=r"Expected Ray 2.52 or newer, .* got Ray 2.51.3, .* Install it: pip"):
            on_ray.joined(wanted)

"""How many workers share a run, and where: what `--workers`, `--engine ray` and `--address` ask for.

with Sharing(workers=4).engine(population, Settings(seed=0)) as engine: ...
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quoron.populations.users import Answering
from quoron.prepared import Prepared
from quoron.simulation.scene import Setup
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron.sharding import engine as engines
    from quoron.sharding import on_ray, processes, shard
else:  # where workers are asked for
    engines = OnFirstUse("quoron.sharding.engine")
    on_ray = OnFirstUse("quoron.sharding.on_ray")
    processes = OnFirstUse("quoron.sharding.processes")
    shard = OnFirstUse("quoron.sharding.shard")


@dataclass(frozen=True, slots=True)
class Sharing:
    """Workers on this machine, or on a Ray cluster."""

    workers: int
    ray: bool = False
    address: str | None = None  # of a cluster that is there; None starts one on this machine

    def engine(self, population: Answering, settings: "shard.Settings") -> "engines.ShardedEngine":
        """An engine over the population; whoever has it closes it."""
        if self.ray:
            start = on_ray.starter(self.address)
            return engines.ShardedEngine.of(population, self.workers, start, settings, start.close)
        return engines.ShardedEngine.of(population, self.workers, processes.starter(self.workers), settings)


@contextmanager
def shared(prepared: Prepared[Setup], sharing: Sharing | None) -> Iterator[Prepared[Setup]]:
    """The same run with workers that answer for its users, for as long as it takes; without any, as it is."""
    if sharing is None:
        yield prepared
        return
    config, scene = prepared.config, prepared.scene
    settings = shard.Settings(config.run.simulation_seed, config.run.dropout)
    with sharing.engine(scene.population, settings) as engine:
        yield replace(prepared, scene=replace(scene, engine=engine))

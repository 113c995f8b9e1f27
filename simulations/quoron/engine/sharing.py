"""How many workers share a run, and where: what the engines `inline:workers=4` and `ray` ask for.

with Sharing(workers=4).engine(population, Settings(seed=0)) as engine: ...
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quoron.data.users import Answering
from quoron.engine.sharded import Settings
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron.engine import on_ray, processes
    from quoron.engine.sharded import ShardedEngine
else:  # where workers are asked for
    on_ray = OnFirstUse("quoron.engine.on_ray")
    processes = OnFirstUse("quoron.engine.processes")


@dataclass(frozen=True, slots=True)
class Sharing:
    """Workers on this machine, or on a Ray cluster."""

    workers: int
    ray: bool = False
    address: str | None = None  # of a cluster that is there; None starts one on this machine

    def engine(self, population: Answering, settings: Settings) -> "ShardedEngine":
        """An engine over the population; whoever has it closes it."""
        if self.ray:
            return on_ray.engine(population, self.workers, settings, self.address)
        return processes.engine(population, self.workers, settings)

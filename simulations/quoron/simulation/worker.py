"""A worker of `quoron compare`: one run after another, as lines of JSON on standard input ask for them.

It ends at once when its input ends: whoever asked is gone then, and what is cut off goes on later, to the same bits.

A line that comes is {"config": ..., "base": the folder of relative paths, "folder": the run's, "sharing": how its users
are shared, or null}. Lines that go are {"at": round, "of": rounds}, now and then, and at last {"end": "done", "refused"
or "failed", "why": ...}.
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron import config as configs
from quoron.config import Config
from quoron.data import Population
from quoron.engine.inline import InlineEngine
from quoron.engine.sharing import Sharing
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation.problem import Setup, make_domain
from quoron.simulation.run import shared
from quoron_privacy.errors import Infeasible, QuoronError
from quoron_server.plan import RunPlan
from quoron_server.rounds import RoundEvent

Tell = Callable[[Mapping[str, Any]], None]
LINES = 20  # about so many lines of progress a run


def main() -> None:
    """Work until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells us, too; whoever asked will end us
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()

    def tell(line: Mapping[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    work = Work()
    while True:
        task = json.loads(tasks.get())
        config = configs.from_tree(task["config"])
        sharing = None if task["sharing"] is None else Sharing(**task["sharing"])
        tell(work.carry_out(config, Path(task["base"]), RunFolder(Path(task["folder"])), tell, sharing))


def _listen(tasks: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)


@dataclass(slots=True)
class Work:
    """Carries runs out, and keeps the last users and plan: the next run often has the same."""

    last: Prepared[Setup] | None = None
    base: Path | None = None

    def carry_out(
        self, config: Config, base: Path, folder: RunFolder, tell: Tell, sharing: Sharing | None = None
    ) -> dict[str, Any]:
        """One run, all of its folder but the report; the last line to answer with."""
        try:
            prepared = self._prepared(config, base)
        except Infeasible as error:
            return {"end": "refused", "why": f"{error.condition}; needs {error.needs}."}
        except QuoronError as error:
            return {"end": "refused", "why": str(error)}
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            with shared(prepared, sharing) as given:
                runs.carry_out(given, folder, [_Progress(tell)], report=False)
        except QuoronError as error:
            return {"end": "failed", "why": str(error)}
        return {"end": "done", "why": None}

    def _prepared(self, config: Config, base: Path) -> Prepared[Setup]:
        if (
            self.last is not None
            and base == self.base
            and _but_for_the_seed(config) == _but_for_the_seed(self.last.config)
        ):
            return reseeded(self.last, config, base)
        population = self._population(config, base)
        self.last, self.base = None, base
        self.last = runs.prepare(config, base, alternatives=False, population=population)
        return self.last

    def _population(self, config: Config, base: Path) -> Population | None:
        """The last run's users, where the configuration makes the same, and the last plan left them their domain."""
        if self.last is None or base != self.base or _users(config) != _users(self.last.config):
            return None
        population = self.last.scene.population
        return population if population.domain == make_domain(config.domain, population.loss.feature_norm) else None


def reseeded(prepared: Prepared[Setup], config: Config, base: Path) -> Prepared[Setup]:
    """What `prepare` would give for the same configuration with other seeds: only slots and noise know them."""
    dropout = config.run.dropout
    engine = InlineEngine(prepared.scene.population, seed=config.run.seed, dropout=dropout)
    planned = replace(prepared.planned, plan=replace(prepared.planned.plan, seed=config.run.seed))
    scene = replace(prepared.scene, engine=engine)
    digest = runs.fingerprint(config, base)
    return Prepared(config, scene, planned, digest)


def _but_for_the_seed(config: Config) -> dict[str, Any]:
    return config.model_dump(exclude={"run": {"seed", "out"}})


def _users(config: Config) -> tuple[Any, ...]:
    """What decides the users."""
    return config.model_dump(include={"population", "loss", "domain"}), config.population.items_per_user


class _Progress:
    """Tells how far a run is."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def started(self, plan: RunPlan) -> None:
        """The length of the run."""
        self._tell({"at": 0, "of": plan.cost.rounds})

    def round_finished(self, event: RoundEvent) -> None:
        """Now and then."""
        if event.round % max(1, event.rounds // LINES) == 0:
            self._tell({"at": event.round + 1, "of": event.rounds})

    def finished(self, model: NDArray[np.float64]) -> None:
        """Told by the last line."""


if __name__ == "__main__":
    main()

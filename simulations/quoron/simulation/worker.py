"""A worker of `quoron compare`: one run after another, whose users and plan the next one often shares.

A run that is cut off, because its parent process is gone, goes on later, bit-identically.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from quoron.config import Config
from quoron.data import Population
from quoron.engine.choice import Inline, Ray, shared
from quoron.engine.inline import InlineEngine
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation.problem import Setup, make_domain
from quoron_privacy.errors import Infeasible, QuoronError

End = Literal["done", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Task:
    """One run: its folder, and the one that relative paths are relative to."""

    config: Config
    base: Path
    folder: Path
    engine: Inline | Ray


@dataclass(slots=True)
class Work:
    """Carries runs out, and keeps the last users and plan: the next run often has the same."""

    last: Prepared[Setup] | None = None
    base: Path | None = None

    def __call__(self, task: Task) -> tuple[End, str | None]:
        """Carry out one run, all of its folder but the report; what became of it, and why."""
        try:
            prepared = self._prepared(task.config, task.base)
        except Infeasible as error:
            return "refused", f"{error.condition}; needs {error.needs}."
        except QuoronError as error:
            return "refused", str(error)
        try:
            task.folder.mkdir(parents=True, exist_ok=True)
            with shared(prepared, task.engine) as given:
                runs.carry_out(given, RunFolder(task.folder), report=False)
        except QuoronError as error:
            return "failed", str(error)
        return "done", None

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

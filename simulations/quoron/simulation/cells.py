"""From the runs of a comparison to one row a cell: mean excess risk with a confidence interval, and what it cost.

Methods may have models in domains of their own. Excess risks are over the infimum over all models, so they mean the
same in each of them; `held_back` is how much of one the bound of a method's domain costs.

What is to be compared: algorithms times settings times seeds, on one problem.

>>> request = Request.of(Config(), algorithms=["recentred-sgd"], vary={"privacy.epsilon": [1, 4]}, seeds=2)
>>> [(cell.algorithm, cell.varied) for cell in request.cells()]
[('recentred-sgd', (('privacy.epsilon', 1),)), ('recentred-sgd', (('privacy.epsilon', 4),))]
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from quoron import config as configs
from quoron import toml_text
from quoron.arguments import overlay
from quoron.config import Config
from quoron.reports.summary import Summary
from quoron_privacy.errors import ConfigError, count
from quoron_server.algorithms import ALGORITHMS

SEEDS = 5  # runs of each cell, by default
OURS = ("algorithm.name", "run.seed", "run.out")  # keys that a comparison sets by itself
Varied = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One algorithm under one choice of the varied keys: as many runs as there are seeds."""

    algorithm: str  # a name of the registry, or auto
    varied: Varied  # key and value
    config: Config  # with the first seed

    def seeded(self, number: int) -> Config:
        """The configuration of the run with the given number, from 0."""
        run = self.config.run
        return self.config.model_copy(update={"run": run.model_copy(update={"seed": run.seed + number})})

    @property
    def named(self) -> str:
        """For people: `recentred-sgd privacy.epsilon=4`."""
        return " ".join([self.algorithm, *(f"{key}={shown(value)}" for key, value in self.varied)])


@dataclass(frozen=True, slots=True)
class Request:
    """One comparison. Its cells are in the order of the settings, then of the algorithms."""

    config: Config
    algorithms: tuple[str, ...]
    vary: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # key and its values
    seeds: int = SEEDS

    @classmethod
    def of(
        cls,
        config: Config,
        *,
        algorithms: Sequence[str] | None = None,
        vary: Mapping[str, Sequence[Any]] | None = None,
        seeds: int = SEEDS,
    ) -> "Request":
        """A request that makes sense; ConfigError otherwise.

        `algorithms` are by default all that promise privacy and have the constants that are asked for.
        """
        if isinstance(algorithms, str):
            raise ConfigError(f"Expected algorithms to be a list of names, got the text {algorithms!r}.")
        private = tuple(name for name, info in ALGORITHMS.items() if info.trust_model != "none")
        names = private if algorithms is None else tuple(dict.fromkeys(algorithms))
        for name in names:
            if name != "auto" and name not in ALGORITHMS:
                known = ", ".join(("auto", *ALGORITHMS))
                raise ConfigError(f"Expected algorithms to be of {known}, got {name!r}.")
        if not names:
            raise ConfigError("Expected one algorithm or more to compare, got none. Leave them out for all.")
        count(seeds=seeds)
        swept = tuple((key, _values(key, values)) for key, values in (vary or {}).items())
        request = cls(config, names, swept, seeds)
        able = {cell.algorithm for cell in request.cells()}  # what does not check is refused now
        if algorithms is not None and (lacking := [name for name in names if name not in able]):
            raise ConfigError(
                f"Expected algorithm.constants to be one of {', '.join(ALGORITHMS[lacking[0]].constants)} for "
                f"{lacking[0]}, got others. Leave it out."
            )
        if not all(cell.config.run.evaluate for cell in request.cells()):
            raise ConfigError(
                "Expected run.evaluate for a comparison, which is of excess risks, got false. Leave it out."
            )
        return replace(request, algorithms=tuple(name for name in names if name in able))

    def cells(self) -> tuple[Cell, ...]:
        """Every algorithm under every combination of values, but for constants that it does not have.

        ConfigError for a key or a value that is not one.
        """
        keys = [key for key, _ in self.vary]
        choices = [tuple(zip(keys, values, strict=True)) for values in product(*(values for _, values in self.vary))]
        cells = [Cell(name, varied, self._laid(name, varied)) for varied in choices for name in self.algorithms]
        return tuple(
            cell
            for cell in cells
            if cell.algorithm == "auto" or cell.config.algorithm.constants in ALGORITHMS[cell.algorithm].constants
        )

    def _laid(self, algorithm: str, varied: Varied) -> Config:
        """The configuration with the values and the algorithm; another algorithm starts without options."""
        texts = [f"algorithm.name={toml_text.literal(algorithm)}"]
        texts += [f"{key}={toml_text.literal(value)}" for key, value in varied]
        return configs.from_tree(overlay(self.config.model_dump(mode="json", exclude_none=True), texts))

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes it again."""
        return {
            "config": self.config.model_dump(mode="json", exclude_none=True),
            "algorithms": list(self.algorithms),
            "vary": {key: list(values) for key, values in self.vary},
            "seeds": self.seeds,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Request":
        """The request that `as_json` gave."""
        config = configs.from_tree(stored["config"])
        return cls.of(config, algorithms=stored["algorithms"], vary=stored["vary"], seeds=stored["seeds"])


def sweep(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Keys and values of `key=[value, value]` texts; ConfigError for anything else.

    >>> sweep(["privacy.epsilon=[0.5, 1]"])
    {'privacy.epsilon': [0.5, 1]}
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        read: Any = toml_text.assignment(text) if value.strip().startswith("[") else None
        if read is None:
            raise ConfigError(f"Expected key=[value, value], such as 'privacy.epsilon=[0.5, 1, 2]', got {text!r}.")
        for part in key.strip().split("."):
            read = read[part.strip().strip('"')]
        if key.strip() in found:
            raise ConfigError(f"Expected each key once, got {key.strip()} again. Give all its values in one list.")
        found[key.strip()] = read
    return found


def shown(value: Any) -> str:
    """A value for people: bare words, numbers without trailing zeros."""
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str) else json.dumps(value)


def _values(key: str, values: Any) -> tuple[Any, ...]:
    if key in OURS:
        instead = "algorithms" if key == "algorithm.name" else "out" if key == "run.out" else "seeds"
        raise ConfigError(f"Expected keys other than {', '.join(OURS)} to vary, got {key}. Give {instead} instead.")
    if isinstance(values, str | Mapping) or not isinstance(values, Sequence) or len(values) == 0:
        raise ConfigError(f"Expected a list of values for {key}, got {values!r}.")
    texts = [json.dumps(value, default=str) for value in values]
    if len(set(texts)) < len(texts):
        raise ConfigError(f"Expected different values for {key}, got {list(values)!r}.")
    return tuple(values)


Rows = tuple[Mapping[str, Any], ...]
CONFIDENCE = 0.95
COSTS = ("rounds", "messages", "gradient_evaluations", "bytes_up", "bytes_down", "wire_up", "wire_down")
FORECASTS = ("predicted_excess_risk", "guessed_excess_risk")
PROMISE = ("epsilon", "delta", "adjacency", "trust_model")
ENDED = ("infeasible", "failed", "folder")


def run_row(
    cell: Cell,
    simulation_seed: int,
    folder: str,
    summary: Summary | None = None,
    *,
    infeasible: str | None = None,
    failed: str | None = None,
) -> Mapping[str, Any]:
    """One row of what became of one run; of an infeasible cell, of its first.

    The path `folder` is relative to the comparison's. Argument `infeasible` says why there is no plan, and `failed` why
    a run did not end well.
    """
    row = {**dict(cell.varied), "algorithm": cell.algorithm, "simulation_seed": simulation_seed}
    row |= {"taken": None, "excess_risk": None}
    if summary is not None:
        row |= {"taken": summary.algorithm, "excess_risk": summary.excess_risk}
        row |= {"excess_risk_at_start": summary.excess_risk_initial, "held_back": summary.held_back}
        row |= {name: getattr(summary, name) for name in (*FORECASTS, *COSTS, "users_asked", "halted", *PROMISE)}
        row |= {f"test_{name}": value for name, value in summary.test.items()}
        row |= {"seconds": summary.seconds}
    return row | {"infeasible": infeasible, "failed": failed, "folder": folder}


def cell_rows(runs: Rows, keys: Sequence[str]) -> Rows:
    """One row a cell: within each setting of `keys` the least mean excess risk first, cells without a result last.

    `behind_low` and `behind_high` are the interval of how much more a cell leaves than the setting's first, seed by
    seed, where they have two seeds in common. All of a setting's cells hold together with 95 %: each has its part of
    the 5 % (Bonferroni).
    """
    found: list[Mapping[str, Any]] = []
    for setting in _groups(runs, keys):
        cells = [(own, _cell_row(own, keys)) for own in _groups(setting, ["algorithm"])]
        cells.sort(key=lambda cell: (cell[1]["excess_risk"] is None, cell[1]["excess_risk"] or 0.0))
        done = [cell for cell in cells if cell[1]["excess_risk"] is not None]
        confidence = 1 - (1 - CONFIDENCE) / max(1, math.comb(len(done), 2))
        for place, (own, row) in enumerate(done):
            more = _differences(own, done[0][0]) if place else []
            row["behind_low"], row["behind_high"] = interval(more, confidence, least=-math.inf) or (None, None)
        found += [row for _, row in cells]
    return tuple(found)


def _groups(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[list[Mapping[str, Any]]]:
    """The rows with the same values of `keys`, in the order of each group's first."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(json.dumps([row[key] for key in keys], default=str), []).append(row)
    return list(groups.values())


def _differences(runs: Sequence[Mapping[str, Any]], best: Sequence[Mapping[str, Any]]) -> list[float]:
    """How much more excess risk `runs` leave than those of the best cell, for every seed that both have."""
    other = {row["simulation_seed"]: row["excess_risk"] for row in best}
    pairs = ((row["excess_risk"], other.get(row["simulation_seed"])) for row in runs)
    return [risk - least for risk, least in pairs if risk is not None and least is not None]


def interval(
    values: Sequence[float], confidence: float = CONFIDENCE, *, least: float = 0.0
) -> tuple[float, float] | None:
    """A confidence interval for the mean by Student's t, held at `least`; None of one value.

    >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
    [0.0, 4.484]
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = float(t.ppf((1 + confidence) / 2, len(values) - 1)) * error
    return max(mean - reach, least), mean + reach


def algorithm(row: Mapping[str, Any]) -> str:
    """The name of a cell's algorithm; of `auto` also what it took."""
    return f"auto ({row['taken']})" if row["algorithm"] == "auto" and row["taken"] else str(row["algorithm"])


def _cell_row(runs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
    """The row of one cell. Costs and figures are means over its runs; what its plan says is that of the first run."""
    done = [row for row in runs if row["taken"] is not None]
    risks = [row["excess_risk"] for row in done if row["excess_risk"] is not None]
    start = max((row["excess_risk_at_start"] or 0.0 for row in done), default=0.0)
    row = {key: runs[0][key] for key in (*keys, "algorithm")}
    row |= {"taken": None, "runs": len(done), "excess_risk": None, "low": None, "high": None, "of_start": None}
    if risks:
        row["excess_risk"] = float(np.mean(risks))
        row["low"], row["high"] = interval(risks) or (None, None)
        row["of_start"] = row["excess_risk"] / start if start else None
    for key in done[0] if done else ():
        values = [run[key] for run in done]
        if key in ("taken", *FORECASTS, *PROMISE):
            row[key] = values[0]
        elif key not in {*row, "simulation_seed", "users_asked", "excess_risk_at_start", *ENDED}:
            row[key] = sum(values) if key == "halted" else None if None in values else _mean(values)
    return row | {
        "infeasible": runs[0]["infeasible"],
        "failed": next((run["failed"] for run in runs if run["failed"]), None),
    }


def _mean(values: Sequence[float]) -> float:
    """The mean, an integer where all values are the same one."""
    return values[0] if len(set(values)) == 1 else float(np.mean(values))

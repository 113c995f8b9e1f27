"""From the runs of a comparison to one row a cell: mean excess risk with a confidence interval, and what it cost.

Methods may have models in domains of their own. Excess risks are over the infimum over all models, so they mean the
same in each of them; `held_back` is how much of one the bound of a method's domain costs.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from quoron.comparing.request import Cell
from quoron.planning.projection import Costs, marked
from quoron.reports.summary import Summary

Rows = tuple[Mapping[str, Any], ...]
CONFIDENCE = 0.95
COSTS = ("rounds", "messages", "gradient_evaluations", "bytes_up", "bytes_down", "wire_up", "wire_down")
FORECASTS = ("predicted_excess_risk", "guessed_excess_risk")
PROJECTED, FRONTS = "projected.", "fronts"  # columns of networks: seconds; and the costs on whose front a cell is
TOLD, ENDS = "told ", (", low", ", high")  # columns of what held-out users tell privately
PROMISE = ("epsilon", "delta", "adjacency", "trust_model")


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of one run; of an infeasible cell, of its first."""

    cell: Cell
    simulation_seed: int
    folder: str  # relative to the comparison's
    summary: Summary | None = None
    seconds: Mapping[str, float | None] = field(default_factory=dict)  # projected, by network; None: answers too late
    held: bool = False  # whether its rounds must last their whole time
    infeasible: str | None = None  # why there is no plan
    failed: str | None = None  # why a run did not end well


def run_rows(outcomes: Sequence[Outcome]) -> Rows:
    """One row a run, and one for each cell that is infeasible."""
    return tuple(map(_run_row, outcomes))


def cell_rows(outcomes: Sequence[Outcome], looks: int = 1) -> Rows:
    """One row a cell: within each setting the least mean excess risk first, cells without a result last.

    `behind_low` and `behind_high` are the interval of how much more a cell leaves than the setting's first, seed by
    seed, where they have two seeds in common. All of a setting's cells, and all of so many `looks` at growing numbers
    of seeds, hold together with 95 %: each has its part of the 5 % (Bonferroni).
    """
    cells = list(dict.fromkeys(outcome.cell for outcome in outcomes))
    settings = list(dict.fromkeys(_setting(cell) for cell in cells))
    rows = [(cell, _cell_row([each for each in outcomes if each.cell is cell])) for cell in cells]
    for setting in settings if any(each.seconds for each in outcomes) else ():
        alike = [row for cell, row in rows if _setting(cell) == setting]
        for row, costs in zip(alike, marked([_costs(row) for row in alike]), strict=True):
            row[FRONTS] = list(costs.fronts)

    for setting in settings:
        done = [(cell, row) for cell, row in rows if _setting(cell) == setting and row["excess_risk"] is not None]
        confidence = 1 - (1 - CONFIDENCE) / (looks * max(1, math.comb(len(done), 2)))
        for cell, row in done:
            best, _ = min(done, key=lambda pair: float(pair[1]["excess_risk"]))
            more = [] if cell is best else _differences(outcomes, cell, best)
            row["behind_low"], row["behind_high"] = interval(more, confidence, least=-math.inf) or (None, None)

    def order(pair: tuple[Cell, Mapping[str, Any]]) -> tuple[int, bool, float]:
        cell, row = pair
        risk = row["excess_risk"]
        return settings.index(_setting(cell)), risk is None, 0.0 if risk is None else risk

    return tuple(row for _, row in sorted(rows, key=order))


def decided(rows: Rows, keys: Sequence[str]) -> bool:
    """Whether under every choice of the varied `keys` the first cell is known to leave less than the second."""
    first: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["excess_risk"] is not None:
            first.setdefault(json.dumps([row[key] for key in keys], default=str), []).append(row)
    return all(len(some) < 2 or (some[1]["behind_low"] or 0.0) > 0 for some in first.values())


def _differences(outcomes: Sequence[Outcome], cell: Cell, best: Cell) -> list[float]:
    """How much more `cell` leaves than `best`, for every seed that both have."""
    own, its = (
        {each.simulation_seed: each.summary.excess_risk for each in outcomes if each.cell is some and each.summary}
        for some in (cell, best)
    )
    risks = ((own[seed], its.get(seed)) for seed in own)
    return [risk - other for risk, other in risks if risk is not None and other is not None]


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


def costs_of(rows: Sequence[Mapping[str, Any]]) -> list[Costs]:
    """What rounds cost in cells with a result, in their order; none where no network is given."""
    with_network = [row for row in rows if row.get(FRONTS) is not None and row["excess_risk"] is not None]
    return [replace(_costs(row), fronts=tuple(row[FRONTS])) for row in with_network]


def algorithm(row: Mapping[str, Any]) -> str:
    """The name of a cell's algorithm; of `auto` also what it took."""
    return f"auto ({row['taken']})" if row["algorithm"] == "auto" and row["taken"] else str(row["algorithm"])


def _costs(row: Mapping[str, Any]) -> Costs:
    names = [key for key in row if key.startswith(PROJECTED)]
    risk, down, up = row["excess_risk"], row.get("wire_down", 0), row.get("wire_up", 0)
    return Costs(
        algorithm=algorithm(row),
        rounds=row.get("rounds", 0),
        messages=row.get("messages", 0),
        bytes_down=down,
        bytes_up=up,
        seconds={key.removeprefix(PROJECTED): row[key] for key in names},
        held=bool(row.get("held")),
        risk=risk,
        told="" if risk is None else f"{risk:.2g}",
    )


def _projected(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Mean projected seconds over each network, and whether rounds are held."""
    names = list(dict.fromkeys(name for each in outcomes for name in each.seconds))
    if not names:
        return {}
    row: dict[str, Any] = {}
    for name in names:
        values = [each.seconds.get(name) for each in outcomes]
        known = [value for value in values if value is not None]
        row[f"{PROJECTED}{name}"] = _mean(known) if len(known) == len(values) else None
    return row | {"held": outcomes[0].held}


def _setting(cell: Cell) -> str:
    return json.dumps(cell.varied, default=str)


def _head(cell: Cell) -> dict[str, Any]:
    return {**dict(cell.varied), "algorithm": cell.algorithm}


def _run_row(outcome: Outcome) -> dict[str, Any]:
    summary = outcome.summary
    row = _head(outcome.cell) | {
        "simulation_seed": outcome.simulation_seed,
        "taken": None,
        "excess_risk": None if summary is None else summary.excess_risk,
    }
    if summary is not None:
        row |= {"taken": summary.algorithm, "excess_risk_at_start": summary.excess_risk_initial}
        row |= {"held_back": summary.held_back}
        row |= {name: getattr(summary, name) for name in FORECASTS}
        row |= {name: getattr(summary, name) for name in (*COSTS, "users_asked", "halted", *PROMISE)}
        row |= {f"test_{name}": value for name, value in summary.test.items()} | _told([summary])
        row |= {"seconds": summary.seconds} | _projected([outcome])
    return row | {"infeasible": outcome.infeasible, "failed": outcome.failed, "folder": outcome.folder}


def _cell_row(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The row of one cell. Costs are means over its runs, which differ where a run is halted."""
    first = outcomes[0]
    done = [each for each in outcomes if each.summary is not None]
    summaries = [each.summary for each in done if each.summary is not None]
    risks = [each.excess_risk for each in summaries if each.excess_risk is not None]
    start = max((each.excess_risk_initial or 0.0 for each in summaries), default=0.0)
    row = _head(first.cell) | {"taken": None, "runs": len(done), "excess_risk": None, "low": None, "high": None}
    row |= {"of_start": None}
    if risks:
        row["excess_risk"] = float(np.mean(risks))
        row["low"], row["high"] = interval(risks) or (None, None)
        row["of_start"] = row["excess_risk"] / start if start else None
    if done:
        row["taken"] = summaries[0].algorithm
        row |= {name: getattr(summaries[0], name) for name in FORECASTS}
        row |= {"held_back": _mean([each.held_back for each in summaries])}
        row |= {name: _mean([getattr(each, name) for each in summaries]) for name in COSTS}
        row |= {name: getattr(summaries[0], name) for name in PROMISE}
        row |= {f"test_{name}": _mean([each.test[name] for each in summaries]) for name in summaries[0].test}
        row |= _told(summaries)
        row |= {
            "halted": sum(each.halted for each in summaries),
            "seconds": _mean([each.seconds for each in summaries]),
        }
        row |= _projected(done)
    failed = next((each.failed for each in outcomes if each.failed is not None), None)
    return row | {"infeasible": first.infeasible, "failed": failed}


def _told(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Means over runs of what held-out users tell privately, and of the ends of its 95 % intervals."""
    return {
        f"{TOLD}{name}{end}": _mean([each.told[name][place] for each in summaries])
        for name in summaries[0].told
        for place, end in enumerate(("", ENDS[0], ENDS[1]))
    }


def told_of(row: Mapping[str, Any]) -> dict[str, tuple[float, float, float]]:
    """The same of a row, by name."""
    names = [key for key in row if key.startswith(TOLD) and not key.endswith(ENDS) and row[key] is not None]
    return {key.removeprefix(TOLD): (row[key], row[f"{key}{ENDS[0]}"], row[f"{key}{ENDS[1]}"]) for key in names}


def _mean(values: Sequence[float]) -> float:
    """The mean, an integer where all values are the same one."""
    return values[0] if len(set(values)) == 1 else float(np.mean(values))

"""How good a model is for the users of a table, in one call: figures with intervals, private for every user as a whole.

    evaluation = quoron.evaluate("run/model.json", others, user="patient", epsilon=0.5)
    evaluation.figure("AUC").low

Proof: docs/privacy/evaluation.md.
"""

from pathlib import Path
from typing import Any

from quoron.arguments import DELTA, entry_point
from quoron.evaluating.evaluation import Evaluation
from quoron.model import Model, load
from quoron.training import measured
from quoron_privacy.release import Adjacency
from quoron_server.plan import Privacy


@entry_point
def evaluate(
    model: Model | str | Path,
    source: Any,
    user: str,
    *,
    epsilon: float,
    delta: float = DELTA,
    adjacency: Adjacency = "replace-one",
    allow_large_delta: bool = False,
    items_per_user: int = 1,
    users: int | None = None,
    seed: int | None = None,
    population: str | None = None,
    ledger: str | Path | None = None,
) -> Evaluation:
    """How good a model is for the users of a table, with intervals, private for every user as a whole.

    Args:
        model: a `Model`, its file, or the folder of a run.
        source: a table with one item a row: its path, a folder of Parquet files, a DataFrame, or `quoron.opened(...)`.
        user: the column that says whose a row is.
        epsilon, delta, adjacency, allow_large_delta: the guarantee, as of `train`.
        items_per_user: above 1 figures are told per item as well, of so many rows of a user at most.
        users: under zero-out the most users that the table may hold.
        seed: SIMULATED: of all noise, for data of nobody. Nothing is charged.
        population, ledger: whose privacy budget is charged, in which file, before any value is read.

    Users that the model was trained on flatter it: give it others, or `holdout=0.1` to `train`. Proof:
    docs/privacy/evaluation.md.

    Raises:
        QuoronError: with the thing, its value and the fix; Infeasible where so few users would tell nothing.
    """
    asked: dict[str, Any] = {"adjacency": adjacency, "allow_large_delta": allow_large_delta, "users": users}
    prepared = _prepared(model, source, user=user, epsilon=epsilon, delta=delta, items_per_user=items_per_user, **asked)
    return measured.carry_out(prepared, group=population, ledger=ledger, simulation_seed=seed)


def foretold(model: Model | str | Path, source: Any, **asked: Any) -> str:
    """How wide the intervals of `evaluate`, called so, would be, in words. Nothing is charged or looked at."""
    return _prepared(model, source, **asked).foretold()


def _prepared(
    model: Model | str | Path, source: Any, *, epsilon: float, delta: float, adjacency: Adjacency, **asked: Any
) -> measured.Prepared:
    made = load(model) if isinstance(model, str | Path) else model
    privacy = Privacy(epsilon, delta, adjacency=adjacency)
    return measured.prepare(made, source, privacy=privacy, cap=asked.pop("items_per_user"), **asked)

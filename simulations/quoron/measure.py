"""How good a model is for the users of a table, in one call: figures with intervals, private for every user as a whole.

    evaluation = quoron.evaluate("run/model.json", others, user="patient", epsilon=0.5)
    evaluation.figure("AUC").low

Proof: docs/privacy/evaluation.md.
"""

from pathlib import Path
from typing import Any

from quoron.evaluating.evaluation import Evaluation
from quoron.model import Model, load
from quoron.sections import DELTA, Keep, Privacy, door, only, with_keywords
from quoron.training import measured
from quoron_server.plan import Privacy as PlanPrivacy

_MEANT = ("epsilon", "delta", "adjacency", "allow_large_delta", "simulation_seed")


@door
def evaluate(
    model: Model | str | Path,
    source: Any,
    *,
    user: str,
    epsilon: float | None = None,
    delta: float | None = None,
    privacy: Privacy | None = None,
    items_per_user: int = 1,
    users: int | None = None,
    keep: Keep | None = None,
) -> Evaluation:
    """How good a model is for the users of a table, with intervals, private for every user as a whole.

    Args:
        model: a `Model`, its file, or the folder of a run.
        source: a table with one item a row: its path, a folder of Parquet files, a DataFrame, or `quoron.opened(...)`.
        user: the column that says whose a row is.
        epsilon, delta: the promise, which is charged beside whatever was charged before; short for `privacy`.
        privacy: the same, with `adjacency`, `allow_large_delta`, and `simulation_seed` for data of nobody.
        items_per_user: above 1 figures are told per item as well, of so many rows of a user at most.
        users: under zero-out the most users that the table may hold.
        keep: `group` and `ledger`: whose lifetime account is charged, before any value is looked at.

    Users that the model was trained on flatter it: give it others, or `evaluate=0.1` to `train`. Proof:
    docs/privacy/evaluation.md.

    Raises:
        QuoronError: with the thing, its value and the fix; Infeasible where so few users would tell nothing.
    """
    prepared = _prepared(model, source, user, privacy, epsilon, delta, items_per_user, users)
    kept = keep or Keep()
    only("evaluate", ("group", "ledger"), kept)
    seed = None if privacy is None else privacy.simulation_seed
    return measured.carry_out(prepared, group=kept.group, ledger=kept.ledger, simulation_seed=seed)


def foretold(model: Model | str | Path, source: Any, *, user: str, privacy: Privacy, **more: Any) -> str:
    """How wide the intervals of `evaluate`, called so, would be, in words. Nothing is charged or looked at."""
    return _prepared(model, source, user, privacy, **more).foretold()


def _prepared(
    model: Model | str | Path,
    source: Any,
    user: str,
    privacy: Privacy | None,
    epsilon: float | None = None,
    delta: float | None = None,
    items_per_user: int = 1,
    users: int | None = None,
) -> measured.Prepared:
    said = with_keywords(privacy or Privacy(), "evaluate", epsilon=epsilon, delta=delta)
    only("evaluate", _MEANT, said)
    asked = said.needed("evaluate", usual=DELTA)
    if isinstance(model, str | Path):
        model = load(model)
    return measured.prepare(
        model,
        source,
        user=user,
        privacy=PlanPrivacy(*asked, adjacency=said.adjacency),
        cap=items_per_user,
        users=users,
        allow_large_delta=said.allow_large_delta,
    )

"""How good a model is for the users of a table, in one call: figures with intervals, private for every user as a whole.

    evaluation = quoron.evaluate("run/model.json", others, user="patient", epsilon=0.5)
    evaluation.figure("AUC").low

The model is released, and so public: the guarantee is the same for any training users, and is charged beside that of
training. But figures of users that it was trained on are too good. Proof: docs/privacy/evaluation.md#ev2.
"""

import hashlib
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from quoron.arguments import DELTA, ReleaseArguments, entry_point
from quoron.data.index import Rows, opened
from quoron.data.user_rows import max_rows
from quoron.data.users import Declared
from quoron.evaluation import figures
from quoron.evaluation.evaluation import Evaluation
from quoron.evaluation.scores import Scorer
from quoron.model import Model, load
from quoron.paths import dataset
from quoron.releases.once import release_once, slots_of
from quoron.training import evaluated
from quoron.training.memory import ELSEWHERE, UNCHARGED, memory_for
from quoron.training.table import gather
from quoron_client.data import tables
from quoron_client.data.encoding import Encoding, outcomes
from quoron_client.data.items import ItemBatch
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import ConfigError
from quoron_privacy.histograms.held_out import HeldOut
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency
from quoron_server.plan import Privacy
from quoron_server.serial import dumps
from quoron_server.wording import ReleaseGuarantee

OF_THEM = "these are figures of the users in this table: of a model that was trained on them they flatter."


@entry_point
def evaluate(
    model: Model | str | Path,
    source: Any,
    user: str,
    *,
    epsilon: float,
    delta: float = DELTA,
    zero_out: int | None = None,
    allow_large_delta: bool = False,
    **charged: Unpack[ReleaseArguments],
) -> Evaluation:
    """Return how good a model is for the users of a table, with intervals, private for every user as a whole.

    Args:
        model: a `Model`, its file, or the folder of a run.
        source: a table with one item a row: a path, a folder of Parquet files, a DataFrame, `quoron.read_table(...)`.
        user: the column that says whose a row is.
        epsilon, delta, allow_large_delta: the guarantee, as of `train`.
        zero_out: the most users that the table may hold: adjacency is zero-out, which hides who is there at all.
        seed: SIMULATED: of all noise, for data of nobody; charged to a given ledger only.
        population, ledger: whose privacy budget is charged, in which file, before any value is read.

    Users that the model was trained on flatter it: give it others, or `holdout=0.1` to `train`. Proof:
    docs/privacy/evaluation.md.

    Raises:
        QuoronError: with the thing, its value and the fix; Infeasible where so few users would tell nothing.
    """
    loaded = load(model) if isinstance(model, str | Path) else model
    adjacency: Adjacency = "replace-one" if zero_out is None else "zero-out"
    Privacy(epsilon, delta, adjacency=adjacency)  # which checks them
    encoding = replace(loaded.encoding, weight=None)
    classes = outcomes(encoding.label)
    if encoding.label is None or not (classes or hasattr(encoding.label, "bound")):
        raise ConfigError("Expected a model of classes or of a number in a range to evaluate, got another.")
    there, rows = _read(encoding, source, user, zero_out)
    slots = slots_of(there, zero_out, delta, allow_large_delta=allow_large_delta)
    promised: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency}
    held = HeldOut.calibrate(users=slots, classes=len(classes), **promised)
    figures.require_informative(held, epsilon)
    declared = Declared.of_rows(encoding, loaded.loss, L2Ball(1.0), users=slots, items_per_user=1)
    promise = ReleaseGuarantee.central(epsilon, delta, "figures", "docs/privacy/evaluation.md#ev2", adjacency)
    scorer = Scorer(loaded.weights, loaded.loss, loaded.encoding, loaded.decision)

    def draw(noise: NoiseSource) -> tuple[Evaluation, dict[str, Any]]:
        items = partial(evaluated.batches, declared, rows, np.arange(slots))
        evaluation = figures.read(held, scorer, figures.release(held, scorer, items, noise), promise)
        evaluation = replace(evaluation, remarks=(*evaluation.remarks, OF_THEM))
        return evaluation, {"evaluation": hashlib.sha256(dumps(evaluation.as_json()).encode()).hexdigest()}

    mu = math.ceil(held.pair.mu * 1e8) / 1e8  # no stored number hangs on a library's last bits
    verify = partial(held.verify, **promised)
    measured, statement = release_once(
        "evaluation", promise, draw, verify, mu=mu, variation=held.pair.variation, **charged
    )
    return replace(measured, statement=statement)


def _read(encoding: Encoding, source: Any, user: str, zero_out: int | None) -> tuple[int, ItemBatch | Rows]:
    """Return how many users there are, and the items of all."""
    most, zero_rows = max_rows(1, encoding.dimension, weighted=False), zero_out is None
    folder = dataset(str(source), Path.cwd()) if isinstance(source, str | Path) else None
    if folder is not None:
        rows = Rows.of(opened(folder, user), encoding)
        return rows.users, replace(rows, users=zero_out or rows.users, zero_rows=zero_rows, most=most)
    with memory_for("the rows of this table", f"{UNCHARGED} {ELSEWHERE}"):
        gathered = gather(tables.opened(source), encoding, user, most)[1].end()
        return gathered.users, gathered.items(max(zero_out or 0, gathered.users), zero_rows=zero_rows)

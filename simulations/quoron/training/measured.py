"""How good a model is for the users of a table, for a promise of its own: read, charge, release, and nothing else.

    evaluation = measured(model, visits, user="patient", epsilon=0.5, population="others")

The model is released, and so public: whoever it was trained on, the promise is the same, and is charged beside that of
training. But of users that it was trained on figures flatter. Statement and proof: docs/privacy/evaluation.md#ev2.
"""

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from quoron.datasets.rows import Rows
from quoron.evaluating import figures, measuring
from quoron.evaluating.evaluation import Evaluation
from quoron.evaluating.scores import Scorer
from quoron.model import Model
from quoron.paths import dataset
from quoron.populations.users import Declared, PublicKnowledge
from quoron.training import evaluated, lifetime
from quoron.training.room import ELSEWHERE, UNCHARGED, memory_for
from quoron_client.data import tables
from quoron_client.data.declared import check_types, typed
from quoron_client.data.encoding import Encoding
from quoron_client.data.fused import Gathering
from quoron_client.data.items import ItemBatch
from quoron_client.data.labels import outcomes
from quoron_client.data.users import most_rows
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.counts.held_out import HeldOut
from quoron_privacy.errors import ConfigError, DataError
from quoron_privacy.noise.sources import SecureNoise, SeededNoise
from quoron_privacy.noise.streams import NoiseSource
from quoron_privacy.release import Adjacency
from quoron_server.budget import check_delta
from quoron_server.plan import Privacy
from quoron_server.serial import dumps

OF_THEM = "these are figures of the users in this table: of a model that was trained on them they flatter."


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A model and the items of users, of which nothing is looked at yet but how many users there are."""

    model: Model
    held: HeldOut
    privacy: Privacy
    declared: Declared
    items: ItemBatch | Rows

    @property
    def statement(self) -> str:
        """The promise in a sentence."""
        return (
            f"({self.privacy.epsilon:g}, {self.privacy.delta:g})-differential privacy for all rows of any one user at "
            f"once, adjacency {self.held.adjacency}: protects against whoever sees these figures (the machine that "
            "holds the table is trusted); by docs/privacy/evaluation.md#ev2."
        )

    def foretold(self) -> str:
        """How wide intervals will be."""
        return f"{self.held.users:,} users tell {figures.foretold(self.held)}, 95 %"


def prepare(
    model: Model,
    source: Any,
    *,
    user: str,
    privacy: Privacy,
    cap: int = 1,
    users: int | None = None,
    allow_large_delta: bool = False,
) -> Prepared:
    """Read and plan; every wrong request is refused here, before a charge. `users` are declared under zero-out.

    Raises ConfigError, DataError; Infeasible where so few users tell nothing.
    """
    adjacency: Adjacency = privacy.adjacency or "replace-one"
    encoding = replace(model.encoding, class_weight=None, weight=None)
    if encoding.label is None or not (outcomes(encoding.label) or hasattr(encoding.label, "bound")):
        raise ConfigError("Expected a model of classes or of a number in a range to evaluate, got another.")
    found, items = _read(encoding, source, user, zero_rows=adjacency != "zero-out", declared=users)
    if (adjacency == "zero-out") != (users is not None):
        raise ConfigError(
            f"Expected users, the most that the table may hold, with adjacency zero-out and only there, got "
            f"users={users} with {adjacency}."
        )
    slots = found if users is None else users
    if found > slots:
        raise DataError(f"Expected at most users={slots} users in the table, got more. Declare more.")
    check_delta(privacy.delta, slots, allowed=allow_large_delta, key="allow_large_delta")
    held = HeldOut.calibrate(
        users=slots,
        classes=len(outcomes(encoding.label)),
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        adjacency=adjacency,
        cap=cap,
    )
    held.verify(privacy.epsilon, privacy.delta, adjacency=adjacency)
    figures.require_telling(held, privacy.epsilon)
    dimension, known = encoding.dimension * model.loss.outputs, PublicKnowledge(intercept=encoding.intercept)
    declared = Declared(slots, cap, dimension, model.loss, L2Ball(1.0), known)
    return Prepared(model, held, privacy, declared, items)


def carry_out(prepared: Prepared, *, group: str | None, ledger: Any, simulation_seed: int | None = None) -> Evaluation:
    """Charge, release, and say what it says. BudgetExceeded beyond the group's limit, with nothing released.

    A kill between the charge and its end leaves the charge, and nothing that anybody has seen.
    """
    own = prepared
    said = figures.Promise(own.privacy.epsilon, own.privacy.delta, own.statement)
    scorer = Scorer(own.model.weights, own.model.loss, own.model.encoding, own.model.decision)
    if simulation_seed is not None:
        said = replace(said, statement=f"SIMULATED, with noise from a seed, which protects nobody. {own.statement}")
        return _released(own, scorer, SeededNoise(simulation_seed), said)
    charged = lifetime.Charge.made(
        "evaluation",
        ledger,
        group,
        statement=own.statement,
        epsilon=own.privacy.epsilon,
        delta=own.privacy.delta,
        mu=math.ceil(own.held.pair.mu * 1e8) / 1e8,  # the last bits of a library's functions are in no book
        variation=own.held.pair.lack,
        adjacency=own.held.adjacency,
    )
    evaluation = _released(own, scorer, SecureNoise.fresh(), said)
    charged.end({"evaluation": hashlib.sha256(dumps(evaluation.as_json()).encode()).hexdigest()})
    return evaluation


def _released(own: Prepared, scorer: Scorer, noise: NoiseSource, said: figures.Promise) -> Evaluation:
    everybody = np.arange(own.declared.users)
    released = measuring.release(own.held, scorer, lambda: evaluated.batches(own.declared, own.items, everybody), noise)
    evaluation = figures.read(own.held, scorer, released, said)
    return replace(evaluation, remarks=(*evaluation.remarks, OF_THEM))


def _read(
    encoding: Encoding, source: Any, user: str, *, zero_rows: bool, declared: int | None
) -> tuple[int, ItemBatch | Rows]:
    """How many users there are, and the items of all."""
    most = most_rows(1, encoding.dimension, weighted=False)
    folder = dataset(str(source), Path.cwd()) if isinstance(source, str | Path) else None
    if folder is not None:
        rows = Rows.opened(folder, user, encoding)
        return rows.users, replace(rows, users=declared or rows.users, zero_rows=zero_rows, most=most)
    with memory_for("the rows of this table", f"{UNCHARGED} {ELSEWHERE}"):
        given = tables.opened(source)
        names = (*encoding.columns, user)
        encoding.check(given.empty(names))
        check_types(encoding, given.schema)
        encoding = typed(encoding, given.schema)
        gathering = Gathering(encoding, user, most, rows=given.rows)
        for batch in given.batches(names):
            gathering.add(batch)
        gathered = gathering.end()
        slots = declared if declared is not None and declared >= gathered.users else gathered.users
        return gathered.users, gathered.items(slots, zero_rows=zero_rows)

"""`quoron.train`: a model for real, of a table that somebody holds.

run = quoron.train(visits, user="patient", label="ill", columns={"numeric": {"age": (0, 100)}}, epsilon=2.0)
run.model.predict(new_visits)
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, Unpack, overload

from quoron.arguments import TrainingArguments, entry_point
from quoron.data.columns import Label
from quoron.engine.choice import Engine, inline_or_ray
from quoron.planning.plans import Plan
from quoron.reports import terminal as bars
from quoron.run_folder import claim
from quoron.simulation.sources import Source, described
from quoron.training import run as training
from quoron.training.result import TrainedTable
from quoron_server.rounds import Observer


@overload
def train(
    source: Source,
    user: str | None = ...,
    label: str | Label | None = ...,
    *,
    dry_run: Literal[True],
    **arguments: Unpack[TrainingArguments],
) -> Plan: ...
@overload
def train(
    source: Source,
    user: str | None = ...,
    label: str | Label | None = ...,
    *,
    observers: Sequence[Observer] = ...,
    progress: bool | None = ...,
    engine: str | Engine = ...,
    dry_run: Literal[False] = ...,
    **arguments: Unpack[TrainingArguments],
) -> TrainedTable: ...
@entry_point
def train(
    source: Source,
    user: str | None = None,
    label: str | Label | None = None,
    *,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    engine: str | Engine = "inline",
    dry_run: bool = False,
    **arguments: Unpack[TrainingArguments],
) -> TrainedTable | Plan:
    """Train for real on a table that you hold: secret noise, every user, one model that may be shown to anybody.

    Args:
        source: a DataFrame with one item a row, or the path of such a table; or a TOML file's path, a preset's name, a
            `Config`, which describe one.
        user: column that says whose item a row is.
        label: column to predict, or a comparison such as 'delay > 15'; or {'column': ..., 'classes': [...]}, with the
            meaning of its values: classes, a positive value, or a range.
        columns: how rows become items: `quoron.Columns` or a mapping with its keys. What is not declared is estimated
            privately, for a part of ε (docs/train.md).
        model: "linear", the default; "curves", of degrees by a public rule; "auto", these where the users are enough,
            by the label's rate, which is estimated unless declared (docs/train.md#models-that-bend).
        epsilon, delta: the guarantee of the whole run. ε is needed, here, in `settings` or in a file; δ is 1e-6 unless
            given. Two values of one thing are refused.
        adjacency: what a user's data may be replaced by: anything ("replace-one"), or nothing ("zero-out", weaker).
        allow_large_delta: accept a δ above 1/n.
        algorithm, options: a name from `quoron show algorithms`, by default chosen by a rule; and options of it.
        items_per_user: what a user typically holds, public. Planned as 1 unless given.
        holdout: share of the users, such as 0.1, that are not trained on: they tell how good the model is, with
            intervals, for the same ε, as nobody is in both parts (docs/evaluation.md). `evaluation` of the result.
        data_quality: share of μ² for a private check of how well the table fits what is declared of it; by default from
            0.005 to 0.05; 0: none. What it finds is in `data_quality` of the result, and in its warnings.
        population, ledger: whose privacy budget is charged, "everyone" unless given, in which file.
        out: the run's folder; by default the next under runs/.
        settings: further keys: texts `dotted.key=value`, as with `--set`, or sections as mappings.
        observers: told of every round, in public figures.
        progress: whether a bar is shown on standard error; by default in terminals and notebooks.
        engine: as of `simulate`, but for "flower" and "service".
        dry_run: return the plan alone: what this call would promise and cost. Nothing is charged, and no value is read.

    The plan reads nothing from the table but the number of users. The run is charged to the population's budget before
    any value is read. Interrupted, it goes on with the same call and `out`, or `quoron resume`, for that
    charge: what is committed stands, a round that was under way draws other noise.

    Raises:
        QuoronError: with the thing, its value and the fix; BudgetExceeded beyond the population's limit.
    """
    chosen = inline_or_ray(engine)
    config, name, frame = described(source, user, label, arguments, secret=True)
    if dry_run:
        prepared = training.prepare(config, Path.cwd(), name=name, frame=frame)
        return replace(prepared.planned, remarks=(*prepared.planned.remarks, *prepared.setup.warnings))
    with bars.display(progress) as shown:
        prepared = training.prepare(config, Path.cwd(), name=name, frame=frame)
        folder = claim(config, name)
        with folder.resumable():
            return training.carry_out(prepared, folder, (*observers, shown), engine=chosen)

"""`quoron train` and `quoron predict`: a private model of one's own table, and what it says of new rows."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import quoron
from quoron.cli.columns import table_options
from quoron.cli.common import (
    Algorithm,
    Csv,
    Delta,
    Epsilon,
    InlineOrRay,
    Json,
    Out,
    Population,
    Settings,
    doubts,
    interruptible,
    keyed,
    natural,
    opened,
    progress,
    showing,
    sources,
    whole,
)
from quoron.table_columns import DescribedTable
from quoron_privacy.errors import ConfigError

Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE|CONFIG.TOML",
        help="A table with one item a row, and what its columns are; or a TOML file that says it, or a preset.",
        autocompletion=sources,
    ),
]


@table_options
def train(
    source: Table,
    columns: DescribedTable,
    epsilon: Epsilon = None,
    delta: Delta = None,
    algorithm: Algorithm = None,
    holdout: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Of the users, held out to say how good the model is, for the same ε."),
    ] = None,
    out: Out = None,
    settings: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan; charge nothing, and look at no value.")
    ] = False,
    as_json: Json = False,
    engine: InlineOrRay = "inline",
    population: Population = None,
) -> None:
    """Train for real on a table that you hold: secret noise, every user, a model that may be shown to anybody."""
    from quoron.engines import inline_or_ray

    where = inline_or_ray(engine)  # refused before a dry run, too
    asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "algorithm": algorithm, "out": out}
    asked |= {"holdout": holdout, "settings": settings or (), "population": population, **columns}
    if dry_run:
        from quoron.api.training import plan_training

        planned = plan_training(source, compare=as_json, **asked)
        showing.show_plan(planned, as_json=as_json, brief=True)
        return
    with progress(as_json=as_json) as observer, interruptible(), doubts():
        trained = quoron.train(source, observers=[observer], progress=False, engine=where, **asked)
    showing.show(trained, as_json=as_json)


def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or the folder of a run.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Rows to predict for: a file, a folder or a URL.")],
    file: Annotated[
        Path | None, typer.Option("--file", help="A .csv or .parquet file; CSV on standard output without.")
    ] = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Probabilities of the classes, or scores where the loss has none, too.")
    ] = False,
    threshold: Annotated[
        str | None,
        typer.Option(
            metavar="share|NUMBER",
            help="The probability from which a row is of the second class, or for each class its released share; "
            "default: the model's, which is 0.5.",
        ),
    ] = None,
    csv: Csv = None,
) -> None:
    """Predict the label of every row of a table with a model that was trained, in the label's own values."""
    from quoron.model import one_for_all, predictions, rows_of, threshold_of, unread, write_predictions

    trained, decided = quoron.load(model), threshold_of(threshold)
    rows = rows_of(trained, opened(table, csv))
    found = predictions(trained, rows, scores=scores, threshold=decided)
    write_predictions(found, file)
    typer.echo(trained.stated(), err=True)
    if trained.evaluation is not None:
        each, users = trained.evaluation.figures[0], trained.evaluation.users
        figure = f"{each.name} per {each.per} of {users:,} held-out users, with 95 %: {each.text()}"
        typer.echo(f"As stated by its author, too: {figure}", err=True)
    for remark in unread(trained, rows):
        typer.echo(remark, err=True)
    if (said := one_for_all(trained, found, decided)) is not None:
        typer.echo(said, err=True)


def example(
    name: Annotated[
        str, typer.Argument(metavar="PRESET|hospitals", help="A preset over a shipped table, or made-up hospitals.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder where the files go.")] = Path(),
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Of hospitals: hospitals=3, patients=300 of each, seed=0."),
    ] = None,
) -> None:
    """Write a shipped table as NAME.csv and its description as NAME.toml, to try things on and to start from.

    With `hospitals`: made-up visits of patients, one file a hospital, and run.toml.
    """
    given = keyed("--set", settings, {"hospitals": whole, "patients": whole, "seed": natural})
    if name == "hospitals":
        from quoron.training.examples import write_hospitals

        for path in write_hospitals(out, **given):
            print(path)
        print("Made up: no patient of these hospitals exists.", file=sys.stderr)
        return
    if given:
        raise ConfigError(f"Expected --set {' and '.join(given)} with hospitals only, got {name}.")
    from quoron.training.examples import write_example

    for path in write_example(name, out):
        print(path)

"""`quoron train`, `predict`, `tune`, `compare`, `show`, `example`: models of one's own table, and what came of them.

`quoron train` and `quoron predict`: a private model of one's own table, and what it says of new rows.

`quoron tune`: the best of several settings by a private score, for little more than the price of one run.

`quoron compare`: algorithms and settings side by side, on the same users, with the same budget and seeds.

`quoron show`: a run or a comparison again, the presets, the algorithms.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

import quoron
from quoron.cli import common
from quoron.cli.common import (
    RARE,
    Algorithm,
    Categorical,
    Csv,
    Delta,
    Epsilon,
    InlineOrRay,
    Json,
    Label,
    Numeric,
    Out,
    Population,
    Settings,
    Source,
    User,
    described,
    doubts,
    interruptible,
    opened,
    progress,
    run_folders,
    showing,
    shows_progress,
    sources,
)
from quoron_privacy.errors import ConfigError, nearest

Table = Annotated[
    str,
    typer.Argument(
        metavar="TABLE|CONFIG.TOML",
        help="A table with one item a row, and what its columns are; or a TOML file that says it, or a preset.",
        autocompletion=sources,
    ),
]


def train(
    source: Table,
    user: User = None,
    label: Label = None,
    numeric: Numeric = None,
    categorical: Categorical = None,
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
    from quoron.engine.choice import inline_or_ray

    where = inline_or_ray(engine)  # refused before a dry run, too
    asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "algorithm": algorithm, "out": out}
    asked |= {"holdout": holdout, "settings": settings or (), "population": population}
    asked |= described(user, label, numeric, categorical)
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
    out: Annotated[
        Path | None, typer.Option("--out", help="A .csv or .parquet file; CSV on standard output without.")
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
    write_predictions(found, out)
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
    name: Annotated[str, typer.Argument(metavar="PRESET", help="A preset over a shipped table.")],
    out: Annotated[Path, typer.Option("--out", help="Folder where the files go.")] = Path(),
) -> None:
    """Write a shipped table as NAME.csv and its description as NAME.toml, to try things on and to start from."""
    from quoron.simulation.sources import write_example

    for path in write_example(name, out):
        print(path)


def tune(
    source: Table,
    user: User = None,
    label: Label = None,
    numeric: Numeric = None,
    categorical: Categorical = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="KEY=[V,V]", help="Any key with values to try, such as loss.ridge=[0, 0.01]."),
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Which, auto among them; the configured one without.")
    ] = None,
    trials: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="mean=N, by default twice the number of settings; most=N, by default five times the mean, three times "
            "if padded; padded=1: always carry out `most` trials, so that the duration hides their number.",
            rich_help_panel=RARE,
        ),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Of users, held out to score every trial; 0.1 to 0.3 without."),
    ] = None,
    out: Out = None,
    settings: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings and price; charge nothing, and look at no value.")
    ] = False,
    as_json: Json = False,
    population: Population = None,
) -> None:
    """Train with several settings and release the best by a private score: one price, stated before it begins."""
    names = None if algorithms is None else [each.strip() for each in algorithms.split(",") if each.strip()]
    asked: dict[str, Any] = {"vary": common.sweep(vary or ()), "algorithms": names, "holdout": holdout}
    tried = common.keyed("--trials", trials, {"mean": common.number, "most": common.whole, "padded": common.whole})
    asked |= {"n_trials": tried.get("mean"), "max_trials": tried.get("most"), "padded": "padded" in tried}
    asked |= {"epsilon": epsilon, "delta": delta, "out": out, "settings": settings or ()}
    asked |= {"population": population, **described(user, label, numeric, categorical)}
    if dry_run:
        showing.show_search(quoron.tune(source, dry_run=True, **asked), as_json=as_json)
        return
    with interruptible(), doubts():
        tuned = quoron.tune(source, **asked)
    showing.show(tuned, as_json=as_json)


def compare(
    source: Source = "quickstart",
    user: User = None,
    label: Label = None,
    numeric: Numeric = None,
    categorical: Categorical = None,
    epsilon: Epsilon = None,
    algorithms: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Which, auto among them; all that guarantee privacy without."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="KEY=[V,V]", help="Any key with values to try, such as privacy.epsilon=[1, 4]."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each, with seeds from run.seed on; intervals need two or more.")
    ] = 5,
    engine: InlineOrRay = "inline",
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison; what is complete in it stays.")] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Simulate algorithms and settings side by side: excess risk with intervals, rounds, gradients, bytes."""
    names = None if algorithms is None else [each.strip() for each in algorithms.split(",") if each.strip()]
    asked: dict[str, Any] = {"algorithms": names, "vary": common.sweep(vary or ()), "seeds": seeds}
    asked |= {"epsilon": epsilon, "out": out, "settings": settings or (), "engine": engine}
    asked |= described(user, label, numeric, categorical)
    with interruptible():
        comparison = quoron.compare(source, progress=shows_progress(as_json=as_json), **asked)
    showing.show(comparison, as_json=as_json)


LISTS = ("presets", "algorithms")


def show(
    thing: Annotated[
        str,
        typer.Argument(
            metavar="RUN|presets|algorithms", help="A folder of runs/, or a list.", autocompletion=run_folders
        ),
    ],
    details: Annotated[
        bool, typer.Option("--details", help="Of a run: every number, the theorem, all coefficients.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a complete run or comparison; or list the presets, or the algorithms.

    An algorithm is theirs (the published steps; sizes, averages and noise are those of the plan), repaired (a published
    step is changed because a proof needs it) or ours. No paper prints the steps of ours; those that are named come
    closest.
    """
    if thing == "presets":
        showing.show_presets(as_json=as_json)
    elif thing == "algorithms":
        showing.show_algorithms(as_json=as_json)
    elif Path(thing).is_dir():
        from quoron.api import resuming

        showing.show_stored(resuming.stored(thing), Path(thing), as_json=as_json, details=details)
    else:
        close = nearest(thing, [*LISTS, *run_folders("")], "Runs are listed under runs/.")
        raise ConfigError(f"Expected the folder of a run, presets or algorithms, got {thing!r}. {close}")

"""Commands of one's own table, and of simulations: from a plan to a model, and what is asked of either."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import quoron
from quoron.cli.common import (
    RARE,
    Csv,
    Json,
    Settings,
    dialect,
    err,
    keyed,
    number,
    showing,
    shows_progress,
    whole,
)
from quoron.data.columns import TYPED, read
from quoron.presets import presets
from quoron.toml_text import assignment
from quoron_client.data.formats import is_folder, is_table
from quoron_privacy.errors import ConfigError, nearest

LISTS = ("presets", "algorithms")


def sources(typed: str) -> list[tuple[str, str]]:
    """Presets and files that complete what is typed, each with what it shows."""
    ready = [(preset.name, preset.summary) for preset in presets() if preset.name.startswith(typed)]
    return ready + [(path, "") for path in files(typed)]


def files(typed: str) -> list[str]:
    """Tables and configurations that complete what is typed, and folders that may hold some."""
    folder = Path(typed) if typed.endswith("/") else Path(typed).parent
    entries = folder.iterdir() if folder.is_dir() else ()
    named = [path for path in entries if path.is_dir() or path.suffix == ".toml" or is_table(path)]
    known = [f"{path}/" if path.is_dir() else str(path) for path in named]
    return sorted(name for name in known if name.startswith(typed) and not Path(name).name.startswith("."))


def run_folders(typed: str) -> list[str]:
    """Folders below runs/ that complete what is typed."""
    folders = (path.parent for name in ("config.toml", "comparison.json") for path in Path().glob(f"runs/*/{name}"))
    return sorted(str(folder) for folder in folders if str(folder).startswith(typed))


Source = Annotated[
    str,
    typer.Argument(
        metavar="[PRESET|CONFIG.TOML|TABLE]",
        help="A preset's name, a TOML file, or a table with what its columns are.",
        autocompletion=sources,
    ),
]
Arguments = dict[str, Any]  # arguments of `quoron.train`, `simulate` and the like
DESCRIBED: dict[str, Any] = {  # options that say what a table's columns are
    "user": Annotated[str | None, typer.Option(metavar="COLUMN", help="Column that says whose item a row is; needed.")],
    "label": Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column to predict, or a comparison such as 'delay > 15'; needed."),
    ],
    "numeric": Annotated[
        list[str] | None,
        typer.Option(metavar=TYPED["numeric"][0], help="Public range of each column of numbers."),
    ],
    "categorical": Annotated[
        list[str] | None,
        typer.Option(metavar=TYPED["categorical"][0], help="Public values of a column of words; once for each column."),
    ],
}
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=run_folders)]
OwnTable = Annotated[
    str,
    typer.Argument(
        metavar="TABLE|CONFIG.TOML",
        help="A table with one item a row, and what its columns are; or a TOML file that says it, or a preset.",
        autocompletion=sources,
    ),
]
Listed = list[str] | None
Table = Annotated[str, typer.Argument(metavar="TABLE", help="A table with one item a row: a file, a folder or a URL.")]
UserColumn = Annotated[str, typer.Option(metavar="COLUMN", help="Column that says whose item a row is.")]
Population = Annotated[
    str | None, typer.Option(metavar="NAME", help="Whose privacy budget is charged.", rich_help_panel=RARE)
]
SHARED: dict[str, Any] = {  # options that several commands have
    "epsilon": Annotated[
        float | None, typer.Option(help="ε; short for privacy.epsilon. Required where noise is secret.")
    ],
    "delta": Annotated[float | None, typer.Option(help="δ; short for privacy.delta. 1e-06 without.")],
    "algorithm": Annotated[
        str | None, typer.Option(metavar="NAME", help="Of `quoron show algorithms`. Without, a rule chooses.")
    ],
    "algorithms": Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Which, auto among them; else the configured one, or all to compare."),
    ],
    "holdout": Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Of users, held out to measure the model, or all trials, for the same ε."),
    ],
    "seed": Annotated[int | None, typer.Option(help="Seed of a simulation; short for run.seed.")],
    "out": Annotated[Path | None, typer.Option(help="Run folder; short for run.out.")],
    "settings": Settings,
    "vary": Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=[V,V]", help="Any key with values to try, such as loss.ridge=[0, 0.01]."),
    ],
    "population": Population,
}
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what it would be and cost; charge nothing, and look at no value.")
]
ZeroOut = Annotated[int | None, typer.Option(help="Hide who is there at all: so many users at most.")]
AnyEngine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME[:KEY=VALUE,...]",
        help="inline, ray, flower or service, as in service:clients=20; docs/config-reference.md.",
    ),
]
Command = Callable[..., None]
InlineOrRay = Annotated[
    str,
    typer.Option(
        "--engine", metavar="inline|ray[:KEY=VALUE,...]", help="As in inline:workers=4; docs/config-reference.md."
    ),
]


def table_options(*names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options `DESCRIBED`, and these of `SHARED`, behind a command's source.

    The command gets what they say as its first argument.
    """

    def with_options(command: Command) -> Command:
        _, source, *others = signature(command).parameters.values()
        kinds = DESCRIBED | {name: SHARED[name] for name in names}
        options = [Parameter(name, source.kind, default=None, annotation=kind) for name, kind in kinds.items()]
        parameters = [source, *options, *others]

        @wraps(command)
        def with_arguments(**given: Any) -> None:
            values = {name: given.pop(name) for name in kinds}
            if "vary" in values:
                values["vary"] = sweep(values["vary"] or ())
            if values.get("algorithms") is not None:
                values["algorithms"] = _listed(values["algorithms"])
            columns = {name: read(name, texts) for name in TYPED if (texts := values.pop(name))}
            command(arguments=values | {"columns": columns or None, "settings": values["settings"] or ()}, **given)

        with_arguments.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        vars(with_arguments)["__signature__"] = signature(command).replace(parameters=parameters)
        return with_arguments

    return with_options


def _listed(text: str) -> list[str]:
    """Return names that commas part."""
    return [name.strip() for name in text.split(",") if name.strip()]


def opened(table: str, csv: list[str] | None) -> Any:
    """A table whose text is written as `csv` says; nothing of it is read yet."""
    from quoron_client.data import tables

    return tables.opened(table, dialect(csv))


def sweep(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Keys and values of `key=[value, value]` texts; ConfigError for a text that is no setting, and for a key again.

    >>> sweep(["privacy.epsilon=[0.5, 1]"])
    {'privacy.epsilon': [0.5, 1]}
    """
    values: dict[str, list[Any]] = {}
    for text in texts:
        key, read = text.partition("=")[0].strip(), cast(Any, assignment(text))
        for part in key.split("."):
            read = read[part.strip().strip('"')]
        if key in values:
            raise ConfigError(f"Expected each key once, got {key} again. Give all its values in one list.")
        values[key] = read
    return values


@contextmanager
def shown_warnings() -> Iterator[None]:
    """Show what quoron warns of, such as a plan that is no better than not training, as lines on standard error."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)

        def show(message: Warning | str, *_: object, **__: object) -> None:
            err().print(f"Warning: {message}", soft_wrap=True, highlight=False, markup=False, style="yellow")

        warnings.showwarning = show
        yield


@table_options("epsilon", "delta", "algorithm", "holdout", "out", "settings", "population")
def train(
    arguments: Arguments,
    source: OwnTable,
    dry_run: DryRun = False,
    as_json: Json = False,
    engine: InlineOrRay = "inline",
) -> None:
    """Train for real on a table that you hold: secret noise, every user, a model that may be shown to anybody."""
    arguments["engine"] = engine
    if dry_run:
        showing.show(quoron.train(source, dry_run=True, **arguments), as_json=as_json, dry=True)
        return
    with shown_warnings():
        trained = quoron.train(source, progress=shows_progress(as_json=as_json), **arguments)
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
    from quoron.model import one_for_all, predictions, unread, write_predictions
    from quoron_client.data import tables

    trained = quoron.load(model)
    decided: Any = threshold if threshold in (None, "share") else number("--threshold, other than share,", threshold)
    rows = tables.read(opened(table, csv), trained.feature_names_in_)
    predicted = predictions(trained, rows, scores=scores, threshold=decided)
    write_predictions(predicted, out)
    typer.echo(trained.stated(), err=True)
    if trained.evaluation is not None:
        first, users = trained.evaluation.figures[0], trained.evaluation.users
        figure = f"{first.name} per user of {users:,} held-out users, with 95 %: {first.text()}"
        typer.echo(f"As stated by its author, too: {figure}", err=True)
    for remark in unread(trained, rows):
        typer.echo(remark, err=True)
    if (warning := one_for_all(trained, predicted, decided)) is not None:
        typer.echo(warning, err=True)


def example(
    name: Annotated[str, typer.Argument(metavar="PRESET", help="A preset over a shipped table.")],
    out: Annotated[Path, typer.Option("--out", help="Folder where the files go.")] = Path(),
) -> None:
    """Write a shipped table as NAME.csv and its description as NAME.toml, to try things on and to start from."""
    from quoron.simulation.sources import write_example

    for path in write_example(name, out):
        print(path)


@table_options("epsilon", "delta", "algorithms", "holdout", "out", "settings", "vary", "population")
def tune(
    arguments: Arguments,
    source: OwnTable,
    trials: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="mean=N, by default twice the number of settings; most=N, by default five times the mean, three times "
            "if padded; padded=1: always carry out `most` trials, so that the duration hides their number.",
            rich_help_panel=RARE,
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Train with several settings and release the best by a private score: one price, stated before it begins."""
    tried = keyed("--trials", trials, {"mean": number, "most": whole, "padded": whole})
    arguments |= {"n_trials": tried.get("mean"), "max_trials": tried.get("most"), "padded": "padded" in tried}
    if dry_run:
        showing.show(quoron.tune(source, dry_run=True, **arguments), as_json=as_json, dry=True)
        return
    with shown_warnings():
        tuned = quoron.tune(source, **arguments)
    showing.show(tuned, as_json=as_json)


@table_options("epsilon", "algorithms", "settings", "vary")
def compare(
    arguments: Arguments,
    source: Source = "quickstart",
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each, with seeds from run.seed on; intervals need two or more.")
    ] = 5,
    engine: Annotated[
        str, typer.Option("--engine", metavar="inline[:workers=N]", help="How many runs at once.")
    ] = "inline",
    out: Annotated[Path | None, typer.Option(help="Folder of the comparison; what is complete in it stays.")] = None,
    as_json: Json = False,
) -> None:
    """Simulate algorithms and settings side by side: excess risk with intervals, rounds, gradients, bytes."""
    arguments |= {"seeds": seeds, "out": out, "engine": engine}
    comparison = quoron.compare(source, progress=shows_progress(as_json=as_json), **arguments)
    showing.show(comparison, as_json=as_json)


@table_options("epsilon", "algorithm", "seed", "out", "settings")
def simulate(
    arguments: Arguments,
    source: Source = "quickstart",
    as_json: Json = False,
    engine: AnyEngine = "inline",
) -> None:
    """Train privately over a simulated population, and show what it reached and what it cost."""
    result = quoron.simulate(source, progress=shows_progress(as_json=as_json), engine=engine, **arguments)
    showing.show(result, as_json=as_json)


def resume(run: Run, as_json: Json = False, engine: AnyEngine = "inline") -> None:
    """Continue an interrupted run or comparison; a simulation to identical bits on any engine, whichever began it."""
    result = quoron.resume(run, progress=shows_progress(as_json=as_json), engine=engine)
    showing.show(result, as_json=as_json)


@table_options("epsilon", "algorithm", "settings")
def plan(
    arguments: Arguments,
    source: Source = "quickstart",
    risk: Annotated[
        str | None,
        typer.Option("--for-risk", metavar="RISK|SHARE%", help="Say how many users, or which ε, would do for it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a run would promise and cost, and how many rounds it needs, before any data is touched.

    A round is what papers count as a batch gradient step (docs/rounds.md).
    """
    showing.show(quoron.plan(source, **arguments, risk=risk), as_json=as_json)


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
        from quoron.api import simulating

        showing.show_stored(simulating.stored(thing), Path(thing), as_json=as_json, details=details)
    else:
        close = nearest(thing, [*LISTS, *run_folders("")], "Runs are listed under runs/.")
        raise ConfigError(f"Expected the folder of a run, presets or algorithms, got {thing!r}. {close}")


def bounds(
    table: Table,
    user: UserColumn,
    epsilon: Annotated[float, typer.Option(help="What all of it costs together.")],
    delta: Annotated[float, typer.Option(help="δ of all of it together.")] = 1e-6,
    items: Annotated[bool, typer.Option(help="Items per user.")] = False,
    numeric: Annotated[
        Listed, typer.Option(metavar="COLUMN,...", help="Columns of which to tell the range; x*, x[0:9].")
    ] = None,
    dates: Annotated[
        Listed, typer.Option(metavar="COLUMN,...", help="Columns of dates of which to tell the years.")
    ] = None,
    categorical: Annotated[
        Listed,
        typer.Option(metavar="COLUMN,...", help="Columns of which to tell the categories, or classes."),
    ] = None,
    population: Population = None,
    csv: Csv = None,
) -> None:
    """Estimate privately the bounds that a configuration has to declare of a table, as TOML.

    All of it is charged to the population's privacy budget before any value is read, as training is. Asking again
    costs again.
    """
    arguments: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "items": items}
    arguments |= {"numeric": _names(numeric), "dates": _names(dates), "categorical": _names(categorical)}
    estimates = quoron.find_bounds(opened(table, csv), user=user, **arguments, population=population)
    typer.echo(estimates.toml())


def _names(given: Listed) -> list[str]:
    return [name for text in given or () for name in _listed(text)]


def stats(
    table: Table,
    questions: Annotated[
        list[str],
        typer.Argument(
            metavar="QUESTION...",
            help="'count by COLUMN', 'histogram of COLUMN in 10 bins', 'quantiles of COLUMN at 0.1, 0.9', "
            "'median of COLUMN', 'mean of COLUMN'; each with 'by COLUMN' for groups.",
        ),
    ],
    user: UserColumn,
    epsilon: Annotated[float, typer.Option(help="What all of it costs together.")],
    delta: Annotated[float, typer.Option(help="δ of all of it together.")] = 1e-6,
    numeric: Annotated[
        Listed,
        typer.Option(metavar=TYPED["numeric"][0], help="Public ranges; estimated privately without."),
    ] = None,
    categorical: Annotated[
        Listed,
        typer.Option(metavar=TYPED["categorical"][0], help="Public groups; estimated privately without."),
    ] = None,
    items_per_user: Annotated[
        int | None, typer.Option(metavar="K", help="Let items weigh one each, up to K of a user; else users do.")
    ] = None,
    dates: Annotated[
        Listed,
        typer.Option(
            metavar="COLUMN[=DAY:DAY]", help="Columns of dates, with their public range; estimated privately without."
        ),
    ] = None,
    zero_out: ZeroOut = None,
    as_json: Json = False,
    population: Population = None,
    csv: Csv = None,
) -> None:
    """Tell counts, histograms, quantiles and means of a table, each with its standard error and a 95 % interval.

    All questions share one price, which is charged to the population's privacy budget before any value is read. A
    user weighs one, whatever it holds. Asking again costs again.
    """
    arguments: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "zero_out": zero_out}
    arguments |= {name: _said(name, typed) for name, typed in (("numeric", numeric), ("categorical", categorical))}
    arguments |= {"dates": _dates(dates or ()), "items_per_user": items_per_user, "population": population}
    found = quoron.statistics(opened(table, csv), questions, user=user, **arguments)
    showing.show(found, as_json=as_json)


def _dates(typed: Sequence[str]) -> dict[str, tuple[str, ...] | None]:
    """The first and the last day of each column, None where they are to be estimated."""
    parted = [text.partition("=") for text in typed]
    return {name: tuple(ends.split(":")) if ends else None for name, _, ends in parted}


def _said(word: str, typed: Listed) -> dict[str, Any]:
    """What is declared by column; columns of which nothing is said are as if they were left out."""
    return {name: said for name, said in read(word, typed or ()).items() if said}


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model file, or the folder of a run.")],
    table: Annotated[str, typer.Argument(metavar="TABLE", help="Rows with labels: a file, a folder or a URL.")],
    user: UserColumn,
    epsilon: Annotated[float, typer.Option(help="ε, charged beside whatever was charged before.")],
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-6,
    zero_out: ZeroOut = None,
    as_json: Json = False,
    population: Population = None,
    csv: Csv = None,
) -> None:
    """Say how good a model is for the users of a table, with 95 % intervals, private for every user as a whole."""
    rows = table if is_folder(table) else opened(table, csv)
    given: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "zero_out": zero_out, "population": population}
    found = quoron.evaluate(model, rows, user, **given)
    showing.show(found, as_json=as_json)


COMMANDS = (train, predict, evaluate, tune, stats, bounds, example, resume, show, plan, simulate, compare)

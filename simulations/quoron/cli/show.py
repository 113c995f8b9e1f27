"""`quoron show`: a run or a comparison again, the presets, the algorithms."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quoron.cli.common import Json, run_folders, showing
from quoron_privacy.errors import ConfigError, nearest
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron.api import resuming
else:  # when a command is called
    resuming = OnFirstUse("quoron.api.resuming")

LISTS = ("presets", "algorithms")


def _things(typed: str) -> list[str]:
    """Lists and run folders that complete what is typed."""
    return [*(name for name in LISTS if name.startswith(typed)), *run_folders(typed)]


def show(
    thing: Annotated[
        str,
        typer.Argument(metavar="RUN|presets|algorithms", help="A folder of runs/, or a list.", autocompletion=_things),
    ],
    details: Annotated[
        bool, typer.Option("--details", help="Of a run: every number, the theorem, all coefficients.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show a complete run or comparison, and write its report.html again; or list the presets, or the algorithms.

    Of the algorithms each is theirs (the published steps; sizes, averages and noise are those of the plan), repaired (a
    published step is changed because a proof needs it) or ours (no paper prints these steps; those that are named come
    closest).
    """
    if thing == "presets":
        showing.show_presets(as_json=as_json)
    elif thing == "algorithms":
        showing.show_algorithms(as_json=as_json)
    elif Path(thing).is_dir():
        showing.show_stored(resuming.stored(thing), resuming.report(thing), as_json=as_json, details=details)
    else:
        close = nearest(thing, [*LISTS, *run_folders("")], "Runs are listed under runs/.")
        raise ConfigError(f"Expected the folder of a run, presets or algorithms, got {thing!r}. {close}")

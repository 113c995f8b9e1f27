"""The commands of a federation on this machine: more than a simulation, less than containers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quoron.cli.common import Json, Settings, Source, progress, say
from quoron.cli.connection import CLIENTS, CONTROL
from quoron_privacy.errors import RunError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron.federation import launch
    from quoron.simulation import sources
else:  # when a command is called
    sources = OnFirstUse("quoron.simulation.sources")
    launch = OnFirstUse("quoron.federation.launch")

app = typer.Typer(
    help="A coordinator and clients on this machine, over mutual TLS, until they are stopped.", no_args_is_help=True
)
Place = Annotated[Path, typer.Option("--folder", help="Keys, data, database and client states of all of them.")]
HERE = Path("federation")
EXAMPLE = "small-federation"


@app.command()
def start(
    source: Source = "",
    clients: Annotated[
        int | None,
        typer.Option(min=1, help="How many, one user of the source each: 20 unless given. One for each silo."),
    ] = None,
    folder: Place = HERE,
    listen: Annotated[str, typer.Option(help="Where clients connect.")] = CLIENTS,
    control: Annotated[str, typer.Option(help="Where operators connect.")] = CONTROL,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that clients share: as many as memory bears unless given.")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Start a coordinator and clients, which go on when this command ends. Said again, it goes on with what is there.

    Without a source it is the folder's own, and of a new folder the preset small-federation.
    """
    config = sources.resolve(source or EXAMPLE, settings or ())[0] if source or settings else None
    with progress(as_json=as_json) as shown:
        found = launch.start(
            folder,
            config,
            Path.cwd(),
            clients=clients,
            listen=listen,
            control=control,
            processes=workers,
            shown=shown.said,
        )
    say(found, launch.words(found), as_json=as_json)


@app.command()
def status(folder: Place = HERE, as_json: Json = False) -> None:
    """Show where a local federation listens and how many clients are connected; exit code 1 if it does not run."""
    found = launch.status(folder)
    say(found, launch.words(found), as_json=as_json)
    if not found["running"]:
        raise typer.Exit(RunError.exit_code)


@app.command()
def stop(folder: Place = HERE) -> None:
    """Stop a local federation; its folder stays, and starts again as it was."""
    print(f"{folder}: {'stopped' if launch.stop(folder) else 'does not run'}")

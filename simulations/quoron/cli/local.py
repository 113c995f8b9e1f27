"""The commands of a federation on this machine, as it stands between a simulation and containers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoron.cli.common import Json, Quiet, Settings, Source, progress, say
from quoron.cli.connection import CLIENTS, CONTROL
from quoron_privacy.errors import RunError
from quoron_privacy.kernels.on_first_use import OnFirstUse

if TYPE_CHECKING:
    from quoron import sources
    from quoron.local import folder as folders
    from quoron.local import kept, launch, order
else:  # when a command is called
    sources = OnFirstUse("quoron.sources")
    folders = OnFirstUse("quoron.local.folder")
    kept = OnFirstUse("quoron.local.kept")
    launch = OnFirstUse("quoron.local.launch")
    order = OnFirstUse("quoron.local.order")

app = typer.Typer(
    help="A coordinator and clients on this machine, over mutual TLS, until they are stopped.", no_args_is_help=True
)
Place = Annotated[Path, typer.Option("--folder", help="Keys, items, books and records of all of them.")]
HERE = Path("federation")


@app.command()
def start(
    source: Source = "",
    clients: Annotated[
        int | None,
        typer.Option(min=1, help="How many, each with one of the source's users: 20 unless told; of silos one each."),
    ] = None,
    folder: Place = HERE,
    listen: Annotated[str, typer.Option(help="Where clients connect.")] = CLIENTS,
    control: Annotated[str, typer.Option(help="Where operators connect.")] = CONTROL,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that clients share; as many as memory bears unless told."),
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Start a coordinator and clients for real, which go on when this command ends; again, with what is there.

    Without a source it is the folder's own, and of a new folder the preset quickstart.
    """
    config = sources.resolve(source or "quickstart", settings or ())[0] if source or settings else None
    with progress(as_json=as_json, quiet=quiet) as shown:
        found = kept.start(
            folders.Folder(folder),
            config,
            Path.cwd(),
            clients=clients,
            listen=listen,
            control=control,
            processes=workers,
            shown=shown.said,
        )
    _show(found, as_json=as_json)


@app.command()
def status(folder: Place = HERE, as_json: Json = False) -> None:
    """Say where a local federation listens and how many clients are there; exit code 1 if it does not run."""
    found = kept.status(folders.Folder(folder))
    _show(found, as_json=as_json)
    if not found["running"]:
        raise typer.Exit(RunError.exit_code)


@app.command()
def stop(folder: Place = HERE) -> None:
    """Stop a local federation; its folder stays, and starts again as it was."""
    print(f"{folder}: {'stopped' if launch.stop(folders.Folder(folder)) else 'does not run'}")


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        say(found, as_json=True)
    elif not found["running"]:
        print(f"{found['folder']}: does not run")
    else:
        print(
            f"{found['folder']}: {found['here']} of {found['clients']} clients are here, in {found['processes']} "
            f"processes\nclients {found['listen']}, operators {found['control']}\n"
            f"quoron submit {found['folder']}/run.toml --run trial --users {found['users']} "
            f"--coordinator {order.reached(found['control'])} --token-file {found['folder']}/operator/token "
            f"--authority {found['folder']}/operator/authority.pem"
        )

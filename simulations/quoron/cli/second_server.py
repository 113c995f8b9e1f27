"""The commands for the operator of the second of two servers, and the options by which others know of it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoron.cli.common import RARE, keyed, seconds_of, whole
from quoron.cli.connection import METRICS, Certs, Files, Log, Simulations, begin, run
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:
    from quoron_server.service.helping import SecondServerLink

app = typer.Typer(
    help="The second of two servers: it removes the masks from sums of answers that neither server sees.",
    no_args_is_help=True,
)
COORDINATORS = "127.0.0.1:7445"
SecondServerKey = Annotated[
    Path | None,
    typer.Option(
        envvar="QUORON_SECOND_SERVER_KEY",
        help="The second server's public key, from its operator alone.",
        rich_help_panel=RARE,
    ),
]
DatabaseUrl = Annotated[
    str,
    typer.Option("--database", envvar="QUORON_SECOND_SERVER_DATABASE", help="sqlite:///FILE, of this server alone."),
]
RunKeys = Annotated[
    Path, typer.Option("--keys", envvar="QUORON_SECOND_SERVER_KEYS", help="Keys of runs: keep them out of backups.")
]
Signing = Annotated[
    Path, typer.Option(envvar="QUORON_SECOND_SERVER_SIGNING_KEY", help="Its long-lived key, made if missing.")
]
_DATABASE, _KEYS = "sqlite:///second-server.sqlite", Path("second-server-keys")
_SIGNING = Path("second-server-signing.key")
ADDRESS: dict[str, Callable[[str, str], Any]] = {  # settings of a coordinator, and how they are read
    "second_server": lambda _, text: text,
    "second_server_certs": lambda _, text: Path(text),
    "second_server_key": lambda _, text: Path(text),
}
SETTINGS: dict[str, Callable[[str, str], Any]] = {"keep": seconds_of, "threads": whole}
SET = "keep=90d: destroy a run's keys after so long; threads=N. Also QUORON_SECOND_SERVER_KEEP, _THREADS."


def link(settings: dict[str, Any]) -> "SecondServerLink | None":
    """Take out of a coordinator's settings how it reaches the second server of another operator.

    None without one. ConfigError for some of these settings without the others.
    """
    given = {name: settings.pop(name) for name in ADDRESS if name in settings}
    if not given:
        return None
    if len(given) < len(ADDRESS):
        raise ConfigError(
            f"Expected {', '.join(ADDRESS)} together, got {', '.join(given)} alone. The second server's operator gives "
            "them: docs/two-servers.md."
        )
    from quoron_server.service.helping import SecondServerLink

    address, certs, signing = given.values()
    return SecondServerLink(address=address, second_server_key=signing, **Files.of(certs).all())


@app.command()
def serve(
    coordinator: Annotated[
        list[Path], typer.Option(envvar="QUORON_SECOND_SERVER_COORDINATORS", help="A coordinator's certificate.")
    ],
    certs: Certs = None,
    listen: Annotated[
        str, typer.Option(envvar="QUORON_SECOND_SERVER_LISTEN", help="Where coordinators connect.")
    ] = COORDINATORS,
    keys: RunKeys = _KEYS,
    signing_key: Signing = _SIGNING,
    database: DatabaseUrl = _DATABASE,
    allow_simulation: Simulations = False,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET)] = None,
    metrics: Annotated[
        str | None, typer.Option(envvar="QUORON_SECOND_SERVER_METRICS", metavar="[HOST:]PORT", help=METRICS)
    ] = None,
    log: Log = "info",
) -> None:
    """Serve coordinators until SIGTERM or SIGINT. There is no plaintext: callers are known by their certificates."""
    begin(log, serves=True)
    from quoron_client.protocol.identity import fingerprint, load
    from quoron_server.second_server import service

    own = Files.of(certs).all() | {"coordinators": tuple(fingerprint(load(certificate)) for certificate in coordinator)}
    own |= {"listen": listen, "keys": keys, "signing_key": signing_key, "database": database, "metrics": metrics}
    own |= {"allow_simulation": allow_simulation} | keyed("--set", settings, SETTINGS, "QUORON_SECOND_SERVER_")
    run(service.SecondServer(service.SecondServerConfig(**own)))


@app.command()
def key(
    out: Annotated[Path, typer.Argument(metavar="FILE.pem", help="For clients and for the coordinator's operator.")],
    signing_key: Signing = _SIGNING,
) -> None:
    """Write the public key that clients pin, and show its fingerprint, to be compared by telephone or in print."""
    from quoron_server.second_server import keys

    print(f"{out}: {keys.write_public(signing_key, out)}")


@app.command()
def runs(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Which to close.")] = None,
    close: Annotated[
        bool, typer.Option("--close", help="End it for good: its keys are destroyed, and nothing of it is answered.")
    ] = False,
    restored: Annotated[
        bool, typer.Option("--restored", help="Accept a database that was restored from a copy; open runs end.")
    ] = False,
    database: DatabaseUrl = _DATABASE,
    keys: RunKeys = _KEYS,
) -> None:
    """List runs that were consented to: state, plan, and when their keys end. Or end one.

    The second server has to be stopped meanwhile; runs wait for it, and go on. A database that was restored from a
    copy, or lost its count, is refused until --restored accepts it for all that there is.
    """
    from quoron_server.second_server import runs as helped
    from quoron_server.second_server.keys import Keys
    from quoron_server.second_server.runs import RESTORED, HelpedRunStore
    from quoron_server.storage.database import Database

    if (close and restored) or close is (run is None):
        got = [*([] if run is None else [run]), *(["--close"] if close else []), *(["--restored"] if restored else [])]
        raise ConfigError(f"Expected RUN --close, --restored, or neither, got {' '.join(got)}.")
    if close and not keys.is_dir():
        raise ConfigError(f"Expected the folder of the second server's keys, got {keys}, where there is none.")
    with Database(database, create=False, as_it_is=restored) as opened:
        store = HelpedRunStore(opened)
        if restored:
            ended = ", ".join(each.run for each in store.runs() if store.end(each.run, RESTORED)) or "none"
            print(f"Ended: {ended}. Their keys are destroyed when the second server starts.")
        elif run is not None:
            print(helped.close(run, store, Keys(keys)))
        else:
            for each in store.runs():
                print(each.words())

"""The commands of whoever operates the second of two servers, and the options by which others know of it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quoron.cli.common import RARE, keyed, whole
from quoron.cli.connection import METRICS, Certs, Files, Log, announce, begin
from quoron.cli.tokens import seconds_of
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:
    from quoron_server.service.helping import HelperLink

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
Books = Annotated[
    str,
    typer.Option("--database", envvar="QUORON_SECOND_SERVER_DATABASE", help="sqlite:///FILE, of this server alone."),
]
RunKeys = Annotated[
    Path, typer.Option("--keys", envvar="QUORON_SECOND_SERVER_KEYS", help="Keys of runs: keep them out of backups.")
]
Signing = Annotated[
    Path, typer.Option(envvar="QUORON_SECOND_SERVER_SIGNING_KEY", help="Its long-lived key, made if missing.")
]
AllowSimulation = Annotated[
    bool,
    typer.Option("--allow-simulation", help="Accept runs with seeded noise: made-up data only.", rich_help_panel=RARE),
]
_BOOKS, _KEYS = "sqlite:///second-server.sqlite", Path("second-server-keys")
_SIGNING = Path("second-server-signing.key")
ADDRESS: dict[str, Callable[[str, str], Any]] = {  # settings of a coordinator, and how they are read
    "second_server": lambda _, text: text,
    "second_server_certs": lambda _, text: Path(text),
    "second_server_key": lambda _, text: Path(text),
}
SETTINGS: dict[str, Callable[[str, str], Any]] = {"keep": seconds_of, "threads": whole}


def link(settings: dict[str, Any]) -> "HelperLink | None":
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
    from quoron_server.service.helping import HelperLink

    address, certs, signing = given.values()
    return HelperLink(address=address, helper_key=signing, **Files.of(certs).all())


@app.command()
def serve(
    coordinator: Annotated[
        list[Path], typer.Option(envvar="QUORON_SECOND_SERVER_COORDINATORS", help="A coordinator's certificate.")
    ],
    certs: Certs = None,
    listen: Annotated[
        str, typer.Option(envvar="QUORON_SECOND_SERVER_LISTEN", help="Where coordinators connect.")
    ] = COORDINATORS,
    database: Books = _BOOKS,
    keys: RunKeys = _KEYS,
    signing_key: Signing = _SIGNING,
    allow_simulation: AllowSimulation = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="keep=90d: destroy a run's keys after so long; threads=N. Also QUORON_SECOND_SERVER_KEEP, _THREADS.",
        ),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(envvar="QUORON_SECOND_SERVER_METRICS", metavar="[HOST:]PORT", help=METRICS)
    ] = None,
    log: Log = "info",
) -> None:
    """Serve coordinators until SIGTERM or SIGINT. There is no plaintext: callers are known by their certificates."""
    begin(log, serves=True)
    from quoron_server.helper import service

    config = service.HelperConfig(
        **Files.found(certs).all(),
        coordinators=service.keys_of(coordinator),
        listen=listen,
        database=database,
        keys=keys,
        signing_key=signing_key,
        allow_simulation=allow_simulation,
        metrics=metrics,
        **keyed("--set", settings, SETTINGS, "QUORON_SECOND_SERVER_"),
    )

    def ready(running: service.HelperProcess) -> None:
        more = "" if running.metrics_address is None else f", metrics {running.metrics_address}"
        announce(f"listening: coordinators {running.listen}, signs with {running.fingerprint}{more}")

    service.serve(config, ready=ready)


@app.command()
def key(
    out: Annotated[Path, typer.Argument(metavar="FILE.pem", help="For clients and for the coordinator's operator.")],
    signing_key: Signing = _SIGNING,
) -> None:
    """Write the public key that clients pin, and show its fingerprint, to be compared by telephone or in print."""
    from quoron_server.helper import keys

    print(f"{out}: {keys.write_public(signing_key, out)}")


@app.command()
def runs(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Which to close or to continue.")] = None,
    close: Annotated[
        bool, typer.Option("--close", help="End it for good: its keys are destroyed, and nothing of it is answered.")
    ] = False,
    goes_on: Annotated[
        bool, typer.Option("--continue", help="Held: let it go on; what was answered since is released once more.")
    ] = False,
    restored: Annotated[
        bool, typer.Option("--restored", help="While the server is stopped: accept books put back; open runs are held.")
    ] = False,
    database: Books = _BOOKS,
    keys: RunKeys = _KEYS,
) -> None:
    """List runs that were consented to: state, when their keys end, copies, and what several copies promise now.

    Or end one, or let one go on. Books that were put back, or lost their count, are refused until --restored accepts
    them for all that there is.
    """
    from quoron_server.helper import desk

    asked = [word for word, said in (("close", close), ("continue", goes_on), ("restored", restored)) if said]
    if len(asked) > 1 or (run is None) is not (asked in ([], ["restored"])):
        got = " and ".join([*([] if run is None else [run]), *(f"--{word}" for word in asked)])
        raise ConfigError(f"Expected a RUN with --close or --continue, or --restored without, got {got}.")
    if restored:
        held = ", ".join(desk.hold(database)) or "none"
        print(f"Held: {held}. Say of each `quoron second-server runs RUN --close` or --continue.")
    elif said := desk.ask(asked[0] if asked else "runs", run or "", database, keys):
        print(said)

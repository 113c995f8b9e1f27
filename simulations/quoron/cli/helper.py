"""The commands of whoever operates the second of two servers, and the options by which others know of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quoron.cli.connection import LogFormat, LogLevel, announce, begin
from quoron.cli.tokens import seconds_of
from quoron_privacy.errors import ConfigError

if TYPE_CHECKING:
    from quoron_server.service.helping import HelperLink

app = typer.Typer(
    help="The second of two servers: it lifts the masks off sums of answers that neither server sees.",
    no_args_is_help=True,
)
COORDINATORS = "127.0.0.1:7445"
HelperKey = Annotated[
    Path | None,
    typer.Option(
        envvar="QUORON_HELPER_KEY",
        help="The helper's public signing key, PEM: from the helper's operator, never from the coordinator's.",
    ),
]
Books = Annotated[
    str, typer.Option("--database", envvar="QUORON_HELPER_DATABASE", help="sqlite:///FILE, of the helper alone.")
]
RunKeys = Annotated[
    Path, typer.Option("--keys", envvar="QUORON_HELPER_KEYS", help="Folder of runs' keys: keep it out of backups.")
]
Signing = Annotated[
    Path, typer.Option("--signing-key", envvar="QUORON_HELPER_SIGNING_KEY", help="Its long-lived key, made if missing.")
]
_BOOKS, _KEYS, _SIGNING = "sqlite:///helper.sqlite", Path("helper-keys"), Path("helper-signing.key")
Name = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")]


@dataclass(frozen=True, slots=True)
class HelperOptions:
    """How a coordinator reaches the helper of another operator: all of them, or none."""

    helper: Annotated[
        str | None,
        typer.Option(envvar="QUORON_HELPER", metavar="HOST:PORT", help="The second of two servers: where it is."),
    ] = None
    helper_authority: Annotated[
        Path | None,
        typer.Option(envvar="QUORON_HELPER_AUTHORITY", help="Certificate that signs the helper's, of its operator."),
    ] = None
    helper_certificate: Annotated[
        Path | None,
        typer.Option(envvar="QUORON_HELPER_CERTIFICATE", help="What this coordinator shows the helper, PEM."),
    ] = None
    helper_private_key: Annotated[
        Path | None, typer.Option(envvar="QUORON_HELPER_PRIVATE_KEY", help="The private key of that, PEM.")
    ] = None
    helper_key: HelperKey = None

    def link(self) -> "HelperLink | None":
        """None without a helper. ConfigError for some of the options without the others."""
        files = self.helper_authority, self.helper_certificate, self.helper_private_key, self.helper_key
        if self.helper is None and not any(files):
            return None
        authority, certificate, key, signing = files
        if self.helper is None or authority is None or certificate is None or key is None or signing is None:
            raise ConfigError(
                "Expected --helper with --helper-authority, --helper-certificate, --helper-private-key and "
                "--helper-key, got not all of them. The helper's operator gives them: docs/two-servers.md."
            )
        from quoron_server.service.helping import HelperLink

        return HelperLink(
            address=self.helper, authority=authority, certificate=certificate, key=key, helper_key=signing
        )


@app.command()
def serve(
    certificate: Annotated[Path, typer.Option(envvar="QUORON_CERTIFICATE", help="Own certificate, PEM.")],
    key: Annotated[Path, typer.Option(envvar="QUORON_KEY", help="Own private key, PEM.")],
    authority: Annotated[
        Path, typer.Option(envvar="QUORON_AUTHORITY", help="Own authority, which signs coordinators' certificates.")
    ],
    coordinator: Annotated[
        list[Path], typer.Option(envvar="QUORON_HELPER_COORDINATORS", help="Certificate of a coordinator to help.")
    ],
    listen: Annotated[
        str, typer.Option(envvar="QUORON_HELPER_LISTEN", help="Where coordinators connect.")
    ] = COORDINATORS,
    database: Books = _BOOKS,
    keys: RunKeys = _KEYS,
    signing_key: Signing = _SIGNING,
    keep: Annotated[
        str,
        typer.Option(envvar="QUORON_HELPER_KEEP", metavar="TIME", help="Destroy a run's keys after so long, as 30d."),
    ] = "90d",
    threads: Annotated[
        int | None, typer.Option(min=1, envvar="QUORON_HELPER_THREADS", help="That open seals; all cores unless told.")
    ] = None,
    allow_simulation: Annotated[
        bool, typer.Option("--allow-simulation", help="Accept runs with seeded noise: made-up data only.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            envvar="QUORON_HELPER_METRICS",
            metavar="[HOST:]PORT",
            help="Where /metrics and /healthz are, in plain HTTP, of 127.0.0.1 unless a host is given. Off by default.",
        ),
    ] = None,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Help coordinators until SIGTERM or SIGINT. There is no plaintext: whoever calls is known by its certificate."""
    begin(log_format, log_level, serves=True)
    from quoron_server.helper import service

    config = service.HelperConfig(
        certificate=certificate,
        key=key,
        authority=authority,
        coordinators=service.keys_of(coordinator),
        listen=listen,
        database=database,
        keys=keys,
        signing_key=signing_key,
        keep=seconds_of("--keep", keep),
        threads=threads,
        allow_simulation=allow_simulation,
        metrics=metrics,
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
def runs(database: Books = _BOOKS, keys: RunKeys = _KEYS) -> None:
    """List runs that were consented to: state, when their keys end, copies, and what several copies promise now."""
    _ask("runs", "", database, keys)


@app.command()
def close(run: Name, database: Books = _BOOKS, keys: RunKeys = _KEYS) -> None:
    """End a run for good: its keys are destroyed, and nothing of it is answered again."""
    _ask("close", run, database, keys)


@app.command("continue")
def continue_(run: Name, database: Books = _BOOKS, keys: RunKeys = _KEYS) -> None:
    """Let a held run go on from books that were put back: what was answered since is released once more."""
    _ask("continue", run, database, keys)


def _ask(command: str, run: str, database: str, keys: Path) -> None:
    from quoron_server.helper import desk

    if said := desk.ask(command, run, database, keys):
        print(said)


@app.command()
def restore(database: Books = _BOOKS) -> None:
    """Take books that were put back, or lost their count, for all that there is, while the helper is stopped: open runs
    are held."""
    from quoron_server.helper import desk

    held = ", ".join(desk.hold(database)) or "none"
    print(f"Held: {held}. Close each (quoron helper close), or say that it goes on (continue).")

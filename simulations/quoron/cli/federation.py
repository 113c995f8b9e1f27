"""The commands of a federation: coordinator, clients, operators, the second of two servers, and who they say they are.

Every option that the containers of docker-compose.yml need is also an environment variable. Commands import what they
need when they are called.
"""

import json
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import quoron
from quoron.cli.common import (
    RARE,
    Csv,
    Json,
    JsonLines,
    Settings,
    bytes_of,
    dialect,
    give_receipt,
    keyed,
    natural,
    number,
    say,
    seconds_of,
    showing,
    shows_progress,
    whole,
)
from quoron.cli.connection import (
    CERTIFICATE,
    CLIENTS,
    CONTROL,
    KEY,
    METRICS,
    Certs,
    Files,
    Insecure,
    Log,
    Simulations,
    begin,
    connects,
    login,
    reached,
    run,
)
from quoron.cli.tables import Source
from quoron_privacy.errors import ConfigError, RunError, printable
from quoron_privacy.kernels.on_first_use import OnFirstUse

MIN_COHORT = 0.5  # of those asked, where nothing is declared
Name = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run.")]

second = typer.Typer(
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
OF_SECOND: dict[str, Callable[[str, str], Any]] = {"keep": seconds_of, "threads": whole}  # a key of its --set
OF_SECOND_SET = "keep=90d: destroy a run's keys after so long; threads=N. Also QUORON_SECOND_SERVER_KEEP, _THREADS."


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
    from quoron_server.service.second_server_client import SecondServerLink

    address, certs, signing = given.values()
    return SecondServerLink(address=address, second_server_key=signing, **Files.of(certs).all())


SETTINGS: dict[str, Callable[[str, str], Any]] = {  # a key of --set, and how it is read
    "max_message": bytes_of,
    "max_clients": whole,
    "max_users_per_client": whole,
    "waiting": number,
    "away_after": seconds_of,
    **ADDRESS,
}
SET = (
    "max_message=4MiB, max_clients=2000, max_users_per_client=1, waiting=75 (seconds for clients to come back at a "
    "start), away_after=7d (or never: until when unseen users are drawn); second_server=HOST:PORT, "
    "second_server_certs=FOLDER, second_server_key=FILE.pem. Also QUORON_MAX_MESSAGE..."
)


def serve(
    listen: Annotated[str, typer.Option(envvar="QUORON_LISTEN", help="Where clients connect.")] = CLIENTS,
    control: Annotated[str, typer.Option(envvar="QUORON_CONTROL", help="Where operators connect.")] = CONTROL,
    certs: Certs = None,
    token_file: Annotated[
        Path, typer.Option("--tokens", envvar="QUORON_TOKENS", help="File made by `quoron admin tokens`.")
    ] = Path("tokens.json"),
    insecure: Insecure = False,
    database: Annotated[
        str, typer.Option(envvar="QUORON_DATABASE", help="sqlite:///FILE or postgresql://USER@HOST/NAME.")
    ] = "sqlite:///coordinator.sqlite",
    allow_simulation: Simulations = False,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET)] = None,
    metrics: Annotated[str | None, typer.Option(envvar="QUORON_METRICS", metavar="[HOST:]PORT", help=METRICS)] = None,
    log: Log = "info",
) -> None:
    """Coordinate a federation until SIGTERM or SIGINT; what is interrupted goes on at the next start."""
    begin(log, serves=True)
    from quoron_server import service
    from quoron_server.service import certificates

    given = {"waiting": 75.0} | keyed("--set", settings, SETTINGS, "QUORON_")
    files = Files.of(certs, insecure=insecure)
    refused = certificates.Revocations(files.revoked) if files.revoked else None
    transport = service.Transport(files.certificate, files.key, files.authority, insecure, refused)
    own: dict[str, Any] = {"tokens": token_file, "allow_simulation": allow_simulation, "metrics": metrics}
    own |= {"second_server": link(given)}
    config = service.ServeConfig(transport, listen, control, database, **own, **given)
    run(service.Coordinator(config))


Limit = Annotated[
    str, typer.Option(envvar="QUORON_LIMIT", metavar="EPSILON,DELTA", help="What a user may spend over all runs, ever.")
]

OF_A_CLIENT: dict[str, Callable[[str, str], Any]] = {  # a key of --set, and how it is read
    "users": whole,
    "name": lambda _, text: text,
    "seed": natural,
}


def client(
    data: Annotated[Path, typer.Option(envvar="QUORON_DATA", help="This user's items: .csv, .tsv or .parquet.")],
    coordinator: Annotated[
        str, typer.Option(envvar="QUORON_COORDINATOR", metavar="HOST:PORT", help="Where the coordinator is.")
    ] = CLIENTS,
    certs: Certs = None,
    state: Annotated[
        Path, typer.Option(envvar="QUORON_STATE", help="Client state: a durable record of its answers. Keep it.")
    ] = Path("quoron-state.sqlite"),
    new_state: Annotated[
        bool,
        typer.Option(
            "--new-state",
            help="Once: accept an older or empty state; what others know counts as spent.",
            rich_help_panel=RARE,
        ),
    ] = False,
    accept_other_database: Annotated[
        bool,
        typer.Option(
            "--accept-other-database",
            help="Once: accept a coordinator's older or other database.",
            rich_help_panel=RARE,
        ),
    ] = False,
    limit: Limit = "1,1e-5",
    accept: Annotated[
        list[str] | None,
        typer.Option(
            help="A trust model to take part in, once for each, and public-participation for runs that tell who "
            "answers. Replaces the default, central-broadcast and local; two-servers needs --second-server-key."
        ),
    ] = None,
    second_server_key: SecondServerKey = None,
    insecure: Insecure = False,
    user: Annotated[
        str | None, typer.Option(metavar="COLUMN", envvar="QUORON_USER", help="Of a silo: whose each row is.")
    ] = None,
    one_user: Annotated[
        bool, typer.Option("--one-user", envvar="QUORON_ONE_USER", help="All rows are one user's, whosever they are.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="users=N, of a silo for ever (default: those in the file); name=WHO, with --insecure; seed=N, for "
            "simulations of made-up data only. Also QUORON_USERS...",
            rich_help_panel=RARE,
        ),
    ] = None,
    csv: Csv = None,
    log: Log = "info",
    check: Annotated[
        bool, typer.Option("--check", help="Only check whether the data can be one user's; nothing is sent.")
    ] = False,
) -> None:
    """Take part in a federation with one user's data, or a silo's, within the limits of each user."""
    import asyncio

    from quoron_client import federation
    from quoron_client.federation.config import read_limit
    from quoron_client.federation.own_table import check_one_user

    begin(log)
    written, said = dialect(csv), keyed("--set", settings, OF_A_CLIENT, "QUORON_")
    if check:
        if user is not None:
            from quoron_client.federation.own_table import names_in

            print(f"{data}: {len(names_in(data, user, written)):,} users, by column {printable(user)}.")
            return
        check_one_user(data, one_user=one_user, dialect=written)
        print(f"{data}: {'one client, as you say' if one_user else 'the rows of one user, as far as they show'}.")
        return
    epsilon, delta = read_limit(limit)
    own = Files.of(certs, insecure=insecure)
    config = federation.ClientConfig(
        coordinator=coordinator,
        data=data,
        dialect=written,
        record=state,
        new_record=new_state,
        other_database=accept_other_database,
        lifetime_epsilon=epsilon,
        lifetime_delta=delta,
        certificate=own.certificate,
        key=own.key,
        authority=own.authority,
        insecure=insecure,
        client_name=said.get("name"),
        second_server_key=second_server_key,
        accept_trust_models=tuple(accept or ("central-broadcast", "local")),
        simulation_seed=said.get("seed"),
        one_user=one_user,
        user_column=user,
        people=said.get("users"),
    )
    asyncio.run(_until_signalled(federation.run_client, config))


def leave(
    state: Annotated[Path, typer.Option(envvar="QUORON_STATE", help="The state of this user's client.")],
    certs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="This user's certificate and key, which are erased too.")
    ] = None,
    receipt: Annotated[Path | None, typer.Option(help="Write the receipt there too, as JSON.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it, irrevocably. Without, only list what would be erased.")
    ] = False,
) -> None:
    """Leave a federation: the client never answers again, and what it kept is erased, except that it has left."""
    from quoron_client.federation import account

    own = {} if certs is None else {"certificate": certs / CERTIFICATE, "key": certs / KEY}
    if not yes:
        print("This would erase, irrevocably (--yes does it):")
        for what in account.would_erase(state, **own):
            print(f"  {what}")
        return
    done = account.leave(state, **own)
    give_receipt(done.as_json(), done.words(), receipt)


async def _until_signalled(work: Callable[..., Awaitable[None]], config: Any) -> None:
    """`work` until SIGTERM or SIGINT."""
    import asyncio

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for signalled in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signalled, stop.set)
    await work(config, stop=stop)


@connects
def submit(
    config: Annotated[str, typer.Argument(metavar="CONFIG.toml", help='With population.kind = "table".')],
    run: Annotated[str, typer.Option(help="A name for the run.")],
    users: Annotated[int, typer.Option(min=1, help="How many users take part: drawn once so many are active.")],
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For a round, also when all have answered.")] = 60.0,
    early_ends: Annotated[
        bool,
        typer.Option(
            "--early-ends", help="End a round once all have answered, which tells who was absent.", rich_help_panel=RARE
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key: train.population=NAME says whose budget is charged."),
    ] = None,
    app: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For Flower: write an app for `flwr run`, and submit nothing.")
    ] = None,
    waiting: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="For a minimum cohort of clients to agree; Flower: for all users to come.",
            rich_help_panel=RARE,
        ),
    ] = 600.0,
    dry: Annotated[bool, typer.Option("--dry-run", help="Show the plan beside others; submit nothing.")] = False,
) -> None:
    """Submit a run to a coordinator. The same run again changes nothing.

    Half of those asked have to answer in every round, or the run ends: `privacy.min_cohort`, a share or "none", by
    --set.
    """
    from quoron.federation.submission import dry_run, promised, specify, write_app
    from quoron.planning.plans import useless, warnings
    from quoron.simulation import sources

    given = tuple(settings or ())
    resolved, _ = sources.resolve(config, given, secret=True)
    if resolved.privacy.min_cohort.share is None:
        resolved, _ = sources.resolve(config, (*given, f"privacy.min_cohort.share={MIN_COHORT}"), secret=True)
    if dry:
        looked = dry_run(resolved, users, whole=app is not None)
        _warn(useless(looked.plan))
        showing.show(looked, as_json=False)
        return
    wanted, plan = specify(
        resolved,
        run=run,
        users=users,
        seconds=timeout,
        early_ends=early_ends,
        waiting=None if app is not None else waiting,
        whole=app is not None,
    )
    for said in warnings(plan, wanted.silos):
        _warn(said)
    promise = f"{run}: {promised(plan)}"
    if app is not None:
        write_app(app, wanted, waiting=waiting)
        print(f"{promise}\n{app}: start it with `flwr run {app}`; the same again goes on with it.")
        return
    with reached().control() as control:
        control.submit(wanted.as_text())
        there = control.call("standing", group=wanted.group)
    print(promise)
    if there["active"] < users:
        print(
            f"It waits: {there['active']} of {users} users are active in population {wanted.group} "
            f"({there['away']} away, {there['retired']} retired). Nothing is charged before it begins."
        )


def _warn(said: str | None) -> None:
    if said is not None:
        print(said, file=sys.stderr, flush=True)


@connects
def runs(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="This one alone.")] = None,
    as_json: JsonLines = False,
) -> None:
    """List the runs of a coordinator."""
    from quoron_client.protocol.wire import GONE_AFTER

    with reached().control() as control:
        listed = [row for row in control.runs() if run in (None, row["run"])]
        if run is not None and not listed:
            raise ConfigError(f"Expected the name of a run of this coordinator, got {run!r}. `quoron runs` lists them.")
        for row in listed:
            line = "\t".join(str(row[key]) for key in ("run", "state", "created", "error") if row[key])
            if "connected" in row:
                line += f"\t{row['connected']} of {row['members']} members connected in the last {GONE_AFTER} s"
            say(row, printable(line), as_json=as_json)


@connects
def watch(
    run: Name,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="For a coordinator to be there.")] = 300.0,
    as_json: JsonLines = False,
) -> None:
    """Follow a run, and what it awaits, to its end, through restarts of the coordinator.

    Exit code 0 if it ends with a model, 1 if it fails or is cancelled, 3 if it ends below its minimum cohort. Exit code
    4 if it is paused, and 5 if no coordinator answers for longer than --timeout, at the start or later.
    """
    from quoron.federation import control as plane

    ended: dict[str, Any] = {}
    with reached().control() as control:
        options: dict[str, Any] = {"report": lambda why: print(why, file=sys.stderr, flush=True)}
        for event in plane.followed(partial(control.watch, run), timeout=timeout, **options):
            say(event, plane.words(event), as_json=as_json)
            ended = event
    plane.check_end(run, ended)


@connects
def cancel(run: Name) -> None:
    """End a run without a model, in a database too that no process has open. What it has spent stays spent."""
    with reached(store=True).store() as store:
        print(f"{run}: {store.call('cancel', run=run)['state']}")


@connects
def fetch(
    run: Name,
    out: Annotated[
        Path | None, typer.Option(help="Folder for plan.json, ledger.json, model.json, model.npz; default: RUN.")
    ] = None,
) -> None:
    """Fetch a complete run's plan, ledger and model: model.json for `quoron predict`, model.npz of bare numbers."""
    from quoron.run_folder import RunFolder

    with reached().control() as control:
        plan, ledger, model = control.call("plan", run=run), control.call("ledger", run=run), control.model(run)
    folder = RunFolder.created(Path(run) if out is None else out)
    folder.write_json("plan.json", plan)
    folder.write_json("ledger.json", ledger)
    folder.write_text("model.json", quoron.Model.fetched(model, plan).as_text())
    folder.write_model(model)
    print(folder.path / "model.json")


def certs(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the authority is, and a folder for each party.")
    ],
    clients: Annotated[int, typer.Option(min=0, help="Certificates client-1 to client-N.")] = 0,
    names: Annotated[list[str] | None, typer.Option("--client", help="A client's certificate by name.")] = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="A name or address to add to the coordinator's certificate.")
    ] = None,
    group: Annotated[str | None, typer.Option(help="Group of these clients; default everyone.")] = None,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="How long certificates are valid.")] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Renew those named, with their keys; the coordinator's for exactly --host.")
    ] = False,
    revoke: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this: revoke a client, which is refused at once.")
    ] = None,
    shown: Annotated[
        bool, typer.Option("--list", help="Only this: every certificate, when it ends, and whether it is revoked.")
    ] = False,
    as_json: JsonLines = False,
) -> None:
    """Make a private authority for trials, and folders for `--certs` of coordinator and clients; keep what is there."""
    from quoron_server.service import certificates

    if shown:
        for certificate in certificates.every(folder):
            print(json.dumps(asdict(certificate)) if as_json else printable(certificate.words()))
        return
    if as_json:
        raise ConfigError("Expected --json with --list, got it alone.")
    if revoke:
        for name in revoke:
            if name == "coordinator":
                raise ConfigError("Expected a client to revoke, got the coordinator: give clients another authority.")
            print(certificates.revoke(folder, name))
        return
    every_client = [f"client-{number}" for number in range(1, clients + 1)] + (names or [])
    for name in every_client:
        certificates.check_name(name)
        if name == "coordinator" and not renew:
            raise ConfigError("Expected another name for a client than 'coordinator', which is the coordinator's.")
    certificates.make_authority(folder, days=max(days, 3650))
    for name in dict.fromkeys(("coordinator", *every_client)):
        coordinator, exists = name == "coordinator", (folder / name / certificates.CERTIFICATE).exists()
        wanted = name in every_client or hosts is not None  # the coordinator's certificate is made in passing
        made: Path | None = None
        if not exists or (renew and wanted):
            made = certificates.issue(
                folder,
                name,
                coordinator=coordinator,
                hosts=tuple(hosts or (() if exists else ("localhost", "127.0.0.1"))) if coordinator else (),
                unit=None if coordinator else group,
                days=days,
                renew=renew,
            )
        elif coordinator and hosts:
            made = certificates.add_hosts(folder, name, hosts, days=days)
        if made is not None:
            print(made)


COMMANDS = (login, serve, client, leave, submit, runs, watch, cancel, fetch)
if TYPE_CHECKING:
    from quoron.federation import launch
    from quoron.reports import terminal
    from quoron.simulation import sources
    from quoron_server.service.second_server_client import SecondServerLink
else:  # when a command is called
    terminal = OnFirstUse("quoron.reports.terminal")
    sources = OnFirstUse("quoron.simulation.sources")
    launch = OnFirstUse("quoron.federation.launch")

local = typer.Typer(
    help="A coordinator and clients on this machine, over mutual TLS, until they are stopped.", no_args_is_help=True
)
Place = Annotated[Path, typer.Option("--folder", help="Keys, data, database and client states of all of them.")]
HERE = Path("federation")
EXAMPLE = "small-federation"


@local.command()
def start(
    source: Source = "",
    clients: Annotated[
        int | None,
        typer.Option(min=1, help="How many, one user of the source each: 20 unless given. One for each silo."),
    ] = None,
    folder: Place = HERE,
    listen: Annotated[str, typer.Option(help="Where clients connect.")] = CLIENTS,
    control: Annotated[str, typer.Option(help="Where operators connect.")] = CONTROL,
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Start a coordinator and clients, which go on when this command ends. Said again, it goes on with what is there.

    Without a source it is the folder's own, and of a new folder the preset small-federation.
    """
    config = sources.resolve(source or EXAMPLE, settings or ())[0] if source or settings else None
    with terminal.display(shows_progress(as_json=as_json)) as shown:
        report = launch.start(
            folder,
            config,
            Path.cwd(),
            clients=clients,
            listen=listen,
            control=control,
            report=shown.waiting,
        )
    say(report, launch.words(report), as_json=as_json)


@local.command()
def status(folder: Place = HERE, as_json: Json = False) -> None:
    """Show where a local federation listens and how many clients are connected; exit code 1 if it does not run."""
    report = launch.status(folder)
    say(report, launch.words(report), as_json=as_json)
    if not report["running"]:
        raise typer.Exit(RunError.exit_code)


@local.command()
def stop(folder: Place = HERE) -> None:
    """Stop a local federation; its folder stays, and starts again as it was."""
    print(f"{folder}: {'stopped' if launch.stop(folder) else 'does not run'}")


@second.command("serve")
def serve_second(
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
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=OF_SECOND_SET)] = None,
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
    own |= {"allow_simulation": allow_simulation} | keyed("--set", settings, OF_SECOND, "QUORON_SECOND_SERVER_")
    run(service.SecondServer(service.SecondServerConfig(**own)))


@second.command()
def key(
    out: Annotated[Path, typer.Argument(metavar="FILE.pem", help="For clients and for the coordinator's operator.")],
    signing_key: Signing = _SIGNING,
) -> None:
    """Write the public key that clients pin, and show its fingerprint, to be compared by telephone or in print."""
    from quoron_server.second_server import keys

    print(f"{out}: {keys.write_public(signing_key, out)}")


@second.command("runs")
def runs_of_second(
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
            ended = ", ".join(entry.run for entry in store.runs() if store.end(entry.run, RESTORED)) or "none"
            print(f"Ended: {ended}. Their keys are destroyed when the second server starts.")
        elif run is not None:
            print(helped.close(run, store, Keys(keys)))
        else:
            for entry in store.runs():
                print(entry.words())

"""A federation on this machine that is there to be operated, until it is stopped.

start(Path("federation"), config, base, clients=20)
print(words(status(Path("federation"))))
stop(Path("federation"))
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quoron.config import Config
from quoron.local import launch
from quoron.local.folder import MARK, ORDER, RUNNING, Folder
from quoron.local.launch import Local, Shown
from quoron.local.order import Order, host_of, processes_for, reached
from quoron.local.people import give_tables, silos_in
from quoron_privacy.errors import ConfigError

FEW = 20  # clients, where nobody says how many


def start(
    path: Path,
    config: Config | None,
    base: Path,
    *,
    clients: int | None = None,
    listen: str,
    control: str,
    processes: int | None = None,
    shown: Shown = lambda _: None,
) -> dict[str, Any]:
    """Start a coordinator and its clients, which go on; what `status` says then.

    A folder that is there goes on with its keys, items, books and records, with more clients if so many are wanted: of
    the configuration that it was started with, which need not be given again. Of one with population.silos there is a
    client for each. Raises ConfigError for another one, for a folder that runs, where there are fewer users than
    clients, and for other clients than silos.
    """
    folder = Folder(path)
    found = silos_in(folder, config, base)
    user, silos = (None, None) if found is None else found
    count = clients or FEW if silos is None else len(silos.sizes)
    if clients not in (None, count):
        raise ConfigError(f"Expected a client for each of {count:,} silos, got --clients {clients}. Leave it out.")
    order = Order(
        clients=count,
        processes=min(count, processes or processes_for(count)),
        listen=listen,
        control=control,
        user=user,
        people=() if silos is None else silos.sizes,
    )
    with Local(folder, order) as local:  # first: it alone has the folder
        (folder.path / MARK).unlink(missing_ok=True)  # whatever it was, it is kept from now on
        folder.make(count)
        folder.reached_at(host_of(listen), host_of(control))
        give_tables(folder, config, base, count, silos)
        local.begin()
        local.ready(shown)
        local.keep()
    return status(path)


def status(path: Path) -> dict[str, Any]:
    """Where it listens, how many clients and users there are, and how many clients in conversation: 0 at first."""
    folder = Folder(path)
    if not folder.runs:
        return {"running": False, "folder": str(folder.path)}
    found = folder.read(ORDER) | {"here": 0, "processes": ()} | folder.read(RUNNING)
    told = {name: found.get(name) for name in ("listen", "control", "clients", "here", "keeper")}
    told["users"] = sum(found["people"]) or found["clients"]
    return {"running": True, "folder": str(folder.path)} | told | {"processes": len(found["processes"])}


def words(found: Mapping[str, Any]) -> str:
    """What `status` found, for people, and how a run is submitted to it."""
    if not found["running"]:
        return f"{found['folder']}: does not run"
    return (
        f"{found['folder']}: {found['here']} of {found['clients']} clients are here, in {found['processes']} "
        f"processes\nclients {found['listen']}, operators {found['control']}\n"
        f"quoron login {reached(found['control'])} --token-file {found['folder']}/operator/token "
        f"--authority {found['folder']}/operator/authority.pem\n"
        f"quoron submit {found['folder']}/run.toml --run trial --users {found['users']} --timeout 2"
    )


def stop(path: Path) -> bool:
    """End it; whether there was one. RunError if it does not end."""
    return launch.stop(Folder(path))

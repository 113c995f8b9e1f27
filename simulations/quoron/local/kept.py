"""A federation on this machine that is there to be operated, until it is stopped.

start(Folder(Path("federation")), config, base, clients=20)
status(Folder(Path("federation")))
stop(Folder(Path("federation")))
"""

from pathlib import Path
from typing import Any

from quoron.config import Config
from quoron.local.folder import MARK, ORDER, RUNNING, Folder
from quoron.local.launch import Local, Shown
from quoron.local.order import Order, host_of, processes_for
from quoron.local.people import give_tables


def start(
    folder: Folder,
    config: Config | None,
    base: Path,
    *,
    clients: int,
    listen: str,
    control: str,
    processes: int | None = None,
    shown: Shown = lambda _: None,
) -> dict[str, Any]:
    """Start a coordinator and its clients, which go on; what `status` says then.

    A folder that is there goes on with its keys, items, books and records, with more clients if so many are wanted: of
    the configuration that it was started with, which need not be given again. Raises ConfigError for another one, for
    a folder that runs, and where there are fewer users than clients.
    """
    order = Order(
        clients=clients,
        processes=min(clients, processes or processes_for(clients)),
        listen=listen,
        control=control,
    )
    with Local(folder, order) as local:  # first: it alone has the folder
        (folder.path / MARK).unlink(missing_ok=True)  # whatever it was, it is kept from now on
        folder.make(clients)
        folder.reached_at(host_of(listen), host_of(control))
        give_tables(folder, config, base, clients)
        local.begin()
        local.ready(shown)
        local.keep()
    return status(folder)


def status(folder: Folder) -> dict[str, Any]:
    """Where it listens, how many clients there are, and how many of them are in conversation now: 0 while it starts."""
    if not folder.runs:
        return {"running": False, "folder": str(folder.path)}
    found = folder.read(ORDER) | {"here": 0, "processes": ()} | folder.read(RUNNING)
    told = {name: found.get(name) for name in ("listen", "control", "clients", "here", "keeper")}
    return {"running": True, "folder": str(folder.path)} | told | {"processes": len(found["processes"])}

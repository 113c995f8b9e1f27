"""A coordinator, a helper of another operator and clients, each with certificates of its own, for tests over TLS."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from federation import tls
from federation.crowd import SEED, Peer, coordinator, put_clock_forward, specification, until
from federation.tls import channel, transport
from quoron_client.federation import ClientConfig, run_client
from quoron_client.federation.work import Worker
from quoron_client.protocol.identity import fingerprint, load
from quoron_server.second_server.keys import write_public
from quoron_server.second_server.service import SecondServer, SecondServerConfig
from quoron_server.service import Coordinator, certificates
from quoron_server.service.second_server_client import SecondServerLink
from quoron_server.service.sessions import RunSession
from quoron_server.specification import RunSpecification

USERS, SECONDS = 20, 60.0  # by a clock that tests put forward


def wanted(algorithm: str = "one-round-least-squares", **changes: object) -> RunSpecification:
    """A run of two servers, a simulation unless told otherwise."""
    given: dict[str, Any] = {"trust_model": "two-servers", "seconds": SECONDS, "early_ends": False}
    return specification(algorithm, **(given | changes))


def operators(place: Path) -> None:
    """Certificates of the helper's operator: for the helper, and one that the coordinator shows to it."""
    certificates.make_authority(place, days=2)
    certificates.issue(place, "helper", coordinator=True, hosts=("localhost", "127.0.0.1"), days=1)
    certificates.issue(place, "leader", days=1)


def helper_config(place: Path, **changes: object) -> SecondServerConfig:
    given: dict[str, Any] = {
        "certificate": place / "helper/certificate.pem",
        "key": place / "helper/key.pem",
        "authority": place / "authority.pem",
        "coordinators": (fingerprint(load(place / "leader/certificate.pem")),),
        "listen": "127.0.0.1:0",
        "database": f"sqlite:///{place}/helper.sqlite",
        "keys": place / "keys",
        "signing_key": place / "signing.key",
        "allow_simulation": True,
        "threads": 1,
    }
    return SecondServerConfig(**(given | changes))


@contextlib.contextmanager
def helper(place: Path, **changes: object) -> Iterator[SecondServer]:
    """A running helper; what its operator gives to others is in `place`."""
    if not (place / "helper/certificate.pem").exists():
        operators(place)
    with in_a_thread(SecondServer(helper_config(place, **changes))) as running:
        write_public(running.config.signing_key, place / "helper-key.pem")
        yield running


@contextlib.contextmanager
def in_a_thread(server: SecondServer) -> Iterator[SecondServer]:
    """With an event loop, and so a clock, of its own: as another process."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def link(place: Path, running: SecondServer) -> SecondServerLink:
    return SecondServerLink(
        address=running.listen,
        authority=place / "authority.pem",
        certificate=place / "leader/certificate.pem",
        key=place / "leader/key.pem",
        second_server_key=place / "helper-key.pem",
    )


@contextlib.asynccontextmanager
async def helped(
    folder: Path, issued: Path, place: Path, running: SecondServer, **changes: Any
) -> AsyncIterator[Coordinator]:
    """A coordinator whose runs of two servers that helper takes part in."""
    given = {"transport": transport(issued), "second_server": link(place, running)}
    async with coordinator(folder, **(given | changes)) as found:
        yield found


async def enrol(where: str, issued: Path, users: int) -> None:
    """In order: user i of a table is the i-th to enrol."""
    for user in range(users):
        async with channel(where, issued, f"client-{user}") as own:
            assert await Peer(own).enrol() == user


def client_config(where: str, issued: Path, place: Path, folder: Path, user: int, data: Path) -> ClientConfig:
    return tls.client_config(
        where,
        issued,
        f"client-{user}",
        data,
        folder / f"record-{user}.sqlite",
        lifetime_epsilon=100.0,
        lifetime_delta=0.5,
        simulation_seed=SEED,
        accept_trust_models=("two-servers",),
        second_server_key=place / "helper-key.pem",
        one_user=True,
    )


@contextlib.asynccontextmanager
async def clients(
    where: str, issued: Path, place: Path, folder: Path, data: list[Path]
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Real clients, of whom user i has the i-th table."""
    stop = asyncio.Event()
    configs = [client_config(where, issued, place, folder, user, path) for user, path in enumerate(data)]
    tasks = [asyncio.create_task(run_client(each, stop=stop)) for each in configs]
    try:
        yield tasks
    finally:
        stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def hurried(running: Coordinator) -> Iterator[None]:
    """Nobody waits for a time that is public: once all who were asked have computed, it has come."""
    computed: list[int] = []
    reply = Worker.reply

    def counted(worker: Worker, *arguments: Any, **more: Any) -> bytes | None:
        try:
            return reply(worker, *arguments, **more)
        finally:
            computed.append(1)

    async def round_over(session: RunSession, ended: Any, asked: int) -> None:
        """All have computed, the time to send has come, all were heard, the time is over."""
        await until(lambda: session.open is not ended or len(computed) >= asked)
        put_clock_forward(0.55 * SECONDS)
        await until(lambda: session.open is not ended or not ended.left)
        put_clock_forward(max(0.0, ended.closes - asyncio.get_running_loop().time()))
        await until(lambda: session.open is not ended)

    async def hurry() -> None:
        asked = 0
        while True:
            while (session := running.sessions.runs.get("trial")) is None or session.open is None:
                if session is not None and session.due > 0:  # a round is over: the next one opens, or the end is told
                    put_clock_forward(0.5)
                await asyncio.sleep(0.005)
            asked += len(session.open.cohort.rows)
            await round_over(session, session.open, asked)

    with patch.object(Worker, "reply", counted):
        task = asyncio.get_running_loop().create_task(hurry())
        try:
            yield
        finally:
            task.cancel()

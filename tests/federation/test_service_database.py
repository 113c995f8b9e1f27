"""What a coordinator does while its database is away, is another's, or of another version."""

import asyncio
import contextlib
import socket
import sqlite3
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest
import sqlalchemy as sa

from federation.crowd import (
    HANGS,
    Honest,
    Peer,
    carried_out,
    complete,
    coordinator,
    everybody,
    inline_model,
    specification,
    until,
)
from postgres_server import PostgresServer
from quoron.cli import health as cli_health
from quoron.operate import watching
from quoron_privacy.errors import LedgerError, LedgerUnavailable, RunError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.runs import Books
from quoron_server.service import Coordinator, tokens

NAME, USERS = "one-pass-dp-sgd", 20


class Away:
    """A database that is away at its n-th write of a kind, once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, at: int, *, after: bool) -> None:
        original, calls = getattr(owner, name), []

        def failing(*arguments: object, **named: object) -> object:
            calls.append(name)
            if len(calls) == at and not after:
                raise LedgerUnavailable("Cannot use the ledger: connection lost. Try again.")
            result = original(*arguments, **named)
            if len(calls) == at:
                raise LedgerUnavailable("Cannot use the ledger: connection lost. Try again.")
            return result

        monkeypatch.setattr(owner, name, failing)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("name", "at"), [("spend", 3), ("commit", 4), ("finish", 1), ("begin", 1)])
def test_a_run_pauses_while_the_database_is_away_and_goes_on_with_the_same_bits(
    name: str, at: int, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Away(monkeypatch, Ledger, name, at, after=after)

    async def scene() -> tuple[np.ndarray, Honest]:
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            honest = await everybody(running, stack)
            await running.manager.submit(specification(NAME).as_text())
            return await complete(running), honest

    model, honest = carried_out(scene())
    monkeypatch.undo()
    np.testing.assert_array_equal(model, inline_model(specification(NAME), tmp_path))
    assert len({(user, digest) for user, _, _, digest in honest.asked}) == USERS - 2  # 18 of 20 are in a cohort


def test_a_coordinator_whose_database_is_taken_over_ends_and_leaves_the_run_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = "Another process has owned the database."

    def refused(*arguments: object, **named: object) -> None:
        raise LedgerError(taken)

    async def scene() -> None:
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            await everybody(running, stack)
            for owner, name in ((Ledger, "commit"), (Books, "end")):
                monkeypatch.setattr(owner, name, refused)
            await running.manager.submit(specification(NAME).as_text())
            with pytest.raises(LedgerError, match=taken):
                await running.manager.lost
        monkeypatch.undo()
        async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
            await everybody(running, stack)
            np.testing.assert_array_equal(await complete(running), inline_model(specification(NAME), tmp_path))

    carried_out(scene())


def test_a_run_on_postgresql_goes_on_after_its_connections_are_killed(
    postgres_server: PostgresServer, postgres: str, tmp_path: Path
) -> None:
    """Every connection is killed after every round; the run gives the bits of one without."""
    name = sa.make_url(postgres).database
    kill = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{name}'"

    async def scene() -> np.ndarray:
        async with coordinator(tmp_path, database=postgres) as running, contextlib.AsyncExitStack() as stack:
            await everybody(running, stack)
            await running.manager.submit(specification(NAME).as_text())
            async for event in (await running.manager.feed("trial")).watch():
                if event["kind"] == "round":
                    await asyncio.to_thread(postgres_server.sql, kill)
            return await complete(running)

    np.testing.assert_array_equal(carried_out(scene()), inline_model(specification(NAME), tmp_path))


def test_whoever_asks_over_the_network_hears_nothing_of_where_the_database_is_or_what_it_holds(
    tmp_path: Path, our_logs: pytest.LogCaptureFixture
) -> None:
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")

    async def scene() -> list[tuple[grpc.StatusCode, str]]:
        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.control) as channel:
            with running.manager._books.database.writing() as connection:
                connection.execute(sa.text("ALTER TABLE runs RENAME TO elsewhere"))
                connection.execute(sa.text("ALTER TABLE users RENAME TO people"))
            stub, metadata = federation_pb2_grpc.ControlPlaneStub(channel), (("authorization", f"Bearer {token}"),)
            found = []
            for call in (stub.List(pb.ListRequest(), metadata=metadata), enrolled(running.listen)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                found.append((caught.value.code(), caught.value.details()))
            return found

    async def enrolled(where: str) -> None:
        async with grpc.aio.insecure_channel(where) as channel:
            await Peer(channel, "ada").enrol()

    (operator, result), (client, said) = carried_out(scene())
    assert (operator, client) == (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE)
    for words in (result, said):
        assert not any(inside in words for inside in ("sqlite", "runs", "users", str(tmp_path)))
    assert "coordinator.sqlite" in our_logs.text
    assert "no such table: runs" in our_logs.text


def test_a_full_disk_is_told_as_a_pause_until_a_write_succeeds_though_the_books_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `runs`, `watch`, /healthz, health and metrics; the run then goes on by itself, to the same bits."""
    monkeypatch.setattr(sys.modules[Coordinator.__module__], "LOOK", 0.01)
    full = "The disk of the coordinator's ledger is full. Nothing is lost, and it goes on by itself once it can be"

    def no_room(*_: object) -> None:
        raise sa.exc.OperationalError("", None, sqlite3.OperationalError("database or disk is full"))

    async def told(running: Coordinator) -> tuple[bytes, str]:
        where = running.metrics_address
        return await asyncio.to_thread(http, where, "/healthz"), (await running.metrics.text())

    async def scene() -> np.ndarray:
        async with coordinator(tmp_path, metrics="0") as running, contextlib.AsyncExitStack() as stack:
            await running.manager.submit(specification(NAME).as_text())
            with monkeypatch.context() as disk:
                disk.setattr(Database, "_counted", no_room)
                joining = asyncio.create_task(everybody(running, stack))  # an enrolment is the write that fails
                await until(lambda: running.manager.records.away)
                assert [(each["state"], each["error"]) for each in await running.manager.runs()] == [
                    ("paused", f"{full} written.")
                ]
                awaited = await running.manager.awaited("trial")
                assert watching.words(awaited) == f"paused: {full} written."
                health, metrics = await told(running)
                assert health.startswith(b"HTTP/1.1 503")
                assert "\nquoron_database_up 0\n" in metrics
                assert '\nquoron_runs{state="paused"} 1\n' in metrics
                for where in (running.listen, running.control):
                    await becomes("NOT_SERVING", where)
            for where in (running.listen, running.control):
                await becomes("SERVING", where)
            health, metrics = await told(running)
            assert health.startswith(b"HTTP/1.1 200")
            assert "\nquoron_database_up 1\n" in metrics
            await joining
            return await complete(running)

    np.testing.assert_array_equal(carried_out(scene()), inline_model(specification(NAME), tmp_path))


def http(where: str, path: str) -> bytes:
    host, _, port = where.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=HANGS) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(4096), b""))


async def becomes(status: str, where: str) -> None:
    found = None
    while found != status:
        with contextlib.suppress(RunError):
            found = await asyncio.to_thread(cli_health.check, where, None, timeout=HANGS)
            continue
        found = "NOT_SERVING"

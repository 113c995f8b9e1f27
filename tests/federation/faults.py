"""Faults of a federation, rehearsed on a coordinator that runs: what it tells before, during and after each of them.

    shots = carried_out(rehearsed("run-stuck", folder))     # well, faulty over two rounds, mended by the runbook

Each rehearsal has a run under way, does the damage, and then what the runbook says.
"""

import asyncio
import contextlib
import datetime as dt
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from federation.crowd import HANGS, Peer, put_clock_forward, specification, until
from federation.rehearsal import NAME, REHEARSALS, ROUND, SECONDS, Scene, rehearsal
from federation.two_servers import helper
from quoron_privacy.errors import LedgerUnavailable, QuoronError, RunError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server import runs as run_module
from quoron_server.second_server.keys import Keys
from quoron_server.service import Transport, certificates, metrics, program, security
from quoron_server.service.certificates import Revocations
from quoron_server.service.sessions import Sessions
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.wording import plan_json
from server.helper_scene import Leader, real


async def rehearsed(fault: str, folder: Path) -> Scene:
    """All that is seen of a fault."""
    with pytest.MonkeyPatch.context() as patch:
        scene = Scene(folder, patch)
        try:
            await REHEARSALS[fault](scene)
            scene.mended = await scene.scraped()
        finally:
            patch.undo()
            with contextlib.suppress(QuoronError):
                await scene.leave()
    return scene


@rehearsal("run-stuck")
async def run_stuck(at: Scene) -> None:
    await at.begun()

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    at.patch.setattr(Sessions, "ask", never)
    run = at.running.scheduler._active["trial"]
    put_clock_forward(SECONDS)  # the first round is over, and told when it is time; the second never opens
    await until(lambda: run.unpublished)
    put_clock_forward(ROUND - SECONDS)
    await until(lambda: run.feed.rounds == 1)
    await at.two_rounds()
    at.patch.undo()
    await at.restarted()


@rehearsal("rounds-late")
async def rounds_late(at: Scene) -> None:
    await at.begun()
    working, commit = threading.Event(), Ledger.commit

    def slow(*given: Any, **named: Any) -> None:
        working.wait(HANGS)
        commit(*given, **named)

    at.patch.setattr(Ledger, "commit", slow)
    put_clock_forward(ROUND + 1)  # the first round is over, and so is its pause, before its work
    await asyncio.sleep(0.1)
    working.set()
    while not at.running.sessions.late:  # the second opens a whole number of pauses late
        put_clock_forward(ROUND - SECONDS)
        for _ in range(50):
            await asyncio.sleep(0.001)
    await at.asked()
    await at.stays()


@rehearsal("down")
async def down(at: Scene) -> None:
    await at.begun()
    await at.leave()
    await at.stays()
    await at.restarted()


@rehearsal("database-away")
async def database_away(at: Scene) -> None:
    await at.begun()

    def away(*_: object) -> None:
        raise LedgerUnavailable("The connection is lost.")

    at.patch.setattr(Database, "_connected", away)
    await at.two_rounds()
    at.patch.undo()
    while not at.is_open():  # its next try, and the next time at which a round opens
        put_clock_forward(ROUND - SECONDS)
        for _ in range(50):
            await asyncio.sleep(0.001)


@rehearsal("disk-full")
async def disk_full(at: Scene) -> None:
    await at.begun()
    with at.running._database.writing() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")  # "database or disk is full" at the next page
    usage = metrics.shutil.disk_usage(at.folder)
    at.patch.setattr(metrics.shutil, "disk_usage", lambda _: usage._replace(free=4096))
    await at.two_rounds()
    at.patch.undo()
    with at.running._database.writing() as connection:
        connection.execute("PRAGMA max_page_count = 4294967294")
    await at.restarted()


@rehearsal("database-lost")
async def database_lost(at: Scene) -> None:
    await at.begun()
    file, elsewhere = at.folder / "coordinator.sqlite", at.folder / "elsewhere.sqlite"
    file.rename(elsewhere)
    await at.stays()
    await at.leave()
    elsewhere.rename(file)  # the volume is back
    await at.restarted()


@rehearsal("ledger-changed")
async def ledger_changed(at: Scene) -> None:
    await at.begun()
    await at.running.metrics.verify()
    (first,) = at.running._database.rows("SELECT payload FROM population WHERE sequence = 0")
    with at.running._database.writing() as connection:
        connection.execute("UPDATE population SET payload = '{}' WHERE sequence = 0")
    await at.running.metrics.verify()
    await at.stays()
    await at.leave()
    with Database(at.url) as database, database.writing() as connection:  # the backup's row
        connection.execute("UPDATE population SET payload = ? WHERE sequence = 0", (first["payload"],))
    await at.restarted()
    await at.running.metrics.verify()


@rehearsal("database-older")
async def database_older(at: Scene) -> None:
    await at.serve()
    await at.leave()
    old = {path: path.read_bytes() for path in at.folder.glob("coordinator.sqlite*")}
    await at.begun()
    rows = len(PopulationLedger(at.running._database).rows())
    await at.leave()
    new = {path: path.read_bytes() for path in at.folder.glob("coordinator.sqlite*")}
    for path in new:
        path.unlink()
    for path, content in old.items():
        path.write_bytes(content)
    await at.serve()
    async with grpc.aio.insecure_channel(at.running.listen) as channel:  # a client that has seen more, and says no more
        stub = federation_pb2_grpc.ClientPlaneStub(channel)
        await stub.Enrol(pb.EnrolRequest(protocol=2, seen=rows), metadata=(("quoron-client", "client-0"),))
    await at.stays()
    await at.leave()
    for path in at.folder.glob("coordinator.sqlite*"):
        path.unlink()
    for path, content in new.items():
        path.write_bytes(content)
    await at.restarted()


@rehearsal("clock-jumped")
async def clock_jumped(at: Scene) -> None:
    await at.begun()
    at.ahead = 3600.0
    await at.stays()
    at.ahead = 0.0


@rehearsal("plan-refused")
async def plan_refused(at: Scene) -> None:
    await at.begun()
    async with at.operator() as call:
        wanted = specification(NAME, "autumn", plan_digest="0" * 64)
        with pytest.raises(QuoronError, match="the plan"):
            await call("submit", specification=wanted.as_text())
        await at.stays()
        await call("submit", specification=wanted.model_copy(update={"plan_digest": None, "group": "others"}).as_text())


@rehearsal("wrong-key")
async def wrong_key(at: Scene) -> None:
    await at.begun()
    async with at.operator("quoron_of_another_coordinator") as call:
        with pytest.raises(QuoronError, match="Expected a token"):
            await call("runs")
    await at.stays()
    async with at.operator() as call:
        assert [run["run"] for run in (await call("runs"))["runs"]] == ["trial"]


@rehearsal("foreign-client")
async def foreign_client(at: Scene) -> None:
    await at.begun()
    async with grpc.aio.insecure_channel(at.running.listen) as channel:
        stub = federation_pb2_grpc.ClientPlaneStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="Expected protocol"):
            await stub.Enrol(pb.EnrolRequest(protocol=1), metadata=(("quoron-client", "client-0"),))
        changed = channel.stream_stream("/quoron.v1.ClientPlane/Work")(metadata=(("quoron-client", "client-0"),))
        await changed.write(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError, match="Expected a message of this protocol"):
            await changed.read()
    await at.stays()
    async with grpc.aio.insecure_channel(at.running.listen) as channel:
        await Peer(channel, "client-0").enrol()


@rehearsal("limit-reached")
async def limit_reached(at: Scene) -> None:
    await at.begun()
    async with at.operator() as call:
        await call("limit", group="everyone", epsilon=20.0, delta=0.5)
        again = specification(NAME, "autumn").as_text()
        with pytest.raises(QuoronError, match="would exceed the limit"):
            await call("submit", specification=again)
        await at.stays()
        await call("limit", group="everyone", epsilon=40.0, delta=0.5)
        await call("submit", specification=again)


@rehearsal("run-cancelled")
async def run_cancelled(at: Scene) -> None:
    await at.begun()
    async with at.operator() as call:
        assert (await call("cancel", run="trial"))["state"] == "cancelled"
        await at.stays()
        await call("submit", specification=specification(NAME, "trial-2", seconds=SECONDS, early_ends=False).as_text())
    await at.asked("trial-2")


@rehearsal("run-failed")
async def run_failed(at: Scene) -> None:
    await at.begun()

    def failing(*_: object, **__: object) -> None:
        raise RunError("Expected another answer.")

    at.patch.setattr(run_module.rounds, "run", failing)
    await at.submit("second")
    feed = await at.running.scheduler.feed("second")
    await until(lambda: any(event["kind"] == "ended" for event in feed._events))
    await at.stays()
    at.patch.undo()
    await at.submit("third")
    await at.asked("third")


@rehearsal("run-paused")
async def run_paused(at: Scene) -> None:
    await at.begun()
    await at.leave()
    at.patch.setattr(run_module, "plan_json", lambda plan: plan_json(plan) | {"novelty": 1})
    await at.serve()
    await at.join()
    await until(lambda: at.running.scheduler.records.paused)
    await at.stays()
    assert (await at.running.scheduler.records.status("trial"))["state"] == "paused"
    at.patch.undo()
    await at.restarted()  # the version that began it


@rehearsal("clients-away")
async def clients_away(at: Scene) -> None:
    await at.begun()
    for peer in at.peers[:15]:
        peer.call.cancel()
    await until(lambda: at.running.sessions.connected == 5)
    await at.stays()
    await asyncio.gather(*(peer.hello() for peer in at.peers[:15]))


async def _over_tls(at: Scene) -> Path:
    """A coordinator whose certificate lasts, with two clients that have one."""
    place = at.folder / "certificates"
    certificates.make_authority(place, days=400)
    certificates.issue(place, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=300)
    for name in ("client-0", "client-1"):
        certificates.issue(place, name, days=300)
    listed = Revocations(place / "revoked.json")
    files = [place / name for name in ("coordinator/certificate.pem", "coordinator/key.pem", "authority.pem")]
    at.changes = {"transport": Transport(*files, revoked=listed)}
    await at.serve()
    return place


async def _enrolled(at: Scene, place: Path, name: str) -> Peer:
    pair = [(place / f"{name}/{end}.pem").read_bytes() for end in ("key", "certificate")]
    credentials = grpc.ssl_channel_credentials((place / "authority.pem").read_bytes(), *pair)
    channel = await at._joined.enter_async_context(grpc.aio.secure_channel(at.running.listen, credentials))
    peer = Peer(channel)
    await peer.enrol()
    await peer.hello()
    return peer


@rehearsal("certificate-ends")
async def certificate_ends(at: Scene) -> None:
    place = await _over_tls(at)
    await _enrolled(at, place, "client-0")
    at.well = await at.scraped()
    later = security.now() + dt.timedelta(days=280)  # twenty days are left
    at.patch.setattr(security, "now", lambda: later)
    await at.stays()
    certificates.issue(place, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=365, renew=True)
    certificates.issue(place, "client-0", days=365, renew=True)
    await _enrolled(at, place, "client-0")  # without a restart


@rehearsal("client-revoked")
async def client_revoked(at: Scene) -> None:
    place = await _over_tls(at)
    for name in ("client-0", "client-1"):
        await _enrolled(at, place, name)
    at.well = await at.scraped()
    certificates.revoke(place, "client-1")
    with pytest.raises(grpc.aio.AioRpcError, match="revoked"):
        await _enrolled(at, place, "client-1")
    await at.stays()


@rehearsal("revocations-unreadable")
async def revocations_unreadable(at: Scene) -> None:
    place = await _over_tls(at)
    await _enrolled(at, place, "client-0")
    at.well = await at.scraped()
    kept = (place / "revoked.json").read_text()
    (place / "revoked.json").write_text("{")
    await at.stays()
    (place / "revoked.json").write_text(kept)


@rehearsal("keys-stay")
async def keys_stay(at: Scene) -> None:
    """On the second server: its other faults are raised by the same metrics as a coordinator's."""

    def stay(*_: object) -> None:
        raise OSError("The folder is read-only.")

    place = at.folder / "second"
    certificates.make_authority(place, days=400)
    certificates.issue(place, "helper", coordinator=True, hosts=("127.0.0.1",), days=300)
    certificates.issue(place, "leader", days=300)
    at.patch.setattr(program, "POLL", 0.01)
    at.running = running = at._served.enter_context(helper(place, metrics="0"))  # type: ignore[assignment]
    Leader(real(), running.helped)
    at.well = await at.scraped()
    destroy = Keys.destroy
    at.patch.setattr(Keys, "destroy", stay)
    running.helped._clock = lambda: time.time() + 366 * 86_400  # the run's time is over
    await until(lambda: not running.metrics.on_time)
    await at.stays()
    at.patch.setattr(Keys, "destroy", destroy)
    await until(lambda: running.metrics.on_time)

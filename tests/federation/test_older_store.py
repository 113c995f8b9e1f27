"""A coordinator whose store is older than what a client saw of it is refused by name, whoever put it back."""

import asyncio
import logging
import shutil
from pathlib import Path

import grpc
import pytest

from fake_coordinator import coordinator as scripted
from federation.conversation import asked, made, running, terms
from federation.crowd import Honest, carried_out, complete, coordinator, crowd, specification, until
from federation.test_backup import backed_up, other
from quoron_client.federation import ClientConfig, ClientState, run_client, session
from quoron_client.federation.client_state import Agreement, StoreClaim
from quoron_client.protocol.questions import Status
from quoron_client.protocol.wire import MAX_SENT, run_mark
from quoron_privacy.errors import LedgerError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1.federation_pb2_grpc import ClientPlaneStub
from quoron_server.storage.backup import restore
from quoron_server.storage.database import Database
from quoron_server.storage.lifetime_ledger import PopulationLedger

A, B, C = ("a" * 16, "b" * 16, "c" * 16)


def claim(words: str = A + B, rows: int = 7, then: str = "f" * 64, charged: tuple[str, ...] | None = ()) -> StoreClaim:
    incarnations = tuple(words[at : at + 16] for at in range(0, len(words), 16))
    return StoreClaim(
        incarnations, rows, "f" * 64, then, None if charged is None else frozenset(map(run_mark, charged))
    )


def opened(folder: Path, **how: bool) -> ClientState:
    return ClientState(folder / "record.sqlite", epsilon=5.0, delta=1e-3, **how)


def answered(record: ClientState, run: str) -> None:
    assert record.agree(Agreement(run, bytes(16), 1.0, 1e-6, 1)) is None
    assert record.keep(run, 0, bytes(16), b"answer") == b"answer"


def test_an_owner_who_says_so_takes_another_store_once_and_keeps_what_was_spent(tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        record.check_store("here:1", claim(A), 0)
        answered(record, "r")
    for store in (claim(A + B, charged=()), claim(C)):
        with opened(tmp_path) as record, pytest.raises(LedgerError, match="say --accept-other-database"):
            record.check_store("here:1", store, 7)
        with opened(tmp_path, other_database=True) as record:
            record.check_store("here:1", store, 7)
        with opened(tmp_path) as record:
            record.check_store("here:1", store, 7)
            assert record.spent == (1.0, 1e-6)


def test_no_earlier_round_is_answered_once_a_later_one_was_also_if_the_database_was_restored(tmp_path: Path) -> None:
    """A coordinator put back to an earlier round of the same run asks what it has committed, in the same words."""
    first, second = (bytes([each]) * 16 for each in range(2))
    with opened(tmp_path) as record:
        record.check_store("here:1", claim(A, charged=("r", "s")), 0)
        for run in "rs":
            assert record.agree(Agreement(run, bytes(16), 1.0, 1e-6, 3)) is None
        for round_, digest in ((0, first), (2, second)):
            assert record.keep("r", round_, digest, digest) == digest
        assert record.recall("r", 2, second) == second  # as after a kill before the commit
        assert record.recall("r", 0, first) is None
        assert record.keep("r", 0, first, b"") is None
        for earlier in (0, 1):
            assert "database was put back to before it" in str(record.may_answer("r", earlier)[1])
        assert record.may_answer("r", 3)[1] is None
        assert record.keep("s", 0, first, first) == first  # another run's rounds are its own
    with opened(tmp_path) as record:
        for words in (A, A + B):  # a run has ended where the database was restored
            record.check_store("here:1", claim(words, rows=9, then="", charged=("r", "s")), 3)
            assert record.recall("r", 0, first) is None
            assert record.recall("r", 2, second) == second


async def test_a_client_is_silent_where_its_coordinator_asks_of_a_round_before_the_last(
    data: Path, our_logs: pytest.LogCaptureFixture
) -> None:
    with our_logs.at_level(logging.WARNING):
        async with scripted() as fake:
            fake.store = pb.Store(incarnations=[A], rows=3, head="3" * 64, then="3" * 64, charged=[run_mark("r")])
            answers: list[list[pb.Answer]] = []
            for words, rounds in (([A], (0, 1)), ([A], (0, 1)), ([A, B], (0,))):
                fake.store.incarnations[:] = words
                async with running(made(data, fake.port)):
                    await fake.hears("hello")
                    assert await fake.announce("r", terms())
                    answers.append([await fake.ask(asked(number=each)) for each in rounds])
            before, behind, restored = answers
            assert behind[0].status == Status.MISSING
            assert behind[1] == before[1]
            assert [each.status for each in restored] == [Status.MISSING]
    assert "No answer in round 0 of run 'r': a later round was answered" in our_logs.text


async def ended(config: ClientConfig) -> str:
    with pytest.raises(LedgerError) as refused:
        await run_client(config)
    return str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"incarnations": []},
        {"incarnations": [A] * 1001},
        {"incarnations": [A.upper()]},
        {"rows": 2**31},
        {"head": "\x1b[31m"},
        {"then": "7"},
        {"charged": range(MAX_SENT + 1)},
    ],
)
async def test_what_cannot_be_is_no_message_of_the_protocol_and_is_not_kept(
    data: Path, wrong: dict, our_logs: pytest.LogCaptureFixture
) -> None:
    with our_logs.at_level(logging.WARNING):
        async with scripted() as fake:
            right, whole = fake.store, {"incarnations": [A], "rows": 1, "head": "1" * 64, "then": ""}
            fake.store = pb.Store(**whole | wrong)
            async with running(made(data, fake.port)):
                while len(fake.callers) < 2:
                    await asyncio.sleep(0)
                fake.store = right
                await fake.hears("hello")
    assert "no message of this protocol" in our_logs.text


USERS = 20


def said(run: str = "before", epsilon: float = 0.75, delta: float = 1e-6) -> pb.Agreed:
    return pb.Agreed(run=run, epsilon=epsilon, delta=delta)


def test_a_coordinator_says_what_each_client_has_agreed_to_and_nothing_of_who_was_asked(tmp_path: Path) -> None:
    async def enrolled(listen: str, peers: list) -> list[list[tuple[str, float, float]]]:
        found = []
        for peer in peers:
            reply = await ClientPlaneStub(peer.channel).Enrol(pb.EnrolRequest(protocol=2), metadata=peer.metadata)
            found.append([(each.run, each.epsilon, each.delta) for each in reply.agreed])
        return found

    async def scene() -> None:
        wanted, honest = specification("one-pass-dp-sgd"), Honest.of(USERS, ())
        async with coordinator(tmp_path) as first, crowd(first.listen, USERS) as peers:
            await first.scheduler.submit(wanted.as_text())
            work = [asyncio.create_task(peer.work(honest)) for peer in peers]
            await complete(first)
            await asyncio.gather(*work)
            plan = await first.scheduler.records.plan("trial")
        async with coordinator(tmp_path) as second, crowd(second.listen, USERS + 1) as peers:
            found = await enrolled(second.listen, peers)
        factor = 2 if plan["guarantee"]["adjacency"] == "zero-out" else 1
        assert all(len(each) == 1 and each[0][:2] == ("trial", factor * wanted.epsilon) for each in found[:USERS])
        assert found[USERS] == []

    carried_out(scene())


async def test_an_older_record_with_its_count_is_refused_by_name(data: Path) -> None:
    """Every file of a client, put back together: only the coordinator can tell."""
    async with scripted() as fake:
        async with running(made(data, fake.port)):
            await fake.hears("hello")
        older = {each: each.read_bytes() for each in data.parent.glob("record.sqlite*")}
        async with running(made(data, fake.port)):
            await fake.hears("hello")
            assert await fake.announce("r", terms())
            assert (await fake.ask(asked())).status == Status.ANSWERED
        fake.agreed.append(said("r", 1.0))
        for each, content in older.items():
            each.write_bytes(content)
        assert "to know run 'r'" in await ended(made(data, fake.port))


def test_a_restored_store_that_lacks_what_was_answered_is_refused_until_the_operator_enters_it(tmp_path: Path) -> None:
    with opened(tmp_path) as record:
        record.check_store("here:1", claim(A, rows=0), 0)
        answered(record, "r")
        answered(record, "s")
        record.check_store("here:1", claim(A, rows=3, charged=("r", "s")), 0)
        for charged in ((), ("s",), ("x",)):
            with pytest.raises(LedgerError, match=r"without run 'r', and . such in all, .*ledger charge --spent"):
                record.check_store("here:1", claim(A + B, rows=1, then="", charged=charged), 3)
        record.check_store("here:1", claim(A + B, rows=1, then="", charged=("s", "r")), 3)
        assert record.rows_seen("here:1") == 1
        with pytest.raises(LedgerError, match=r"incarnation aaaa.*, which is older"):
            record.check_store("here:1", claim(A, rows=9), 1)
        record.check_store("here:1", claim(A + B + C, rows=1, then="", charged=None), 1)  # too many to be told


def test_a_client_sees_through_every_way_of_putting_a_coordinators_store_back(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files of before; a new database; a copy that says that it was restored, with and without what is missing."""
    place, address = tmp_path / "store", "localhost:7443"
    url = other(place, "coordinator")

    async def meet() -> None:
        async with coordinator(place) as up:
            monkeypatch.setattr(session, "_channel", lambda _: grpc.aio.insecure_channel(up.listen))  # at one address
            config, stop = made(data, 0, coordinator=address), asyncio.Event()
            client = asyncio.create_task(run_client(config, stop=stop))
            await until(lambda: client.done() or up.sessions.connected)
            stop.set()
            await client

    def begun_with(files: dict[Path, bytes]) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for each, content in files.items():
            each.write_bytes(content)

    def charge(run: str) -> tuple[str, str]:
        with Database(url) as database:
            ledger = PopulationLedger(database)
            ledger.charge(run, "everyone", epsilon=1.0, delta=1e-6, elsewhere=True, spent=True)
            return database.incarnations[-1], ledger.verify()

    begun_with({})
    word, head = charge("before")
    carried_out(meet())
    older = {each: each.read_bytes() for each in place.iterdir()}
    backed_up(url, tmp_path / "older")
    with opened(data.parent) as record:
        record.check_store(address, StoreClaim((word,), 1, head, head, frozenset()), 1)
        answered(record, "r")
    charge("r")
    backed_up(url, tmp_path / "all")
    carried_out(meet())
    begun_with(older)
    with pytest.raises(LedgerError, match="got 1 rows of the lifetime ledger, where this client saw 2"):
        carried_out(meet())
    charge("another")  # as many as before, and still not those
    with pytest.raises(LedgerError, match="got other rows among the first 2"):
        carried_out(meet())
    begun_with({})
    with pytest.raises(LedgerError, match="got another, which began as"):
        carried_out(meet())
    begun_with({})
    restore(tmp_path / "older", url)
    with pytest.raises(LedgerError, match="a lifetime ledger without run 'r'"):
        carried_out(meet())
    charge("r")
    carried_out(meet())
    begun_with({})
    beside = restore(tmp_path / "all", url).incarnation
    with pytest.raises(LedgerError, match=f"{beside}, which is older, or another copy"):
        carried_out(meet())

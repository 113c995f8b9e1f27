"""A coordinator with a good certificate and bad intentions: its clients refuse by name, and work for the next one."""

import contextlib
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fake_coordinator import Authority, FakeCoordinator, coordinator
from federation.conversation import GRADIENT, RANGE, VECTOR, D, asked, made, running, terms
from federation.crowd import carried_out, until
from quoron_client.data.encoding import Categorical, Encoding, Signs
from quoron_client.federation import Record, agreements, read_terms, session, work
from quoron_client.federation import own_table as table
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.local_sgd import LocalSGD
from quoron_client.protocol.moments import SecondMoment
from quoron_client.protocol.questions import Status
from quoron_protos.v1 import federation_pb2 as federation

ANSWERED, MISSING = Status.ANSWERED, Status.MISSING
Script = Callable[[FakeCoordinator], Awaitable[object]]
FAR = AverageGradient(np.full((1, D), 1e300), (1.0,))
HERE = LocalSGD(np.zeros((1, D)), 0.1, L2Ball(3.0))
ELSEWHERE = replace(HERE, domain=L2Ball(4.0))


def attacked(data: Path, script: Script, **options: object) -> object:
    """What a script hears of a client, over TLS. Then the honest coordinator is back, and the same client works for
    it."""
    folder = data.parent
    authority = Authority(folder)
    certificate, key = authority.issue("client")
    identity = {"certificate": certificate, "key": key, "authority": authority.path, "insecure": False}

    async def scene() -> object:
        async with (
            coordinator(authority.server_credentials("hostile")) as fake,
            running(made(data, fake.port, **{"client_name": None, **identity, **options})) as client,
        ):
            await fake.hears("hello")
            heard = await script(fake)
            await fake.server.stop(None)
            honest = FakeCoordinator()
            await honest.start(authority.server_credentials("honest"), port=fake.port)
            try:
                await honest.hears("hello")
                assert await honest.announce("honest", terms(run="honest", epsilon=0.5, delta=1e-7))
                assert (await honest.ask(asked(run="honest"))).status == ANSWERED
                assert not client.done()
            finally:
                await honest.server.stop(None)
            return heard

    return carried_out(scene())


def spent(data: Path) -> float:
    """ε that the hostile runs have cost, on the record."""
    with Record.open(data.parent / "record.sqlite", epsilon=2.0, delta=1e-5) as kept:
        return kept.spent[0] - 0.5


def asking(*questions: federation.Question, **announced: object) -> Script:
    """The status of the answer to each, in a run that the client takes part in."""

    async def script(fake: FakeCoordinator) -> list[int]:
        assert await fake.announce("r", terms(**announced))
        return [(await fake.ask(question)).status for question in questions]

    return script


def altered(**changes: object) -> federation.Question:
    """A question whose point is not as its task says."""
    question = asked()
    for name, value in changes.items():
        if name == "shape":
            del question.average_gradient.points.shape[:]
            question.average_gradient.points.shape.extend(value)
        elif name == "weights":
            del question.average_gradient.weights[:]
            question.average_gradient.weights.extend(value)
        else:
            setattr(question.average_gradient.points, name, value)
    return question


class TestOfARunItTakesPartIn:
    def test_one_question_a_round_is_answered_and_no_other(self, data: Path) -> None:
        other = AverageGradient(-GRADIENT.points, (1.0,))
        questions = [asked(), asked(other), asked(SecondMoment(D)), asked()]
        assert attacked(data, asking(*questions)) == [ANSWERED, MISSING, MISSING, ANSWERED]
        assert spent(data) == 1.0

    def test_a_question_under_the_name_of_an_answered_one_gets_that_answer_and_nothing_new(self, data: Path) -> None:
        first, forged = asked(), asked(AverageGradient(-GRADIENT.points, (1.0,)))
        forged.digest = first.digest

        async def script(fake: FakeCoordinator) -> tuple[bytes, bytes]:
            assert await fake.announce("r", terms())
            return tuple([(await fake.ask(each)).SerializeToString() for each in (first, forged)])

        one, two = attacked(data, script)
        assert one == two

    def test_no_more_is_answered_than_was_announced(self, data: Path) -> None:
        questions = [asked(number=number) for number in range(9)]
        assert attacked(data, asking(*questions, participations=3)) == [ANSWERED] * 3 + [MISSING] * 6
        assert spent(data) == 1.0

    def test_no_local_report_is_made_beyond_what_is_paid(self, data: Path) -> None:
        questions = [asked(replace(RANGE, epsilon=1e-9), 0), asked(VECTOR, 1), asked(replace(VECTOR, epsilon=9.0), 2)]
        questions.append(asked(RANGE, 3))
        wanted = [ANSWERED, ANSWERED, MISSING, MISSING]
        assert attacked(data, asking(*questions, exposure="local", participations=9)) == wanted
        assert spent(data) == 1.0

    @pytest.mark.parametrize(
        "question",
        [
            asked(number=9),
            asked(number=2**32 - 1),
            asked(AverageGradient(np.zeros((1, D + 1)), (1.0,))),
            asked(SecondMoment(4000)),
            asked(LocalSGD(np.zeros((1, 5 * D)), 0.1, L2Ball(3.0))),
            asked(ELSEWHERE),
            asked(replace(VECTOR, gradient=AverageGradient(np.zeros((1, 1)), (1.0,)), centre=np.zeros(1))),
            altered(data=np.full(D, np.nan).tobytes()),
            altered(data=np.full(D, np.inf).tobytes()),
            altered(data=bytes(8 * D - 1)),
            altered(shape=[2**62, 2**62]),
            altered(shape=[0, D], data=b""),
            altered(shape=[1, 1, D]),
            altered(dtype="object"),
            altered(weights=[float("nan")]),
            altered(weights=[1.0, 1.0]),
        ],
        ids=[
            *("after the last round", "far after it", "more features", "a long moment", "a long start"),
            *("another domain", "a short report", "not a number", "infinite", "too short", "enormous", "no point"),
            *("three axes", "objects", "a weight that is none", "a weight too many"),
        ],
    )
    def test_a_question_that_is_none_of_the_announced_run_is_refused_and_costs_nothing_more(
        self, data: Path, question: federation.Question, our_logs: pytest.LogCaptureFixture
    ) -> None:
        assert attacked(data, asking(question)) == [MISSING]
        assert spent(data) == 1.0  # of the run, which was agreed to
        assert our_logs.text.count("No answer in round") == 1
        assert "Traceback" not in our_logs.text

    def test_other_terms_than_the_first_ones_are_refused(self, data: Path) -> None:
        changes = [{"rounds": 10}, {"epsilon": 0.1}, {"participations": 1000}, {"statement": "nothing"}]

        async def script(fake: FakeCoordinator) -> list[bool]:
            assert await fake.announce("r", terms())
            return [await fake.announce("r", terms(**change)) for change in changes]

        assert attacked(data, script) == [False] * len(changes)


async def never_read(fake: FakeCoordinator, message: object) -> None:
    """Say it, and end the conversation."""
    await fake.to_say.put(message)
    await fake.to_say.put(None)
    while (await fake.heard.get()).WhichOneof("kind") != "hello":
        pass


class TestFloods:
    def test_of_announcements_are_remembered_no_longer_than_memory_and_disk_allow(
        self, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workers: list[work.Worker] = []
        original = work.Worker.consider

        def seen(worker: work.Worker, message: federation.Announcement, user: int) -> federation.Consent:
            workers[:] = [worker]
            return original(worker, message, user)

        monkeypatch.setattr(work, "MOST_RUNS", 8)
        monkeypatch.setattr(agreements, "_MOST_OPEN", 30)
        monkeypatch.setattr(work.Worker, "consider", seen)

        async def script(fake: FakeCoordinator) -> list[int]:
            assert await fake.announce("answered", terms(run="answered"))
            assert (await fake.ask(asked(run="answered"))).status == ANSWERED
            for number in range(100):
                agreed = await fake.announce(f"run-{number}", terms(run=f"run-{number}", epsilon=1e-3, delta=1e-9))
                assert agreed == (number < 29)
            forgotten = (await fake.ask(asked(run="run-0"))).status, (await fake.ask(asked(run="answered"))).status
            (worker,) = workers
            assert len(worker.parts) == len(worker.announced) == 8
            (rows,) = worker.record._database.execute("SELECT count(*) FROM runs ").fetchone()
            assert rows == 30
            await fake.to_say.put(federation.ServerMessage(ended=federation.Ended(run="run-1", how="unasked")))
            await fake.ask(asked(run="run-1"))
            return forgotten

        assert attacked(data, script) == (MISSING, ANSWERED)
        assert spent(data) == pytest.approx(1.0 + 28e-3)

    def test_of_features_make_fewer_items(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = table.own_items(data, read_terms("r", terms()))
        monkeypatch.setattr(table, "MOST_NUMBERS", 20)  # 7 rows of 3
        items = table.own_items(data, read_terms("r", terms()))
        assert items.problem is None
        assert "Expected at most 6 rows, got more" in items.notice
        np.testing.assert_array_equal(items.batch.features, whole.batch.features[:6])


VOCABULARY = Encoding((Categorical("age", tuple(range(100_000))),), Signs("sick")).as_json()
HUGE = {
    "a name": federation.ServerMessage(run=federation.Announcement(run="r" * (30 << 20), description=terms())),
    "a description": federation.ServerMessage(run=federation.Announcement(run="r", description="1" * (30 << 20))),
    "a vocabulary": federation.ServerMessage(
        run=federation.Announcement(
            run="r",
            description=terms(dimension=100_002, columns=VOCABULARY),
        )
    ),
    "a question": federation.ServerMessage(question=federation.Question(run="r" * (30 << 20), digest=bytes(16))),
    "an end": federation.ServerMessage(ended=federation.Ended(run="r" * (1 << 20), how="\n" * (1 << 20))),
}


class TestWhatIsNoMessage:
    @pytest.mark.parametrize("kind", HUGE)
    def test_huge_ones_are_refused_in_few_bytes(self, data: Path, kind: str) -> None:
        async def script(fake: FakeCoordinator) -> int:
            await fake.to_say.put(HUGE[kind])
            await fake.to_say.put(federation.ServerMessage(question=asked(run="unknown")))
            heard = 0
            while (message := await fake.heard.get()).WhichOneof("kind") != "answer":
                heard += message.ByteSize()
            return heard

        assert attacked(data, script) < 1000
        assert spent(data) == 0.0

    @pytest.mark.parametrize(
        "message",
        [
            bytes(65 << 20),
            federation.ServerMessage(question=asked()).SerializeToString()[:-9],
            b"\x1a\xff\xff\xff\xff\x0f",
        ],
        ids=["longer than any", "half of one", "less than it says"],
    )
    def test_others_end_the_conversation(self, data: Path, message: bytes) -> None:
        async def script(fake: FakeCoordinator) -> None:
            assert await fake.announce("r", terms())
            await never_read(fake, message)

        attacked(data, script)
        assert spent(data) == 1.0  # of the run, which was agreed to


def silence(link: ssl.SSLSocket) -> None:
    while link.recv(1 << 16):
        pass


def half_a_frame(link: ssl.SSLSocket) -> None:
    link.sendall(b"\x00\x00\x12\x04\x00\x00")


def nonsense(link: ssl.SSLSocket) -> None:
    link.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"<html>" * 9999)


def frames_without_end(link: ssl.SSLSocket) -> None:
    """Settings, then headers that never end, for as long as somebody listens."""
    link.sendall(b"\x00\x00\x00\x04" + bytes(5) + b"\x00\x40\x00\x01" + bytes(4) + b"\x01" + bytes(1 << 14))
    while True:
        link.sendall(b"\x00\x40\x00\x09" + bytes(4) + b"\x01" + bytes(1 << 14))


Speaker = Callable[[ssl.SSLSocket], None]


@contextlib.contextmanager
def speaking(speaker: Speaker, certificate: Path, key: Path) -> Iterator[tuple[int, list[object]]]:
    """Its port, and who has come so far: one after the other, each hung up on once it has been spoken to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    came: list[object] = []

    def speak() -> None:
        with contextlib.suppress(OSError):  # the listening socket is closed
            while True:
                plain, where = listening.accept()
                came.append(where)
                with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as link:
                    speaker(link)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=speak)
        thread.start()
        try:
            yield listening.getsockname()[1], came
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


class TestALinkThatSpeaksNoProtocol:
    @pytest.mark.parametrize(
        "speaker",
        [
            half_a_frame,
            nonsense,
            *(pytest.param(each, marks=pytest.mark.slow) for each in (silence, frames_without_end)),
        ],
    )
    def test_is_left_after_a_while_and_tried_again(
        self, data: Path, speaker: Speaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(session, "_ENROL_SECONDS", 0.3)
        authority = Authority(tmp_path)
        identity = dict(zip(("certificate", "key"), authority.issue("client"), strict=True))
        identity |= {"authority": authority.path, "insecure": False, "client_name": None}

        async def scene() -> None:
            async with contextlib.AsyncExitStack() as stack:
                with speaking(speaker, *authority.issue("hostile")) as (port, came):
                    client = await stack.enter_async_context(running(made(data, port, **identity)))
                    await until(lambda: len(came) >= 3)
                honest = FakeCoordinator()
                await honest.start(authority.server_credentials("honest"), port=port)
                stack.push_async_callback(honest.server.stop, None)
                await honest.hears("hello")
                assert await honest.announce("r", terms())
                assert (await honest.ask(asked())).status == ANSWERED
                assert not client.done()

        carried_out(scene())


def most_memory(process: subprocess.Popen[bytes]) -> int:
    """Bytes that a process has had at once."""
    (line,) = [each for each in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmHWM" in each]
    return 1024 * int(line.split()[1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what a process takes is read from /proc")
def test_a_client_process_in_the_hands_of_a_hostile_coordinator_takes_little_memory_and_works_afterwards(
    data: Path, tmp_path: Path
) -> None:
    own = ["--data", data, "--record", tmp_path / "record.sqlite", "--name", "me", "--insecure"]
    wide = {"dimension": 100_001, "columns": VOCABULARY}

    async def attack(fake: FakeCoordinator) -> None:
        """Everything, several times, in one conversation."""
        for number in range(500):
            run = f"run-{number}"
            assert await fake.announce(run, terms(run=run, **({} if number % 5 == 0 else wide)))
        for _ in range(3):
            for message in HUGE.values():
                await fake.to_say.put(message)
            await fake.to_say.put(federation.ServerMessage(question=asked(SecondMoment(4000), run="run-495")))
            for number in range(1000):
                await fake.to_say.put(federation.ServerMessage(question=asked(number=number, run="run-495")))
            while (answer := await fake.heard.get()).WhichOneof("kind") != "answer" or answer.answer.round != 999:
                pass

    async def scene() -> tuple[int, int]:
        async with coordinator(user=5) as fake:
            limits = ["--lifetime-epsilon", 3, "--lifetime-delta", 1e-5, "--coordinator", f"127.0.0.1:{fake.port}"]
            words = [sys.executable, "-m", "quoron", "client", *own, *limits]
            with (tmp_path / "log").open("wb") as log:
                process = subprocess.Popen([str(word) for word in words], stderr=log)
            try:
                await fake.hears("hello")
                assert await fake.announce("first", terms(run="first"))
                assert (await fake.ask(asked(run="first"))).status == ANSWERED
                before = most_memory(process)
                await attack(fake)
                await fake.to_say.put(None)
                await fake.hears("hello")
                assert await fake.announce("last", terms(run="last"))
                assert (await fake.ask(asked(run="last"))).status == ANSWERED
                return before, most_memory(process)
            finally:
                process.terminate()
                assert process.wait() == 0

    before, after = carried_out(scene())
    assert after - before < 600 << 20  # a few copies of one message of the largest size
    assert (tmp_path / "log").stat().st_size < 200_000
    with Record.open(tmp_path / "record.sqlite", epsilon=3.0, delta=1e-5) as kept:
        assert kept.spent[0] == 3.0

"""A siege: a coordinator that owns the authority says all that it can to one client, one after the other, over TLS.

To each the client says no by name in its owner's log, or what was agreed is all that it is charged; it answers the next
honest run, whatever came before.
"""

import contextlib
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from cover import by_default
from fake_coordinator import Authority, FakeCoordinator, coordinator
from federation.conversation import GRADIENT, TERMS, VECTOR, D, asked, converse, made, running, terms
from federation.crowd import CLIENT, carried_out, until
from one_answer import answer_from_wire
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Categorical, Numeric
from quoron_client.federation import ClientState, client_state, session, work
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import AverageGradient, LocalSGD, PlacedGradient, SecondMoment, Status
from quoron_protos.v1 import federation_pb2 as pb

ANSWERED, MISSING = Status.ANSWERED, Status.MISSING
DELTA = 1e-7
Script = Callable[[FakeCoordinator, str], Awaitable[object]]


@dataclass(frozen=True)
class Attack:
    """What is said under a run's name; what it is charged, and what the client says to its owner."""

    script: Script
    charge: float = 0.0
    says: str = ""  # a pattern


async def announce(fake: FakeCoordinator, run: str, **changes: Any) -> bool:
    return await fake.announce(run, terms(**{"run": run, "delta": DELTA} | changes))


def asks(*wanted: tuple[Any, int, int], **announced: Any) -> Script:
    """Tasks, each in a round, with the status that is due."""

    async def script(fake: FakeCoordinator, run: str) -> None:
        assert await announce(fake, run, **announced)
        for task, number, status in wanted:
            assert (await fake.ask(asked(task, number, run))).status == status, (task, number)

    return script


def declined(**announced: Any) -> Script:
    """No part is taken, and so nothing is answered."""

    async def script(fake: FakeCoordinator, run: str) -> None:
        assert not await announce(fake, run, **announced)
        assert (await fake.ask(asked(run=run))).status == MISSING

    return script


def described(text: str) -> Script:
    async def script(fake: FakeCoordinator, run: str) -> None:
        assert not await fake.announce(run, text.replace("RUN", run))

    return script


def changed(**changes: Any) -> Script:
    """Other terms once the first were agreed to: neither they nor questions count for more than the first."""

    async def script(fake: FakeCoordinator, run: str) -> None:
        assert await announce(fake, run)
        assert not await announce(fake, run, **changes)
        assert (await fake.ask(asked(run=run))).status == ANSWERED
        for number in range(1, 4):
            status = ANSWERED if number < TERMS["participations"] else MISSING
            assert (await fake.ask(asked(run=run, number=number))).status == status

    return script


async def averaging(fake: FakeCoordinator, run: str) -> None:
    """The noise of one answer is averaged out of many: of a round asked again, of another point, of another user."""
    assert await announce(fake, run, trust_model="local", participations=1)
    sent = {(await fake.ask(asked(VECTOR, run=run))).SerializeToString() for _ in range(9)}
    assert len(sent) == 1
    for shift in range(1, 9):
        other = replace(VECTOR, centre=np.full(D, float(shift)))
        assert (await fake.ask(asked(other, run=run))).status == MISSING
        assert (await fake.ask(asked(VECTOR, run=run, user=5 + shift))).status == MISSING
        forged = asked(other, run=run)
        forged.digest = asked(VECTOR, run=run).digest
        assert (await fake.ask(forged)).status == MISSING


async def looser(fake: FakeCoordinator, run: str) -> None:
    """A clip a billion times wider has noise a billion times as large; that all of it is below 10⁻³ of its standard
    deviation has probability below 10⁻⁹."""
    assert await announce(fake, run, trust_model="local", participations=1)
    wide = replace(VECTOR, radius=1e9)
    found, status = answer_from_wire(await fake.ask(asked(wide, run=run)), (D,))
    assert status == ANSWERED
    assert np.linalg.norm(found) > 1e6


async def ended_and_again(fake: FakeCoordinator, run: str) -> None:
    assert await announce(fake, run)
    assert (await fake.ask(asked(run=run))).status == ANSWERED
    for _ in range(3):
        await fake.to_say.put(pb.ServerMessage(ended=pb.Ended(run=run, how="complete")))
        await announce(fake, run)
        assert (await fake.ask(asked(run=run))).status == MISSING
        assert (await fake.ask(asked(run=run, number=1))).status == MISSING


async def an_older_one(fake: FakeCoordinator, run: str) -> None:
    """A store that is put back knows of no answer, nor of who agreed: it asks on, with other questions too."""
    assert await announce(fake, run)
    first = (await fake.ask(asked(run=run))).SerializeToString()
    await anew(fake)
    assert await announce(fake, run)
    assert (await fake.ask(asked(run=run))).SerializeToString() == first
    assert (await fake.ask(asked(AverageGradient(-GRADIENT.points, (1.0,)), run=run))).status == MISSING
    assert (await fake.ask(asked(run=run, number=1))).status == ANSWERED
    await anew(fake)
    assert not await announce(fake, run, participations=99)


async def anew(fake: FakeCoordinator, ending: object = None) -> None:
    """Another conversation."""
    await fake.to_say.put(ending)
    while (await fake.heard.get()).WhichOneof("kind") != "hello":
        pass


async def strangers(fake: FakeCoordinator, run: str) -> None:
    """Questions of runs that nobody announced, and without a name to answer to."""
    for number in range(200):
        assert (await fake.ask(asked(run=f"{run}-{number}"))).status == MISSING
    for name in ("", "r" * 201):
        question = asked()
        question.run = name
        await fake.to_say.put(pb.ServerMessage(question=question))
    for digest in (b"", bytes(15), bytes(1000)):
        question = asked(run=run)
        question.digest = digest
        await fake.to_say.put(pb.ServerMessage(question=question))
    assert (await fake.ask(asked(run=run))).status == MISSING


async def without_end(fake: FakeCoordinator, run: str) -> None:
    """More than a thousand of what asks for no answer, then announcements and questions that nobody waits for."""
    for number in range(400):
        await fake.to_say.put(pb.ServerMessage(welcome=pb.Welcome(user=number)))
        await fake.to_say.put(pb.ServerMessage(ended=pb.Ended(run=f"{run}-{number}", how="\x1b[2J" * 99)))
        await fake.to_say.put(pb.ServerMessage(receipt=pb.Receipt(run=run, round=number, verdict=7)))
        await fake.to_say.put(pb.ServerMessage(question=asked(number=number, run=run)))
    for _ in range(400):
        assert (await fake.hears("answer")).status == MISSING


def sends(*messages: object) -> Script:
    """What is no message of this protocol, or a status: the conversation ends, and there is another."""

    async def script(fake: FakeCoordinator, run: str) -> None:
        for message in messages:
            assert await announce(fake, run)
            await anew(fake, message)  # the client ends such a conversation by itself

    return script


def odd(*, weights: tuple[float, ...] = (), **changes: object) -> Script:
    """A question whose point is not as its task says; the run is agreed to and nothing is charged."""

    async def script(fake: FakeCoordinator, run: str) -> None:
        assert await announce(fake, run)
        question = asked(run=run)
        for name, value in changes.items():
            if isinstance(value, list):
                field = getattr(question.average_gradient.points, name)
                del field[:]
                field.extend(value)
            else:
                setattr(question.average_gradient.points, name, value)
        if weights:
            del question.average_gradient.weights[:]
            question.average_gradient.weights.extend(weights)
        assert (await fake.ask(question)).status == MISSING

    return script


OTHERWISE = Encoding((Numeric("age", 0, 1), Numeric("weight", 0, 200)), Signs("sick")).as_json()
FAR = PlacedGradient(np.zeros((1, D)), np.arange(500_000)[None], 1.0, 1e300, 1)
TWICE = replace(FAR, places=np.zeros((1, 9), np.int64))
NOT_THOSE, NO_USE = "its terms are not those of its first announcement", "Expected a usable description of the run"
BEYOND = "exceed the lifetime limit"
ATTACKS: dict[str, Attack] = {
    "strangers' questions": Attack(strangers, says="it was asked before the client had consented"),
    "messages without end": Attack(without_end, says="it was asked before the client had consented"),
    "averaging": Attack(averaging, 1.0, "the round was already answered, to another question"),
    "a wider clip": Attack(looser, 1.0),
    "a round after the last": Attack(
        asks((GRADIENT, 9, MISSING), (GRADIENT, 2**32 - 1, MISSING)), says="announced rounds"
    ),
    "more answers than agreed": Attack(
        asks(*((GRADIENT, number, ANSWERED if number < 2 else MISSING) for number in range(9))),
        1.0,
        "all 2 answers of the run were given",
    ),
    "more ε than agreed": Attack(
        asks((VECTOR, 0, ANSWERED), (replace(VECTOR, epsilon=0.6), 1, MISSING), trust_model="local"),
        1.0,
        "local reports would spend more than was agreed to",
    ),
    "more δ than agreed": Attack(
        asks((replace(VECTOR, delta=2e-7), 0, MISSING), trust_model="local"), 0.0, "local reports would spend more"
    ),
    "no noise in a local run": Attack(
        asks((GRADIENT, 0, MISSING), (SecondMoment(D), 1, MISSING), trust_model="local"), 0.0, "not private by itself"
    ),
    "another model": Attack(
        asks((AverageGradient(np.zeros((1, D + 1)), (1.0,)), 0, MISSING), (SecondMoment(4000), 1, MISSING)),
        0.0,
        "dimensions, as announced",
    ),
    "half a million places": Attack(asks((FAR, 0, ANSWERED)), 1.0),
    "a place twice": Attack(asks((TWICE, 0, MISSING)), 0.0, "each place once"),
    "not a number": Attack(odd(data=np.full(D, nan).tobytes()), says="finite numbers"),
    "infinite": Attack(odd(data=np.full(D, -inf).tobytes()), says="finite numbers"),
    "too short": Attack(odd(data=bytes(8 * D - 1)), says="bytes in an array"),
    "enormous": Attack(odd(shape=[2**63, 2**63]), says="another shape"),
    "empty": Attack(odd(shape=[0, D], data=b""), says=r"points of shape \(p, d\)"),
    "objects": Attack(odd(dtype="object"), says="array of float64"),
    "a weight that is none": Attack(odd(weights=(nan,)), says="No answer in round"),
    "a weight too many": Attack(odd(weights=(1.0, 1.0)), says="No answer in round"),
    "a long start": Attack(asks((LocalSGD(np.zeros((1, 5 * D)), 0.1, L2Ball(3.0)), 0, MISSING)), says="No answer in"),
    "another domain": Attack(asks((LocalSGD(np.zeros((1, D)), 0.1, L2Ball(4.0)), 0, MISSING)), says="No answer in"),
    "a short report": Attack(
        asks((replace(VECTOR, gradient=AverageGradient(np.zeros((1, 1)), (1.0,)), centre=np.zeros(1)), 0, MISSING)),
        says="No answer in round",
    ),
    **{
        f"then another {name}": Attack(changed(**{name: value}), 1.0, f"{NOT_THOSE}|{NO_USE}|Expected a run ")
        for name, value in {
            "epsilon": 0.01,
            "delta": 1e-9,
            "rounds": 10**6,
            "participations": 10**6,
            "trust_model": "local",
            "loss": {"name": "logistic", "feature_norm": 1e9},
            "domain": {"l2-ball": 1e9},
            "columns": OTHERWISE,
            "statement": "nothing is guaranteed",
            "algorithm": "one-pass-dp-sgd",
            "slot": 0,
            "simulation": True,
        }.items()
    },
    **{
        f"{name} = {value}": Attack(declined(**{name: value}), says=f"{NO_USE}|Expected a run ")
        for name, value in (
            *(("epsilon", each) for each in (nan, inf, -inf, -1.0, 0.0)),
            *(("delta", each) for each in (nan, -1e-9, 1.5)),
            *(("rounds", each) for each in (0, -1, 2**31, 1.5)),
            *(("participations", each) for each in (0, 2**63)),
            *(("dimension", each) for each in (0, -3, 10**9)),
            *(("adjacency", each) for each in ("none", "add-one")),
            *(("trust_model", each) for each in ("model", "none", "all")),
            *(
                ("loss", each)
                for each in ({"name": "cubic"}, {"name": 3}, {}, {"name": "logistic", "feature_norm": nan})
            ),
            *(("domain", each) for each in ({}, {"l2-ball": inf}, {"l2-ball": 1.0, "box": 1.0})),
            ("columns", {"columns": []}),
            ("simulation", True),
        )
        if (name, value) not in (("epsilon", inf), ("dimension", 10**9))
    },
    "an infinite ε": Attack(declined(epsilon=inf), says=BEYOND),
    "a million features": Attack(declined(dimension=10**9), says="Takes no part in run"),
    "another run's description": Attack(described(terms(run="another")), says="got that of another"),
    "no description": Attack(described(""), says=NO_USE),
    "brackets": Attack(described("[" * 10**5), says=NO_USE),
    "a description too long": Attack(described("1" * (2 << 20)), says="at most 1,048,576 characters"),
    "half of a message": Attack(
        sends(
            pb.ServerMessage(question=asked()).SerializeToString()[:-9], b"\x1a\xff\xff\xff\xff\x0f", bytes(65 << 20)
        ),
        says="Trying again",
    ),
    "every status": Attack(
        sends(*((code, "\x1b[31mgone\n") for code in grpc.StatusCode if code.value[0] not in (0, 7, 10, 16))),
        says="Trying again",
    ),
    "a run that has ended": Attack(ended_and_again, 1.0, "the run has ended"),
    "an older incarnation": Attack(an_older_one, 1.0, NOT_THOSE),
}
LEFT = 1.2  # ε of the owner's limit, once all of these are charged
SPENT = sum(each.charge for each in ATTACKS.values())
ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


async def together(fake: FakeCoordinator) -> None:
    """Two runs, of which either fits into what is left, and both do not; then the same under new names."""
    assert await announce(fake, "right", epsilon=0.7)
    assert not await announce(fake, "left", epsilon=0.7)
    assert (await fake.ask(asked(run="right"))).status == ANSWERED
    assert (await fake.ask(asked(run="left"))).status == MISSING
    for number in range(5):
        assert not await announce(fake, f"renamed-{number}", epsilon=0.7)
    assert (await fake.ask(asked(run="right", number=1))).status == ANSWERED


async def honest(fake: FakeCoordinator, run: str) -> None:
    assert await announce(fake, run, epsilon=0.2)
    assert (await fake.ask(asked(run=run))).status == ANSWERED


async def besieged(fake: FakeCoordinator, attacks: dict[str, Attack], said: Callable[[], str]) -> None:
    """Everything in turn, and an honest run; `said` is all that the client has told its owner so far."""
    for number, (name, attack) in enumerate(attacks.items()):
        before = len(said())
        await attack.script(fake, f"run-{number}")
        new = said()[before:]
        assert re.search(attack.says, new), (name, new)
        assert not ODD.search(new), (name, new)
        # Of a run that was agreed to and not answered the charge goes back by the coordinator's own word alone.
        await fake.to_say.put(pb.ServerMessage(ended=pb.Ended(run=f"run-{number}", how="unasked")))
    await together(fake)
    assert BEYOND in said()
    await honest(fake, "honest")


def charged(folder: Path) -> float:
    with ClientState(folder / "record.sqlite", epsilon=SPENT + LEFT, delta=1e-3) as kept:
        return kept.spent[0]


async def test_a_client_says_no_by_name_to_all_that_a_coordinator_can_say_and_works_for_the_next(
    data: Path, our_logs: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_LONGEST_WAIT", 0.05)  # between conversations that end at once
    our_logs.set_level("INFO", "quoron.client")
    authority = Authority(data.parent)
    limits = {"lifetime_epsilon": SPENT + LEFT, "lifetime_delta": 1e-3}
    async with coordinator(authority.server_credentials("hostile"), user=5) as fake:
        config = made(data, fake.port, **authority.identity(), **limits)
        async with running(config) as client:
            await fake.hears("hello")
            await besieged(fake, ATTACKS, lambda: our_logs.text)
            assert not client.done()
    assert charged(data.parent) == pytest.approx(SPENT + 0.7 + 0.2)
    assert "Traceback" not in our_logs.text


@pytest.mark.programs
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what a process takes is read from /proc")
def test_a_client_s_program_lives_through_a_siege_in_bounded_memory(data: Path, tmp_path: Path) -> None:
    """Its log is spared: of a kind of refusal it tells twenty a minute."""
    authority = Authority(tmp_path)
    own = ["--data", data, "--state", tmp_path / "record.sqlite", "--limit", f"{SPENT + LEFT},1e-3"]
    (certs := tmp_path / "certs").mkdir()
    files = (*authority.issue("client"), authority.path)
    for file, name in zip(files, ("certificate.pem", "key.pem", "authority.pem"), strict=True):
        (certs / name).write_bytes(file.read_bytes())
    own += ["--certs", certs]
    quiet = {name: replace(attack, says="") for name, attack in ATTACKS.items() if name != "every status"}

    async def scene() -> tuple[int, int]:
        async with coordinator(authority.server_credentials("hostile"), user=5) as fake:
            words = [sys.executable, "-c", CLIENT, "client", *own, "--coordinator", f"127.0.0.1:{fake.port}"]
            with (tmp_path / "log").open("wb") as log:
                process = subprocess.Popen([str(word) for word in words], stderr=log)
            try:
                await fake.hears("hello")
                await honest(fake, "first")
                before = most_memory(process)
                await besieged(fake, quiet, lambda: BEYOND)
                return before, most_memory(process)
            finally:
                process.terminate()
                assert process.wait() == 0

    before, after = carried_out(scene())
    assert after - before < 600 << 20  # a few copies of one message of the largest size
    assert (tmp_path / "log").stat().st_size < 200_000
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert charged(tmp_path) == pytest.approx(SPENT + 0.7 + 2 * 0.2)


def spent(data: Path) -> float:
    with ClientState(data.parent / "record.sqlite", epsilon=2.0, delta=1e-5) as kept:
        return kept.spent[0]


class TestFloods:
    def test_of_announcements_are_remembered_no_longer_than_memory_and_disk_allow(
        self, data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workers: list[work.Worker] = []
        original = work.Worker.consider

        def seen(worker: work.Worker, message: pb.Announcement, user: int) -> pb.Consent:
            workers[:] = [worker]
            return original(worker, message, user)

        monkeypatch.setattr(work, "MAX_RUNS", 8)
        monkeypatch.setattr(client_state, "_MAX_OPEN", 30)
        monkeypatch.setattr(work.Worker, "consider", seen)

        async def script(fake: FakeCoordinator) -> list[int]:
            assert await fake.announce("answered", terms(run="answered"))
            assert (await fake.ask(asked(run="answered"))).status == ANSWERED
            for number in range(100):
                agreed = await fake.announce(f"run-{number}", terms(run=f"run-{number}", epsilon=1e-3, delta=1e-9))
                assert agreed == (number < 29)
            forgotten = (await fake.ask(asked(run="run-0"))).status, (await fake.ask(asked(run="answered"))).status
            (worker,) = workers
            assert len(worker.parts) == 8
            (rows,) = worker.record._database.execute("SELECT count(*) FROM runs ").fetchone()
            assert rows == 30
            await fake.to_say.put(pb.ServerMessage(ended=pb.Ended(run="run-1", how="unasked")))
            await fake.ask(asked(run="run-1"))
            return forgotten

        assert converse(data, script) == (MISSING, MISSING), "until they are announced again"
        assert spent(data) == pytest.approx(1.0 + 28e-3)


VOCABULARY = Encoding((Categorical("age", tuple(range(100_000))),), Signs("sick")).as_json()
HUGE = {
    "a name": pb.ServerMessage(run=pb.Announcement(run="r" * (30 << 20), description=terms())),
    "a vocabulary": pb.ServerMessage(
        run=pb.Announcement(
            run="r",
            description=terms(dimension=100_002, columns=VOCABULARY),
        )
    ),
    "a question": pb.ServerMessage(question=pb.Question(run="r" * (30 << 20), digest=bytes(16))),
    "an end": pb.ServerMessage(ended=pb.Ended(run="r" * (1 << 20), how="\n" * (1 << 20))),
}


class TestWhatIsNoMessage:
    @pytest.mark.parametrize("kind", HUGE)
    def test_huge_ones_are_refused_in_few_bytes(self, data: Path, kind: str) -> None:
        async def script(fake: FakeCoordinator) -> int:
            await fake.to_say.put(HUGE[kind])
            await fake.to_say.put(pb.ServerMessage(question=asked(run="unknown")))
            heard = 0
            while (message := await fake.heard.get()).WhichOneof("kind") != "answer":
                heard += message.ByteSize()
            return heard

        assert converse(data, script) < 1000
        assert spent(data) == 0.0


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
    """Its port, and who has come so far. Speaks to all at once, and hangs up on whom it has spoken to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    came: list[object] = []
    plains: list[socket.socket] = []

    def speak(plain: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as link:
            came.append(link)
            speaker(link)

    def listen() -> None:
        with contextlib.suppress(OSError):  # the listening socket is closed
            while True:
                plain, _ = listening.accept()
                plains.append(plain.dup())
                threads.append(threading.Thread(target=speak, args=(plain,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threads = [threading.Thread(target=listen)]
        threads[0].start()
        try:
            yield listening.getsockname()[1], came
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            threads[0].join()
            for plain in plains:
                with contextlib.suppress(OSError):  # it has left
                    plain.shutdown(socket.SHUT_RDWR)
                plain.close()
            for thread in threads:
                thread.join()


class TestALinkThatSpeaksNoProtocol:
    @pytest.mark.parametrize(
        "speaker",
        by_default([half_a_frame, nonsense, silence, frames_without_end], [nonsense, frames_without_end]),
    )
    async def test_is_left_after_a_while_and_tried_again(
        self, data: Path, speaker: Speaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(session, "_ENROL_SECONDS", 0.3)
        authority = Authority(tmp_path)
        identity = authority.identity()
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


def most_memory(process: subprocess.Popen[bytes]) -> int:
    """Bytes that a process has had at once."""
    (line,) = [each for each in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "VmHWM" in each]
    return 1024 * int(line.split()[1])

"""However a conversation ends, and in whatever its client is engaged: the client lives, and comes back."""

import asyncio
import logging
import threading
from contextlib import asynccontextmanager

import grpc
import pytest

from fake_coordinator import Authority, coordinator
from federation.conversation import asked, made, terms
from federation.crowd import carried_out, until
from quoron_client.federation import run_client, session, work
from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1.federation_pb2_grpc import ClientPlaneStub


@pytest.fixture
def calls(monkeypatch):
    """The conversations of every client in this process, as the client sees them."""
    made = []

    class Watched(ClientPlaneStub):
        def __init__(self, channel):
            super().__init__(channel)
            begin = self.Work
            self.Work = lambda **options: made.append(begin(**options)) or made[-1]

    monkeypatch.setattr(session, "ClientPlaneStub", Watched)
    return made


class Engaged:
    """Holds a client's answers back until it is told to let them go."""

    def __init__(self, monkeypatch):
        self.begun, self.go, real = threading.Event(), threading.Event(), work.answer

        def held(*arguments, **named):
            self.begun.set()
            self.go.wait()
            return real(*arguments, **named)

        monkeypatch.setattr(work, "answer", held)


@asynccontextmanager
async def living(config):
    """A client that is stopped in the end; its end before that is the test's."""
    async with asyncio.TaskGroup() as group:
        stop = asyncio.Event()
        yield group.create_task(run_client(config, stop=stop))
        stop.set()


async def welcomed(fake):
    assert (await fake.hears("hello")).protocol == 2
    assert await fake.announce("r", terms())


ENDINGS = {
    "closed": None,
    "leaving": (grpc.StatusCode.UNAVAILABLE, "The coordinator is leaving."),
    "cancelled": (grpc.StatusCode.CANCELLED, "cancelled there"),
    "failed": (grpc.StatusCode.UNKNOWN, "something"),
    "restored": (grpc.StatusCode.FAILED_PRECONDITION, "Expected an enrolled client. Enrol first."),
    "replaced": (grpc.StatusCode.UNIMPLEMENTED, "no such method"),
}


class TestAClientThatComputes:
    @pytest.mark.parametrize("ending", [*ENDINGS, "gone"])
    def test_outlives_the_end_of_its_conversation_and_answers_the_question_that_is_asked_again(
        self, data, calls, monkeypatch, ending
    ):
        engaged = Engaged(monkeypatch)

        async def scenario():
            async with coordinator() as fake, living(made(data, fake.port)):
                try:
                    await welcomed(fake)
                    await fake.to_say.put(federation.ServerMessage(question=asked()))
                    await until(engaged.begun.is_set)
                    if ending == "gone":
                        await fake.server.stop(None)
                    else:
                        await fake.to_say.put(ENDINGS[ending])
                    await until(calls[0].done)
                finally:
                    engaged.go.set()
                if ending == "gone":
                    await fake.start(port=fake.port)
                await fake.hears("hello")
                return (await fake.ask(asked())).status

        assert carried_out(scenario()) == federation.STATUS_ANSWERED


class TestAClientThatListens:
    def test_outlives_an_error_that_nobody_foresaw(self, data, monkeypatch, our_logs):
        def broken(*_, **__):
            raise KeyError("unforeseen")

        async def scenario():
            async with coordinator() as fake, living(made(data, fake.port)):
                await welcomed(fake)
                monkeypatch.setattr(work.Worker, "forget", broken)
                await fake.to_say.put(federation.ServerMessage(ended=federation.Ended(run="r", how="complete")))
                await until(lambda: "unforeseen" in our_logs.text)
                await fake.to_say.put(None)  # to a conversation that its client has left
                await fake.hears("hello")

        carried_out(scenario())

    def test_outlives_a_certificate_of_its_own_that_is_gone_for_a_while(self, data, tmp_path, our_logs):
        authority = Authority(tmp_path)
        given = dict(zip(("certificate", "key"), authority.issue("client"), strict=True))
        identity = given | {"authority": authority.path, "insecure": False, "client_name": None}

        async def scenario():
            async with (
                coordinator(authority.server_credentials()) as fake,
                living(made(data, fake.port, **identity)),
            ):
                await fake.hears("hello")
                kept = given["certificate"].read_bytes()
                given["certificate"].unlink()
                await fake.to_say.put(None)
                await until(lambda: "cannot read it" in our_logs.text)
                given["certificate"].write_bytes(kept)
                await fake.hears("hello")

        carried_out(scenario())


class TestAnotherInTheCoordinatorsPlace:
    """The portal of a network, or a coordinator whose certificate is over: it passes by."""

    @pytest.mark.parametrize("impostor", ["of another authority", "of another name", "expired"])
    def test_is_told_to_the_owner_and_waited_out(self, data, tmp_path, our_logs, impostor):
        authority = Authority(tmp_path)
        given = dict(zip(("certificate", "key"), authority.issue("client"), strict=True))
        identity = given | {"authority": authority.path, "insecure": False, "client_name": None}
        credentials = {
            "of another authority": lambda: Authority(tmp_path, "elsewhere").server_credentials(),
            "of another name": lambda: authority.server_credentials("other", address="192.0.2.1"),
            "expired": lambda: authority.server_credentials("late", days=(-9, -2)),
        }[impostor]()

        async def scenario():
            async with coordinator(credentials) as fake, living(made(data, fake.port, **identity)) as client:
                await until(lambda: our_logs.text.count("certificate of its name from the authority") >= 2)
                assert {each.levelno for each in our_logs.records} == {logging.WARNING}
                assert not fake.callers
                await fake.server.stop(None)
                await fake.start(authority.server_credentials("right"), port=fake.port)
                await fake.hears("hello")
                return client.done()

        assert not carried_out(scenario())

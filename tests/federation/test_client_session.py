"""A client over the wire: it answers what it agreed to, once, keeps all else to itself, and always comes back."""

import asyncio
import json
import logging
import socket
from contextlib import asynccontextmanager, suppress

import grpc
import numpy as np
import pandas as pd
import pytest

from fake_coordinator import SECONDS, Authority, FakeCoordinator, coordinator
from quorate_client.draws import user_keys
from quorate_client.federation import ClientConfig, Record, read_terms, run_client
from quorate_client.federation.table import own_items
from quorate_client.questions import AverageGradient, Question, RangeReport, SecondMoment, Status, VectorReport
from quorate_client.randomisers import SeededRandomness, local_report
from quorate_client.smoothing import Convolution
from quorate_client.wire import answer_from_wire, question_to_wire
from quorate_client.work import answer
from quorate_protos.errors import ConfigError, DataError, IdentityError, LedgerError, WireError
from quorate_protos.v1 import federation_pb2 as federation

D = 3
TERMS = {
    "run": "r",
    "algorithm": "dp-sgd-poisson",
    "statement": "a promise",
    "epsilon": 1.0,
    "delta": 1e-6,
    "adjacency": "replace-one",
    "exposure": "broadcast",
    "rounds": 9,
    "participations": 2,
    "dimension": D,
    "loss": {"name": "logistic"},
    "domain": {"l2-ball": 3.0},
    "columns": {"label": "sick", "numeric": {"age": [0, 100], "weight": [0, 200]}},
}
GRADIENT = AverageGradient(np.array([[0.5, -0.25, 1.0]]), (1.0,))
CONVOLVED = AverageGradient(GRADIENT.points, (1.0,), smoothing=Convolution(0.5, 11))
VECTOR = VectorReport(CONVOLVED, 0.5, 1e-7, 1.0, np.zeros(D))
RANGE = RangeReport(GRADIENT, 0.5, 8, 2.0, np.array([1.0, -1.0, 1.0]), np.array([2]))


def terms(**changes):
    return json.dumps(TERMS | changes)


def asked(task=GRADIENT, number=0, run="r", user=5):
    return question_to_wire(Question(number, np.array([user]), task), 0, run=run, user=user, seconds=60)


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {"age": rng.uniform(0, 100, 7), "weight": rng.uniform(0, 200, 7), "sick": rng.integers(0, 2, 7)}
    )
    path = tmp_path / "mine.csv"
    frame.to_csv(path, index=False)
    return path


def made(own, port, **changes):
    options = {
        "coordinator": f"127.0.0.1:{port}",
        "data": own,
        "record": own.parent / "record.sqlite",
        "lifetime_epsilon": 2.0,
        "lifetime_delta": 1e-5,
        "insecure": True,
        "client_name": "me",
        "retry_seconds": 0.01,
    }
    return ClientConfig(**(options | changes))


@asynccontextmanager
async def running(config):
    """A client that is stopped in the end, and that may not fail before."""
    stop = asyncio.Event()
    client = asyncio.create_task(run_client(config, stop=stop))
    try:
        yield client
    finally:
        stop.set()
        await client


def converse(data, script, *, credentials=None, user=5, **changes):
    """Run `script(coordinator)` with a client that has said hello."""

    async def talk(fake):
        assert (await fake.hears("hello")).protocol == 1
        return await script(fake)

    async def scenario():
        async with coordinator(credentials, user=user) as fake, running(made(data, fake.port, **changes)) as client:
            talking = asyncio.create_task(talk(fake))
            await asyncio.wait((talking, client), return_when=asyncio.FIRST_COMPLETED)
            if not talking.done():
                talking.cancel()
                await client  # its error
            return await talking

    return asyncio.run(scenario())


def values(message, task=GRADIENT):
    return answer_from_wire(message, task.answer_shape(D))


class TestAnswers:
    def test_are_what_the_client_would_compute_in_process(self, data):
        async def script(fake):
            assert await fake.announce("r", terms())
            return await fake.ask(asked())

        found, status = values(converse(data, script))
        told = read_terms("r", terms())
        wanted = answer(told.make_loss(), own_items(data, told).batch, GRADIENT)
        assert status == Status.ANSWERED
        assert found.tobytes() == wanted.values[0].tobytes()

    def test_are_the_same_bytes_after_the_connection_was_lost(self, data):
        async def script(fake):
            await fake.announce("r", terms(exposure="local"))
            first = await fake.ask(asked(VECTOR))
            await fake.to_say.put(None)
            await fake.hears("hello")
            again = await fake.ask(asked(VECTOR))
            assert len(fake.callers) == 2
            return first, again

        first, again = converse(data, script)
        assert first.status == federation.STATUS_ANSWERED
        assert first == again

    def test_are_the_same_bytes_after_the_client_was_started_again(self, data):
        async def script(fake):
            await fake.announce("r", terms(exposure="local"))
            return await fake.ask(asked(VECTOR))

        assert converse(data, script) == converse(data, script)

    def test_of_users_without_usable_items_are_rejected(self, data):
        table = pd.read_csv(data)
        table.loc[2, "age"] = np.nan
        table.to_csv(data, index=False)

        async def script(fake):
            assert await fake.announce("r", terms())
            return await fake.ask(asked())

        found, status = values(converse(data, script))
        assert status == Status.REJECTED
        assert not found.any()


class TestRefusals:
    """All look alike: a status, and nothing else."""

    @pytest.mark.parametrize(
        "question",
        [
            asked(run="another"),
            asked(SecondMoment(D + 1)),
            asked(AverageGradient(np.zeros((1, D + 2)), (1.0,))),
            federation.Question(run="r", round=0, digest=bytes(16)),
            federation.Question(run="r", round=0, digest=bytes(16), second_moment=federation.SecondMoment()),
        ],
        ids=["unknown run", "second moment of another dimension", "another dimension", "no task", "malformed task"],
    )
    def test_of_what_cannot_be_answered(self, data, question):
        async def script(fake):
            await fake.announce("r", terms())
            refused = await fake.ask(question)
            return refused, await fake.ask(asked(number=1))

        refused, answered = converse(data, script)
        assert refused.status == federation.STATUS_MISSING
        assert not any(refused.values.data)
        assert answered.status == federation.STATUS_ANSWERED

    def test_of_another_question_in_an_answered_round(self, data):
        async def script(fake):
            await fake.announce("r", terms())
            other = AverageGradient(-GRADIENT.points, (1.0,))
            return [(await fake.ask(asked(task))).status for task in (GRADIENT, other, GRADIENT)]

        assert converse(data, script) == [Status.ANSWERED, Status.MISSING, Status.ANSWERED]

    def test_of_more_answers_than_the_plan_counts(self, data):
        async def script(fake):
            await fake.announce("r", terms())
            return [(await fake.ask(asked(number=number))).status for number in (0, 3, 4, 3)]

        assert converse(data, script) == [Status.ANSWERED, Status.ANSWERED, Status.MISSING, Status.ANSWERED]

    def test_of_answers_that_are_not_private_in_a_local_run(self, data):
        async def script(fake):
            await fake.announce("r", terms(exposure="local"))
            return [(await fake.ask(asked(task, number))).status for number, task in enumerate((GRADIENT, RANGE))]

        assert converse(data, script) == [Status.MISSING, Status.ANSWERED]

    def test_of_local_reports_that_spend_more_than_announced(self, data):
        async def script(fake):
            await fake.announce("r", terms(exposure="local", participations=9))
            tasks = (RANGE, VECTOR, RANGE)  # ε = 0.5 each
            return [(await fake.ask(asked(task, number))).status for number, task in enumerate(tasks)]

        assert converse(data, script) == [Status.ANSWERED, Status.ANSWERED, Status.MISSING]

    def test_of_a_run_that_has_ended(self, data):
        async def script(fake):
            await fake.announce("r", terms())
            before = await fake.ask(asked())
            await fake.to_say.put(federation.ServerMessage(ended=federation.Ended(run="r", how="complete")))
            return before.status, (await fake.ask(asked())).status

        assert converse(data, script) == (Status.ANSWERED, Status.MISSING)

    def test_tell_the_owner_why_and_the_coordinator_nothing(self, data, caplog, monkeypatch):
        def broken(*_, **__):
            raise ValueError("the patient's name is Ada")

        monkeypatch.setattr("quorate_client.federation.work.answer", broken)

        async def script(fake):
            await fake.announce("r", terms())
            return await fake.ask(asked())

        with caplog.at_level(logging.INFO):
            sent = converse(data, script)
        assert sent.status == federation.STATUS_MISSING
        assert b"Ada" not in sent.SerializeToString()
        assert len(sent.values.data) == 8 * D
        assert "Ada" in caplog.text

    def test_leave_questions_without_a_name_and_unknown_messages_unanswered(self, data):
        async def script(fake):
            await fake.announce("r", terms())
            nameless = federation.Question(run="r", digest=b"short")
            await fake.to_say.put(federation.ServerMessage(question=nameless))
            await fake.to_say.put(federation.ServerMessage())
            await fake.to_say.put(federation.ServerMessage(receipt=federation.Receipt(run="r", verdict=9)))
            return await fake.ask(asked())

        assert converse(data, script).status == federation.STATUS_ANSWERED


class TestConsent:
    @pytest.mark.parametrize(
        ("changes", "options", "said"),
        [
            ({"exposure": "model"}, {}, "Expected a run of exposure broadcast, local, got model"),
            ({"simulation": True}, {}, "got a simulation"),
            ({"epsilon": 2.5}, {}, "exceed the lifetime limit 2"),
            ({"epsilon": float("inf"), "exposure": "none"}, {"accept_exposures": ("none",)}, "exceed the lifetime"),
            ({"delta": 1e-4}, {}, "exceed the lifetime limit 1e-05"),
            ({"dimension": D + 1}, {}, "columns that become 4 features, as announced, got 3"),
            ({"columns": {"label": "sick", "numeric": {"height": [0, 3]}}}, {}, r"mine.csv': Expected column 'height'"),
            (
                {"adjacency": "zero-out", "epsilon": 1.5},
                {},
                "its ε = 3 and the 0 spent before exceed the lifetime limit",
            ),
            ({"adjacency": "zero-out", "delta": 5e-6}, {}, "its δ = 1.85914e-05 and"),
            ({"adjacency": "none"}, {}, "got adjacency none"),
            ({"epsilon": 0.0}, {}, "Expected a run of ε > 0"),
            ({"rounds": 0}, {}, "Expected a usable description of the run, got rounds"),
            ({"run": "another"}, {}, "got that of another"),
        ],
    )
    def test_is_refused_and_the_owner_told_why(self, data, caplog, changes, options, said):
        async def script(fake):
            with_changes = await fake.announce("r", terms(**changes))
            return with_changes, (await fake.ask(asked())).status, await fake.announce("r", "{}")

        with caplog.at_level(logging.WARNING):
            assert converse(data, script, **options) == (False, Status.MISSING, False)
        assert said in caplog.text

    def test_is_given_for_an_exposure_that_the_owner_accepts(self, data):
        async def script(fake):
            return await fake.announce("r", terms(exposure="model"))

        assert converse(data, script, accept_exposures=("model",))

    def test_of_a_local_run_is_charged_as_announced(self, data):
        async def script(fake):
            return await fake.announce("r", terms(exposure="local", adjacency="zero-out", epsilon=2.0))

        assert converse(data, script)

    def test_holds_for_the_terms_as_they_were(self, data):
        async def script(fake):
            first = [await fake.announce("r", terms()) for _ in range(2)]
            return [*first, await fake.announce("r", terms(epsilon=0.5)), (await fake.ask(asked())).status]

        assert converse(data, script) == [True, True, False, Status.ANSWERED]

    def test_is_limited_by_the_owner_over_all_runs(self, data):
        async def script(fake):
            found = []
            for run in "abc":
                agreed = await fake.announce(run, terms(run=run))
                found.append((agreed, (await fake.ask(asked(run=run))).status))
            return found

        answered, refused = (True, Status.ANSWERED), (False, Status.MISSING)
        assert converse(data, script) == [answered, answered, refused]
        with Record.open(data.parent / "record.sqlite", epsilon=2.0, delta=1e-5) as record:
            assert record.spent == (2.0, 2e-6)


class TestRandomness:
    @pytest.mark.parametrize("slot", [None, 3])
    @pytest.mark.parametrize("task", [VECTOR, RANGE, CONVOLVED], ids=["vector", "range", "convolution"])
    def test_of_a_simulation_is_that_of_the_inline_engine(self, data, task, slot):
        told = terms(exposure="broadcast", simulation=True, slot=slot)

        async def script(fake):
            assert await fake.announce("r", told)
            return await fake.ask(asked(task, number=4))

        found, status = values(converse(data, script, allow_simulation=True, seed=11), task)
        users = np.array([5 if slot is None else slot])
        loss, batch = read_terms("r", told).make_loss(), own_items(data, read_terms("r", told)).batch
        if task is CONVOLVED:
            wanted = answer(loss, batch, task, keys=user_keys(4, users))
        else:
            wanted = local_report(loss, batch, task, SeededRandomness(11), round=4, users=users)
        assert status == Status.ANSWERED
        assert found.tobytes() == wanted.values[0].tobytes()

    @pytest.mark.parametrize("task", [VECTOR, CONVOLVED], ids=["vector", "convolution"])
    def test_of_a_deployment_is_fresh_each_time(self, data, task):
        async def script(fake):
            await fake.announce("r", terms())
            return [values(await fake.ask(asked(task, number)))[0].tobytes() for number in (4, 5)]

        first = converse(data, script, allow_simulation=True, seed=11)
        (data.parent / "record.sqlite").unlink()
        again = converse(data, script, allow_simulation=True, seed=11)
        assert len({*first, *again}) == 4


class TestTransport:
    @pytest.fixture
    def authority(self, tmp_path):
        return Authority(tmp_path)

    def identity(self, authority, name="client", **options):
        certificate, key = authority.issue(name, **options)
        given = {"certificate": certificate, "key": key, "authority": authority.path}
        return given | {"insecure": False, "client_name": None}

    def test_in_plain_text_gives_the_clients_name(self, data):
        async def script(fake):
            return fake.callers

        ((protocol, metadata, _),) = converse(data, script)
        assert (protocol, metadata["quorate-client"]) == (1, "me")

    def test_by_certificate_tells_the_coordinator_who_it_is(self, data, authority):
        async def script(fake):
            await fake.announce("r", terms())
            return await fake.ask(asked()), fake.callers[0]

        sent, (_, metadata, identity) = converse(
            data, script, credentials=authority.server_credentials(), **self.identity(authority)
        )
        assert sent.status == federation.STATUS_ANSWERED
        assert identity["x509_common_name"] == [b"client"]
        assert "quorate-client" not in metadata

    @pytest.mark.parametrize(
        ("spoil", "said"),
        [
            (lambda given, other: {"certificate": other.issue("old", days=(-9, -2))[0]}, r"old.pem', it expired on 20"),
            (lambda given, other: {"certificate": other.issue("new", days=(2, 9))[0]}, r"new.pem', it begins on 20"),
            (lambda given, other: {"key": other.issue("other")[1]}, r"other-key.pem' to hold the key of .*client.pem'"),
            (
                lambda given, other: dict(zip(("certificate", "key"), other.issue("strange"), strict=True)),
                r"strange.pem' to come from the authority in .*authority.pem', got one from 'CN=elsewhere'",
            ),
            (lambda given, other: {"key": other.issue("shut", password=b"1")[1]}, r"without a password in PEM .*shut"),
            (lambda given, other: {"key": given["certificate"]}, r"a private key .* in .*client.pem', got something"),
            (lambda given, other: {"authority": given["key"]}, r"certificates in PEM form in .*client-key.pem'"),
            (lambda given, other: {"key": given["key"].parent / "no.pem"}, r"no.pem', cannot read it: No such file"),
        ],
        ids=["expired", "too early", "key of another", "authority", "password", "no key", "no authority", "no file"],
    )
    def test_with_a_bad_certificate_is_an_error_that_names_it(self, data, tmp_path, authority, spoil, said):
        given = self.identity(authority)
        given |= spoil(given, Authority(tmp_path, "elsewhere"))
        with pytest.raises(IdentityError, match=said):
            asyncio.run(run_client(made(data, 1, **given)))

    @pytest.mark.parametrize("impostor", ["another authority", "another name"])
    def test_with_a_coordinator_that_is_another_ends_the_client(self, data, tmp_path, authority, impostor):
        if impostor == "another authority":
            credentials = Authority(tmp_path, "elsewhere").server_credentials()
        else:
            credentials = authority.server_credentials(address="192.0.2.1")

        async def scenario():
            async with coordinator(credentials) as fake:
                await run_client(made(data, fake.port, **self.identity(authority)))

        with pytest.raises(IdentityError, match=r"certificate of its name from the authority in '.*authority.pem'"):
            asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("code", "error", "said"),
        [
            (grpc.StatusCode.UNAUTHENTICATED, IdentityError, "to accept 'me', it answers: not one of us"),
            (grpc.StatusCode.PERMISSION_DENIED, IdentityError, "to accept 'me', it answers: not one of us"),
            (grpc.StatusCode.ABORTED, IdentityError, "Expected one client with 'me' at coordinator .*: not one of us"),
            (grpc.StatusCode.FAILED_PRECONDITION, WireError, "a coordinator of protocol 1 at .*: not one of us"),
        ],
    )
    def test_that_is_refused_ends_the_client_with_the_reason(self, data, code, error, said):
        async def scenario():
            async with coordinator(refusal=(code, "not one of us")) as fake:
                await run_client(made(data, fake.port))

        with pytest.raises(error, match=said):
            asyncio.run(scenario())

    def test_without_the_service_ends_the_client(self, data):
        async def scenario():
            server = grpc.aio.server()
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            try:
                async with asyncio.timeout(SECONDS):
                    await run_client(made(data, port))
            finally:
                await server.stop(None)

        with pytest.raises(WireError, match="Expected a coordinator of protocol 1"):
            asyncio.run(scenario())

    def test_comes_back_to_a_coordinator_that_was_away(self, data, caplog):
        async def scenario():
            with socket.socket() as held:  # bound and not listening: nobody there, and nobody else can be
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("127.0.0.1", 0))
                port = held.getsockname()[1]
                async with asyncio.timeout(SECONDS), running(made(data, port)):
                    while "UNAVAILABLE" not in caplog.text:
                        await asyncio.sleep(0.001)
                    for _ in range(2):  # the second time in the middle of a conversation
                        late = FakeCoordinator()
                        await late.start(port=port)
                        await late.hears("hello")
                        await late.server.stop(None)

        with caplog.at_level(logging.INFO):
            asyncio.run(scenario())


class TestTheEnd:
    def test_comes_when_it_is_told_to_stop_whatever_it_waits_for(self, data):
        async def scenario():
            async with asyncio.timeout(SECONDS):
                stop = asyncio.Event()
                stop.set()
                await run_client(made(data, 1), stop=stop)
                async with running(made(data, 1, retry_seconds=3600.0)):  # nobody there
                    await asyncio.sleep(0)

        asyncio.run(scenario())

    def test_comes_with_cancellation_and_leaves_nothing_behind(self, data):
        async def scenario():
            async with coordinator() as fake:
                client = asyncio.create_task(run_client(made(data, fake.port)))
                await fake.hears("hello")
                client.cancel()
                with suppress(asyncio.CancelledError):
                    await client
                assert client.cancelled()
                left = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}
                assert not any("Session" in name or name == "run_client" for name in left)
            with Record.open(data.parent / "record.sqlite", epsilon=1.0, delta=1e-6) as record:
                assert record.spent == (0.0, 0.0)

        asyncio.run(scenario())

    @pytest.mark.parametrize(
        ("spoil", "error", "said"),
        [
            (lambda folder: {"data": folder / "none.csv"}, DataError, r"Expected a table at '.*none.csv', found no"),
            (lambda folder: {"record": folder}, LedgerError, r"Expected a client's record at '.*', cannot open it"),
        ],
    )
    def test_comes_before_anybody_is_called_when_a_file_will_not_do(self, data, tmp_path, spoil, error, said):
        async def scenario():
            async with coordinator() as fake:
                with pytest.raises(error, match=said):
                    await run_client(made(data, fake.port, **spoil(tmp_path)))
                assert fake.callers == []

        asyncio.run(scenario())

    def test_comes_with_an_error_when_the_record_cannot_be_written(self, data, monkeypatch):
        def full(*_, **__):
            raise LedgerError("Expected to read and write the client's record, got: disk full.")

        async def scenario():
            async with coordinator() as fake:
                client = asyncio.create_task(run_client(made(data, fake.port)))
                await fake.hears("hello")
                await fake.announce("r", terms())
                monkeypatch.setattr(Record, "keep", full)
                await fake.to_say.put(federation.ServerMessage(question=asked()))
                with pytest.raises(LedgerError, match="disk full"):
                    await client
                assert fake.heard.empty()

        asyncio.run(scenario())


class TestConfig:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"coordinator": "nowhere"}, "Expected a coordinator host:port, got 'nowhere'"),
            ({"coordinator": "host:0"}, "host:port"),
            ({"coordinator": "host:70000"}, "host:port"),
            ({"coordinator": "dns:///host:7443"}, "host:port"),
            ({"lifetime_epsilon": -1.0}, "lifetime_epsilon >= 0"),
            ({"lifetime_delta": float("nan")}, "lifetime_delta >= 0"),
            ({"accept_exposures": ("public",)}, "accept_exposures among"),
            ({"retry_seconds": 0.0}, "retry_seconds > 0"),
            ({"client_name": None}, "Expected a client_name and no certificate with insecure=True"),
            ({"coordinator": "hub:7443"}, "plaintext is for loopback"),
            ({"coordinator": "10.0.0.1:7443"}, "plaintext is for loopback"),
            ({"client_name": "two words"}, "client_name of letters"),
            ({"insecure": False}, "Expected certificate, key and authority"),
            ({"seed": 3}, "allow_simulation and a seed together"),
            ({"allow_simulation": True}, "allow_simulation and a seed together"),
        ],
    )
    def test_that_cannot_be_meant_is_refused_by_name(self, data, changes, said):
        with pytest.raises(ConfigError, match=said):
            made(data, 7443, **changes)

    def test_takes_an_address_of_either_family(self, data):
        assert made(data, 1, coordinator="[::1]:7443").coordinator == "[::1]:7443"

    def test_takes_plain_text_to_another_machine_by_its_own_word_only(self, data):
        assert made(data, 1, coordinator="hub:7443", insecure_anywhere=True).plaintext

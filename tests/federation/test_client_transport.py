"""How a client reaches its coordinator, comes back, and ends; and what it refuses to begin with."""

import asyncio
import logging

import grpc
import pytest

from fake_coordinator import SECONDS, Authority, coordinator
from federation.conversation import (
    asked,
    made,
    running,
    terms,
)
from quoron_client.federation import Record, run_client
from quoron_privacy.errors import ConfigError, DataError, IdentityError, LedgerError, RunError, WireError
from quoron_protos.v1 import federation_pb2 as federation


def hospital(folder):
    """Visits of 30 patients."""
    (folder / "all.csv").write_text("patient,steps,sick\n" + "".join(f"p{row // 2},{row},1\n" for row in range(60)))
    return {"data": folder / "all.csv"}


def diary(folder):
    """One person's."""
    (folder / "mine.csv").write_text("steps,sick\n" + "".join(f"{row}.5,1\n" for row in range(60)))
    return folder / "mine.csv"


class TestTransport:
    @pytest.fixture
    def authority(self, tmp_path):
        return Authority(tmp_path)

    def identity(self, authority, name="client", **options):
        certificate, key = authority.issue(name, **options)
        given = {"certificate": certificate, "key": key, "authority": authority.path}
        return given | {"insecure": False, "client_name": None}

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

    @pytest.mark.parametrize(
        ("code", "error", "said"),
        [
            (grpc.StatusCode.UNAUTHENTICATED, IdentityError, "to accept 'me', it answers: not one of us"),
            (grpc.StatusCode.PERMISSION_DENIED, IdentityError, "to accept 'me', it answers: not one of us"),
            (grpc.StatusCode.ABORTED, IdentityError, "Expected one client with 'me' at coordinator .*: not one of us"),
            (grpc.StatusCode.FAILED_PRECONDITION, RunError, "to take 'me' in, it answers: not one of us"),
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

        with pytest.raises(WireError, match="Expected a coordinator of protocol 2"):
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

    @pytest.mark.parametrize(
        ("spoil", "error", "said"),
        [
            (lambda folder: {"data": folder / "none.csv"}, DataError, r"Expected a table at '.*none.csv', found no"),
            (
                hospital,
                DataError,
                r"several values in column 1, whose name.* say so with --one-user \(QUORON_ONE_USER=1\)",
            ),
            (lambda folder: {"items_per_user": 2, "data": diary(folder)}, DataError, "the 2 rows that a person holds"),
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

    def test_does_not_come_from_its_data_once_it_has_enrolled(self, data, tmp_path, our_logs):
        """Members are drawn from those who connect: whether it does may be no function of what its owner holds."""

        async def scenario():
            async with coordinator() as fake:
                for changes in ({}, hospital(tmp_path), {"data": tmp_path / "none.csv"}):
                    with our_logs.at_level(logging.WARNING):
                        async with running(made(data, fake.port, **changes)):
                            await fake.hears("hello")

        asyncio.run(scenario())
        assert "This client is enrolled already, so it connects all the same." in our_logs.text

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
        ],
    )
    def test_that_cannot_be_meant_is_refused_by_name(self, data, changes, said):
        with pytest.raises(ConfigError, match=said):
            made(data, 7443, **changes)

"""How a client reaches its coordinator, comes back, and ends; and what it refuses to begin with."""

import asyncio
import logging

import grpc
import pytest

from fake_coordinator import SECONDS, Authority, coordinator
from federation.conversation import (
    made,
    running,
)
from quoron_client.federation import run_client
from quoron_privacy.errors import IdentityError, RunError


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

"""Which certificates are let in, and where a coordinator listens without any."""

import asyncio
import contextlib
import datetime as dt
import sys
import time
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from federation.crowd import (
    Honest,
    Peer,
    carried_out,
    complete,
    coordinator,
    crowd,
    inline_model,
    specification,
    until,
)
from federation.tls import USERS, channel, own_authority, refused, transport
from federation.wires import Wires
from quoron.operate.watching import words
from quoron_client.protocol import wire
from quoron_privacy.errors import ConfigError, IdentityError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Coordinator, ServeConfig, Transport, certificates, client_plane, clock

coordinators = sys.modules[Coordinator.__module__]


@pytest.mark.parametrize("who", ["expired", "of another authority", "without a certificate", "coordinator"])
def test_whoever_has_no_valid_certificate_is_not_let_in(who: str, issued: Path, tmp_path: Path) -> None:
    own = own_authority(issued, tmp_path)
    if who == "expired":
        certificates.issue(own, who, days=-1)
    if who == "of another authority":
        certificates.make_authority(tmp_path / "other", days=1)
        certificates.issue(tmp_path / "other", "stranger", days=1)
        for end in ("pem", "key"):
            (own / f"{who}.{end}").write_bytes((tmp_path / "other" / f"stranger.{end}").read_bytes())
    if who == "coordinator":  # a server's certificate is none for a client
        for end in ("pem", "key"):
            (own / f"{who}.{end}").write_bytes((issued / f"{who}.{end}").read_bytes())

    async def outside() -> tuple[grpc.StatusCode, int]:
        async with coordinator(tmp_path, transport=transport(issued)) as running:
            code = await refused(running.listen, own, None if who == "without a certificate" else who)
            async with channel(running.listen, issued, "client-0") as invited:
                return code, await Peer(invited).enrol()  # nobody had come in before, and it goes on

    assert carried_out(outside()) == (grpc.StatusCode.UNAVAILABLE, 0)


def test_a_connection_that_died_without_a_word_counts_as_none_within_fifty_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a hundred times sooner; gRPC's own minute for an answer to a ping stood beyond them."""
    options, timed = dict(coordinators._CONNECTION), ("grpc.keepalive_time_ms", "grpc.http2.ping_timeout_ms")
    assert sum(options[name] for name in timed) <= 1000 * wire.GONE_AFTER
    hurried = options | {name: options[name] // 100 for name in timed}
    monkeypatch.setattr(coordinators, "_CONNECTION", tuple(hurried.items()))

    async def scene() -> None:
        async with coordinator(tmp_path) as running:
            with Wires(running.listen) as wires:
                async with grpc.aio.insecure_channel(wires.address) as cut:
                    peer = Peer(cut, "ada")
                    await peer.enrol()
                    await peer.hello()
                    assert running.sessions.connected == 1
                    wires.cut.add(0)
                    await until(lambda: not running.sessions.connected)

    carried_out(scene(), within=50.0)


def test_a_clock_that_is_put_back_shuts_nobody_out_and_ends_no_run(
    issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours, in the middle of a round of a run with a quorum: the round is asked again once the clock is right."""
    monkeypatch.setattr(client_plane, "LOOK", 0.01)
    wanted, back = specification("one-pass-dp-sgd", early_ends=True), [0.0]
    monkeypatch.setattr(clock, "_wall", lambda: time.time() - back[0])
    honest = Honest.of(USERS)

    def answering(user: int, question: pb.Question) -> pb.Answer:
        back[0] = 7200.0 if len(honest.asked) == 9 else back[0]  # three rounds of three
        return honest(user, question)

    async def scene() -> np.ndarray:
        opened = transport(issued)
        async with coordinator(tmp_path, transport=opened) as running, contextlib.AsyncExitStack() as stack:

            def own(number: int) -> grpc.aio.Channel:
                return channel(running.listen, issued, f"client-{number}")

            for peer in await stack.enter_async_context(crowd(running.listen, USERS, own)):
                stack.callback(asyncio.create_task(peer.work(answering)).cancel)
            await running.manager.submit(wanted.as_text())
            await until(lambda: running.manager.records.away)
            (run,) = await running.manager.runs()
            assert (run["state"], run["connected"]) == ("paused", USERS)
            assert run["error"].startswith("The coordinator's clock was put back by 7,200 seconds")
            awaited = await running.manager.awaited("trial")
            assert words(awaited).startswith("paused: The coordinator's clock was put back")
            for _ in range(20):  # looks of whoever ends conversations by their certificates
                await asyncio.sleep(0.01)
            assert running.sessions.connected == USERS
            assert len((await running.manager.feed("trial"))._events) <= 3
            back[0] = 0.0
            return await complete(running)

    np.testing.assert_array_equal(carried_out(scene()), inline_model(wanted, tmp_path))
    assert len(honest.asked) > 18  # of six rounds of three clients one was asked twice


def test_plain_text_and_a_name_do_not_get_past_tls(issued: Path, tmp_path: Path) -> None:
    async def outside() -> grpc.StatusCode:
        async with (
            coordinator(tmp_path, transport=transport(issued)) as running,
            grpc.aio.insecure_channel(running.listen) as plain,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Peer(plain, "client-0").enrol()
            return caught.value.code()

    assert carried_out(outside()) == grpc.StatusCode.UNAVAILABLE


def test_a_user_keeps_its_group(issued: Path, tmp_path: Path) -> None:
    own = own_authority(issued, tmp_path)
    certificates.issue(own, "nurse", days=1, unit="ward-3")

    async def moved() -> tuple[int, int, grpc.StatusCode]:
        async with coordinator(tmp_path, transport=transport(issued)) as running:
            async with channel(running.listen, own, "nurse") as first:
                user = await Peer(first).enrol()
            certificates.issue(own, "nurse", days=1, unit="ward-4", renew=True)
            return user, 0, await refused(running.listen, own, "nurse")

    assert carried_out(moved()) == (0, 0, grpc.StatusCode.FAILED_PRECONDITION)


class TestWhatTLSLetsPass:
    """Keys that can be computed, and authorities under one that allows none."""

    def signed(self, name: str, key: object, issuer: x509.Name, signer: object, *, ca: bool = False) -> bytes:
        own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder().subject_name(own).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(now + dt.timedelta(hours=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def put(self, issued: Path, name: str, key: object, chain: bytes) -> None:
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (issued / f"{name}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        (issued / f"{name}.pem").write_bytes(chain)

    @pytest.mark.parametrize(("kind", "let_in"), [("rsa 1024", False), ("rsa 2048", True), ("intermediate", False)])
    def test_is_refused_by_the_service(self, issued: Path, tmp_path: Path, kind: str, let_in: bool) -> None:
        own = own_authority(issued, tmp_path)
        root = certificates.load_certificate(own / "authority.pem")
        signer = serialization.load_pem_private_key((own / "authority.key").read_bytes(), None)
        issuer, chain = root.subject, b""
        if kind == "intermediate":
            between = ec.generate_private_key(ec.SECP256R1())
            chain = self.signed("between", between, issuer, signer, ca=True)
            issuer, signer = x509.load_pem_x509_certificate(chain).subject, between
        if kind.startswith("rsa"):
            key: object = rsa.generate_private_key(65537, int(kind.split()[1]))
        else:
            key = ec.generate_private_key(ec.SECP256R1())
        self.put(own, "odd", key, self.signed("odd", key, issuer, signer) + chain)

        async def scene() -> grpc.StatusCode:
            async with (
                coordinator(tmp_path, transport=transport(issued)) as running,
                channel(running.listen, own, "odd") as odd,
            ):
                try:
                    await Peer(odd).enrol()
                except grpc.aio.AioRpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

        code = carried_out(scene())
        assert code == (grpc.StatusCode.OK if let_in else grpc.StatusCode.UNAUTHENTICATED)

    def test_a_client_of_another_whom_the_authority_lets_issue_is_let_in_while_that_is_trusted(
        self, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_plane, "LOOK", 0.02)
        own = own_authority(issued, tmp_path)
        top, between, key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(4))
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("top", "between", "other")]
        root, another = (
            self.signed(each, signer, name, signer, ca=True)
            for each, signer, name in (("top", top, names[0]), ("other", other, names[2]))
        )
        middle = self.signed("between", between, names[0], top, ca=True)
        self.put(own, "odd", key, self.signed("odd", key, names[1], between) + middle)
        (tmp_path / "both.pem").write_bytes(another + root)

        async def scene() -> tuple[int, grpc.StatusCode]:
            trusted = replace(transport(issued), authority=tmp_path / "both.pem")
            async with (
                coordinator(tmp_path, transport=trusted) as running,
                channel(running.listen, own, "odd") as odd,
            ):
                peer = Peer(odd)
                user = await peer.enrol()
                await peer.hello()
                (tmp_path / "draft").write_bytes(another)  # which lets others issue too, but has not let this one
                (tmp_path / "draft").rename(tmp_path / "both.pem")
                return user, await peer.call.code()

        assert carried_out(scene()) == (0, grpc.StatusCode.FAILED_PRECONDITION)


class TestListening:
    def config(self, tmp_path: Path, transport: Transport, **changes: str) -> ServeConfig:
        database = f"sqlite:///{tmp_path}/c.sqlite"
        return replace(ServeConfig(transport, "127.0.0.1:0", "127.0.0.1:0", database), **changes)

    def test_plain_text_is_refused_off_loopback(self, tmp_path: Path) -> None:
        for changes in ({"listen": "0.0.0.0:0"}, {"control": "0.0.0.0:0"}, {"listen": "example.org:1"}):
            with pytest.raises(ConfigError, match="Expected TLS to listen on"):
                Coordinator(self.config(tmp_path, Transport(insecure=True), **changes))
        Coordinator(self.config(tmp_path, Transport(insecure_anywhere=True), listen="0.0.0.0:0"))

    def test_an_expired_certificate_of_its_own_is_named(self, issued: Path, tmp_path: Path) -> None:
        own = own_authority(issued, tmp_path)
        certificates.issue(own, "late", coordinator=True, days=-1)
        with pytest.raises(IdentityError, match="valid now"):
            Coordinator(self.config(tmp_path, Transport(own / "late.pem", own / "late.key", own / "authority.pem")))

    def test_a_message_of_another_protocol_version_is_refused(self, tmp_path: Path) -> None:
        async def other() -> grpc.StatusCode:
            async with (
                coordinator(tmp_path) as running,
                grpc.aio.insecure_channel(running.listen) as plain,
            ):
                method = plain.unary_unary("/quoron.v1.ClientPlane/Enrol")
                request = pb.EnrolRequest(protocol=3).SerializeToString()
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await method(request, metadata=(("quoron-client", "a"),))
                return caught.value.code()

        assert carried_out(other()) == grpc.StatusCode.FAILED_PRECONDITION

"""Real clients with certificates of their own, over mutual TLS; and how their conversations end."""

import asyncio
import contextlib
import datetime as dt
import shutil
import socket
import ssl
from collections.abc import Callable, Iterator
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
    SEED,
    Honest,
    Peer,
    carried_out,
    complete,
    coordinator,
    crowd,
    from_items,
    inline_model,
    specification,
    until,
    write_items,
)
from federation.tls import USERS, channel, client_config, greeted, own_authority, refused, transport
from federation.wires import Wires
from quoron_client.federation import ClientConfig, run_client
from quoron_client.protocol import identity, wire
from quoron_privacy.errors import ConfigError, IdentityError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Coordinator, ServeConfig, Transport, certificates, client_plane, program, security
from quoron_server.service.certificates import Revocations
from quoron_server.service.security import Trust


@pytest.mark.parametrize(
    ("algorithm", "most"),
    [pytest.param("local-model", wire.MOST, marks=pytest.mark.slow), ("one-pass-dp-sgd", 48), ("local-model", 48)],
)
async def test_twenty_clients_over_tls_give_the_bits_of_the_inline_engine(
    algorithm: str, most: int, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where questions and answers travel in parts of 48 bytes."""
    begin, parted = wire.Reassembler._begin, {pb.Question: 0, pb.Answer: 0}

    def noted(reassembler: wire.Reassembler, head: wire.Long, allowed: int | None) -> None:
        parted[type(head)] += 1
        begin(reassembler, head, allowed)

    monkeypatch.setattr(wire, "MOST", most)
    monkeypatch.setattr(wire.Reassembler, "_begin", noted)
    wanted, paths = specification(algorithm, trust_clients=True), write_items(tmp_path, USERS)

    def config(running: Coordinator, user: int) -> ClientConfig:
        return client_config(
            running.listen,
            issued,
            f"client-{user}",
            paths[user],
            tmp_path / f"record-{user}.sqlite",
            lifetime_epsilon=100.0,
            lifetime_delta=0.5,
            simulation_seed=SEED,
        )

    async with coordinator(tmp_path, transport=transport(issued)) as running:
        for user in range(USERS):  # in order: user i of the table is the i-th to enrol
            async with channel(running.listen, issued, f"client-{user}") as own:
                assert await Peer(own).enrol() == user
        stop = asyncio.Event()
        clients = [asyncio.create_task(run_client(config(running, user), stop=stop)) for user in range(USERS)]
        await running.scheduler.submit(wanted.as_text())
        model = await complete(running)
        stop.set()
        await asyncio.gather(*clients)
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path, from_items(USERS)))
    assert (parted[pb.Question] == parted[pb.Answer] > 0) == (most == 48)


async def test_one_certificate_is_one_user_and_a_renewed_one_the_same(issued: Path, tmp_path: Path) -> None:
    certificates.issue(own_authority(issued, tmp_path), "again", days=1)
    async with coordinator(tmp_path, transport=transport(issued)) as running:
        users = []
        for name in ("again", "again", "client-0", "again"):
            async with channel(running.listen, tmp_path, name) as own:
                users.append(await Peer(own).enrol())
            if name == "client-0":
                certificates.issue(tmp_path, "again", days=1, renew=True)
        assert users == [0, 0, 1, 0]


async def test_a_second_conversation_of_one_certificate_ends_the_first(issued: Path, tmp_path: Path) -> None:
    async with (
        coordinator(tmp_path, transport=transport(issued)) as running,
        greeted(running.listen, issued, "client-0") as first,
        greeted(running.listen, issued, "client-0"),
    ):
        assert running.sessions.connected == 1
        assert await first.call.code() == grpc.StatusCode.ABORTED


class TestRevocation:
    """By the key, so that no renewal undoes it; in the list as it is now."""

    @pytest.mark.parametrize("said", ["a message", "nothing"])
    async def test_ends_a_conversation_before_it_hears_another_question_and_refuses_the_next(
        self, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
    ) -> None:
        monkeypatch.setattr(client_plane, "CERTIFICATE_SECONDS", 0.02 if said == "nothing" else 3600.0)
        own = own_authority(issued, tmp_path)
        certificates.make_authority(own, days=1)
        trusted = replace(transport(issued), revoked=Revocations(own / "revoked.json"))
        async with (
            coordinator(tmp_path, transport=trusted) as running,
            greeted(running.listen, issued, "client-0") as lost,
            greeted(running.listen, issued, "client-1") as kept,
        ):
            assert certificates.revoke(own, "client-0") == own / "revoked.json"
            if said == "a message":
                for peer in (lost, kept):
                    await peer.send(consent=pb.Consent(run="none", takes_part=True))
            codes, words = [await lost.call.code()], {await lost.call.details()}
            codes.append(await refused(running.listen, issued, "client-0"))
            again = Peer(lost.channel, user=lost.user)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await again.hello()
            codes, words = [*codes, caught.value.code()], {*words, caught.value.details()}
            running.sessions.open("later", "{}", np.arange(2))
            await kept.next("run")
            connected = running.sessions.connected
        assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 3
        assert (words, connected) == ({certificates.WORDS}, 1)

    def test_holds_for_a_renewed_certificate_which_is_not_made(self, issued: Path, tmp_path: Path) -> None:
        own = own_authority(issued, tmp_path)
        certificates.revoke(own, "client-0")
        with pytest.raises(ConfigError, match="not revoked"):
            certificates.issue(own, "client-0", days=1, renew=True)
        with pytest.raises(IdentityError, match=r"nobody.certificate\.pem"):
            certificates.revoke(own, "nobody")

    def test_of_nobody_is_known_while_the_list_cannot_be_read_and_it_is_read_again_until_it_can(
        self, tmp_path: Path, our_logs: pytest.LogCaptureFixture
    ) -> None:
        file, bad, worse = tmp_path / "revoked.json", "a" * 64, "b" * 64
        with pytest.raises(ConfigError, match="list of revoked certificates"):
            Revocations(file)
        certificates.revoke_all(file, {bad: "client-7"})
        revoked = Revocations(file)
        for spoilt in ("{", "[]", '{"not a fingerprint": "x"}', None):
            file.unlink() if spoilt is None else file.write_text(spoilt)
            for _ in range(2):
                with pytest.raises(ConfigError, match="list of revoked certificates"):
                    revoked.now()
                assert our_logs.text.count("no client is let in") == 1  # said once
            our_logs.clear()
            file.unlink(missing_ok=True)
            certificates.revoke_all(file, {bad: "client-7"})
            assert bad in revoked.now()
            assert worse not in revoked.now()
        certificates.revoke_all(file, {worse: "client-8"})
        assert {bad, worse} == revoked.now()

    async def test_closes_the_door_to_everybody_while_the_list_cannot_be_read(
        self, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_plane, "CERTIFICATE_SECONDS", 0.02)
        file = tmp_path / "revoked.json"
        certificates.revoke_all(file, {})
        trusted = replace(transport(issued), revoked=Revocations(file))
        async with (
            coordinator(tmp_path, transport=trusted) as running,
            greeted(running.listen, issued, "client-0") as inside,
        ):
            file.write_text("{")
            codes = [await refused(running.listen, issued, "client-1"), await inside.call.code()]
            said = await inside.call.details()
            file.write_text("{}")
            await inside.hello()
            connected = running.sessions.connected
        assert codes == [grpc.StatusCode.UNAVAILABLE] * 2  # which means: come back later
        assert (said, connected) == (certificates.CLOSED, 1)

    def test_ends_the_client_itself_with_the_reason(self, issued: Path, tmp_path: Path) -> None:
        own = own_authority(issued, tmp_path)
        certificates.revoke(own, "client-0")
        trusted = replace(transport(issued), revoked=Revocations(own / "revoked.json"))

        async def scene() -> None:
            async with coordinator(tmp_path, transport=trusted) as running:
                await run_client(
                    client_config(
                        running.listen, issued, "client-0", write_items(tmp_path, 1)[0], tmp_path / "record.sqlite"
                    )
                )

        with pytest.raises(IdentityError, match=r"client-0.certificate\.pem.*was revoked"):
            carried_out(scene())


class TestExpiry:
    """TLS looks at a certificate when a connection begins, and not at all when it is taken up again."""

    def at(self, certificate: Path, ended: bool) -> dt.datetime:
        ends = certificates.load(certificate).not_valid_after_utc
        return ends + dt.timedelta(seconds=1 if ended else -1)

    @pytest.mark.parametrize("said", ["a message", "nothing"])
    async def test_ends_an_open_conversation_and_lets_nobody_in_by_an_open_connection(
        self, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
    ) -> None:
        monkeypatch.setattr(client_plane, "CERTIFICATE_SECONDS", 0.02 if said == "nothing" else 3600.0)
        own = own_authority(issued, tmp_path)
        certificates.issue(own, "late", days=2)
        async with (
            coordinator(tmp_path, transport=transport(issued)) as running,
            channel(running.listen, own, "client-0") as one,
            channel(running.listen, own, "late") as other,
        ):
            ending, lasting = Peer(one), Peer(other)
            monkeypatch.setattr(security, "now", lambda: self.at(own / "client-0/certificate.pem", ended=False))
            for peer in (ending, lasting):
                await peer.enrol()
                await peer.hello()
            monkeypatch.setattr(security, "now", lambda: self.at(own / "client-0/certificate.pem", ended=True))
            if said == "a message":
                for peer in (ending, lasting):
                    await peer.send(answer=pb.Answer(run="none"))
            codes, words = [await ending.call.code()], {await ending.call.details()}
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ending.enrol()
            refused = ending.open()  # nothing is written: gRPC reports a write to an ended stream as an internal error
            codes += [caught.value.code(), await refused.code()]
            words |= {caught.value.details(), await refused.details()}
            await lasting.send(answer=pb.Answer(run="none"))
            await lasting.next("receipt")
            connected = running.sessions.connected
        assert codes == [grpc.StatusCode.FAILED_PRECONDITION] * 3
        assert (words, connected) == ({security.EXPIRED}, 1)

    def test_is_outlived_by_a_client_whose_certificate_is_renewed(
        self, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_plane, "CERTIFICATE_SECONDS", 0.02)
        own = own_authority(issued, tmp_path)
        certificates.issue(own, "mine", days=0.5)

        async def scene() -> int:
            async with coordinator(tmp_path, transport=transport(issued)) as running, asyncio.TaskGroup() as group:
                stop = asyncio.Event()
                config = client_config(
                    running.listen,
                    own,
                    "mine",
                    write_items(tmp_path, 1)[0],
                    tmp_path / "record.sqlite",
                    retry_seconds=0.01,
                )
                group.create_task(run_client(config, stop=stop))
                await until(lambda: running.sessions.connected == 1)
                over = self.at(own / "mine/certificate.pem", ended=True)
                monkeypatch.setattr(security, "now", lambda: over)
                await until(lambda: running.sessions.connected == 0)
                certificates.issue(own, "mine", days=2, renew=True)
                await until(lambda: running.sessions.connected == 1)
                stop.set()
                return len(running.sessions.runs)

        assert carried_out(scene()) == 0


@pytest.mark.parametrize("who", ["expired", "of another authority", "without a certificate", "coordinator", "plain"])
async def test_whoever_has_no_valid_certificate_is_not_let_in(who: str, issued: Path, tmp_path: Path) -> None:
    own = own_authority(issued, tmp_path)
    if who == "expired":
        certificates.issue(own, who, days=-1)
    if who == "of another authority":
        certificates.make_authority(tmp_path / "other", days=1)
        certificates.issue(tmp_path / "other", "stranger", days=1)
        (own / who).mkdir()
        for end in ("certificate", "key"):
            (own / f"{who}/{end}.pem").write_bytes((tmp_path / "other" / f"stranger/{end}.pem").read_bytes())
    if who == "coordinator":  # a server's certificate is none for a client
        (own / who).mkdir()
        for end in ("certificate", "key"):
            (own / f"{who}/{end}.pem").write_bytes((issued / f"{who}/{end}.pem").read_bytes())
    async with coordinator(tmp_path, transport=transport(issued)) as running:
        if who == "plain":  # and a name
            async with grpc.aio.insecure_channel(running.listen) as plain:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await Peer(plain, "client-0").enrol()
            code = caught.value.code()
        else:
            code = await refused(running.listen, own, None if who == "without a certificate" else who)
        async with channel(running.listen, issued, "client-0") as invited:
            found = code, await Peer(invited).enrol()  # nobody had come in before, and it goes on
    assert found == (grpc.StatusCode.UNAVAILABLE, 0)


def test_a_connection_that_died_without_a_word_counts_as_none_within_fifty_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a hundred times sooner; gRPC's own minute for an answer to a ping stood beyond them."""
    options, timed = dict(program._CONNECTION), ("grpc.keepalive_time_ms", "grpc.http2.ping_timeout_ms")
    assert sum(options[name] for name in timed) <= 1000 * wire.GONE_AFTER
    hurried = options | {name: options[name] // 100 for name in timed}
    monkeypatch.setattr(program, "_CONNECTION", tuple(hurried.items()))

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


async def test_a_clock_that_is_put_back_shuts_out_nobody_who_is_connected(
    issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours, in the middle of a round."""
    monkeypatch.setattr(client_plane, "CERTIFICATE_SECONDS", 0.01)
    wanted, back = specification("one-pass-dp-sgd", early_ends=True), [0.0]
    monkeypatch.setattr(security, "now", lambda: dt.datetime.now(dt.UTC) - dt.timedelta(seconds=back[0]))
    honest = Honest.of(USERS)

    def answering(user: int, question: pb.Question) -> pb.Answer:
        back[0] = 7200.0 if len(honest.asked) == 9 else back[0]  # three rounds of three
        return honest(user, question)

    opened = transport(issued)
    async with coordinator(tmp_path, transport=opened) as running, contextlib.AsyncExitStack() as stack:

        def own(number: int) -> grpc.aio.Channel:
            return channel(running.listen, issued, f"client-{number}")

        for peer in await stack.enter_async_context(crowd(running.listen, USERS, own)):
            stack.callback(asyncio.create_task(peer.work(answering)).cancel)
        await running.scheduler.submit(wanted.as_text())
        model = await complete(running)
        assert back[0]
        for _ in range(20):  # looks of whoever ends conversations by their certificates
            await asyncio.sleep(0.01)
        assert running.sessions.connected == USERS
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path))
    assert len(honest.asked) == 18


async def test_a_user_keeps_its_group(issued: Path, tmp_path: Path) -> None:
    own = own_authority(issued, tmp_path)
    certificates.issue(own, "nurse", days=1, unit="ward-3")
    async with coordinator(tmp_path, transport=transport(issued)) as running:
        async with channel(running.listen, own, "nurse") as first:
            user = await Peer(first).enrol()
        certificates.issue(own, "nurse", days=1, unit="ward-4", renew=True)
        found = user, 0, await refused(running.listen, own, "nurse")
    assert found == (0, 0, grpc.StatusCode.FAILED_PRECONDITION)


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
        (issued / name).mkdir(exist_ok=True)
        (issued / f"{name}/key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        (issued / f"{name}/certificate.pem").write_bytes(chain)

    @pytest.mark.parametrize(("kind", "let_in"), [("rsa 1024", False), ("rsa 2048", True), ("intermediate", False)])
    def test_is_refused_by_the_service(self, issued: Path, tmp_path: Path, kind: str, let_in: bool) -> None:
        own = own_authority(issued, tmp_path)
        root = certificates.load(own / "authority.pem")
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

    async def test_a_client_of_another_whom_the_authority_lets_issue_is_let_in_while_that_is_trusted(
        self, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_plane, "CERTIFICATE_SECONDS", 0.02)
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
        trusted = replace(transport(issued), authority=tmp_path / "both.pem")
        async with coordinator(tmp_path, transport=trusted) as running, channel(running.listen, own, "odd") as odd:
            peer = Peer(odd)
            user = await peer.enrol()
            await peer.hello()
            (tmp_path / "draft").write_bytes(another)  # which lets others issue too, but has not let this one
            (tmp_path / "draft").rename(tmp_path / "both.pem")
            found = user, await peer.call.code()
        assert found == (0, grpc.StatusCode.FAILED_PRECONDITION)


class TestListening:
    def config(self, tmp_path: Path, transport: Transport, **changes: str) -> ServeConfig:
        database = f"sqlite:///{tmp_path}/c.sqlite"
        return replace(ServeConfig(transport, "127.0.0.1:0", "127.0.0.1:0", database), **changes)

    def test_plain_text_is_refused_off_loopback(self, tmp_path: Path) -> None:
        for changes in ({"listen": "0.0.0.0:0"}, {"control": "0.0.0.0:0"}, {"listen": "example.org:1"}):
            with pytest.raises(ConfigError, match="Expected TLS at"):
                Coordinator(self.config(tmp_path, Transport(insecure=True), **changes))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """An authority, a coordinator and two clients, which the test may change."""
    folder = tmp_path / "own"
    certificates.make_authority(folder, days=400)
    certificates.issue(folder, "coordinator", coordinator=True, hosts=("localhost", "127.0.0.1"), days=100)
    for name in ("client-0", "client-1"):
        certificates.issue(folder, name, days=100)
    return folder


def succeeded(own: Path) -> bytes:
    """Another authority, which signs from now on: in authority.pem, before those that stood there."""
    fresh = own.parent / "successor"
    certificates.make_authority(fresh, days=500)
    made, file = (fresh / "authority.pem").read_bytes(), own / "authority.pem"
    file.write_bytes(made + file.read_bytes())
    (own / "authority.key").write_bytes((fresh / "authority.key").read_bytes())
    return made


def trusting(folder: Path) -> Trust:
    own = folder / "coordinator"
    return Trust(own / "certificate.pem", own / "key.pem", folder / "authority.pem", of="coordinator")


async def shown(where: str) -> bytes:
    """The certificate that whoever connects is shown now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = where.rpartition(":")

    def connect() -> bytes:
        with socket.create_connection((host, int(port)), 60.0) as plain, context.wrap_socket(plain) as secure:
            return secure.getpeercert(binary_form=True) or b""

    return await asyncio.to_thread(connect)


def der(path: Path) -> bytes:
    return certificates.load(path).public_bytes(certificates.serialization.Encoding.DER)


class TestTheCoordinatorsCertificate:
    """Is the one in its file, at every handshake; a file that does not fit changes nothing."""

    async def test_is_renewed_on_both_ports_without_a_restart_and_open_conversations_go_on(
        self, own: Path, tmp_path: Path
    ) -> None:
        async with (
            coordinator(tmp_path, transport=transport(own)) as running,
            greeted(running.listen, own, "client-0") as peer,
        ):
            old = der(own / "coordinator/certificate.pem")
            assert [await shown(each) for each in (running.listen, running.control)] == [old, old]
            certificates.issue(own, "coordinator", coordinator=True, days=50, renew=True)
            new = der(own / "coordinator/certificate.pem")
            assert [await shown(each) for each in (running.listen, running.control)] == [new, new]
            assert new != old
            async with channel(running.listen, own, "client-1") as later:
                assert await Peer(later).enrol() == 1
            await peer.send(answer=client_plane.pb.Answer(run="none"))
            await peer.next("receipt")
            left = running.days_left()
            assert {name: round(days) for name, days in left.items()} == {
                "coordinator": 50,
                "authority": 400,
                "clients": 100,
            }

    @pytest.mark.parametrize("broken", ["another key", "half of it", "nothing", "over", "an authority that is none"])
    def test_stays_as_it_was_while_what_is_in_its_place_is_broken(
        self, own: Path, broken: str, our_logs: pytest.LogCaptureFixture
    ) -> None:
        held = trusting(own)
        before, whole = held.now(), (own / "coordinator/certificate.pem").read_bytes()
        if broken == "another key":
            (own / "coordinator/key.pem").write_bytes((own / "client-0/key.pem").read_bytes())
        if broken == "half of it":
            (own / "coordinator/certificate.pem").write_bytes(whole[: len(whole) // 2])
        if broken == "nothing":
            (own / "coordinator/certificate.pem").unlink()
        if broken == "over":
            certificates.issue(own, "coordinator", coordinator=True, days=-1, renew=True)
        if broken == "an authority that is none":
            (own / "authority.pem").write_text("soon\n")
        for _ in range(3):
            assert held.now() is before
        assert our_logs.text.count("what was read before goes on") == 1

    def test_trusts_both_authorities_while_their_file_is_half_written(self, own: Path) -> None:
        succeeded(own)
        held, file = trusting(own), own / "authority.pem"
        before, whole = held.now(), file.read_bytes()
        begins = whole.index(b"-----BEGIN", 1)
        for length in range(begins + 5, len(whole) - 2, 50):  # the first of them is whole
            file.write_bytes(whole[:length])
            assert held.now() is before
        fresh = own.parent / "fresh"
        certificates.make_authority(fresh, days=400)
        certificates.issue(fresh, "coordinator", coordinator=True, days=100)
        for name in (
            "authority.pem",
            "coordinator/key.pem",
            "coordinator/certificate.pem",
        ):  # one after the other, as people do
            (own / name).write_bytes((fresh / name).read_bytes())
            found = held.now()
        assert found.chain == (fresh / "coordinator/certificate.pem").read_bytes()
        assert found.roots == (fresh / "authority.pem").read_bytes()

    def test_is_warned_of_from_thirty_days_on_once_a_day(
        self, own: Path, our_logs: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held, began = trusting(own), security.now()
        for days, lines in ((69.0, 0), (70.5, 1), (70.9, 1), (71.6, 2), (101.0, 3), (371.0, 5)):
            monkeypatch.setattr(security, "now", lambda days=days: began + dt.timedelta(days=days))
            held.now()
            assert len([line for line in our_logs.text.splitlines() if "WARNING" in line]) == lines
        assert "coordinator/certificate.pem, ends in 29 days. Renew it before" in our_logs.text
        assert "coordinator/certificate.pem, ended 271 days ago" in our_logs.text
        assert "authority.pem, ends in 29 days" in our_logs.text


class TestAChangeOfAuthority:
    """Both are trusted while they stand in one file, and every certificate is renewed in its own time."""

    async def test_lets_in_clients_of_both_and_none_of_the_old_one_afterwards(
        self, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_plane, "CERTIFICATE_SECONDS", 0.02)
        old = own.parent / "old"
        shutil.copytree(own, old)
        async with (
            coordinator(tmp_path, transport=transport(own)) as running,
            greeted(running.listen, old, "client-0") as before,
        ):
            fresh = succeeded(own)
            certificates.issue(own, "client-1", days=10, renew=True)
            async with greeted(running.listen, own, "client-1") as after:
                certificates.issue(own, "coordinator", coordinator=True, days=10, renew=True)
                (own / "authority.pem").write_bytes(fresh)
                certificates.make_authority(own, days=400)  # which hands it out
                code, said = await before.call.code(), await before.call.details()
                await after.send(answer=client_plane.pb.Answer(run="none"))
                await after.next("receipt")
                again = Peer(before.channel)  # by the connection of before, on which nobody shakes hands any more
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await again.enrol()
                assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            (old / "authority.pem").write_bytes((own / "authority.pem").read_bytes())
            assert await refused(running.listen, old, "client-0") == grpc.StatusCode.UNAVAILABLE
            connected = running.sessions.connected
        assert code == grpc.StatusCode.FAILED_PRECONDITION  # its own may be renewed, so it goes on
        assert said == client_plane.security.STRANGE
        assert connected <= 1

    def test_leaves_a_client_its_own_certificate_while_one_authority_of_its_file_is_good(self, own: Path) -> None:
        files = own / "client-0/certificate.pem", own / "client-0/key.pem", own / "authority.pem"
        good = files[2].read_bytes()
        certificates.make_authority(own.parent / "over", days=-1)
        over = (own.parent / "over" / "authority.pem").read_bytes()
        for bundle in (good + over, over + good):
            files[2].write_bytes(bundle)
            identity.check_identity(*files)
        files[2].write_bytes(over)
        with pytest.raises(IdentityError, match=r"authority\.pem.*expired"):
            identity.check_identity(*files)


class TestTheList:
    """Of every certificate: kind, name, days, revoked or not; as text and as JSON."""

    def test_has_the_same_user_also_when_it_is_renewed_where_its_key_is_no_more(self, own: Path) -> None:
        before = {each.name: each.fingerprint for each in certificates.every(own)}
        (own / "client-0/key.pem").unlink()  # handed out, and kept nowhere else
        certificates.issue(own, "client-0", days=200, renew=True)
        assert {each.name: each.fingerprint for each in certificates.every(own)} == before
        assert not (own / "client-0/key.pem").exists()
        (own / "client-1/key.pem").write_bytes((own / "coordinator/key.pem").read_bytes())
        with pytest.raises(IdentityError, match=r"to be the key of .*client-1.certificate\.pem"):
            certificates.issue(own, "client-1", days=200, renew=True)


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
DATA, HEADERS, SETTINGS = 0, 1, 4  # kinds of HTTP/2 frames
END = 1  # flag: of a stream, and an answer to settings


class Client:
    """The client's certificate, one version of TLS, and the session of the connection before."""

    def __init__(self, where: str, folder: Path, version: ssl.TLSVersion) -> None:
        self.port = int(where.rpartition(":")[2])
        self.context = ssl.create_default_context(cafile=folder / "authority.pem")
        self.context.load_cert_chain(folder / "client-0/certificate.pem", folder / "client-0/key.pem")
        self.context.minimum_version = self.context.maximum_version = version
        self.context.set_alpn_protocols(["h2"])
        self.session: ssl.SSLSession | None = None

    def call(self, method: str, message: bytes) -> tuple[bool, bytes]:
        """Whether the session was taken up, and the answer to one call: its messages and trailers as they came."""
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=60) as plain,
            self.context.wrap_socket(plain, server_hostname="127.0.0.1", session=self.session) as tls,
        ):
            fields = {":method": "POST", ":scheme": "https", ":path": f"/{client_plane.SERVICE}/{method}"}
            fields |= {":authority": "127.0.0.1", "te": "trailers", "content-type": "application/grpc"}
            pairs = [(name.encode(), value.encode()) for name, value in fields.items()]
            block = b"".join(b"\0%c%s%c%s" % (len(name), name, len(value), value) for name, value in pairs)
            body = b"\0" + len(message).to_bytes(4, "big") + message
            hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")
            tls.sendall(hello + frame(HEADERS, 4, 1, block) + frame(DATA, END, 1, body))
            answer = b""
            for kind, flags, stream, payload in frames(tls.recv):
                if kind == SETTINGS and not flags:
                    tls.sendall(frame(SETTINGS, END, 0, b""))
                if stream == 1 and kind in (DATA, HEADERS):
                    answer += payload
                    if flags & END:
                        break
            self.session = tls.session
            return bool(tls.session_reused), answer


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def frames(receive: Callable[[int], bytes]) -> Iterator[tuple[int, int, int, bytes]]:
    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = receive(size - len(data))
            assert part, "the connection has ended"
            data += part
        return data

    while True:
        head = exactly(9)
        yield head[3], head[4], int.from_bytes(head[5:], "big"), exactly(int.from_bytes(head[:3], "big"))


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("lost", ["expired", "revoked"])
async def test_a_session_taken_up_again_lets_nobody_in_whose_certificate_is_no_longer_good(
    version: ssl.TLSVersion, lost: str, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "revoked.json"
    certificates.revoke_all(listed, {})
    trusted = replace(transport(issued), revoked=Revocations(listed))
    own = certificates.load(issued / "client-0/certificate.pem")
    enrolment = pb.EnrolRequest(protocol=2).SerializeToString()
    hello = pb.ClientMessage(hello=pb.Hello(protocol=2)).SerializeToString()
    async with coordinator(tmp_path, transport=trusted) as running:
        await running.scheduler.enrol("somebody", security.EVERYONE)
        store = pb.Store(**await running.scheduler.records.store(security.EVERYONE, 0))
        reply = pb.EnrolReply(user=1, store=store).SerializeToString()
        client = Client(running.listen, issued, version)
        heard = [await asyncio.to_thread(client.call, "Enrol", enrolment) for _ in "ab"]
        if lost == "expired":
            over = own.not_valid_after_utc + dt.timedelta(seconds=1)
            monkeypatch.setattr(security, "now", lambda: over)
        else:
            certificates.revoke_all(listed, {certificates.fingerprint(own): "client"})
        for method, message in (("Enrol", enrolment), ("Work", hello)):
            heard.append(await asyncio.to_thread(client.call, method, message))
        assert running.sessions.connected == 0
        (reply, (first, again, *later)) = reply, heard
    accepted = b"\0" + len(reply).to_bytes(4, "big") + reply
    assert (first[0], again[0]) == (False, True), "otherwise this shows nothing"
    assert accepted in first[1]
    assert accepted in again[1]
    words = security.EXPIRED if lost == "expired" else certificates.WORDS
    for taken_up, answer in later:
        assert taken_up, "TLS itself lets it in"
        assert words.encode() in answer
        assert accepted not in answer

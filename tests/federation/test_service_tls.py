"""Real clients with certificates of their own, over mutual TLS; and everybody who must not come in."""

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from federation.crowd import (
    SEED,
    Peer,
    carried_out,
    complete,
    coordinator,
    from_items,
    inline_model,
    specification,
    write_items,
)
from quoron_client.federation import ClientConfig, run_client
from quoron_protos.errors import ConfigError, IdentityError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Coordinator, ServeConfig, Transport, certificates, client_plane, revocation
from quoron_server.service.revocation import Revocations

USERS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a coordinator's certificate, and certificates of twenty clients."""
    path = tmp_path_factory.mktemp("certificates")
    certificates.make_authority(path, days=2)
    certificates.issue(path, "coordinator", coordinator=True, hosts=("localhost", "127.0.0.1"), days=1)
    for user in range(USERS):
        certificates.issue(path, f"client-{user}", days=1)
    return path


def transport(folder: Path) -> Transport:
    return Transport(folder / "coordinator.pem", folder / "coordinator.key", folder / "authority.pem")


def channel(where: str, folder: Path, name: str | None, authority: str = "authority") -> grpc.aio.Channel:
    """A client's secure channel, with its certificate if it has one."""
    pair = [None, None] if name is None else [(folder / f"{name}.{end}").read_bytes() for end in ("key", "pem")]
    credentials = grpc.ssl_channel_credentials((folder / f"{authority}.pem").read_bytes(), *pair)
    return grpc.aio.secure_channel(where, credentials)


async def refused(where: str, folder: Path, name: str | None) -> grpc.StatusCode:
    async with channel(where, folder, name) as own:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Peer(own).enrol()
    return caught.value.code()


@pytest.mark.parametrize("algorithm", ["one-pass-dp-sgd", "mean-sgd", "local-model"])
def test_twenty_clients_over_tls_give_the_bits_of_the_inline_engine(
    algorithm: str, folder: Path, tmp_path: Path
) -> None:
    wanted, paths = specification(algorithm, trust_clients=True), write_items(tmp_path, USERS)

    async def federated() -> np.ndarray:
        async with coordinator(tmp_path, transport=transport(folder)) as running:
            for user in range(USERS):  # in order: user i of the table is the i-th to enrol
                async with channel(running.listen, folder, f"client-{user}") as own:
                    assert await Peer(own).enrol() == user
            stop = asyncio.Event()
            clients = [asyncio.create_task(run_client(config(running, user), stop=stop)) for user in range(USERS)]
            await running.manager.submit(wanted.as_text())
            model = await complete(running)
            stop.set()
            await asyncio.gather(*clients)
            return model

    def config(running: Coordinator, user: int) -> ClientConfig:
        return ClientConfig(
            coordinator=running.listen,
            data=paths[user],
            record=tmp_path / f"record-{user}.sqlite",
            lifetime_epsilon=100.0,
            lifetime_delta=0.5,
            certificate=folder / f"client-{user}.pem",
            key=folder / f"client-{user}.key",
            authority=folder / "authority.pem",
            allow_simulation=True,
            seed=SEED,
        )

    model = carried_out(federated())
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path, from_items(USERS)))


def test_one_certificate_is_one_user_and_a_renewed_one_the_same(folder: Path, tmp_path: Path) -> None:
    certificates.issue(tmp_path_authority(folder, tmp_path), "again", days=1)

    async def enrolled() -> list[int]:
        async with coordinator(tmp_path, transport=transport(folder)) as running:
            users = []
            for name in ("again", "again", "client-0", "again"):
                async with channel(running.listen, tmp_path, name) as own:
                    users.append(await Peer(own).enrol())
                if name == "client-0":
                    certificates.issue(tmp_path, "again", days=1, renew=True)
            return users

    assert carried_out(enrolled()) == [0, 0, 1, 0]


def tmp_path_authority(folder: Path, to: Path) -> Path:
    """The same authority and first client in a folder of one's own."""
    for name in ("authority", "client-0"):
        for end in ("pem", "key"):
            (to / f"{name}.{end}").write_bytes((folder / f"{name}.{end}").read_bytes())
    return to


def test_a_second_conversation_of_one_certificate_ends_the_first(folder: Path, tmp_path: Path) -> None:
    async def twice() -> grpc.StatusCode:
        async with (
            coordinator(tmp_path, transport=transport(folder)) as running,
            channel(running.listen, folder, "client-0") as one,
            channel(running.listen, folder, "client-0") as other,
        ):
            first, second = Peer(one), Peer(other)
            for peer in (first, second):
                await peer.enrol()
                await peer.hello()
            assert running.rooms.connected == 1
            return await first.call.code()

    assert carried_out(twice()) == grpc.StatusCode.ABORTED


@pytest.mark.parametrize("who", ["expired", "of another authority", "without a certificate", "coordinator"])
def test_whoever_has_no_valid_certificate_is_not_let_in(who: str, folder: Path, tmp_path: Path) -> None:
    own = tmp_path_authority(folder, tmp_path)
    if who == "expired":
        certificates.issue(own, who, days=-1)
    if who == "of another authority":
        certificates.make_authority(tmp_path / "other", days=1)
        certificates.issue(tmp_path / "other", "stranger", days=1)
        for end in ("pem", "key"):
            (own / f"{who}.{end}").write_bytes((tmp_path / "other" / f"stranger.{end}").read_bytes())
    if who == "coordinator":  # a server's certificate is none for a client
        for end in ("pem", "key"):
            (own / f"{who}.{end}").write_bytes((folder / f"{who}.{end}").read_bytes())

    async def outside() -> tuple[grpc.StatusCode, int]:
        async with coordinator(tmp_path, transport=transport(folder)) as running:
            code = await refused(running.listen, own, None if who == "without a certificate" else who)
            async with channel(running.listen, folder, "client-0") as invited:
                return code, await Peer(invited).enrol()  # nobody had come in before, and it goes on

    assert carried_out(outside()) == (grpc.StatusCode.UNAVAILABLE, 0)


def test_plain_text_and_a_name_do_not_get_past_tls(folder: Path, tmp_path: Path) -> None:
    async def outside() -> grpc.StatusCode:
        async with (
            coordinator(tmp_path, transport=transport(folder)) as running,
            grpc.aio.insecure_channel(running.listen) as plain,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Peer(plain, "client-0").enrol()
            return caught.value.code()

    assert carried_out(outside()) == grpc.StatusCode.UNAVAILABLE


def test_a_user_keeps_its_group(folder: Path, tmp_path: Path) -> None:
    own = tmp_path_authority(folder, tmp_path)
    certificates.issue(own, "nurse", days=1, unit="ward-3")

    async def moved() -> tuple[int, int, grpc.StatusCode]:
        async with coordinator(tmp_path, transport=transport(folder)) as running:
            async with channel(running.listen, own, "nurse") as first:
                user = await Peer(first).enrol()
            certificates.issue(own, "nurse", days=1, unit="ward-4", renew=True)
            return user, 0, await refused(running.listen, own, "nurse")

    assert carried_out(moved()) == (0, 0, grpc.StatusCode.FAILED_PRECONDITION)


class TestRevocation:
    """By the key, so that no renewal undoes it; in the list as it is now."""

    def test_ends_a_conversation_and_lets_nobody_in_again(self, folder: Path, tmp_path: Path) -> None:
        own = tmp_path_authority(folder, tmp_path)
        certificates.make_authority(own, days=1)
        trusted = replace(transport(folder), revoked=Revocations(own / "revoked.json"))

        async def scene() -> tuple[list[grpc.StatusCode], str, bool]:
            async with (
                coordinator(tmp_path, transport=trusted) as running,
                channel(running.listen, folder, "client-0") as bad,
                channel(running.listen, folder, "client-1") as good,
            ):
                lost, kept = Peer(bad), Peer(good)
                for peer in (lost, kept):
                    await peer.enrol()
                    await peer.hello()
                assert certificates.revoke(own, "client-0") == own / "revoked.json"
                for peer in (lost, kept):
                    await peer.send(consent=pb.Consent(run="none", takes_part=True))
                codes, again = [await lost.call.code()], Peer(bad)
                codes.append(await refused(running.listen, folder, "client-0"))
                again.user = lost.user
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await again.hello()
                codes.append(caught.value.code())
                await kept.send(answer=pb.Answer(run="none"))
                await kept.next("receipt")
                return codes, caught.value.details(), running.rooms.connected == 1

        codes, said, alone = carried_out(scene())
        assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 3
        assert "was revoked" in said
        assert alone

    def test_ends_a_conversation_with_a_client_that_only_listens_before_it_hears_another_question(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_plane, "LOOK", 0.02)
        own = tmp_path_authority(folder, tmp_path)
        certificates.make_authority(own, days=1)
        trusted = replace(transport(folder), revoked=Revocations(own / "revoked.json"))

        async def scene() -> tuple[grpc.StatusCode, str, int]:
            async with (
                coordinator(tmp_path, transport=trusted) as running,
                channel(running.listen, folder, "client-0") as bad,
                channel(running.listen, folder, "client-1") as good,
            ):
                lost, kept = Peer(bad), Peer(good)
                for peer in (lost, kept):
                    await peer.enrol()
                    await peer.hello()
                certificates.revoke(own, "client-0")
                code, said = await lost.call.code(), await lost.call.details()
                running.rooms.open("later", "{}", np.arange(2))
                await kept.next("run")
                return code, said, running.rooms.connected

        code, said, connected = carried_out(scene())
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert said == revocation.WORDS
        assert connected == 1

    def test_ends_the_client_itself_with_the_reason(self, folder: Path, tmp_path: Path) -> None:
        own = tmp_path_authority(folder, tmp_path)
        certificates.revoke(own, "client-0")
        trusted = replace(transport(folder), revoked=Revocations(own / "revoked.json"))

        async def scene() -> None:
            async with coordinator(tmp_path, transport=trusted) as running:
                await run_client(
                    ClientConfig(
                        coordinator=running.listen,
                        data=write_items(tmp_path, 1)[0],
                        record=tmp_path / "record.sqlite",
                        lifetime_epsilon=1.0,
                        lifetime_delta=1e-6,
                        certificate=folder / "client-0.pem",
                        key=folder / "client-0.key",
                        authority=folder / "authority.pem",
                    )
                )

        with pytest.raises(IdentityError, match=r"client-0\.pem.*was revoked"):
            carried_out(scene())

    def test_holds_for_a_renewed_certificate_which_is_not_made(self, folder: Path, tmp_path: Path) -> None:
        own = tmp_path_authority(folder, tmp_path)
        certificates.revoke(own, "client-0")
        with pytest.raises(ConfigError, match="not revoked"):
            certificates.issue(own, "client-0", days=1, renew=True)
        with pytest.raises(IdentityError, match=r"nobody\.pem"):
            certificates.revoke(own, "nobody")

    def test_stays_in_force_while_the_list_cannot_be_read(
        self, tmp_path: Path, our_logs: pytest.LogCaptureFixture
    ) -> None:
        file, bad, worse = tmp_path / "revoked.json", "a" * 64, "b" * 64
        with pytest.raises(ConfigError, match="list of revoked certificates"):
            Revocations(file)
        revocation.add(file, bad, name="client-7")
        revoked = Revocations(file)
        for spoilt in ("{", "[]", '{"not a fingerprint": "x"}', None):
            file.unlink() if spoilt is None else file.write_text(spoilt)
            assert bad in revoked
            assert our_logs.text.count("stays in force") == 1
            assert bad in revoked  # and said once
            assert our_logs.text.count("stays in force") == 1
            our_logs.clear()
        revocation.add(file, worse, name="client-8")
        assert worse in revoked
        assert bad not in revoked


class TestListening:
    def config(self, tmp_path: Path, transport: Transport, **changes: str) -> ServeConfig:
        database = f"sqlite:///{tmp_path}/c.sqlite"
        return replace(ServeConfig(transport, "127.0.0.1:0", "127.0.0.1:0", database), **changes)

    def test_plain_text_is_refused_off_loopback(self, tmp_path: Path) -> None:
        for changes in ({"listen": "0.0.0.0:0"}, {"control": "0.0.0.0:0"}, {"listen": "example.org:1"}):
            with pytest.raises(ConfigError, match="Expected TLS to listen on"):
                Coordinator(self.config(tmp_path, Transport(insecure=True), **changes))
        Coordinator(self.config(tmp_path, Transport(insecure_anywhere=True), listen="0.0.0.0:0"))

    def test_plain_text_knows_no_certificates_to_refuse(self, tmp_path: Path) -> None:
        revocation.make(tmp_path / "revoked.json")
        mixed = Transport(insecure=True, revoked=Revocations(tmp_path / "revoked.json"))
        with pytest.raises(ConfigError, match="either TLS files or --insecure"):
            Coordinator(self.config(tmp_path, mixed))

    def test_without_a_word_about_plain_text_certificates_are_needed(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="quoron certs"):
            Coordinator(self.config(tmp_path, Transport()))

    def test_a_key_of_another_certificate_is_named(self, folder: Path, tmp_path: Path) -> None:
        mixed = Transport(folder / "coordinator.pem", folder / "client-0.key", folder / "authority.pem")
        with pytest.raises(IdentityError, match=r"to be the key of .*coordinator\.pem"):
            Coordinator(self.config(tmp_path, mixed))

    def test_an_expired_certificate_of_its_own_is_named(self, folder: Path, tmp_path: Path) -> None:
        own = tmp_path_authority(folder, tmp_path)
        certificates.issue(own, "late", coordinator=True, days=-1)
        with pytest.raises(IdentityError, match="valid now"):
            Coordinator(self.config(tmp_path, Transport(own / "late.pem", own / "late.key", own / "authority.pem")))

    def test_a_port_in_use_is_named(self, tmp_path: Path) -> None:
        async def second() -> None:
            async with coordinator(tmp_path) as running:
                (tmp_path / "other").mkdir()
                taken = self.config(tmp_path / "other", Transport(insecure=True), listen=running.listen)
                async with Coordinator(taken):
                    pass

        with pytest.raises(ConfigError, match="in use"):
            carried_out(second())

    def test_a_message_of_another_protocol_version_is_refused(self, tmp_path: Path) -> None:
        async def other() -> grpc.StatusCode:
            async with (
                coordinator(tmp_path) as running,
                grpc.aio.insecure_channel(running.listen) as plain,
            ):
                method = plain.unary_unary("/quoron.v1.ClientPlane/Enrol")
                request = pb.EnrolRequest(protocol=2).SerializeToString()
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await method(request, metadata=(("quoron-client", "a"),))
                return caught.value.code()

        assert carried_out(other()) == grpc.StatusCode.FAILED_PRECONDITION

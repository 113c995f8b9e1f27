"""Real clients with certificates of their own, over mutual TLS; and how their conversations end."""

import asyncio
import datetime as dt
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
from federation.tls import USERS, channel, client_config, own_authority, refused, transport
from quoron_client.federation import ClientConfig, run_client
from quoron_privacy.errors import ConfigError, IdentityError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Coordinator, certificates, client_plane, revocation, security
from quoron_server.service.revocation import Revocations


@pytest.mark.parametrize("algorithm", ["one-pass-dp-sgd", "recentred-sgd", "local-model"])
def test_twenty_clients_over_tls_give_the_bits_of_the_inline_engine(
    algorithm: str, issued: Path, tmp_path: Path
) -> None:
    wanted, paths = specification(algorithm, trust_clients=True), write_items(tmp_path, USERS)

    async def federated() -> np.ndarray:
        async with coordinator(tmp_path, transport=transport(issued)) as running:
            for user in range(USERS):  # in order: user i of the table is the i-th to enrol
                async with channel(running.listen, issued, f"client-{user}") as own:
                    assert await Peer(own).enrol() == user
            stop = asyncio.Event()
            clients = [asyncio.create_task(run_client(config(running, user), stop=stop)) for user in range(USERS)]
            await running.manager.submit(wanted.as_text())
            model = await complete(running)
            stop.set()
            await asyncio.gather(*clients)
            return model

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

    model = carried_out(federated())
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path, from_items(USERS)))


def test_one_certificate_is_one_user_and_a_renewed_one_the_same(issued: Path, tmp_path: Path) -> None:
    certificates.issue(own_authority(issued, tmp_path), "again", days=1)

    async def enrolled() -> list[int]:
        async with coordinator(tmp_path, transport=transport(issued)) as running:
            users = []
            for name in ("again", "again", "client-0", "again"):
                async with channel(running.listen, tmp_path, name) as own:
                    users.append(await Peer(own).enrol())
                if name == "client-0":
                    certificates.issue(tmp_path, "again", days=1, renew=True)
            return users

    assert carried_out(enrolled()) == [0, 0, 1, 0]


def test_a_second_conversation_of_one_certificate_ends_the_first(issued: Path, tmp_path: Path) -> None:
    async def twice() -> grpc.StatusCode:
        async with (
            coordinator(tmp_path, transport=transport(issued)) as running,
            channel(running.listen, issued, "client-0") as one,
            channel(running.listen, issued, "client-0") as other,
        ):
            first, second = Peer(one), Peer(other)
            for peer in (first, second):
                await peer.enrol()
                await peer.hello()
            assert running.sessions.connected == 1
            return await first.call.code()

    assert carried_out(twice()) == grpc.StatusCode.ABORTED


class TestRevocation:
    """By the key, so that no renewal undoes it; in the list as it is now."""

    def test_ends_a_conversation_and_lets_nobody_in_again(self, issued: Path, tmp_path: Path) -> None:
        own = own_authority(issued, tmp_path)
        certificates.make_authority(own, days=1)
        trusted = replace(transport(issued), revoked=Revocations(own / "revoked.json"))

        async def scene() -> tuple[list[grpc.StatusCode], str, bool]:
            async with (
                coordinator(tmp_path, transport=trusted) as running,
                channel(running.listen, issued, "client-0") as bad,
                channel(running.listen, issued, "client-1") as good,
            ):
                lost, kept = Peer(bad), Peer(good)
                for peer in (lost, kept):
                    await peer.enrol()
                    await peer.hello()
                assert certificates.revoke(own, "client-0") == own / "revoked.json"
                for peer in (lost, kept):
                    await peer.send(consent=pb.Consent(run="none", takes_part=True))
                codes, again = [await lost.call.code()], Peer(bad)
                codes.append(await refused(running.listen, issued, "client-0"))
                again.user = lost.user
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await again.hello()
                codes.append(caught.value.code())
                await kept.send(answer=pb.Answer(run="none"))
                await kept.next("receipt")
                return codes, caught.value.details(), running.sessions.connected == 1

        codes, said, alone = carried_out(scene())
        assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 3
        assert "was revoked" in said
        assert alone

    def test_ends_a_conversation_with_a_client_that_only_listens_before_it_hears_another_question(
        self, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_plane, "LOOK", 0.02)
        own = own_authority(issued, tmp_path)
        certificates.make_authority(own, days=1)
        trusted = replace(transport(issued), revoked=Revocations(own / "revoked.json"))

        async def scene() -> tuple[grpc.StatusCode, str, int]:
            async with (
                coordinator(tmp_path, transport=trusted) as running,
                channel(running.listen, issued, "client-0") as bad,
                channel(running.listen, issued, "client-1") as good,
            ):
                lost, kept = Peer(bad), Peer(good)
                for peer in (lost, kept):
                    await peer.enrol()
                    await peer.hello()
                certificates.revoke(own, "client-0")
                code, said = await lost.call.code(), await lost.call.details()
                running.sessions.open("later", "{}", np.arange(2))
                await kept.next("run")
                return code, said, running.sessions.connected

        code, said, connected = carried_out(scene())
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert said == revocation.WORDS
        assert connected == 1

    def test_holds_for_a_renewed_certificate_which_is_not_made(self, issued: Path, tmp_path: Path) -> None:
        own = own_authority(issued, tmp_path)
        certificates.revoke(own, "client-0")
        with pytest.raises(ConfigError, match="not revoked"):
            certificates.issue(own, "client-0", days=1, renew=True)
        with pytest.raises(IdentityError, match=r"nobody\.pem"):
            certificates.revoke(own, "nobody")

    def test_of_nobody_is_known_while_the_list_cannot_be_read_and_it_is_read_again_until_it_can(
        self, tmp_path: Path, our_logs: pytest.LogCaptureFixture
    ) -> None:
        file, bad, worse = tmp_path / "revoked.json", "a" * 64, "b" * 64
        with pytest.raises(ConfigError, match="list of revoked certificates"):
            Revocations(file)
        revocation.add(file, bad, name="client-7")
        revoked = Revocations(file)
        for spoilt in ("{", "[]", '{"not a fingerprint": "x"}', None):
            file.unlink() if spoilt is None else file.write_text(spoilt)
            for _ in range(2):
                with pytest.raises(ConfigError, match="list of revoked certificates"):
                    revoked.now()
                assert our_logs.text.count("no client is let in") == 1  # said once
            our_logs.clear()
            file.unlink(missing_ok=True)
            revocation.add(file, bad, name="client-7")
            assert bad in revoked
            assert worse not in revoked
        revocation.add(file, worse, name="client-8")
        assert {bad, worse} == revoked.now()

    def test_closes_the_door_to_everybody_while_the_list_cannot_be_read(
        self, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_plane, "LOOK", 0.02)
        file = tmp_path / "revoked.json"
        revocation.make(file)
        trusted = replace(transport(issued), revoked=Revocations(file))

        async def scene() -> tuple[list[grpc.StatusCode], str, int]:
            async with (
                coordinator(tmp_path, transport=trusted) as running,
                channel(running.listen, issued, "client-0") as one,
            ):
                inside = Peer(one)
                await inside.enrol()
                await inside.hello()
                file.write_text("{")
                codes = [await refused(running.listen, issued, "client-1"), await inside.call.code()]
                said = await inside.call.details()
                file.write_text("{}")
                await inside.hello()
                return codes, said, running.sessions.connected

        codes, said, connected = carried_out(scene())
        assert codes == [grpc.StatusCode.UNAVAILABLE] * 2  # which means: come back later
        assert (said, connected) == (revocation.CLOSED, 1)


class TestExpiry:
    """TLS looks at a certificate when a connection begins, and not at all when it is taken up again."""

    def at(self, certificate: Path, ended: bool) -> dt.datetime:
        ends = certificates.load_certificate(certificate).not_valid_after_utc
        return ends + dt.timedelta(seconds=1 if ended else -1)

    @pytest.mark.parametrize("said", ["a message", "nothing"])
    def test_ends_an_open_conversation_and_lets_nobody_in_by_an_open_connection(
        self, issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
    ) -> None:
        monkeypatch.setattr(client_plane, "LOOK", 0.02 if said == "nothing" else 3600.0)
        own = own_authority(issued, tmp_path)
        certificates.issue(own, "late", days=2)

        async def scene() -> tuple[list[grpc.StatusCode], set[str], int]:
            async with (
                coordinator(tmp_path, transport=transport(issued)) as running,
                channel(running.listen, own, "client-0") as one,
                channel(running.listen, own, "late") as other,
            ):
                ending, lasting = Peer(one), Peer(other)
                monkeypatch.setattr(security, "now", lambda: self.at(own / "client-0.pem", ended=False))
                for peer in (ending, lasting):
                    await peer.enrol()
                    await peer.hello()
                monkeypatch.setattr(security, "now", lambda: self.at(own / "client-0.pem", ended=True))
                if said == "a message":
                    for peer in (ending, lasting):
                        await peer.send(answer=pb.Answer(run="none"))
                codes, words = [await ending.call.code()], {await ending.call.details()}
                for again in (ending.enrol, ending.hello):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await again()
                    codes.append(caught.value.code())
                    words.add(caught.value.details())
                await lasting.send(answer=pb.Answer(run="none"))
                await lasting.next("receipt")
                return codes, words, running.sessions.connected

        codes, words, connected = carried_out(scene())
        assert codes == [grpc.StatusCode.FAILED_PRECONDITION] * 3
        assert (words, connected) == ({security.EXPIRED}, 1)

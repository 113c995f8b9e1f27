"""Certificates and authorities that change under a running coordinator: who is let in, and what is said of it."""

import asyncio
import datetime as dt
from pathlib import Path

import grpc
import pytest

from federation.crowd import (
    Peer,
    carried_out,
    coordinator,
)
from federation.tls import channel, refused, transport
from quoron.cli import health
from quoron_client.protocol import identity
from quoron_privacy.errors import ConfigError, IdentityError
from quoron_server.service import certificates, client_plane, revocation, trust
from quoron_server.service.revocation import Revocations
from quoron_server.service.trust import Trust


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """An authority, a coordinator and two clients, which the test may change."""
    folder = tmp_path / "own"
    certificates.make_authority(folder, days=400)
    certificates.issue(folder, "coordinator", coordinator=True, hosts=("localhost", "127.0.0.1"), days=100)
    for name in ("client-0", "client-1"):
        certificates.issue(folder, name, days=100)
    return folder


def trusting(folder: Path) -> Trust:
    return Trust(folder / "coordinator.pem", folder / "coordinator.key", folder / "authority.pem")


async def shown(where: str) -> bytes:
    """The certificate that whoever connects is shown now."""
    return await asyncio.to_thread(health._shown, where, None, None, 60.0)


def der(path: Path) -> bytes:
    return certificates.load_certificate(path).public_bytes(certificates.serialization.Encoding.DER)


class TestTheCoordinatorsCertificate:
    """Is the one in its file, at every handshake; a file that does not fit changes nothing."""

    def test_is_renewed_on_both_ports_without_a_restart_and_open_conversations_go_on(
        self, own: Path, tmp_path: Path
    ) -> None:
        async def scene() -> None:
            async with (
                coordinator(tmp_path, transport=transport(own)) as running,
                channel(running.listen, own, "client-0") as inside,
            ):
                peer, old = Peer(inside), der(own / "coordinator.pem")
                await peer.enrol()
                await peer.hello()
                assert [await shown(each) for each in (running.listen, running.control)] == [old, old]
                certificates.issue(own, "coordinator", coordinator=True, days=50, renew=True)
                new = der(own / "coordinator.pem")
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

        carried_out(scene())

    @pytest.mark.parametrize("broken", ["another key", "half of it", "nothing", "over", "an authority that is none"])
    def test_stays_as_it_was_while_what_is_in_its_place_is_broken(
        self, own: Path, broken: str, our_logs: pytest.LogCaptureFixture
    ) -> None:
        held = trusting(own)
        before, whole = held.now(), (own / "coordinator.pem").read_bytes()
        if broken == "another key":
            (own / "coordinator.key").write_bytes((own / "client-0.key").read_bytes())
        if broken == "half of it":
            (own / "coordinator.pem").write_bytes(whole[: len(whole) // 2])
        if broken == "nothing":
            (own / "coordinator.pem").unlink()
        if broken == "over":
            certificates.issue(own, "coordinator", coordinator=True, days=-1, renew=True)
        if broken == "an authority that is none":
            (own / "authority.pem").write_text("soon\n")
        for _ in range(3):
            assert held.now() is before
        assert our_logs.text.count("what was read before goes on") == 1

    def test_trusts_both_authorities_while_their_file_is_half_written(self, own: Path) -> None:
        certificates.change_authority(own, days=400)
        held, file = trusting(own), own / "authority.pem"
        before, whole = held.now(), file.read_bytes()
        begins = whole.index(b"-----BEGIN", 1)
        for length in range(begins + 5, len(whole) - 2, 50):  # the first of them is whole
            file.write_bytes(whole[:length])
            assert held.now() is before
        fresh = own.parent / "fresh"
        certificates.make_authority(fresh, days=400)
        certificates.issue(fresh, "coordinator", coordinator=True, days=100)
        for name in ("authority.pem", "coordinator.key", "coordinator.pem"):  # one after the other, as people do
            (own / name).write_bytes((fresh / name).read_bytes())
            found = held.now()
        assert found.chain == (fresh / "coordinator.pem").read_bytes()
        assert found.roots == (fresh / "authority.pem").read_bytes()

    def test_is_warned_of_from_thirty_days_on_once_a_day(
        self, own: Path, our_logs: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held, began = trusting(own), trust.now()
        for days, lines in ((69.0, 0), (70.5, 1), (70.9, 1), (71.6, 2), (101.0, 3), (371.0, 5)):
            monkeypatch.setattr(trust, "now", lambda days=days: began + dt.timedelta(days=days))
            held.now()
            assert len([line for line in our_logs.text.splitlines() if "WARNING" in line]) == lines
        assert "coordinator.pem, ends in 29 days. Renew it before" in our_logs.text
        assert "coordinator.pem, ended 271 days ago" in our_logs.text
        assert "authority.pem, ends in 29 days" in our_logs.text


class TestAChangeOfAuthority:
    """Both are trusted between its beginning and its end, and every certificate is renewed in its own time."""

    def test_is_begun_by_one_write_and_ended_when_nobody_needs_the_old_one(self, own: Path) -> None:
        old = certificates.load_certificate(own / "authority.pem")
        certificates.revoke(own, "client-1")
        for _ in range(2):  # again is the same
            certificates.change_authority(own, days=500)
            new, second = certificates.parse_authorities((own / "authority.pem").read_bytes(), "it")
            assert second == old
        with pytest.raises(ConfigError, match="but coordinator, client-0 do not"):
            certificates.end_change(own)
        certificates.issue(own, "client-0", days=10, renew=True)
        with pytest.raises(ConfigError, match="but coordinator does not"):
            certificates.end_change(own)
        before = certificates.fingerprint(certificates.load_certificate(own / "coordinator.pem"))
        certificates.issue(own, "coordinator", coordinator=True, days=10, renew=True)
        assert certificates.fingerprint(certificates.load_certificate(own / "coordinator.pem")) == before
        for _ in range(2):
            certificates.end_change(own)
            assert certificates.parse_authorities((own / "authority.pem").read_bytes(), "it") == [new]
        assert not (own / "authority.key").exists()
        certificates.issue(own, "client-2", days=10).read_bytes()
        certificates.load_certificate(own / "client-2.pem").verify_directly_issued_by(new)
        certificates.change_authority(own, days=500)
        assert [each.name for each in certificates.every(own)][:2] == [
            "quoron trial authority 2",
            "quoron trial authority 3",
        ]

    def test_that_was_interrupted_before_its_write_has_changed_nothing_and_is_taken_up(
        self, own: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stood = (own / "authority.pem").read_bytes()
        with monkeypatch.context() as dying:
            dying.setattr(certificates, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                certificates.change_authority(own, days=500)
        assert (own / "authority.pem").read_bytes() == stood
        kept = (own / "authority-2.key").read_bytes()
        certificates.issue(own, "client-2", days=10)  # by the old one still
        certificates.change_authority(own, days=500)
        assert (own / "authority-2.key").read_bytes() == kept
        certificates.issue(own, "client-3", days=10)
        issuers = {each.name: each.issuer for each in certificates.every(own)}
        assert (issuers["client-2"], issuers["client-3"]) == ("quoron trial authority", "quoron trial authority 2")

    def test_lets_in_clients_of_both_and_none_of_the_old_one_afterwards(
        self, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_plane, "LOOK", 0.02)
        old = own.parent / "old"
        old.mkdir()
        for path in own.iterdir():
            (old / path.name).write_bytes(path.read_bytes())

        async def scene() -> tuple[int, grpc.StatusCode, str]:
            async with (
                coordinator(tmp_path, transport=transport(own)) as running,
                channel(running.listen, old, "client-0") as first,
            ):
                certificates.change_authority(own, days=500)
                certificates.issue(own, "client-1", days=10, renew=True)
                before, after = Peer(first), None
                await before.enrol()
                await before.hello()
                async with channel(running.listen, own, "client-1") as second:
                    after = Peer(second)
                    await after.enrol()
                    await after.hello()
                    certificates.issue(own, "coordinator", coordinator=True, days=10, renew=True)
                    certificates.end_change(own, at_once=True)
                    code, said = await before.call.code(), await before.call.details()
                    await after.send(answer=client_plane.pb.Answer(run="none"))
                    await after.next("receipt")
                    again = Peer(first)  # by the connection of before, on which nobody shakes hands any more
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await again.enrol()
                    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
                (old / "authority.pem").write_bytes((own / "authority.pem").read_bytes())
                assert await refused(running.listen, old, "client-0") == grpc.StatusCode.UNAVAILABLE
                return running.sessions.connected, code, said

        connected, code, said = carried_out(scene())
        assert code == grpc.StatusCode.FAILED_PRECONDITION  # its own may be renewed, so it goes on
        assert said == client_plane.security.STRANGE
        assert connected <= 1

    def test_takes_the_lists_of_revoked_clients_of_both(self, tmp_path: Path) -> None:
        files, names = [tmp_path / "old.json", tmp_path / "new.json"], ["a" * 64, "b" * 64]
        for file in files:
            revocation.make(file)
        revoked = Revocations(*files)
        for file, name in zip(files, names, strict=True):
            assert name not in revoked
            revocation.add(file, name, name="client-7")
            assert name in revoked
        files[0].write_text("{")
        with pytest.raises(ConfigError, match=r"old\.json"):
            revoked.now()

    def test_leaves_a_client_its_own_certificate_while_one_authority_of_its_file_is_good(self, own: Path) -> None:
        files = own / "client-0.pem", own / "client-0.key", own / "authority.pem"
        good = files[2].read_bytes()
        certificates.make_authority(own.parent / "over", days=-1)
        over = (own.parent / "over" / "authority.pem").read_bytes()
        for bundle in (good + over, over + good):
            files[2].write_bytes(bundle)
            identity.check_identity(*files)
        files[2].write_bytes(over)
        with pytest.raises(IdentityError, match=r"authority\.pem.*expired"):
            identity.check_identity(*files)


def hand_out(own: Path, to: Path, name: str) -> None:
    """A client's files, each put in place as a whole."""
    for source, target in ((f"{name}.key", "own.key"), (f"{name}.pem", "own.pem"), ("authority.pem", "authority.pem")):
        (to / "draft").write_bytes((own / source).read_bytes())
        (to / "draft").rename(to / target)


class TestTheList:
    """Of every certificate: kind, name, days, revoked or not; as text and as JSON."""

    def test_has_the_same_user_also_when_it_is_renewed_where_its_key_is_no_more(self, own: Path) -> None:
        before = {each.name: each.fingerprint for each in certificates.every(own)}
        (own / "client-0.key").unlink()  # handed out, and kept nowhere else
        certificates.issue(own, "client-0", days=200, renew=True)
        assert {each.name: each.fingerprint for each in certificates.every(own)} == before
        assert not (own / "client-0.key").exists()
        (own / "client-1.key").write_bytes((own / "coordinator.key").read_bytes())
        with pytest.raises(IdentityError, match=r"to be the key of .*client-1\.pem"):
            certificates.issue(own, "client-1", days=200, renew=True)

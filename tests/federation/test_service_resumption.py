"""A TLS session that is taken up again lets nobody in whose certificate has expired or was revoked since.

TLS looks at certificates in a full handshake alone, and gRPC's gives tickets: the coordinator looks itself.
"""

import asyncio
import datetime as dt
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from federation.crowd import carried_out, coordinator
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Transport, certificates, client_plane, revocation, security

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
DATA, HEADERS, SETTINGS = 0, 1, 4  # kinds of HTTP/2 frames
END = 1  # flag: of a stream, and an answer to settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a coordinator's certificate, a client's, and a list of revoked ones."""
    path = tmp_path_factory.mktemp("certificates")
    certificates.make_authority(path, days=2)
    certificates.issue(path, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=1)
    certificates.issue(path, "client", days=1)
    return path


class Client:
    """The client's certificate, one version of TLS, and the session of the connection before."""

    def __init__(self, where: str, folder: Path, version: ssl.TLSVersion) -> None:
        self.port = int(where.rpartition(":")[2])
        self.context = ssl.create_default_context(cafile=folder / "authority.pem")
        self.context.load_cert_chain(folder / "client.pem", folder / "client.key")
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
def test_a_session_taken_up_again_lets_nobody_in_whose_certificate_is_no_longer_good(
    version: ssl.TLSVersion, lost: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "revoked.json"
    revocation.make(listed)
    files = (folder / "coordinator.pem", folder / "coordinator.key", folder / "authority.pem")
    transport = replace(Transport(*files), revoked=revocation.Revocations(listed))
    own = certificates.load_certificate(folder / "client.pem")
    enrolment = pb.EnrolRequest(protocol=2).SerializeToString()
    hello = pb.ClientMessage(hello=pb.Hello(protocol=2)).SerializeToString()

    async def scene() -> tuple[bytes, list[tuple[bool, bytes]]]:
        async with coordinator(tmp_path, transport=transport) as running:
            await running.manager.enrol("somebody", security.EVERYONE)
            books = pb.Books(**await running.manager.records.books(security.EVERYONE, 0))
            reply = pb.EnrolReply(user=1, books=books).SerializeToString()
            client = Client(running.listen, folder, version)
            heard = [await asyncio.to_thread(client.call, "Enrol", enrolment) for _ in "ab"]
            if lost == "expired":
                over = own.not_valid_after_utc + dt.timedelta(seconds=1)
                monkeypatch.setattr(security, "now", lambda: over)
            else:
                revocation.add(listed, certificates.fingerprint(own), name="client")
            for method, message in (("Enrol", enrolment), ("Work", hello)):
                heard.append(await asyncio.to_thread(client.call, method, message))
            assert running.sessions.connected == 0
            return reply, heard

    reply, (first, again, *later) = carried_out(scene())
    accepted = b"\0" + len(reply).to_bytes(4, "big") + reply
    assert (first[0], again[0]) == (False, True), "otherwise this shows nothing"
    assert accepted in first[1]
    assert accepted in again[1]
    words = security.EXPIRED if lost == "expired" else revocation.WORDS
    for taken_up, answer in later:
        assert taken_up, "TLS itself lets it in"
        assert words.encode() in answer
        assert accepted not in answer

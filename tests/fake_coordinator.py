"""A coordinator for tests of the client: it says what it is told to say, and keeps what it hears."""

import asyncio
import datetime
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from quoron_protos.v1 import federation_pb2 as federation
from quoron_protos.v1.federation_pb2_grpc import ClientPlaneServicer

SECONDS = 300  # before a test that waits for ever fails, on a machine that does much else


class FakeCoordinator(ClientPlaneServicer):
    """Conversations one after the other. `None` in `to_say` ends one, a status with words does so with these; bytes are
    sent as they are."""

    def __init__(self, user=0, refusal=None):
        self.user, self.refusal = user, refusal
        self.agreed: list[federation.Agreed] = []
        self.store = federation.Store(incarnations=["0" * 16], head="0" * 64)
        self.to_say, self.heard, self.callers = asyncio.Queue(), asyncio.Queue(), []
        self.server, self.port = None, None

    async def Enrol(self, request, context):
        self.callers.append((request.protocol, dict(context.invocation_metadata()), dict(context.auth_context())))
        if self.refusal is not None:
            await context.abort(*self.refusal)
        return federation.EnrolReply(user=self.user, agreed=self.agreed, store=self.store)

    async def Work(self, request_iterator, context):
        async def listen():
            while (message := await context.read()) is not grpc.aio.EOF:
                await self.heard.put(message)

        listening = asyncio.create_task(listen())
        try:
            await context.write(federation.ServerMessage(welcome=federation.Welcome(user=self.user)))
            while (message := await self.to_say.get()) is not None:
                if isinstance(message, tuple):
                    await context.abort(*message)
                await context.write(message)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def start(self, credentials=None, port=0):
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        methods = {
            "Enrol": grpc.unary_unary_rpc_method_handler(
                self.Enrol, federation.EnrolRequest.FromString, federation.EnrolReply.SerializeToString
            ),
            "Work": grpc.stream_stream_rpc_method_handler(self.Work, federation.ClientMessage.FromString, _as_bytes),
        }
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("quoron.v1.ClientPlane", methods),))
        place = f"127.0.0.1:{port}"
        self.port = (
            self.server.add_insecure_port(place)
            if credentials is None
            else self.server.add_secure_port(place, credentials)
        )
        await self.server.start()

    async def hears(self, kind):
        """The next message, which is to be of this kind."""
        message = await self.heard.get()
        assert message.WhichOneof("kind") == kind, message
        return getattr(message, kind)

    async def announce(self, run, description):
        """Whether the client takes part."""
        announcement = federation.Announcement(run=run, description=description)
        await self.to_say.put(federation.ServerMessage(run=announcement))
        consent = await self.hears("consent")
        assert consent.run == run
        return consent.takes_part

    async def ask(self, question):
        await self.to_say.put(federation.ServerMessage(question=question))
        answer = await self.hears("answer")
        assert (answer.run, answer.round, answer.digest) == (question.run, question.round, question.digest)
        return answer


def _as_bytes(message):
    return message if isinstance(message, bytes) else message.SerializeToString()


@asynccontextmanager
async def coordinator(credentials=None, **options) -> AsyncIterator[FakeCoordinator]:
    """A running coordinator on a port of the system's choice."""
    async with asyncio.timeout(SECONDS):
        fake = FakeCoordinator(**options)
        await fake.start(credentials)
        try:
            yield fake
        finally:
            await fake.server.stop(None)


class Authority:
    """A private certificate authority in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder, self.name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / f"{name}.pem"
        built = self._begin(self.name, self.key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        self.path.write_bytes(built.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def _begin(self, subject, key, days=(-1, 90)):
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + datetime.timedelta(days=days[0]))
            .not_valid_after(now + datetime.timedelta(days=days[1]))
        )

    def issue(self, name: str, *, address="127.0.0.1", days=(-1, 90), password=None) -> tuple[Path, Path]:
        """Paths of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        built = self._begin(subject, key, days).add_extension(names, False).sign(self.key, hashes.SHA256())
        certificate, private = self.folder / f"{name}.pem", self.folder / f"{name}-key.pem"
        certificate.write_bytes(built.public_bytes(Encoding.PEM))
        locked = NoEncryption() if password is None else BestAvailableEncryption(password)
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
        return certificate, private

    def identity(self, name: str = "client", **options) -> dict[str, object]:
        """What a client's owner says for it to have a certificate of this authority."""
        certificate, key = self.issue(name, **options)
        files = {"certificate": certificate, "key": key, "authority": self.path}
        return files | {"insecure": False, "client_name": None}

    def server_credentials(self, name: str = "coordinator", **options) -> grpc.ServerCredentials:
        """For a coordinator that asks every client for a certificate of this authority."""
        certificate, key = self.issue(name, **options)
        pair = key.read_bytes(), certificate.read_bytes()
        return grpc.ssl_server_credentials([pair], self.path.read_bytes(), require_client_auth=True)

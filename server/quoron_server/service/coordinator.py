"""The coordinator: runs, clients who answer them, and operators who submit them.

asyncio.run(serve(Coordinator(ServeConfig(transport=Transport(insecure=True)))))
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from quoron_client.protocol import wire
from quoron_protos.v1 import federation_pb2, federation_pb2_grpc
from quoron_server.service.client_plane import SERVICE as CLIENT_PLANE
from quoron_server.service.client_plane import ClientPlane, ConnectionLimiter
from quoron_server.service.config import MOST_OPERATORS, SMALLEST, ServeConfig
from quoron_server.service.control_plane import ControlPlane, TokenGate
from quoron_server.service.manager import Manager
from quoron_server.service.metrics import Metrics
from quoron_server.service.program import HEALTH, Port, Program
from quoron_server.service.sessions import Sessions
from quoron_server.specification import LONGEST
from quoron_server.traffic import spill_folder

CONTROL_PLANE = federation_pb2.DESCRIPTOR.services_by_name["ControlPlane"].full_name
MOST_OF_ONE_TOKEN = 12  # of these: a few who watch, share a token
# Of the control plane. A caller without a token can at most send a health probe's message, of the largest size, in
# every stream of every connection.
_CONTROL = (
    *wire.STEADY,
    ("grpc.max_receive_message_length", LONGEST + SMALLEST),
    ("grpc.max_allowed_incoming_connections", MOST_OPERATORS),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.max_connection_idle_ms", 60_000),
)
# Of one client: its conversation, and an enrolment or an inquiry after health. Each may hold one message.
_STREAMS = (("grpc.max_concurrent_streams", 2),)


class Coordinator(Program):
    """A running coordinator; `async with` starts and stops it. Ports of 0 become what the system gave."""

    name = "coordinator"
    metrics: Metrics

    def __init__(self, config: ServeConfig) -> None:
        super().__init__(config.transport, config.database, config.listen, config.control, metrics=config.metrics)
        self.config = config
        self.sessions = Sessions(spill=spill_folder(config.database))
        self.manager: Manager
        self._clients: ClientPlane

    @property
    def listen(self) -> str:
        """Where clients connect."""
        return self.addresses["clients"]

    @property
    def control(self) -> str:
        """Where operators and auditors connect."""
        return self.addresses["control"]

    def days_left(self) -> dict[str, float]:
        """Days until certificates end: as of any program, and the first of the clients connected now."""
        first = None if self._trust is None else self._clients.days_left()
        return super().days_left() | ({} if first is None else {"clients": first})

    @asynccontextmanager
    async def _services(self) -> AsyncIterator[Sequence[Port]]:
        """Start runs before ports, so that clients find them."""
        config = self.config
        plaintext, most = config.transport.plaintext, config.connections()
        self.manager = Manager(self._database, self.sessions, config)
        try:
            connection_limiter = None if plaintext else ConnectionLimiter(most)
            clients = self._clients = ClientPlane(
                self.manager, connection_limiter=connection_limiter, revoked=config.transport.revoked, trust=self._trust
            )
            longest = (
                ("grpc.max_receive_message_length", min(config.max_message, wire.MOST + wire.BESIDE)),
                ("grpc.max_allowed_incoming_connections", most),
            )
            porter = ConnectionLimiter(MOST_OPERATORS, each=MOST_OF_ONE_TOKEN)
            operators = ControlPlane(self.manager, config.tokens, porter)
            self.metrics = Metrics(self.manager, self._database, config.transport, self.days_left)
            await self.manager.start()
            self.lost, self.open_runs = self.manager.lost, len(self.manager.standing())
            self.watch(clients.watch_certificates())
            self.watch(self.manager.users.watch())
            if config.metrics is not None:
                self.watch(self.metrics.watch_chain())
            yield [
                Port(
                    callers="clients",
                    address=config.listen,
                    certificates=True,
                    service=CLIENT_PLANE,
                    add=lambda server: server.add_generic_rpc_handlers((clients.handlers(),)),
                    options=(*wire.STEADY, *longest) if plaintext else (*wire.STEADY, *longest, *_STREAMS),
                    watch=None if connection_limiter is None else connection_limiter.watch,
                ),
                Port(
                    callers="control",
                    address=config.control,
                    certificates=False,
                    service=CONTROL_PLANE,
                    add=lambda server: federation_pb2_grpc.add_ControlPlaneServicer_to_server(operators, server),
                    options=_CONTROL,
                    interceptors=(TokenGate(config.tokens, frozenset({HEALTH}), self.manager.counts),),
                    watch=porter.watch,
                ),
            ]
        finally:
            await self.manager.stop()
            self.sessions.dismiss()

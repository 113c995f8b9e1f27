"""`quoron admin health HOST:PORT`: is a coordinator serving? By the standard health service of gRPC."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quoron.cli.connection import CONTROL, Certs, Files, Insecure, anywhere
from quoron_privacy.errors import ConfigError, RunError

if TYPE_CHECKING:  # the other commands start without it
    import grpc

TIMEOUT = 5.0  # seconds to wait for an answer


def health(
    address: Annotated[
        str,
        typer.Argument(
            envvar="QUORON_CONTROL_ADDRESS", metavar="HOST:PORT", help="Where a coordinator listens, either port."
        ),
    ] = CONTROL,
    certs: Certs = None,
    insecure: Insecure = False,
) -> None:
    """Exit with 0 if a coordinator serves there, and with 1 if not."""
    from quoron_client.federation.config import check_plaintext

    own = Files.found(certs, insecure=insecure, needed=())
    check_plaintext(address, insecure=insecure, anywhere=anywhere(insecure))
    secure = credentials(own, insecure=insecure)
    print(check(address, secure, timeout=TIMEOUT))
    if secure is not None and own.authority is not None:
        for warning in endings(address, own.authority, own.certificate, own.key, timeout=TIMEOUT):
            print(f"warning: {warning}", file=sys.stderr)


def credentials(own: Files, *, insecure: bool) -> "grpc.ChannelCredentials | None":
    """None for plaintext; ConfigError for an incomplete set of files, IdentityError for one that cannot be read."""
    if insecure:
        return None
    import grpc

    from quoron_server.service import certificates

    if own.authority is None or (own.certificate is None) != (own.key is None):
        got = f"certificate={own.certificate}, key={own.key}, authority={own.authority}"
        raise ConfigError(
            f"Expected --certs FOLDER, with its certificate and key or neither, or --insecure, got {got}."
        )
    root, chain, secret = (
        None if path is None else certificates.read(path) for path in (own.authority, own.certificate, own.key)
    )
    return grpc.ssl_channel_credentials(root_certificates=root, private_key=secret, certificate_chain=chain)


def check(address: str, secure: "grpc.ChannelCredentials | None", *, timeout: float) -> str:
    """The status SERVING; RunError, with the reason, if it is another or nobody answers within `timeout` seconds."""
    import grpc
    from grpc_health.v1 import health_pb2

    channel = grpc.insecure_channel(address) if secure is None else grpc.secure_channel(address, secure)
    with channel:
        try:
            ask = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            reply = ask(health_pb2.HealthCheckRequest(), timeout=timeout)
        except grpc.RpcError as error:
            code = error.code().name if isinstance(error, grpc.Call) else "UNKNOWN"
            raise RunError(f"Expected a coordinator that serves at {address}, got {code}. Is it running?") from None
    status = str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
    if status != "SERVING":
        raise RunError(f"Expected a coordinator that serves at {address}, got status {status}.")
    return status


def endings(address: str, authority: Path, certificate: Path | None, key: Path | None, *, timeout: float) -> list[str]:
    """Warnings of what ends soon: the certificate that is shown at an address, and the files of one's own."""
    from cryptography import x509

    from quoron_client.protocol import identity

    said = identity.endings(authority, *(() if certificate is None else (certificate,)))
    with suppress(OSError, ValueError):  # gRPC has just been there; whatever else is wrong, it would have said
        shown = x509.load_der_x509_certificate(_shown(address, certificate, key, timeout))
        days = identity.days_left(shown)
        said += filter(None, (identity.ending(f"The certificate of the coordinator at {address}", days),))
    return said


def _shown(address: str, certificate: Path | None, key: Path | None, timeout: float) -> bytes:
    """What an address shows of itself, which gRPC has checked and keeps for itself. OSError if it shows nothing now."""
    import socket
    import ssl

    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only its date is read
    context.set_alpn_protocols(["h2"])
    if certificate is not None and key is not None:
        context.load_cert_chain(certificate, key)
    with (
        socket.create_connection((host.strip("[]"), int(port)), timeout) as plain,
        context.wrap_socket(plain) as secure,
    ):
        return secure.getpeercert(binary_form=True) or b""

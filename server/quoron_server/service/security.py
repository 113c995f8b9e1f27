"""Who may speak: TLS on both planes, a certificate for each client, a token for each operator; plaintext only if asked.

| address         | without a flag | --insecure | --insecure-anywhere |
| --------------- | -------------- | ---------- | ------------------- |
| loopback        | TLS            | plaintext  | plaintext           |
| everything else | TLS            | refused    | plaintext           |
"""

import datetime as dt
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from quoron_privacy.errors import ConfigError, IdentityError
from quoron_server.budget import EVERYONE
from quoron_server.service import certificates
from quoron_server.service.revocation import Revocations

NAME, GROUP = "quoron-client", "quoron-group"  # metadata that names a client, in plaintext only
EXPIRED = "This client's certificate is not valid now. Renew it, or correct the clock, and come back."
WEAK = "This client's key is too short. Have a certificate made for an RSA key of 2048 bits or a curve of 256."
FAR = "This client's certificate is not from the authority itself, which lets nobody issue any in its place."
SLACK = dt.timedelta(minutes=5)  # clocks differ, and TLS has looked at the beginning by this one


@dataclass(frozen=True, slots=True)
class Transport:
    """How the coordinator is reached: by TLS, with its files, or in plaintext by request."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None  # signs the clients' certificates
    insecure: bool = False
    insecure_anywhere: bool = False
    revoked: Revocations | None = None  # clients' certificates that are no longer good

    @property
    def plaintext(self) -> bool:
        """Whether plaintext was asked for."""
        return self.insecure or self.insecure_anywhere

    def check(self, addresses: Sequence[str]) -> None:
        """ConfigError for plaintext off loopback, or for TLS without its files; IdentityError for unusable ones."""
        if self.plaintext:
            if self.certificate or self.key or self.authority or self.revoked:
                raise ConfigError("Expected either TLS files or --insecure, got both.")
            for address in addresses:
                if not self.insecure_anywhere and not is_loopback(address):
                    raise ConfigError(
                        f"Expected TLS to listen on {address}, got --insecure: plaintext is for loopback. Give "
                        "certificates (`quoron certs`), or --insecure-anywhere inside a network that you trust."
                    )
            return
        if self.certificate is None or self.key is None or self.authority is None:
            raise ConfigError(
                "Expected --certificate, --key and --authority for TLS, got none or some. Make them with "
                "`quoron certs`, or say --insecure to try quoron on this machine without."
            )
        _check_pair(self.certificate, self.key)
        certificates.load_certificate(self.authority)

    def authorities(self) -> list[x509.Certificate]:
        """Whose word on clients is trusted; nobody's in plaintext."""
        return [] if self.plaintext or self.authority is None else certificates.load_authorities(self.authority)

    def client_plane(self) -> grpc.ServerCredentials | None:
        """Mutual TLS; None for plaintext."""
        if self.plaintext:
            return None
        return grpc.ssl_server_credentials([self._pair()], _pem(self.authority), require_client_auth=True)

    def control_plane(self) -> grpc.ServerCredentials | None:
        """TLS, where callers show tokens; None for plaintext."""
        if self.plaintext:
            return None
        return grpc.ssl_server_credentials([self._pair()])

    def _pair(self) -> tuple[bytes, bytes]:
        return _pem(self.key), _pem(self.certificate)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is calling: by the connection's certificate, in plaintext by name."""

    identity: str
    group: str
    dates: tuple[dt.datetime, dt.datetime] | None = None  # from which to which its certificate is valid
    objection: str | None = None  # to its certificate, whenever it is
    name: str = ""  # for people

    def timely(self) -> bool:
        """Whether its certificate is valid now: TLS looks at the dates when a connection begins, and never again."""
        return self.dates is None or self.dates[0] - SLACK <= now() <= self.dates[1]


def caller(
    auth: Mapping[str, Any],
    metadata: Sequence[tuple[str, str | bytes]],
    *,
    plaintext: bool,
    authorities: Sequence[x509.Certificate] = (),
) -> Caller | None:
    """Whoever is calling; None if nobody can tell. `authorities` are those whose word on clients is trusted."""
    if plaintext:
        name, group = _one(metadata, NAME), _one(metadata, GROUP)
        return None if name is None else Caller(f"name:{name}", group or EVERYONE, name=name)
    shown = auth.get("x509_pem_cert")
    if not shown:
        return None
    try:
        certificate = certificates.parse_certificate(bytes(shown[0]), "the connection")
    except IdentityError:
        return None
    return Caller(
        certificates.fingerprint(certificate),
        certificates.group(certificate) or EVERYONE,
        (certificate.not_valid_before_utc, certificate.not_valid_after_utc),
        _objection(certificate, authorities),
        certificates.common_name(certificate),
    )


def _objection(certificate: x509.Certificate, authorities: Sequence[x509.Certificate]) -> str | None:
    """What gRPC's TLS lets pass and we do not."""
    if not certificates.strong(certificate):
        return WEAK
    return FAR if authorities and not certificates.near(certificate, authorities) else None


def now() -> dt.datetime:
    """The time by which certificates are valid."""
    return dt.datetime.now(dt.UTC)


def bearer(metadata: Sequence[tuple[str, str | bytes]]) -> str | None:
    """The token of a call, from `authorization: Bearer <token>`."""
    given = _one(metadata, "authorization")
    return given.removeprefix("Bearer ") if given is not None and given.startswith("Bearer ") else None


def is_loopback(address: str) -> bool:
    """Whether host:port is reachable from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _pem(path: Path | None) -> bytes:
    if path is None:
        raise ConfigError("Expected --certificate, --key and --authority for TLS, got some of them only.")
    return certificates.read(path)


def _one(metadata: Sequence[tuple[str, str | bytes]], key: str) -> str | None:
    """The one value of a key, of reasonable length."""
    values = [value for name, value in metadata if name == key and isinstance(value, str)]
    return values[0] if len(values) == 1 and 0 < len(values[0]) <= 256 else None


def _check_pair(certificate: Path, key: Path) -> None:
    shown = certificates.load_certificate(certificate)
    try:
        held = serialization.load_pem_private_key(certificates.read(key), None)
    except (ValueError, TypeError):
        raise IdentityError(f"Expected a private key without password in {key}, got something else.") from None
    if shown.public_key() != held.public_key():
        raise IdentityError(f"Expected {key} to be the key of {certificate}, got another. Take both from one place.")
    if not shown.not_valid_before_utc <= now() <= shown.not_valid_after_utc:
        raise IdentityError(
            f"Expected {certificate} to be valid now, got one valid from {shown.not_valid_before_utc:%Y-%m-%d %H:%M} "
            f"to {shown.not_valid_after_utc:%Y-%m-%d %H:%M} UTC. Renew it: `quoron certs DIR --client NAME --renew`."
        )

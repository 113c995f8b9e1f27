"""Who may speak: TLS on both planes, a certificate for each client, a token for each operator; plaintext only if asked.

| address         | without a flag | --insecure | and QUORON_INSECURE_ANYWHERE=1 |
| --------------- | -------------- | ---------- | ------------------------------ |
| loopback        | TLS            | plaintext  | plaintext                      |
| everything else | TLS            | refused    | plaintext                      |
"""

import datetime as dt
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509

from quoron_client.protocol.identity import days_left
from quoron_privacy.errors import ConfigError, IdentityError
from quoron_server.budget import EVERYONE
from quoron_server.service import certificates
from quoron_server.service.clock import now
from quoron_server.service.revocation import Revocations
from quoron_server.service.trust import Held, Trust

NAME, GROUP = "quoron-client", "quoron-group"  # metadata that names a client, in plaintext only
EXPIRED = "This client's certificate is not valid now. Renew it, or correct the clock, and come back."
WEAK = "This client's key is too short. Have a certificate made for an RSA key of 2048 bits or a curve of 256."
STRANGE = "This client's certificate comes from an authority that is not trusted here now. Renew it, and come back."
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
                        "certificates (`quoron admin certs`), or QUORON_INSECURE_ANYWHERE=1 inside a network that you "
                        "trust."
                    )
            return
        if self.certificate is None or self.key is None or self.authority is None:
            raise ConfigError(
                "Expected --certs FOLDER for TLS, or QUORON_CERTIFICATE, QUORON_KEY and QUORON_AUTHORITY, got none or "
                "some. `quoron admin certs` makes such folders; or say --insecure to try quoron on this machine "
                "without."
            )
        Held.read(self.certificate, self.key, self.authority)

    def trust(self) -> Trust | None:
        """What is shown to callers, and whose word on clients is taken; None in plaintext."""
        if self.plaintext or self.certificate is None or self.key is None or self.authority is None:
            return None
        return Trust(self.certificate, self.key, self.authority)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is calling: by the connection's certificate, in plaintext by name."""

    identity: str
    group: str
    chain: tuple[x509.Certificate, ...] = ()  # its certificate, and what it showed of those above; none in plaintext
    objection: str | None = None  # to its certificate, whenever it is
    name: str = ""  # for people

    def days_left(self) -> float | None:
        """Days until its certificate ends; None in plaintext."""
        return days_left(self.chain[0], now()) if self.chain else None

    def timely(self) -> bool:
        """Whether its certificate is valid now: TLS looks at the dates when a connection begins, and never again."""
        return not self.chain or (
            self.chain[0].not_valid_before_utc - SLACK <= now() <= self.chain[0].not_valid_after_utc
        )


def caller(
    auth: Mapping[str, Any],
    metadata: Sequence[tuple[str, str | bytes]],
    *,
    authorities: Sequence[x509.Certificate] | None,
) -> Caller | None:
    """Whoever is calling; None if nobody can tell. `authorities`: whose word on clients is taken, None in plaintext."""
    if authorities is None:
        name, group = _one(metadata, NAME), _one(metadata, GROUP)
        return None if name is None else Caller(f"name:{name}", group or EVERYONE, name=name)
    shown = auth.get("x509_pem_cert")
    if not shown:
        return None
    try:
        certificate = certificates.parse_certificate(bytes(shown[0]), "the connection")
        above = certificates.parse_authorities(bytes((auth.get("x509_pem_cert_chain") or shown)[0]), "the connection")
    except IdentityError:
        return None
    chain = (certificate, *(each for each in above if each != certificate))
    return Caller(
        certificates.fingerprint(certificate),
        certificates.group(certificate) or EVERYONE,
        chain,
        _objection(chain, authorities),
        certificates.common_name(certificate),
    )


def _objection(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> str | None:
    """What gRPC's TLS lets pass and we do not."""
    if not certificates.strong(chain[0]):
        return WEAK
    return None if certificates.near(chain, authorities) else FAR


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


def _one(metadata: Sequence[tuple[str, str | bytes]], key: str) -> str | None:
    """The one value of a key, of reasonable length."""
    values = [value for name, value in metadata if name == key and isinstance(value, str)]
    return values[0] if len(values) == 1 and 0 < len(values[0]) <= 256 else None

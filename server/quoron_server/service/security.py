"""Who may speak: TLS on both planes, a certificate for each client, a token for each operator; plaintext only if asked.

| address         | without a flag | --insecure |
| --------------- | -------------- | ---------- |
| loopback        | TLS            | plaintext  |
| everything else | TLS            | refused    |
"""

import datetime as dt
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509

from quoron_client.protocol import check_plaintext
from quoron_client.protocol.identity import Identity, days_left, ending, parse
from quoron_privacy.errors import ConfigError, IdentityError
from quoron_server.plan import EVERYONE
from quoron_server.service import certificates
from quoron_server.service.certificates import Revocations, Version, version

_log = logging.getLogger("quoron")
_A_DAY = dt.timedelta(days=1)  # between two warnings of what ends soon

NAME, GROUP = "quoron-client", "quoron-group"  # metadata that names a client, in plaintext only
EXPIRED = "This client's certificate is not valid now. Renew it, or correct the clock, and come back."
WEAK = "This client's key is too short. Have a certificate made for an RSA key of 2048 bits or a curve of 256."
STRANGE = "This client's certificate comes from an authority that is not trusted here now. Renew it, and come back."
FAR = "This client's certificate is not from the authority itself, which lets nobody issue any in its place."


def _handshake(held: Identity, *, clients: bool) -> grpc.ServerCertificateConfiguration:
    """For a handshake; with `clients` those of the authorities alone are let in."""
    return grpc.ssl_server_certificate_configuration([(held.key, held.chain)], held.roots if clients else None)


class Trust:
    """The newest good state of three files. Threads may share it.

        trust = Trust(certificate, key, authority, of="coordinator")
        trust.credentials(clients=True)     # for a port: every handshake is by the files as they are then
        trust.now().authorities             # of all that the authority's file holds: an old one and its successor

    A certificate that is renewed, or an authority that is added or taken away, holds for the next handshake, without a
    restart. Files that do not belong together, such as a certificate whose key has not been written yet, change
    nothing: what was good before goes on, the log says so once, and they are read again at the next use.
    """

    def __init__(self, certificate: Path, key: Path, authority: Path, *, of: str) -> None:
        """Raises IdentityError for files that are not good now; `of` is the server whose they are."""
        self._paths, self._of = (certificate, key, authority), of
        self._seen = self._versions()
        self._held = Identity.read(*self._paths, now())
        self._refused: tuple[Version, ...] | None = None
        self._warned: dt.datetime | None = None
        self._lock = threading.Lock()

    def now(self) -> Identity:
        """Return the files as they are, or as they last were when they were good."""
        with self._lock:
            found = self._versions()  # before the reading: what is written meanwhile is another version
            if found != self._seen:
                self._take(found)
            self._remind()
            return self._held

    def days_left(self) -> dict[str, float]:
        """Days until the server's own certificate ends, and until the last of the authorities does."""
        return self._days_left(self.now())

    def _days_left(self, held: Identity) -> dict[str, float]:
        last = max(days_left(authority, now()) for authority in held.authorities)
        return {self._of: days_left(held.certificates[0], now()), "authority": last}

    def credentials(self, *, clients: bool) -> grpc.ServerCredentials:
        """TLS for a port; with `clients` certificates of the authorities are asked for and required."""
        given = [self.now()]

        def newer() -> grpc.ServerCertificateConfiguration | None:
            held, before = self.now(), given[0]
            given[0] = held
            return None if held is before else _handshake(held, clients=clients)

        first = _handshake(given[0], clients=clients)
        # gRPC's stubs know nothing of None, which its documentation has for "no change".
        return grpc.dynamic_ssl_server_credentials(first, newer, clients)  # type: ignore[arg-type]

    def _take(self, found: tuple[Version, ...]) -> None:
        try:
            held = Identity.read(*self._paths, now())
        except Exception as error:  # whatever it is, it came from files that somebody is changing
            if found != self._refused:
                _log.warning("%s Until then what was read before goes on.", error)
            self._refused = found
            return
        if (held.chain, held.key, held.roots) != (self._held.chain, self._held.key, self._held.roots):
            _log.info(
                "own certificate until %s, authorities: %d; from the next handshake on",
                f"{held.certificates[0].not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
                len(held.authorities),
            )
            self._held, self._warned = held, None
        self._seen, self._refused = found, None

    def _remind(self) -> None:
        """A line a day about each that ends soon."""
        if self._warned is not None and now() - self._warned < _A_DAY:
            return
        self._warned = now()
        for (what, days), path in zip(self._days_left(self._held).items(), self._paths[::2], strict=True):
            if (said := ending(f"The certificate of the {what.replace('-', ' ')}, {path},", days)) is not None:
                _log.warning("%s", said)

    def _versions(self) -> tuple[Version, ...]:
        return tuple(map(version, self._paths))


def now() -> dt.datetime:
    """Return the time, by this machine's clock."""
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True, slots=True)
class Transport:
    """How the coordinator is reached: by TLS, with its files, or in plaintext by request."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None  # signs the clients' certificates
    insecure: bool = False
    revoked: Revocations | None = None  # clients' certificates that are no longer good

    def check(self, addresses: Sequence[str]) -> None:
        """ConfigError for plaintext off loopback, or for TLS without its files; IdentityError for unusable ones."""
        if self.insecure:
            if self.certificate or self.key or self.authority or self.revoked:
                raise ConfigError("Expected either TLS files or --insecure, got both.")
            for address in addresses:
                check_plaintext(address, insecure=True)
            return
        Identity.read(*self._files(), now())

    def trust(self, *, of: str) -> Trust | None:
        """Return what a server shows to callers, and whose word on them it takes; None in plaintext."""
        return None if self.insecure else Trust(*self._files(), of=of)

    def _files(self) -> tuple[Path, Path, Path]:
        if self.certificate is None or self.key is None or self.authority is None:
            raise ConfigError(
                "Expected --certs FOLDER for TLS, got none. `quoron admin certs` makes such folders; or say --insecure "
                "to try quoron on this machine without."
            )
        return self.certificate, self.key, self.authority


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
        """Whether its certificate has not ended: TLS checks the dates when a connection begins, and never again."""
        return not self.chain or now() <= self.chain[0].not_valid_after_utc


def caller(
    auth: Mapping[str, Any],
    metadata: Sequence[tuple[str, str | bytes]],
    *,
    authorities: Sequence[x509.Certificate] | None,
) -> Caller | None:
    """Return the caller; None if it cannot be known. `authorities` are trusted to name clients; None in plaintext."""
    if authorities is None:
        name, group = _one(metadata, NAME), _one(metadata, GROUP)
        return None if name is None else Caller(f"name:{name}", group or EVERYONE, name=name)
    shown = auth.get("x509_pem_cert")
    if not shown:
        return None
    try:
        certificate = parse(bytes(shown[0]), "the connection")[0]
        above = parse(bytes((auth.get("x509_pem_cert_chain") or shown)[0]), "the connection")
    except IdentityError:
        return None
    chain = (certificate, *(authority for authority in above if authority != certificate))
    objection = None  # to what gRPC's TLS lets pass and we do not
    if not certificates.strong(certificate):
        objection = WEAK
    elif not certificates.near(chain, authorities):
        objection = FAR
    group, name = certificates.group(certificate) or EVERYONE, certificates.common_name(certificate.subject)
    return Caller(certificates.fingerprint(certificate), group, chain, objection, name)


def bearer(metadata: Sequence[tuple[str, str | bytes]]) -> str | None:
    """Return the token of a call, from `authorization: Bearer <token>`."""
    given = _one(metadata, "authorization")
    return given.removeprefix("Bearer ") if given is not None and given.startswith("Bearer ") else None


def _one(metadata: Sequence[tuple[str, str | bytes]], key: str) -> str | None:
    """Return the one value of a key, of reasonable length."""
    values = [value for name, value in metadata if name == key and isinstance(value, str)]
    return values[0] if len(values) == 1 and 0 < len(values[0]) <= 256 else None

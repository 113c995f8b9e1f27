"""What the coordinator shows of itself, and whose word on clients it takes: by its files as they are now.

    trust = Trust(certificate, key, authority)
    trust.credentials(clients=True)     # for a port: every handshake is by the files as they are then
    trust.now().authorities             # of all that the authority's file holds: an old one and its successor

A certificate that is renewed, or an authority that is added or taken away, holds for the next handshake, without a
restart. Files that do not belong together, such as a certificate whose key has not been written yet, change nothing:
what was good before goes on, the log says so once, and they are read again at every look.
"""

import datetime as dt
import logging
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from quoron_client.protocol.identity import days_left, ending
from quoron_privacy.errors import IdentityError
from quoron_server.service import certificates
from quoron_server.service.clock import now
from quoron_server.service.revocation import Version, version

_log = logging.getLogger("quoron")
_A_DAY = dt.timedelta(days=1)  # between two warnings of what ends soon


@dataclass(frozen=True, slots=True)
class Held:
    """One state of the files: whole, of one key, and valid when it was read."""

    chain: bytes
    key: bytes
    roots: bytes
    certificate: x509.Certificate
    authorities: tuple[x509.Certificate, ...]

    @classmethod
    def read(cls, certificate: Path, key: Path, authority: Path) -> "Held":
        """IdentityError for files that cannot be read, do not belong together, or are not valid now."""
        chain, secret, roots = (certificates.read(path) for path in (certificate, key, authority))
        shown = certificates.parse_certificate(chain, str(certificate))
        try:
            held = serialization.load_pem_private_key(secret, None)
        except (ValueError, TypeError):
            raise IdentityError(f"Expected a private key without password in {key}, got something else.") from None
        if shown.public_key() != held.public_key():
            raise IdentityError(
                f"Expected {key} to be the key of {certificate}, got another. Take both from one place."
            )
        if not shown.not_valid_before_utc <= now() <= shown.not_valid_after_utc:
            begins, ends = (f"{at:%Y-%m-%d %H:%M}" for at in (shown.not_valid_before_utc, shown.not_valid_after_utc))
            raise IdentityError(
                f"Expected {certificate} to be valid now, got one valid from {begins} to {ends} UTC. Renew it: "
                "`quoron admin certs DIR --client NAME --renew`."
            )
        return cls(chain, secret, roots, shown, tuple(certificates.parse_authorities(roots, str(authority))))

    def days_left(self) -> dict[str, float]:
        """Days until the coordinator's certificate ends, and until the last of the authorities does."""
        last = max(days_left(each, now()) for each in self.authorities)
        return {"coordinator": days_left(self.certificate, now()), "authority": last}

    def configuration(self, *, clients: bool) -> grpc.ServerCertificateConfiguration:
        """For a handshake; with `clients` those of the authorities alone are let in."""
        return grpc.ssl_server_certificate_configuration([(self.key, self.chain)], self.roots if clients else None)


class Trust:
    """The newest good state of three files. Threads may share it."""

    def __init__(self, certificate: Path, key: Path, authority: Path) -> None:
        """Raises IdentityError for files that are not good now."""
        self._paths = certificate, key, authority
        self._seen = self._versions()
        self._held = Held.read(*self._paths)
        self._refused: tuple[Version, ...] | None = None
        self._warned: dt.datetime | None = None
        self._lock = threading.Lock()

    def now(self) -> Held:
        """The files as they are, or as they last were when they were good."""
        with self._lock:
            found = self._versions()  # before the reading: what is written meanwhile is another version
            if found != self._seen:
                self._take(found)
            self._remind()
            return self._held

    def credentials(self, *, clients: bool) -> grpc.ServerCredentials:
        """TLS for a port; with `clients` certificates of the authorities are asked for and required."""
        given = [self.now()]

        def newer() -> grpc.ServerCertificateConfiguration | None:
            held, before = self.now(), given[0]
            given[0] = held
            return None if held is before else held.configuration(clients=clients)

        first = given[0].configuration(clients=clients)
        # gRPC's stubs know nothing of None, which its documentation has for "no change".
        return grpc.dynamic_ssl_server_credentials(first, newer, clients)  # type: ignore[arg-type]

    def _take(self, found: tuple[Version, ...]) -> None:
        try:
            held = Held.read(*self._paths)
        except Exception as error:  # whatever it is, it came from files that somebody is changing
            if found != self._refused:
                _log.warning("%s Until then what was read before goes on.", error)
            self._refused = found
            return
        if (held.chain, held.key, held.roots) != (self._held.chain, self._held.key, self._held.roots):
            _log.info(
                "own certificate until %s, authorities: %d; from the next handshake on",
                f"{held.certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
                len(held.authorities),
            )
            self._held, self._warned = held, None
        self._seen, self._refused = found, None

    def _remind(self) -> None:
        """A line a day about each that ends soon."""
        if self._warned is not None and now() - self._warned < _A_DAY:
            return
        self._warned = now()
        days = self._held.days_left()
        for what, path in (("coordinator", self._paths[0]), ("authority", self._paths[2])):
            if (said := ending(f"The certificate of the {what}, {path},", days[what])) is not None:
                _log.warning("%s", said)

    def _versions(self) -> tuple[Version, ...]:
        return tuple(map(version, self._paths))

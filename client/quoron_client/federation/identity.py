"""Who the client is: its certificate, looked at before it is shown to anyone, so that errors name the file."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from quoron_privacy.errors import IdentityError

_LOG = logging.getLogger("quoron.client")
T = TypeVar("T")
Certificates = list[x509.Certificate]


def credentials(certificate: Path, key: Path, authority: Path) -> grpc.ChannelCredentials:
    """Credentials for mutual TLS. Raises IdentityError, which names the file and what is wrong with it."""
    check_identity(certificate, key, authority)
    return grpc.ssl_channel_credentials(authority.read_bytes(), key.read_bytes(), certificate.read_bytes())


def check_identity(certificate: Path, key: Path, authority: Path) -> None:
    """Raises IdentityError unless the certificate is valid now, is of this key, and comes from this authority.

    The certificate's file may go on with the intermediate authorities, as it does for a server.
    """
    own = _load(certificate, "certificates", x509.load_pem_x509_certificates)
    trusted = _load(authority, "certificates", x509.load_pem_x509_certificates)
    private = _load(key, "a private key without a password", lambda data: load_pem_private_key(data, password=None))
    for path, each in ((certificate, own[0]), *((authority, each) for each in trusted)):
        _check_dates(path, each)
    kind = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*kind) != own[0].public_key().public_bytes(*kind):
        raise IdentityError(f"Expected {str(key)!r} to hold the key of {str(certificate)!r}, got another key.")
    if not _leads_to(own, trusted):
        raise IdentityError(
            f"Expected {str(certificate)!r} to come from the authority in {str(authority)!r}, "
            f"got one from {own[-1].issuer.rfc4514_string()!r}."
        )


def warn_of_readers(path: Path | None) -> None:
    """A line in the log for a file of one's own that others on this machine may read or change; None is no file."""
    mode = 0 if path is None or not path.exists() else path.stat().st_mode & 0o777
    if mode & 0o077:
        _LOG.warning(
            "Others on this machine may use %s (mode %03o). Make it yours alone: chmod 600 %s", path, mode, path
        )


def _load(path: Path, what: str, load: Callable[[bytes], T]) -> T:
    try:
        return load(path.read_bytes())
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise IdentityError(f"Expected {what} in {str(path)!r}, cannot read it: {reason}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: a key with a password
        raise IdentityError(f"Expected {what} in PEM form in {str(path)!r}, got something else.") from None


def _check_dates(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        ended = certificate.not_valid_after_utc
        raise IdentityError(
            f"Expected a valid certificate in {str(path)!r}, it expired on {ended:%Y-%m-%d %H:%M} UTC. Renew it."
        )
    if now < certificate.not_valid_before_utc:
        begins = certificate.not_valid_before_utc
        raise IdentityError(
            f"Expected a valid certificate in {str(path)!r}, it begins on {begins:%Y-%m-%d %H:%M} UTC. "
            "Check this computer's clock."
        )


def _leads_to(chain: Certificates, trusted: Certificates) -> bool:
    """Whether each certificate issued the one before it, and a trusted one the last."""
    linked = all(_issued(issuer, certificate) for certificate, issuer in pairwise(chain))
    return linked and any(_issued(authority, chain[-1]) for authority in trusted)


def _issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True

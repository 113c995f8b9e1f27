"""Who is who: certificates, checked before they are sent to a peer, so that errors name the file; and their expiry."""

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from quoron_privacy.errors import IdentityError

_LOG = logging.getLogger("quoron.client")
_WHOLE = re.compile(rb"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)  # such as a key beside certificates
SOON = 30.0  # days before its end from which on a certificate is warned of


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate, its key, and the authorities that are trusted, as one reading of three files found them."""

    chain: bytes  # of the certificate, which intermediate authorities may follow
    key: bytes
    roots: bytes
    certificates: tuple[x509.Certificate, ...]  # of the chain
    authorities: tuple[x509.Certificate, ...]  # there may be several, old and new

    @classmethod
    def read(cls, certificate: Path, key: Path, authority: Path, now: datetime | None = None) -> "Identity":
        """Raise IdentityError for files that cannot be read, and unless the certificate is of this key and valid now,
        by this machine's clock unless `now` is given."""
        chain, secret, roots = map(read, (certificate, key, authority))
        own, trusted = parse(chain, certificate), parse(roots, authority)
        _check_dates(certificate, own[0], now)
        _check_pair(certificate, own[0], key, secret)
        return cls(chain, secret, roots, tuple(own), tuple(trusted))


def check_identity(certificate: Path, key: Path, authority: Path) -> Identity:
    """Return an identity, whose certificate comes from this authority: raises IdentityError as `Identity.read`.

    Of several authorities those that are valid now count, and one is enough.
    """
    found, now = Identity.read(certificate, key, authority), datetime.now(UTC)
    good = [root for root in found.authorities if root.not_valid_before_utc <= now <= root.not_valid_after_utc]
    if not good:
        _check_dates(authority, max(found.authorities, key=lambda root: root.not_valid_after_utc))
    if not leads_to(found.certificates, good):
        raise IdentityError(
            f"Expected {str(certificate)!r} to come from the authority in {str(authority)!r}, "
            f"got one from {found.certificates[-1].issuer.rfc4514_string()!r}."
        )
    return found


def check_pair(certificate: Path, key: Path) -> None:
    """Raise IdentityError unless the key is that of the certificate."""
    _check_pair(certificate, load(certificate), key, read(key))


def _check_pair(path: Path, certificate: x509.Certificate, key: Path, secret: bytes) -> None:
    if _encoded(_private(secret, key).public_key()) != _encoded(certificate.public_key()):
        raise IdentityError(f"Expected {str(key)!r} to hold the key of {str(path)!r}, got another key.")


def days_left(certificate: x509.Certificate, at: datetime | None = None) -> float:
    """Return days until a certificate ends, by this machine's clock unless `at` another time; negative once it has."""
    return (certificate.not_valid_after_utc - (datetime.now(UTC) if at is None else at)) / timedelta(days=1)


def ending(what: object, days: float) -> str | None:
    """Return a warning of a certificate that has at most 30 days left, for people; None for one that has more."""
    if days > SOON:
        return None
    span = f"{abs(days):.0f} days" if abs(days) >= 2 else f"{24 * abs(days):.0f} hours"
    if days < 0:
        return f"{what} ended {span} ago. Renew it now: nobody takes it any more."
    return f"{what} ends in {span}. Renew it before: what is put in its place is read without a restart."


def ends_in(path: Path) -> float:
    """Return days until a file is no good any more: its first certificate, or the last of several authorities."""
    several = parse(read(path), path)
    stands = constraints(several[0])
    return max(map(days_left, several)) if stands is not None and stands.ca else days_left(several[0])


def endings(*paths: Path) -> list[str]:
    """Warnings of files that end soon; IdentityError if they cannot be read."""
    said = (ending(f"The certificate {path}", ends_in(path)) for path in paths)
    return [text for text in said if text is not None]


def constraints(certificate: x509.Certificate) -> x509.BasicConstraints | None:
    """Return what a certificate says of its right to issue others; None where it says nothing."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        return None


def warn_of_readers(path: Path | None) -> None:
    """A line in the log for a file of one's own that others on this machine may read or change; None is no file."""
    mode = 0 if path is None or not path.exists() else path.stat().st_mode & 0o777
    if mode & 0o077:
        _LOG.warning(
            "Others on this machine may use %s (mode %03o). Make it yours alone: chmod 600 %s", path, mode, path
        )


def read(path: Path) -> bytes:
    """Return the bytes of a certificate or key file; IdentityError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(
            f"Expected a readable file {str(path)!r}, got: {error.strerror}. Make one with `quoron admin certs`."
        ) from None


def parse(pem: bytes, source: Path | str) -> list[x509.Certificate]:
    """Every certificate of a PEM text, one at least; IdentityError names `source`, also of one that stops in the middle
    of its last."""
    try:
        if b"-----" in _WHOLE.sub(b"", pem.rpartition(b"-----END CERTIFICATE-----")[2]):
            raise ValueError
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise IdentityError(f"Expected certificates in PEM form in {str(source)!r}, got something else.") from None


def _check_dates(path: Path, certificate: x509.Certificate, now: datetime | None = None) -> None:
    now = datetime.now(UTC) if now is None else now
    if now > certificate.not_valid_after_utc:
        ended = certificate.not_valid_after_utc
        raise IdentityError(
            f"Expected a valid certificate in {str(path)!r}, it expired on {ended:%Y-%m-%d %H:%M} UTC. Renew "
            "it, as `quoron admin certs DIR --client NAME --renew` does."
        )
    if now < certificate.not_valid_before_utc:
        begins = certificate.not_valid_before_utc
        raise IdentityError(
            f"Expected a valid certificate in {str(path)!r}, it begins on {begins:%Y-%m-%d %H:%M} UTC. "
            "Check this computer's clock."
        )


def fingerprint(certificate: x509.Certificate) -> str:
    """Return SHA-256 of the public key: one key, one user, also when its certificate is renewed."""
    return hashlib.sha256(_encoded(certificate.public_key())).hexdigest()


def load(path: Path) -> x509.Certificate:
    """Return the first certificate of a file; IdentityError if it has none."""
    return parse(read(path), path)[0]


def leads_to(chain: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate]) -> bool:
    """Return whether each certificate issued the one before it, and a trusted one the last, or is it."""
    linked = all(issued(issuer, certificate) for certificate, issuer in pairwise(chain))
    return linked and (chain[-1] in trusted or any(issued(authority, chain[-1]) for authority in trusted))


def issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    """Return whether one was signed by the key of another, which has its issuer's name."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _encoded(public: Any) -> bytes:
    return bytes(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _private(secret: bytes, path: Path) -> Any:
    try:
        return load_pem_private_key(secret, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: a key with a password
        raise IdentityError(
            f"Expected a private key without a password in PEM form in {str(path)!r}, got something else."
        ) from None

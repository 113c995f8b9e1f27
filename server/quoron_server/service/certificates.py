"""A private certificate authority for trials: one folder, one coordinator, a certificate for every client.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> make_authority(folder, days=30)
    >>> issue(folder, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=30).name
    'coordinator.pem'

Each NAME has NAME.pem and NAME.key. Keys are P-256 and readable by their owner alone. A client's certificate cannot
pose as a coordinator, nor the other way round. Renewal keeps the key, and with it the user that the key stands for.
"""

import datetime as dt
import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quoron_privacy.errors import ConfigError, IdentityError
from quoron_server.books.durable import PRIVATE, PUBLIC, make_folder, replace_whole
from quoron_server.service import revocation
from quoron_server.service.folder_lock import locked

AUTHORITY = "authority"
_LEAST_RSA, _LEAST_CURVE = 2048, 256  # bits of a client's key
_SLACK = dt.timedelta(minutes=5)  # clocks differ


def make_authority(folder: Path, *, days: int) -> None:
    """authority.pem, authority.key and an empty revoked.json in `folder`, unless they are there."""
    make_folder(folder)
    revocation.make(folder / revocation.FILE)
    with locked(folder):
        _make_authority(folder, days)


def _make_authority(folder: Path, days: int) -> None:
    if (folder / f"{AUTHORITY}.pem").exists():
        return
    key = _key(folder, AUTHORITY)
    name = _name("quoron trial authority")
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = _builder(name, name, key.public_key(), dt.timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    # Key identifiers are for whoever checks certificates strictly, as Python 3.13 does.
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    _write(folder / f"{AUTHORITY}.pem", builder.sign(key, hashes.SHA256()))


def issue(
    folder: Path,
    name: str,
    *,
    coordinator: bool = False,
    hosts: Sequence[str] = (),
    days: float,
    unit: str | None = None,
    renew: bool = False,
) -> Path:
    """NAME.pem and NAME.key, signed by the authority in `folder`; the path of the certificate.

    A name has one certificate: a second one needs `renew`, and keeps the key. `hosts` are the names and addresses at
    which clients reach a coordinator; `unit` is the group that a client belongs to; without them, a renewed certificate
    keeps those that it had. Raises ConfigError for a name that is taken, unfit or revoked, IdentityError without a
    usable authority.
    """
    check_name(name)
    with locked(folder):
        return _issue(folder, name, coordinator=coordinator, hosts=hosts, days=days, unit=unit, renew=renew)


def _issue(
    folder: Path, name: str, *, coordinator: bool, hosts: Sequence[str], days: float, unit: str | None, renew: bool
) -> Path:
    path = folder / f"{name}.pem"
    if path.exists() and not renew:
        raise ConfigError(f"Expected no certificate {path}, found one: one name, one user. Renew it with --renew.")
    authority, signer = load_certificate(folder / f"{AUTHORITY}.pem"), _key(folder, AUTHORITY, must_exist=True)
    names = [_host(host) for host in hosts]
    if path.exists():
        old = load_certificate(path)
        if (folder / revocation.FILE).exists() and fingerprint(old) in revocation.read(folder / revocation.FILE):
            raise ConfigError(f"Expected a certificate that is not revoked, but {path} is. Issue one of another name.")
        unit = group(old) if unit is None else unit
        names = names or _hosts(old)
    key = _key(folder, name)
    use = ExtendedKeyUsageOID.SERVER_AUTH if coordinator else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = _builder(_name(name, unit), authority.subject, key.public_key(), dt.timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(issuer, critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    _write(path, builder.sign(signer, hashes.SHA256()))
    return path


def add_hosts(folder: Path, name: str, hosts: Sequence[str], *, days: float) -> Path | None:
    """Reissue NAME.pem, with its key, if it lacks one of `hosts`: those that it had and these; None if it has them all.

    Raises as `issue` does, and IdentityError without the certificate.
    """
    check_name(name)
    with locked(folder):
        stands = _hosts(load_certificate(folder / f"{name}.pem"))
        if all(_host(host) in stands for host in hosts):
            return None
        every = tuple(dict.fromkeys([*(str(each.value) for each in stands), *hosts]))
        return _issue(folder, name, coordinator=True, hosts=every, days=days, unit=None, renew=True)


def revoke(folder: Path, name: str) -> Path:
    """Enter the client NAME of an authority's folder in its list of revoked certificates; the path of the list.

    It is the key that is revoked, so that the name is never renewed. IdentityError without its certificate.
    """
    check_name(name)
    file = folder / revocation.FILE
    revocation.add(file, fingerprint(load_certificate(folder / f"{name}.pem")), name=name)
    return file


def check_name(name: str) -> None:
    """ConfigError for a name that cannot be that of a certificate's files."""
    if not name or name == AUTHORITY or not all(letter.isalnum() or letter in "-_." for letter in name):
        raise ConfigError(f"Expected a name of letters, digits, '-', '_' and '.', got {name!r}. Choose another.")


def load_certificate(path: Path) -> x509.Certificate:
    """The certificate in a PEM file; IdentityError if missing or unreadable."""
    return parse_certificate(read(path), str(path))


def parse_certificate(pem: bytes, source: str) -> x509.Certificate:
    """The certificate of a PEM text; IdentityError names `source`."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise IdentityError(f"Expected a PEM certificate in {source}, got something else.") from None


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the public key: one key, one user, also when its certificate is renewed."""
    spki = certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashes.Hash(hashes.SHA256())
    digest.update(spki)
    return digest.finalize().hex()


def strong(certificate: x509.Certificate) -> bool:
    """Whether its key is one that nobody can compute: RSA of 2048 bits, or a curve of 256."""
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= _LEAST_RSA
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key.curve.key_size >= _LEAST_CURVE
    return isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey)


def near(certificate: x509.Certificate, authorities: Sequence[x509.Certificate]) -> bool:
    """Whether one of `authorities` issued it, or allows that others do so in its place (their path length is not 0)."""
    return any(_issued(authority, certificate) or _delegates(authority) for authority in authorities)


def load_authorities(path: Path) -> list[x509.Certificate]:
    """Every certificate in a PEM file; IdentityError if it is missing or unreadable."""
    try:
        return x509.load_pem_x509_certificates(read(path))
    except ValueError:
        raise IdentityError(f"Expected a PEM certificate in {path}, got something else.") from None


def _issued(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _delegates(authority: x509.Certificate) -> bool:
    try:
        stands = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return stands.ca and (stands.path_length is None or stands.path_length > 0)


def group(certificate: x509.Certificate) -> str | None:
    """The group that the authority put its holder in: the organisational unit of the subject."""
    units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    return str(units[0].value) if units else None


def common_name(certificate: x509.Certificate) -> str:
    """The name of its holder, for people."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def read(path: Path) -> bytes:
    """The bytes of a certificate or key file; IdentityError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(
            f"Expected a readable file {path}, got: {error.strerror}. Make one with `quoron certs`."
        ) from None


def _key(folder: Path, name: str, *, must_exist: bool = False) -> ec.EllipticCurvePrivateKey:
    """The stored private key of a name, or a new one."""
    path = folder / f"{name}.key"
    if path.exists() or must_exist:
        with suppress(ValueError, TypeError):
            stored = serialization.load_pem_private_key(read(path), None)
            if isinstance(stored, ec.EllipticCurvePrivateKey) and stored.curve.key_size >= _LEAST_CURVE:
                return stored
        raise IdentityError(
            f"Expected an elliptic-curve key of {_LEAST_CURVE} bits or more without password in {path}, got another."
        )
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    replace_whole(path, pem, mode=PRIVATE)
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    begins = now - _SLACK + min(lifetime, dt.timedelta())  # a negative lifetime is one that is over
    return builder.not_valid_before(begins).not_valid_after(now + lifetime)


def _name(text: str, unit: str | None = None) -> x509.Name:
    units = [] if unit is None else [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)]
    return x509.Name([*units, x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    if not re.fullmatch(r"[A-Za-z0-9_.*-]+", text):
        raise ConfigError(f"Expected a host's name or address without a port, got {text!r}.")
    return x509.DNSName(text)


def _hosts(certificate: x509.Certificate) -> list[x509.GeneralName]:
    """The names and addresses in a certificate."""
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _write(path: Path, certificate: x509.Certificate) -> None:
    replace_whole(path, certificate.public_bytes(serialization.Encoding.PEM), mode=PUBLIC)

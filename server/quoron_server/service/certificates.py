"""A private certificate authority for trials: a folder, a coordinator, a certificate for every client, revoked keys.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> make_authority(folder, days=30)
    >>> issue(folder, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=30).parent.name
    'coordinator'

Each NAME has a folder NAME, for its holder: certificate.pem, key.pem and authority.pem, and revoked.json of a
coordinator. Keys are P-256 and readable by their owner alone. A client's certificate cannot pose as a coordinator, nor
the other way round. Renewal keeps the key, and with it the user that the key stands for. A file authority.pem may hold
several authorities, of which the first signs, with authority.key: a holder of the file trusts them all.
"""

import datetime as dt
import ipaddress
import json
import logging
import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from quoron_client.durable import OWN, PRIVATE, PUBLIC, erase, locked, make_folder, replace_whole
from quoron_client.protocol.identity import SOON, constraints, days_left, issued, leads_to, load, parse, read
from quoron_client.protocol.identity import fingerprint as fingerprint
from quoron_privacy.errors import ConfigError, IdentityError
from quoron_server.service import event_log

FILE = "revoked.json"  # in an authority's folder
WORDS = "This client's certificate was revoked. Ask the authority that issued it."
MOST_NAMED = 20  # clients, in a line of the log
CLOSED = "The coordinator cannot tell now who is revoked. Come back later."
Version = tuple[int, ...] | None  # of a file
_log = logging.getLogger("quoron")

AUTHORITY, COORDINATOR, FORGOTTEN = "authority", "coordinator", "forgotten"
CERTIFICATE, KEY, TRUSTED = "certificate.pem", "key.pem", f"{AUTHORITY}.pem"  # in the folder of a holder
_MIN_RSA, _MIN_CURVE = 2048, 256  # bits of a client's key
SLACK = dt.timedelta(minutes=5)  # clocks differ


def revoke_all(file: Path, names: Mapping[str, str]) -> None:
    """Enter fingerprints with readable names; again, or none, is the same. ConfigError for a list that cannot be read.

    Concurrent calls take turns: once the call returns, the list is there with its new entries, and on the disk.
    """
    with locked(file.parent):
        if names or not file.exists():
            listed = read_revoked(file) if file.exists() else {}
            replace_whole(file, json.dumps({**listed, **names}, indent=1).encode(), mode=PUBLIC)


def read_revoked(file: Path) -> dict[str, str]:
    """Name by fingerprint; ConfigError if there is no such list."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        well_formed = isinstance(entries, dict) and all(re.fullmatch("[0-9a-f]{64}", entry) for entry in entries)
    except (OSError, ValueError):
        well_formed = False
    if not well_formed:
        raise ConfigError(
            f"Expected a list of revoked certificates at {file}, got none. `quoron admin certs FOLDER` makes one."
        )
    return dict(entries)


class Revocations:
    """The list in a file as it is now. Only what was read counts as seen; what could not be is read again.

    It is a JSON object, fingerprint of a key to name, so a renewal does not bring a client back. While it has changed
    and cannot be read, the server does not know which clients are revoked, and refuses every client.

        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "revoked.json"
        >>> revoke_all(file, {})
        >>> revoked = Revocations(file)
        >>> revoke_all(file, {64 * "a": "client-7"})
        >>> 64 * "a" in revoked.now(), 64 * "b" in revoked.now()
        (True, False)
    """

    def __init__(self, file: Path) -> None:
        """Raises ConfigError if it is no list yet."""
        self._file, self._seen = file, version(file)
        self._fingerprints = frozenset(read_revoked(file))
        self._closed = False

    def now(self) -> frozenset[str]:
        """Return every fingerprint on the list, which is read again if it has changed.

        ConfigError while it cannot be read: then no certificate is known to be good.
        """
        current = version(self._file)  # before the reading: what is written meanwhile is another version
        if current is None or current != self._seen:
            try:
                listed = read_revoked(self._file)
            except ConfigError as error:
                if not self._closed:
                    _log.error("%s Until there is one, no client is let in.", error)
                self._closed = True
                raise
            new = sorted(name for fingerprint, name in listed.items() if fingerprint not in self._fingerprints)
            if new:
                names = ", ".join(new[:MOST_NAMED]) + (", …" if len(new) > MOST_NAMED else "")
                event_log.note("revoked", clients=len(listed), names=names)
            self._fingerprints, self._seen = frozenset(listed), current
        if self._closed:
            _log.info("the list of revoked certificates at %s can be read again", self._file)
        self._closed = False
        return self._fingerprints


def version(file: Path) -> Version:
    """Another one whenever the file was written or replaced; None if it is not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def make_authority(folder: Path, *, days: int) -> None:
    """authority.pem, authority.key and an empty revoked.json in `folder`, unless they are there; handed to holders."""
    make_folder(folder)
    revoke_all(folder / FILE, {})
    with locked(folder):
        if not (folder / TRUSTED).exists():
            made = _self_signed(_key(folder / f"{AUTHORITY}.key"), "quoron trial authority", days)
            _write(folder / TRUSTED, made)
        _hand_out(folder)


def _hand_out(folder: Path) -> None:
    """Copy authority.pem to each holder and revoked.json to the coordinator, where these are older."""
    for holder in {path.parent for path in folder.glob(f"*/{CERTIFICATE}")}:
        for name in (TRUSTED, FILE) if holder.name == COORDINATOR else (TRUSTED,):
            given, content = holder / name, read(folder / name)
            if not given.exists() or given.read_bytes() != content:
                replace_whole(given, content, mode=PUBLIC)


def _self_signed(key: ec.EllipticCurvePrivateKey, title: str, days: int) -> x509.Certificate:
    name = _name(title)
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = _builder(name, name, key.public_key(), dt.timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    # Key identifiers are for strict checks of certificates, as Python 3.13 does.
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256())


def _signer(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the first authority in authority.pem, and its key."""
    authority, path = load(folder / TRUSTED), folder / f"{AUTHORITY}.key"
    if (key := _stored_key(path)).public_key() != authority.public_key():
        raise IdentityError(
            f"Expected the key of {common_name(authority.subject)!r} in {path}, got another. Put it back."
        )
    return authority, key


@dataclass(frozen=True, slots=True)
class Entry:
    """A certificate in a folder, as people ask about it."""

    kind: str  # authority, coordinator or client
    name: str
    group: str | None
    issuer: str
    ends: str  # ISO 8601, UTC
    days_left: float
    revoked: bool
    fingerprint: str  # of its key

    def words(self) -> str:
        """For people: one line with tabs."""
        state = "revoked" if self.revoked else "ended" if self.days_left < 0 else ""
        state = state or ("ends soon: renew it" if self.days_left <= SOON else "good")
        return f"{self.kind}\t{self.name}\t{self.ends[:10]}\t{int(self.days_left // 1)} days\t{state}\t{self.issuer}"


def every(folder: Path) -> list[Entry]:
    """Every certificate in the PEM files of a folder, authorities first; IdentityError for one that is damaged."""
    listed = read_revoked(folder / FILE) if (folder / FILE).exists() else {}
    found = []
    for path in (folder / TRUSTED, *folder.glob(f"*/{CERTIFICATE}")):
        several = parse(read(path), path)
        found += [_entry(path.parent.name, one, listed) for one in (several if path.name == TRUSTED else several[:1])]
    return sorted(found, key=lambda entry: ((AUTHORITY, COORDINATOR, "client").index(entry.kind), entry.name))


def _entry(name: str, certificate: x509.Certificate, listed: Container[str]) -> Entry:
    key = fingerprint(certificate)
    ends = f"{certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%S}+00:00"
    kind = _kind(certificate)
    shown = common_name(certificate.subject) if kind == AUTHORITY else name
    issuer = common_name(certificate.issuer)
    return Entry(kind, shown, group(certificate), issuer, ends, days_left(certificate), key in listed, key)


def _kind(certificate: x509.Certificate) -> str:
    if (stands := constraints(certificate)) is not None and stands.ca:
        return AUTHORITY
    with suppress(x509.ExtensionNotFound):
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if ExtendedKeyUsageOID.SERVER_AUTH in uses and ExtendedKeyUsageOID.CLIENT_AUTH not in uses:
            return COORDINATOR
    return "client"


def common_name(name: x509.Name) -> str:
    """Return what people call a holder; "" where nothing is said."""
    names = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def issue(
    folder: Path,
    name: str,
    *,
    coordinator: bool = False,
    hosts: Sequence[str] = (),
    days: float,
    unit: str | None = None,
    renew: bool = False,
    more_hosts: Sequence[str] = (),
) -> Path:
    """Write NAME/certificate.pem and NAME/key.pem, signed by the authority in `folder`; return the certificate's path.

    A name has one certificate: a second one needs `renew`, and keeps the key, whose private half may be elsewhere by
    then. Clients reach a coordinator at the names and addresses `hosts`; `unit` is the group that a client belongs to.
    Without them, a renewed certificate keeps those that it had, and has `more_hosts`. Raises ConfigError for a name
    that is taken, unfit or revoked, IdentityError without a usable authority.
    """
    check_name(name)
    with locked(folder):
        path = folder / name / CERTIFICATE
        if path.exists() and not renew:
            raise ConfigError(f"Expected no certificate {path}, found one: one name, one user. Renew it with --renew.")
        (authority, signer), own = _signer(folder), path.with_name(KEY)
        names = [_host(host) for host in hosts]
        if path.exists():
            old = load(path)
            if (folder / FILE).exists() and fingerprint(old) in read_revoked(folder / FILE):
                raise ConfigError(
                    f"Expected a certificate that is not revoked, but {path} is. Issue one of another name."
                )
            unit = group(old) if unit is None else unit
            names = names or _hosts(old)
            names += [host for host in dict.fromkeys(map(_host, more_hosts)) if host not in names]
            key = old.public_key()  # which stays: its private half may be where its holder is, and nowhere else
            if own.exists() and _stored_key(own).public_key() != key:
                raise IdentityError(f"Expected {own} to be the key of {path}, got another. Put it back, or away.")
        else:
            make_folder(path.parent, mode=OWN)
            key = _key(own).public_key()
        use = ExtendedKeyUsageOID.SERVER_AUTH if coordinator else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = _builder(_name(name, unit), authority.subject, key, dt.timedelta(days=days))
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        _write(path, builder.sign(signer, hashes.SHA256()))
        _hand_out(folder)
        return path


def add_hosts(folder: Path, name: str, hosts: Sequence[str], *, days: float) -> Path | None:
    """Reissue NAME/certificate.pem, with its key, if it lacks one of `hosts`: for those that it had and these.

    None if it has them all.

    Raises as `issue` does, and IdentityError without the certificate.
    """
    check_name(name)
    stands = _hosts(load(folder / name / CERTIFICATE))
    if all(_host(host) in stands for host in hosts):
        return None
    return issue(folder, name, coordinator=True, days=days, renew=True, more_hosts=hosts)


def revoke(folder: Path, name: str) -> Path:
    """Enter the client NAME of an authority's folder in its list of revoked certificates; the path of the list.

    It is the key that is revoked, so that the name is never renewed. IdentityError without its certificate.
    """
    check_name(name)
    return revoke_key(folder, fingerprint(load(folder / name / CERTIFICATE)), name=name)


def revoke_key(folder: Path, fingerprint: str, *, name: str = FORGOTTEN) -> Path:
    """Enter a key in the list of revoked ones, under a name that says nothing; the path of the list."""
    file = folder / FILE
    revoke_all(file, {fingerprint: name})
    with locked(folder):
        _hand_out(folder)
    return file


def erase_forgotten(folder: Path) -> list[str]:
    """Erase every certificate and key of whom `revoke_key` has listed; their files. Again is the same."""
    gone = {key for key, name in read_revoked(folder / FILE).items() if name == FORGOTTEN}
    erased = []
    with locked(folder):
        for entry in every(folder):
            if entry.kind != AUTHORITY and entry.fingerprint in gone:
                (folder / entry.name / TRUSTED).unlink(missing_ok=True)
                for file in (KEY, CERTIFICATE):  # last what tells that it is
                    if (path := folder / entry.name / file).exists():
                        erase(path, secret=file == KEY)
                        erased.append(f"{entry.name}/{file}")
        for place in (path for path in folder.iterdir() if path.is_dir()):
            with suppress(OSError):  # unless it is empty
                place.rmdir()
    return erased


def check_name(name: str) -> None:
    """Raise ConfigError for a name that cannot be that of a certificate's files."""
    fits = all(letter.isalnum() or letter in "-_." for letter in name) and not name.startswith(".")
    if not name or not fits or Path(name).stem == AUTHORITY or name == FILE:
        raise ConfigError(f"Expected a name of letters, digits, '-', '_' and '.', got {name!r}. Choose another.")


def strong(certificate: x509.Certificate) -> bool:
    """Return whether its key cannot be computed: RSA of 2048 bits, or a curve of 256."""
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= _MIN_RSA
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key.curve.key_size >= _MIN_CURVE
    return isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey)


def near(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> bool:
    """Whether one of `authorities` issued the first of `chain`, or lets others do so in its place (its path length is
    not 0) and is where the rest of the chain leads."""
    for authority in authorities:
        stands = constraints(authority)
        delegates = stands is not None and stands.ca and stands.path_length != 0
        if issued(authority, chain[0]) or (delegates and leads_to(chain, [authority])):
            return True
    return False


def group(certificate: x509.Certificate) -> str | None:
    """Return the group that the authority put its holder in: the organisational unit of the subject."""
    units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    return str(units[0].value) if units else None


def _stored_key(path: Path) -> ec.EllipticCurvePrivateKey:
    with suppress(ValueError, TypeError):
        stored = serialization.load_pem_private_key(read(path), None)
        if isinstance(stored, ec.EllipticCurvePrivateKey) and stored.curve.key_size >= _MIN_CURVE:
            return stored
    raise IdentityError(
        f"Expected an elliptic-curve key of {_MIN_CURVE} bits or more without password in {path}, got another."
    )


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key that is stored there, or a new one."""
    if path.exists():
        return _stored_key(path)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    replace_whole(path, pem, mode=PRIVATE)
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, lifetime: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    begins = now - SLACK + min(lifetime, dt.timedelta())  # a negative lifetime is one that is over
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
    """Return the names and addresses in a certificate."""
    try:
        return list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _write(path: Path, certificate: x509.Certificate) -> None:
    replace_whole(path, certificate.public_bytes(serialization.Encoding.PEM), mode=PUBLIC)

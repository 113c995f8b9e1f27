"""A person's new key, signed by the old one: the same user, with the same budget, for whoever checks the statement.

    text = sign(Path("ada.key"), Path("ada-new.key"))
    old, new = check(text)                            # fingerprints of the two keys

Both keys sign the words `quoron rotation 1` and both fingerprints, each on a line: the old one says that the new one
follows it, the new one that whoever says so holds it. Nothing else that quoron or TLS signs begins so.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from quoron_privacy.errors import ConfigError, IdentityError

KIND = "quoron rotation 1"
LONGEST = 16 << 10  # characters of a statement
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), hashes.SHA256.digest_size)


def sign(old: Path, new: Path) -> str:
    """The statement that the key in `new` follows that in `old`, as JSON. IdentityError for a file that is no key,
    ConfigError for one key twice."""
    keys = {"old": _private(old), "new": _private(new)}
    public = {name: _encoded(key.public_key()) for name, key in keys.items()}
    if public["old"] == public["new"]:
        raise ConfigError(f"Expected two keys, got one: {new} holds that of {old}. Make a new one.")
    said = _said(*map(_fingerprint, public.values()))
    signatures = {name: _text(_signed(key, said)) for name, key in keys.items()}
    return json.dumps(
        {"kind": KIND, **{name: _text(der) for name, der in public.items()}, "signatures": signatures}, indent=1
    )


def check(text: str) -> tuple[str, str]:
    """The fingerprints of the old key and of the one that follows it. ConfigError unless both have signed so."""
    wrong = ConfigError(
        "Expected a rotation, signed by the old key and by the new one, got something else. `quoron admin users "
        "rotation` makes one, where both keys are."
    )
    if len(text) > LONGEST:
        raise wrong
    try:
        stated = json.loads(text)
        if stated["kind"] != KIND:
            raise wrong
        public = {name: base64.b64decode(stated[name], validate=True) for name in ("old", "new")}
        said = _said(*map(_fingerprint, public.values()))
        for name, der in public.items():
            key = load_der_public_key(der)
            if _encoded(key) != der:  # one key, written in another way, would have another fingerprint
                raise wrong
            _verify(key, base64.b64decode(stated["signatures"][name], validate=True), said)
    except (ValueError, KeyError, TypeError, RecursionError, UnsupportedAlgorithm, InvalidSignature):
        raise wrong from None
    old, new = map(_fingerprint, public.values())
    if old == new:
        raise wrong
    return old, new


def _said(old: str, new: str) -> bytes:
    return f"{KIND}\n{old}\n{new}\n".encode()


def _encoded(public: Any) -> bytes:
    return bytes(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _fingerprint(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _private(path: Path) -> Any:
    try:
        return load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise IdentityError(f"Expected a private key in {path}, cannot read it: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: a key with a password
        raise IdentityError(f"Expected a private key without a password in {path}, got something else.") from None


def _signed(key: Any, said: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(said, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(said, _PSS, hashes.SHA256())
    if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey):
        return key.sign(said)
    raise IdentityError(f"Expected a key of RSA, of an elliptic curve, Ed25519 or Ed448, got {type(key).__name__}.")


def _verify(key: Any, signature: bytes, said: bytes) -> None:
    """InvalidSignature unless it is one; TypeError for a key of another kind."""
    if isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, said, ec.ECDSA(hashes.SHA256()))
    elif isinstance(key, rsa.RSAPublicKey):
        key.verify(signature, said, _PSS, hashes.SHA256())
    elif isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        key.verify(signature, said)
    else:
        raise TypeError(type(key).__name__)

"""Seeds sealed for the second server: HPKE in base mode, under a key pair of one run that is destroyed at its end.

    >>> key = RunKey.fresh()
    >>> about = info(SUITE, "run", bytes(32), 0, bytes(32), bytes(32))
    >>> sealed = seal(key.public, bytes(range(32)), about)
    >>> open_(key.secret, sealed, about) == bytes(range(32)), open_(key.secret, sealed, about + b".")
    (True, None)

`info` binds a seal to its run, plan, round, question and user: under any other it does not open. The key exchange is
hybrid, ML-KEM-768 with X25519, since masked answers can be kept and opened when one of the two is broken; the cipher
has keys of 256 bits. A salt of the seed goes into `info` and in front: a machine that was restored, and whose
randomness comes again, seals another seed under another key. Source: RFC 9180. What rests on it:
docs/privacy/two-servers.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from quoron_privacy.errors import ConfigError, RunError
from quoron_privacy.two_servers.rows import salt_of

SUITE = "quoron-two-servers-1 z64 chacha20 mlkem768-x25519 hkdf-sha256 chacha20-poly1305 floor-gauss-30"
SALT = 16
PUBLIC, SECRET, SEALED = 1184 + 32, 64 + 32, SALT + 1168  # bytes of a key, of both seeds, of a sealed seed
_PURPOSE = b"quoron two-servers 1"


@dataclass(frozen=True, slots=True)
class RunKey:
    """The key pair of one run. Its secret stays out of backups and is destroyed when the run ends."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def fresh(cls) -> "RunKey":
        """From the operating system's randomness."""
        _hpke()  # refuses first where there is none
        from cryptography.hazmat.primitives.asymmetric import mlkem, x25519

        secret = mlkem.MLKEM768PrivateKey.generate().private_bytes_raw()
        return cls.of(secret + x25519.X25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def of(cls, secret: bytes) -> "RunKey":
        """From the bytes of a secret."""
        lattice, curve = _parts(secret)
        return cls(lattice.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw(), secret)


def seal(public: bytes, seed: bytes, info: bytes) -> bytes:
    """Seal a seed of 32 bytes for the holder of the secret; other bytes every time. ConfigError for what is no key."""
    _, suite = _hpke()
    if len(public) != PUBLIC or len(seed) != 32:
        raise ConfigError(f"Expected a key of {PUBLIC} and a seed of 32 bytes, got {len(public)} and {len(seed)}.")
    try:
        salt = salt_of(seed)
        sealed: bytes = suite.encrypt(seed, _public(public), info + salt)
    except ValueError:
        raise ConfigError("Expected the public key of a run, got bytes that are none.") from None
    return salt + sealed


def open_(secret: bytes, sealed: bytes, info: bytes) -> bytes | None:
    """Return the seed; None for what was not sealed for this key and this `info`. Of many seals see `opener`."""
    return opener(secret)(sealed, info)


def opener(secret: bytes) -> Callable[[bytes, bytes], bytes | None]:
    """`open_` of many seals and their infos under one secret, which it holds: twice as fast. Threads may share it."""
    from cryptography.exceptions import InvalidTag

    hpke, suite = _hpke()
    key = hpke.MLKEM768X25519PrivateKey(*_parts(secret))

    def opened(sealed: bytes, info: bytes) -> bytes | None:
        if len(sealed) != SEALED:
            return None
        try:
            seed: bytes = suite.decrypt(sealed[SALT:], key, info + sealed[:SALT])
        except (InvalidTag, ValueError):
            return None
        return seed if len(seed) == 32 else None

    return opened


def info(suite: str, run: str, plan_digest: bytes, round_: int, question_digest: bytes, fingerprint: bytes) -> bytes:
    """Return what a seal is bound to: each part with its length, so that no two lists of parts are one text."""
    parts = _PURPOSE, suite.encode(), run.encode(), plan_digest, round_.to_bytes(8, "little"), question_digest
    return b"".join(len(part).to_bytes(8, "little") + part for part in (*parts, fingerprint))


def _parts(secret: bytes) -> tuple[Any, Any]:
    from cryptography.hazmat.primitives.asymmetric import mlkem, x25519

    if len(secret) != SECRET:
        raise ConfigError(f"Expected a secret of {SECRET} bytes, got {len(secret)}. Use RunKey.fresh().")
    lattice, curve = secret[:64], secret[64:]
    return mlkem.MLKEM768PrivateKey.from_seed_bytes(lattice), x25519.X25519PrivateKey.from_private_bytes(curve)


@lru_cache(maxsize=64)
def _public(key: bytes) -> Any:
    """As a cipher wants it: a client that seals in many rounds reads it once."""
    from cryptography.hazmat.primitives.asymmetric import mlkem, x25519

    lattice = mlkem.MLKEM768PublicKey.from_public_bytes(key[:1184])
    return _hpke()[0].MLKEM768X25519PublicKey(lattice, x25519.X25519PublicKey.from_public_bytes(key[1184:]))


@cache
def _hpke() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import hpke

        suite = hpke.Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
    except (ImportError, AttributeError):
        raise RunError(
            "Expected cryptography with HPKE and ML-KEM for two servers, got an older one. Install cryptography>=50."
        ) from None
    return hpke, suite

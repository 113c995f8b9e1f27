"""The second server's keys: one to sign with, for good, and for each run two that are destroyed with it.

    >>> import tempfile
    >>> keys = Keys(Path(tempfile.mkdtemp()) / "keys")
    >>> made = keys.make("summer")
    >>> keys.read("summer") == made, keys.destroy("summer"), keys.read("summer")
    (True, None, None)

Never back up this folder: a run's keys, with what the coordinator was sent, open every answer of the run.
It says so itself, in the way that backup programs know (CACHEDIR.TAG). What also stands there is how many lists of a
run were answered: a database that knows of fewer was restored from a copy.
"""

import hashlib
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from quoron_client.durable import OWN, PRIVATE, PUBLIC, erase, locked, make_folder, replace_whole
from quoron_privacy.errors import ConfigError, IdentityError, LedgerError
from quoron_privacy.two_servers.seals import SECRET, RunKey

_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Keys that are destroyed: keep this folder out of backups.\n"
_NOISE = 32  # bytes


@dataclass(frozen=True, slots=True)
class Secrets:
    """Of one run."""

    run_key: bytes = field(repr=False)  # that opens seals
    noise_key: bytes = field(repr=False)

    @property
    def public(self) -> bytes:
        """What clients seal for."""
        return RunKey.of(self.run_key).public


class Keys:
    """A folder of its owner's alone."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder, mode=OWN)
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            raise ConfigError(f"Expected a folder of keys that is its owner's alone, got {folder}. Use chmod 700.")
        self.folder = folder
        if not (tag := folder / "CACHEDIR.TAG").exists():
            replace_whole(tag, _TAG, mode=PUBLIC)

    def make(self, run: str, *, noise_key: bytes | None = None) -> Secrets:
        """New keys of a run, durable, in place of any that are in no store; a simulation has its noise's."""
        self.destroy(run)
        made = Secrets(RunKey.fresh().secret, secrets.token_bytes(_NOISE) if noise_key is None else noise_key)
        replace_whole(self._path(run, "keys"), made.run_key + made.noise_key, mode=PRIVATE)
        self.note(run, 0)
        return made

    def read(self, run: str) -> Secrets | None:
        """Return those of a run; None if they are gone. LedgerError for a file that is none."""
        path = self._path(run, "keys")
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if len(data) <= SECRET:
            raise LedgerError(f"Expected the keys of run {run} in {path}, got {len(data)} bytes of something else.")
        return Secrets(data[:SECRET], data[SECRET:])

    def holds(self, run: str) -> bool:
        """Return whether there are any of a run."""
        return self._path(run, "keys").exists()

    def destroy(self, run: str) -> None:
        """Overwrite and remove them; again is the same."""
        erase(self._path(run, "keys"), secret=True)
        erase(self._path(run, "lists"), secret=False)

    def note(self, run: str, answered: int) -> None:
        """Keep how many lists of a run were answered."""
        replace_whole(self._path(run, "lists"), f"{answered}\n".encode(), mode=PRIVATE)

    def noted(self, run: str) -> int:
        """Return the number of answered lists that was kept last."""
        try:
            return int(self._path(run, "lists").read_bytes())
        except (OSError, ValueError):
            raise LedgerError(
                f"Expected the number of lists of run {run} that were answered in {self._path(run, 'lists')}, found "
                "none. Nobody can tell whether the database is newer: close it (second-server runs RUN --close)."
            ) from None

    def _path(self, run: str, kind: str) -> Path:
        return self.folder / f"{hashlib.sha256(run.encode()).hexdigest()[:32]}.{kind}"


def signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the long-lived key in a file, made if there is none. IdentityError for something else."""
    if not path.exists():
        make_folder(path.parent, mode=OWN)
        with locked(path.parent):
            if not path.exists():  # or another process has made it meanwhile
                made = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
                replace_whole(path, made, mode=PRIVATE)
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise IdentityError(
            f"Expected the second server's signing key, of Ed25519 in PEM form, in {path}, got something else."
        )
    return key


def public_fingerprint(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 of a public key, to be read aloud."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def write_public(signing: Path, out: Path) -> str:
    """Return the public key of the one in `signing`, in a file that may be given to anybody; its fingerprint."""
    public = signing_key(signing).public_key()
    replace_whole(out, public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), mode=PUBLIC)
    return public_fingerprint(public)

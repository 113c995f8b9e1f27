"""Makes, once, what a trial federation on Flower needs before it starts; each part gets a folder that it alone sees.

A private authority signs a certificate for the SuperLink, for the proxy in front of it, which gets its configuration
too, and for what each SuperNode shows to the process of its apps. Every SuperNode has a key of its own, which is its
user's identity. For a real federation the owner of a node makes its key and hands over the public half alone.
"""

import os
import secrets
import shutil
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from quoron_server.service import certificates

os.umask(0o077)
TRIAL = Path(os.environ.get("QUORON_TRIAL", "/trial"))
NODES = range(1, int(os.environ.get("QUORON_NODES", "3")) + 1)
DAYS = 365


def write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """A file with all of its content, or none."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(content)
    draft.chmod(mode)
    draft.replace(path)


def folder(name: str) -> Path:
    """A part's folder, with whom to trust."""
    made = TRIAL / name
    made.mkdir(parents=True, exist_ok=True)
    shutil.copy(authority / "authority.pem", made)
    return made


def certified(name: str) -> Path:
    """A part's folder, with a certificate for its name in the network."""
    made, host = folder(name), f"flower-{name}"
    if not (authority / f"{host}/certificate.pem").exists():
        certificates.issue(authority, host, coordinator=True, hosts=(host, "localhost", "127.0.0.1"), days=DAYS)
    shutil.copy(authority / f"{host}/certificate.pem", made / "certificate.pem")
    shutil.copy(authority / f"{host}/key.pem", made / "key.pem")
    return made


def share(*folders: Path) -> None:
    """A secret by which the process of the apps proves that it belongs to its SuperLink or SuperNode."""
    if not all((each / "secret").exists() for each in folders):
        secret = secrets.token_hex(32).encode()
        for each in folders:
            write(each / "secret", secret)


def node_key(node: Path, public: Path) -> None:
    """The key of a SuperNode, and its public half for whoever registers it."""
    file = node / "node"
    if not file.exists():
        made = ec.generate_private_key(ec.SECP384R1())
        kinds = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        write(file, made.private_bytes(*kinds))
    key = serialization.load_ssh_private_key(file.read_bytes(), None).public_key()
    write(public, key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH))


def passwords(database: Path) -> None:
    """The database's own password, and the ServerApp's file with it."""
    if not (database / "pgpass").exists():
        password = secrets.token_hex(32)
        # The database runs as another user; only it and the ServerApp see this folder.
        write(database / "password", password.encode(), 0o444)
        write(database / "pgpass", f"*:*:*:quoron:{password}\n".encode())


authority = TRIAL / "authority"
certificates.make_authority(authority, days=3650)
shutil.copy(Path(__file__).with_name("nginx.conf"), certified("proxy"))
operator = folder("operator")
share(certified("superlink"), folder("server"))
for number in NODES:
    node = certified(f"node-{number}")
    node_key(node, operator / f"node-{number}.pub")
    share(node, folder(f"app-{number}"))
(TRIAL / "database").mkdir(exist_ok=True)
passwords(TRIAL / "database")

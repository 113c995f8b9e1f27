"""The example federation's scripts: a coordinator is certified for a public name, an identity is given out once."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from cryptography import x509

from quoron_server.service import certificates

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "federation"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with a `quoron` to call."""
    script = tmp_path / "bin" / "quoron"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m quoron "$@"\n')
    script.chmod(0o755)
    return script.parent


def run(script: str, *words: str, trial: Path, program: Path, **more: str) -> subprocess.CompletedProcess[bytes]:
    """A script of the example, its output and exit code."""
    environment = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}", "QUORON_TRIAL": str(trial), **more}
    command = ["sh", str(EXAMPLE / script), *words]
    return subprocess.run(command, env=environment, capture_output=True, check=False)


def hosts(certificate: Path) -> list[str]:
    """The names that a certificate is for."""
    loaded = certificates.load_certificate(certificate)
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(each.value) for each in names]


@pytest.mark.programs
def test_certificates_are_renewed_and_clients_revoked_where_the_authority_is(tmp_path: Path, program: Path) -> None:
    trial, public = tmp_path / "trial", {"QUORON_HOST": "federation.example.org"}
    assert run("setup.sh", trial=trial, program=program, **public).returncode == 0
    before = {path: path.read_bytes() for path in trial.glob("c*/*.pem")}
    names = hosts(trial / "coordinator" / "certificate.pem")
    renewed = run("setup.sh", "renew", trial=trial, program=program)
    assert renewed.returncode == 0, renewed.stderr
    for path, content in before.items():
        assert (path.read_bytes() != content) == (path.name == "certificate.pem")
    assert hosts(trial / "coordinator" / "certificate.pem") == names
    revoked = trial / "coordinator" / "revoked.json"
    assert json.loads(revoked.read_text()) == {}
    assert run("setup.sh", "revoke", "client-2", trial=trial, program=program).returncode == 0
    assert list(json.loads(revoked.read_text()).values()) == ["client-2"]
    for words in (("revoke",), ("revoke", "nobody"), ("renwe",)):
        refused = run("setup.sh", *words, trial=trial, program=program)
        assert refused.returncode != 0
        assert b"Expected" in refused.stderr


def test_an_identity_is_given_out_once_and_without_the_authoritys_key(tmp_path: Path, program: Path) -> None:
    trial, where = tmp_path / "trial", tmp_path / "trial" / "authority"
    none = run("identity.sh", "client-4", trial=trial, program=program)
    assert b"Expected an authority" in none.stderr
    certificates.make_authority(where, days=30)
    given = run("identity.sh", "client-4", trial=trial, program=program)
    assert given.returncode == 0, given.stderr
    with tarfile.open(fileobj=io.BytesIO(given.stdout)) as archive:
        assert {each.name: each.mode & 0o077 for each in archive} == {
            "certificate.pem": 0,
            "key.pem": 0,
            "authority.pem": 0,
        }
        held = {each.name: (archive.extractfile(each) or io.BytesIO()).read() for each in archive}
    assert held["certificate.pem"] == (where / "client-4.pem").read_bytes()
    assert held["key.pem"] == (where / "client-4.key").read_bytes()
    assert held["authority.pem"] == (where / "authority.pem").read_bytes()
    assert (where / "authority.key").read_bytes() not in given.stdout
    again = run("identity.sh", "client-4", trial=trial, program=program)
    assert (again.returncode, again.stdout) == (2, b"")
    assert b"Expected a new name, got client-4" in again.stderr
    renewed = run("identity.sh", "client-4", "--renew", trial=trial, program=program)
    assert held["key.pem"] in renewed.stdout
    assert held["certificate.pem"] not in renewed.stdout

"""Files of tokens, certificates and revocations: nobody's change is lost, and nobody else may make one."""

import io
import json
import os
import re
import resource
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509

from federation.crowd import write_items
from quoron.cli.app import invoke
from quoron.federation.log_limit import LEAST
from quoron_client.durable import PRIVATE, locked, make_folder, replace_whole
from quoron_client.federation import ClientState
from quoron_privacy.errors import ConfigError
from quoron_server.service import certificates, tokens
from quoron_server.storage.database import Database

MANY = 40


def at_once(work: Callable[[int], object], count: int = MANY) -> list[object]:
    """The same at the same time, so often; errors are raised."""
    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(work, range(count)))


class TestNoChangeIsLost:
    def test_of_a_token_that_is_removed_while_others_are_added(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens.json"
        old = [tokens.add(file, name=f"old-{number}", role="operator") for number in range(MANY)]

        def change(number: int) -> str | None:
            if number % 2:
                return tokens.remove(file, name=f"old-{number // 2}")
            return tokens.add(file, name=f"new-{number // 2}", role="auditor")

        new = [token for token in at_once(change, 2 * MANY) if token is not None]
        assert not any(tokens.find(file, token) for token in old)
        assert [tokens.find(file, token).role for token in new] == ["auditor"] * MANY
        assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]

    def test_of_clients_that_are_revoked_at_once(self, tmp_path: Path) -> None:
        certificates.make_authority(tmp_path, days=1)
        names = [f"client-{number}" for number in range(MANY)]
        at_once(lambda number: certificates.issue(tmp_path, names[number], days=1))
        at_once(lambda number: certificates.revoke(tmp_path, names[number]))
        assert sorted(certificates.read_revoked(tmp_path / certificates.FILE).values()) == sorted(names)

    def test_of_names_of_a_coordinator_that_are_added_at_once(self, tmp_path: Path) -> None:
        certificates.make_authority(tmp_path, days=1)
        certificates.issue(tmp_path, "coordinator", coordinator=True, hosts=("hub",), days=1)
        at_once(lambda number: certificates.add_hosts(tmp_path, "coordinator", [f"hub-{number}"], days=1))
        wanted = ["hub", *(f"hub-{number}" for number in range(MANY))]
        assert certificates.add_hosts(tmp_path, "coordinator", wanted, days=1) is None

    def test_of_an_authority_that_is_made_at_once(self, tmp_path: Path) -> None:
        at_once(lambda number: certificates.make_authority(tmp_path, days=1))
        certificates.issue(tmp_path, "ada", days=1)
        signer = certificates.load(tmp_path / "authority.pem")
        certificates.load(tmp_path / "ada/certificate.pem").verify_directly_issued_by(signer)

    def test_of_a_file_whose_draft_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        file = tmp_path / "tokens.json"
        tokens.add(file, name="ada", role="operator")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            tokens.remove(file, name="ada")
        assert [each.name for each in tokens.read(file).values()] == ["ada"]
        assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]

    def test_and_a_folder_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="none"), locked(tmp_path / "none"):
            pass


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Files and folders that somebody else may change, and secrets that somebody else may read."""
    found = []
    for path in [folder, *folder.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        secret = (
            path.suffix in (".key", ".sqlite", ".token")
            or "sqlite-" in path.name
            or path.name in ("tokens.json", "key.pem")
        )
        if mode & (0o077 if secret and path.is_file() else 0o022):
            found.append(f"{path.relative_to(folder)} {mode:03o}")
    return found


@pytest.mark.usefixtures("no_umask")
class TestWithoutAUmask:
    """Whatever the umask, files get modes of their own."""

    def test_nothing_that_identifies_anybody_is_open_to_others(self, tmp_path: Path) -> None:
        trial = tmp_path / "a" / "trial"
        make_folder(tmp_path / "a")
        assert invoke(["admin", "certs", str(trial), "--clients", "2"]) == 0
        assert invoke(["admin", "certs", str(trial), "--revoke", "client-1"]) == 0
        assert invoke(["admin", "certs", str(trial), "--client", "client-2", "--renew"]) == 0
        file, out = str(trial / "tokens.json"), str(trial / "ada.token")
        assert invoke(["admin", "tokens", "ada", "--role", "operator", "--file", file, "--out", out]) == 0
        assert invoke(["admin", "tokens", "bob", "--role", "operator", "--file", file]) == 0
        assert invoke(["admin", "tokens", "bob", "--remove", "--file", file]) == 0
        assert open_to_others(tmp_path / "a") == []
        assert len([path for path in trial.rglob("*") if path.is_file()]) == 15

    def test_nothing_that_remembers_is_open_to_others(self, tmp_path: Path) -> None:
        folder = tmp_path / "a"
        make_folder(folder)
        with (
            Database(f"sqlite:///{folder}/coordinator.sqlite"),
            ClientState(folder / "record.sqlite", epsilon=1.0, delta=1e-6),
        ):
            assert open_to_others(folder) == []

    def test_nothing_that_the_program_writes_by_any_library_is_open_to_others(self, tmp_path: Path) -> None:
        text = "import os; from quoron import __main__ as program; from quoron.cli import app"
        text += "; app.invoke = lambda _: print(oct(os.umask(0)))"
        done = subprocess.run(
            [sys.executable, "-c", f"{text}; program.main()"], capture_output=True, text=True, check=True
        )
        assert done.stdout == "0o22\n"


def test_a_file_is_replaced_as_a_whole_with_a_mode_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text("before")
    file.chmod(0o666)
    replace_whole(file, b"after", mode=PRIVATE)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"after", PRIVATE)


HARD = resource.getrlimit(resource.RLIMIT_CORE)[1]
CRASH = """
import os, resource
from quoron.federation import log_limit
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
if SAFE:
    log_limit.switch_off()
os.abort()
"""


def crash(folder: Path, safe: bool) -> list[str]:
    """The files that a process leaves that crashes in a folder."""
    folder.mkdir()
    ended = subprocess.run([sys.executable, "-c", CRASH.replace("SAFE", str(safe))], cwd=folder, check=False)
    assert ended.returncode == -6
    return [each.name for each in folder.iterdir()]


def test_a_process_that_crashes_leaves_none(tmp_path: Path) -> None:
    assert crash(tmp_path / "safe", True) == []
    if not crash(tmp_path / "careless", False):
        pytest.skip("this system keeps no core dump where a process crashes, so that the test shows little")


@contextmanager
def program(*arguments: object, until: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`quoron ...` once it has said something that matches `until`, and that line."""
    command = [sys.executable, "-m", "quoron", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process, next(line for line in process.stdout if re.search(until, line))
        finally:
            process.kill()


def limits(process: "subprocess.Popen[str]") -> list[str]:
    """Soft and hard limit of its core dumps, in bytes."""
    text = Path(f"/proc/{process.pid}/limits").read_text()
    return re.search(r"Max core file size +(\S+) +(\S+)", text).groups()


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="no /proc/PID/limits")
@pytest.mark.programs
def test_coordinator_and_client_switch_them_off_for_good(tmp_path: Path) -> None:
    least = (str(min(LEAST, HARD) if HARD >= 0 else LEAST),) * 2
    places = ["--database", f"sqlite:///{tmp_path}/c.sqlite", "--tokens", tmp_path / "tokens.json"]
    serve = ["serve", "--insecure", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", *places]
    own = ["--data", write_items(tmp_path, 1)[0], "--state", tmp_path / "record.sqlite", "--set", "name=ada"]
    with program(*serve, until="^listening: ") as (coordinator, line):
        where = re.search(r"127\.0\.0\.1:\d+", line)[0]
        with program("client", "--insecure", "--coordinator", where, *own, until="enrolled") as (client, _):
            assert limits(coordinator) == least
            assert limits(client) == least


EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "federation"


@pytest.fixture
def own_program(tmp_path: Path) -> Path:
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
    loaded = certificates.load(certificate)
    names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(each.value) for each in names]


@pytest.mark.programs
def test_certificates_are_renewed_and_clients_revoked_where_the_authority_is(tmp_path: Path, own_program: Path) -> None:
    trial, public = tmp_path / "trial", {"QUORON_HOST": "federation.example.org"}
    assert run("setup.sh", trial=trial, program=own_program, **public).returncode == 0
    before = {path: path.read_bytes() for path in trial.glob("c*/*.pem")}
    names = hosts(trial / "coordinator" / "certificate.pem")
    renewed = run("setup.sh", "renew", trial=trial, program=own_program)
    assert renewed.returncode == 0, renewed.stderr
    for path, content in before.items():
        assert (path.read_bytes() != content) == (path.name == "certificate.pem")
    assert hosts(trial / "coordinator" / "certificate.pem") == names
    revoked = trial / "coordinator" / "revoked.json"
    assert json.loads(revoked.read_text()) == {}
    assert run("setup.sh", "revoke", "client-2", trial=trial, program=own_program).returncode == 0
    assert list(json.loads(revoked.read_text()).values()) == ["client-2"]
    for words in (("revoke",), ("revoke", "nobody"), ("renwe",)):
        refused = run("setup.sh", *words, trial=trial, program=own_program)
        assert refused.returncode != 0
        assert b"Expected" in refused.stderr


def test_an_identity_is_given_out_once_and_without_the_authoritys_key(tmp_path: Path, own_program: Path) -> None:
    trial, where = tmp_path / "trial", tmp_path / "trial" / "authority"
    none = run("identity.sh", "client-4", trial=trial, program=own_program)
    assert b"Expected an authority" in none.stderr
    certificates.make_authority(where, days=30)
    given = run("identity.sh", "client-4", trial=trial, program=own_program)
    assert given.returncode == 0, given.stderr
    with tarfile.open(fileobj=io.BytesIO(given.stdout)) as archive:
        assert {each.name: each.mode & 0o077 for each in archive} == {
            "certificate.pem": 0,
            "key.pem": 0,
            "authority.pem": 0,
        }
        held = {each.name: (archive.extractfile(each) or io.BytesIO()).read() for each in archive}
    assert held["certificate.pem"] == (where / "client-4/certificate.pem").read_bytes()
    assert held["key.pem"] == (where / "client-4/key.pem").read_bytes()
    assert held["authority.pem"] == (where / "authority.pem").read_bytes()
    assert (where / "authority.key").read_bytes() not in given.stdout
    again = run("identity.sh", "client-4", trial=trial, program=own_program)
    assert (again.returncode, again.stdout) == (2, b"")
    assert b"Expected a new name, got client-4" in again.stderr
    renewed = run("identity.sh", "client-4", "--renew", trial=trial, program=own_program)
    assert held["key.pem"] in renewed.stdout
    assert held["certificate.pem"] not in renewed.stdout

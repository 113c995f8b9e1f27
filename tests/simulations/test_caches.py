"""Accounts that can write neither beside the source nor at home run every command."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from quoron import caches

COMPILES = """
import os
from quoron import caches
caches.ensure(os.environ)
from quoron.populations.streams import normals
assert normals(seed=0, purpose=0, user=0, count=4).shape == (4,)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one place where anything can be written."""
    monkeypatch.setattr(caches.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    return tmp_path


def test_an_account_without_a_place_gets_one_of_its_own_and_the_same_again(temporary: Path) -> None:
    found = []
    for _ in range(2):
        environment = {"XDG_CACHE_HOME": "/nonexistent/cache"}
        caches.ensure(environment)
        found.append(environment)
    own = temporary / f"quoron-{os.geteuid()}"
    assert found[0] == found[1]
    assert found[0]["NUMBA_CACHE_DIR"] == str(own / "numba")
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


@pytest.mark.parametrize("theirs", ["open to others", "a link", "a file"])
def test_a_place_that_somebody_else_could_fill_is_not_taken(temporary: Path, theirs: str) -> None:
    own = temporary / f"quoron-{os.geteuid()}"
    if theirs == "a link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        own.symlink_to(temporary / "elsewhere")
    elif theirs == "a file":
        own.touch(mode=0o600)
    else:
        own.mkdir()
        own.chmod(0o777)
    environment: dict[str, str] = {}
    caches.ensure(environment)
    taken = Path(environment["NUMBA_CACHE_DIR"]).parent
    assert taken.parent == temporary
    assert taken != own
    assert stat.S_IMODE(taken.stat().st_mode) == 0o700


def test_what_the_environment_says_or_the_libraries_find_is_left(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"NUMBA_CACHE_DIR": "/somewhere"}
    caches.ensure(said)
    assert said == {"NUMBA_CACHE_DIR": "/somewhere"}
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == tmp_path)
    at_home = {"XDG_CACHE_HOME": str(tmp_path / "not" / "yet")}
    caches.ensure(at_home)
    assert list(at_home) == ["XDG_CACHE_HOME"]
    assert not list(temporary.iterdir())


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="another account takes root and setpriv"
)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["-m", "quoron", "tokens", "list"], marks=pytest.mark.programs),
        pytest.param(["-c", COMPILES], marks=pytest.mark.programs),
        pytest.param(["-m", "quoron", "plan", "one-pass"], marks=pytest.mark.slow),
    ],
    ids=["tokens", "a compiled loop", "plan"],
)
def test_a_service_account_without_a_home_runs_commands(words: list[str], tmp_path: Path) -> None:
    keeps = "-all,+dac_read_search"  # this Python may lie where only root may read
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    become += [f"--inh-caps={keeps}", f"--ambient-caps={keeps}"]
    tmp_path.chmod(0o777)
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*become, sys.executable, *words], env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr

"""What a machine says that it has, where quoron does not run, and loops that are compiled once."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from quoron import __main__ as command
from quoron import kernels
from quoron.engine import processors
from quoron.engine.processors import free_memory

MEMINFO = "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\nSwapFree: 1000000 kB\n"


def machine(place: Path, groups: str = "", **files: str) -> Path:
    """What a system shows of itself: /proc, and files of control groups, __ for / in their names."""
    (place / "proc" / "self").mkdir(parents=True)
    (place / "proc" / "meminfo").write_text(MEMINFO)
    (place / "proc" / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = place / "sys" / "fs" / "cgroup" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return place


@pytest.fixture
def large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors.os, "sysconf", lambda _: 1 << 20)


@pytest.mark.usefixtures("large_pages")
class TestFreeMemory:
    @pytest.mark.parametrize("group", ["", "a", "a__b"])
    def test_is_that_of_the_tightest_group_above(self, group: str, tmp_path: Path) -> None:
        """Files that a group holds make way; one without a limit says so by a word."""
        at = f"{group}__" if group else ""
        files = {
            "memory_DOT_max": "5000",
            "memory_DOT_current": "2000",
            "memory_DOT_stat": "anon 1\ninactive_file 500\n",
        }
        deepest = {f"a__b__{name}": text for name, text in files.items()} | {"a__b__memory_DOT_max": "max"}
        root = machine(tmp_path, "0::/a/b\n", **deepest | {at + name: text for name, text in files.items()})
        assert free_memory(root) == 3500


class TestASystemWithoutLocks:
    def test_is_told_to_whoever_gives_a_command(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(command.importlib.util, "find_spec", lambda _: None)
        assert command.main() == 2
        assert "Expected Linux or macOS" in capsys.readouterr().err


COMPILES = """
import os
from quoron.__main__ import keep_compiled
keep_compiled(os.environ)
from quoron.data.users import normals
assert normals(seed=0, purpose=0, user=0, count=4).shape == (4,)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one place where anything can be written."""
    monkeypatch.setattr(command.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    return tmp_path


def test_an_account_without_a_place_gets_one_of_its_own_and_the_same_again(temporary: Path) -> None:
    found = []
    for _ in range(2):
        environment = {"XDG_CACHE_HOME": "/nonexistent/cache"}
        command.keep_compiled(environment)
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
    command.keep_compiled(environment)
    taken = Path(environment["NUMBA_CACHE_DIR"]).parent
    assert taken.parent == temporary
    assert taken != own
    assert stat.S_IMODE(taken.stat().st_mode) == 0o700


def test_what_the_environment_says_or_the_libraries_find_is_left(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"NUMBA_CACHE_DIR": "/somewhere"}
    command.keep_compiled(said)
    assert said == {"NUMBA_CACHE_DIR": "/somewhere"}
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == tmp_path)
    at_home = {"XDG_CACHE_HOME": str(tmp_path / "not" / "yet")}
    command.keep_compiled(at_home)
    assert list(at_home) == ["XDG_CACHE_HOME"]
    assert not list(temporary.iterdir())


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="another account takes root and setpriv"
)
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["-m", "quoron", "admin", "tokens"], marks=pytest.mark.programs),
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


TABLE = ("scorecard.csv", "--user", "unitid", "--epsilon", "4", "--label", "earnings_med")


def carry_out(folder: Path, *words: str, alone: bool = False) -> set[Path]:
    """What is compiled in a folder after one more command there; `alone`: with nothing that is shipped."""
    own = {"NUMBA_CACHE_DIR": str(folder / "kernels"), "QUORON_LEDGER": str(folder / "lifetime.sqlite")}
    variables = os.environ | own | ({"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"} if alone else {})
    subprocess.run([sys.executable, "-m", *words], env=variables, cwd=folder, check=True, capture_output=True)
    return set((folder / "kernels").rglob("*.nbc"))


@pytest.mark.programs
def test_a_first_train_compiles_nothing_where_kernels_are_shipped(tmp_path: Path) -> None:
    if not kernels.prebuilt():
        pytest.skip("nothing is compiled of this source: python -m quoron.kernels --ship")
    carry_out(tmp_path, "quoron", "example", "scorecard")
    for words in (("scorecard.toml", "--holdout", "0.1"), TABLE):
        held = carry_out(tmp_path, "quoron", "train", *words)
        assert len(held) > 50, words
        # Numba numbers what it compiles; what was shipped has a digest in its name.
        assert {path.name for path in held if re.search(r"\.\d{1,3}\.nbc$", path.name)} == set(), words


@pytest.mark.slow
def test_after_compiling_all_a_simulation_compiles_nothing(tmp_path: Path) -> None:
    compiled = carry_out(tmp_path, "quoron.kernels", alone=True)
    assert len(compiled) > 50
    for words in (("simulate",), ("simulate", "flights"), ("train", "storms")):
        assert carry_out(tmp_path, "quoron", "--quiet", *words, alone=True) == compiled, words

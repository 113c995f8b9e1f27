"""What a machine says that it has, and where quoron does not run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quoron import __main__ as command
from quoron import processors
from quoron.processors import free_memory

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


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors.os, "sysconf", lambda _: 1 << 20)


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
        assert free_memory(root=root) == 3500


class TestASystemWithoutLocks:
    def test_is_told_to_whoever_gives_a_command(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(command.importlib.util, "find_spec", lambda _: None)
        assert command.main() == 2
        assert "Expected Linux or macOS" in capsys.readouterr().err

    def test_is_told_to_whoever_asks_for_a_federation(self) -> None:
        code = "import sys; sys.modules['fcntl'] = None; import quoron.local.folder"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
        assert "ConfigError: Expected Linux or macOS for a federation on this machine" in done.stderr
        assert "ImportError" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_all_processes_below_one_has_what_they_took_and_gave_back() -> None:
    text = "taken = b'x' * (64 << 20); del taken; kept = b'x' * (32 << 20); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    children = [subprocess.Popen([sys.executable, "-c", text], **pipes) for _ in range(2)]
    try:
        for child in children:
            child.stdout.readline()
        assert processors.memory_below(os.getpid()) > 2 * (64 << 20)
    finally:
        for child in children:
            child.communicate(b"\n")

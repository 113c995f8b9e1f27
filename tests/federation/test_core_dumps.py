"""A coordinator or a client that crashes leaves no core dump, which would hold its keys."""

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from federation.crowd import write_items
from quoron_client.federation.core_dumps import LEAST

HARD = resource.getrlimit(resource.RLIMIT_CORE)[1]
CRASH = """
import os, resource
from quoron_client.federation import core_dumps
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
if SAFE:
    core_dumps.switch_off()
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
    own = ["--data", write_items(tmp_path, 1)[0], "--record", tmp_path / "record.sqlite", "--name", "ada"]
    with program(*serve, until="^listening: ") as (coordinator, line):
        where = re.search(r"127\.0\.0\.1:\d+", line)[0]
        with program("client", "--insecure", "--coordinator", where, *own, until="enrolled") as (client, _):
            assert limits(coordinator) == least
            assert limits(client) == least

"""Tests that are killed leave no process behind: no server, no database, nothing that has left its parent."""

import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import warden
from federation.crowd import HANGS

ROOTS = ("/dev/shm", tempfile.gettempdir())
TESTS = Path(__file__).parent
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a warden reads /proc")


@pytest.mark.parametrize(
    ("workers", "who", "how"),
    [
        pytest.param("1", "all", signal.SIGKILL, marks=pytest.mark.programs),
        pytest.param("1", "the worker", signal.SIGKILL, marks=pytest.mark.programs),
        pytest.param("0", "all", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("0", "all", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_killed_tests_leave_no_process_behind(workers: str, who: str, how: signal.Signals, tmp_path: Path) -> None:
    mark, scene = os.urandom(4).hex(), tmp_path / "scene"
    os.mkfifo(scene)
    # Whatever runs in the background of a shell ignores an interrupt, and hands that down.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "pytest"]
    command += ["-q", "-n", workers, "--max-worker-restart", "0"]
    command += ["-p", "no:cacheprovider", str(TESTS / "warden_scene.py")]
    environment = os.environ | {warden.MARK: mark, "QUORON_SCENE": str(scene)}
    out = tmp_path / "out"
    with out.open("wb") as log:
        tests = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    ready, ended = os.open(scene, os.O_RDONLY | os.O_NONBLOCK), os.pidfd_open(tests.pid)
    assert select.select([ready, ended], [], [], HANGS)[0] == [ready], out.read_text()
    os.close(ended)
    worker = int(os.read(ready, 100))
    os.close(ready)
    begun = {number: os.pidfd_open(number) for number in warden.marked(mark)}
    try:
        assert len(begun) >= 4, "the tests, a warden, a coordinator and a daemon"
        os.kill(worker if who == "the worker" else tests.pid, how)
        tests.wait(HANGS)
        for number, process in begun.items():
            assert select.select([process], [], [], HANGS)[0], f"{number} is still there\n{out.read_text()}"
        assert warden.marked(mark) == []
        assert not [each for root in ROOTS for each in Path(root).glob(f"quoron-{mark}-*")]
    finally:
        for process in begun.values():
            os.close(process)
        warden.end(mark)

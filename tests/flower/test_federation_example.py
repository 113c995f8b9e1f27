"""The loopback example, as somebody follows it: bring it up, submit what it says, end it with Ctrl-C."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from federation.crowd import HANGS
from flower.federation import EXAMPLE

pytestmark = pytest.mark.slow


def test_the_printed_command_gives_a_private_model_and_nothing_is_left_running(tmp_path: Path) -> None:
    program = [sys.executable, str(EXAMPLE), "--users", "5", "--folder", "trial"]
    running = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        told = ""
        while "Ctrl-C" not in told:
            line = running.stdout.readline()
            assert line, told
            told += line
        typed = re.search(r"quoron submit .*?--follow", told.replace("\\\n", " "), re.DOTALL)[0]
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(typed)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "(8, 0.01)-differential privacy" in done.stdout
        assert "round 3 of at most 3: 3 users asked" in done.stdout
        with np.load(tmp_path / "trial" / "results" / "first" / "model.npz") as stored:
            assert np.isfinite(stored["model"]).all()
            assert stored["model"].any()
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=HANGS)
    assert running.returncode == 0
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _read(path)]
    assert not left


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""

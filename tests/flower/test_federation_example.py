"""The loopback example, as somebody follows it: bring it up, submit what it says, end it with Ctrl-C, or otherwise."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import warden
from federation.crowd import HANGS
from flower.federation import EXAMPLE, program
from quoron.federation.flower_simulation import environment

pytestmark = pytest.mark.slow
Marked = Callable[[], list[int]]


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Marked:
    """Numbers of the processes that the test has started, and that these have."""
    mark = os.urandom(4).hex()
    monkeypatch.setenv(warden.MARK, f"{os.environ.get(warden.MARK, '')} {mark}")
    return lambda: warden.marked(mark)


def example(folder: Path, users: int) -> subprocess.Popen[str]:
    heard = ["env", "--default-signal=INT,HUP"]  # whatever a shell in the background hands down
    program = [*heard, sys.executable, str(EXAMPLE), "--users", str(users), "--folder", "trial"]
    return subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, text=True)


def said(running: subprocess.Popen[str]) -> str:
    """What the example prints once it is up."""
    text = ""
    while "Ctrl-C" not in text:
        line = running.stdout.readline()
        assert line, text
        text += line
    return text


def test_the_printed_command_gives_a_private_model_and_nothing_is_left_running(tmp_path: Path, marked: Marked) -> None:
    running = example(tmp_path, users=5)
    try:
        printed = said(running)
        home = re.search(r"export FLWR_HOME=(\S+)", printed)[1]
        typed = [line.split() for line in printed.splitlines() if re.match(r" *(quoron submit|flwr run) ", line)]
        done = [
            subprocess.run(
                [sys.executable, "-m", *words] if words[0] == "quoron" else [program(words[0]), *words[1:]],
                cwd=tmp_path,
                env=environment(tmp_path / home),
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for words in typed
        ]
        assert "(8, 0.01)-differential privacy" in done[0]
        assert "round 3 of at most 3: 3 users asked" in done[1]
        with np.load(tmp_path / "trial" / "results" / "first" / "model.npz") as stored:
            assert np.isfinite(stored["model"]).all()
            assert stored["model"].any()
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=HANGS)
    assert running.returncode == 0
    assert not marked()


@pytest.mark.skipif(sys.platform != "linux", reason="what is left is found in /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("up", [False, True])
def test_however_it_ends_nothing_is_left_running(how: signal.Signals, up: bool, tmp_path: Path, marked: Marked) -> None:
    running = example(tmp_path, users=2)
    if up:
        said(running)
    else:
        while not (tmp_path / "trial" / "logs" / "serverapp.log").exists():
            assert running.poll() is None
            time.sleep(0.05)
    begun = [os.pidfd_open(number) for number in marked()]
    try:
        assert len(begun) > 3
        running.send_signal(how)
        running.communicate(timeout=HANGS)
        assert running.returncode == (-how if how == signal.SIGKILL else 0)
        for process in begun:
            assert select.select([process], [], [], HANGS)[0], marked()
        assert not marked()
    finally:
        for process in begun:
            os.close(process)

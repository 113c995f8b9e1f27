"""Comparisons of which a worker, or all of it, is killed: nothing is lost, and nothing is left behind."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import quoron
from quoron import config as configs
from quoron.comparing import comparison as comparisons
from quoron.comparing import pool
from quoron.comparing.request import Request
from quoron_privacy.errors import RunError
from small_run import TOML, Watched

SMALL = configs.parse(TOML, "small", ["algorithm.options={}"])


@pytest.mark.programs
def test_a_worker_that_is_killed_loses_nothing_that_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker dies at its second run; the same call then does what is missing, and no run twice."""
    request = Request.of(SMALL, algorithms=["recentred-sgd"], seeds=2)
    begun = []

    class Killing(Watched):
        def began(self, worker: int, job: pool.Job) -> None:
            begun.append(job.named)
            if len(begun) == 2:
                processes[-1].kill()

    processes: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def recorded(*arguments, **named):
        processes.append(popen(*arguments, **named))
        return processes[-1]

    monkeypatch.setattr(pool.subprocess, "Popen", recorded)
    with pytest.raises(
        RunError, match=r"A worker ended at recentred-sgd seed 1 with exit code -9.*try fewer --workers"
    ):
        comparisons.carry_out(request, tmp_path, watcher=Killing(), workers=1)
    assert all(process.poll() is not None for process in processes)
    with pytest.raises(RunError, match="Complete it with `quoron resume"):
        quoron.report(tmp_path)
    watched = Watched()
    complete = comparisons.carry_out(comparisons.stored_request(tmp_path), tmp_path, watcher=watched, workers=1)
    assert watched.ends == [("recentred-sgd seed 1", "done")]
    assert [row["runs"] for row in complete.cells] == [2]


@pytest.mark.programs
def test_a_comparison_that_is_killed_leaves_no_worker_and_resumes(tmp_path: Path) -> None:
    """SIGKILL of `quoron compare` at its first finished run: the worker sees its input end; `resume` does the rest."""
    folder = tmp_path / "cut"
    settings = ["population.users=2000", "population.items_per_user=3", "population.dimension=3", "privacy.epsilon=8"]
    command = [
        sys.executable,
        "-m",
        "quoron",
        "compare",
        "--algorithms",
        "recentred-sgd",
        "--seeds",
        "2",
        "--workers",
        "1",
    ]
    command += ["--out", str(folder), *(word for setting in settings for word in ("--set", setting))]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("run 1/2, recentred-sgd seed 0: done")
    workers = _children(process.pid)
    assert workers
    process.kill()
    process.communicate()
    done = sorted(folder.glob("runs/*/summary.json"))
    ended = threading.Event()
    for pid in workers:
        _when_gone(pid, ended)
        assert ended.wait(120)
    before = {path: path.stat().st_mtime_ns for path in done}
    assert 1 <= len(done) <= 2
    resumed = quoron.resume(folder)
    assert isinstance(resumed, comparisons.Comparison)
    assert [row["runs"] for row in resumed.cells] == [2]
    assert {path: path.stat().st_mtime_ns for path in done} == before


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in found for word in path.read_text().split()]


def _when_gone(pid: int, ended: threading.Event) -> None:
    """Set `ended` once a process that is not our child is gone."""
    handle = None
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        ended.set()
        return

    def wait() -> None:
        import select

        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
        os.close(handle)
        ended.set()

    ended.clear()
    threading.Thread(target=wait, daemon=True).start()

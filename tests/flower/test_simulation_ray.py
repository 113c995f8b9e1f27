"""Flower's own simulation: real Ray, 50 nodes. The bits are those of one process, whatever is killed.

Minutes, not seconds. Every process belongs to a program of the test's own and is gone with it.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from federation.crowd import HANGS
from flower.grids import SECRET
from listening import asked, family, listening
from quoron.engine import on_ray
from quoron.engine.choice import Flower
from quoron.federation import flower_simulation
from quoron.federation.flower_simulation import COMMAND, LOG, simulate
from quoron.planning.plans import Prepared
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation import sources
from quoron.simulation.problem import Setup
from quoron_privacy.errors import RunError

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
pytestmark = pytest.mark.slow
NODES, FEWER = 50, 10
SEEDS = ("population.seed=7", "run.seed=7")
PEOPLE = ("population.items_per_user=4", "population.dimension=3", "domain.radius=2", *SEEDS)
PROMISE = ("privacy.epsilon=15", "privacy.delta=0.1")
ROUNDS = 60  # enough that a run is in the middle when its rounds are heard of
DRAWN = ("algorithm.name=dp-sgd-wor", f"algorithm.options.rounds={ROUNDS}", "algorithm.options.rate=0.5")
SMALL = ("population.users=60", *PEOPLE, *PROMISE, *DRAWN)


def prepared_in(folder: Path, settings: tuple[str, ...] | list[str] = SMALL) -> tuple[Prepared[Setup], RunFolder]:
    config, _ = sources.resolve("quickstart", settings)
    folder.mkdir()
    return runs.prepare(config, folder), RunFolder(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """That of the small run in one process."""
    return runs.carry_out(*prepared_in(tmp_path_factory.mktemp("inline") / "run")).weights


def until(what: Callable[[], object], every: float = 0.2, within: float = 900.0) -> None:
    ends = time.monotonic() + within
    while not what():
        assert time.monotonic() < ends, "it took too long"
        time.sleep(every)


class At:
    """An observer that does something once after a round."""

    def __init__(self, round_: int, what: Callable[[], object]) -> None:
        self.round, self.what = round_, what

    def started(self, plan: Any) -> None:
        pass

    def round_finished(self, event: Any) -> None:
        if event.round == self.round:
            self.what()

    def finished(self, model: np.ndarray) -> None:
        pass


def serverapp_of(command: int) -> int:
    """Number of the process that carries a run out, of a command: a child of its reaper."""
    (reaper,) = (each for each in family(command) if b"reaper.py" in Path(f"/proc/{each}/cmdline").read_bytes())
    (found,) = (int(each) for each in Path(f"/proc/{reaper}/task/{reaper}/children").read_text().split())
    return found


def actors_of(process: int) -> list[int]:
    """Ray's actors that Flower started for that process: descendants by /proc."""
    parents = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                parents[int(each.name)] = (int(fields[1]), (each / "cmdline").read_bytes())
            except OSError:
                continue

    def below(number: int) -> bool:
        while number in parents and number != process:
            number = parents[number][0]
        return number == process

    return [
        number for number, (_, line) in parents.items() if line.startswith(b"ray::ClientAppActor") and below(number)
    ]


def test_whatever_is_killed_either_engine_goes_on_to_the_same_bits(tmp_path: Path, model: np.ndarray) -> None:
    prepared, folder = prepared_in(tmp_path / "run")

    def kill_an_actor() -> None:
        os.kill(actors_of(serverapp_of(os.getpid()))[0], signal.SIGKILL)

    with pytest.raises(RunError, match=r"Expected answers of \d+ nodes in round \d, got \d+\..*quoron resume"):
        simulate(prepared, folder, [At(3, kill_an_actor)], Flower(nodes=FEWER, cpus=2))

    def kill_the_run() -> None:
        os.kill(serverapp_of(os.getpid()), signal.SIGKILL)

    with pytest.raises(RunError, match=rf"Flower ended the run\..*quoron resume {folder.path}"):
        simulate(prepared, folder, [At(9, kill_the_run)], Flower(nodes=FEWER, cpus=2))
    assert not (folder.path / "model.npz").exists(), "it was in the middle"
    shutil.copytree(folder.path, tmp_path / "copy")
    np.testing.assert_array_equal(quoron.resume(tmp_path / "copy").weights, model)
    np.testing.assert_array_equal(quoron.resume(folder.path, engine=Flower(nodes=7, cpus=2)).weights, model)


def line_with(words: str, lines: Iterable[str]) -> str:
    """The first line that has them; a test fails without."""
    before = []
    for line in lines:
        if words in line:
            return line
        before.append(line)
    raise AssertionError("".join(before))


def left_of(command: int) -> list[object]:
    """Folders of a command that has simulated on Flower, and processes that have one of them in their environment."""
    mark = f"{on_ray.PREFIX}{command}-"
    roots = {Path(tempfile.gettempdir()), Path("/tmp"), Path("/dev/shm")}
    found: list[object] = [each for root in roots for each in root.glob(f"{mark}*")]
    for each in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            found += [each] if mark.encode() in each.read_bytes() else []
    return found


MOMENTS = {"its nodes are starting": f"starting {FEWER} nodes", "its rounds go on": f"round 1/{ROUNDS}"}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_command_leaves_nothing_and_a_folder_that_goes_on(
    how: signal.Signals, moment: str, tmp_path: Path, model: np.ndarray
) -> None:
    folder = RunFolder(tmp_path / "run")
    words = [word for setting in SMALL for word in ("--set", setting)]
    words += ["--out", str(folder.path), "--engine", f"flower:nodes={FEWER},cpus=1"]
    ours = ["env", "--default-signal=INT", sys.executable, "-m", "quoron", "simulate"]  # in the background too
    command = subprocess.Popen([*ours, *words], stderr=subprocess.PIPE, text=True)
    assert command.stderr is not None
    with command.stderr:
        line_with(MOMENTS[moment], command.stderr)
        until(lambda: len(family(command.pid)) > (9 if moment == "its rounds go on" else 2))  # Ray too, or the reaper's
        begun = {number: os.pidfd_open(number) for number in family(command.pid) - {command.pid}}
        assert left_of(command.pid)
        command.send_signal(how)
        printed = command.stderr.read()
    code = command.wait()
    if how == signal.SIGINT:
        assert code == 130
        assert f"Continue with: quoron resume {folder.path}" in printed
        assert not left_of(command.pid), "with its end, not some time after"
    for number, process in begun.items():
        assert select.select([process], [], [], HANGS)[0], number
        os.close(process)
    until(lambda: not left_of(command.pid))
    np.testing.assert_array_equal(quoron.resume(folder.path).weights, model)


def test_nobody_gets_into_a_simulation_without_its_token_or_as_another_user(tmp_path: Path) -> None:
    words = [word for setting in SMALL for word in ("--set", setting)]
    words += ["--out", str(tmp_path / "run"), "--engine", "flower:nodes=10,cpus=1"]
    command = subprocess.Popen([sys.executable, "-m", "quoron", "simulate", *words], stderr=subprocess.PIPE, text=True)
    assert command.stderr is not None
    try:
        with command.stderr:
            line_with(f"round 1/{ROUNDS}", command.stderr)
            run = serverapp_of(command.pid)
            for number in family(command.pid) - actors_and_servers(run):
                os.kill(number, signal.SIGSTOP)  # the command, and the run: nobody asks anything any more
            found = [each for each in listening(command.pid) if each.process in actors_and_servers(run)]
            assert {"gcs_server", "raylet"} <= {each.program for each in found}
            assert all(each.here_alone for each in listening(command.pid))
            for each in found:
                if each.port:
                    result = set(asked(each).values())
                    assert result <= {"UNAUTHENTICATED", "UNIMPLEMENTED", "UNAVAILABLE", "401"}, (each, result)
    finally:
        stopped = family(command.pid) - {command.pid}
        command.kill()
        command.wait()
        for number in stopped:  # their reaper too, which then ends them
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)
    until(lambda: not left_of(command.pid))


def actors_and_servers(process: int) -> set[int]:
    """Ray's own processes below one that carries a run out."""
    return family(process) - {process}


# Nothing of a module that Ray's actors cannot import: it comes to them with the ClientApp.
FAILING = f"""
from quoron.federation import flower_simulation

def fails(folder, values, context):
    raise ValueError({SECRET!r})

flower_simulation._answer = fails
{COMMAND}
"""


def test_the_text_of_a_client_s_exception_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, folder = prepared_in(tmp_path / "run")
    monkeypatch.setattr(flower_simulation, "COMMAND", FAILING)
    with pytest.raises(RunError, match=r"Expected answers of \d+ nodes in round 0, got 0") as raised:
        simulate(prepared, folder, (), Flower(nodes=FEWER, cpus=1))
    assert SECRET not in str(raised.value)
    assert "Flower" in (folder.path / LOG).read_text(), "this is the log of the run"
    assert not any(SECRET.encode() in each.read_bytes() for each in folder.path.iterdir())

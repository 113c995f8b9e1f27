"""However a command ends that has started Flower, nothing of what it started is left: the mechanism, on small programs.

`test_simulation_ray` shows it on Flower and Ray.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from federation.crowd import HANGS
from flower.federation import Process
from quoron.engine import reaper
from quoron.engine.processes import Program

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("setsid") is None, reason="a reaper reads /proc, the scene needs setsid"
)
# The process that starts a program with a reaper.
OWNER = """
import subprocess, sys
sys.exit(subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True).wait())
"""
SAYS = "echo $$ > {pipe}; exec sleep 3600"
# A program whose children leave its session, its group, their parent and their environment.
LEAVES = """
setsid sh -c '{says}' &
setsid sh -c 'env -i {setsid} {sh} -c "{quoted}" & exit' &
"""


class Scene:
    """A command, and what it has started: its reaper, the program, and two of its children."""

    def __init__(self, place: Path, then: str = "exec sleep 3600") -> None:
        self.folder, self.pipe = place / "scratch", place / "pipe"
        (self.folder / "home").mkdir(parents=True)
        (self.folder / "home" / "state.db").write_text("what nodes have said")
        os.mkfifo(self.pipe)
        ear = os.open(self.pipe, os.O_RDWR)
        says = SAYS.format(pipe=self.pipe)
        words = {"says": says, "quoted": says.replace("$", "\\$"), "setsid": shutil.which("setsid"), "sh": "/bin/sh"}
        script = place / "program"
        script.write_text(f"{LEAVES.format(**words)}\necho $$ > {self.pipe}\nread go < {place / 'go'}\n{then}\n")
        os.mkfifo(place / "go")
        self.go = os.open(place / "go", os.O_RDWR)
        kept = reaper.command([self.folder], ["/bin/sh", str(script)])
        # Whatever runs in the background of a shell ignores an interrupt, and hands that down.
        command = ["env", "--default-signal=INT,HUP", sys.executable, "-S", "-c", OWNER, *kept]
        self.command = subprocess.Popen(command, env=os.environ | {"PATH": os.environ["PATH"]})
        self.begun: dict[int, int] = {}
        while len(self.begun) < 3:
            for number in os.read(ear, 4096).split():
                self.begun[int(number)] = os.pidfd_open(int(number))
        os.close(ear)

    def reaper(self) -> int:
        """Number of the process that keeps the program."""
        (program,) = (each for each in self.begun if b"program" in Path(f"/proc/{each}/cmdline").read_bytes())
        return int(Path(f"/proc/{program}/stat").read_text().rpartition(")")[2].split()[1])

    def check_gone(self) -> None:
        """All that has begun ends, and nothing of it is left."""
        for number, process in self.begun.items():
            assert select.select([process], [], [], HANGS)[0], f"{number} is still there"
        assert not self.folder.exists()

    def end(self) -> None:
        for number, process in self.begun.items():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
            os.close(process)
        os.close(self.go)
        self.command.kill()
        self.command.wait()


@pytest.fixture
def scene(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    begun = Scene(tmp_path, *getattr(request, "param", ()))
    yield begun
    begun.end()


@pytest.fixture(autouse=True)
def _bystander() -> Iterator[None]:
    """Somebody else's program, with another home of Flower's: nobody's business."""
    with subprocess.Popen(["sleep", "3600"], env=os.environ | {"FLWR_HOME": "/tmp/another"}) as process:
        yield
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_a_command_nothing_that_it_started_is_left(how: signal.Signals, scene: Scene) -> None:
    last = os.pidfd_open(scene.reaper())
    scene.command.send_signal(how)
    assert select.select([last], [], [], HANGS)[0]
    os.close(last)
    scene.check_gone()


def test_a_process_with_folders_is_gone_with_them_at_its_end(tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    words = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
    with Program(words, environment=os.environ, folders=[scratch]) as process:
        assert process.code is None
        last = os.pidfd_open(process.number)
    assert select.select([last], [], [], 0)[0]
    os.close(last)
    assert not scratch.exists()


TRAPPING = "trap 'echo goodbye; exit 3' TERM; echo ready; while true; do sleep 0.05; done"


def until_ready(process: Program) -> None:
    ends = time.monotonic() + HANGS
    while "ready" not in process.written and time.monotonic() < ends:
        process.wait(0.01)


def test_a_signal_to_end_is_passed_on_so_that_a_program_can_say_goodbye(tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    with Program(
        ["/bin/sh", "-c", TRAPPING], environment=os.environ, folders=[scratch], log=tmp_path / "log"
    ) as process:
        until_ready(process)
        os.kill(process.number, signal.SIGTERM)
        process.wait(HANGS)
        assert (process.written.split(), process.code) == (["ready", "goodbye"], 3)
    assert not scratch.exists()


def test_a_part_of_a_federation_that_is_ended_can_say_goodbye(tmp_path: Path) -> None:
    """A SuperNode that did not would be refused by its SuperLink for a minute when it comes back."""
    part = Process("/bin/sh", ["-c", TRAPPING], home=tmp_path / "home", log=tmp_path / "log")
    until_ready(part)
    part.end(HANGS)
    assert (part.written.split(), part.code) == (["ready", "goodbye"], 3)

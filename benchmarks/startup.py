"""How long people wait for quoron to begin: whole processes, beside what each is to stay below.

    python benchmarks/startup.py [--repeats 5]

Wall-clock and processor seconds, the least of some repetitions; the first use of a fresh installation is measured once.
The yardstick of the same run is a Python that imports the libraries which a plan cannot do without, and nothing else:
the last column is a multiple of its processor time. Sources are compiled to bytecode once, as installers do: whatever
PYTHONDONTWRITEBYTECODE says here, it is not told to what is measured.
"""

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

QUORON = (sys.executable, "-m", "quoron")
LIBRARIES = "import numpy, numba, scipy.special, scipy.optimize, pyarrow, pydantic, dp_accounting.pld"
ITEMS = Path(__file__).resolve().parent.parent / "examples" / "federation" / "users" / "client-1.csv"


@dataclass(frozen=True)
class Seconds:
    """What one process took."""

    wall: float
    processor: float


def whole(command: Sequence[str], folder: Path, **environment: str) -> Seconds:
    """A process from its start to its end, which must be a good one."""
    with open(folder / "said", "w+b") as said:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=surroundings() | environment, stdout=subprocess.DEVNULL, stderr=said
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said.read().decode()[-2000:]}")
    return Seconds(wall, used.ru_utime + used.ru_stime)


def surroundings() -> dict[str, str]:
    """Environment of what is measured."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def started(command: Sequence[str], folder: Path, ready: str) -> Iterator[tuple[float, str]]:
    """A process until it has said something that matches `ready`: (seconds to that, what it said). Ended afterwards."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=surroundings(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        line = next((line for line in process.stdout if re.search(ready, line)), None)
        if line is None:
            raise RuntimeError(f"{' '.join(command)} ended before it was ready.")
        yield time.perf_counter() - began, line
    finally:
        process.terminate()
        process.communicate()


def federation(folder: Path, repeats: int) -> dict[str, Seconds]:
    """A coordinator and a client until they are at work, and a health probe meanwhile."""
    coordinating, working, probing = [], [], []
    for number in range(repeats):
        place = folder / str(number)
        place.mkdir()
        whole([*QUORON, "admin", "tokens", "me", "--role", "operator", "--out", "token"], place)
        serve = [*QUORON, "serve", "--insecure", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"]
        with started(serve, place, "^listening: ") as (seconds, said):
            coordinating.append(Seconds(seconds, math.nan))
            clients, control = re.findall(r"127\.0\.0\.1:\d+", said)
            join = [*QUORON, "client", "--insecure", "--set", "name=me", "--coordinator", clients, "--data", str(ITEMS)]
            with started(join, place, "enrolled") as (seconds, _):
                working.append(Seconds(seconds, math.nan))
            probing.append(whole([*QUORON, "admin", "health", control, "--insecure"], place))
    return {"coordinator at work": least(coordinating), "client at work": least(working), "health": least(probing)}


def least(several: Sequence[Seconds]) -> Seconds:
    """Of several repetitions."""
    return Seconds(min(each.wall for each in several), min(each.processor for each in several))


def main(repeats: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def repeated(*command: str) -> Seconds:
            return least([whole(command, folder) for _ in range(repeats)])

        def simulated(place: str, **environment: str) -> Seconds:
            return whole([*QUORON, "--quiet", "simulate", "--out", place], folder, **environment)

        yardstick = repeated(sys.executable, "-c", LIBRARIES)
        print(
            f"yardstick: {yardstick.wall:.2f} s, {yardstick.processor:.2f} s of processor time; {repeats} repetitions"
        )
        print(f"{'':28}{'below':>7}{'wall':>8}{'processor':>11}{'/ yardstick':>13}")

        def show(what: str, below: float, seconds: Seconds) -> None:
            used, ratio = seconds.processor, seconds.processor / yardstick.processor
            text = "" if math.isnan(used) else f"{used:11.2f}{ratio:13.2f}"
            mark = "" if seconds.wall < below else "   MISSED"
            print(f"{what:28}{below:7g}{seconds.wall:8.2f}{text}{mark}", flush=True)

        show("quoron --help", 0.4, repeated(*QUORON, "--help"))
        show("import quoron", 0.5, repeated(sys.executable, "-c", "import quoron"))
        below = {"health": 0.3, "coordinator at work": 3.0, "client at work": 3.0}
        for what, seconds in federation(folder, repeats).items():
            show(what, below[what], seconds)
        show("simulate, first use", 15.0, simulated("first", NUMBA_CACHE_DIR=str(folder / "kernels")))
        show("plan quickstart", 2.0, repeated(*QUORON, "plan", "quickstart"))
        show("simulate, again", 5.0, least([simulated(f"again-{number}") for number in range(repeats)]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    main(parser.parse_args().repeats)

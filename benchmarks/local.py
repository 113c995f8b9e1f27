"""What a federation on this machine takes: seconds beyond its rounds, the coordinator's time an answer, memory, bits.

    python benchmarks/local.py [--clients 200] [--rounds 20] [--dimension 1000] [--processes N]

The command is `quoron simulate --engine service`, in this process. Every client is asked in every round. An answer's
time is the coordinator's processor time from the end of the first round to that of the last, with its store, and with
the looks at the excess risk that only a simulation has (a tenth of it). Memory is what all processes take together,
shared pages once (Pss), looked at after every round. The load of the machine stands beside: others may be at work.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import quoron
from quoron.config import parse
from quoron.engine.choice import Service
from quoron.federation.folder import RUNNING, Folder

BEYOND, AN_ANSWER, FIRST, MEMORY = 120.0, 0.3, 20.0, 4096.0
CONFIG = """
[population]
kind = "synthetic"
users = {clients}
items_per_user = 5
dimension = {dimension}

[privacy]
epsilon = 8.0
delta = 1e-4

[algorithm]
name = "dp-sgd-wor"
options = {{ rounds = {rounds}, rate = 1.0 }}
"""


class Watch:
    """Looks at the processes after every round."""

    def __init__(self, passing: Path) -> None:
        self.passing, self.began = passing, time.perf_counter()
        self.asked = self.first = self.last = self.memory = 0.0
        self.used: list[float] = []

    def said(self, text: str) -> None:
        """Who is there."""
        print(text, flush=True)

    def started(self, plan: Any) -> None:
        """All are there."""
        self.asked = time.perf_counter() - self.began

    def round_finished(self, event: Any) -> None:
        """Look."""
        self.last = time.perf_counter() - self.began
        self.first = self.first or self.last
        (place,) = self.passing.glob("quoron-local-*")
        running = Folder(place).read(RUNNING)
        self.used.append(seconds(running["coordinator"]))
        if event.round in (0, event.rounds // 2):
            numbers = [
                os.getpid(),
                running["supervisor"],
                running["coordinator"],
                *(each for _, each in running["processes"]),
            ]
            self.memory = max(self.memory, sum(map(mebibytes, numbers)))

    def finished(self, model: Any) -> None:
        """Nothing."""


def seconds(process: int) -> float:
    """Of processors, that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mebibytes(process: int) -> float:
    """Of memory, with its share of what it shares."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measured(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Everything that one run shows."""
    config = parse(CONFIG.format(**vars(options)))
    (passing := folder / "passing").mkdir()
    tempfile.tempdir = str(passing)
    watch, began = Watch(passing), time.perf_counter()
    engine = Service(workers=options.processes)
    result = quoron.simulate(config, out=folder / "run", engine=engine, observers=[watch])
    whole = time.perf_counter() - began
    figures = json.loads((folder / "run" / "federation.json").read_text())
    inline = quoron.simulate(config, out=folder / "inline")
    answers = options.clients * (options.rounds - 1)
    return {
        "processes": figures["processes"],
        "seconds_to_first_question": watch.asked,
        "seconds_of_rounds": watch.last - watch.asked,
        "seconds_beyond_rounds": whole - (watch.last - watch.asked),
        "coordinator_ms_an_answer": 1000 * (watch.used[-1] - watch.used[0]) / answers,
        "mebibytes_together": watch.memory,
        "same_bits": float(np.array_equal(result.weights, inline.weights)),
        "nothing_left": float(not list(passing.iterdir())),
        "load_of_the_machine": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dimension", type=int, default=1000)
    parser.add_argument("--processes", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(options, Path(folder))
    for name, value in figures.items():
        print(f"{name:28s} {value:12,.2f}")
    print(
        f"targets: below {BEYOND:g} s beyond the rounds, {AN_ANSWER} ms an answer at d = 1,000 and {MEMORY:,.0f} MiB "
        f"with 200 clients; {FIRST:g} s to the first question with 20"
    )


if __name__ == "__main__":
    main()

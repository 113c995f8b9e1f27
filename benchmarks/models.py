"""A round of a network's training, whole, beside pfl-research's in the same run; and what it is made of.

    python benchmarks/models.py --pfl PYTHON             # CIFAR-10's shape; on a GPU if there is one
    python benchmarks/models.py --pfl PYTHON --small     # three shapes for a processor

The shape is that of pfl-research's benchmark: 1,000 users of 50 random images of 32 x 32 x 3, 50 users a round, one
local epoch in batches of 10. PYTHON is an interpreter that has pfl (and torch): its requirements exclude quoron's
dp-accounting, so it needs an environment of its own. Both take turns of some rounds, so that a busy machine is busy
for both. Ours is all of `quoron.torch.train`: rows, clip, sum, our noise, the ledger; pfl's is a central iteration of
FederatedAveraging with clip and Gaussian noise. Seconds a round, the median of three turns. Needs the extra
`torch`.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from models_pfl import network, shape_of
from torch import nn

import quoron.torch
from quoron.torch.training import ModuleRows, TorchModule
from quoron.training.rows import Items, LocalSGD
from quoron_privacy.accounts.gdp import mu_for
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means.clipping import clipped_mean
from quoron_privacy.noise.streams import SecureNoise

LOSS = nn.functional.cross_entropy
STEP, WARM, TURNS = 0.1, 3, 3


@dataclass(frozen=True)
class Shape:
    """Of people and of a network."""

    kind: str  # "images", or "layers" of a small perceptron
    width: int
    users: int
    cohort: int
    items: int
    batch: int


PFL = Shape("images", 32, 1000, 50, 50, 10)
SMALL = (
    Shape("layers", 16, 1000, 100, 20, 10),
    Shape("images", 8, 100, 20, 20, 10),
    Shape("images", 32, 100, 10, 50, 10),
)


class Other:
    """pfl in a process of its own, which does a round when told to."""

    def __init__(self, python: str, shape: Shape) -> None:
        script = str(Path(__file__).parent / "models_pfl.py")
        self._process = subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._tell(json.dumps(asdict(shape) | {"threads": torch.get_num_threads()}))

    def _tell(self, line: str) -> None:
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def round(self) -> float:
        """Seconds of its next round."""
        self._tell("")
        for line in self._process.stdout:
            try:
                return float(line)
            except ValueError:
                continue  # what pfl says of its iterations
        raise SystemExit("pfl ended; does that interpreter have it?")

    def end(self) -> None:
        """End its process."""
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()


def made(shape: Shape) -> tuple[nn.Module, Items]:
    draw = np.random.default_rng(0)
    size = shape.users * shape.items
    x = draw.standard_normal((size, *shape_of(shape.kind)), np.float32)
    return network(shape.kind, shape.width), Items(
        (x, draw.integers(10, size=size)), np.arange(0, size + 1, shape.items, dtype=np.int64)
    )


def trained(shape: Shape, device: str, chunk: int, rounds: int, local: LocalSGD | None) -> float:
    """Seconds of so many rounds of training as anybody would start it."""
    module, items = made(shape)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        quoron.torch.train(
            module,
            items.parts,
            offsets=items.offsets,
            loss=LOSS,
            epsilon=8.0,
            delta=1e-6,
            algorithm="dp-sgd-wor",
            options={"rounds": rounds, "rate": shape.cohort / shape.users, "step_size": 1.0},
            items_per_user=shape.items,
            radius=100.0,
            clip_norm=1.0,
            local=local,
            chunk=chunk,
            out=Path(folder) / "run",
            ledger=Path(folder) / "lifetime.sqlite",
            device=device,
        )
        return time.perf_counter() - began


def whole(shape: Shape, device: str, chunk: int, rounds: int, local: LocalSGD | None) -> float:
    """Seconds of a round: what so many more take than a few."""
    return (trained(shape, device, chunk, WARM + rounds, local) - trained(shape, device, chunk, WARM, local)) / rounds


def parts(shape: Shape, device: str, chunk: int, rounds: int) -> dict[str, float]:
    """Seconds of rows by themselves, and of clip, sum and noise on the processor."""
    module, items = made(shape)
    net, noise = TorchModule.of(module, LOSS, device), SecureNoise.fresh()
    point = net.flat()
    d = len(point)
    rows = np.zeros((shape.cohort, d))
    gaussian = GaussianNoise.for_mu(sensitivity=1.0, mu=mu_for(1.0, 1e-6, gaussians=d), dimension=d)
    local = LocalSGD(1, shape.batch, STEP)
    compute = ModuleRows(net, items, items_per_user=shape.items, local=local, compiled=device == "cuda")

    def computed(number: int) -> None:
        for first in range(0, shape.cohort, chunk):
            compute(number, np.arange(first, min(first + chunk, shape.cohort)), point, noise)

    def summed(number: int) -> None:
        clipped_mean(rows, np.ones(len(rows), bool), 1.0, len(rows))

    def noised(number: int) -> None:
        gaussian.release(np.zeros(d), noise.stream("release", number))

    found = {}
    for name, work in (("rows", computed), ("clip and sum on the processor", summed), ("noise", noised)):
        taken = []
        for number in range(rounds + 1):
            began = time.perf_counter()
            work(number)
            taken.append(time.perf_counter() - began)
        found[name] = statistics.median(taken[1:])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pfl", metavar="PYTHON", help="an interpreter that has pfl")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--chunk", type=int, default=50)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of a processor, for both")
    parser.add_argument("--small", action="store_true", help="three small shapes")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(given.threads)
    for shape in SMALL if given.small else (PFL,):
        d = sum(weight.numel() for weight in network(shape.kind, shape.width).parameters())
        print(f"{device}, {shape.kind}: {shape.cohort} users of {shape.items} items a round, {d:,} numbers", flush=True)
        other = None if given.pfl is None else Other(given.pfl, shape)
        local, ours, theirs = LocalSGD(1, shape.batch, STEP), [], []
        trained(shape, device, given.chunk, WARM, local)  # all that is made once
        for _ in range(TURNS):
            ours.append(whole(shape, device, given.chunk, given.rounds, local))
            if other is not None:
                theirs.append(statistics.median([other.round() for _ in range(WARM + given.rounds)][WARM:]))
        print(f"{statistics.median(ours):9.4f} s  quoron, local SGD", flush=True)
        if other is not None:
            other.end()
            ratio = statistics.median(theirs) / statistics.median(ours)
            print(f"{statistics.median(theirs):9.4f} s  pfl, local SGD: {ratio:.1f} times as long", flush=True)
        average = whole(shape, device, given.chunk, given.rounds, None)
        print(f"{average:9.4f} s  quoron, average gradients", flush=True)
        for name, taken in parts(shape, device, given.chunk, given.rounds).items():
            print(f"{taken:9.4f} s    {name}", flush=True)


if __name__ == "__main__":
    main()

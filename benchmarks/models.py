"""A round of a network's training beside what it is made of: users one by one in plain torch, and the noise alone.

    python benchmarks/models.py --users 1000 --cohort 50 --rounds 3            # on a GPU if there is one
    python benchmarks/models.py --small                                        # for a processor

The shape is that of pfl-research's benchmark: 50 random images of 32 x 32 x 3 a user, one local epoch in batches of 10.
Needs the extra `torch`. Figures are seconds a round, the median of so many after one that is not counted.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from quoron.torch.computing import Rows
from quoron.torch.modules import Network
from quoron.training.items import Items
from quoron.training.timetable import LocalSGD
from quoron_privacy.clipping import clipped_mean
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.noise import SecureNoise

LOSS = nn.functional.cross_entropy
STEP = 0.1


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * 64, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, 10),
    )


def one_by_one(module: nn.Module, items: Items, users: np.ndarray, batch: int, device: str) -> np.ndarray:
    """Local SGD of each user in turn, in plain torch and whole batches: what a loop over users does."""
    start = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    rows = []
    for user in users:
        with torch.no_grad():
            for name, weight in module.named_parameters():
                weight.copy_(start[name])
        optimiser = torch.optim.SGD(module.parameters(), lr=STEP)
        first, last = items.offsets[user], items.offsets[user + 1]
        for at in range(first, last, batch):
            x, y = (part[at : min(at + batch, last)].to(device) for part in items.parts)
            optimiser.zero_grad()
            LOSS(module(x), y).backward()
            optimiser.step()
        moved = [(start[name] - weight.detach()).flatten() for name, weight in module.named_parameters()]
        rows.append(torch.cat(moved).cpu().double().numpy())
    return np.stack(rows)


def seconds(works: dict[str, Callable[[int], object]], rounds: int) -> dict[str, float]:
    """By turns, so that a busy machine is busy for all."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            began = time.perf_counter()
            work(number)
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=50)
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--chunk", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="100 users, 20 a round, 20 items, width 8")
    given = parser.parse_args()
    if given.small:
        given.users, given.cohort, given.items, given.width, given.chunk = 100, 20, 20, 8, 20
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = given.users * given.items
    items = Items(
        (torch.randn(size, 3, 32, 32), torch.randint(10, (size,))), np.arange(0, size + 1, given.items, dtype=np.int64)
    )
    module, noise = network(given.width).to(device), SecureNoise.fresh()
    net = Network.of(module, LOSS, device)
    point, d = net.flat(), net.dimension
    draw = np.random.default_rng(0)
    cohorts = [draw.choice(given.users, given.cohort, replace=False) for _ in range(given.rounds + 1)]
    local = Rows(net, items, items_per_user=given.items, local=LocalSGD(1, given.batch, STEP))
    average = Rows(net, items, items_per_user=given.items, local=None)
    rows = np.zeros((given.cohort, d))
    gaussian = GaussianNoise.calibrate(sensitivity=1.0, epsilon=1.0, delta=1e-6, dimension=d)

    def chunked(compute: Rows, number: int) -> None:
        for first in range(0, given.cohort, given.chunk):
            compute(number, cohorts[number][first : first + given.chunk], point, noise)

    def summed(number: int) -> None:
        mean, _ = clipped_mean(rows, np.ones(len(rows), bool), 1.0, len(rows))
        gaussian.release(mean, noise.stream("release", number))

    def alone(number: int) -> None:
        one_by_one(module, items, cohorts[number], given.batch, device)

    figures: dict[str, Callable[[int], object]] = {
        "local SGD, users one by one in plain torch": lambda n: one_by_one(
            module, items, cohorts[n], given.batch, device
        ),
        "local SGD, users at once": lambda n: chunked(local, n),
        "average gradients, users at once": lambda n: chunked(average, n),
        "clip, sum and noise": summed,
    }
    print(f"{device}, {given.cohort} users of {given.items} items a round, {d:,} numbers")
    if local.why_looped:
        print(f"one by one: {local.why_looped}")
    for name, taken in seconds(figures, given.rounds).items():
        print(f"{taken:9.3f} s  {name}")


if __name__ == "__main__":
    main()

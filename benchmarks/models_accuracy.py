"""What noise costs a convolutional network: accuracy on made images with and without noise.

    python benchmarks/models_accuracy.py --users 1000 10000 --epsilons 2 8 --rounds 60

Ten shapes of 12 x 12, shifted and noisy; every user holds 12 images, mostly of a few shapes. Plan, cohorts, local SGD,
clip and first weights are the same with and without noise. Accuracy is that on 5,000 other images, on average over
seeds. Nothing is charged: seeded noise, for made-up data only. Needs the extra `torch`.
"""

import argparse
import statistics
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from quoron.torch.training import ModuleRows, TorchModule
from quoron.training.rows import BlackBox, Items, LocalSGD, RowsEngine, Setting, problem_of
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms.noisy import NoisySGD
from quoron_server.plan import Privacy

ITEMS, SIDE, CLASSES = 12, 12, 10
CLIP = 0.5


def images(labels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """One image a label, (k, 1, 12, 12): its shape, moved by up to two places, under noise."""
    coarse = np.random.default_rng(0).normal(size=(CLASSES, SIDE // 3, SIDE // 3))
    shapes = np.kron(coarse, np.ones((3, 3)))
    moves = draw.integers(-2, 3, size=(len(labels), 2))
    found = draw.normal(scale=1.5, size=(len(labels), SIDE, SIDE))
    for index, (label, (down, right)) in enumerate(zip(labels, moves, strict=True)):
        found[index] += np.roll(shapes[label], (down, right), axis=(0, 1))
    return found[:, None].astype(np.float32)


def people(users: int, draw: np.random.Generator) -> Items:
    """Of each user, 12 images whose labels follow a law of its own."""
    laws = draw.dirichlet(np.full(CLASSES, 0.5), size=users)
    labels = np.concatenate([draw.choice(CLASSES, ITEMS, p=law) for law in laws])
    return Items((images(labels, draw), labels), np.arange(0, users * ITEMS + 1, ITEMS))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.GroupNorm(2, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 9, CLASSES),
    )


def accuracy(items: Items, epsilon: float | None, rounds: int, rate: float, seed: int) -> float:
    """Of a network trained with this promise, with no noise if None, on images of nobody."""
    torch.manual_seed(seed)
    net = TorchModule.of(network(), nn.functional.cross_entropy, "cuda" if torch.cuda.is_available() else "cpu")
    method: BlackBox = {"items_per_user": ITEMS, "radius": 50.0, "clip_norm": CLIP}
    problem = problem_of(method, users=items.users, dimension=len(net.flat()))
    plan = Setting(
        problem=problem,
        privacy=Privacy(epsilon or 8.0, 1e-6),
        clip_norm=CLIP,
        algorithm="dp-sgd-wor",
        options={"rounds": rounds, "rate": rate, "step_size": 1.0},
    ).plan(seed)
    algorithm = NoisySGD(plan)
    if epsilon is None:
        algorithm.parameters = replace(algorithm.parameters, noise_scale=0.0)
    compute = ModuleRows(net, items, items_per_user=ITEMS, local=LocalSGD(batch_size=4, step_size=0.1))
    noise, state = SeededNoise(seed), algorithm.init()
    engine = RowsEngine(compute, problem, net.flat(), noise, 64)
    while (question := algorithm.request(state, noise)) is not None:
        state = algorithm.update(state, engine.ask(question), noise).state
    draw = np.random.default_rng(10**6)
    labels = draw.integers(CLASSES, size=5000)
    with torch.no_grad():
        said = net.trained(net.flat() + algorithm.model(state))(torch.from_numpy(images(labels, draw))).argmax(dim=1)
    return float((said.numpy() == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    for users in given.users:
        items = people(users, np.random.default_rng(users))
        for epsilon in (None, *sorted(given.epsilons, reverse=True)):
            found = [accuracy(items, epsilon, given.rounds, given.rate, seed) for seed in range(given.seeds)]
            text = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
            said = ", ".join(f"{each:.1%}" for each in found)
            print(f"{users:7,} users  {text:12} {statistics.mean(found):.1%}  ({said})", flush=True)


if __name__ == "__main__":
    main()

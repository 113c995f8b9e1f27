"""Clipped sums of users' rows under a torch module, beside the quickest way to write them in plain torch.

    python benchmarks/torch_rows.py [--users 64] [--items 32] [--threads 2] [--repeats 9]

A perceptron, a small convolutional network and a transformer of 66,234 numbers; average gradients, or local SGD in
batches of 8. Plain torch takes a loop over users with autograd, or `vmap` over them, on batches of a user's items in
their order, and clips and adds in float32; ours draws batches, and its integer sums are those of training. Seconds
are the least of the repeats, in turns. Needs the extra `torch`.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from quoron.torch.training import ModuleRows, TorchModule
from quoron.training.rows import LocalSGD, items_of
from quoron_client.protocol.questions import FAR, AverageGradient, Question
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import SecureNoise

LOSS = nn.functional.cross_entropy
BATCH, STEP = 8, 0.1
Weights = dict[str, torch.Tensor]


class Transformer(nn.Module):
    """Two layers over texts of 20 of 90 characters, which says the next one of each."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(48, 4, 192, 0.0, batch_first=True)
        self.embedding, self.places = nn.Embedding(90, 48), nn.Parameter(torch.zeros(20, 48))
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(48, 90)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores (k, 90, 20) of texts (k, 20)."""
        return self.out(self.layers(self.embedding(x) + self.places)).transpose(1, 2)


def networks(size: int) -> Iterator[tuple[str, nn.Module, np.ndarray, np.ndarray]]:
    """Yield names, modules, and items for them."""
    draw = np.random.default_rng(0)
    classes = draw.integers(10, size=size)
    layers = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    yield "perceptron", layers, draw.standard_normal((size, 784), np.float32), classes
    convolutions = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 32), nn.ReLU(), nn.Linear(32, 10)),
    )
    yield "convolutions", convolutions, draw.standard_normal((size, 3, 32, 32), np.float32), classes
    yield "transformer", Transformer(), *draw.integers(90, size=(2, size, 20))


def plain(module: nn.Module, x: torch.Tensor, y: torch.Tensor, local: LocalSGD | None) -> dict[str, Callable[[], None]]:
    """Return ways to add up the clipped rows of users, x and y (k, m, ...)."""
    start = {name: each.detach() for name, each in module.named_parameters()}
    batches = [(x, y)] if local is None else list(zip(x.split(BATCH, 1), y.split(BATCH, 1), strict=True))

    def loss(weights: Weights, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return LOSS(functional_call(module, weights, (inputs,)), targets)

    def gradient(weights: Weights, inputs: torch.Tensor, targets: torch.Tensor) -> Weights:
        own = {name: each.detach().requires_grad_() for name, each in weights.items()}
        return dict(zip(own, torch.autograd.grad(loss(own, inputs, targets), list(own.values())), strict=True))

    def walked(step: Callable[..., Weights], weights: Weights, place: int | slice) -> Weights:
        if local is None:
            return step(weights, x[place], y[place])
        for inputs, targets in batches:
            steps = step(weights, inputs[place], targets[place])
            weights = {name: torch.sub(each, steps[name], alpha=STEP) for name, each in weights.items()}
        return {name: start[name] - each for name, each in weights.items()}

    def added(rows: torch.Tensor) -> torch.Tensor:
        return (rows * (1 / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)

    def one_by_one() -> None:
        found = [walked(gradient, start, place) for place in range(len(x))]
        added(torch.stack([torch.cat([part.flatten() for part in row.values()]) for row in found]))

    many = vmap(grad(loss), in_dims=(None if local is None else 0, 0, 0))

    def at_once() -> None:
        weights = start if local is None else {name: w.expand(len(x), *w.shape) for name, w in start.items()}
        added(torch.cat([part.flatten(1) for part in walked(many, weights, slice(None)).values()], 1))

    return {"plain torch, user by user": one_by_one, "plain torch, users at once": at_once}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("users", 64), ("items", 32), ("threads", torch.get_num_threads()), ("repeats", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    owners, users = np.repeat(np.arange(given.users), given.items), np.arange(given.users)
    for name, module, x, y in networks(given.users * given.items):
        for local in (None, LocalSGD(1, BATCH, STEP)):
            network, noise = TorchModule.of(module, LOSS, "cpu"), SecureNoise.fresh()
            compute = ModuleRows(network, items_of((x, y), user=owners), items_per_user=given.items, local=local)
            point = network.flat()
            task = AverageGradient(np.zeros((1, len(point))), (1.0,))
            question = Question(0, users, task, reduction=ClippedSum(1.0, given.users))

            def ours(compute: ModuleRows = compute, asked: Question = question, start: np.ndarray = point) -> None:
                compute.sums(asked, users, start, noise, largest=FAR)  # noqa: B023

            inputs, targets = (
                torch.from_numpy(each.reshape(given.users, given.items, *each.shape[1:])) for each in (x, y)
            )
            contestants = {"quoron": ours, **plain(module, inputs, targets, local)}
            taken: dict[str, list[float]] = {each: [] for each in contestants}
            for _ in range(given.repeats):
                for each, work in contestants.items():
                    began = time.perf_counter()
                    work()
                    taken[each].append(time.perf_counter() - began)
            least = {each: min(times) for each, times in taken.items()}
            best = min(seconds for each, seconds in least.items() if each != "quoron")
            said = ", ".join(f"{each} {1e3 * seconds:.1f} ms" for each, seconds in least.items())
            what = "average gradients" if local is None else "local SGD"
            print(
                f"{name}, {len(point):,} numbers, {what}: {said}; {least['quoron'] / best:.2f} of the best", flush=True
            )


if __name__ == "__main__":
    main()

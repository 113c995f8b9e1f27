"""Rounds of pfl-research for benchmarks/models.py, in a process of their own: its requirements exclude quoron's.

Reads a shape as JSON from the first line of stdin. For each further line it carries out one central iteration of
FederatedAveraging with a clip and central Gaussian noise, by pfl's own backend, and prints the seconds that it took.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn


def network(kind: str, width: int) -> nn.Module:
    """A convolutional network of 32 x 32 x 3, or two layers on 32 numbers; ten classes."""
    if kind == "layers":
        return nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, 10))
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


def shape_of(kind: str) -> tuple[int, ...]:
    return (32,) if kind == "layers" else (3, 32, 32)


def main() -> None:
    given = json.loads(sys.stdin.readline())
    torch.set_num_threads(given["threads"])
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops.pytorch_ops import get_default_device
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy.gaussian_mechanism import GaussianMechanism
    from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

    class Trainable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network(given["kind"], given["width"])

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.inner(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
            return {}

    class Turns(TrainingProcessCallback):
        """Waits for its turn before each iteration, and says how long the last took."""

        began = 0.0

        def on_train_begin(self, *, model: Any) -> Any:
            sys.stdin.readline()
            self.began = time.perf_counter()
            return super().on_train_begin(model=model)

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            print(time.perf_counter() - self.began, flush=True)
            ended = not sys.stdin.readline()
            self.began = time.perf_counter()
            return ended, super().after_central_iteration(
                aggregate_metrics, model, central_iteration=central_iteration
            )[1]

    draw, device = np.random.default_rng(0), get_default_device()
    people = {
        user: [
            torch.tensor(draw.normal(size=(given["items"], *shape_of(given["kind"]))), dtype=torch.float32).to(device),
            torch.tensor(draw.integers(10, size=given["items"])).to(device),
        ]
        for user in range(given["users"])
    }
    module = Trainable()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    data = FederatedDataset(lambda user: Dataset(people[user]), get_user_sampler("random", list(people)))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=given["cohort"],
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, postprocessors=[noise]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.1, local_batch_size=given["batch"]),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Turns()],
    )


if __name__ == "__main__":
    main()

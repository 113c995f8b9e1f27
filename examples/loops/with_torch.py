"""A torch module and torch's own optimiser, private for all items of a user at once, without outlier users.

    python examples/loops/with_torch.py

One user in two hundred sends rows of any length and direction. They are left out behind a private test; where it finds
that too few users agree, nothing is released and the round has no step.
"""

import torch
from torch.func import functional_call, grad, vmap

from quoron_privacy import NoiseSource, OutlierMean, SecureNoise

USERS, ITEMS, COLUMNS, ROUNDS = 4_000, 16, 4, 20


def made_up() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features (users, items, columns), labels (users, items) and the weights behind them."""
    random = torch.Generator().manual_seed(0)
    weights = torch.linspace(-0.5, 0.5, COLUMNS)
    features = torch.rand((USERS, ITEMS, COLUMNS), generator=random) * 2 - 1
    labels = features @ weights + 0.1 * torch.randn((USERS, ITEMS), generator=random)
    return features, labels, weights


def train(noise: NoiseSource, epsilon: float = 4.0) -> float:
    """The largest error of a weight."""
    features, labels, weights = made_up()
    module = torch.nn.Linear(COLUMNS, 1, bias=False)
    torch.nn.init.zeros_(module.weight)
    optimiser = torch.optim.SGD(module.parameters(), lr=1.0)

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((functional_call(module, values, (x,)).squeeze(-1) - y) ** 2).mean()

    rows_of = vmap(grad(loss), (None, 0, 0))
    mean = OutlierMean.calibrate(
        epsilon, 1e-6, users=USERS, rounds=ROUNDS, dimension=COLUMNS, spread=0.6, outliers=0.01
    )
    state = mean.init()
    for _ in range(mean.rounds):
        rows = rows_of(dict(module.named_parameters()), features, labels)["weight"].reshape(USERS, -1)
        rows[:20] = 1e6  # what adversarial users send
        gradient, state = mean(rows, state, noise)
        if gradient is not None:
            module.weight.grad = gradient.reshape(module.weight.shape)
            optimiser.step()
    print(mean.guarantee)
    return float((module.weight.detach()[0] - weights).abs().max())


if __name__ == "__main__":
    print(f"error of the weights: {train(SecureNoise.fresh()):.3f}")

"""Our network, loss and data, in plain torch. Nothing of quoron here, and nothing of who holds the data."""

import torch
from torch import nn

ITEMS = 20  # of a user
loss = nn.functional.cross_entropy


def network() -> nn.Module:
    """A small convolutional network, with the weights that training starts from."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.GroupNorm(2, 6),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(24, 2),
        )


def items(user: int, count: int = ITEMS) -> tuple[torch.Tensor, torch.Tensor]:
    """A user's made-up images (count, 1, 8, 8), each of a bright bar that lies (0) or stands (1)."""
    draw = torch.Generator().manual_seed(user)
    labels = torch.randint(2, (count,), generator=draw)
    pictures = torch.randn(count, 1, 8, 8, generator=draw) * 0.4
    for index, where in enumerate(torch.randint(8, (count,), generator=draw).tolist()):
        if labels[index]:
            pictures[index, 0, :, where] += 1.5
        else:
            pictures[index, 0, where, :] += 1.5
    return pictures, labels


def accuracy(module: nn.Module) -> float:
    """Share of nobody's images that a module names rightly."""
    pictures, labels = items(user=10**6, count=2000)
    with torch.no_grad():
        return float((module(pictures).argmax(dim=1) == labels).float().mean())

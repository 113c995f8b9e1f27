"""A small convolutional network on made images, with user-level privacy: nothing is downloaded.

    python examples/models/images.py --users 4000 --rounds 30

Every user has up to 12 images, 8 x 8, of a bright bar that stands or lies; who holds them draws more of one kind than
of the other. Half a minute on one processor.
"""

import argparse

import torch
from torch import nn

import quoron.torch


def images(count: int, standing: torch.Tensor, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """So many made images (count, 1, 8, 8) and their labels; `standing` (count,) are chances of a bar that stands."""
    labels = (torch.rand(count, generator=draw) < standing).long()
    pictures = torch.randn(count, 1, 8, 8, generator=draw) * 0.6
    where = torch.randint(8, (count,), generator=draw)
    for index in range(count):
        if labels[index]:
            pictures[index, 0, :, where[index]] += 1.5
        else:
            pictures[index, 0, where[index], :] += 1.5
    return pictures, labels


def main() -> None:
    """Train, and say how well it does on public images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument(
        "--simulation-seed", type=int, help="noise that comes again, protects nobody, and is not charged"
    )
    parser.add_argument("--out", help="the run's folder")
    given = parser.parse_args()

    draw = torch.Generator().manual_seed(1)
    counts = torch.randint(1, 13, (given.users,), generator=draw)
    owners = torch.repeat_interleave(torch.arange(given.users), counts)
    pictures, labels = images(len(owners), torch.rand(given.users, generator=draw)[owners], draw)
    public, truth = images(1000, torch.full((1000,), 0.5), draw)

    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 2)
    )

    def watch(round_: int, module: nn.Module) -> None:
        if round_ % 10 == 0:
            print(f"round {round_}: {accuracy(module, public, truth):.1%} of public images")

    trained = quoron.torch.train(
        network,
        (pictures, labels),
        user=owners.numpy(),
        loss=nn.functional.cross_entropy,
        epsilon=given.epsilon,
        delta=1e-6,
        seed=given.simulation_seed,
        algorithm="dp-sgd-wor",
        options={"rounds": given.rounds, "rate": 0.1, "step_size": 1.0},
        items_per_user=12,
        radius=20.0,
        clip_norm=0.5,
        local=quoron.torch.LocalSGD(epochs=1, batch_size=4, step_size=0.2),
        out=given.out,
        watch=watch,
    )
    print(trained.statement)
    print(f"at the end: {accuracy(trained.model, public, truth):.1%} of public images")


def accuracy(module: nn.Module, pictures: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of images that a module names rightly."""
    with torch.no_grad():
        return float((module(pictures).argmax(dim=1) == labels).float().mean())


if __name__ == "__main__":
    main()

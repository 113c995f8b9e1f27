"""The same network, loss, users and promise on one machine that holds all data.

    python examples/models/federated/here.py --simulation-seed 7

On a federation: README.md beside this file.
"""

import argparse

import numpy as np
import torch
from network import promise, task

import quoron.torch


def main() -> None:
    """Train, and say how well it does on images of nobody."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=promise.defaults()["users"])
    parser.add_argument("--rounds", type=int, default=promise.defaults()["rounds"])
    parser.add_argument(
        "--simulation-seed", type=int, help="noise that comes again, protects nobody, and is not charged"
    )
    parser.add_argument("--out", help="the run's folder")
    given = parser.parse_args()
    config = promise.defaults() | {"users": given.users, "rounds": given.rounds}
    held = [task.items(user) for user in range(given.users)]
    trained = quoron.torch.train(
        task.network(),
        tuple(torch.cat(parts) for parts in zip(*held, strict=True)),
        user=np.repeat(np.arange(given.users), task.ITEMS),
        loss=task.loss,
        epsilon=config["epsilon"],
        delta=config["delta"],
        seed=given.simulation_seed,
        local=promise.local(config),
        out=given.out,
        **promise.method(config),
    )
    print(trained.statement)
    print(f"accuracy on one machine: {task.accuracy(trained.model):.3f}")


if __name__ == "__main__":
    main()

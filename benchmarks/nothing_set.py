"""`quoron.torch.train` and `quoron.jax.train` with nothing set, beside settings that were searched without privacy.

    python benchmarks/nothing_set.py run --out ours.jsonl                   # three seeds of five tasks, ε = 4 and 8
    python benchmarks/nothing_set.py run --library jax --out ours.jsonl
    python benchmarks/nothing_set.py run --library jax --zero-out --out ours.jsonl      # as most peers, half the noise
    python benchmarks/nothing_set.py show ours.jsonl peers.jsonl            # one table; peers: nothing_set_peers.py

The tasks are those of `nothing_set_tasks.py`. Ours gets data, users, loss and ε, and protects under replace-one with
δ = 1e-6, the default. `--zero-out` names `dp-sgd-poisson`, and nothing else. Accuracy is a mean over seeds. Noise is
seeded, the data are made up, and nothing is charged. Needs the extra `torch` or `jax`.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from nothing_set_tasks import TASKS, Task


def in_torch(task: Task, **training: Any) -> float:
    """Return the accuracy of a module of linear layers with ReLU between them."""
    import torch
    from torch import nn

    import quoron.torch

    made: list[nn.Module] = []
    for weights, offsets in task.start():
        made += [nn.Linear(weights.shape[1], weights.shape[0]), nn.ReLU()]
        made[-2].weight.data, made[-2].bias.data = torch.from_numpy(weights), torch.from_numpy(offsets)
    trained = quoron.torch.train(nn.Sequential(*made[:-1]), loss=nn.functional.cross_entropy, **training)
    with torch.no_grad():
        return task.accuracy(lambda features: trained.model(torch.from_numpy(features)).numpy())


def in_jax(task: Task, **training: Any) -> float:
    """Return the accuracy of the same network as a function."""
    import jax

    import quoron.jax

    def scores(params: Any, x: Any) -> Any:
        for weights, offsets in params[:-1]:
            x = jax.nn.relu(x @ weights.T + offsets)
        return x @ params[-1][0].T + params[-1][1]

    def loss(params: Any, x: Any, y: Any) -> Any:
        return -jax.nn.log_softmax(scores(params, x))[y]

    trained = quoron.jax.train(loss, task.start(), **training)
    return task.accuracy(lambda features: np.asarray(scores(trained.model, features)))


def accuracy(task: Task, library: str, epsilon: float, seed: int, zero_out: bool) -> float:
    """Return the share of right labels of users who were not trained on."""
    items = task.labels.shape[1]
    data = task.features[: task.users].reshape(task.users * items, -1), task.labels[: task.users].reshape(-1)
    method: dict[str, Any] = {"algorithm": "dp-sgd-poisson"} if zero_out else {}
    with tempfile.TemporaryDirectory() as folder:
        return {"torch": in_torch, "jax": in_jax}[library](
            task,
            data=data,
            user=np.repeat(np.arange(task.users), items),
            epsilon=epsilon,
            seed=seed,
            out=Path(folder) / "run",
            **method,
        )


def run(given: argparse.Namespace) -> None:
    """Append a line for each result."""
    for name in given.tasks:
        task = TASKS[name](np.random.default_rng(0))
        for epsilon in given.epsilons:
            for seed in given.seeds:
                began = time.perf_counter()
                found = accuracy(task, given.library, epsilon, seed, given.zero_out)
                about = {"peer": f"quoron.{given.library}", "replace_one": not given.zero_out, "task": name}
                about |= {"epsilon": epsilon, "seed": seed, "setting": None, "accuracy": found}
                with given.out.open("a") as file:
                    file.write(json.dumps(about | {"seconds": round(time.perf_counter() - began, 1)}) + "\n")


def show(given: argparse.Namespace) -> None:
    """Print one table: of each task and ε a line, of each library a column, and the best of all settings."""
    scores: dict[tuple[str, float, str], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    columns: dict[str, None] = {}
    for file in given.files:
        for line in map(json.loads, file.read_text().splitlines()):
            column = f"{line['peer']}, {'replace-one' if line['replace_one'] else 'its own adjacency'}"
            columns[column] = None
            key = line["task"], line["epsilon"], column
            scores[key][json.dumps(line["setting"])][line["seed"]] = line["accuracy"]
    print(f"| task | ε | {' | '.join(columns)} |\n| - | - {'| - ' * len(columns)}|")
    for name in TASKS:
        for epsilon in sorted({key[1] for key in scores if key[0] == name}):
            cells = []
            for column in columns:
                found = scores[name, epsilon, column]
                best = max(found, key=lambda each: found[each].get(1, 0.0), default=None)  # by the seed of the search
                own = [] if best is None else [found[best][seed] for seed in found[best] if seed != 1]
                own = own or ([] if best is None else list(found[best].values()))
                cells.append(f"{np.mean(own):.3f} ± {np.ptp(own) / 2:.3f} of {len(found)}" if own else "–")
            print(f"| {name} | {epsilon:g} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--library", choices=["torch", "jax"], default="torch")
    running.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    running.add_argument("--epsilons", nargs="+", type=float, default=[4.0, 8.0])
    running.add_argument("--seeds", nargs="+", type=int, default=[2, 3, 4])
    running.add_argument("--zero-out", action="store_true")
    running.add_argument("--out", type=Path, required=True)
    commands.add_parser("show").add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    run(given) if given.command == "run" else show(given)


if __name__ == "__main__":
    main()

"""Private training inside an existing Flower project: its own model and data, our rounds and promise.

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        trained = train_privately(
            grid, users=5, dimension=1000, epsilon=2, delta=1e-6, clip_norm=1, radius=10, folder=Path("private-run")
        )
        print(trained.guarantee.sentence())
        np.save("model.npy", trained.model)

Clients answer with `quoron_client.flower.answering.answer_with`.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron.flower.permission import require_secret_noise, require_users
from quoron.training.black_box import Trained, origin_of, problem_of
from quoron.training.start import Start
from quoron_privacy.errors import ConfigError, LedgerError
from quoron_privacy.quorum import spent_on
from quoron_privacy.validate import positive
from quoron_server.books.database import Database
from quoron_server.books.durable import OWN, make_folder
from quoron_server.flower.apps import Training, train
from quoron_server.flower.black_boxes import Identities
from quoron_server.plan import check_delta
from quoron_server.runs import Books

BOOKS = "books.sqlite"


def train_privately(
    grid: Grid,
    *,
    users: int,
    dimension: int,
    epsilon: float,
    delta: float,
    clip_norm: float | None = None,
    radius: float,
    folder: Path,
    algorithm: str = "one-pass-dp-sgd",
    options: Mapping[str, Any] | None = None,
    smoothness: float | None = None,
    start: NDArray[np.float64] | None = None,
    items_per_user: int = 1,
    action: str = "private",
    seconds: float = 60.0,
    early_ends: bool = False,
    waiting: float = 600.0,
    quorum: float | None = None,
    quorum_epsilon: float | None = None,
    run: str = "private",
    group: str = "everyone",
    identities: Identities = "keys",
    seed: int = 0,
    simulation_seed: int | None = None,
    allow_large_delta: bool = False,
) -> Trained:
    """Train a model of `dimension` numbers on `users` nodes with (ε, δ)-differential privacy for all items of a user.

    | argument          | meaning                                                                                 |
    | ----------------- | --------------------------------------------------------------------------------------- |
    | `clip_norm`       | a user's answer is shortened to this Euclidean norm, on the server: the promise's base. |
    |                   | None: it follows the users, privately, for a share of ε; `options` need a `step_size`   |
    | `radius`          | the model stays within this distance of `start`                                         |
    | `start`           | public start, shape (d,); zero by default. Its values must not depend on protected data |
    | `options`         | of the algorithm: `rounds`, `step_size`, `rate`, ...; the plan chooses what is left out |
    | `smoothness`      | of users' average losses, if known: sets step sizes only                                |
    | `items_per_user`  | a public guess, which sets step sizes only                                              |
    | `folder`          | keeps the books: members, spent budget, ledger. Secret until the run is complete; yours |
    | `seconds`         | that a round takes answers, also when all have answered before                          |
    | `early_ends`      | a round ends once all have answered: who sees when learns whether one was absent, so    |
    |                   | the promise says so; refused where cohorts are secret. With "partitions" always         |
    | `waiting`         | seconds for users to come                                                               |
    | `quorum`          | a share of those asked: a round in which fewer answer, by a noisy count, ends the run   |
    |                   | as `WithoutQuorum`. None: nobody checks whether anyone answers                          |
    | `quorum_epsilon`  | of `epsilon`, for the quorum; a twentieth unless told                                   |
    | `run`, `group`    | the name of this run in the books, and whose lifetime budget it is charged to           |
    | `identities`      | "keys": a user is a SuperNode's key, proved by `--enable-supernode-auth`; "partitions": |
    |                   | a partition of Flower's simulation, where all data are yours anyway                     |
    | `simulation_seed` | repeatable noise, for made-up data only                                                 |

    A δ above 1/n is refused without `allow_large_delta`.

    With "keys" the environment of the ServerApp has to say QUORON_SUPERNODE_AUTH=1, that the SuperLink does verify
    them; QUORON_ALLOW_SIMULATION=1 there allows made-up users, and a seed, instead.

    Called again with the same arguments and folder, it goes on after the last committed round, for one charge; a
    simulation to the same bits, as far as clients answer the same. A complete run returns its model and asks nobody.
    The start is kept there: none goes on from it, another one is refused by name. Raises ConfigError, naming why, for
    algorithms that need more of clients than gradients; Infeasible, BudgetExceeded, LedgerError, OtherVersion,
    WithoutQuorum, RunError.
    """
    _speak()
    origin = origin_of(start, dimension)
    positive(seconds=seconds, waiting=waiting)
    if identities == "keys":
        require_secret_noise(os.environ, simulation_seed)
        require_users(os.environ)
    if simulation_seed is None:
        check_delta(delta, users, allowed=allow_large_delta, key="allow_large_delta")
    problem = problem_of(
        users=users,
        items_per_user=items_per_user,
        dimension=dimension,
        radius=radius,
        clip_norm=clip_norm,
        smoothness=smoothness,
    )
    training = Training(
        run=run,
        algorithm=algorithm,
        problem=problem,
        epsilon=epsilon,
        delta=delta,
        clip_norm=clip_norm,
        options=dict(options or {}),
        identities=identities,
        group=group,
        seed=seed,
        simulation_seed=simulation_seed,
        early_ends=early_ends,
        quorum=quorum,
        quorum_epsilon=spent_on(quorum, epsilon, quorum_epsilon),
    )
    plan = training.plan()
    _make_ours(folder)
    with Database(f"sqlite:///{folder.resolve() / BOOKS}") as database:
        books = Books(database)
        known = books.registry.run(run) is not None
        begin = _start(folder, run, Start(origin), known=known, given=start is not None)
        origin, training = begin.weights, replace(training, start=begin.digest)
        books.settle()
        moved = train(grid, training, plan, books, origin, action=action, seconds=seconds, waiting=waiting)
    return Trained(origin + moved, plan)


def _start(folder: Path, run: str, asked: Start, *, known: bool, given: bool) -> Start:
    """Where a run starts, kept for when it goes on. LedgerError, by name, for another start than it began with."""
    path = folder / f"start-{hashlib.sha256(run.encode()).hexdigest()[:16]}.npz"
    if not known:
        asked.write(path)
        return asked
    kept = Start.read(path) or Start(np.zeros_like(asked.weights))
    if given and kept.digest != asked.digest:
        raise LedgerError(
            f"Expected the start that run {run} in {folder} began with, got another: a module whose weights are drawn "
            "without a seed has others each time. Leave start out to go on from its own. Choose another run otherwise."
        )
    return kept


def _make_ours(folder: Path) -> None:
    """ConfigError for a folder in which somebody else could put other books, or links in their place."""
    make_folder(folder, mode=OWN)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"Expected a folder of this account that no other may write to, got {folder} of user {found.st_uid} with "
            f"mode {found.st_mode & 0o777:o}. Choose another folder, or correct its owner and mode (0700)."
        )


def _speak() -> None:
    """Let public events into the ServerApp's output, which Flower streams; an app's own logging stays as it is."""
    log = logging.getLogger("quoron")
    log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())

"""Private training inside an existing Flower project: its own model and data, our rounds and promise.

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        trained = train_privately(
            grid,
            users=5,
            dimension=1000,
            privacy=Privacy(2, 1e-6),
            method=Method(clip_norm=1, radius=10),
            keep=Keep("private-run"),
        )
        print(trained.statement)
        np.save("model.npy", trained.model)

Clients answer with `quoron_client.flower.answering.answer_with`.
"""

import hashlib
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron.flower.permission import require_secret_noise, require_users
from quoron.sections import Keep, Method, Privacy, door, only, with_keywords
from quoron.training.black_box import ONE_PASS, origin_of, problem_of
from quoron.training.rows import METHOD, PRIVACY
from quoron.training.start import Start
from quoron.training.trained import TrainedRows
from quoron_privacy.counts.quorum import spent_on
from quoron_privacy.errors import ConfigError, LedgerError, positive
from quoron_server.books.database import Database
from quoron_server.books.durable import OWN, make_folder
from quoron_server.books.registry import EVERYONE
from quoron_server.budget import check_delta
from quoron_server.flower.apps import Training, train
from quoron_server.flower.black_boxes import Identities
from quoron_server.plan import Privacy as Wish
from quoron_server.runs import Books
from quoron_server.wording import sentence

BOOKS = "books.sqlite"


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a server waits: public, as who sees it must learn nothing of who answered."""

    seconds: float = 60.0  # that a round takes answers, also when all have answered before
    waiting: float = 600.0  # for users to come
    early_ends: bool = False  # a round ends once all have answered: who sees when learns whether one was absent


@door
def train_privately(
    grid: Grid,
    *,
    users: int,
    dimension: int,
    epsilon: float | None = None,
    delta: float | None = None,
    items_per_user: int | None = None,
    privacy: Privacy = Privacy(),  # noqa: B008  # frozen
    method: Method,
    keep: Keep,
    start: NDArray[np.float64] | None = None,
    action: str = "private",
    timing: Timing = Timing(),  # frozen
    identities: Identities = "keys",
) -> TrainedRows[NDArray[np.float64]]:
    """Train a model of `dimension` numbers on `users` nodes with (ε, δ)-differential privacy for all items of a user.

    | argument     | meaning                                                                                       |
    | ------------ | --------------------------------------------------------------------------------------------- |
    | `privacy`    | `epsilon` and `delta`, as by themselves; `simulation_seed`: made-up data only. `quorum`: a    |
    |              | share of those asked; a round in which fewer answer, by a noisy count, ends the run as        |
    |              | `WithoutQuorum`; for `quorum_epsilon` of epsilon, a twentieth unless told, or less. None:     |
    |              | nobody checks. A δ above 1/n is refused without `allow_large_delta`                           |
    | `method`     | as of `quoron.train_rows`: `radius`, `clip_norm`, at which a user's answer is shortened on    |
    |              | the server, `options`, ...; `seed`, public, of slots                                          |
    | `keep`       | `out`, needed: a folder for the books: members, spent budget, ledger. Secret until the run is |
    |              | complete; yours. `run` and `group`: the name of this run in them, and whose lifetime budget   |
    |              | it is charged to, "everyone" unless told                                                      |
    | `start`      | public start, shape (d,); zero by default. Its values must not depend on protected data       |
    | `timing`     | see `Timing`. With `early_ends` the promise says so; refused where cohorts are secret. With   |
    |              | "partitions" always                                                                           |
    | `identities` | "keys": a user is a SuperNode's key, proved by `--enable-supernode-auth`; "partitions": a     |
    |              | partition of Flower's simulation, where all data are yours anyway                             |

    With "keys" the environment of the ServerApp has to say QUORON_SUPERNODE_AUTH=1, that the SuperLink does verify
    them; QUORON_ALLOW_SIMULATION=1 there allows made-up users, and a seed, instead.

    Called again with the same arguments and folder, it goes on after the last committed round, for one charge; a
    simulation to the same bits, as far as clients answer the same. A complete run returns its model and asks nobody.
    The start is kept there: none goes on from it, another one is refused by name. Raises ConfigError, naming why, for
    algorithms that need more of clients than gradients; Infeasible, BudgetExceeded, LedgerError, OtherVersion,
    WithoutQuorum, RunError.
    """
    privacy = with_keywords(privacy, "train_privately", epsilon=epsilon, delta=delta)
    method = with_keywords(method, "train_privately", items_per_user=items_per_user)
    _speak()
    origin, seed = origin_of(start, dimension), privacy.simulation_seed
    only("train_privately", (*PRIVACY, "quorum", "quorum_epsilon"), privacy)
    only("train_privately", (*METHOD, "seed"), method)
    only("train_privately", ("out", "run", "group"), keep)
    (epsilon, delta), run = privacy.needed("train_privately"), keep.run or "private"
    if keep.out is None:
        raise ConfigError("Expected keep=Keep(out=...) for train_privately, a folder for its books; got none.")
    folder, quorum = Path(keep.out), None if privacy.quorum == "none" else privacy.quorum
    positive(seconds=timing.seconds, waiting=timing.waiting)
    if identities == "keys":
        require_secret_noise(os.environ, seed)
        require_users(os.environ)
    if seed is None:
        check_delta(delta, users, allowed=privacy.allow_large_delta, key="allow_large_delta")
    training = Training(
        run=run,
        algorithm=method.algorithm or ONE_PASS,
        problem=problem_of(method, users=users, dimension=dimension, door="train_privately"),
        privacy=Wish(epsilon, delta, quorum, spent_on(quorum, epsilon, privacy.quorum_epsilon)),
        clip_norm=method.clip_norm,
        options=dict(method.options),
        identities=identities,
        group=keep.group or EVERYONE,
        seed=method.seed or 0,
        simulation_seed=seed,
        early_ends=timing.early_ends,
    )
    plan = training.plan()
    _make_ours(folder)
    with Database(f"sqlite:///{folder.resolve() / BOOKS}") as database:
        books = Books(database)
        known = books.registry.run(run) is not None
        begin = _start(folder, run, Start(origin), known=known, given=start is not None)
        origin, training = begin.weights, replace(training, start=begin.digest)
        books.settle()
        moved = train(
            grid, training, plan, books, origin, action=action, seconds=timing.seconds, waiting=timing.waiting
        )
    model = origin + moved
    return TrainedRows(model, model, sentence(plan.guarantee), folder, plan)


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

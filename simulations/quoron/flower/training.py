"""Private training inside an existing Flower project: its own model and data, our rounds and promise.

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        trained = train_privately(
            grid,
            users=5,
            dimension=1000,
            epsilon=2,
            delta=1e-6,
            clip_norm=1,
            radius=10,
            out="private-run",
        )
        print(trained.statement)
        np.save("model.npy", trained.model)

Clients answer with `quoron_client.flower.answering.answer_with`. What a client returns comes out of a black box: see
`quoron_server.black_box`.
What the operator of a ServerApp allows is said by the environment of its process, never by a submitter's run config.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Unpack, get_args

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron.arguments import entry_point
from quoron.training.rows import BlackBox, Start, TrainedRows, algorithm_of, origin_of, problem_of
from quoron_client.durable import OWN, make_folder
from quoron_client.protocol import wire
from quoron_privacy.errors import ConfigError, LedgerError, positive
from quoron_privacy.histograms.min_cohort import spent_on
from quoron_server.algorithms import ALGORITHMS
from quoron_server.black_box import Asked
from quoron_server.federation import RunStore
from quoron_server.flower.serving import ConnectedNodes, carry_out
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import Privacy, RunPlan, check_delta
from quoron_server.specification import describe_promise, require_open_cohorts
from quoron_server.storage.database import Database
from quoron_server.storage.registry import EVERYONE
from quoron_server.wording import sentence


def allows_simulation(environment: Mapping[str, str]) -> bool:
    """Return whether seeded noise is accepted, from nodes without authentication: for made-up data."""
    return environment.get("QUORON_ALLOW_SIMULATION") == "1"


def require_users(environment: Mapping[str, str]) -> None:
    """Raise ConfigError unless a SuperNode's key stands for a user, so that no user takes part as two."""
    if not allows_simulation(environment) and environment.get("QUORON_SUPERNODE_AUTH") != "1":
        raise ConfigError(
            "Expected QUORON_SUPERNODE_AUTH=1 in the ServerApp's environment, got none: start the SuperLink with "
            "--enable-supernode-auth, so that nobody takes part as two users, and say so."
        )


DATABASE_FILE = "store.sqlite"
Identities = Literal["keys", "partitions"]
ASSUMED: Mapping[Identities, Assumption] = MappingProxyType(
    {"keys": Assumption(Kind.ONE_KEY_ONE_USER), "partitions": Assumption(Kind.ONE_PARTITION_ONE_USER)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Asked):
    """One private training run of a black box."""

    run: str
    identities: Identities = "keys"  # who is a user: the holder of a SuperNode's key, or a partition of a simulation
    seed: int = 0  # public randomness: slots and partition
    early_ends: bool = False  # rounds end once all have answered; with "partitions", where nobody else is, always

    @property
    def simulation(self) -> bool:
        """Whether its noise is seeded."""
        return self.simulation_seed is not None

    @property
    def ends_early(self) -> bool:
        """Whether a round ends before its deadline once all users have answered."""
        return self.early_ends or self.identities == "partitions"

    @property
    def trust_clients(self) -> bool:
        """Never: everything that clients are sent is private."""
        return False

    def plan(self) -> RunPlan:
        """Return the plan, verified against its theorem.

        ConfigError, with the reason, for what a black box cannot carry out; Infeasible; VerificationError.
        """
        if self.identities not in get_args(Identities):
            known = " or ".join(get_args(Identities))
            raise ConfigError(f"Expected identities to be {known}, got identities={self.identities!r}.")
        plan = self.planned(self.seed)
        _require_fitting(self.algorithm, plan)
        plan = plan.assuming([ASSUMED[self.identities]])
        if self.ends_early:
            plan = plan.assuming([Assumption(Kind.EARLY_ENDS)])
        if self.early_ends and self.identities == "keys" and not self.simulation:
            require_open_cohorts(plan)
        ALGORITHMS[self.algorithm].verify(plan)
        return plan.simulated() if self.simulation else plan


def _require_fitting(algorithm: str, plan: RunPlan) -> None:
    """Raise ConfigError for questions that every client would refuse, which would leave a model of noise."""
    points = plan.schedule.gradients_asked
    most = (wire.MAX_WHOLE // 8 - 1024) // points
    if plan.problem.dimension > most:
        raise ConfigError(
            f"Expected dimension to be at most {most:,} for {algorithm}, which asks at {points} "
            f"point{'s' if points > 1 else ''}, got dimension={plan.problem.dimension:,}. Train fewer numbers."
        )


@entry_point
def train_privately(
    grid: Grid,
    *,
    users: int,
    dimension: int,
    out: str | Path,
    min_cohort: float | None = None,
    min_cohort_epsilon: float | None = None,
    run: str = "private",
    start: NDArray[np.float64] | None = None,
    action: str = "private",
    seconds: float = 60.0,
    waiting: float = 600.0,
    early_ends: bool = False,
    identities: Identities = "keys",
    **training: Unpack[BlackBox],
) -> TrainedRows[NDArray[np.float64]]:
    """Train a model of `dimension` numbers on `users` nodes with (ε, δ)-differential privacy for all items of a user.

    Args:
        out: a folder for the store: members, spent budget, ledger. Secret until the run is complete; yours.
        epsilon, delta, radius, clip_norm, algorithm, options, items_per_user, smoothness, allow_large_delta, seed: as
            of `quoron.train_rows`. A user's answer is shortened to `clip_norm` on the server.
        minimum cohort: a share of those asked; a round in which fewer answer, by a noisy count, ends the run as
            `BelowMinCohort`; for `min_cohort_epsilon` of epsilon, a twentieth unless given, or less. None: nobody
        checks. population: whose privacy budget is charged, "everyone" unless given.
        run: the name of this run in the store.
        start: public start, shape (d,); zero by default. Its values must not depend on protected data.
        seconds: that a round takes answers, also when all have answered before: an observer must not learn who did.
        waiting: seconds that users have to come.
        early_ends: a round ends once all have answered: an observer learns whether one was absent, and the guarantee
            says so; refused where cohorts are secret. With "partitions" always.
        identities: "keys": a user is a SuperNode's key, proved by `--enable-supernode-auth`; "partitions": a partition
            of Flower's simulation, where all data are yours anyway.

    With "keys" the environment of the ServerApp has to say QUORON_SUPERNODE_AUTH=1, that the SuperLink does verify
    them; QUORON_ALLOW_SIMULATION=1 there allows made-up users, and a seed, instead.

    Called again with the same arguments and folder, it goes on after the last committed round, for one charge; a
    simulation to the same bits, as far as clients answer the same. A complete run returns its model and asks nobody.
    The start is kept there: none goes on from it, another one is refused by name. Raises ConfigError, naming why, for
    algorithms that need more of clients than gradients; Infeasible, BudgetExceeded, LedgerError, OtherVersion,
    BelowMinCohort, RunError.
    """
    speak()
    origin, folder = origin_of(start, dimension), Path(out)
    epsilon, delta, seed = training["epsilon"], training["delta"], training.get("seed")
    positive(seconds=seconds, waiting=waiting)
    if identities == "keys":
        if seed is not None and not allows_simulation(os.environ):
            raise ConfigError(
                f'Expected no seed with identities="keys", got {seed}: anyone who knows it can subtract the noise. '
                "Leave it out, or set QUORON_ALLOW_SIMULATION=1 in the ServerApp's environment for made-up data."
            )
        require_users(os.environ)
    if seed is None:
        allowed = training.get("allow_large_delta", False)
        check_delta(delta, users, allowed=allowed, key="allow_large_delta")
    name, given = algorithm_of(training)
    asked = Training(
        run=run,
        algorithm=name,
        problem=problem_of(training, users=users, dimension=dimension),
        privacy=Privacy(epsilon, delta, min_cohort, spent_on(min_cohort, epsilon, min_cohort_epsilon)),
        clip_norm=training.get("clip_norm"),
        options=given,
        identities=identities,
        group=training.get("population") or EVERYONE,
        seed=seed or 0,
        simulation_seed=seed,
        early_ends=early_ends,
    )
    plan = asked.plan()
    _make_ours(folder)
    with Database(f"sqlite:///{folder.resolve() / DATABASE_FILE}") as database:
        store = RunStore(database)
        known = store.registry.run(run) is not None
        begin = _start(folder, run, Start(origin), known=known, given=start is not None)
        origin, asked = begin.weights, replace(asked, start=begin.digest)
        store.settle()
        by_partitions = identities == "partitions"
        moved = carry_out(
            grid,
            store,
            asked,
            plan,
            "flower-app",
            describe_promise(run, plan, simulation=asked.simulation),
            ConnectedNodes(grid, action, partitions=users if by_partitions else None),
            seconds=seconds,
            early_ends=asked.ends_early,
            waiting=waiting,
            action=action,
            start=origin,
            watched=asked.simulation or by_partitions,
        )
    model = origin + moved
    return TrainedRows(model, model, sentence(plan.guarantee), folder, plan, plan.cost.rounds)


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
    """Raise ConfigError for a folder in which somebody else could put another database, or a link in its place."""
    make_folder(folder, mode=OWN)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"Expected a folder of this account that no other may write to, got {folder} of user {found.st_uid} with "
            f"mode {found.st_mode & 0o777:o}. Choose another folder, or correct its owner and mode (0700)."
        )


def speak() -> None:
    """Let public events into the ServerApp's output, which Flower streams; an app's own logging stays as it is."""
    log = logging.getLogger("quoron")
    log.setLevel(logging.INFO)
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())

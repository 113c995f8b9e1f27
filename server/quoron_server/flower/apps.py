"""Private training of somebody else's model: rounds over a Grid whose ClientApps answer with `answer_with`.

    promise = {"problem": problem, "privacy": Privacy(2.0, 1e-6), "clip_norm": 1.0}
    training = Training(run="spring", algorithm="dp-ftrl", **promise)
    plan = training.plan()
    shift = train(grid, training, plan, store, start, action="private", seconds=60, waiting=600)

What a client returns comes out of a black box: see `quoron_server.black_box`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from quoron_client.protocol import wire
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.black_box import Asked
from quoron_server.federation import RunStore
from quoron_server.flower.serving import Attendance, carry_out
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import RunPlan
from quoron_server.specification import describe_promise, require_open_cohorts

Identities = Literal["keys", "partitions"]
ASSUMED: Mapping[Identities, Assumption] = MappingProxyType(
    {"keys": Assumption(Kind.ONE_KEY_ONE_USER), "partitions": Assumption(Kind.ONE_PARTITION_ONE_USER)}
)
_log = logging.getLogger("quoron")


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


def train(
    grid: Grid,
    training: Training,
    plan: RunPlan,
    store: RunStore,
    start: NDArray[np.float64],
    *,
    action: str,
    seconds: float,
    waiting: float,
) -> NDArray[np.float64]:
    """Carry out or resume a run; return the released model less `start`, shape (d,).

    It begins once enough users are connected; its rounds, once all members are or `waiting` seconds are over. Raises
    BudgetExceeded and LedgerError; OtherVersion if the run began otherwise; RunError if too few users connect, or the
    run has ended without a model; NoNodeUnderstands; SuperLinkAway.
    """
    described = describe_promise(training.run, plan, simulation=training.simulation)
    by_partitions = training.identities == "partitions"
    there = Attendance(grid, action, partitions=plan.problem.users if by_partitions else None)
    given: dict[str, Any] = {"seconds": seconds, "early_ends": training.ends_early, "waiting": waiting}
    given |= {"action": action, "start": start, "watched": training.simulation or by_partitions}
    return carry_out(grid, store, training, plan, "flower-app", described, there, **given)

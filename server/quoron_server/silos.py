"""Silos: clients that hold many persons each. What a plan for them assumes, what one that is away costs, who is drawn.

    >>> hospitals = Silos.declared([300, 300, 200], 800)
    >>> hospitals.of(np.array([0, 299, 300, 799])).tolist(), hospitals.largest
    ([0, 0, 1, 2], 300)

    >>> draw(seed_of("summer", "{}"), np.arange(100), 3).tolist()
    [38, 79, 95]

A person of a silo is a user of the run, with a number and a slot of its own; sizes are public. Members are drawn by
public randomness: a seed and users determine them, so that an auditor can draw them again. Nothing of it is secret, and
no amplification by sampling may be claimed of it. Statements and proofs: docs/privacy/silos.md.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts.lifetime import Charge
from quoron_privacy.errors import ConfigError
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import RunPlan


@dataclass(frozen=True, slots=True)
class Silos:
    """How many persons each holds, and whether it sends one sum for all of them in place of their rows."""

    sizes: tuple[int, ...]
    sums: bool = False

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ConfigError(f"Expected at least one person in every silo, got silos={list(self.sizes)}.")

    @classmethod
    def declared(cls, said: int | Sequence[int], users: int, *, sums: bool = False, of: int | None = None) -> "Silos":
        """So many silos as equal as can be, or those sizes, which add up to `users`.

        Where they add up to `of` users, of whom `users` take part, each silo has its share of these. ConfigError else.
        """
        if isinstance(said, int):
            if not 1 <= said <= users:
                raise ConfigError(f"Expected from 1 to {users:,} silos of {users:,} users, got silos={said}.")
            ends = [users * place // said for place in range(said + 1)]
        elif sum(said) in (users, of):
            whole = sum(said)
            ends = [users * end // whole for end in (0, *accumulate(said))]
        else:
            raise ConfigError(
                f"Expected sizes of silos that add up to {users:,} users, got {sum(said):,} persons in "
                f"{len(said):,} silos. Correct population.silos, or give their number."
            )
        return cls(tuple(last - first for first, last in pairwise(ends)), sums)

    @property
    def users(self) -> int:
        """Persons in all of them."""
        return sum(self.sizes)

    @property
    def largest(self) -> int:
        """Persons of the largest."""
        return max(self.sizes)

    def of(self, users: NDArray[np.int64]) -> NDArray[np.int64]:
        """In which silo each user is, from 0: those of the first one have the first numbers."""
        found: NDArray[np.int64] = np.searchsorted(np.cumsum(self.sizes), users, side="right").astype(np.int64)
        return found

    def refused(self, plan: RunPlan) -> str | None:
        """Return why a run of this plan cannot be carried out with them; None if it can."""
        guarantee = plan.guarantee
        if self.largest > 1 and guarantee.rests_on(Kind.SECRET_COHORTS) and not plan.parameters.poisson_sampling:
            return (
                "its secret cohorts have a fixed size, and a silo knows of all its persons whether they were drawn, "
                "where the plan accounts for one who does (docs/privacy/subsampling.md). Take one that draws by coins, "
                "as dp-sgd-poisson, or that asks everybody"
            )
        if guarantee.trust_model == "two-servers" and self.largest > 1:
            return (
                "with trust model two-servers a client masks the row of one user, whose rounds the second server "
                "counts by its certificate, and a silo has one for all. Give each person a client and a certificate "
                "of its own (docs/two-servers.md#silos), without population.silos, or take one server"
            )
        if not self.sums:
            return None
        if guarantee.trust_model == "local":
            return "each person's report is randomised by itself, and read by itself. Leave out silo_sums"
        if not plan.schedule.reads_sums:
            return "it looks at single rows. Leave out silo_sums, so that silos send a row a person, or take another"
        if guarantee.min_cohort is not None and guarantee.min_cohort.public:
            return "with public participation who answers is told, person by person. Leave out silo_sums"
        return None


def in_silos(plan: RunPlan, silos: Silos) -> RunPlan:
    """Return the plan with what its guarantee then assumes (silos#si1, silos#si2). ConfigError where it cannot be."""
    if (why := silos.refused(plan)) is not None:
        raise ConfigError(f"Expected a plan for {len(silos.sizes):,} silos, got one of {plan.algorithm}: {why}.")
    guarantee = plan.guarantee
    if guarantee.trust_model == "none":
        return plan
    assumed = [Assumption(Kind.PERSONS_OF_SILOS, known_twice(guarantee.epsilon, guarantee.delta))]
    return plan.assuming([*assumed, *([Assumption(Kind.SILOS_CLIP)] if silos.sums else [])])


def known_twice(epsilon: float, delta: float) -> tuple[float, float]:
    """(ε, δ) of a person who is two users of the run: the guarantee passed twice, as lifetime#lt4 does (silos#si6)."""
    twice, delta_twice, _ = Charge("", "", epsilon, delta, adjacency="zero-out").replace_one
    return float(twice), min(1.0, float(delta_twice))


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """How the members of a run were drawn, for an auditor who draws them again."""

    seed: str
    active: NDArray[np.int64]  # whom from
    members: NDArray[np.int64]

    def as_json(self) -> dict[str, Any]:
        """Return what the chain says of it."""
        return {
            "seed": self.seed,
            "active": len(self.active),
            "of": digest(self.active),
            "members": digest(self.members),
        }


def draw(seed: str, active: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """`n` of the `active` users, in order, shape (n,): those whose SHA-256("SEED USER") is least."""
    if n >= len(active):
        return np.sort(active)
    start = hashlib.sha256(f"{seed} ".encode())
    ranks = []
    for user in active.tolist():
        hashed = start.copy()
        hashed.update(b"%d" % user)
        ranks.append((hashed.digest(), user))
    return np.array(sorted(user for _, user in sorted(ranks)[:n]), dtype=np.int64)


def seed_of(run: str, specification: str) -> str:
    """Public randomness of a run's draw, 64 digits: fixed with all that makes it this run, when it is submitted."""
    return hashlib.sha256(f"quoron members 1\n{run}\n{specification}".encode()).hexdigest()


def digest(users: NDArray[np.int64]) -> str:
    """SHA-256 of user numbers in order, in decimal with a comma between."""
    return hashlib.sha256(",".join(map(str, users.tolist())).encode()).hexdigest()


def homes(users: NDArray[np.int64], silos: Mapping[int, int]) -> NDArray[np.int64]:
    """Return the client of each user (k,), by the number of its first one."""
    if not silos:
        return users
    begins = np.array(sorted(silos), np.int64)
    ends = begins + np.array([silos[begin] for begin in begins.tolist()], np.int64)
    place = np.maximum(np.searchsorted(begins, users, side="right") - 1, 0)
    return np.where((users >= begins[place]) & (users < ends[place]), begins[place], users)


def by_client(users: NDArray[np.int64], silos: Mapping[int, int]) -> dict[int, NDArray[np.intp]]:
    """Places (k,) of each client's users among some, in the order of their numbers."""
    if not silos:
        return {user: np.array([place]) for place, user in enumerate(users.tolist())}
    clients = homes(users, silos)
    order = np.lexsort((users, clients))
    found, begins = np.unique(clients[order], return_index=True)
    ends = [*begins[1:].tolist(), len(order)]
    return {client: order[a:b] for client, a, b in zip(found.tolist(), begins.tolist(), ends, strict=True)}

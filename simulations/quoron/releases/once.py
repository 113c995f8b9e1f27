"""One private release outside of a run.

The order is the same for all: check, calibrate, verify by the second account, charge, draw, report. The charge is
durable before the first draw; where it fails nothing is drawn. With a seed nobody is protected, and nothing is charged
but to a ledger that is given.
"""

import secrets
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, TypeVar, Unpack

from quoron.arguments import ReleaseArguments
from quoron.training import lifetime
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import DataError, Infeasible, count
from quoron_privacy.noise.streams import NoiseSource, SecureNoise, SeededNoise
from quoron_server.plan import EVERYONE, check_delta
from quoron_server.wording import ReleaseGuarantee, simulated

T = TypeVar("T")


def release_once(
    what: str,
    guarantee: ReleaseGuarantee,
    draw: Callable[[NoiseSource], tuple[T, dict[str, Any]]],
    verify: Callable[[], object],
    *,
    mu: float | None = None,
    variation: float = 0.0,
    **charged: Unpack[ReleaseArguments],
) -> tuple[T, str]:
    """Verify, charge and draw a release, and return it with the sentence of its guarantee.

    `draw` gives the value, and what the ledger keeps of it; public numbers alone decide all else. `verify` raises
    unless the second account finds the release within its guarantee. Everything drawn is μ-GDP up to `variation`;
    without `mu` (ε, δ) is all that is known.

    BudgetExceeded where the population's limit leaves no room; nothing is drawn then. A kill between the charge and
    the end leaves the charge, and nothing that anybody has seen.
    """
    verify()
    seed, ledger = charged.get("seed"), charged.get("ledger")
    if seed is not None:
        guarantee = replace(guarantee, statement=simulated(guarantee.statement))
    noise: NoiseSource = SecureNoise.fresh() if seed is None else SeededNoise(seed)
    if seed is not None and ledger is None:
        return draw(noise)[0], guarantee.statement
    path, name = lifetime.place(ledger), f"{what}-{secrets.token_hex(8)}"
    with lifetime.opened(path) as budget:
        spent = asdict(guarantee) | {"mu": mu, "variation": variation}
        budget.charge(name, charged.get("population") or EVERYONE, **spent)
    value, record = draw(noise)
    with lifetime.opened(path) as budget:
        budget.release(name, record)
        budget.end(name, "complete")
    return value, guarantee.statement


def verify_gaussian(what: str, mu: float, variation: float, epsilon: float, delta: float) -> None:
    """Raise Infeasible unless the second account finds μ, up to a total variation, within (ε, δ)."""
    if not DominatingPair.gaussian(mu, variation).delta(epsilon, delta) <= delta:
        raise Infeasible(what, f"delta={delta:g} is below what arithmetic resolves", "a larger delta")


def slots_of(n_users: int, zero_out: int | None, delta: float, *, allow_large_delta: bool) -> int:
    """Return the number of users that a guarantee is for: all, or under zero-out the most that there may be.

    DataError for more than these; ConfigError for δ > 1/n, and for less than one.
    """
    count(zero_out=1 if zero_out is None else zero_out)
    users = n_users if zero_out is None else zero_out
    if n_users > users:
        raise DataError(f"Expected at most zero_out={users} users in the table, got more. Declare more.")
    check_delta(delta, users, allowed=allow_large_delta, key="allow_large_delta")
    return users

"""What a promise pays for before its first round: a look at the table, and declarations that nobody made, bought.

Each is paid out of any algorithm whose promise is a μ, which is chosen for what is left. What is bought, and with which
noise, is fixed before any value is looked at, as is the part of μ that is left. Which columns, which algorithm and
which numbers come after may depend on what was released: every part's μ is fixed beforehand, and so they compose.
Statements and proofs: docs/privacy/table-health.md, docs/privacy/bought-run.md.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import VerificationError
from quoron_server.parameters import GaussianPromise
from quoron_server.plan import RunPlan

if TYPE_CHECKING:  # a plan holds it, and it verifies itself
    from quoron_privacy.counts.bought import Bought
    from quoron_privacy.counts.table_health import TableHealth


def with_purchases(own: RunPlan, paid: "Bought", epsilon: float, delta: float) -> RunPlan:
    """The whole plan of (ε, δ) whose rest, made for what the purchases leave, is `own`."""
    return replace(own, guarantee=replace(own.guarantee, epsilon=epsilon, delta=delta, bought=paid))


def verify_look(plan: RunPlan, rest: GaussianPromise | None) -> None:
    """The look and what comes after it, verified and worth `rest`, are the whole promise together."""
    _beside("a data quality check", plan, plan.guarantee.health, rest)


def verify_purchases(plan: RunPlan, rest: GaussianPromise | None) -> None:
    """The purchases and what comes after them, verified and worth `rest`, are the whole promise together.

    By the second account: nothing that calibrated is asked.
    """
    promise, paid = plan.guarantee, plan.guarantee.bought
    rest = _beside("purchases", plan, paid, rest)
    assert paid is not None
    both = paid.pair.and_(Pair.gaussian(rest.mu, rest.variation))
    charged = Pair.gaussian(*paid.charged)
    for what, holds, got in (
        ("no more than is charged", both.mu <= charged.mu and both.lack <= charged.lack, (both.mu, both.lack)),
        (
            f"delta <= {promise.delta} for what is charged",
            charged.delta(promise.epsilon * (1 + 1e-12), promise.delta) <= promise.delta,
            paid.charged,
        ),
    ):
        if not holds:
            raise VerificationError(f"Expected {what} in private bounds, got {got}.")


def _beside(
    what: str, plan: RunPlan, paid: "Bought | TableHealth | None", rest: GaussianPromise | None
) -> GaussianPromise:
    """What comes after `what` in its promise, one in μ that pays for both.

    VerificationError beside a minimum cohort.
    """
    promise = plan.guarantee
    if promise.min_cohort is not None:
        raise VerificationError(f"Expected no minimum cohort beside {what} in a plan of {plan.algorithm}, got one.")
    if rest is None:
        raise VerificationError(f"Expected a promise in μ beside {what}, got {plan.algorithm} without one.")
    assert paid is not None
    users, own = plan.problem.users, (rest.mu, rest.variation)
    paid.verify(promise.epsilon, promise.delta, users=users, adjacency=promise.adjacency, own=own)
    return rest

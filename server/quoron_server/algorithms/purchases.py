"""A run whose declarations are bought: any algorithm whose promise is a μ, chosen for what the purchases leave.

What is bought, and with which noise, is fixed before any value is looked at, as is the part of μ that is left. Which
columns, which algorithm and which numbers come after may depend on what was released: every part's μ is fixed
beforehand, and so they compose. Statement and proof: docs/privacy/bought-run.md.
"""

from dataclasses import replace

from quoron_privacy.accounts.pair import Pair
from quoron_privacy.counts import bought
from quoron_privacy.counts.bought import Bought
from quoron_privacy.errors import VerificationError
from quoron_server.algorithms.look import require_beside
from quoron_server.parameters import GaussianPromise
from quoron_server.plan import Plan


def with_purchases(own: Plan, paid: Bought, epsilon: float, delta: float) -> Plan:
    """The whole plan of (ε, δ) whose rest, made for what the purchases leave, is `own`."""
    return replace(own, guarantee=replace(own.guarantee, epsilon=epsilon, delta=delta, bought=paid))


def verify_purchases(plan: Plan, rest: GaussianPromise | None) -> None:
    """The purchases and what comes after them, verified and worth `rest`, are the whole promise together.

    By the second account: nothing that calibrated is asked.
    """
    promise, paid = plan.guarantee, plan.guarantee.bought
    assert paid is not None
    rest = require_beside("purchases", plan, rest)
    bought.verify(
        paid,
        promise.epsilon,
        promise.delta,
        users=plan.problem.users,
        adjacency=promise.adjacency,
        own=(rest.mu, rest.variation),
    )
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
            raise VerificationError(f"Expected {what} in bought declarations, got {got}.")

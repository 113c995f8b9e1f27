"""A run with a look at the table: any algorithm whose promise is a μ, of which a share pays for the look.

What is released before the first round, and what it says: `counts.table_health`, docs/privacy/table-health.md.
"""

from dataclasses import replace

from quoron_privacy.counts import table_health
from quoron_privacy.errors import VerificationError
from quoron_server.parameters import GaussianPromise
from quoron_server.plan import Plan, Privacy


def with_look(
    own: Plan, promise: GaussianPromise, privacy: Privacy, *, share: float, columns: int, labels: int
) -> Plan | None:
    """The whole plan of `privacy` whose rest is `own`, which is worth `promise`; None where that leaves nothing."""
    health = table_health.calibrate(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        share=share,
        own=(promise.mu, promise.variation),
        users=table_health.looked_at(own.problem.users),
        columns=columns,
        labels=labels,
        adjacency=own.guarantee.adjacency,
    )
    if health is None:
        return None
    whole = replace(own.guarantee, epsilon=privacy.epsilon, delta=privacy.delta, health=health)
    return replace(own, guarantee=whole)


def require_beside(what: str, plan: Plan, rest: GaussianPromise | None) -> GaussianPromise:
    """What comes after `what` in its promise, which is one in μ; VerificationError for none, or beside a quorum."""
    if plan.guarantee.quorum is not None:
        raise VerificationError(f"Expected no quorum beside {what} in a plan of {plan.algorithm}, got one.")
    if rest is None:
        raise VerificationError(f"Expected a promise in μ beside {what}, got {plan.algorithm} without one.")
    return rest


def verify_look(plan: Plan, rest: GaussianPromise | None) -> None:
    """The look and what comes after it, verified and worth `rest`, are the whole promise together."""
    health, promise = plan.guarantee.health, plan.guarantee
    assert health is not None
    rest = require_beside("a look at the table", plan, rest)
    table_health.verify(
        health,
        promise.epsilon,
        promise.delta,
        users=plan.problem.users,
        adjacency=promise.adjacency,
        own=(rest.mu, rest.variation),
    )

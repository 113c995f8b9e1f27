"""`accelerated-erm` in the registry."""

from quoron_server.algorithms.accelerated_erm import plan as planning
from quoron_server.algorithms.accelerated_erm.method import AcceleratedERM
from quoron_server.algorithms.accelerated_erm.parameters import (
    AcceleratedERMOptions,
    AcceleratedERMParameters,
    participations,
)
from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo
from quoron_server.plan import Need, Plan


def _asked(plan: Plan) -> int:
    """Questions to one user, at most: those of its phase, as phases share no user."""
    p: AcceleratedERMParameters = plan.parameters
    return max(participations(each.rounds, each.users, each.cohort_size, p.sampling) for each in p.phases)


def _needs(plan: Plan) -> tuple[Need, ...]:
    """Secret cohorts of a fixed size, unless everybody is asked or batches are public."""
    return ("secret-cohorts", "forgetful-clients") if plan.parameters.sampling == "without-replacement" else ()


INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Several passes, accelerated: phases of AC-SA that test every cohort and leave outlier gradients out",
    paper="Lowy, Liu & Asi (2024)",
    algorithm_numbers="2, 3",
    exposure="broadcast",
    adjacency=("replace-one",),
    theorem=planning.THEOREM,
    options=AcceleratedERMOptions,
    planner=planning.plan,
    verifier=planning.verify,
    maker=AcceleratedERM,
    factor=Factor(known=8.0, unknown=0.2),
    passes="many",
    asked=_asked,
    removes_outliers=True,
    black_box="it has no clip; it leaves out answers that are far from the others, of convex losses",
    needs=_needs,
    cohorts=lambda plan: tuple(phase.cohort_size for phase in plan.parameters.phases for _ in range(phase.rounds)),
)

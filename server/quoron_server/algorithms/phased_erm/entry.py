"""`phased-erm` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import ITERATES, AlgorithmInfo
from quoron_server.algorithms.phased_erm import plan as planning
from quoron_server.algorithms.phased_erm.method import PhasedERM, PhasedERMParameters
from quoron_server.plan import Plan


def _asked(plan: Plan) -> int:
    """Questions to one user, at most: those of its phase, as phases share no user."""
    p: PhasedERMParameters = plan.parameters
    return max(phase.rounds for phase in p.phases)


INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Phases of regularised ERM on fresh users by full-batch steps, one noisy release a phase",
    paper="Zhang, Thekumparampil, Oh & He (2022), at user level",
    algorithm_numbers="the phased one",
    exposure="model",
    adjacency=("replace-one",),
    theorem=planning.THEOREM,
    options=planning.PhasedERMOptions,
    planner=planning.plan,
    verifier=planning.verify,
    maker=PhasedERM,
    factor=Factor(known=2.0, unknown=4.0),
    passes="many",
    asked=_asked,
    gaussian_promise=planning.gaussian,
    black_box=ITERATES,
    needs=lambda plan: ("unmoved-attendance",) if plan.parameters.solver == "gd" else ("full-attendance",),
    cohorts=lambda plan: tuple(phase.users for phase in plan.parameters.phases for _ in range(phase.rounds)),
    simulation_only=planning.simulated_only,
)

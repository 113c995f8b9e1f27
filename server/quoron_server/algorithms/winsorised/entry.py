"""`winsorised-erm` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo
from quoron_server.algorithms.winsorised import plan as planning
from quoron_server.algorithms.winsorised.method import WinsorisedERM, WinsorisedERMParameters
from quoron_server.plan import Plan


def _asked(plan: Plan) -> int:
    """Questions to one user, at most: those of its phase, as phases share no user."""
    p: WinsorisedERMParameters = plan.parameters
    return max(phase.rounds for phase in p.phases)


INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Full-batch noisy gradient descent on means whose rotated coordinates are clamped in a private box",
    paper="Levy et al. (2021)",
    algorithm_numbers="as in Bassily & Sun (2023), B",
    exposure="broadcast",
    adjacency=("replace-one", "zero-out"),
    theorem=planning.THEOREM,
    options=planning.WinsorisedERMOptions,
    planner=planning.plan,
    paper_planner=planning.paper_plan,
    verifier=planning.verify,
    maker=WinsorisedERM,
    factor=Factor(known=5.0, unknown=20.0),
    passes="many",
    asked=_asked,
    black_box="it has no clip norm: where its boxes lie follows from what is known of a loss",
    gaussian_promise=planning.gaussian,
    cohorts=lambda plan: tuple(phase.users for phase in plan.parameters.phases for _ in range(phase.rounds)),
)

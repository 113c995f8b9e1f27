"""`tracking-srgd` in the registry."""

from quoron_privacy.moment import packed
from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo
from quoron_server.algorithms.tracking import plan as planning
from quoron_server.algorithms.tracking.method import TrackingSRGD

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="One pass, private broadcasts: private metric, warm-up, recursive gradients, private radius (recommended)",
    paper="ours, after Bassily & Sun (2023) and Choquette-Choo, Ganesh & Thakurta",
    algorithm_numbers="-",
    exposure="broadcast",
    adjacency=("replace-one", "zero-out"),
    theorem=planning.THEOREM,
    options=planning.TrackingOptions,
    planner=planning.plan,
    verifier=planning.verify,
    maker=TrackingSRGD,
    factor=Factor(known=2.5, unknown=75.0),
    wide=True,
    gaussian_promise=planning.gaussian,
    answer=lambda plan: max(packed(plan.problem.features), plan.problem.dimension),
    black_box="it asks for the second moment of a user's features, which no gradient tells",
    cohorts=lambda plan: tuple(plan.parameters.cohort(number)[1] for number in range(plan.parameters.rounds)),
)

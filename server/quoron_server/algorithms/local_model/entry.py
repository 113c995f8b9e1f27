"""`local-model` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo
from quoron_server.algorithms.local_model import plan as planning
from quoron_server.algorithms.local_model.method import LocalModel

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="One report a user, private before it leaves the client: protects against the coordinator too",
    paper="Bassily & Sun (2023)",
    algorithm_numbers="5 (with 2 and 3)",
    exposure="local",
    adjacency=("replace-one",),
    theorem=planning.THEOREM,
    options=planning.LocalModelOptions,
    planner=planning.plan,
    verifier=planning.verify,
    maker=LocalModel,
    factor=Factor(known=1.0, unknown=2.0),
    asked=lambda plan: 2 if plan.parameters.reports == "split" else 1,  # both reports of a user
    answer=lambda plan: max(plan.parameters.bins, plan.problem.dimension),
    black_box="its clients add noise of their own, which only clients of ours are known to do",
    cohorts=lambda plan: tuple(plan.parameters.cohort(number)[1] for number in range(plan.parameters.rounds)),
)

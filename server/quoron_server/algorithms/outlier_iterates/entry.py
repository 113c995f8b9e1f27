"""`outlier-iterates` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import ITERATES, AlgorithmInfo
from quoron_server.algorithms.outlier_iterates import plan as planning
from quoron_server.algorithms.outlier_iterates.method import OutlierIterates

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Chains of local SGD, outlier iterates removed, few private means; noise falls as 1/√m",
    paper="Lowy, Liu & Asi, Faster Algorithms for User-Level Private Stochastic Convex Optimization",
    algorithm_numbers="1",
    exposure="model",
    adjacency=("replace-one",),
    theorem=planning.THEOREM,
    options=planning.OutlierIterateOptions,
    planner=planning.plan,
    verifier=planning.verify,
    maker=OutlierIterates,
    factor=Factor(known=1.5, unknown=1.0),
    removes_outliers=True,
    answer=lambda plan: 2 * plan.problem.dimension,
    exposures=("model", "broadcast"),
    black_box=ITERATES,
)

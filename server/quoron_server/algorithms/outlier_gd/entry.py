"""`outlier-gd` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo
from quoron_server.algorithms.outlier_gd import plan as planning
from quoron_server.algorithms.outlier_gd.method import OutlierGD

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Gradient descent on all users, each step tested, outlier gradients left out",
    paper="Asi & Liu (2024)",
    algorithm_numbers="as in Lowy, Liu & Asi (2024), 2",
    exposure="broadcast",
    adjacency=("replace-one",),
    theorem=planning.THEOREM,
    options=planning.OutlierGDOptions,
    planner=planning.plan,
    verifier=planning.verify,
    maker=OutlierGD,
    factor=Factor(known=8.0, unknown=8.0),
    passes="many",
    stride=4,
    removes_outliers=True,
    smooths=lambda plan: bool(plan.parameters.smoothing),
    black_box="it has no clip; it leaves out answers that are far from the others",
    curated_boxes=True,
)

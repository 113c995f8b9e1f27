"""`outlier-gd` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, NoBlackBoxes, Promises
from quoron_server.algorithms.outlier_gd import plan as planning
from quoron_server.algorithms.outlier_gd.method import OutlierGD, OutlierGDParameters

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Gradient descent on all users, each step tested, outlier gradients left out",
    paper="Asi & Liu (2024), as in Lowy, Liu & Asi (2024), Algorithm 2",
    promises=Promises(
        ("broadcast",),
        ("replace-one",),
        planning.THEOREM,
        one_server="its test and its filter look at single answers: take tracking-srgd",
    ),
    options=planning.OutlierGDOptions,
    parameters=OutlierGDParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=OutlierGD,
    factor=Factor(known=8.0, unknown=21.0),
    no_black_boxes=NoBlackBoxes(
        "it has no clip; it leaves out answers that are far from the others", even_curated=False
    ),
    choosing=Choosing(many_passes=True, curve_step=4, removes_outliers=True),
)

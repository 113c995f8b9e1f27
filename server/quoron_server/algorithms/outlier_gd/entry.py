"""`outlier-gd` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, NoBlackBoxes, Promises
from quoron_server.algorithms.outlier_gd import plan as planning
from quoron_server.algorithms.outlier_gd.method import OutlierGD, OutlierGDParameters
from quoron_server.algorithms.references import ASI_LIU_2024, LOWY_2024, repaired

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Gradient descent on all users, each step tested, outlier gradients left out",
    origin=repaired(
        ASI_LIU_2024.at(),
        LOWY_2024.at("Algorithm 2"),
        note="the text of Asi & Liu was not at hand: the step is the one that Lowy, Liu & Asi print after it, "
        "with another ramp of weights and one draw of the test's noise",
    ),
    promises=Promises(
        ("central-broadcast",),
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

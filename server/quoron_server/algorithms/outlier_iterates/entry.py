"""`outlier-iterates` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import ITERATES, AlgorithmInfo, Choosing, Promises
from quoron_server.algorithms.outlier_iterates import plan as planning
from quoron_server.algorithms.outlier_iterates.method import OutlierIterates
from quoron_server.algorithms.outlier_iterates.parameters import OutlierIterateParameters
from quoron_server.algorithms.printed import lowy_iterates
from quoron_server.algorithms.references import LOWY_2024, repaired

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Chains of local SGD, outlier iterates removed, few private means; noise falls as 1/√m",
    origin=repaired(LOWY_2024.at("Algorithm 1"), note="another ramp of weights; a phase that halts keeps its start"),
    promises=Promises(
        ("central-release", "central-broadcast"),
        ("replace-one",),
        planning.THEOREM,
        one_server="its test and its filter look at single answers: take tracking-srgd",
    ),
    options=planning.OutlierIterateOptions,
    parameters=OutlierIterateParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=OutlierIterates,
    printed=lowy_iterates.PRINTED,
    factor=Factor(known=1.5, unknown=1.5),
    no_black_boxes=ITERATES,
    choosing=Choosing(removes_outliers=True),
)

"""`accelerated-erm` in the registry."""

from quoron_server.algorithms.accelerated_erm import plan as planning
from quoron_server.algorithms.accelerated_erm.method import AcceleratedERM
from quoron_server.algorithms.accelerated_erm.parameters import (
    AcceleratedERMOptions,
    AcceleratedERMParameters,
)
from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, NoBlackBoxes, Promises
from quoron_server.algorithms.printed import lowy_erm
from quoron_server.algorithms.references import LOWY_2024, repaired

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Several passes, accelerated: phases of AC-SA that test every cohort and leave outlier gradients out",
    origin=repaired(
        LOWY_2024.at("Algorithms 2 and 3"), note="users without replacement; tests are inside what is sampled"
    ),
    promises=Promises(
        ("central-broadcast",),
        ("replace-one",),
        planning.THEOREM,
        planning.pairs,
        moves=planning.moves,
        one_server="it looks at single answers, to test them; test='clip' does not, but its phases have users and "
        "lengths of rows of their own, where a second server counts a user's rounds over all of them: take "
        "tracking-srgd or recentred-sgd",
    ),
    options=AcceleratedERMOptions,
    parameters=AcceleratedERMParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=AcceleratedERM,
    printed=lowy_erm.PRINTED,
    factor=Factor(known=8.0, unknown=1.5),
    no_black_boxes=NoBlackBoxes("it has no clip; it leaves out answers that are far from the others, of convex losses"),
    choosing=Choosing(many_passes=True, removes_outliers=True),
)

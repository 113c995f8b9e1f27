"""`phased-erm` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import ITERATES, AlgorithmInfo, Choosing, Promises
from quoron_server.algorithms.phased_erm import plan as planning
from quoron_server.algorithms.phased_erm.method import PhasedERM, PhasedERMParameters

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Phases of regularised ERM on fresh users by full-batch steps, one noisy release a phase",
    paper="Zhang, Thekumparampil, Oh & He (2022), at user level, the phased algorithm",
    promises=Promises(
        ("model",),
        ("replace-one",),
        planning.THEOREM,
        planning.pairs,
        one_server="its iterates have no noise within a phase, and the coordinator would see them: take "
        "accelerated-srgd or tracking-srgd",
    ),
    options=planning.PhasedERMOptions,
    parameters=PhasedERMParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=PhasedERM,
    factor=Factor(known=2.0, unknown=4.0),
    no_black_boxes=ITERATES,
    choosing=Choosing(many_passes=True),
)

"""`phased-erm` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import ITERATES, AlgorithmInfo, Choosing, Promises
from quoron_server.algorithms.phased_erm import plan as planning
from quoron_server.algorithms.phased_erm.method import PhasedERM, PhasedERMParameters
from quoron_server.algorithms.references import ZHANG_BYO_2022, ours

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Phases of regularised ERM on fresh users by full-batch steps, one noisy release a phase",
    origin=ours(ZHANG_BYO_2022.at(), note="users, and a solver of fixed length; their text was not at hand"),
    promises=Promises(
        ("central-release",),
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

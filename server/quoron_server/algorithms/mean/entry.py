"""`mean-sgd` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, Counting, Promises
from quoron_server.algorithms.mean import plan as planning
from quoron_server.algorithms.mean.method import MeanSGD
from quoron_server.algorithms.mean.parameters import MeanSGDParameters
from quoron_server.algorithms.references import BASSILY_SUN_2023, repaired

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Several passes, secret cohorts, a private mean around an earlier release or a private range",
    origin=repaired(BASSILY_SUN_2023.at("Algorithms 1, 4 and 6"), note="noise once, around a centre that is released"),
    promises=Promises(
        ("broadcast",),
        ("replace-one", "zero-out"),
        planning.THEOREM,
        planning.pairs,
        Counting(planning.room, planning.beside),
        planning.moves,
        one_server=None,
    ),
    options=planning.MeanSGDOptions,
    parameters=MeanSGDParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=MeanSGD,
    factor=Factor(known=8.0, unknown=12.0),
    noise_ignores_domain=True,
    choosing=Choosing(many_passes=True, curve_step=4),
)

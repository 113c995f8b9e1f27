"""`mean-sgd` and `recentred-sgd` in the registry: one loop and one theorem, two centres."""

from dataclasses import replace

from quoron_server.algorithms.forecast import UNMEASURED, Factor
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, Counting, Promises
from quoron_server.algorithms.mean import plan as planning
from quoron_server.algorithms.mean.method import MeanSGD
from quoron_server.algorithms.mean.parameters import MeanSGDParameters
from quoron_server.algorithms.printed import bassily_sun
from quoron_server.algorithms.references import BASSILY_SUN_2023, ours, repaired

RECENTRED = AlgorithmInfo(
    name=planning.RECENTRED,
    summary="Several passes, secret cohorts, a private mean clipped around the last release",
    origin=ours(BASSILY_SUN_2023.at("Algorithm 4"), note="the last release is the centre, and the radius follows it"),
    promises=Promises(
        ("central-broadcast",),
        ("replace-one", "zero-out"),
        planning.THEOREM,
        planning.pairs,
        Counting(planning.room, planning.beside),
        planning.moves,
        one_server=None,
    ),
    options=planning.RecentredSGDOptions,
    parameters=MeanSGDParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=MeanSGD,
    factor=Factor(known=8.0, unknown=12.0),
    noise_ignores_domain=True,
    choosing=Choosing(many_passes=True, curve_step=4),
)
MEAN = replace(
    RECENTRED,
    name=planning.NAME,
    summary="Several passes, secret cohorts, a private mean clipped around a private range",
    origin=repaired(BASSILY_SUN_2023.at("Algorithms 1, 4 and 6"), note="noise once, around a centre that is released"),
    promises=replace(
        RECENTRED.promises,
        one_server="its private range reads whole histograms without noise: take recentred-sgd or tracking-srgd",
    ),
    options=planning.MeanSGDOptions,
    factor=UNMEASURED,  # of ranges
    printed=bassily_sun.CENTRAL,
)

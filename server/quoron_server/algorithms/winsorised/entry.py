"""`winsorised-erm` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, NoBlackBoxes, Promises
from quoron_server.algorithms.references import BASSILY_SUN_2023, LEVY_2021, repaired
from quoron_server.algorithms.winsorised import plan as planning
from quoron_server.algorithms.winsorised.method import WinsorisedERM, WinsorisedERMParameters

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Full-batch noisy gradient descent on means whose rotated coordinates are clamped in a private box",
    origin=repaired(
        LEVY_2021.at(),
        BASSILY_SUN_2023.at("Algorithm 6"),
        note="the text of Levy et al. was not at hand: the mean is as Bassily & Sun reprint it, "
        "in a box that is wider by half a bin",
    ),
    promises=Promises(
        ("central-broadcast",),
        ("replace-one", "zero-out"),
        planning.THEOREM,
        planning.pairs,
        one_server="it chooses quantiles by whole histograms with an exponential mechanism, which is no sum with "
        "noise: take tracking-srgd",
    ),
    options=planning.WinsorisedERMOptions,
    parameters=WinsorisedERMParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=WinsorisedERM,
    factor=Factor(known=5.0, unknown=20.0),
    no_black_boxes=NoBlackBoxes("it has no clip norm: where its boxes lie follows from what is known of a loss"),
    choosing=Choosing(many_passes=True),
)

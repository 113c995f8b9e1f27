"""The registry entries of the one-epoch family: five ways to spend one answer a user in few rounds."""

from functools import partial
from typing import Any

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, Promises
from quoron_server.algorithms.one_epoch import plan as planning
from quoron_server.algorithms.one_epoch.method import Gradients, Method, OneEpoch, OneEpochParameters

PAPER = "Choquette-Choo, Ganesh & Thakurta, Near-Optimal Rates for O(1)-Smooth DP-SCO with a Single Epoch"


ONLINE = "Zhang, Tran & Cutkosky (2022), Differentially Private Online-to-Batch for Smooth Losses"


def _info(name: str, gradients: Gradients, method: Method, **more: Any) -> AlgorithmInfo:
    return AlgorithmInfo(
        name=name,
        promises=Promises(
            ("broadcast",), ("replace-one",), planning.THEOREM, planning.pairs, moves=planning.moves, one_server=None
        ),
        options=planning.FTRLOptions if gradients == "ftrl" else planning.OneEpochOptions,
        parameters=OneEpochParameters,
        planner=partial(planning.plan, name, gradients, method),
        verifier=planning.verify,
        maker=OneEpoch,
        **more,
    )


ACCELERATED_SRGD = _info(
    "accelerated-srgd",
    "recursive",
    "accelerated",
    factor=Factor(known=5.0, unknown=7.0),
    summary="Accelerated SGD on recursive gradients with correlated noise; one epoch, about √n rounds or fewer",
    paper=f"{PAPER}, Algorithm 1",
)
ACCELERATED_SGD = _info(
    "accelerated-sgd",
    "independent",
    "accelerated",
    factor=Factor(known=7.0, unknown=11.0),
    summary="Accelerated SGD on fresh gradients, independent noise; one epoch, very few rounds",
    paper=f"{PAPER}, section 5.5",
)
SRGD = _info(
    "srgd",
    "recursive",
    "plain",
    factor=Factor(known=6.0, unknown=4.0),
    summary="The same without acceleration",
    paper=f"{PAPER}, section 4.3",
)
ONLINE_TO_BATCH = _info(
    "online-to-batch",
    "recursive",
    "anytime",
    factor=Factor(known=8.0, unknown=2.0),
    summary="Online descent on recursive gradients at averaged points; one epoch, many rounds",
    paper=f"{ONLINE}, Algorithm 1",
)
DP_FTRL = _info(
    "dp-ftrl",
    "ftrl",
    "ftrl",
    factor=Factor(known=3.0, unknown=7.0),
    summary="Follow the regularised leader on noised prefix sums; one epoch, or several in the same order",
    paper="baseline; Kairouz et al. (2021); Choquette-Choo et al. (2023) for several epochs, Algorithm 1",
)

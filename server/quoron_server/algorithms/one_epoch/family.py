"""The registry entries of the one-epoch family: five ways to spend one answer a user in few rounds."""

from functools import partial
from typing import Any

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, Promises
from quoron_server.algorithms.one_epoch import plan as planning
from quoron_server.algorithms.one_epoch.accelerated_srgd import SRGD as PlainSRGD
from quoron_server.algorithms.one_epoch.accelerated_srgd import AcceleratedSGD, AcceleratedSRGD, OnlineToBatch
from quoron_server.algorithms.one_epoch.base import Gradients, Method, OneEpochParameters
from quoron_server.algorithms.one_epoch.dp_ftrl import DPFTRL
from quoron_server.algorithms.printed import choquette_choo
from quoron_server.algorithms.references import (
    CHOQUETTE_CHOO_2023,
    CHOQUETTE_CHOO_2025,
    KAIROUZ_2021,
    ZHANG_ONLINE_2022,
    ours,
    repaired,
    theirs,
)

HALVED = "half the step of z, and every answer is clipped"


def _info(name: str, gradients: Gradients, method: Method, **more: Any) -> AlgorithmInfo:
    return AlgorithmInfo(
        name=name,
        promises=Promises(
            ("central-broadcast",),
            ("replace-one",),
            planning.THEOREM,
            planning.pairs,
            moves=planning.moves,
            one_server=None,
        ),
        options=planning.FTRLOptions if gradients == "ftrl" else planning.OneEpochOptions,
        parameters=OneEpochParameters,
        planner=partial(planning.plan, name, gradients, method),
        verifier=planning.verify,
        **more,
    )


ACCELERATED_SRGD = _info(
    "accelerated-srgd",
    "recursive",
    "accelerated",
    maker=AcceleratedSRGD,
    factor=Factor(known=5.0, unknown=7.0),
    summary="Accelerated SGD on recursive gradients with correlated noise; one epoch, about √n rounds or fewer",
    origin=repaired(CHOQUETTE_CHOO_2025.at("Algorithm 1"), note=HALVED),
    printed=choquette_choo.SRGD,
)
ACCELERATED_SGD = _info(
    "accelerated-sgd",
    "independent",
    "accelerated",
    maker=AcceleratedSGD,
    factor=Factor(known=7.0, unknown=11.0),
    summary="Accelerated SGD on fresh gradients, independent noise; one epoch, very few rounds",
    origin=repaired(CHOQUETTE_CHOO_2025.at("section 5.5"), note=HALVED),
)
SRGD = _info(
    "srgd",
    "recursive",
    "plain",
    maker=PlainSRGD,
    factor=Factor(known=6.0, unknown=4.0),
    summary="The same without acceleration",
    origin=repaired(CHOQUETTE_CHOO_2025.at("section 4.3"), note="a sketch there; every answer is clipped"),
)
ONLINE_TO_BATCH = _info(
    "online-to-batch",
    "recursive",
    "anytime",
    maker=OnlineToBatch,
    factor=Factor(known=8.0, unknown=2.0),
    summary="Online descent on recursive gradients at averaged points; one epoch, many rounds",
    origin=ours(ZHANG_ONLINE_2022.at(), note="the model is one point later; their text was not at hand"),
)
DP_FTRL = _info(
    "dp-ftrl",
    "ftrl",
    "ftrl",
    maker=DPFTRL,
    factor=Factor(known=3.0, unknown=7.0),
    summary="Follow the regularised leader on noised prefix sums; one epoch, or several in the same order",
    origin=theirs(
        KAIROUZ_2021.at("Algorithm 1"),
        CHOQUETTE_CHOO_2023.at(),
        note="noise of any factorisation, of which the tree is theirs; several epochs after Choquette-Choo et al.",
    ),
)

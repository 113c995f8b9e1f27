"""`tracking-srgd` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, NoBlackBoxes, Promises
from quoron_server.algorithms.references import BASSILY_SUN_2023, CHOQUETTE_CHOO_2025, ours
from quoron_server.algorithms.tracking import plan as planning
from quoron_server.algorithms.tracking.method import TrackingParameters, TrackingSRGD

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="One pass, private broadcasts: private metric, warm-up, recursive gradients, private radius (recommended)",
    origin=ours(BASSILY_SUN_2023.at("Algorithm 1"), CHOQUETTE_CHOO_2025.at("Algorithm 1")),
    promises=Promises(
        ("central-broadcast",),
        ("replace-one", "zero-out"),
        planning.THEOREM,
        planning.pairs,
        moves=planning.moves,
        one_server=None,
    ),
    options=planning.TrackingOptions,
    parameters=TrackingParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=TrackingSRGD,
    factor=Factor(known=2.0, unknown=8.0),
    noise_ignores_domain=True,
    no_black_boxes=NoBlackBoxes("it asks for the second moment of a user's features, which no gradient tells"),
)

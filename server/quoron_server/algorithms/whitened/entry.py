"""`whitened-tracking` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, NoBlackBoxes, Promises
from quoron_server.algorithms.references import BASSILY_SUN_2023, DWORK_2014, ours
from quoron_server.algorithms.whitened import plan as planning
from quoron_server.algorithms.whitened.parameters import WhitenedParameters
from quoron_server.algorithms.whitened.parts import made

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="For tables and few users: whiten by a private metric, then everybody answers every round (private radius)",
    origin=ours(DWORK_2014.at(), BASSILY_SUN_2023.at("Algorithm 1")),
    promises=Promises(
        ("central-broadcast",),
        ("replace-one", "zero-out"),
        planning.THEOREM,
        planning.pairs,
        moves=planning.moves,
        one_server=None,
    ),
    options=planning.WhitenedOptions,
    parameters=WhitenedParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=made,
    factor=Factor(known=1.0, unknown=1.0),  # it predicts a bound
    noise_ignores_domain=True,
    no_black_boxes=NoBlackBoxes(
        "it asks for the second moment of a user's features and for losses, which no gradient tells"
    ),
    choosing=Choosing(
        many_passes=True,
        rule=planning.taken,
        too_few=planning.too_few,
        fewer_rounds=planning.FEWER_ROUNDS,
        remarks=planning.remarks,
    ),
)

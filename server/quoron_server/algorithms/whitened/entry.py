"""`whitened-tracking` in the registry."""

from quoron_privacy.moment import packed
from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo
from quoron_server.algorithms.whitened import plan as planning
from quoron_server.algorithms.whitened.method import WhitenedTracking

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="For tables and few users: whiten by a private metric, then everybody answers every round (private radius)",
    paper="ours",
    algorithm_numbers="-",
    exposure="broadcast",
    adjacency=("replace-one", "zero-out"),
    theorem=planning.THEOREM,
    options=planning.WhitenedOptions,
    planner=planning.plan,
    verifier=planning.verify,
    maker=WhitenedTracking,
    factor=Factor(known=1.0, unknown=1.0),  # it predicts a bound
    wide=True,
    passes="many",
    gaussian_promise=planning.gaussian,
    takes=planning.taken,
    declines=planning.too_few,
    answer=lambda plan: packed(plan.problem.features) + plan.problem.dimension,
    black_box="it asks for the second moment of a user's features and for losses, which no gradient tells",
)

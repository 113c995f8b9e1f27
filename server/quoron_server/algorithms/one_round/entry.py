"""`one-round-least-squares` in the registry."""

from quoron_privacy.moment import packed
from quoron_server.algorithms.defaults import Verdict
from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo
from quoron_server.algorithms.one_round import plan as planning
from quoron_server.algorithms.one_round.method import OneRoundLeastSquares

ONE = "one round is allowed, and it needs no more"
INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="One round: a private second moment of features and label, and the ridge that its noise asks for",
    paper="Wang (2018), at the level of users",
    algorithm_numbers="AdaSSP",
    exposure="broadcast",
    adjacency=("replace-one", "zero-out"),
    theorem=planning.THEOREM,
    options=planning.OneRoundOptions,
    planner=planning.plan,
    verifier=planning.verify,
    maker=OneRoundLeastSquares,
    factor=Factor(known=1.0, unknown=1.0),  # it predicts a bound
    wide=True,
    gaussian_promise=planning.gaussian,
    takes=lambda _, allowed: Verdict(True, ONE) if allowed.budget.rounds == 1 else Verdict(False),
    answer=lambda plan: packed(plan.problem.features + 1),
    black_box="it asks for the second moment of a user's features and labels, which no gradient tells",
)

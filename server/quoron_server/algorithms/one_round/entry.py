"""`one-round-least-squares` in the registry."""

import math

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, NoBlackBoxes, Promises
from quoron_server.algorithms.one_round import plan as planning
from quoron_server.algorithms.one_round.method import OneRoundLeastSquares, OneRoundParameters
from quoron_server.algorithms.references import WANG_2018, ours
from quoron_server.budget import Allowance, Verdict
from quoron_server.plan import RunPlan

MOST_ROUNDS = 3  # that a budget allows for it to be taken: whitened tracking needs four, and fewer are worth no more
ONE = "three rounds or fewer are allowed, and it needs one"


def _rule(_plan: RunPlan, allowed: Allowance) -> Verdict:
    if allowed.budget.max_rounds is not None:
        return Verdict(True, "no more of the rounds that are allowed would leave less, and it needs one")
    taken = (allowed.budget.rounds or math.inf) <= MOST_ROUNDS
    return Verdict(taken, ONE if taken else "")


INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="One round: a private second moment of features and label, and the ridge that its noise asks for",
    origin=ours(WANG_2018.at(), note="AdaSSP for users, with one release and a ridge by public numbers"),
    promises=Promises(
        ("central-broadcast",), ("replace-one", "zero-out"), planning.THEOREM, planning.pairs, one_server=None
    ),
    options=planning.OneRoundOptions,
    parameters=OneRoundParameters,
    planner=planning.plan,
    verifier=planning.verify,
    maker=OneRoundLeastSquares,
    factor=Factor(known=1.0, unknown=2.0),  # it predicts a bound
    noise_ignores_domain=True,
    no_black_boxes=NoBlackBoxes(
        "it asks for the second moment of a user's features and labels, which no gradient tells"
    ),
    choosing=Choosing(rule=_rule, fewer_rounds=(1,)),
)

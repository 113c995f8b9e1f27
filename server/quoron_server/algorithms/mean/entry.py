"""`mean-sgd` in the registry."""

from quoron_server.algorithms.forecast import Factor
from quoron_server.algorithms.info import AlgorithmInfo
from quoron_server.algorithms.mean import plan as planning
from quoron_server.algorithms.mean.method import MeanSGD
from quoron_server.algorithms.noisy import plan as noisy

INFO = AlgorithmInfo(
    name=planning.NAME,
    summary="Several passes, secret uniform cohorts, a private mean around an earlier release or a private range",
    paper="Bassily & Sun (2023)",
    algorithm_numbers="4 (with 1 and 6)",
    exposure="broadcast",
    adjacency=("replace-one",),
    theorem=planning.THEOREM,
    options=planning.MeanSGDOptions,
    planner=planning.plan,
    verifier=planning.verify,
    maker=MeanSGD,
    factor=Factor(known=8.0, unknown=2.0),
    wide=True,
    passes="many",
    stride=4,
    smooths=lambda plan: bool(plan.parameters.smoothing),
    gaussian_promise=noisy.everybody_every_round,
    event=noisy.fixed_size_event,
    needs=noisy.secret_cohorts,
)

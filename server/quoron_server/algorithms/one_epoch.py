"""The registry entries of the one-epoch family: four ways to spend one answer a user in few rounds."""

from functools import partial
from typing import Any

from quoron_protos.errors import ConfigError
from quoron_server.algorithms import _one_epoch_plans as planning
from quoron_server.algorithms._info import AlgorithmInfo
from quoron_server.algorithms.srgd import Gradients, Method, OneEpoch
from quoron_server.plan import Constants, Plan, Privacy
from quoron_server.problem import Problem

PAPER = "Choquette-Choo, Ganesh & Thakurta, Near-Optimal Rates for O(1)-Smooth DP-SCO with a Single Epoch"


def _plan(
    name: str,
    gradients: Gradients,
    method: Method,
    problem: Problem,
    privacy: Privacy,
    options: planning.OneEpochOptions,
    constants: Constants,
    seed: int,
) -> Plan:
    if constants == "paper" and name != "accelerated-srgd":
        raise ConfigError(f"Expected constants='calibrated' for {name}, got 'paper': nothing is printed for it.")
    if constants == "paper":
        return planning.paper(name, problem, privacy, options, seed)
    return planning.plan(name, gradients, method, problem, privacy, options, seed)


def _make(plan: Plan) -> OneEpoch:
    planning.verify(plan)
    return OneEpoch(plan)


def _info(name: str, gradients: Gradients, method: Method, **told: Any) -> AlgorithmInfo:
    return AlgorithmInfo(
        name=name,
        exposure="broadcast",
        adjacency=("replace-one",),
        theorem=planning.THEOREM,
        options=planning.OneEpochOptions,
        plan=partial(_plan, name, gradients, method),
        verify=planning.verify,
        make=_make,
        **told,
    )


ACCELERATED_SRGD = _info(
    "accelerated-srgd",
    "recursive",
    "accelerated",
    summary="Accelerated SGD on recursive gradients with correlated noise; one epoch, about √n rounds or fewer",
    paper=PAPER,
    algorithm_numbers="1",
    constants=("calibrated", "paper"),
)
SRGD = _info(
    "srgd",
    "recursive",
    "plain",
    summary="The same without acceleration",
    paper=PAPER,
    algorithm_numbers="section 4.3",
    constants=("calibrated",),
)
ACCELERATED_SGD = _info(
    "accelerated-sgd",
    "independent",
    "accelerated",
    summary="Accelerated SGD on fresh gradients, independent noise; one epoch, very few rounds",
    paper=PAPER,
    algorithm_numbers="section 5.5",
    constants=("calibrated",),
)
DP_FTRL = _info(
    "dp-ftrl",
    "ftrl",
    "ftrl",
    summary="Follow the regularised leader on noised prefix sums; one epoch, single participation",
    paper="baseline; Kairouz et al. (2021), with single participation",
    algorithm_numbers="1",
    constants=("calibrated",),
)

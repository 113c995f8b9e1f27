"""Non-private one-pass SGD with suffix averaging: the reference that the price of privacy is measured against."""

import math
from dataclasses import dataclass

from quoron_server.algorithms.info import UNMEASURED, AlgorithmInfo, Chosen, NoBlackBoxes, Promises
from quoron_server.algorithms.noisy import plan as noisy
from quoron_server.algorithms.noisy.method import NoisySGD, NoisySGDParameters
from quoron_server.algorithms.references import POLYAK_1992, theirs
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

NAME = "sgd"


@dataclass(frozen=True, slots=True)
class SGDOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    step_size: float | None = None


def plan(problem: Problem, privacy: Privacy, options: SGDOptions) -> Chosen:
    """The plan with the smallest predicted excess risk; `privacy` plays no part."""
    del privacy
    found = noisy.disjoint(NAME, problem, options.rounds, options.step_size)
    nothing = noisy.Clipped(math.inf, 0.0, 0.0, math.inf, None)
    return noisy.chosen("disjoint", problem.users // found.of.rounds, found.of, found.risk, nothing)


INFO = AlgorithmInfo(
    name=NAME,
    summary="No privacy; the reference",
    origin=theirs(POLYAK_1992.at(), note="no privacy"),
    promises=Promises(
        ("none",),
        ("none",),
        "docs/privacy/gaussian.md",
        one_server="it adds no noise and guarantees nothing: take tracking-srgd",
    ),
    options=SGDOptions,
    parameters=NoisySGDParameters,
    planner=plan,
    verifier=lambda plan: None,
    maker=NoisySGD,
    factor=UNMEASURED,
    no_black_boxes=NoBlackBoxes("it has no privacy"),
)

"""Non-private one-pass SGD with suffix averaging: the reference that the price of privacy is measured against."""

import math
from dataclasses import dataclass

from quoron_server.algorithms.forecast import UNMEASURED
from quoron_server.algorithms.info import AlgorithmInfo, NoBlackBoxes
from quoron_server.algorithms.noisy import plan as noisy
from quoron_server.algorithms.noisy.method import NoisySGD, NoisySGDParameters
from quoron_server.plan import Cost, Guarantee, Plan, Privacy
from quoron_server.problem import Problem

NAME = "sgd"
THEOREM = "docs/privacy/gaussian.md"


@dataclass(frozen=True, slots=True)
class SGDOptions:
    """Planning options; None lets the plan choose by predicted excess risk."""

    rounds: int | None = None
    step_size: float | None = None


def plan(problem: Problem, privacy: Privacy, options: SGDOptions, seed: int) -> Plan:
    """The plan with the smallest predicted excess risk; `privacy` plays no part."""
    del privacy
    chosen = noisy.disjoint(NAME, problem, options.rounds, options.step_size)
    phase = chosen.of
    cohort = problem.users // phase.rounds
    return Plan(
        algorithm=NAME,
        problem=problem,
        guarantee=Guarantee(math.inf, 1.0, "none", "none", (), THEOREM),
        cost=Cost.of(problem, rounds=phase.rounds, messages=phase.rounds * cohort),
        parameters=NoisySGDParameters(
            sampling="disjoint",
            cohort_size=cohort,
            rounds=phase.rounds,
            step_size=phase.step_size,
            suffix=phase.suffix,
            clip_norm=math.inf,
            sensitivity=0.0,
            noise_scale=0.0,
            round_mu=math.inf,
        ),
        predicted_excess_risk=chosen.risk,
        seed=seed,
    )


INFO = AlgorithmInfo(
    name=NAME,
    summary="No privacy; the reference",
    paper="baseline; Polyak & Juditsky (1992) averaging",
    exposures=("none",),
    adjacency=("none",),
    theorem=THEOREM,
    options=SGDOptions,
    parameters=NoisySGDParameters,
    planner=plan,
    verifier=lambda plan: None,
    maker=NoisySGD,
    factor=UNMEASURED,
    no_black_boxes=NoBlackBoxes("it has no privacy"),
)

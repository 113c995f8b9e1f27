"""Plans for black boxes: functions of users' items of which nothing is known, not their size, smoothness or honesty.

    plan = plan_for(problem, Privacy(2.0, 1e-6), algorithm="dp-ftrl", clip_norm=1.0, options={"rounds": 50})

Only algorithms take part whose promise rests on what the server does to answers: a clip, a fixed divisor, noise. Their
proofs take a user's answer as any function of that user's items and of what was released before (docs/flower.md, "Why
so few algorithms").
"""

from collections.abc import Mapping
from typing import Any

from quoron_privacy.errors import ConfigError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Plan, Privacy
from quoron_server.problem import Problem
from quoron_server.specification import options_of


def plan_for(
    problem: Problem,
    privacy: Privacy,
    *,
    algorithm: str,
    clip_norm: float,
    options: Mapping[str, Any],
    seed: int = 0,
) -> Plan:
    """The plan of `algorithm` where users' answers come out of a black box and are clipped at `clip_norm`.

    `seed` is public, and draws slots alone. Raises ConfigError, with the reason, for what a black box cannot carry out;
    Infeasible. Call `AlgorithmInfo.verify` on what is made of it.
    """
    reason = ALGORITHMS[algorithm].black_box if algorithm in ALGORITHMS else "there is none of that name"
    if reason is not None:
        fit = ", ".join(name for name, each in ALGORITHMS.items() if each.black_box is None)
        raise ConfigError(
            f"Expected an algorithm whose promise rests on the server alone ({fit}), got algorithm={algorithm!r}: "
            f"{reason}."
        )
    if "clip_norm" in options:
        raise ConfigError("Expected clip_norm beside the options, got it among them.")
    info = ALGORITHMS[algorithm]
    plan = info.plan(problem, privacy, options_of(info, {**options, "clip_norm": clip_norm}), "calibrated", seed)
    if info.smooths(plan):
        raise ConfigError(
            f"Expected smoothness for {algorithm}, got smoothness=None, so that clients would have to smooth their "
            'loss. Give it, or options={"estimator": "clip"}.'
        )
    return plan

"""What every planner leaves to its samplers, and what every `verify` asks of a plan, each said once."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quoron_client.protocol.domains import Box
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.noise.streams import total_variation
from quoron_server.plan import Cost, Privacy, RunPlan
from quoron_server.problem import Problem

if TYPE_CHECKING:
    from quoron_privacy.accounts.pair import Pair


def slack(epsilon: float, *, gaussians: int, laplaces: int = 0) -> float:
    """What the total variation of so many samples adds to δ (docs/privacy/noise.md)."""
    return (1 + math.exp(epsilon)) * total_variation(gaussians=gaussians, laplaces=laplaces)


def left_of_delta(name: str, privacy: Privacy, *, gaussians: int) -> float:
    """δ less what the samplers lack; Infeasible where that is nothing."""
    lacking = slack(privacy.epsilon, gaussians=gaussians)
    if lacking >= privacy.delta:
        condition = f"delta={privacy.delta:g} is below the samplers' error {lacking:.2g}"
        raise Infeasible(name, condition, "a larger delta")
    return privacy.delta - lacking


def lacks(*, gaussians: int = 0, laplaces: int = 0) -> float:
    """The total variation of so many samples, counted again: 2⁻¹⁶⁰ for each."""
    return math.ldexp(gaussians + laplaces, -160)


def left(plan: RunPlan, *, gaussians: int, laplaces: int = 0) -> float:
    """δ of a plan's promise less what so many samples lack, for those who verify: one number below it."""
    taken = lacks(gaussians=gaussians, laplaces=laplaces) * (1 + math.exp(plan.guarantee.epsilon))
    return math.nextafter(plan.guarantee.delta - taken, -1.0)


def require_options(options: object, *names: str, least: float = 0.0, most: float = 1e100, above: bool = True) -> None:
    """ConfigError for an option out of (least, most), or that may be `least` without `above`; None stands for any."""
    for name in names:
        value = getattr(options, name)
        if isinstance(value, float | int) and not (least < value < most or (value == least and not above)):
            allowed = f"{'>' if above else '>='} {least:g}" + (f" and < {most:g}" if value >= most else "")
            raise ConfigError(f"Expected algorithm.options.{name} {allowed}, got {name}={value}.")


def require_choice(options: object, **allowed: tuple[str, ...]) -> None:
    """ConfigError for an option that is none of those allowed."""
    for name, choices in allowed.items():
        if (value := getattr(options, name)) not in choices:
            raise ConfigError(f"Expected algorithm.options.{name} in {', '.join(choices)}, got {name}={value!r}.")


def require_rough(problem: Problem, smoothing: float | None) -> None:
    """ConfigError where a smooth loss is to be smoothed."""
    if smoothing and problem.smoothness is not None:
        raise ConfigError(
            f"Expected no algorithm.options.smoothing for a loss that is smooth, got smoothing={smoothing}."
        )


def require_smooth(name: str, problem: Problem) -> None:
    """Infeasible unless the loss is convex and smooth, which contraction rests on."""
    if not problem.convex or problem.beta is None:
        raise Infeasible(name, "the loss is not convex and smooth", "a convex smooth loss, such as logistic or huber")


def require_box(name: str, problem: Problem) -> None:
    """Infeasible unless the domain is a box and every conceivable user's Hessian is diagonally dominant."""
    if not isinstance(problem.domain, Box):
        raise Infeasible(
            name, "projection onto a ball may bring points farther apart in ℓ∞", "a box, domain.kind='box'"
        )
    if problem.coordinate_beta is not None:
        return
    if problem.beta is None or problem.outputs > 1:
        raise Infeasible(
            name,
            "the Hessian of the loss is not certainly diagonally dominant, whatever its features",
            "a smooth loss of one output, such as linear, logistic or huber",
        )
    curvature, norm = problem.link_curvature or 1.0, problem.feature_norm or 1.0
    ridge = curvature * norm**2 * (math.sqrt(problem.features) - 1) / 2
    raise Infeasible(
        name,
        "the Hessian of the loss is not certainly diagonally dominant",
        f"loss.active_features=1, or loss.ridge >= {ridge * 1.01:.3g}, less with loss.feature_bound",
    )


def require(name: str, *conditions: tuple[str, bool, object]) -> None:
    """VerificationError, in a plan of `name`, for the first (what is expected, whether it holds, what there is)."""
    for what, holds, got in conditions:
        if not holds:
            raise VerificationError(f"Expected {what} in a plan of {name}, got {got}.")


def require_of(name: str, got: object, *conditions: tuple[str, bool]) -> None:
    """`require` of several things about one part of a plan."""
    require(name, *((what, holds, got) for what, holds in conditions))


def require_usual_cost(plan: RunPlan) -> None:
    """VerificationError unless the plan costs one average gradient of everybody whom its parameters ask."""
    expected = Cost.of(plan.problem, plan.parameters)
    require(plan.algorithm, (f"the cost of its rounds, {expected}", plan.cost == expected, plan.cost))


def require_gaussian(plan: RunPlan, pairs: "Sequence[Pair]", mu: float) -> None:
    """VerificationError unless the μ that a plan names is that of its scales, counted again, and within its promise."""
    truth = max(pair.mu for pair in pairs)
    if not mu >= truth * (1 - 1e-12):
        raise VerificationError(f"Expected mu >= {truth} of the run, got {mu}: too little noise for the claim.")
    require_spent(plan, [replace(pair, mu=mu) for pair in pairs])


def require_spent(plan: RunPlan, pairs: "Sequence[Pair]") -> None:
    """VerificationError unless each of these pairs, samplers included, keeps the plan's promise by the second account.

    δ is read at ε (1 + 10⁻¹²): where both accounts are exact they round.
    """
    epsilon, delta = plan.guarantee.epsilon, plan.guarantee.delta
    for pair in pairs:
        if not (spent := pair.delta(epsilon * (1 + 1e-12), delta)) <= delta:
            raise VerificationError(f"Expected delta <= {delta} at epsilon={epsilon}, the plan spends {spent}.")

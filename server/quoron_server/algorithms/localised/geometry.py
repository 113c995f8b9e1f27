"""The two norms that localised SGD may measure users' answers in, and what a theorem needs of a problem in each.

ℓ2: any closed convex domain, convex β-smooth losses. ℓ∞: a box, and losses whose Hessians are diagonally dominant, with
row sums of at most β∞. Every step of the theorems uses the triangle inequality, a bound on how far users' gradients
move, and steps and projections that bring no two points farther apart; all hold in both (docs/privacy/linf-filter.md).
"""

import math
from dataclasses import dataclass

from quoron_client.protocol.domains import Box
from quoron_privacy.accounts import gdp
from quoron_privacy.errors import Infeasible
from quoron_privacy.robust.filter.concentration import Norm
from quoron_server.algorithms.localised.method import in_phases
from quoron_server.plan import Plan
from quoron_server.problem import Problem

FAILURE = 1e-2  # probability that a proved distance leaves out some ordinary user


@dataclass(frozen=True, slots=True)
class Geometry:
    """A norm, and a problem's public numbers in it."""

    norm: Norm
    beta: float  # of every user's average gradient, as a map of this norm into itself
    distance: float  # d: ordinary users' average gradients lie so far apart, in this norm; utility only
    stretch: float  # the largest ℓ2 length of a vector of length 1

    @property
    def length(self) -> float:
        """The ℓ2 length that noise is scaled to."""
        return self.distance * self.stretch


def coordinatewise(name: str, problem: Problem, distance: float | None = None) -> Geometry:
    """ℓ∞, with the distance that is given or proved. Raises Infeasible where its conditions are not certain."""
    require_box(name, problem)
    beta = problem.coordinate_beta
    assert beta is not None
    return Geometry("linf", beta, distance or coordinate_distance(problem), math.sqrt(problem.dimension))


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


def coordinate_distance(problem: Problem) -> float:
    """d∞ such that all ordinary users lie within it of one another, but for a chance of FAILURE: utility only.

    Hoeffding's inequality for every coordinate of every user: |q_j - E q_j| <= G∞ √(2 ln(2dn/FAILURE)/m).
    """
    likely = math.log(2 * problem.dimension * problem.users / FAILURE)
    items = problem.coordinate_bound * math.sqrt(2 * likely / problem.items_per_user)
    return 2 * (items + problem.beliefs.heterogeneity)


def against_mean(plan: Plan) -> str:
    """The first release's noise beside that of a plain mean of the same cohorts and steps, and where they would meet.

    The plain mean's shift is 2Gη/B (phased-sgd); the other's is in proportion to 1/√m while users are alike.
    """
    p, promise, items = in_phases(plan), plan.guarantee, plan.problem.items_per_user
    mean = 2 * plan.problem.lipschitz / p.cohort_size / gdp.mu_for(promise.epsilon, promise.delta)
    times = p.phases[0].release_scale / (p.phases[0].step_size * mean)
    said = f"The release has {times:.3g} times the noise of a plain mean of as large cohorts (phased-sgd)"
    return f"{said}; the two meet at about m = {max(1.0, items * times**2):.2g} items a user, and m = {items:,} here."

"""Plans of `one-round-least-squares`: one Gaussian release, so all of μ goes into it.

`one-round-least-squares` in the registry.
"""

import math
from dataclasses import dataclass

from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.errors import Infeasible
from quoron_privacy.means.moment import SecondMomentNoise
from quoron_privacy.noise.streams import total_variation
from quoron_privacy.release import Adjacency, packed
from quoron_server.algorithms import search
from quoron_server.algorithms.info import AlgorithmInfo, Choosing, Chosen, Factor, NoBlackBoxes, Promises, loss_scale
from quoron_server.algorithms.one_round.method import LABEL_WEIGHT, OneRoundLeastSquares, OneRoundParameters
from quoron_server.algorithms.references import WANG_2018, ours
from quoron_server.plan import Allowance, Privacy, RunPlan, Verdict
from quoron_server.problem import Problem

NAME = "one-round-least-squares"
THEOREM = "docs/privacy/one-round-least-squares.md#ls1"
LARGEST_DIMENSION = 300
LEAST_RESOLUTION = 20.0  # ν = nμ / √d
HALF, POWER = 60.0, 0.5  # at most (HALF / ν)^POWER of the start's excess risk is left in nine of ten problems

MOST_ROUNDS = 3  # that a budget allows for it to be taken: whitened tracking needs four, and fewer are worth no more
ONE = "three rounds or fewer are allowed, and it needs one"


@dataclass(frozen=True, slots=True)
class OneRoundOptions:
    """Planning options."""

    rounds: int | None = None  # 1, or left out


def plan(problem: Problem, privacy: Privacy, options: OneRoundOptions) -> Chosen:
    """Return the one plan for these numbers; Infeasible where noise would leave nothing of the signal."""
    _require(problem, options)
    users, d = problem.users, problem.dimension
    mu = gdp.mu_for(privacy.epsilon, search.left_of_delta(NAME, privacy, gaussians=packed(d + 1)) * (1 - 1e-9))
    resolution = users * mu / math.sqrt(d)
    if resolution < LEAST_RESOLUTION:
        condition = f"n={users:,} users give one moment a resolution of nμ/√d = {resolution:.3g} < {LEAST_RESOLUTION:g}"
        raise Infeasible.too_few(NAME, condition, math.ceil(users * LEAST_RESOLUTION / resolution))
    adjacency: Adjacency = privacy.adjacency or "replace-one"
    norm, label = problem.feature_norm or 1.0, problem.beliefs.label_bound or 1.0
    longest = norm * math.hypot(1.0, LABEL_WEIGHT)
    noise = SecondMomentNoise.for_mu(
        dimension=d + 1, feature_norm=longest, divisor=users, mu=mu * (1 - 1e-8), adjacency=adjacency
    )
    curvature = problem.link_curvature or 1.0
    numbers = OneRoundParameters(
        cohort_size=users,
        rounds=1,
        adjacency=adjacency,
        moment_scale=noise.scale,
        moment_norm=longest,
        label_scale=LABEL_WEIGHT * norm / label,
        feature_norm=norm,
        label_bound=label,
        target=problem.start / norm / curvature,
        ridge=problem.ridge / curvature,
        mu=mu,
    )
    risk = min(1.0, (HALF / resolution) ** POWER) * 0.5 * loss_scale(problem)
    return Chosen(numbers, risk, adjacency=adjacency)


def verify(plan: RunPlan) -> None:
    """Everybody once with divisor n, and docs/privacy/second-moment.md#sm2 for features and label."""
    p = plan.parameters_of(OneRoundParameters)
    promise = plan.guarantee
    search.require(
        NAME,
        (f"a cohort of all {plan.problem.users} users", p.cohort_size == plan.problem.users, p.cohort_size),
        ("one round", p.rounds == 1, p.rounds),
        ("one prediction an item", plan.problem.outputs == 1, plan.problem.outputs),
        ("the guaranteed adjacency", p.adjacency == promise.adjacency, p.adjacency),
        ("positive scales", min(p.label_scale, p.label_bound, p.moment_norm, p.target) > 0, p.label_scale),
    )


def pairs(p: OneRoundParameters, problem: Problem, adjacency: Adjacency) -> tuple[Pair, ...]:
    """Of the one release, by its scale."""
    d = problem.dimension + 1
    far = sensitivity_recount.moment(d, p.moment_norm, p.cohort_size, adjacency)
    return (
        Pair.gaussian(sensitivity_recount.mu(far, p.moment_scale, packed(d)), total_variation(gaussians=packed(d))),
    )


def _require(problem: Problem, options: OneRoundOptions) -> None:
    """Infeasible for more than one round, and for losses whose slope at zero is not in proportion to the label."""
    if options.rounds not in (None, 1):
        raise Infeasible(NAME, f"rounds={options.rounds} is not one", "one round")
    if problem.outputs != 1:
        raise Infeasible(NAME, f"an item has {problem.outputs} predictions, not one", "a label of two classes")
    known, norm = problem.beliefs, problem.feature_norm
    squares = known.label_bound is not None and norm is not None and problem.link_curvature is not None
    # A Huber loss is one of squares up to its threshold: at zero, where that is no smaller than any label.
    squares = squares and problem.start >= 0.999 * (norm or 0) * (problem.link_curvature or 0) * (
        known.label_bound or 0
    )
    if norm is None or not problem.link_curvature or not (known.sigmoid or squares):
        raise Infeasible(NAME, "the loss is neither of squares nor logistic", "loss least_squares or logistic")
    if problem.dimension > LARGEST_DIMENSION:
        condition = f"d={problem.dimension} features make {packed(problem.dimension):,} numbers of a second moment"
        raise Infeasible(NAME, condition, f"d <= {LARGEST_DIMENSION}")


def _rule(_plan: RunPlan, allowed: Allowance) -> Verdict:
    if allowed.budget.max_rounds is not None:
        return Verdict(True, "no more of the rounds that are allowed would leave less, and it needs one")
    taken = (allowed.budget.rounds or math.inf) <= MOST_ROUNDS
    return Verdict(taken, ONE if taken else "")


INFO = AlgorithmInfo(
    name=NAME,
    summary="One round: a private second moment of features and label, and the ridge that its noise asks for",
    origin=ours(WANG_2018.at(), note="AdaSSP for users, with one release and a ridge by public numbers"),
    promises=Promises(("central-broadcast",), ("replace-one", "zero-out"), THEOREM, pairs, one_server=None),
    options=OneRoundOptions,
    parameters=OneRoundParameters,
    planner=plan,
    verifier=verify,
    maker=OneRoundLeastSquares,
    factor=Factor(known=1.0, unknown=2.0),  # it predicts a bound
    noise_ignores_domain=True,
    no_black_boxes=NoBlackBoxes(
        "it asks for the second moment of a user's features and labels, which no gradient tells"
    ),
    choosing=Choosing(rule=_rule, fewer_rounds=(1,)),
)

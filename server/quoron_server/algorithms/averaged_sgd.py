"""What noisy averaged SGD leaves, in phases, from public facts only; and the steps, cohorts and clips that are tried.

There are two models, chosen by what is publicly known of the curvature:

* `isotropic`: near the optimum F is a quadratic with about one curvature h in every direction. Then the error of a
  public combination of the iterates is exact: a bias that decays as (1 - ηh)^t, with the least curvature for h to be
  careful, a variance from each step's noise, and the release noise. A phase starts where the one before it ended.
* `unknown`: the standard bound for convex β-smooth F and the uniform average, ‖x_0 - x*‖²/(2ηT) + ηV/2 a phase
  (Bubeck 2015, Theorem 6.3; Feldman, Koren & Talwar 2020, Lemma 4.3 for the localisation), plus `released_excess` for
  the last release. Of an average of the last w iterates it is the same of w steps from wherever the others end,
  anywhere in the domain. An upper bound, so usually far above what is measured.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import ndtr

from quoron_client.protocol.domains import L2Ball
from quoron_privacy.accounts.roots import root
from quoron_privacy.arrays import Integers, Vector
from quoron_privacy.errors import Infeasible
from quoron_server.problem import Problem

Number = float | Vector  # one, or one for each of many candidates: arrays that broadcast

RATES = (1.0, 0.3, 0.1, 0.03, 0.01)  # cohorts that are tried, as shares of the users
SMOOTHINGS = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # λ L / R that are tried where the loss has none of its own
SUFFIXES = (1.0, 0.5, 0.25)  # fractions of a phase's iterates that are averaged


@dataclass(frozen=True, slots=True)
class PhaseModel:
    """What a phase of SGD does to the error; the same phase of many candidates where fields are arrays."""

    rounds: Any  # T
    step_size: Any  # η
    suffix: Any  # the last `suffix` iterates are averaged uniformly, 1 <= suffix <= T
    step_variance: Any  # total variance of one step's gradient estimate, E‖g - ∇F‖²
    release_scale: Any = 0.0  # σ per coordinate, added to the average at the end
    lasting_variance: float = 0.0  # of an error that all gradients of the phase share; for known curvature alone

    def at(self, place: tuple[Any, ...], shape: tuple[int, ...]) -> "PhaseModel":
        """Return one candidate's numbers, of arrays that broadcast to a shape."""
        own = (self.rounds, self.step_size, self.suffix, self.step_variance, self.release_scale)
        rounds, step_size, suffix, *scales = (float(np.broadcast_to(numbers, shape)[place]) for numbers in own)
        return PhaseModel(int(rounds), step_size, int(suffix), *scales)


def excess_risks(problem: Problem, phases: Sequence[PhaseModel]) -> Number:
    """Predicted E F(x) - F* after `phases`, in the units of the loss; of many candidates with equally many phases too.

    Infinite where steps are so long that floating point cannot follow them: such a candidate loses against any other.
    """
    curvature = problem.beliefs.isotropic
    risks = _worst_case(problem, phases) if curvature is None else _isotropic(problem, curvature, phases)
    return np.where(np.isnan(risks), np.inf, risks)


def _isotropic(problem: Problem, curvature: float, phases: Sequence[PhaseModel]) -> Number:
    slowest = curvature if problem.beliefs.least_curvature is None else problem.beliefs.least_curvature
    remaining: Number = problem.distance  # distance along the slowest direction
    spread: Number = 0.0  # mean square of all noise so far
    for phase in phases:
        bias, variance = averaging(1 - phase.step_size * curvature, phase.rounds, phase.suffix)
        last = bias
        if slowest != curvature:
            last, _ = averaging(1 - phase.step_size * slowest, phase.rounds, phase.suffix)
        remaining = remaining * last
        spread = (
            bias**2 * spread
            + variance * phase.step_size**2 * phase.step_variance
            + problem.dimension * phase.release_scale**2
            + ((1 - bias) / curvature) ** 2 * phase.lasting_variance
        )
    return (slowest * remaining**2 + curvature * spread) / 2


def averaging(factor: Number, steps: Number, suffix: Number) -> tuple[Number, Number]:
    """Bias Σ_t w_t a^t and variance Σ_s (Σ_{t≥s} w_t a^(t-s))² of the mean of the last `suffix` of x_1 .. x_T.

    A step is x ↦ a x + noise of unit variance. Sums in closed form, since T may be millions.

        >>> bias, variance = averaging(1.0, 4, np.array([1, 4]))  # without curvature any average keeps the start
        >>> bias.tolist(), variance.tolist()  # the last iterate has four units of noise, the mean (1 + 4 + 9 + 16) / 16
        ([1.0, 1.0], [4.0, 1.875])
    """
    a, before = np.asarray(factor, np.float64), steps - suffix
    slow = np.abs(1 - a) * steps < 1e-5  # too little contraction for differences of sums, and for anybody to notice
    a = np.where(slow, 0.5, np.where(np.abs(a) < 1e-150, 1e-150, a))
    log, turns = np.log(np.abs(a)), bool(np.any(a < 0))

    def power(terms: Number) -> Number:
        return a**terms if turns else np.exp(log * terms)

    def sums(terms: Number) -> Number:
        """1 + a + … + a^(terms - 1)."""
        found: Number = np.expm1(log * terms) / np.expm1(log)
        return np.where(a < 0, (1 - power(terms)) / (1 - a), found) if turns else found

    def squares(terms: Number) -> Number:
        """1 + a² + … + a^(2 terms - 2)."""
        found: Number = np.expm1(2 * log * terms) / np.expm1(2 * log)
        return np.where(log == 0, terms, found) if turns else found

    with np.errstate(divide="ignore", invalid="ignore"):  # of a = -1, whose powers are 1
        whole = sums(suffix)  # suffix times the weight of a step's noise that reaches the whole suffix
        gap, tail = 1 - a, whole / suffix
        within = (suffix - 2 * a * whole + a**2 * squares(suffix)) / (gap * suffix) ** 2
        # Of a short suffix that is a difference of equal numbers: then to first order in the gap.
        falls = (suffix**2 - 1) * (3 * suffix + 2) / (12 * suffix)
        within = np.where(np.abs(gap) * suffix < 1e-4, still(suffix, suffix) - gap * falls, within)
        variance = within + tail**2 * a**2 * squares(before)
    bias = np.where(slow, 1.0, tail * power(before + 1.0))
    return bias, np.where(slow, still(steps, suffix), variance)


def still(steps: Number, suffix: Number) -> Number:
    """Return the variance of `averaging` without contraction."""
    return steps - suffix + (suffix + 1) * (2 * suffix + 1) / (6 * suffix)


def _worst_case(problem: Problem, phases: Sequence[PhaseModel]) -> Number:
    squared_distance: Number = problem.distance**2
    total: Number = 0.0
    for phase in phases:
        start = np.where(
            np.less(phase.suffix, phase.rounds), (problem.radius + problem.distance) ** 2, squared_distance
        )
        optimisation = start / (2 * phase.step_size * phase.suffix)
        rough_steps = 0.0 if problem.beta is not None else problem.lipschitz**2
        total = total + optimisation + phase.step_size * (phase.step_variance + rough_steps) / 2
        squared_distance = problem.dimension * phase.release_scale**2
    return total + released_excess(problem, phases[-1].release_scale)


def released_excess(problem: Problem, scale: Number) -> Number:
    """Return what noise N(0, scale² I) on a point of the domain, then projected, adds to the excess risk at most.

    min(L √d σ, g E dist + βdσ²/2) by docs/privacy/outlier-filter.md#projected-noise: g is the gradient at
    the point, dist how far the noisy point lies outside. A linear loss is smallest on the boundary, where projected
    noise does not average out; of a loss that a ridge alone bends, g is what the ridge leaves of the start's gradient.
    Where features bend it the optimum is believed to lie inside, with g = 0.
    """
    dimension, radius, beta = problem.dimension, problem.radius, problem.beta
    length: Number = math.sqrt(dimension) * np.asarray(scale, np.float64)
    rough: Number = problem.lipschitz * length
    if beta is None:
        return rough
    across = scale / math.sqrt(2 * math.pi)  # the mean of a coordinate's positive part
    if isinstance(problem.domain, L2Ball):
        square = (dimension - 1) * scale**2
        bent = square / (np.sqrt(radius**2 + square) + radius) + scale**2 / (16 * radius)
        outside: Number = np.minimum(length, across + bent)
    else:
        outside = math.sqrt(dimension) * across
    linear = not beta or problem.link_curvature == 0
    gradient = max(0.0, min(problem.start, problem.lipschitz) - beta * radius) if linear else 0.0
    return np.minimum(rough, gradient * outside + beta * length**2 / 2)


def item_deviation(problem: Problem, squared_distance: Number) -> Number:
    """V at this squared distance from the optimum, with differences between users counted as if between items."""
    variance: Number = problem.deviation**2
    if problem.beliefs.typical_curvature is not None and problem.smoothness is not None:
        # E‖H_i e‖² <= β h ‖e‖²: items differ by their Hessians, too
        start = problem.start
        far = variance + problem.beliefs.typical_curvature * problem.smoothness * squared_distance
        variance = np.minimum(far, np.maximum(variance, start**2))
    deviation: Number = np.sqrt(variance + problem.items_per_user * problem.beliefs.heterogeneity**2)
    return deviation


def step_grid(problem: Problem, rounds: int) -> list[float]:
    """Step sizes η with ηβ up to 2, or 1 where curvature is unknown; of a linear loss from distance / (10 L √T) on.

    There the bound is least where L is the root mean square of a gradient's noise: up to a thousandth of L is tried.
    """
    if not problem.beta:
        centre = problem.distance / (problem.lipschitz * math.sqrt(rounds))
        return [float(centre * factor) for factor in np.geomspace(0.1, 1000, 17)]
    largest = 2.0 if problem.beliefs.curvature == "isotropic" else 1.0
    return [float(product) / problem.beta for product in np.geomspace(largest / 100, largest, 17)]


def suffix_grid(problem: Problem, rounds: int) -> list[int]:
    """Return numbers of iterates to average."""
    return sorted({max(1, round(rounds * share)) for share in suffix_shares(problem)})


def suffix_shares(problem: Problem) -> tuple[float, ...]:
    """Return shares of the iterates to average; the bound for unknown curvature is about the average of all."""
    return SUFFIXES if problem.beliefs.curvature == "isotropic" else (1.0,)


def best_phases(
    problem: Problem,
    rounds: Sequence[int],
    variances: Vector | Callable[[Vector, Integers], Vector],
    *,
    step_size: float | None = None,
    steps: Vector | None = None,
    shares: tuple[float, ...] | None = None,
    lasting_variance: float = 0.0,
) -> list[tuple[float, PhaseModel]]:
    """(predicted excess risk, phase) at the best step and suffix for each of W numbers of rounds.

    `variances` of one step, shape (W,), or made of K step sizes (W, K) and S numbers of averaged iterates (W, S), of a
    shape that broadcasts to (W, K, S). Without `step_size` and `steps` (W, K) these are those of `step_grid`; without
    `shares` of the iterates to average, those of `suffix_shares`.
    """
    if steps is None or step_size:
        steps = np.array([[step_size] if step_size else step_grid(problem, total) for total in rounds])
    shares = suffix_shares(problem) if shares is None else shares
    suffixes = np.maximum(1, np.rint(np.outer(rounds, shares))).astype(np.int64)
    noise = variances(steps, suffixes) if callable(variances) else variances[:, None, None]
    totals, averaged = np.array(rounds, np.float64)[:, None, None], suffixes[:, None, :].astype(np.float64)
    phase = PhaseModel(totals, steps[:, :, None], averaged, noise, 0.0, lasting_variance)
    risks = np.asarray(excess_risks(problem, [phase]))
    best: list[tuple[Any, ...]] = [(row, *np.unravel_index(np.argmin(own), own.shape)) for row, own in enumerate(risks)]
    return [(float(risks[place]), phase.at(place, risks.shape)) for place in best]


def default_clip(problem: Problem) -> float:
    """Return a clip at the scale of user averages, from public facts: the drift ‖∇F‖ and the spread between users.

    With known curvature h the drift is at most about h · distance; otherwise a bound on gradients at the start.
    Users beyond it are shortened, which biases the step and never harms privacy.
    """
    start = problem.start
    if (curvature := problem.beliefs.isotropic) is not None:
        drift = curvature * problem.distance
        return min(problem.lipschitz, 1.3 * math.hypot(drift, problem.user_deviation))
    return min(problem.lipschitz, start)


@lru_cache(maxsize=4096)
def ranking_mu(rate: float, rounds: int, total_mu: float) -> float:
    """Per-round μ by the central limit of subsampled Gaussians (Dong, Roth & Su 2022, Corollary 5.4): ranks only."""
    if rate == 1:
        return total_mu / math.sqrt(rounds)

    def excess(mu: float) -> float:
        growth = max(0.0, math.exp(mu * mu) * float(ndtr(1.5 * mu)) + 3 * float(ndtr(-0.5 * mu)) - 2)
        return float(rate * math.sqrt(2 * rounds * growth) - total_mu)

    return root(excess, 1e-8, 8.0) if excess(8.0) > 0 else 8.0


def replaced_ranking_mu(rate: float, rounds: int, total_mu: float) -> float:
    """The same for cohorts by coins under replace-one, μ there against absent: a round's loss has χ² = 4 q² sinh μ²."""
    return math.sqrt(math.asinh((total_mu / (2 * rate)) ** 2 / rounds))


def require_cohorts(name: str, problem: Problem, rounds: int) -> None:
    """Raise Infeasible unless `rounds` disjoint cohorts of at least two users exist."""
    if problem.users < 2 * rounds:
        raise Infeasible.too_few(name, f"{problem.users} users cannot fill {rounds} cohorts of 2", 2 * rounds)


def smoothings(problem: Problem, given: float | None, distance: float, *, none: bool) -> list[float]:
    """λ of the Moreau envelope to try; 0 is no smoothing, which smooth losses have, and `none` says if others may."""
    if problem.smoothness is not None:
        return [0.0]
    if given is not None:
        return [given]
    tried = [factor * distance / problem.lipschitz for factor in SMOOTHINGS]
    return [0.0, *tried] if none else tried


def smoothed(problem: Problem, parameter: float) -> Problem:
    """Return the problem with the constants of the envelope with λ = `parameter`, for prediction."""
    if not parameter:
        return problem
    return replace(problem, smoothness=1 / parameter + problem.ridge, user_smoothness=None)

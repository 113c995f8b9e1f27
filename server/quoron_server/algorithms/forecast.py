"""Predicted excess risk from public facts only: it ranks plans and never sets noise; and how sure it is.

A `Factor` makes a bound of what a planner predicts. Of noisy averaged SGD there are two models, chosen by what is
publicly known of the curvature:

* `isotropic`: near the optimum F is a quadratic with about one curvature h in every direction. Then the error of a
  public combination of the iterates is exact: a bias that decays as (1 - ηh)^t, with the least curvature for h to be
  careful, a variance from each step's noise, and the release noise. A phase starts where the one before it ended.
* `unknown`: the standard bound for convex β-smooth F and the uniform average, ‖x_0 - x*‖²/(2ηT) + ηV/2 a phase
  (Bubeck 2015, Theorem 6.3; Feldman, Koren & Talwar 2020, Lemma 4.3 for the localisation), plus βdσ²/2 for the last
  release, or G√d σ where the loss is rough or linear. An upper bound, so usually far above what is measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_server.problem import Problem

Vector = NDArray[np.float64]
Whole = NDArray[np.int64]
Number = float | Vector  # one, or one for each of many candidates: arrays that broadcast

_TABLE = 2**18  # numbers in one table of running sums


@dataclass(frozen=True, slots=True)
class PhaseModel:
    """What a phase of SGD does to the error."""

    rounds: int  # T
    step_size: float  # η
    suffix: int  # the last `suffix` iterates are averaged uniformly, 1 <= suffix <= T
    step_variance: float  # total variance of one step's gradient estimate, E‖g - ∇F‖²
    release_scale: float = 0.0  # σ per coordinate, added to the average at the end


@dataclass(frozen=True, slots=True)
class PhaseModels:
    """The same phase of many candidates: a number, or an array with one for each, where PhaseModel has a number."""

    rounds: Number
    step_size: Number
    suffix: Number
    step_variance: Number
    release_scale: Number = 0.0


def excess_risk(problem: Problem, phases: Sequence[PhaseModel]) -> float:
    """Predicted E F(x) - F* after `phases`, in the units of the loss."""
    return float(excess_risks(problem, phases))


def excess_risks(problem: Problem, phases: Sequence[PhaseModels | PhaseModel]) -> Number:
    """`excess_risk` of many candidates with equally many phases: the shape that their arrays broadcast to.

    Infinite where steps are so long that floating point cannot follow them: such a candidate loses against any other.
    """
    curvature = problem.beliefs.isotropic
    risks = _worst_case(problem, phases) if curvature is None else _isotropic(problem, curvature, phases)
    return np.where(np.isnan(risks), np.inf, risks)


@dataclass(frozen=True, slots=True)
class Factor:
    """What makes a bound of an algorithm's guesses: by so much they are multiplied, with known curvature or unknown.

    What planners predict is right for the model that they assume. A plan's predicted excess risk is that guess times a
    factor: a bound that holds in nine of ten problems. Factors were fixed on tables and made problems by
    `python benchmarks/forecasts.py fit`, which prints how often they held on others (docs/comparing.md). No theorem,
    and nothing private depends on them. 1 for planners whose guess was measured to be a bound. None where nothing was
    measured: then a plan has the guess alone, and every door calls it one.
    """

    known: float | None
    unknown: float | None

    def of(self, problem: Problem) -> float | None:
        """The one for what is publicly known of the problem's curvature."""
        return self.unknown if problem.beliefs.isotropic is None else self.known

    def bound(self, guess: float | None, problem: Problem) -> float | None:
        """What a plan tells, of what its planner guesses."""
        times = self.of(problem)
        return None if guess is None or times is None else guess * times


UNMEASURED = Factor(known=None, unknown=None)


def risk_words(bound: float | None, guess: float | None) -> str:
    """A forecast in a table: a bound as a number, a guess by that name where there is no bound, or nothing.

    >>> risk_words(3e-5, 1e-5), risk_words(None, 1e-5), risk_words(None, None)
    ('3e-05', 'guess: 1e-05', '')
    """
    if bound is not None:
        return f"{bound:.2g}"
    return "" if guess is None else f"guess: {guess:.2g}"


def risk_sentence(bound: float | None, guess: float | None) -> str:
    """The same in a sentence.

    >>> risk_sentence(3e-5, 1e-5), risk_sentence(None, 1e-5)
    ('at most 3e-05 in nine of ten problems', '1e-05 by a guess that nobody has measured')
    """
    if bound is not None:
        return f"at most {bound:.2g} in nine of ten problems"
    return "" if guess is None else f"{guess:.2g} by a guess that nobody has measured"


def trivial_risk(problem: Problem) -> float:
    """Bound on the excess risk of the start point: what a plan has to beat to be worth running."""
    start = problem.start
    bound = start * problem.distance  # by convexity
    if (curvature := problem.beliefs.isotropic) is not None:
        return min(bound, curvature * problem.distance**2 / 2)
    return bound


def statistical_floor(problem: Problem) -> float:
    """Excess risk that finitely many users leave to any method, approximately, when curvature is known; else 0."""
    if problem.beliefs.typical_curvature is None:
        return 0.0
    return problem.user_deviation**2 / (2 * problem.users * problem.beliefs.typical_curvature)


def _isotropic(problem: Problem, curvature: float, phases: Sequence[PhaseModels | PhaseModel]) -> Number:
    slowest = curvature if problem.beliefs.least_curvature is None else problem.beliefs.least_curvature
    remaining: Number = problem.distance  # distance along the slowest direction
    spread: Number = 0.0  # mean square of all noise so far
    for phase in phases:
        bias, variance = averaging(1 - phase.step_size * curvature, phase.rounds, phase.suffix)
        decay = (
            bias if slowest == curvature else averaging(1 - phase.step_size * slowest, phase.rounds, phase.suffix)[0]
        )
        remaining = remaining * decay
        spread = (
            bias**2 * spread
            + variance * phase.step_size**2 * phase.step_variance
            + problem.dimension * phase.release_scale**2
        )
    return (slowest * remaining**2 + curvature * spread) / 2


def averaging(factor: Number, rounds: Number, suffix: Number) -> tuple[Number, Number]:
    """Bias factor Σ_t w_t a^t and variance factor Σ_s (Σ_{t≥s} w_t a^(t-s))² of a suffix average of x_1 .. x_T.

    Running sums serve all T and suffixes with the same a; those of several a are the rows of one table.
    """
    every = np.broadcast_arrays(factor, rounds, suffix)
    last, averaged = every[1].ravel().astype(np.int64), every[2].ravel().astype(np.int64)
    factors, which = np.unique(every[0], return_inverse=True)
    longest = np.zeros(len(factors), np.int64)
    np.maximum.at(longest, which.ravel(), last)
    order = np.argsort(longest, kind="stable")  # rows of about one length stand in one table
    row = np.argsort(order)[which.ravel()]
    bias, variance, end = np.empty(len(row)), np.empty(len(row)), len(order)
    while end > 0:
        start = max(0, end - max(1, _TABLE // int(longest[order[end - 1]] + 1)))
        places = np.flatnonzero((start <= row) & (row < end))
        sums = factors[order[start:end]], row[places] - start, last[places], averaged[places]
        bias[places], variance[places] = _suffix_averages(*sums)
        end = start
    return bias.reshape(every[0].shape), variance.reshape(every[0].shape)


def _suffix_averages(factors: Vector, row: Whole, last: Whole, s: Whole) -> tuple[Vector, Vector]:
    """`averaging` of a = factors[row], T = last and suffix s, arrays of one length."""
    first = last - s + 1  # steps up to here reach the whole suffix, decayed
    powers = np.repeat(factors[:, None], last.max() + 1, axis=1)
    powers[:, 0] = 1.0
    powers = powers.cumprod(axis=1)  # 1, a, a², …
    reach, squares = powers.cumsum(axis=1), (powers * powers).cumsum(axis=1)
    within = (reach * reach).cumsum(axis=1)  # of later steps, 1 .. s - 1 before the end
    whole = reach[row, s - 1]  # s times the weight of a step's noise that reaches the whole suffix
    bias = powers[row, first] * (whole / s)
    variance = (whole / s) ** 2 * squares[row, first - 1] + (within[row, s - 1] - whole**2) / s**2
    return bias, variance


def _worst_case(problem: Problem, phases: Sequence[PhaseModels | PhaseModel]) -> Number:
    squared_distance: Number = problem.distance**2
    total: Number = 0.0
    for phase in phases:
        optimisation = squared_distance / (2 * phase.step_size * phase.rounds)
        rough_steps = 0.0 if problem.beta is not None else problem.lipschitz**2
        total = total + optimisation + phase.step_size * (phase.step_variance + rough_steps) / 2
        squared_distance = problem.dimension * phase.release_scale**2
    rough: Number = problem.lipschitz * np.sqrt(squared_distance)
    if not problem.beta:  # a linear loss is smallest on the boundary, where projected noise does not average out
        return total + rough
    return total + np.minimum(rough, problem.beta * squared_distance / 2)

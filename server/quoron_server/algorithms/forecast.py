"""Predicted excess risk from public facts only: it ranks plans and never sets noise; and how sure it is.

A `Factor` makes a bound of what a planner predicts; `averaged_sgd` is the model that most of them share.
"""

import math
from dataclasses import dataclass

from quoron_server.problem import Problem


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


def start_risk(problem: Problem) -> float:
    """The most that the start's excess risk can be, and so the most that is told of any model: what is there to learn.

    ln K for K classes by a logistic loss, half the squared label bound for squares: by the losses themselves, which
    are never below zero; or by convexity, where that says less.
    """
    known = problem.beliefs.start_loss
    if known is None and problem.beliefs.sigmoid:
        known = math.log(max(2, problem.outputs))
    if known is None or problem.beliefs.isotropic is not None:
        return trivial_risk(problem) if known is None else min(known, trivial_risk(problem))
    return min(known, problem.start * problem.radius)  # by convexity, with nothing believed


def told(risk: float, problem: Problem) -> str:
    """A predicted excess risk as people read it: what is above the start's says that, and by how much nobody knows."""
    most = start_risk(problem)
    return f"{risk:.2g}" if risk <= most else f"more than the start's {most:.2g}"


def no_better(risk: float, start: float, problem: Problem) -> str:
    """Of a predicted excess risk that is above what not training is guessed to leave, `start`."""
    said = f"of {risk:.2g}, " if risk <= start_risk(problem) else ""
    return f"an excess risk {said}no better than the {start:.2g} of not training"


def constant_risk(problem: Problem) -> float | None:
    """The most that there is to learn beside always saying the declared label rate p: H(p), of a logistic loss.

    The best model costs at least 0 and the best constant H(p). None without a rate, or without a constant to say it by.
    """
    known = problem.beliefs
    return entropy(known.label_rate) if known.label_rate is not None and known.sigmoid and known.intercept else None


def entropy(rate: float) -> float:
    """H(p), in nats: what always saying p costs a row where a share p of the labels is positive.

    >>> round(entropy(0.5), 4), round(entropy(0.03), 4)
    (0.6931, 0.1347)
    """
    return -sum(each * math.log(each) for each in (rate, 1 - rate) if each > 0)


def trivial_risk(problem: Problem) -> float:
    """Bound on the excess risk of the start point: what a plan has to beat to be worth running."""
    start = problem.start
    bound = start * problem.distance  # by convexity
    if (curvature := problem.beliefs.isotropic) is not None:
        return min(bound, curvature * problem.distance**2 / 2)
    return bound


def statistical_floor(problem: Problem) -> float:
    """Excess risk that finitely many users leave to any method, approximately, where the loss is known well enough.

    With known curvature the variance over twice the curvature. Of a linear loss the worst case over the length of its
    gradient, .30 R V/√(nm), by rounds on everybody's items that no number of rounds averages out; else 0.
    """
    if problem.beliefs.typical_curvature is not None:
        return problem.user_deviation**2 / (2 * problem.users * problem.beliefs.typical_curvature)
    if problem.beta == 0:
        return 0.3 * problem.distance * problem.user_deviation / math.sqrt(problem.users)
    return 0.0


def loss_scale(problem: Problem) -> float:
    """1 for a logistic loss; of other losses twice what an item's can fall from the start, Y² of squares."""
    known = problem.beliefs
    if known.sigmoid:
        return 1.0
    if known.start_loss is not None:
        return 2 * known.start_loss
    return problem.start / (problem.feature_norm or 1.0) * (known.label_bound or 1.0)

"""Predicted excess risk of `tracking-srgd`, from public facts; it ranks plans and never sets noise.

On a quadratic whose curvature is about h in every direction, and a metric of about `metric` in every direction, each
step multiplies the distance to the optimum by ρ = 1 - (h + λ)/(metric + λ). The error of the model is then a sum of
exact linear responses: to the start point, to each cohort's sampling noise, and to each draw of privacy noise, which
in a main round is scaled by that round's radius. The radius follows the schedule of the run, with the lengths of the
predicted steps in place of the real ones. An isotropic curvature is an assumption; the result is no bound.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_server.algorithms.tracking.schedule import LAG_SHARE, MAIN_FACTOR

Vector = NDArray[np.float64]
Number = float | Vector  # one, or one for each of C candidates
Whole = int | NDArray[np.int64]

loops = OnFirstUse("quoron_server.algorithms.tracking.forecast_loops")


class Assumed(NamedTuple):
    """Public facts and pessimistic guesses."""

    dimension: int  # d
    distance: float  # ‖x_0 - x*‖
    curvature: float  # h: typical eigenvalue of the Hessian without ridge
    least_curvature: float
    ridge: float  # λ
    spread: float  # s: of users' average gradients around their mean
    first_radius: float  # C_0
    margin: float  # κ
    gradient_spread: Number  # spread of the *change* of a user's average gradient, per unit of step


class Prediction(NamedTuple):
    """Parts of the excess risk."""

    optimisation: Number
    sampling: Number
    noise: Number

    @property
    def total(self) -> Number:
        """Their sum."""
        return self.optimisation + self.sampling + self.noise


def predict(
    known: Assumed,
    *,
    metric: Number,
    warmup: tuple[Whole, Whole, Number],
    main: tuple[Whole, Whole, Number],
    inverse: Vector,
) -> Prediction:
    """Predictions for (rounds, divisor, noise per unit of radius and per coordinate) of both phases.

    `inverse` is the first column of C⁻¹ of the prefix factorisation, at least as long as the most main rounds, which
    then have recursive gradients; of shape (0,) they are independent, and their iterates are averaged.
    """
    given = np.broadcast_arrays(metric, known.gradient_spread, *warmup, *main)
    candidates = np.stack([each.ravel() for each in given], axis=1).astype(np.float64)
    parts, scratch = np.empty((3, len(candidates))), np.zeros((2, len(inverse)))
    facts = *known[:-1], LAG_SHARE, MAIN_FACTOR
    loops.risks(facts, candidates, np.ascontiguousarray(inverse[::-1]), scratch[0], scratch[1], parts)
    return Prediction(*parts.reshape(3, *given[0].shape))

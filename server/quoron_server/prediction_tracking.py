"""Predicted excess risk of `tracking-srgd`, from public facts; it ranks plans and never sets noise.

On a quadratic whose curvature is about h in every direction, and a metric of about `metric` in every direction, each
step multiplies the distance to the optimum by ρ = 1 - (h + λ)/(metric + λ). The error of the model is then a sum of
exact linear responses: to the start point, to each cohort's sampling noise, and to each draw of privacy noise, which
in a main round is scaled by that round's radius. The radius follows the schedule of the run, with the lengths of the
predicted steps in place of the real ones. An isotropic curvature is an assumption; the result is no bound.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Assumed:
    """Public facts and pessimistic guesses."""

    dimension: int  # d
    distance: float  # ‖x_0 - x*‖
    curvature: float  # h: typical eigenvalue of the Hessian without ridge
    least_curvature: float
    ridge: float  # λ
    spread: float  # s: of users' average gradients around their mean
    gradient_spread: float  # spread of the *change* of a user's average gradient, per unit of step
    first_radius: float  # C_0
    margin: float  # κ
    centre_share: float  # χ
    lag_share: float  # τ
    largest_factor: float  # cap of main radii over C_0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Parts of the excess risk."""

    optimisation: float
    sampling: float
    noise: float

    @property
    def total(self) -> float:
        """Their sum."""
        return self.optimisation + self.sampling + self.noise


def predict(
    known: Assumed,
    *,
    metric: float,
    warmup: tuple[int, int, float],
    main: tuple[int, int, float],
    inverse: Vector,
) -> Prediction:
    """Prediction for (rounds, divisor, noise per unit of radius and per coordinate) of both phases.

    `inverse` is the first column of C⁻¹ of the prefix factorisation, shape (T_m,), and main rounds then have
    recursive gradients; of shape (0,) they are independent, and their iterates are averaged.
    """
    k = known
    facts = (
        k.dimension,
        k.distance,
        k.curvature,
        k.least_curvature,
        k.ridge,
        k.spread,
        k.gradient_spread,
        k.first_radius,
        k.margin,
        k.lag_share,
        k.largest_factor,
    )
    return Prediction(*_risk(facts, metric, *warmup, *main, np.ascontiguousarray(inverse)))


@njit(cache=True)
def _risk(facts, metric, w, warm_divisor, warm_noise, rounds, divisor, noise, inverse):  # type: ignore[no-untyped-def]
    d, distance, h, slow, ridge, s, gs, first, margin, lag_share, largest = facts
    p = 1.0 / (metric + ridge)
    keep, keep_slow = 1 - p * (h + ridge), 1 - p * (slow + ridge)
    gap, sampled, noised = distance, 0.0, 0.0  # distance by bias; mean squares of both kinds of noise
    moved, known_error = 0.0, 0.0
    for t in range(w):
        reach = first
        if t > 0:
            reach = min(
                first, margin * np.sqrt(s * s * (1 + 1 / warm_divisor) + known_error) + lag_share * metric * moved
            )
        sampling, private = s * s / warm_divisor, d * (reach * warm_noise) ** 2
        known_error = sampling + private
        moved = p * np.sqrt((h + ridge) ** 2 * (gap * gap + sampled + noised) + known_error)
        gap *= keep_slow
        sampled = keep * keep * sampled + p * p * sampling
        noised = keep * keep * noised + p * p * private
    if len(inverse) == 0:
        average, left = 0.0, 0.0
        sampled_now, noised_now = 0.0, 0.0
        for j in range(rounds):
            reach = margin * np.sqrt(s * s * (1 + 1 / divisor) + known_error) + lag_share * metric * moved
            reach = min(reach, first)
            sampling, private = s * s / divisor, d * (reach * noise) ** 2
            known_error = sampling + private
            around = gap * gap + keep ** (2 * j) * (sampled + noised) + (sampling + private) * p / (2 * (h + ridge))
            moved = p * np.sqrt((h + ridge) ** 2 * around + known_error)
            gap *= keep_slow
            left += gap / rounds
            average += keep ** (j + 1) / rounds
            reached = p * (1 - keep ** (rounds - j)) / ((1 - keep) * rounds)  # of this round's error in the average
            sampled_now += reached * reached * sampling
            noised_now += reached * reached * private
        sampled = average * average * sampled + sampled_now
        noised = average * average * noised + noised_now
        return (slow + ridge) * left * left / 2, (h + ridge) * sampled / 2, (h + ridge) * noised / 2
    sums, points = np.zeros(rounds), np.zeros(rounds)  # responses to each round's seed noise
    chance, spreads = np.zeros(rounds), np.zeros(rounds)  # responses to each cohort's sampling
    earlier = 1.0  # of what the warm-up left
    for j in range(1, rounds + 1):
        times = 1 if j == 1 else j
        own = s * s if j == 1 else s * s + (j * gs * moved) ** 2
        reach = margin * np.sqrt(own * (1 + 1 / divisor) + known_error) + lag_share * times * metric * moved
        reach = min(reach, largest * first)
        spreads[j - 1] = own / divisor
        for k in range(j):
            sums[k] += reach * inverse[j - 1 - k]
        error, change = 0.0, 0.0
        for k in range(j):
            in_sum = noise * noise * d * sums[k] ** 2
            error += (in_sum + spreads[k]) / (j * j)
            step = -p * ((h + ridge) * points[k] + sums[k] / j)
            drawn = -p * ((h + ridge) * chance[k] + 1.0 / j)
            change += noise * noise * d * step * step + spreads[k] * drawn * drawn
            points[k] += step
            chance[k] += drawn
        change += (p * (h + ridge) * earlier) ** 2 * (gap * gap + sampled + noised)
        moved, known_error = np.sqrt(change), error
        earlier *= keep
    final = 0.0
    for k in range(rounds):
        final += noise * noise * d * points[k] ** 2
    chances = 0.0
    for k in range(rounds):
        chances += spreads[k] * chance[k] ** 2
    left = abs(keep_slow) ** rounds * gap
    sampled = earlier * earlier * sampled + chances
    noised = earlier * earlier * noised + final
    return (slow + ridge) * left * left / 2, (h + ridge) * sampled / 2, (h + ridge) * noised / 2

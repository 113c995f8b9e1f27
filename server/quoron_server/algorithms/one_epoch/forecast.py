"""Predicted excess risk of the one-epoch family, from public facts; it ranks plans and never sets noise.

On a quadratic with one curvature h all these methods are linear, so the error of the model is a sum of responses: to
the start point, to each cohort's sampling noise, and to each draw of privacy noise. `Response` holds how far the model
moves for a unit added to Ŝ_t in round t alone; a sampling error of round s stays in every later sum, correlated noise
enters by the rows of its factor. Where the curvature is unknown the proved bounds rank plans instead
(docs/privacy/srgd-utility.md): upper bounds, often far above what is measured.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.shipped import njit
from quoron_server.problem import Problem

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]
METHODS = {"accelerated": 0, "plain": 1, "ftrl": 2, "anytime": 3}


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """Linear responses of the final models of C candidates, per unit of start distance and of perturbations of Ŝ_t."""

    bias: Vector  # (model - x*) / (x_0 - x*), shape (C,)
    sums: Vector  # d model / d Ŝ_t, shape (C, T)
    path: Vector  # (x_t - x*) / (x_0 - x*), shape (C, T)


def response(method: str, rounds: int, inverse_steps: Vector, curvature: float, suffixes: Integers) -> Response:
    """Follow the recursion of `srgd` forwards for the bias and backwards for the perturbations.

    `inverse_steps` and `suffixes` are those of the candidates, shape (C,).
    """
    count = len(inverse_steps)
    bias, sums, path = np.empty(count), np.empty((count, rounds)), np.empty((count, rounds))
    _response(METHODS[method], inverse_steps, curvature, suffixes, bias, sums, path)
    return Response(bias, sums, path)


@njit(cache=True)
def _response(method, betas, h, suffixes, bias, sums, path):  # type: ignore[no-untyped-def]
    """Fills `bias` (C,), `sums` and `path` (C, T)."""
    rounds = path.shape[1]
    for c in range(len(betas)):
        beta, suffix = betas[c], suffixes[c]
        x = z = 1.0
        total = 0.0
        # Forwards: where the noiseless path goes from distance 1, which is the bias.
        for t in range(rounds):
            path[c, t] = x
            if method == 0:
                z -= (t + 1) * h * x / (2 * beta)
                total = x - h * x / beta  # y, the model if this is the last round
                x = (1 - 2 / (t + 3)) * total + 2 / (t + 3) * z
            elif method == 3:
                z -= (t + 1) * h * x / (2 * beta)
                total = x = (1 - 2 / (t + 3)) * x + 2 / (t + 3) * z
            else:  # without projections ftrl takes the same steps as plain SGD
                x -= h * x / beta
                total += x / suffix if rounds - t <= suffix else 0.0
        # Then backwards: how much of a unit added to Ŝ_t alone is in the model, the a_t of srgd-utility#u6.
        bias[c] = total
        if method == 0:
            sums[c, rounds - 1] = -1 / (beta * rounds)
            to_x, to_z = 1 - h / beta, 0.0
            for t in range(rounds - 2, -1, -1):
                momentum = 2 / (t + 3)
                through_z = to_z + to_x * momentum
                through_y = to_x * (1 - momentum)
                sums[c, t] = -through_y / (beta * (t + 1)) - through_z / (2 * beta)
                to_x = through_y * (1 - h / beta) - through_z * (t + 1) * h / (2 * beta)
                to_z = through_z
        elif method == 3:
            to_x, to_z = 1.0, 0.0  # how much x_T holds of a unit added to x_{t+1}, to z_{t+1}
            for t in range(rounds - 1, -1, -1):
                momentum = 2 / (t + 3)
                to_z += to_x * momentum
                sums[c, t] = -to_z / (2 * beta)
                to_x = to_x * (1 - momentum) + (t + 1) * h * sums[c, t]
        else:
            decay, reach = 1 - h / beta, 0.0  # reach: how much the model holds of a unit added to x_{t+1}
            for t in range(rounds - 1, -1, -1):
                later = reach
                reach = (1 / suffix if rounds - t <= suffix else 0.0) + decay * later
                sums[c, t] = -reach / (beta * (t + 1)) if method == 1 else -(reach - later) / beta


def drift(problem: Problem, gradients: str, moved: Response, curvature: float) -> Vector:
    """Predicted ‖E Δ_t‖ in each round, shape (C, T): curvature times how far its points lie from the optimum."""
    path = np.abs(moved.path)
    if gradients == "recursive":
        weighted = np.arange(1, path.shape[1] + 1) * moved.path
        path = np.abs(np.diff(weighted, prepend=0.0))
    return curvature * problem.radius * path


def isotropic_risk(
    problem: Problem,
    gradients: str,
    method: str,
    inverse_steps: Vector,
    suffixes: Integers,
    cohort: int,
    clips: Vector,
    kernel: Vector,
) -> Vector:
    """Predicted excess risk of each candidate, shape (C,).

    One seed draw adds, per coordinate, clip · kernel[k] to the sum k rounds later; `kernel` has shape (T,).
    """
    curvature = problem.beliefs.typical_curvature or 0.0
    slowest = problem.beliefs.least_curvature or curvature
    rounds = len(kernel)
    moved = response(method, rounds, inverse_steps, curvature, suffixes)
    lag = moved if slowest == curvature else response(method, rounds, inverse_steps, slowest, suffixes)
    # Users differ by their gradients at the optimum and, away from it, by their Hessians.
    far = drift(problem, gradients, moved, curvature) / max(curvature, 1e-300)
    steep = problem.smoothness or 0.0
    each = problem.user_deviation**2 + curvature * steep / problem.items_per_user * far**2
    if gradients == "independent":
        weights = moved.sums * np.arange(1, rounds + 1)
        noise = problem.dimension * (clips[:, None] * kernel[0]) ** 2
        error = np.sum(weights**2 * (each / cohort + noise), axis=1)
    else:
        backwards = moved.sums[:, ::-1]
        lasting = np.cumsum(backwards, axis=1)[:, ::-1]
        seeds = _convolution(backwards, kernel)  # Σ_{t ≥ j} response_t · kernel_{t-j}, j backwards
        error = np.sum(lasting**2 * each, axis=1) / cohort
        error += problem.dimension * clips**2 * np.sum(seeds**2, axis=1)
    risk: Vector = (slowest * (lag.bias * problem.radius) ** 2 + curvature * error) / 2
    return risk


def _convolution(rows: Vector, kernel: Vector) -> Vector:
    """The first T terms of each row's convolution with `kernel`; shapes (C, T) and (T,)."""
    rounds = len(kernel)
    length = 1 << (2 * rounds - 1).bit_length()  # so that nothing wraps around
    product = np.fft.rfft(rows, length) * np.fft.rfft(kernel, length)
    return np.fft.irfft(product, length)[:, :rounds]


def bounded_risk(
    problem: Problem, gradients: str, method: str, inverse_step: float, clip: float, cohort: int, stds: Vector
) -> float:
    """Upper bounds: srgd-utility#u2 (recursive), #u3 (independent), #u4 (plain), #u5 (ftrl), #u7 (anytime).

    `stds[t]` is the noise per coordinate of Ŝ_t, or of the mean when gradients are independent; shape (T,). A β at or
    below the smoothness M has no bound: it gets that of β - M = M/1000, so that it ranks last.
    """
    radius, rounds = problem.radius, len(stds)
    t = np.arange(rounds)
    noise = math.sqrt(problem.dimension) * stds
    if problem.beta is None:  # ftrl only: srgd-utility#u5 for losses that are not smooth
        moved = clip**2 * (rounds + 1) / 2 + clip * float(np.sum(noise))
        return (inverse_step * radius**2 / 2 + moved / inverse_step) / rounds
    gap = max(inverse_step - problem.beta, 1e-3 * problem.beta)
    if gradients == "recursive":  # an item's Δ within the clip, users' expectations spread as their gradients are
        spread = min(clip, math.hypot(clip / math.sqrt(problem.items_per_user), problem.beliefs.heterogeneity))
    else:
        spread = problem.user_deviation
    if method == "ftrl":
        earlier = float(np.sum(noise[:-1] ** 2))  # noise of the last sum meets no later step
        local = (rounds * spread**2 / cohort + earlier) / (2 * gap)
        return (inverse_step * radius**2 / 2 + local + radius * float(noise[-1])) / rounds
    if gradients == "independent":
        variance = spread**2 / cohort + float(noise[0] ** 2)
        return 2 * inverse_step * radius**2 / (rounds * (rounds + 1)) + variance * (rounds + 2) / (6 * gap)
    # the error of Ŝ_t/η_t: cohorts' sampling errors add up to a martingale, whose last members reach later points
    square = spread**2 / (cohort * (t + 1)) + noise**2 / (t + 1) ** 2
    linear = spread / np.sqrt(cohort * (t + 1)) + noise / (t + 1)
    if method == "anytime":
        lengths = (t + 1) * (problem.lipschitz + linear)
        moved = (float(np.sum(lengths**2)) + ((rounds + 1) * problem.lipschitz) ** 2) / (4 * inverse_step)
        wrong = radius * float(np.sum((t + 1) * linear))
        return (inverse_step * radius**2 + moved + wrong) / ((rounds + 1) * (rounds + 2) / 2)
    if method == "plain":
        return inverse_step * radius**2 / (2 * rounds) + float(np.mean(square / (2 * gap) + radius * linear))
    local = float(np.sum((t + 1) * (t + 2) / 2 * square)) / (2 * gap)
    return (inverse_step * radius**2 + local + radius * float(np.sum((t + 1) * linear))) / (rounds * (rounds + 1) / 2)

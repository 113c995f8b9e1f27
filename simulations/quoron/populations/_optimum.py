"""The non-private minimiser of a smooth convex objective over a ball or a box.

On a ball: Newton steps that solve each quadratic model exactly on the ball (the trust-region subproblem in the
eigenbasis, More and Sorensen 1983), with Armijo's line search. On a box: L-BFGS-B of scipy.
"""

from collections.abc import Callable

import numpy as np
import scipy

from quoron_client.protocol.domains import Domain, L2Ball, Vector
from quoron_client.protocol.questions import Matrix
from quoron_privacy.accounts.roots import root
from quoron_privacy.errors import RunError

Objective = Callable[[Vector], tuple[float, Vector, Matrix]]

_STEPS = 200
SETTLED = 1e-9  # of what there is to gain, where no point is best and better ones are ever farther away
_FLAT = 1e-12  # eigenvalues below this share of the largest are lifted to it, so that unused columns stay at zero


def minimise(objective: Objective, domain: Domain, start: Vector) -> Vector:
    """argmin of `objective` (value, gradient (d,), Hessian (d, d)) over `domain`, from `start` (d,) of the domain.

    Where better points are ever farther away, as of classes that can be told apart, it is one from which Newton's next
    step would gain no more than SETTLED. Raises RunError if it does not settle.
    """
    if isinstance(domain, L2Ball):
        return _newton(objective, domain.radius, start)
    result = scipy.optimize.minimize(
        lambda x: objective(x)[:2],
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(-domain.half_width, domain.half_width)] * len(start),
        options={"maxiter": 10_000, "ftol": 0.0, "gtol": 1e-11},
    )
    return np.asarray(result.x, np.float64)


def _newton(objective: Objective, radius: float, start: Vector) -> Vector:
    point = start
    value, gradient, hessian = objective(point)
    for _ in range(_STEPS):
        towards = _least_on_ball(hessian, hessian @ point - gradient, radius) - point
        gain = -float(gradient @ towards)
        if gain <= 4e-16 * max(1.0, abs(value)):
            return point
        step = 1.0
        while True:
            candidate = point + step * towards
            reached = objective(candidate)
            if reached[0] <= value - 1e-4 * step * gain:
                break
            step /= 2
            if step < 1e-9:  # the remaining gain drowns in rounding
                return point
        point, (value, gradient, hessian) = candidate, reached
    if gain <= SETTLED * max(1.0, abs(value)):
        return point
    raise RunError(f"Expected the non-private optimum within {_STEPS} Newton steps; it is not finite or too flat.")


def _least_on_ball(hessian: Matrix, target: Vector, radius: float) -> Vector:
    """argmin of y'Hy/2 - target'y over |y| <= radius."""
    eigenvalues, basis = np.linalg.eigh(hessian)
    along = basis.T @ target
    pull = float(np.linalg.norm(along)) / radius  # a multiplier that keeps any step inside
    lifted = np.maximum(eigenvalues, _FLAT * max(eigenvalues[-1], pull))
    if pull == 0.0:
        return np.zeros_like(target)

    def beyond(multiplier: float) -> float:
        return float(np.linalg.norm(along / (lifted + multiplier))) - radius

    if beyond(0.0) <= 0.0:
        return np.asarray(basis @ (along / lifted))
    multiplier = root(beyond, 0.0, pull, xtol=1e-300, rtol=1e-14)
    inside = basis @ (along / (lifted + multiplier))
    return np.asarray(inside * (radius / max(radius, float(np.linalg.norm(inside)))))

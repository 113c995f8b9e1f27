"""The local model: how many noisy reports find a range, and what a user spends who sends one or two.

    >>> group_size(epsilon=1.0, bins=64, failure=1e-5)
    991

Every constant is exact: the printed 4 ln(t/γ)/ε² reports a coordinate are too few by a factor of about sixteen, and the
printed budget of a user who sends both reports is 1.5 ε. Proofs: docs/privacy/local-model.md.
"""

import math

import numpy as np
import scipy

from quoron_protos.errors import ConfigError, Infeasible
from quoron_server._validate import count, positive, probability
from quoron_server.accounting import gdp
from quoron_server.mechanisms.gaussian import GaussianNoise
from quoron_server.mechanisms.hadamard import coordinate_bound, padded
from quoron_server.noise import total_variation


def group_size(*, epsilon: float, bins: int, failure: float) -> int:
    """Reports after which the fullest bin is one of two neighbours that hold all values, but with `failure`.

    ⌈ln(t / γ) / -ln M⌉ with M² the least over λ of the moment generating functions of (wrong bin - right bin) of one
    report from the right bin and one from its neighbour (theorem R3).
    """
    positive(epsilon=epsilon)
    count(bins=bins)
    probability(failure=failure)
    flip = 1 / (math.exp(epsilon / 2) + 1)
    keep = 1 - flip

    def rate(tilt: float) -> float:
        up = flip * math.exp(tilt) + keep
        return (
            2 * math.log(up) + math.log(keep * math.exp(-tilt) + flip) + math.log(flip * math.exp(-tilt) + keep)
        ) / 2

    best = scipy.optimize.minimize_scalar(rate, bounds=(0.0, epsilon + 1), method="bounded", options={"xatol": 1e-10})
    return math.ceil(math.log(bins / failure) / -float(best.fun))  # every tilt gives a valid bound


def crude_mean_users(*, dimension: int, epsilon: float, bins: int, failure: float) -> int:
    """Users from whose range reports all d₂ rotated coordinates are found: d₂ groups, half of `failure` shared out.

    The other half is for the rotation.
    """
    length = padded(dimension)
    return length * group_size(epsilon=epsilon, bins=bins, failure=failure / (2 * length))


def centred_radius(spread: float, *, dimension: int, users: int, failure: float, width: float | None = None) -> float:
    """τ + √d₂ (τ_∞ + w/2): vectors within τ of one point lie this close to the crude mean (theorem R4).

    `width` is w, a bin's; at least 2 τ_∞, which is the default, τ_∞ = `coordinate_bound` of τ.
    """
    positive(spread=spread)
    deviation = coordinate_bound(spread, dimension=dimension, rows=users, failure=failure)
    half = deviation if width is None else width / 2
    if half < deviation * (1 - 1e-9):
        raise ConfigError(f"Expected width >= {2 * deviation:g}, so that two bins hold everybody, got width={width:g}.")
    return spread + math.sqrt(padded(dimension)) * (deviation + half)


def bits_epsilon(flips: int) -> float:
    """ε of one range report whose bits flip with probability flips / 2⁶⁴: 2 ln((2⁶⁴ - flips) / flips)."""
    count(flips=flips)
    return 2 * math.log((2**64 - flips) / flips)


def vector_delta(*, radius: float, scale: float, dimension: int, epsilon: float) -> float:
    """δ at `epsilon` of one report of a vector clipped to `radius` with noise `scale`, sampler and grid included."""
    mu = GaussianNoise(2 * radius, scale).effective_mu(dimension)
    return gdp.delta_for(mu, epsilon) + (1 + math.exp(epsilon)) * total_variation(gaussians=dimension)


def second_message_mu(*, range_epsilon: float, epsilon: float, delta: float) -> float:
    """Largest μ of a vector report by a user who has also sent a range report, for (ε, δ) in all.

    Exact for the worst pair of laws: one randomised response and one Gaussian. Infeasible where the range report alone
    takes all.
    """
    positive(range_epsilon=range_epsilon, epsilon=epsilon)
    probability(delta=delta)

    def spent(mu: float) -> float:
        return gdp.randomised_response_delta(epsilon, range_epsilon, 1, mu)

    if spent(1e-9) > delta:
        raise Infeasible(
            "local mean", f"a range report of {range_epsilon:g} leaves nothing of {epsilon:g}", "less of it"
        )
    high = 1e-9
    while spent(high) <= delta:
        high *= 2
    mu = float(scipy.optimize.brentq(lambda value: math.log(spent(value) / delta), high / 2, high, rtol=1e-12))
    while spent(mu) > delta:
        mu = float(np.nextafter(mu * (1 - 1e-12), 0))
    return mu

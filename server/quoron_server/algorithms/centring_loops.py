"""The loops of `centring`: radii of a run, one after the other, and the variances that follow."""

import math

import numpy as np

from quoron_privacy.kernels.prebuilt import njit


@njit(cache=True)
def next_radius(spread: float, variance: float, drift: float, margin: float, first: float) -> float:
    """Return the radius of the next round; `drift` is M ‖x_{t+1} - x_t‖."""
    return min(first, margin * math.sqrt(spread * spread + variance) + drift)


@njit(cache=True)
def sgd_variances(facts, rounds, steps, suffixes, samplings, noises, means):  # type: ignore[no-untyped-def]
    """Add the predicted variances of releases of SGD that are centred so, means of the last suffixes, to `means`.

    For W numbers of rounds (W,), each with K steps (W, K) and S suffixes (W, S): `means` has shape (W, K, S). A round
    has the variance `samplings` (W,) and that of noise, which is `noises` (W,) for a radius of 1.
    """
    h, distance, start, smoothness, spread, margin, first = facts
    for w in range(steps.shape[0]):
        for k in range(steps.shape[1]):
            step, radius, far = steps[w, k], first, distance
            for t in range(rounds[w]):
                variance = samplings[w] + noises[w] * radius * radius
                for s in range(suffixes.shape[1]):
                    if rounds[w] - t <= suffixes[w, s]:
                        means[w, k, s] += variance / suffixes[w, s]
                gradient = h * far if h > 0 else min(start, distance * np.sqrt(smoothness / (step * (t + 1))))
                moved = min(2 * distance, step * (gradient + np.sqrt(variance)))
                radius = next_radius(spread, variance, smoothness * moved, margin, first)
                far *= abs(1 - step * h)


@njit(cache=True)
def agd_variances(path, distance, smoothness, inverse_step, sampling, noise, spread, margin, first, out):  # type: ignore[no-untyped-def]
    """Fill `out` (T,) with the same of accelerated steps; `path` (T,) says where points lie, 1 at the start."""
    radius = first
    for t in range(len(out)):
        out[t] = sampling + noise * radius * radius
        following = path[t + 1] if t + 1 < len(out) else path[t]
        moved = min(2 * distance, distance * abs(following - path[t]) + np.sqrt(out[t]) / inverse_step)
        radius = next_radius(spread, out[t], smoothness * moved, margin, first)

"""The loops of `centring`: radii of a run, one after the other, and the variances that follow."""

import math

import numpy as np

from quoron_privacy.kernels.shipped import njit


@njit(cache=True)
def next_radius(spread: float, variance: float, drift: float, margin: float, first: float) -> float:
    """Return the radius of the next round; `drift` is M ‖x_{t+1} - x_t‖."""
    return min(first, margin * math.sqrt(spread * spread + variance) + drift)


@njit(cache=True)
def sgd_variances(facts, rounds, steps, suffixes, samplings, noises, means):  # type: ignore[no-untyped-def]
    """Adds the variances of the last suffixes to `means` (W, K, S)."""
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
    """Fills `out` (T,)."""
    radius = first
    for t in range(len(out)):
        out[t] = sampling + noise * radius * radius
        following = path[t + 1] if t + 1 < len(out) else path[t]
        moved = min(2 * distance, distance * abs(following - path[t]) + np.sqrt(out[t]) / inverse_step)
        radius = next_radius(spread, out[t], smoothness * moved, margin, first)

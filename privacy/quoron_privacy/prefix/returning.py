"""Users who come back: how far they reach, and `blt` and `banded`, each with a number fitted to how often and how soon.

    >>> from quoron_privacy.prefix.factorisations import factorise
    >>> for k, b in ((2, 50), (10, 10), (100, 1)):
    ...     made = factorise("banded", 100, b)
    ...     print(f"{made.coefficients[1]:.3f}", made.slots, f"{loudness(made, k, b):.2f}")
    0.492 49 3.33
    0.609 9 9.32
    0.000 0 71.06

What is minimised is κ(k, b) times the root mean square over rounds of ‖B[t, :]‖: the noise of a prefix sum per unit of
Δ/μ, whose squares are what the bound of docs/privacy/srgd-utility.md#u5 adds up. It depends on T, k and b alone.
Statements and numbers: docs/privacy/several-epochs.md.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from math import inf

import numpy as np
import scipy

from quoron_privacy.errors import ConfigError
from quoron_privacy.prefix.factorisations import Factorisation, Floats
from quoron_privacy.prefix.ways import buffered, history

HALVINGS = 5  # of the first grid's step


def reach(made: Factorisation, participations: int, separation: int) -> float:
    """κ(k, b); see `Factorisation.reach`."""
    c = made.coefficients
    if c is None or not falls(c):
        raise ConfigError(
            "Expected a Toeplitz factorisation for several participations, got another. Use blt, sqrt-toeplitz, "
            "banded or independent."
        )
    return float(np.sqrt(np.sum(together(c, participations, separation) ** 2)))


def falls(coefficients: Floats) -> bool:
    """Whether numbers are never negative and never grow, but for roundings of what is nearly zero."""
    return bool(np.all(coefficients >= 0) and np.all(np.diff(coefficients) <= 1e-300))


def together(column: Floats, participations: int, separation: int) -> Floats:
    """Sum of columns 0, b, 2b, ... of a Toeplitz matrix, as many as take part and fit; (rounds,) from the first one.

    By doubling: log₂ of the participations passes, and nothing is subtracted.
    """
    rounds = len(column)
    left = min(participations, -(-rounds // separation))
    made, doubled, shift, width = np.zeros(rounds), column, 0, separation  # `doubled`: so many columns from the first
    while left:
        if left % 2:
            made[shift:] += doubled[: rounds - shift]
            shift += width
        left //= 2
        if left:
            doubled = np.concatenate([doubled[:width], doubled[width:] + doubled[:-width]])
            width *= 2
    return made


def loudness(made: Factorisation, participations: int, separation: int) -> float:
    """Root mean square over rounds of the standard deviation of a prefix sum, per unit of sensitivity / μ."""
    return reach(made, participations, separation) * float(np.sqrt(np.mean(made.row_norms**2)))


def banded(rounds: int, participations: int, separation: int) -> Factorisation:
    """A band as wide as the separation, so that a user's columns are orthogonal; γ is fitted.

    First column of C: the coefficients of (1 - x)^(-γ) for lags below the separation, zero from there on. They fall:
    each is its predecessor times (k - 1 + γ)/k. Memory: the last `separation` - 1 vectors of noise.

    Source: γ = 1/2 is the banded square root of Kalinin & Lampert (2024).
    """
    return _band(rounds, separation, _power(rounds, participations, separation))


def blt(rounds: int, participations: int, separation: int) -> Factorisation:
    """Buffered linear Toeplitz noise that forgets after a horizon, which is fitted, as are the buffers: 1 to 4.

    Source: `ways.blt`; McMahan, Xu & Zhang (2024) fit every decay and weight, which gains another 1 or 2 %.
    """
    return buffered(rounds, *_buffers(rounds, participations, separation))


@lru_cache(maxsize=4096)
def _power(rounds: int, participations: int, separation: int) -> float:
    """γ in (0, 1); any, where the band is one diagonal."""

    def loud(power: float) -> float:
        return loudness(_band(rounds, separation, power), participations, separation)

    return quietest(loud, np.arange(1, 8) / 8) if separation > 1 else 0.5


@lru_cache(maxsize=4096)
def _buffers(rounds: int, participations: int, separation: int) -> tuple[int, float]:
    """How many, and the horizon."""

    def loud(buffers: int, doublings: float) -> float:
        made = buffered(rounds, buffers, 2.0**doublings)
        reached = made.coefficients is not None and falls(made.coefficients)  # else more buffers than rounds to forget
        return loudness(made, participations, separation) if reached else inf

    coarse = np.arange(1.0, rounds.bit_length() + 3, 2)
    fitted = [(number, quietest(partial(loud, number), coarse)) for number in range(1, 5)]
    buffers, doublings = min(fitted, key=lambda each: loud(*each))
    return buffers, 2.0**doublings


def _band(rounds: int, width: int, power: float) -> Factorisation:
    lags = np.arange(1, min(width, rounds))
    coefficients = np.zeros(rounds)
    coefficients[: len(lags) + 1] = np.cumprod(np.concatenate([[1.0], (lags - 1 + power) / lags]))
    return history(coefficients, reciprocal(coefficients), length=len(lags))


def quietest(loud: Callable[[float], float], coarse: Floats) -> float:
    """Where `loud` is least: on an even grid, then on ever finer ones around the best so far."""
    least, best = min((loud(at), at) for at in coarse.tolist())
    step = coarse[-1] - coarse[-2]
    for _ in range(HALVINGS):
        step /= 2
        least, best = min([(least, best), *((loud(at), at) for at in (best - step, best + step))])
    return float(best)


def reciprocal(series: Floats) -> Floats:
    """First terms of 1 / series, as many as are given; the first one is 1. Errors below 1e-12.

    The recursion for the first ones; then Newton's iteration, which doubles how many are known.
    """
    known = min(1024, len(series))
    made: Floats = scipy.signal.lfilter([1.0], np.trim_zeros(series[:known], "b"), np.eye(1, known)[0])
    while known < len(series):
        known = min(2 * known, len(series))
        error = -scipy.signal.fftconvolve(made, series[:known])[:known]
        error[0] += 2.0
        made = scipy.signal.fftconvolve(made, error)[:known]
    return made

"""Strategies to write prefix sums as B C, which `noise.factorise` finds by name: for one participation and for several.

Symbols and error bounds: docs/privacy/prefix-noise.md; for users who come back docs/privacy/prefix-noise.md#c3.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from math import inf, pi, sqrt

import numpy as np
import scipy

from quoron_privacy.arrays import Floats
from quoron_privacy.errors import ConfigError
from quoron_privacy.prefix.noise import Factorisation, sqrt_coefficients

BAND = 32  # diagonals of `banded` where users take part once

HALVINGS = 5  # of the first grid's step


def toeplitz(
    coefficients: Floats,
    inverse: Floats,
    *,
    slots: int,
    predict: Callable[[int, Floats], Floats],
    remember: Callable[[int, Floats, Floats], Floats],
) -> Factorisation:
    """C[t, j] = coefficients[t - j], with the first column of C⁻¹; both of shape (rounds,), non-negative and any sign.

    B = A C⁻¹ is Toeplitz too, with the prefix sums of `inverse` as its first column.
    """
    rounds = len(coefficients)
    row_norms = np.sqrt(np.cumsum(np.cumsum(inverse) ** 2))
    row_norms.setflags(write=False)
    # prefix-noise#c2: every term passes at most 2 (rounds + 16) roundings and is at most 2³⁵ (growth + 1) steps
    growth, row_sum = np.abs(inverse).sum(), coefficients.sum()
    arithmetic = 1.001 * (rounds + 16) * 2.0**-17 * row_sum * (growth + 1)
    return Factorisation(
        column_norm=float(np.sqrt(np.sum(coefficients**2))),  # the first column holds all coefficients
        row_norms=row_norms,
        rounding=0.5 + float(arithmetic),
        slots=slots,
        coefficients=coefficients,
        predict=predict,
        remember=remember,
    )


def history(coefficients: Floats, inverse: Floats, length: int) -> Factorisation:
    """A Toeplitz C that keeps the last `length` vectors of noise, the newest first, and zeros where there are fewer."""

    def predict(t: int, memory: Floats) -> Floats:
        known = min(t, length)
        return combine(coefficients[1 : known + 1], memory[:known])

    def remember(t: int, memory: Floats, own: Floats) -> Floats:
        return np.concatenate([own[None], memory])[:length]

    return toeplitz(coefficients, inverse, slots=length, predict=predict, remember=remember)


def combine(weights: Floats, rows: Floats) -> Floats:
    """Σ_k weights[k] · rows[k], shape (d,), with one thread and one order: the same bits on every run."""
    total: Floats = np.einsum("k,kd->d", weights, rows)
    return total


def blt(rounds: int) -> Factorisation:
    """Buffered linear Toeplitz noise: the square-root factorisation to within 0.03%, from a handful of buffers.

    c_k = Σ_i w_i p_i^(k-1) with few decays p_i stands in for the coefficients of (1 - x)^(-1/2), so each round costs a
    few vectors however many rounds there are. Decays and weights come in closed form from Zolotarev's rational
    approximation of z^(-1/2): no fitting, no seed. Privacy does not depend on how good the approximation is, because
    column norm and B are those of the matrix that is really used.

    One buffer, and one more whenever the rounds grow fourfold: within 0.03% of the square root in its largest error.

    Source: Dvijotham, McMahan, Pillutla, Steinke & Thakurta (2024), buffered linear Toeplitz; Hale, Higham & Trefethen
    (2008), method 3, for the nodes.
    """
    return buffered(rounds, buffers=1 + (rounds - 1).bit_length() // 2, horizon=rounds)


def buffered(rounds: int, buffers: int, horizon: float) -> Factorisation:
    """C of the coefficients Σ_i w_i p_i^(k-1), one buffer for each i; like (1 - x)^(-1/2) up to about `horizon`."""
    weights, decays = nodes(horizon, buffers)
    powers = decays[:, None] ** np.arange(rounds - 1)
    coefficients = np.concatenate([[1.0], weights @ powers])

    def predict(t: int, memory: Floats) -> Floats:
        return combine(weights, memory)

    def remember(t: int, memory: Floats, own: Floats) -> Floats:
        return decays[:, None] * memory + own

    inverse = _inverse(weights, decays, rounds)
    return toeplitz(coefficients, inverse, slots=len(decays), predict=predict, remember=remember)


def nodes(horizon: float, buffers: int) -> tuple[Floats, Floats]:
    """Return weights w > 0 and decays p in (0, 1), each of shape (buffers,): Σ w p^(k-1) is close to c_k, k >= 1.

    z^(-1/2) = (2/π) ∫ ds / (z + s²) by the midpoint rule in u, s = √a sc(u), which is best for z in [a, 1]. Here
    z = 1 - x and a = 2 / horizon, since x^k with k < horizon resolves nothing nearer to 1.
    """
    least = min(1.0, 2 / horizon)
    quarter = scipy.special.ellipkm1(least)
    sn, cn, dn, _ = scipy.special.ellipj((np.arange(buffers) + 0.5) * quarter / buffers, 1 - least)
    decays = 1 / (1 + least * (sn / cn) ** 2)
    return 2 * quarter * sqrt(least) / (pi * buffers) * dn / cn**2 * decays**2, decays


def _inverse(weights: Floats, decays: Floats, rounds: int) -> Floats:
    """First column of C⁻¹: the stream itself, run on a unit impulse. The number of known columns doubles each time."""
    step = np.diag(decays) - weights  # memory' = step @ memory + 1 while the seed noise is zero
    columns = np.ones((len(decays), 1))
    while columns.shape[1] < rounds - 1:
        columns = np.concatenate([columns, step @ columns], axis=1)
        step = step @ step
    inverse: Floats = np.concatenate([[1.0], -(weights @ columns[:, : rounds - 1])])
    return inverse


def banded(rounds: int) -> Factorisation:
    """Return the square root of prefix sums cut to a band of `BAND` diagonals: memory does not depend on the rounds.

    C[t, j] = (2k)! / (4^k k!²) with k = t - j < BAND, else 0. Up to BAND rounds B = C, with the smallest maximal error
    of all Toeplitz factorisations; beyond that its noise grows with the root of rounds / BAND.

    Source: Kalinin & Lampert (2024), banded square root; the root: Fichtenberger, Henzinger & Upadhyay (2023).
    """
    coefficients, _ = sqrt_coefficients(rounds)
    coefficients[BAND:] = 0.0
    inverse = scipy.signal.lfilter([1.0], coefficients[:BAND], np.eye(1, rounds)[0])
    return history(coefficients, inverse, length=min(BAND, rounds) - 1)


def tree(rounds: int) -> Factorisation:
    """Return the binary tree: round t releases the one node of the paper's tree that it completes.

    C[t, j] = 1 for the last 2^k rounds up to t, where 2^k is the largest power of two that divides t + 1. A prefix sum
    is the sum of one node for each bit of t + 1. All entries are zeros and ones, so nothing is rounded.

    Column norm √depth, depth = ⌊log₂ rounds⌋ + 1: the first round is in one node of every level.

    Source: Dwork, Naor, Pitassi & Rothblum (2010); Choquette-Choo, Ganesh & Thakurta (2024), Lemma 8.
    """
    depth = rounds.bit_length()
    row_norms = np.sqrt([float(t.bit_count()) for t in range(1, rounds + 1)])
    row_norms.setflags(write=False)
    return Factorisation(
        column_norm=float(np.sqrt(depth)),
        row_norms=row_norms,
        rounding=0.0,
        slots=depth,
        coefficients=None,
        predict=_tree_predict,
        remember=_tree_remember,
    )


def _level(t: int) -> int:
    """k such that round t completes a node of 2^k rounds."""
    return (~t & (t + 1)).bit_length() - 1


def _tree_predict(t: int, memory: Floats) -> Floats:
    children: Floats = memory[: _level(t)].sum(axis=0)  # the newest node of every smaller size
    return children


def _tree_remember(t: int, memory: Floats, own: Floats) -> Floats:
    newer = memory.copy()
    newer[_level(t)] = _tree_predict(t, memory) + own
    return newer


def norm_of(made: Factorisation, participations: int, separation: int) -> float:
    """κ(k, b); see `Factorisation.participation_norm`."""
    c = made.coefficients
    if c is None or not falls(c):
        raise ConfigError(
            "Expected a Toeplitz factorisation for several participations, got another. Use blt or banded."
        )
    return float(np.sqrt(np.sum(together(c, participations, separation) ** 2)))


def falls(coefficients: Floats) -> bool:
    """Return whether numbers are never negative and never grow, but for roundings of what is nearly zero."""
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
    """Return κ(k, b) times the root mean square over rounds of ‖B[t, :]‖: noise of a prefix sum per unit of Δ/μ.

        >>> from quoron_privacy.prefix.noise import factorise
        >>> for k, b in ((2, 50), (10, 10), (100, 1)):
        ...     made = factorise("banded", 100, b)
        ...     print(f"{made.coefficients[1]:.3f}", made.slots, f"{loudness(made, k, b):.2f}")
        0.492 49 3.33
        0.609 9 9.32
        0.000 0 71.06

    Its squares are what the bound of docs/privacy/srgd.md#u5 adds up, so the fitted strategies minimise it.
    """
    return norm_of(made, participations, separation) * float(np.sqrt(np.mean(made.row_norms**2)))


def banded_repeated(rounds: int, participations: int, separation: int) -> Factorisation:
    """Return a band as wide as the separation, so that a user's columns are orthogonal; γ is fitted.

    First column of C: the coefficients of (1 - x)^(-γ) for lags below the separation, zero from there on. They fall:
    each is its predecessor times (k - 1 + γ)/k. Memory: the last `separation` - 1 vectors of noise.

    Source: γ = 1/2 is the banded square root of Kalinin & Lampert (2024).
    """
    return _band(rounds, separation, _power(rounds, participations, separation))


def blt_repeated(rounds: int, participations: int, separation: int) -> Factorisation:
    """Buffered linear Toeplitz noise that forgets after a horizon, which is fitted, as are the buffers: 1 to 4.

    Source: `blt`; McMahan, Xu & Zhang (2024) fit every decay and weight, which gains another 1 or 2 %.
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
    """Return how many, and the horizon."""

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
    """Return where `loud` is least: on an even grid, then on ever finer ones around the best so far."""
    least, best = min((loud(at), at) for at in coarse.tolist())
    step = coarse[-1] - coarse[-2]
    for _ in range(HALVINGS):
        step /= 2
        least, best = min([(least, best), *((loud(at), at) for at in (best - step, best + step))])
    return float(best)


def reciprocal(series: Floats) -> Floats:
    """Return the first terms of 1 / series, as many as are given; the first one is 1. Errors below 1e-12.

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

"""Buffered linear Toeplitz noise: the square-root factorisation to within 0.03%, from a handful of buffers.

c_k = Σ_i w_i p_i^(k-1) with few decays p_i stands in for the coefficients of (1 - x)^(-1/2), so each round costs a few
vectors however many rounds there are. Decays and weights come in closed form from Zolotarev's rational approximation
of z^(-1/2): no fitting, no seed. Privacy does not depend on how good the approximation is, because column norm and B
are those of the matrix that is really used.

Source: Dvijotham, McMahan, Pillutla, Steinke & Thakurta (2024), buffered linear Toeplitz; Hale, Higham & Trefethen
(2008), method 3, for the nodes.
"""

from math import pi, sqrt

import numpy as np
import scipy

from quoron_privacy.prefix.factorisation import Factorisation, Floats, combine, toeplitz


def blt(rounds: int) -> Factorisation:
    """One buffer, and one more whenever the rounds grow fourfold: `sqrt-toeplitz` within 0.03% in its largest error."""
    weights, decays = nodes(rounds, buffers=1 + (rounds - 1).bit_length() // 2)
    powers = decays[:, None] ** np.arange(rounds - 1)
    coefficients = np.concatenate([[1.0], weights @ powers])

    def predict(t: int, memory: Floats) -> Floats:
        return combine(weights, memory)

    def remember(t: int, memory: Floats, own: Floats) -> Floats:
        return decays[:, None] * memory + own

    inverse = _inverse(weights, decays, rounds)
    return toeplitz(coefficients, inverse, slots=len(decays), predict=predict, remember=remember)


def nodes(rounds: int, buffers: int) -> tuple[Floats, Floats]:
    """Weights w > 0 and decays p in (0, 1), each of shape (buffers,), such that Σ w p^(k-1) is close to c_k, k >= 1.

    z^(-1/2) = (2/π) ∫ ds / (z + s²) by the midpoint rule in u, s = √a sc(u), which is best for z in [a, 1]; z = 1 - x
    and a = 2 / rounds, since x^k with k < rounds resolves nothing nearer to 1.
    """
    least = min(1.0, 2 / rounds)
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

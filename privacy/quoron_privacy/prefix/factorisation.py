"""What a factorisation A = B C of prefix sums is, and the ones whose C is a Toeplitz matrix.

A is the lower triangular matrix of ones, C is lower triangular with ones on its diagonal and non-negative elsewhere.
A factorisation streams C: `predict` gives Σ_{j < t} C[t, j] N_j from a memory of the noise N so far, `remember` adds
N_t to it. Symbols and error bounds: docs/privacy/prefix-noise.md.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Factorisation:
    """The numbers and the two streaming functions of one factorisation over a fixed number of rounds."""

    column_norm: float  # max_t ‖C[:, t]‖₂: how far one unit contribution moves C x
    row_norms: Floats  # ‖B[t, :]‖₂, shape (rounds,): noise of the t-th prefix sum per unit of seed noise
    rounding: float  # bound for |rounded prediction as computed - exact prediction| in steps (prefix-noise#c2)
    slots: int  # vectors in the memory before the first round
    coefficients: Floats | None  # first column of a Toeplitz C, shape (rounds,); None where C is none
    predict: Callable[[int, Floats], Floats]  # (t, memory) -> Σ_{j < t} C[t, j] N_j, shape (d,)
    remember: Callable[[int, Floats, Floats], Floats]  # (t, memory, N_t) -> new memory, shape (slots, d)

    def reach(self, participations: int, separation: int) -> float:
        """max ‖Σ_{i in S} C[:, i]‖₂ over sets S of so many rounds, any two of them `separation` or more apart.

        Attained at rounds 0, b, 2b, ... (several-epochs#c3). ConfigError for several participations where C is no
        Toeplitz matrix whose coefficients never grow.
        """
        if participations == 1:
            return self.column_norm
        c = self.coefficients
        if c is None or np.any(np.diff(c) > 0) or np.any(c < 0):
            raise ConfigError(
                "Expected a Toeplitz factorisation for several participations, got another. Use blt, sqrt-toeplitz, "
                "banded or independent."
            )
        together = np.zeros(len(c))
        for start in range(0, min(participations * separation, len(c)), separation):
            together[start:] += c[: len(c) - start]
        return float(np.sqrt(np.sum(together**2)))

    @property
    def max_error(self) -> float:
        """Largest standard deviation of a prefix sum per unit of sensitivity / μ."""
        return self.column_norm * float(self.row_norms.max())

    @property
    def rms_error(self) -> float:
        """Root mean square over rounds of the same."""
        return self.column_norm * float(np.sqrt(np.mean(self.row_norms**2)))


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
    """A Toeplitz C that keeps the last `length` vectors of noise, the newest first."""

    def predict(t: int, memory: Floats) -> Floats:
        return combine(coefficients[1 : len(memory) + 1], memory)

    def remember(t: int, memory: Floats, own: Floats) -> Floats:
        return np.concatenate([own[None], memory])[:length]

    return toeplitz(coefficients, inverse, slots=0, predict=predict, remember=remember)


def combine(weights: Floats, rows: Floats) -> Floats:
    """Σ_k weights[k] · rows[k], shape (d,), with one thread and one order: the same bits on every run."""
    total: Floats = np.einsum("k,kd->d", weights, rows)
    return total


def sqrt_coefficients(rounds: int) -> tuple[Floats, Floats]:
    """First columns of the square root of A and of its inverse: coefficients of (1 - x)^(-1/2) and (1 - x)^(1/2)."""
    k = np.arange(rounds, dtype=np.float64)
    coefficients = np.cumprod(np.concatenate([[1.0], (2 * k[1:] - 1) / (2 * k[1:])]))
    return coefficients, coefficients / (1 - 2 * k)

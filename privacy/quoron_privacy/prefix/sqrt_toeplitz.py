"""The square root of prefix sums: B = C, with the smallest maximal error of all Toeplitz factorisations.

Memory grows with the rounds, so use it up to some thousand of them; `blt` is its streaming form.

Source: Fichtenberger, Henzinger & Upadhyay (2023); optimality: Dvijotham, McMahan, Pillutla, Steinke & Thakurta (2024).
"""

from quoron_privacy.prefix.factorisation import Factorisation, history, sqrt_coefficients


def sqrt_toeplitz(rounds: int) -> Factorisation:
    """C[t, j] = (2k)! / (4^k k!²) with k = t - j; memory: the noise of all earlier rounds."""
    return history(*sqrt_coefficients(rounds), length=rounds - 1)

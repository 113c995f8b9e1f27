"""The square-root factorisation cut to a band of `BAND` diagonals: memory does not depend on the rounds.

Equal to `sqrt-toeplitz` up to BAND rounds; beyond that its noise grows with the root of rounds / BAND. Where users come
back after fewer rounds than that, the band is as wide as that: a user's columns are then orthogonal.

Source: Kalinin & Lampert (2024), banded square root.
"""

import numpy as np
import scipy

from quoron_privacy.prefix.factorisation import Factorisation, history, sqrt_coefficients

BAND = 32  # diagonals


def banded(rounds: int, separation: int = BAND) -> Factorisation:
    """C of `sqrt-toeplitz` with everything below the first min(BAND, separation) diagonals replaced by zero."""
    band = min(BAND, separation)
    coefficients, _ = sqrt_coefficients(rounds)
    coefficients[band:] = 0.0
    inverse = scipy.signal.lfilter([1.0], coefficients[:band], np.eye(1, rounds)[0])
    return history(coefficients, inverse, length=min(band, rounds) - 1)

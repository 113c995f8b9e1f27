"""The square-root factorisation cut to a band of `BAND` diagonals: memory does not depend on the rounds.

Equal to `sqrt-toeplitz` up to BAND rounds; beyond that its noise grows with the root of rounds / BAND.

Source: Kalinin & Lampert (2024), banded square root.
"""

import numpy as np
import scipy

from quoron_privacy.prefix.factorisation import Factorisation, history, sqrt_coefficients

BAND = 32  # diagonals


def banded(rounds: int) -> Factorisation:
    """C of `sqrt-toeplitz` with everything below the first BAND diagonals replaced by zero."""
    coefficients, _ = sqrt_coefficients(rounds)
    coefficients[BAND:] = 0.0
    inverse = scipy.signal.lfilter([1.0], coefficients[:BAND], np.eye(1, rounds)[0])
    return history(coefficients, inverse, length=min(BAND, rounds) - 1)

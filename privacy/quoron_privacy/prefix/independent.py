"""Independent noise on every contribution: C = I, so prefix sums collect all of it. The baseline."""

import numpy as np

from quoron_privacy.prefix.factorisation import Factorisation, Floats


def independent(rounds: int) -> Factorisation:
    """Column norm 1; the t-th prefix sum carries the noise of t + 1 rounds. No memory."""
    row_norms = np.sqrt(np.arange(1.0, rounds + 1))
    row_norms.setflags(write=False)
    return Factorisation(
        column_norm=1.0,
        row_norms=row_norms,
        rounding=0.0,
        slots=0,
        coefficients=np.eye(1, rounds)[0],
        predict=_predict,
        remember=_remember,
    )


def _predict(t: int, memory: Floats) -> Floats:
    return np.zeros(memory.shape[1])


def _remember(t: int, memory: Floats, own: Floats) -> Floats:
    return memory

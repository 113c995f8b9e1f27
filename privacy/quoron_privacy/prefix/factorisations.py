"""What every way to write prefix sums as B C says of itself, and `factorise`, which finds one of `ways` by its name.

A is the lower triangular matrix of ones, C is lower triangular with ones on its diagonal and non-negative elsewhere.
A factorisation streams C: `predict` gives Σ_{j < t} C[t, j] N_j from a memory of the noise N so far, `remember` adds
N_t to it. Symbols and error bounds: docs/privacy/prefix-noise.md.

>>> for name in FACTORISATIONS:
...     print(f"{name:13} {factorise(name, 128).max_error:.2f}")
blt           2.61
sqrt-toeplitz 2.61
banded        3.17
tree          7.48
independent   11.31
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, count
from quoron_privacy.kernels.on_first_use import OnFirstUse

Floats = NDArray[np.float64]

ways = OnFirstUse("quoron_privacy.prefix.ways")  # each of the same few numbers: who plans with one reads no other
returning = OnFirstUse("quoron_privacy.prefix.returning")  # what users who come back add

FACTORISATIONS = "blt", "sqrt-toeplitz", "banded", "tree", "independent"
FITTED = "blt", "banded"  # to how often and how soon users come back
LONGEST = 1 << 20  # rounds; the error budget of docs/privacy/prefix-noise.md is checked up to here


@dataclass(frozen=True, slots=True)
class Factorisation:
    """The numbers and the two streaming functions of one factorisation over a fixed number of rounds."""

    column_norm: float  # max_t ‖C[:, t]‖₂: how far one unit contribution moves C x
    row_norms: Floats  # ‖B[t, :]‖₂, shape (rounds,): noise of the t-th prefix sum per unit of seed noise
    rounding: float  # bound for |rounded prediction as computed - exact prediction| in steps (prefix-noise#c2)
    slots: int  # vectors in the memory
    coefficients: Floats | None  # first column of a Toeplitz C, shape (rounds,); None where C is none
    predict: Callable[[int, Floats], Floats]  # (t, memory) -> Σ_{j < t} C[t, j] N_j, shape (d,)
    remember: Callable[[int, Floats, Floats], Floats]  # (t, memory, N_t) -> new memory, shape (slots, d)

    def reach(self, participations: int, separation: int) -> float:
        """max ‖Σ_{i in S} C[:, i]‖₂ over sets S of so many rounds, any two of them `separation` or more apart.

        Attained at rounds 0, b, 2b, ... (several-epochs#c3). ConfigError for several participations where C is no
        Toeplitz matrix whose coefficients never grow.
        """
        norm: float = self.column_norm if participations == 1 else returning.reach(self, participations, separation)
        return norm

    @property
    def max_error(self) -> float:
        """Largest standard deviation of a prefix sum per unit of sensitivity / μ."""
        return self.column_norm * float(self.row_norms.max())


def sqrt_coefficients(rounds: int) -> tuple[Floats, Floats]:
    """First columns of the square root of A and of its inverse: coefficients of (1 - x)^(-1/2) and (1 - x)^(1/2)."""
    k = np.arange(rounds, dtype=np.float64)
    coefficients = np.cumprod(np.concatenate([[1.0], (2 * k[1:] - 1) / (2 * k[1:])]))
    return coefficients, coefficients / (1 - 2 * k)


@lru_cache(maxsize=32)
def factorise(
    name: str, rounds: int, separation: int | None = None, participations: int | None = None
) -> Factorisation:
    """The factorisation `name` of prefix sums over `rounds` rounds; ConfigError if there is none.

    `separation` is after how many rounds users may come back, and `participations` how often they take part; None: they
    do not come back, and as often as they may.
    """
    if name not in FACTORISATIONS:
        raise ConfigError(f"Expected factorisation in {sorted(FACTORISATIONS)}, got factorisation={name!r}.")
    count(rounds=rounds)
    if rounds > LONGEST:
        raise ConfigError(f"Expected rounds <= {LONGEST}, got rounds={rounds}. Use larger cohorts.")
    apart = separation or rounds
    times = min(participations or rounds, -(-rounds // apart))
    fitted = times > 1 and name in FITTED
    way = getattr(returning if fitted else ways, name.replace("-", "_"))
    made: Factorisation = way(rounds, times, apart) if fitted else way(rounds)
    return made

"""The law of the filter's hidden cutoff: a two-sided geometric, truncated to {1, …, 2·centre − 1}.

    >>> law = cutoff_law(centre=3, decay=0.5)
    >>> len(law), round(float(law.sum()), 12), bool(law[2] == law.max())
    (5, 1.0, True)

Only probabilities live here; drawing the cutoff is the mechanism's business. Source: docs/privacy/outlier-filter.md.
"""

import math

import numpy as np
from numpy.typing import NDArray

from quoron_server._validate import count, positive


def cutoff_law(centre: int, decay: float) -> NDArray[np.float64]:
    """Probabilities π(1), …, π(2·centre − 1), proportional to exp(−decay·|k − centre|); shape (2·centre − 1,)."""
    count(centre=centre)
    positive(decay=decay)
    weights = np.exp(-decay * np.abs(np.arange(1, 2 * centre) - centre))
    law: NDArray[np.float64] = weights / math.fsum(weights)
    return law


def end_mass(centre: int, decay: float) -> float:
    """π(1) = π(2·centre − 1): the part of the law that a shift by one cannot hide."""
    count(centre=centre)
    positive(decay=decay)
    ratio = math.exp(-decay)
    total = 1 + 2 * ratio * (1 - ratio ** (centre - 1)) / (1 - ratio)
    return float(ratio ** (centre - 1) / total)

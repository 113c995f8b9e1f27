"""Where each column lies and how wide it is, before second moments are looked at.

    Windows       of every column a centre and a half width, and what is told of it by now
    narrowed      by a release: a window of three times the width that stands out of the noise
    scaled        a transform that widens those that surely are narrow

Functions of releases and public numbers; why each is as it is: docs/privacy/whitened-tracking.md, "Columns".
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.means.free_presence_columns import ColumnMean, Columns

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

WINDOW = 3.0  # times the root mean square around the centre: beyond it are few
SURELY = 2.5  # deviations of noise: what may be there as well, and, twice that, what surely is
STILL = 0.5  # share of users at one place, above which a column's width is that of few users
USUAL = 0.3  # root mean square, in half ranges, to which columns that surely have less are widened
NARROWEST = 1e-3  # of a window, of the next one
WIDER = 2.0  # at most, of a window, the next one


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Of k columns; all of it is released."""

    centre: Vector  # (k,), of what is looked at next
    half: Vector  # (k,): half the width of it
    found: Matrix  # (2, k): centre and root mean square by what was released last
    still: Matrix  # (3, k): share of users at -1, 0 and 1, by all releases
    known: float  # precision of that

    @classmethod
    def declared(cls, k: int) -> "Windows":
        """All of every range."""
        whole = np.stack([np.zeros(k), np.ones(k)])
        return cls(whole[0], whole[1], whole, np.zeros((3, k)), 0.0)

    @property
    def held(self) -> NDArray[np.bool_]:
        """(k,): columns that most users surely have at one place."""
        found: NDArray[np.bool_] = self.still.max(axis=0) > STILL + SURELY * max(self.known, 1e-300) ** -0.5
        return found

    @property
    def both(self) -> Matrix:
        """(2, k)."""
        return np.stack([self.centre, self.half])


def narrowed(windows: Windows, released: Columns, share: float, mechanism: ColumnMean, *, constant: bool) -> Windows:
    """By a release, over `share` of users. The first one is of whole ranges, whose ends are public."""
    first = windows.known == 0.0
    errors = [each / share for each in mechanism.deviations]
    mean, spread, square = released.mean / share, np.maximum(released.spread / share, 0.0), released.square / share
    precision = errors[3] ** -2
    known = windows.known + precision
    still = windows.still + precision / known * (released.still / share - windows.still)
    moved = np.where(np.abs(mean) > SURELY * errors[0], mean, 0.0) if constant else np.zeros_like(mean)
    variance, error = square - moved**2, np.hypot(errors[2], 2 * np.abs(moved) * errors[0])
    seen = variance > 2 * SURELY * error
    width = np.sqrt(np.maximum(variance, 0.0) + np.where(seen, 0.0, SURELY * error))
    width = np.where(seen, width, np.minimum(width, spread + np.abs(moved) + SURELY * errors[1]))
    if first and constant:  # distances from an end of the range are all of one sign: their mean is known
        end = np.maximum(1 - np.abs(mean), 0.0) + SURELY * errors[0]
        near = (moved != 0) & (end < width) & ~seen
        moved, width = np.where(near, np.sign(mean), moved), np.where(near, end, width)
    centre = windows.centre + windows.half * moved
    found = np.stack([centre, windows.half * width])
    half = windows.half * np.clip(WINDOW * width, NARROWEST, 1.0 if first else WIDER)
    return Windows(centre, half, found, still, known)


def scaled(windows: Windows, *, constant: bool) -> Matrix:
    """(d, d): columns that surely fill little of their ranges, less their centres, as wide as is usual; others stay.

    Columns that most users have at one place stay, too: few have all that varies of them, and would be clipped.
    """
    centre, width = windows.found
    wider, k = np.where(windows.held, 1.0, np.maximum(USUAL / width, 1.0)), len(width)
    made = np.eye(k + constant)
    made[:k, :k] = np.diag(wider)
    if constant:
        made[-1, :k] = np.where(wider > 1, -centre * wider, 0.0)
    return made

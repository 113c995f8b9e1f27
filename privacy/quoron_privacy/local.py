"""The local model: what the coordinator makes of private reports, noisy bits that locate a mean and noisy vectors.

    >>> from quoron_privacy.noise.streams import SeededNoise
    >>> assign_coordinates(6, 3, SeededNoise(1).stream("public")).tolist()  # which of four each user reports
    [0, 3, 1, 2, 1, 0]

Reports are private before they come, so nothing here can harm a guarantee, and an adversarial report counts for as much
as one honest one.

Source: Bassily & Sun (2023), Algorithms 2 and 3. Statements and proofs: docs/privacy/local-model.md.
"""

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Mask, Matrix, Vector
from quoron_privacy.errors import ConfigError, positive
from quoron_privacy.means.clipping import clip_rows
from quoron_privacy.means.rotation import Signs, padded, rotate_back
from quoron_privacy.noise.streams import RandomStream

Bits = NDArray[np.float64] | NDArray[np.uint8]
Counts = NDArray[np.int64]


def assign_coordinates(users: int, dimension: int, stream: RandomStream) -> Counts:
    """Return a coordinate below d₂ for each user, shape (users,), group sizes within one of each other. Public."""
    return (stream.permutation(users) % padded(dimension)).astype(np.int64)


def count_bits(reports: Bits, answered: Mask, coordinates: Counts, groups: int) -> Counts:
    """Ones in each group's bins, shape (groups, t); reports (k, t), coordinates (k,) below `groups`.

    A report that is anything but zeros and ones is left out. Add the counts of chunks to have those of all.
    """
    if not len(reports) == len(answered) == len(coordinates):
        raise ConfigError(f"Expected a coordinate for each report, got {len(reports)} and {len(coordinates)}.")
    good = answered & ((reports == 0) | (reports == 1)).all(axis=1)
    counts = np.zeros((groups, reports.shape[1]), np.int64)
    order = np.flatnonzero(good)[np.argsort(coordinates[good], kind="stable")]
    if len(order):
        present, starts = np.unique(coordinates[order], return_index=True)
        counts[present] = np.add.reduceat(reports[order].astype(np.int64), starts, axis=0)
    return counts


def fullest_bins(counts: Counts, half_width: float) -> Vector:
    """Return the middle of each group's fullest bin on ±half_width, shape (groups,); 0 for a group without ones.

    With one group this is Algorithm 2, the range of a scalar.
    """
    positive(half_width=half_width)
    width = 2 * half_width / counts.shape[1]
    middles: Vector = (counts.argmax(axis=1) + 0.5) * width - half_width
    return np.where(counts.any(axis=1), middles, 0.0)


def crude_mean(counts: Counts, half_width: float, signs: Signs) -> Vector:
    """Return the point (d,) whose rotated coordinates are the fullest bins: Algorithm 3. Counts (d₂, t), signs (d,)."""
    if len(counts) != padded(len(signs)):
        raise ConfigError(f"Expected counts of {padded(len(signs))} coordinates, got {len(counts)}.")
    point: Vector = rotate_back(fullest_bins(counts, half_width), signs)[0]
    return point


def mean_of_reports(reports: Matrix, answered: Mask, centre: Vector, largest: float) -> Vector:
    """Return the mean of the vector reports, shape (d,); reports (k, d). None: `centre`.

    Each is first brought within `largest` of the centre (the radius plus the noise that is to be expected, so that
    honest reports stay as they are), which bounds what an adversarial one can do. Dividing by the number of reports is
    allowed: they are private already, and whether one arrives must not depend on the user's data.
    """
    with np.errstate(all="ignore"):
        differences = reports - centre
    usable = answered & np.isfinite(differences).all(axis=1)
    if not usable.any():
        return centre.copy()
    mean: Vector = centre + clip_rows(differences[usable], largest).mean(axis=0)
    return mean

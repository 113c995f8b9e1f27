"""The local model: how many noisy reports find a range, what a user spends on one or two, and what comes of them.

    >>> group_size(epsilon=1.0, bins=64, failure=1e-5)
    991

Every constant is exact: the printed 4 ln(t/γ)/ε² reports a coordinate are too few by a factor of about sixteen, and the
printed budget of a user who sends both reports is 1.5 ε.

Reports are private before the coordinator turns noisy bits into a crude mean and noisy vectors into a mean, so nothing
here can harm a guarantee, and an adversarial report counts for as much as one honest one.

Source: Bassily & Sun (2023), Algorithms 2 and 3. Statements and proofs: docs/privacy/local-model.md.
"""

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from quoron_privacy.arrays import Mask, Matrix, Vector
from quoron_privacy.errors import ConfigError, count, positive, probability
from quoron_privacy.means.clipping import clip_rows
from quoron_privacy.means.rotation import Signs, coordinate_bound, padded, rotate_back
from quoron_privacy.noise.streams import RandomStream

Bits = NDArray[np.float64] | NDArray[np.uint8]
Counts = NDArray[np.int64]


def group_size(*, epsilon: float, bins: int, failure: float) -> int:
    """Reports after which the fullest bin is one of two neighbours that hold all values, but with `failure`.

    ⌈ln(t / γ) / -ln M⌉ with M² the least over λ of the moment generating functions of (wrong bin - right bin) of one
    report from the right bin and one from its neighbour (local-model#r3).
    """
    positive(epsilon=epsilon)
    count(bins=bins)
    probability(failure=failure)
    flip = 1 / (math.exp(epsilon / 2) + 1)
    keep = 1 - flip

    def rate(tilt: float) -> float:
        up = flip * math.exp(tilt) + keep
        return (
            2 * math.log(up) + math.log(keep * math.exp(-tilt) + flip) + math.log(flip * math.exp(-tilt) + keep)
        ) / 2

    best = scipy.optimize.minimize_scalar(rate, bounds=(0.0, epsilon + 1), method="bounded", options={"xatol": 1e-10})
    return math.ceil(math.log(bins / failure) / -float(best.fun))  # every tilt gives a valid bound


def crude_mean_users(*, dimension: int, epsilon: float, bins: int, failure: float) -> int:
    """Users from whose range reports all d₂ rotated coordinates are found: d₂ groups, half of `failure` shared out.

    The other half is for the rotation.
    """
    length = padded(dimension)
    return length * group_size(epsilon=epsilon, bins=bins, failure=failure / (2 * length))


def centred_radius(spread: float, *, dimension: int, users: int, failure: float, width: float) -> float:
    """τ + √d₂ (τ_∞ + w/2): vectors within τ of one point lie this close to the crude mean (local-model#r4).

    `width` is w, a bin's; at least 2 τ_∞, τ_∞ = `coordinate_bound` of τ.
    """
    positive(spread=spread)
    deviation = coordinate_bound(spread, dimension=dimension, rows=users, failure=failure)
    if width < 2 * deviation * (1 - 1e-9):
        raise ConfigError(f"Expected width >= {2 * deviation:g}, so that two bins hold everybody, got width={width:g}.")
    return spread + math.sqrt(padded(dimension)) * (deviation + width / 2)


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

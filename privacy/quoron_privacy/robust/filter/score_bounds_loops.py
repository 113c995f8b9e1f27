"""The loops of `score_bounds`, on all threads: each piece of the users has sums of its own."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.kernels.shipped import njit
from quoron_privacy.kernels.threads import in_pieces
from quoron_privacy.robust.filter.concentration import Matrix, Vector
from quoron_privacy.robust.filter.concentration_loops import decay
from quoron_privacy.robust.filter.concentration_loops import distances as distances
from quoron_privacy.robust.filter.concentration_loops import pack as pack

PIECE = 1 << 12  # users whose sums one thread makes


def crowd(
    gradients: Matrix, centre: Vector, reach: float, near: NDArray[np.bool_], totals: Matrix, largest: Vector
) -> None:
    """`_crowd` of all users."""
    in_pieces(
        partial(_crowd, gradients, centre, reach, near, totals, largest), len(gradients), gradients.shape[1], PIECE
    )


def squares(gradients: Matrix, point: Vector, near: NDArray[np.bool_], out: Vector, totals: Vector) -> None:
    """`_squares` of all users."""
    in_pieces(partial(_squares, gradients, point, near, out, totals), len(gradients), gradients.shape[1], PIECE)


def jensen_of(
    found: Vector, spread: float, tau: float, scale: float, slack: float, members: int, dimension: int
) -> None:
    """`_jensen_of` all users."""
    in_pieces(partial(_jensen_of, found, spread, tau, scale, slack, members), len(found), dimension, PIECE)


@njit(cache=True)
def offset_means(gradients: Matrix, centre: Vector, order: NDArray[np.int64], ends: NDArray[np.int64]) -> Matrix:
    """Mean of q_j - centre over each shell: users ends[s - 1] to ends[s] of `order`."""
    means, first = np.zeros((len(ends), len(centre))), 0
    for s in range(len(ends)):
        for position in range(first, ends[s]):
            row = gradients[order[position]]
            for k in range(len(centre)):
                means[s, k] += row[k] - centre[k]
        means[s] /= ends[s] - first
        first = ends[s]
    return means


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _crowd(
    gradients: Matrix,
    centre: Vector,
    reach: float,
    near: NDArray[np.bool_],
    totals: Matrix,
    largest: Vector,
    first: int,
    last: int,
) -> None:
    """Users `first` to `last` within reach of the centre: marked in `near`; Σ (q_j - centre) and the largest distance.

    These are of the piece that begins at `first`.
    """
    # Sums may be in any order here: the bounds that are made of them have margins for that.
    total, farthest = np.zeros(len(centre)), 0.0
    for i in range(first, last):
        row, square = gradients[i], 0.0
        for k in range(len(centre)):
            square += (row[k] - centre[k]) * (row[k] - centre[k])
        radius = np.sqrt(square)
        near[i] = radius <= reach
        if near[i]:
            farthest = max(farthest, radius)
            for k in range(len(centre)):
                total[k] += row[k] - centre[k]
    totals[first // PIECE], largest[first // PIECE] = total, farthest


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _squares(
    gradients: Matrix, point: Vector, near: NDArray[np.bool_], out: Vector, totals: Vector, first: int, last: int
) -> None:
    """‖q_i - point‖² of users `first` to `last`, and the sum of those in `near`, of the piece that begins there."""
    total = 0.0
    for i in range(first, last):
        row, square = gradients[i], 0.0
        for k in range(len(point)):
            square += (row[k] - point[k]) * (row[k] - point[k])
        out[i] = square
        total += square if near[i] else 0.0
    totals[first // PIECE] = total


@njit(cache=True, nogil=True)
def _jensen_of(
    squares: Vector, spread: float, tau: float, scale: float, slack: float, members: int, first: int, last: int
) -> None:
    """members · exp(-τ (√(square + spread) (1 + scale) + slack)) of users `first` to `last`, in place."""
    for i in range(first, last):
        squares[i] = members * decay(tau * (np.sqrt(squares[i] + spread) * (1 + scale) + slack))


@njit(cache=True)
def decays(values: Vector) -> Vector:
    """`decay` of each."""
    out = np.empty(len(values))
    for i in range(len(values)):
        out[i] = decay(values[i])
    return out


@njit(cache=True)
def neighbour_sums(gaps: Vector) -> Vector:
    """Σ_j exp(-|s_i - s_j|) for sorted s with gaps[i] = s_{i+1} - s_i >= 0: one sweep up, one down."""
    total = np.ones(len(gaps) + 1)
    below = above = 0.0
    for i in range(len(gaps)):
        below = (below + 1.0) * decay(gaps[i])
        total[i + 1] += below
        last = len(gaps) - 1 - i
        above = (above + 1.0) * decay(gaps[last])
        total[last] += above
    return total

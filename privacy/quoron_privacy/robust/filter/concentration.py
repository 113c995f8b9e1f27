"""Concentration scores: how close a user's answer lies to everyone else's, κ_i = Σ_j exp(-τ‖q_i - q_j‖), own term 1.

    >>> import numpy as np
    >>> scores(np.array([[0.0, 0.0], [0.0, 0.0], [1e9, 0.0]]), tau=1.0)
    array([2., 2., 1.])

The norm is ℓ2, or ℓ∞ for boxes (docs/privacy/linf-filter.md): all else is the same.

Every term is computed from its two rows alone, in double precision from direct differences, and rounded to a multiple
of 2⁻³⁴. Sums of such terms are exact, so a score depends neither on the order of users nor on the number of threads,
and replacing one user moves every other *computed* score by at most one, without any rounding slack. The expansion
‖a‖² + ‖b‖² - 2⟨a, b⟩ is never used: it lets one user's magnitude change all scores at once.

Source: Ghazi, Kumar, Liu & Manurangsi, "Nearly linear-time user-level DP-SCO", Algorithm 2. Sensitivities, error bound
and symbols: docs/privacy/concentration-score.md.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import numba
import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from quoron_privacy.errors import ConfigError, count
from quoron_privacy.kernels.threads import in_pieces

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Norm = Literal["l2", "linf"]
Blocks = NDArray[np.float64]  # (blocks, d, BLOCK): rows of the matrix as columns, padded with zeros

RESOLUTION = 2.0**-34  # every kernel entry is a multiple of it
LARGEST_COHORT = 2**19  # beyond it sums of such entries, kept in 53 bits, would no longer be exact
SMALLEST_TAU, LARGEST_TAU = 1e-120, 1e120  # squares of distances that matter neither overflow nor vanish
BLOCK = 64
UNIT_ROUNDOFF = 2.0**-53
DECAY_ERROR = 1e-12  # of _decay against exp(-x), relative for x < 25
_PIECE = 1 << 12  # rows that one thread looks at
_SMALL = 1 << 22  # differences below which starting threads costs more than it saves


@njit(cache=True)
def _decay(x: float) -> float:
    """exp(-x) for 0 <= x < 25, exp(-25) beyond: the 256th power of a Taylor polynomial, in plain IEEE operations.

    A library's exponential may differ by position in a vector; then an entry would not be a function of two rows.
    """
    y = (x if x < 25.0 else 25.0) * (1.0 / 256.0)
    series = 1.0 - y * (1.0 / 7.0 - y * (1.0 / 56.0))
    series = 1.0 / 120.0 - y * (1.0 / 720.0) * series
    series = 1.0 - y * (1.0 / 2.0 - y * (1.0 / 6.0 - y * (1.0 / 24.0 - y * series)))
    power = 1.0 - y * series
    for _ in range(8):
        power = power * power
    return power


@njit(cache=True)
def _squared_distances(row: Vector, columns: Matrix, out: Vector) -> None:
    """‖row - column‖² for each of BLOCK columns; the order of summation is that of the coordinates."""
    for j in range(BLOCK):
        out[j] = 0.0
    for k in range(len(row)):
        coordinate = row[k]
        for j in range(BLOCK):
            difference = coordinate - columns[k, j]
            out[j] += difference * difference


@njit(cache=True)
def _largest_differences(row: Vector, columns: Matrix, out: Vector) -> None:
    """‖row - column‖∞ for each of BLOCK columns."""
    for j in range(BLOCK):
        out[j] = 0.0
    for k in range(len(row)):
        coordinate = row[k]
        for j in range(BLOCK):
            difference = abs(coordinate - columns[k, j])
            out[j] = difference if difference > out[j] else out[j]


@njit(cache=True)
def _lengths(row: Vector, columns: Matrix, coordinatewise: bool, out: Vector) -> None:
    """‖row - column‖, or ‖row - column‖∞, for each of BLOCK columns."""
    if coordinatewise:
        _largest_differences(row, columns, out)
    else:
        _squared_distances(row, columns, out)
        for j in range(BLOCK):
            out[j] = math.sqrt(out[j])


@njit(cache=True)
def _kernel(row: Vector, columns: Matrix, used: int, tau: float, coordinatewise: bool, out: Vector) -> None:
    """exp(-τ‖row - column‖), rounded to a multiple of RESOLUTION; zero for the columns that only pad."""
    _lengths(row, columns, coordinatewise, out)
    for j in range(BLOCK):
        out[j] = np.floor(_decay(tau * out[j]) * 2.0**34 + 0.5) * 2.0**-34
    for j in range(used, BLOCK):
        out[j] = 0.0


@njit(cache=True, fastmath={"reassoc"})
def _exact_sum(values: Vector) -> float:
    """Sum of multiples of RESOLUTION: exact, so its order is free."""
    total = 0.0
    for value in values:
        total += value
    return total


@njit(cache=True)
def _pack(gradients: Matrix, blocks: Blocks) -> None:
    users, dimension = gradients.shape
    for block in range(len(blocks)):
        first = block * BLOCK
        for j in range(min(BLOCK, users - first)):
            for k in range(dimension):
                blocks[block, k, j] = gradients[first + j, k]


@njit(cache=True, nogil=True)
def _all_pairs(
    gradients: Matrix, blocks: Blocks, tau: float, coordinatewise: bool, lane: int, lanes: int, total: Vector
) -> None:
    """Each unordered pair of blocks once; lanes take block rows to and fro, so that they do equal work."""
    users, height = len(gradients), len(blocks)
    entries = np.empty(BLOCK)
    for turn in range((height + lanes - 1) // lanes):
        upper = turn * lanes + (lane if turn % 2 == 0 else lanes - 1 - lane)
        for lower in range(upper, height):
            first = lower * BLOCK
            used = min(BLOCK, users - first)
            for i in range(upper * BLOCK, min((upper + 1) * BLOCK, users)):
                _kernel(gradients[i], blocks[lower], used, tau, coordinatewise, entries)
                total[i] += _exact_sum(entries)
                if lower > upper:
                    for j in range(used):
                        total[first + j] += entries[j]


@njit(cache=True, nogil=True)
def _some_rows(
    points: Matrix,
    blocks: Blocks,
    users: int,
    tau: float,
    coordinatewise: bool,
    lane: int,
    lanes: int,
    total: Vector,
) -> None:
    entries = np.empty(BLOCK)
    for block in range(lane, len(blocks), lanes):
        for i in range(len(points)):
            _kernel(points[i], blocks[block], min(BLOCK, users - block * BLOCK), tau, coordinatewise, entries)
            total[i] += _exact_sum(entries)


def _on_lanes(loop: Callable[..., None], *arguments: Any, size: int, work: float, threads: int | None) -> Vector:
    """Sum over lanes of what `loop` adds up in each: exact sums, so any number of lanes gives the same bits."""
    lanes = numba.config.NUMBA_NUM_THREADS if threads is None else threads  # type: ignore[attr-defined]
    lanes = lanes if work > _SMALL else 1
    partial = np.zeros((lanes, size))
    if lanes == 1:
        loop(*arguments, 0, 1, partial[0])
    else:
        with ThreadPoolExecutor(lanes) as pool:
            for done in [pool.submit(loop, *arguments, lane, lanes, partial[lane]) for lane in range(lanes)]:
                done.result()
    total: Vector = partial.sum(axis=0)
    return total


@njit(cache=True)
def _distances(blocks: Blocks, point: Vector, coordinatewise: bool, out: Vector) -> None:
    lengths = np.empty(BLOCK)
    for block in range(len(blocks)):
        _lengths(point, blocks[block], coordinatewise, lengths)
        first = block * BLOCK
        for j in range(min(BLOCK, len(out) - first)):
            out[first + j] = lengths[j]


def pack(gradients: Matrix) -> Blocks:
    """Copy of `gradients` (k, d) in blocks of BLOCK columns, the layout in which distances are computed."""
    blocks = np.zeros((-(-len(gradients) // BLOCK), gradients.shape[1], BLOCK))
    _pack(gradients, blocks)
    return blocks


def distances(blocks: Blocks, point: Vector, users: int, norm: Norm = "l2") -> Vector:
    """‖q_i - point‖ for the first `users` packed rows, relative error at most (d/2 + 2)·2⁻⁵³; overflow gives inf."""
    out = np.empty(users)
    _distances(blocks, point, norm == "linf", out)
    return out


def checked_rows(gradients: ArrayLike, tau: float) -> Matrix:
    """`gradients` as a contiguous float64 matrix, with `tau` and the shape checked; errors never depend on values.

    Raises:
        ConfigError: a wrong shape, a cohort above LARGEST_COHORT, or tau outside [1e-120, 1e120].
    """
    rows = np.ascontiguousarray(gradients, dtype=np.float64)
    if rows.ndim != 2:
        raise ConfigError(f"Expected gradients of shape (users, dimension), got shape {rows.shape}.")
    if len(rows) > LARGEST_COHORT:
        raise ConfigError(f"Expected a cohort of at most {LARGEST_COHORT:,} users, got {len(rows):,}.")
    if not SMALLEST_TAU <= tau <= LARGEST_TAU:
        raise ConfigError(f"Expected tau in [{SMALLEST_TAU:g}, {LARGEST_TAU:g}], got tau={tau}.")
    return rows


def usable(gradients: Matrix, answered: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows that enter the arithmetic: answered, and finite by a look at that row only. Shape (k,)."""
    if answered.shape != (len(gradients),) or answered.dtype != np.bool_:
        raise ConfigError(
            f"Expected boolean answered of shape ({len(gradients)},), got {answered.dtype} {answered.shape}."
        )
    out = np.empty(len(gradients), np.bool_)
    in_pieces(partial(_finite, gradients, answered, out), len(gradients), gradients.shape[1], _PIECE)
    return out


@njit(cache=True, nogil=True, fastmath={"reassoc"})
def _finite(gradients: Matrix, answered: NDArray[np.bool_], out: NDArray[np.bool_], first: int, last: int) -> None:
    """Rows `first` to `last` that are answered and finite."""
    for i in range(first, last):
        row, total = gradients[i], 0.0
        for k in range(len(row)):
            total += 0.0 * row[k]  # 0 · v is 0 for finite v, else NaN
        out[i] = answered[i] and total == 0.0


def scores(gradients: ArrayLike, tau: float, *, norm: Norm = "l2", threads: int | None = None) -> Vector:
    """κ_i = Σ_j exp(-τ‖q_i - q_j‖), all pairs; shapes (k, d) and (k,), entries of the result in [1, k].

    Rows must be finite; of any magnitude (distances that overflow count as infinite). Costs k²·d/2 differences and
    O(k·d) memory. Within `score_error` of the real-number score. Same bits for any number of threads (by default
    numba's), and permuting the rows permutes the result bit by bit.

    Raises:
        ConfigError: see `checked_rows`.
    """
    rows = checked_rows(gradients, tau)
    each, work = norm == "linf", rows.size * len(rows) / 2
    return _on_lanes(_all_pairs, rows, pack(rows), tau, each, size=len(rows), work=work, threads=threads)


def scores_of(
    gradients: ArrayLike, indices: NDArray[np.int64], tau: float, *, norm: Norm = "l2", threads: int | None = None
) -> Vector:
    """The same bits as `scores(gradients, tau)[indices]`, at k·d differences an index; shape (len(indices),)."""
    rows = checked_rows(gradients, tau)
    points, work, each = rows[indices], float(rows.size * len(indices)), norm == "linf"
    return _on_lanes(_some_rows, points, pack(rows), len(rows), tau, each, size=len(points), work=work, threads=threads)


def cohort_scores(gradients: ArrayLike, answered: NDArray[np.bool_], tau: float, *, norm: Norm = "l2") -> Vector:
    """Scores of all slots, shape (k,): a slot without a usable answer is isolated, scores 1 and adds 0 to others."""
    rows = checked_rows(gradients, tau)
    present = usable(rows, answered)
    result = np.ones(len(rows))
    result[present] = scores(rows[present], tau, norm=norm)
    return result


def score_error(cohort_size: int, dimension: int) -> float:
    """Certified bound on |computed - real| for every score; the accountant adds it to Δ (twice), k₁ and k₂.

    Per entry: 2⁻³⁵ from rounding to RESOLUTION, DECAY_ERROR from the exponential, and (d/2 + 3)·2⁻⁵³/e (with slack)
    from the distance; the own entry and the sum are exact. The ℓ∞ distance rounds once, so the bound holds for it too.
    Derivation: docs/privacy/concentration-score.md.
    """
    count(cohort_size=cohort_size, dimension=dimension)
    return (cohort_size - 1) * (RESOLUTION / 2 + DECAY_ERROR + (0.2 * dimension + 2.0) * UNIT_ROUNDOFF)

"""Means of rows that say, for nothing, how many users answered: a length, a second moment, a clipped vector's tail.

    >>> from quoron_privacy.noise import SeededNoise
    >>> length = LogLength.for_mu(users=1000, mu=0.05)
    >>> logs = np.log(np.full(1000, 0.1))
    >>> length.release(logs, np.ones(1000, bool), 1.0, SeededNoise(1).stream("length")).presence > 0.9
    True

Whoever is asked answers or counts as the zero row, and the divisor n is public: the users of a round, as planned. A
mechanism's rows are laid out so that two users who answer are as far apart as a user and nobody: a coordinate that says
"here" then costs no privacy, and the mean of it is the noisy share of users who answered.

| mechanism    | row of a user who answers, replace-one                   | two rows are apart |
| ------------ | -------------------------------------------------------- | ------------------ |
| `LogLength`  | (ℓ, √¾), ℓ the logarithm of a length scaled into [-½, ½] | 1                  |
| `MomentMean` | (A / B into the unit Frobenius ball, 1), A a moment      | √2                 |
| `TailMean`   | (v / C into the unit ball, √2 (1 - a), 1[a ≤ ⅔], 1)      | 2                  |
| `PrefixTail` | the same, the first part with noise that is correlated   | 2                  |

a is the length of the clipped vector. With zero-out the same coordinates are weighted to a norm of 1, which halves the
noise. All rows are whole numbers of a grid, rounded in the direction that only brings them together.
Statements and proofs: docs/privacy/free-presence.md, theorems P1 to P4.
"""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from quoron_privacy.clipping import acute_sensitivity, mean_sensitivity, shrink, sum_bits
from quoron_privacy.errors import ConfigError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.moment import packed
from quoron_privacy.noise import NoiseSource, RandomStream
from quoron_privacy.prefix.noise import DEFAULT, PrefixNoise, PrefixState
from quoron_privacy.release import Adjacency, Release
from quoron_privacy.validate import count

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]

SPAN = 4.0  # a logarithm of a length is looked at from the largest down to this far below
_HERE = 0.8660254  # below √¾
# Weights of (value, tail, within, here), below (1, √2, 1, 1) and below (√(1-γ²), √(1-γ²)/√2, √(1-γ²)/√2, γ), γ² = 0.1.
_WEIGHTS = {
    "replace-one": (1.0, 1.4142135, 1.0, 1.0),
    "zero-out": (0.9486832, 0.6708203, 0.6708203, 0.3162277),
}
_ULP, _ROUNDOFF = 2.0**-52, 2.0**-53


class Length(NamedTuple):
    """A release of `LogLength`; noise included, so any number."""

    mean: float  # of ℓ over n
    presence: float


class Moment(NamedTuple):
    """A release of `MomentMean`."""

    mean: Matrix  # (d, d), symmetric
    presence: float


class Tail(NamedTuple):
    """A release of `TailMean`."""

    mean: Vector  # of clipped rows over n, in units of the radius, (d,)
    beyond: float  # 1 - a, over n
    within: float  # share of n with a <= 2/3
    presence: float
    clipped: int  # users farther than the radius: private, for diagnostics alone


@dataclass(frozen=True, slots=True)
class LogLength:
    """N(0, scale²) on the mean of (ℓ, √¾), ℓ = clip(ln(top / length), 0, 4) / 4 - ½.

    Formal guarantee: `effective_mu`-GDP with exact noise under either adjacency (theorem P1), for every length of every
    user. It draws two Gaussian samples.

    | input                              | what happens                          |
    | ---------------------------------- | ------------------------------------- |
    | length 0 or above `top`            | as the least or the largest           |
    | logarithm NaN, or an absent user   | the zero row; the divisor stays       |
    """

    users: int  # n, the divisor
    scale: float  # of each coordinate

    def __post_init__(self) -> None:
        count(users=self.users)
        _ = self._gaussian

    @classmethod
    def for_mu(cls, *, users: int, mu: float) -> "LogLength":
        """The least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
        return cls(users, GaussianNoise.for_mu(sensitivity=_one(users), mu=mu, dimension=2).scale)

    @property
    def effective_mu(self) -> float:
        """μ of the release."""
        return self._gaussian.effective_mu(2)

    @property
    def deviation(self) -> float:
        """Of the mean of the logarithm, in nats."""
        return SPAN * self.scale

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer."""
        return self.scale / _HERE

    def release(self, logs: Vector, answered: Mask, top: float, stream: RandomStream) -> Length:
        """From the logarithm of every user's length (k,), -inf for 0; `top` is public, or released."""
        usable = answered & ~np.isnan(logs)
        fall = np.clip(np.log(top) - np.where(usable, logs, 0.0), 0.0, SPAN)
        unit = 2.0 ** sum_bits(len(logs), self.users)
        scaled = np.where(usable, np.rint((fall / SPAN - 0.5) * unit), 0.0).astype(np.int64)  # within ± unit / 2
        row = np.array([float(scaled.sum()) / unit, _HERE * float(usable.sum())])
        value, here = self._gaussian.release(row / self.users, stream).tolist()
        return Length(value, here / _HERE)

    def entry(self) -> Release:
        """The ledger entry of the release."""
        return Release("log-length", {"sensitivity": _one(self.users), "scale": self.scale, "divisor": self.users})

    @property
    def _gaussian(self) -> GaussianNoise:
        return GaussianNoise(_one(self.users), self.scale)


@dataclass(frozen=True, slots=True)
class MomentMean:
    """Symmetric Gaussian noise on the mean of (A / B, 1), A = Lᵀ Uᵀ U L scaled into the Frobenius ball of radius B.

    U is the triangular factor that a user sends, L and B are public or released. Variance is scale² on the diagonal,
    half of it off, one draw a pair.

    Formal guarantee: `effective_mu`-GDP with exact noise (theorem P2) for every answer of every user: A is positive
    semidefinite whatever was sent. It draws d (d + 1) / 2 + 1 Gaussian samples.

    | input                            | what happens                                     |
    | -------------------------------- | ------------------------------------------------ |
    | ‖A‖ above B                      | scaled down to it                                |
    | non-finite factor, absent user   | the zero row, presence too; the divisor stays    |
    """

    dimension: int  # d
    users: int  # n, the divisor
    adjacency: Adjacency
    scale: float  # s: of a diagonal entry of the mean of A / B

    def __post_init__(self) -> None:
        count(dimension=self.dimension, users=self.users)
        _ = self._gaussian

    @classmethod
    def for_mu(cls, *, dimension: int, users: int, mu: float, adjacency: Adjacency = "replace-one") -> "MomentMean":
        """The least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
        weight, sensitivity = _WEIGHTS[adjacency][0], _moment_sensitivity(dimension, users, adjacency)
        noise = GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=packed(dimension) + 1)
        return cls(dimension, users, adjacency, noise.scale / weight)

    @property
    def sensitivity(self) -> float:
        """Of the weighted row's mean, rounding included."""
        return _moment_sensitivity(self.dimension, self.users, self.adjacency)

    @property
    def effective_mu(self) -> float:
        """μ of the release."""
        return self._gaussian.effective_mu(packed(self.dimension) + 1)

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer."""
        weights = _WEIGHTS[self.adjacency]
        return self.scale * weights[0] / weights[3]

    def release(
        self, factors: Matrix, answered: Mask, transform: Matrix, radius: float, stream: RandomStream
    ) -> Moment:
        """The noisy mean of A, in its own units; `factors` (k, d (d + 1) / 2) packed by rows, `transform` L (d, d)."""
        d, weights = self.dimension, _WEIGHTS[self.adjacency]
        rows = _checked(factors, packed(d))
        bits = sum_bits(len(rows), self.users)
        total, here = _sum_moments(rows, answered, np.ascontiguousarray(transform), radius, 2.0**bits)
        across, down = np.triu_indices(d)
        isometric = np.where(across == down, 1.0, sqrt(2.0))
        mean = total.astype(np.float64) * isometric * (weights[0] / 2.0**bits / self.users)
        noised = self._gaussian.release(np.append(mean, weights[3] * here / self.users), stream)
        symmetric = np.empty((d, d))
        symmetric[across, down] = symmetric[down, across] = noised[:-1] / isometric * (radius / weights[0])
        return Moment(symmetric, float(noised[-1]) / weights[3])

    def entry(self) -> Release:
        """The ledger entry of the release, for a radius of 1."""
        parameters = {"sensitivity": self.sensitivity, "scale": self._gaussian.scale, "divisor": self.users}
        return Release("moment-mean", parameters | {"dimension": self.dimension})

    @property
    def _gaussian(self) -> GaussianNoise:
        return GaussianNoise(self.sensitivity, self.scale * _WEIGHTS[self.adjacency][0])


@dataclass(frozen=True, slots=True)
class TailMean:
    """N(0, scale²) on the mean of (c, √2 (1 - a), 1[a ≤ ⅔], 1), c = v / C scaled into the unit ball and a = ‖c‖.

    v = Lᵀ g - c₀ for the vector g that a user sends; L, c₀ and C are public or released.

    Formal guarantee: `effective_mu`-GDP with exact noise (theorem P3) for every answer of every user. The mean, how far
    users stay within the radius, which share stays well within, and which share answers, for the price of the mean
    alone. It draws d + 3 Gaussian samples.

    | input                               | what happens                                     |
    | ----------------------------------- | ------------------------------------------------ |
    | ‖v‖ above C                         | scaled down to it, a = 1                         |
    | v not finite, absent user           | the zero row, presence too; the divisor stays    |
    """

    dimension: int  # d
    users: int  # n, the divisor
    adjacency: Adjacency
    scale: float  # of a coordinate of the mean of c

    def __post_init__(self) -> None:
        count(dimension=self.dimension, users=self.users)
        _ = self._gaussian

    @classmethod
    def for_mu(cls, *, dimension: int, users: int, mu: float, adjacency: Adjacency = "replace-one") -> "TailMean":
        """The least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
        sensitivity = mean_sensitivity(1.0, users, adjacency)
        noise = GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=dimension + 3)
        return cls(dimension, users, adjacency, noise.scale / _WEIGHTS[adjacency][0])

    @property
    def effective_mu(self) -> float:
        """μ of the release."""
        return self._gaussian.effective_mu(self.dimension + 3)

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer, and with replace-one of the other shares."""
        weights = _WEIGHTS[self.adjacency]
        return self.scale * weights[0] / weights[3]

    def release(
        self,
        values: Matrix,
        answered: Mask,
        transform: Matrix | None,
        centre: Vector | None,
        radius: float,
        stream: RandomStream,
    ) -> Tail:
        """From every user's vector (k, p), `transform` L (p, d), None for none, `centre` (d,), None for zero."""
        row, clipped = _tail_row(values, answered, transform, centre, radius, self.users, self.adjacency)
        return _told(self._gaussian.release(row, stream), self.adjacency, clipped)

    def entry(self) -> Release:
        """The ledger entry of the release, for a radius of 1."""
        noise = self._gaussian
        parameters = {"sensitivity": noise.sensitivity, "scale": noise.scale, "divisor": self.users}
        return Release("tail-mean", parameters | {"dimension": self.dimension})

    @property
    def _gaussian(self) -> GaussianNoise:
        return GaussianNoise(
            mean_sensitivity(1.0, self.users, self.adjacency), self.scale * _WEIGHTS[self.adjacency][0]
        )


@dataclass(frozen=True, slots=True)
class PrefixTail:
    """The rows of `TailMean` over T rounds, each of other users: c with correlated noise, the shares with their own.

    Noise of the sums Σ_j mean of c is that of `prefix`; that of a round's shares is N(0, (s / κ)²), s the scale and κ
    the column norm of `prefix`. A radius multiplies what is released.

    Formal guarantee: for a user of one round all rounds together are `effective_mu`-GDP with exact noise (theorem P4),
    for every answer of every user. A round draws d + 3 Gaussian samples.

    | input                               | what happens                                     |
    | ----------------------------------- | ------------------------------------------------ |
    | ‖v‖ above C                         | scaled down to it, a = 1                         |
    | v not finite, absent user           | the zero row, presence too; the divisor stays    |
    | a release after the last round      | RunError: the column norm counts the rounds      |
    """

    dimension: int  # d
    users: int  # n of a round, the divisor
    adjacency: Adjacency
    scale: float  # s, of the seed noise of a weighted row
    rounds: int  # T
    factorisation: str = DEFAULT

    def __post_init__(self) -> None:
        count(dimension=self.dimension, users=self.users)
        _ = self.prefix, self._gaussian

    @classmethod
    def for_mu(
        cls,
        *,
        dimension: int,
        users: int,
        mu: float,
        rounds: int,
        factorisation: str = DEFAULT,
        adjacency: Adjacency = "replace-one",
    ) -> "PrefixTail":
        """The least noise for μ-GDP rounds; Infeasible if rounding to the grid alone costs μ."""
        made = PrefixNoise.for_mu(
            rounds=rounds,
            sensitivity=mean_sensitivity(1.0, users, adjacency),
            mu=mu,
            dimension=dimension + 3,
            factorisation=factorisation,
        )
        return cls(dimension, users, adjacency, made.scale, rounds, factorisation)

    @property
    def effective_mu(self) -> float:
        """μ of all rounds."""
        return self.prefix.effective_mu(self.dimension + 3)

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer."""
        return self._gaussian.scale / _WEIGHTS[self.adjacency][3]

    @property
    def prefix(self) -> PrefixNoise:
        """The noise of the weighted sums."""
        sensitivity = mean_sensitivity(1.0, self.users, self.adjacency)
        return PrefixNoise(self.rounds, sensitivity, self.scale, self.factorisation)

    @property
    def seed_scale(self) -> float:
        """Seed noise of a coordinate of the mean of c."""
        return self.scale / _WEIGHTS[self.adjacency][0]

    def start(self) -> PrefixState:
        """The state before the first round."""
        return self.prefix.start(self.dimension)

    def release(
        self, state: PrefixState, values: Matrix, answered: Mask, radius: float, noise: NoiseSource
    ) -> tuple[Tail, PrefixState]:
        """What a round adds to the sum, and its shares, from every user's vector (k, d); and the next state."""
        row, clipped = _tail_row(values, answered, None, None, radius, self.users, self.adjacency)
        made = self.prefix
        _, after = made.release(state, row[:-3], noise)
        added = (after.total - state.total).astype(np.float64) * made.step
        shares = self._gaussian.release(row[-3:], noise.stream("shares", state.round))
        return _told(np.concatenate([added, shares]), self.adjacency, clipped), after

    def entry(self) -> Release:
        """The ledger entry of all rounds, for a radius of 1."""
        made = self.prefix
        parameters = {"sensitivity": made.sensitivity, "scale": made.scale, "divisor": self.users}
        return Release(f"prefix-tail-{self.factorisation}", parameters | {"rounds": self.rounds})

    @property
    def _gaussian(self) -> GaussianNoise:
        made = self.prefix
        return GaussianNoise(made.sensitivity, made.scale / made.column_norm)


def moment_logs(factors: Matrix, transform: Matrix) -> Vector:
    """ln ‖Lᵀ Uᵀ U L‖ in Frobenius norm for every factor (k, d (d + 1) / 2), shape (k,); NaN where not finite."""
    d = len(transform)
    rows, out = _checked(factors, packed(d)), np.empty(len(factors))
    _moment_logs(rows, np.ascontiguousarray(transform), out)
    return out


def vector_logs(values: Matrix, transform: Matrix) -> Vector:
    """ln ‖Lᵀ g‖ for every vector (k, p), shape (k,); NaN where not finite."""
    rows, out = _checked(values, len(transform)), np.empty(len(values))
    _vector_logs(rows, np.ascontiguousarray(transform), out)
    return out


def _tail_row(
    values: Matrix,
    answered: Mask,
    transform: Matrix | None,
    centre: Vector | None,
    radius: float,
    users: int,
    adjacency: Adjacency,
) -> tuple[Vector, int]:
    """The mean of the weighted rows, shape (d + 3,), and how many were clipped: private."""
    none = np.zeros((0, 0)) if transform is None else np.ascontiguousarray(transform)
    rows = np.ascontiguousarray(values, np.float64) if transform is None else _checked(values, len(transform))
    around = np.zeros(rows.shape[1] if transform is None else transform.shape[1]) if centre is None else centre
    bits = sum_bits(len(rows), users)
    total, shares, clipped = _sum_tails(rows, answered, none, around, radius, 2.0**bits)
    weights, unit = np.array(_WEIGHTS[adjacency]), np.array([1.0, 2.0**-bits, 1.0, 1.0])  # the tail is in steps, too
    means = np.concatenate([total * (weights[0] / 2.0**bits), shares * (weights * unit)[1:]]) / users
    return means, int(clipped)


def _told(noised: Vector, adjacency: Adjacency, clipped: int) -> Tail:
    """From the noised mean of weighted rows."""
    weights = _WEIGHTS[adjacency]
    beyond, within, here = (noised[-3:] / weights[1:]).tolist()
    return Tail(noised[:-3] / weights[0], beyond, within, here, clipped)


def _checked(values: Matrix, length: int) -> Matrix:
    rows = np.ascontiguousarray(values, np.float64)
    if rows.ndim != 2 or rows.shape[1] != length:
        raise ConfigError(f"Expected rows of {length} numbers, got shape {rows.shape}.")
    return rows


def _one(users: int) -> float:
    """Of a mean of rows no two of which are farther apart than 1, nor any from the zero row."""
    return mean_sensitivity(1.0, users, "zero-out")


def _moment_sensitivity(dimension: int, users: int, adjacency: Adjacency) -> float:
    """√2 / n or 1 / n, with what the products and the grid add to a unit moment: see theorem P2."""
    off = 1.01 * (dimension + 4) * sqrt(dimension) * _ROUNDOFF + dimension * 2.0 ** -sum_bits(0, users)
    return acute_sensitivity(1.0, users, adjacency) * (1 + 3 * off)


@njit(cache=True)
def _whiten_moment(factor, transform, product, moment):  # type: ignore[no-untyped-def]
    """(largest entry m, Frobenius norm) of Lᵀ (U / m)ᵀ (U / m) L, left in `moment`; m = -1 where it is not finite.

    No library product: its order of additions, so its bits, may change with the number of threads.
    """
    d = len(transform)
    largest, finite = 0.0, True
    for value in factor:
        finite &= np.isfinite(value)
        largest = max(largest, abs(value))
    if not finite:
        return -1.0, 0.0
    if largest == 0.0:
        moment[:] = 0.0
        return 1.0, 0.0
    place = 0
    for i in range(d):
        product[i, :] = 0.0
        for j in range(i, d):
            weight = factor[place] / largest
            place += 1
            if weight != 0.0:
                for c in range(d):
                    product[i, c] += weight * transform[j, c]
    moment[:] = 0.0
    for i in range(d):
        for r in range(d):
            weight = product[i, r]
            for c in range(r, d):
                moment[r, c] += weight * product[i, c]
    square = 0.0
    for r in range(d):
        square += moment[r, r] ** 2
        for c in range(r + 1, d):
            square += 2 * moment[r, c] ** 2
    return (largest, np.sqrt(square)) if np.isfinite(square) else (-1.0, 0.0)


@njit(cache=True)
def _moment_logs(factors, transform, out):  # type: ignore[no-untyped-def]
    d = len(transform)
    product, moment = np.empty((d, d)), np.empty((d, d))
    for user in range(len(factors)):
        largest, norm = _whiten_moment(factors[user], transform, product, moment)
        if largest < 0:
            out[user] = np.nan
        else:
            out[user] = np.log(norm) + 2 * np.log(largest) if norm > 0 else -np.inf


@njit(cache=True)
def _sum_moments(factors, answered, transform, radius, unit):  # type: ignore[no-untyped-def]
    """Exact Σ ⌊A · unit / B⌋ towards zero over answered rows, upper triangle by rows, and how many rows there are."""
    d = len(transform)
    total, here = np.zeros(d * (d + 1) // 2, np.int64), 0
    product, moment = np.empty((d, d)), np.empty((d, d))
    for user in range(len(factors)):
        if not answered[user]:
            continue
        largest, norm = _whiten_moment(factors[user], transform, product, moment)
        if largest < 0:
            continue
        here += 1
        if norm == 0.0:
            continue
        above = norm * (1 + (d * d + 8) * _ULP)
        times = min(largest / radius * largest, 1.0 / above)
        place = 0
        for r in range(d):
            for c in range(r, d):
                total[place] += np.int64(moment[r, c] * times * unit)
                place += 1
    return total, here


@njit(cache=True)
def _whiten(value, transform, centre, out):  # type: ignore[no-untyped-def]
    for j in range(len(out)):
        out[j] = -centre[j]
    if len(transform) == 0:
        for j in range(len(out)):
            out[j] += value[j]
        return
    for i in range(len(value)):
        for j in range(len(out)):
            out[j] += value[i] * transform[i, j]


@njit(cache=True)
def _vector_logs(values, transform, out):  # type: ignore[no-untyped-def]
    row, zero = np.empty(transform.shape[1]), np.zeros(transform.shape[1])
    for user in range(len(values)):
        _whiten(values[user], transform, zero, row)
        largest, s, _ = shrink(row, 1.0)
        if s < 0:
            out[user] = np.nan
        elif s == 0:
            out[user] = -np.inf
        else:
            square = 0.0
            for value in row:
                square += (value / largest) ** 2
            out[user] = np.log(largest) + 0.5 * np.log(square)


@njit(cache=True)
def _sum_tails(values, answered, transform, centre, radius, unit):  # type: ignore[no-untyped-def]
    """Over answered rows: exact Σ ⌊c · unit⌋ towards zero; Σ ⌊(1 - a) unit⌋, how many a ≤ ⅔, how many; clipped ones.

    With a' = 1 - ⌊(1 - a) unit⌋ / unit, of a rounded up, ‖c as added‖ ≤ a', and a' ≤ ⅔ is decided in whole numbers.
    """
    d = len(centre)
    total, shares, clipped = np.zeros(d, np.int64), np.zeros(3, np.int64), 0
    row = np.empty(d)
    for user in range(len(values)):
        if not answered[user]:
            continue
        _whiten(values[user], transform, centre, row)
        largest, s, _ = shrink(row, radius)
        if s < 0:
            continue
        square = 0.0
        for j in range(d):
            row[j] = row[j] / largest
            square += row[j] ** 2
        a = np.sqrt(square) * (1 + (d + 8) * _ULP) * s * (1 + 4 * _ULP)  # above ‖row · s‖
        tail = np.int64(max(1.0 - a, 0.0) * unit * (1 - 4 * _ULP))
        clipped += s < largest / radius
        for j in range(d):
            total[j] += np.int64(row[j] * s * unit)
        shares[0] += tail
        shares[1] += 3 * tail >= np.int64(unit)
        shares[2] += 1
    return total, shares, clipped

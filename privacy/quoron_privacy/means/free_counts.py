"""Means of rows that count the users who answered at no extra cost: clipped vectors, moments, lengths and columns.

    >>> from quoron_privacy.noise.streams import SeededNoise
    >>> length = LogLength.for_mu(users=1000, mu=0.05)
    >>> sums = LengthSum(users=1000, transform=np.eye(1), top=1.0).of(np.full((1000, 1), 0.3), np.ones(1000, bool))
    >>> length.release(sums, SeededNoise(1).stream("length")).presence > 0.9
    True

An absent user counts as the zero row, and the divisor n is public. Rows are laid out so that two users who answer are
as far apart as a user and nobody: a coordinate that says "here" costs no privacy, and its mean is the noisy share of
users who answered. With zero-out the same coordinates are weighted to a norm of 1, which halves the noise. Rows are
whole numbers of a grid, rounded in the direction that only brings them nearer.

Means of clipped vectors count users within the radius, too: `NormCountMean` is one release, `PrefixNormCounts` those of
many rounds with correlated noise.

Statements and proofs: docs/privacy/free-presence.md#p1, #p2 and #p6, of clipped vectors #p3 and #ac1; over many rounds
#p4.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isqrt, sqrt
from typing import Annotated, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Integers, Mask, Vector
from quoron_privacy.errors import ConfigError, VerificationError, count, positive
from quoron_privacy.gaussian import GaussianNoise, acute_sensitivity, mean_sensitivity
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.clipping import ClippedSum, centred
from quoron_privacy.noise.streams import NoiseSource, RandomStream
from quoron_privacy.prefix.noise import DEFAULT, PrefixNoise, PrefixState
from quoron_privacy.release import Adjacency, MaskedBlock, NoisySums, Release, Sums, packed, sum_bits

Matrix = Annotated[NDArray[np.float64], "p d"]
Square = Annotated[NDArray[np.float64], "d d"]
Centre = Annotated[NDArray[np.float64], "q"]

loops = OnFirstUse("quoron_privacy.means.clipping_loops")

BLOCK = 1 << 20  # numbers of rows that are looked at together
SPAN = 4.0  # a logarithm of a length is looked at from the largest down to this far below
HERE = 0.8660254  # below √¾
_ROUNDOFF = 2.0**-53

KINDS = 6  # of numbers a column: m, s, q and z at three places
COLUMN_PRESENCE = 0.3162277  # below √0.1: what says "here", beside 4.5/5 of a row
COLUMN_WEIGHTS = sqrt(1 / 5), sqrt(1.5 / 5), sqrt(1.5 / 5), *(sqrt(0.5 / 5),) * 3  # times 1 / √k

SHARES = 3  # coordinates of a row beside those of c
LEAST_SHARE = 0.2  # of users who answer, that an estimate of it goes down to

# Weights of (c, length, within, here), below (1, √2, 1, 1) and below (√(1-γ²), √(1-γ²)/√2, √(1-γ²)/√2, γ), γ² = 0.1.
WEIGHTS = {
    "replace-one": (1.0, 1.4142135, 1.0, 1.0),
    "zero-out": (0.9486832, 0.6708203, 0.6708203, 0.3162277),
}
# Of soft rows, with h in place of within, and of moments alone: γ = 0 for zero-out, where presence alone is not free.
SOFT = {"replace-one": WEIGHTS["replace-one"], "zero-out": (1.0, 0.7071067, 0.7071067, 0.0)}


def weights_of(adjacency: Adjacency, soft: bool = False) -> tuple[float, float, float, float]:
    """Of the row's (c, length, within or h, here)."""
    return (SOFT if soft else WEIGHTS)[adjacency]


@dataclass(frozen=True, slots=True)
class Presence:
    """What all releases so far say of the share of users who answer; a function of releases.

        >>> Presence().seen(0.65, 0.1).seen(0.75, 0.1).share
        0.7

    Source: docs/privacy/free-presence.md, "What the mean of presence says".
    """

    weighted: float = 0.0  # Σ value / deviation²
    precision: float = 0.0  # Σ 1 / deviation²

    def seen(self, value: float, deviation: float) -> "Presence":
        """With one more noisy share."""
        return Presence(self.weighted + value / deviation**2, self.precision + 1 / deviation**2)

    @property
    def mean(self) -> float:
        """At least LEAST_SHARE; above 1 where more answer than the divisor counts on."""
        return max(self.weighted / self.precision, LEAST_SHARE)

    @property
    def share(self) -> float:
        """1 where that is within two deviations of the mean, else the mean, at least LEAST_SHARE."""
        return 1.0 if self.mean > 1 - 2 / sqrt(self.precision) else self.mean


class MeanAndCounts(NamedTuple):
    """A release of `NormCountMean`."""

    mean: Vector  # of clipped rows over n, in units of the radius, (d,)
    beyond: float  # 1 - a, over n
    within: float  # share of n with a <= 2/3, or the mean of h over n
    presence: float  # 1 where the row does not hold it
    clipped: int  # users farther than the radius: private, for diagnostics alone


@dataclass(frozen=True, slots=True, eq=False)
class NormCountSum:
    """What `NormCountMean`, and many rounds of it, read of vectors that are whitened first: Σ ⌊c 2ᵇ⌋ towards zero.

    It is the `ClippedSum` of Lᵀ g for the vectors g, `cells` included. Users whose v is not finite are counted in
    `answered` alone.
    """

    radius: float  # C
    users: int  # n, the divisor
    transform: Matrix  # L, of each part of a longer vector
    centre: Centre | None = None  # c₀, q = d, or as long as all parts together; None for zero

    def __post_init__(self) -> None:
        positive(radius=self.radius)

    def of(self, values: Matrix, answered: Mask) -> Sums:
        """See clipping.Reduction. ConfigError for vectors that are not one or more parts of the length L is for."""
        rows, transform = checked(values, len(self.transform), parts=True), np.ascontiguousarray(self.transform)
        around = centred(self.centre, rows.shape[1] // len(transform) * transform.shape[1])
        scales = ClippedSum(self.radius, self.users).scales
        total, shares, clipped = loops.sum_norm_counts(rows, answered, transform, around, *scales)
        return Sums(total, shares, clipped, int(np.count_nonzero(answered)))


@dataclass(frozen=True, slots=True)
class NormCountMean:
    """N(0, scale²) on the mean of (c, √2 (1 - a), 1[a ≤ ⅔] or h, 1), c = v / C scaled into the unit ball, a = ‖c‖.

    v = Lᵀ g - c₀ for the vector g that a user sends; L, c₀ and C are public or released.

    Formal guarantee: `effective_mu`-GDP with exact noise (free-presence#p3; free-presence#ac1 where the row is `soft`)
    for every answer of every user. The mean,
    how far users stay within the radius, which share stays well within, and which share answers, for the price of the
    mean alone. It draws d + 3 Gaussian samples.

    | input                               | what happens                                     |
    | ----------------------------------- | ------------------------------------------------ |
    | ‖v‖ above C                         | scaled down to it, a = 1                         |
    | v not finite, absent user           | the zero row, presence too; the divisor stays    |

    With zero-out the coordinates are weighted to a norm of 1, which halves the noise. In `soft` rows 1[a ≤ ⅔] becomes
    h = min(1, √((1 - a)(1 + 3a))): as cheap, and it falls to nothing where rows are clipped and not before.
    """

    dimension: int  # d
    users: int  # n, the divisor
    adjacency: Adjacency
    scale: float  # of a coordinate of the mean of c
    soft: bool = False  # whether the row has h

    def __post_init__(self) -> None:
        count(dimension=self.dimension, users=self.users)
        _ = self._gaussian

    @classmethod
    def for_mu(
        cls, *, dimension: int, users: int, mu: float, adjacency: Adjacency = "replace-one", soft: bool = False
    ) -> "NormCountMean":
        """Return the least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
        sensitivity = mean_sensitivity(1.0, users, adjacency)
        noise = GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=dimension + 3)
        return cls(dimension, users, adjacency, noise.scale / weights_of(adjacency, soft)[0], soft)

    @property
    def effective_mu(self) -> float:
        """μ of the release."""
        return self._gaussian.effective_mu(self.dimension + 3)

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer, and with replace-one of the other shares; inf where it is not released."""
        weights = weights_of(self.adjacency, self.soft)
        return self.scale * weights[0] / weights[3] if weights[3] else inf

    def release(self, sums: Sums, stream: RandomStream) -> MeanAndCounts:
        """From the sums of a `NormCountSum`."""
        weights = weights_of(self.adjacency, self.soft)
        row = sums if isinstance(sums, NoisySums) else weighted_row(sums, self.users, weights, self.soft)
        noised = self._gaussian.release(row, stream)
        return released_from(noised, weights, sums.clipped)

    @property
    def masked(self) -> tuple[MaskedBlock, ...]:
        """Of a user: the weighted row."""
        kind = "soft-norm-counts" if self.soft else "norm-counts"
        unit = 1 / self.users / self._gaussian.scale
        return ("means", kind, self.dimension, unit), ("shares", kind, SHARES, unit)

    def entry(self) -> Release:
        """Return the ledger entry of the release, for a radius of 1."""
        return self._gaussian.entry("norm-counts", divisor=self.users, dimension=self.dimension)

    @property
    def _gaussian(self) -> GaussianNoise:
        weight = weights_of(self.adjacency, self.soft)[0]
        return GaussianNoise(mean_sensitivity(1.0, self.users, self.adjacency), self.scale * weight)


def checked(values: Matrix, length: int, *, parts: bool = False) -> Matrix:
    """Return rows of `length` numbers, or of `parts` of so many, as contiguous float64; ConfigError for others."""
    rows = np.ascontiguousarray(values, np.float64)
    if rows.ndim != 2 or not (rows.shape[1] == length or (parts and rows.shape[1] and rows.shape[1] % length == 0)):
        raise ConfigError(f"Expected rows of {length} numbers, got shape {rows.shape}.")
    return rows


def factors_of(values: Matrix, dimension: int) -> Matrix:
    """Return packed rows of triangular factors, all of them or the first few, as `checked` does."""
    whole, shape = packed(dimension), np.shape(values)
    left = (isqrt(8 * max(whole - shape[-1], 0) + 1) - 1) // 2  # rows that are not there
    return checked(values, packed(dimension, dimension - left) if left < dimension else whole)


def weighted_row(sums: Sums, users: int, weights: tuple[float, float, float, float], soft: bool = False) -> Vector:
    """Return the mean of the weighted rows, shape (d + 3,): private."""
    length, within, here, near = sums.cells.tolist()
    step = 2.0 ** -sum_bits(sums.answered, users)
    shares = [length * (weights[1] * step), near * (weights[2] * step) if soft else within * weights[2]]
    return np.concatenate([sums.total * (weights[0] * step), [*shares, here * weights[3]]]) / users


def released_from(noised: Vector, weights: tuple[float, float, float, float], clipped: int) -> MeanAndCounts:
    """From the noised mean of weighted rows."""
    beyond, within, here = noised[-3:].tolist()
    presence = here / weights[3] if weights[3] else 1.0
    return MeanAndCounts(noised[:-3] / weights[0], beyond / weights[1], within / weights[2], presence, clipped)


def _require_norm_layout() -> None:
    """Raise VerificationError unless rows are as near as their sensitivity says, and are read as they are written.

    Lengths a in sixtieths, in opposite directions, beside nobody's row; a row of one user there and back.
    """
    a, bits = np.arange(61) / 60, 2.0 ** sum_bits(1, 1)
    told = Sums(np.array([0.5 * bits]), np.array([0.25 * bits, 1, 1, 0.75 * bits]), 0, 1)
    for soft, falls in ((False, a <= 2 / 3), (True, np.minimum(1.0, np.sqrt((1 - a) * (1 + 3 * a))))):
        for adjacency, most in (("replace-one", 4.0), ("zero-out", 1.0)):
            weights = weights_of(adjacency, soft)  # type: ignore[arg-type]  # both there are
            rows = np.array(weights)[:, None] * np.stack([a, 1 - a, falls, np.ones(61)])
            apart = rows[:, :, None] - rows[:, None]
            apart[0] = rows[0][:, None] + rows[0]
            squares = (apart**2).sum(axis=0) if adjacency == "replace-one" else np.zeros(1)
            read = released_from(weighted_row(told, 1, weights, soft), weights, 0)
            same = np.allclose([*read.mean, *read[1:4]], [0.5, 0.25, 0.75 if soft else 1.0, 1.0], rtol=1e-9)
            if not (max(squares.max(), (rows**2).sum(axis=0).max()) <= most and same):
                raise VerificationError(f"Expected weights of rows for {adjacency}, got {weights}: {read}.")


_require_norm_layout()  # once, where it is imported: neither a calibration nor a verification counts weights again


@dataclass(frozen=True, slots=True)
class PrefixNormCounts:
    """The rows of `NormCountMean` over T rounds of disjoint users: c with correlated noise, shares with independent.

    Noise of the sums Σ_j mean of c is that of `prefix`. The noise of the shares of a round is N(0, (s / κ)²), s the
    scale and κ the column norm of `prefix`. A radius multiplies what is released.

    Formal guarantee: for a user of one round all rounds together are `effective_mu`-GDP with exact noise
    (free-presence#p4), for every answer of every user. A round draws d + 3 Gaussian samples.

    | input                               | what happens                                     |
    | ----------------------------------- | ------------------------------------------------ |
    | ‖v‖ above C                         | scaled down to it, a = 1                         |
    | v not finite, absent user           | the zero row, presence too; the divisor stays    |
    | a release after the last round      | RunError: the column norm counts the rounds      |

        >>> made = PrefixNormCounts.for_mu(dimension=3, users=50, mu=1.0, rounds=40)
        >>> round(made.scale, 3), round(made.shares.scale, 3)  # seed noise of the means, noise of a share
        (0.06, 0.04)
    """

    dimension: int  # d
    users: int  # n of a round, the divisor
    adjacency: Adjacency
    scale: float  # s, of the seed noise of a weighted row
    rounds: int  # T
    factorisation: str = DEFAULT

    def __post_init__(self) -> None:
        count(dimension=self.dimension, users=self.users)
        _ = self.prefix

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
    ) -> "PrefixNormCounts":
        """Return the least noise for μ-GDP rounds; Infeasible if rounding to the grid alone costs μ."""
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
        return self.shares.scale / WEIGHTS[self.adjacency][3]

    @property
    def prefix(self) -> PrefixNoise:
        """The noise of the weighted sums."""
        sensitivity = mean_sensitivity(1.0, self.users, self.adjacency)
        return PrefixNoise(self.rounds, sensitivity, self.scale, self.factorisation)

    @property
    def seed_scale(self) -> float:
        """Seed noise of a coordinate of the mean of c."""
        return self.scale / WEIGHTS[self.adjacency][0]

    def start(self) -> PrefixState:
        """Return the state before the first round."""
        return self.prefix.start(self.dimension)

    @property
    def masked(self) -> tuple[MaskedBlock, ...]:
        """Of a user of one round: c, and its shares beside it."""
        kind, own = "norm-counts", 1 / self.users
        return ("sums", kind, self.dimension, own / self.scale), ("shares", kind, SHARES, own / self.shares.scale)

    def release(self, state: PrefixState, sums: Sums, noise: NoiseSource) -> tuple[MeanAndCounts, PrefixState]:
        """Return what a round adds to the sum, and its shares, from a `NormCountSum`; and the next state."""
        weights, made = WEIGHTS[self.adjacency], self.prefix
        row = sums if isinstance(sums, NoisySums) else weighted_row(sums, self.users, weights)
        _, after = made.release(state, row[:-3], noise)
        added = made.added(state, after, row[:-3])
        shares = self.shares.release(row[-3:], noise.stream("shares", state.round))
        return released_from(np.concatenate([added, shares]), weights, sums.clipped), after

    @property
    def shares(self) -> GaussianNoise:
        """Of the weighted shares of a round."""
        made = self.prefix
        return GaussianNoise(made.sensitivity, made.scale / made.column_norm)

    def entry(self) -> Release:
        """Return the ledger entry of all rounds, for a radius of 1."""
        made = self.prefix
        parameters = {"sensitivity": made.sensitivity, "scale": made.scale, "divisor": self.users}
        return Release(f"prefix-norm-counts-{self.factorisation}", parameters | {"rounds": self.rounds})


class Length(NamedTuple):
    """A release of `LogLength`; noise included, so any number."""

    mean: float  # of ℓ over n
    presence: float


class Moment(NamedTuple):
    """A release of `MomentMean`."""

    mean: Matrix  # (d, d), symmetric
    presence: float


@dataclass(frozen=True, slots=True)
class LogLength:
    """N(0, scale²) on the mean of (ℓ, √¾), ℓ = clip(ln(top / length), 0, 4) / 4 - ½.

    Formal guarantee: `effective_mu`-GDP with exact noise under either adjacency (free-presence#p1), for every length of
    every user. It draws two Gaussian samples.

    | input                              | what happens                          |
    | ---------------------------------- | ------------------------------------- |
    | length below top / e⁴ or above top | as the least or the largest           |
    | length 0, NaN, or an absent user   | the zero row; the divisor stays       |
    """

    users: int  # n, the divisor
    scale: float  # of each coordinate

    def __post_init__(self) -> None:
        count(users=self.users)
        _ = self._gaussian

    @classmethod
    def for_mu(cls, *, users: int, mu: float) -> "LogLength":
        """Return the least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
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
        return self.scale / HERE

    def release(self, sums: Sums, stream: RandomStream) -> Length:
        """From the sums of a `LengthSum` or a `VectorLengthSum`."""
        row: Vector | NoisySums = sums if isinstance(sums, NoisySums) else self._mean(sums)
        value, here = self._gaussian.release(row, stream).tolist()
        return Length(value, here / HERE)

    @property
    def masked(self) -> tuple[MaskedBlock, ...]:
        """Of a user: its row."""
        return (("length", "length", 2, 1 / self.users / self.scale),)

    def _mean(self, sums: Sums) -> Vector:
        unit = 2.0 ** sum_bits(sums.answered, self.users)
        return np.array([float(sums.total[0]) / unit, HERE * float(sums.cells[0])]) / self.users

    def entry(self) -> Release:
        """Return the ledger entry of the release."""
        return self._gaussian.entry("log-length", divisor=self.users)

    @property
    def _gaussian(self) -> GaussianNoise:
        return GaussianNoise(_one(self.users), self.scale)


@dataclass(frozen=True, slots=True)
class MomentMean:
    """Symmetric Gaussian noise on the mean of (A / B, 1), A = Lᵀ Uᵀ U L scaled into the Frobenius ball of radius B.

    U is the triangular factor that a user sends, L and B are public or released. Variance is scale² on the diagonal,
    half of it off, one draw a pair.

    Formal guarantee: `effective_mu`-GDP with exact noise (free-presence#p2) for every answer of every user: A is
    positive semidefinite whatever was sent. It draws d (d + 1) / 2 + 1 Gaussian samples. Presence is free under
    replace-one; zero-out spends a tenth of a row's squared length on it, or releases none.

    | input                            | what happens                                     |
    | -------------------------------- | ------------------------------------------------ |
    | ‖A‖ above B                      | scaled down to it                                |
    | non-finite factor, absent user   | the zero row, presence too; the divisor stays    |
    """

    dimension: int  # d
    users: int  # n, the divisor
    adjacency: Adjacency
    scale: float  # s: of a diagonal entry of the mean of A / B
    presence: bool = True  # whether rows of zero-out have it

    def __post_init__(self) -> None:
        count(dimension=self.dimension, users=self.users)
        _ = self._gaussian

    @classmethod
    def for_mu(
        cls, *, dimension: int, users: int, mu: float, adjacency: Adjacency = "replace-one", presence: bool = True
    ) -> "MomentMean":
        """Return the least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
        sensitivity = _moment_sensitivity(dimension, users, adjacency)
        noise = GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=packed(dimension) + 1)
        return cls(dimension, users, adjacency, noise.scale / weights_of(adjacency, not presence)[0], presence)

    @property
    def effective_mu(self) -> float:
        """μ of the release."""
        return self._gaussian.effective_mu(packed(self.dimension) + 1)

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer; inf where it is not released."""
        weights = self._weights
        return self.scale * weights[0] / weights[3] if weights[3] else inf

    def release(self, sums: Sums, radius: float, stream: RandomStream) -> Moment:
        """From the sums of a `ShapedMomentSum` of that radius: A's noisy mean, in its units."""
        d, weights = self.dimension, self._weights
        row: Vector | NoisySums = sums if isinstance(sums, NoisySums) else self._mean(sums)
        noised = self._gaussian.release(row, stream)
        here = float(noised[-1]) / weights[3] if weights[3] else 1.0
        return Moment(_symmetric(noised[:-1], d) * (radius / weights[0]), here)

    @property
    def masked(self) -> tuple[MaskedBlock, ...]:
        """Of a user: its weighted row, entries off the diagonal times √2."""
        unit = 1 / self.users / self._gaussian.scale
        kind = "shaped-moment" if self.presence else "moment"
        return (("row", kind, packed(self.dimension) + 1, unit),)

    def _mean(self, sums: Sums) -> Vector:
        isometric = np.where(np.equal(*np.triu_indices(self.dimension)), 1.0, sqrt(2.0))
        weights, bits = self._weights, sum_bits(sums.answered, self.users)
        mean = sums.total.astype(np.float64) * isometric * (weights[0] / 2.0**bits / self.users)
        return np.append(mean, weights[3] * int(sums.cells[0]) / self.users)

    def entry(self) -> Release:
        """Return the ledger entry of the release, for a radius of 1."""
        return self._gaussian.entry("moment-mean", divisor=self.users, dimension=self.dimension)

    @property
    def _gaussian(self) -> GaussianNoise:
        moved = _moment_sensitivity(self.dimension, self.users, self.adjacency)
        return GaussianNoise(moved, self.scale * self._weights[0])

    @property
    def _weights(self) -> tuple[float, float, float, float]:
        return weights_of(self.adjacency, not self.presence)


@dataclass(frozen=True, slots=True, eq=False)
class LengthSum:
    """Σ ⌊ℓ 2ᵇ⌉ over factors, ℓ of the length of LᵀUᵀUL, and in the first of `cells` how many have one above 0."""

    users: int  # n, the divisor
    transform: Square  # L
    top: float

    def of(self, factors: "Rows", answered: Mask) -> Sums:
        """See clipping.Reduction."""
        return length_sums(self.logs(factors), answered, self.top, self.users)

    def logs(self, factors: "Rows") -> Vector:
        """Return ln ‖Lᵀ Uᵀ U L‖ in Frobenius norm for every packed factor (k, p), (k,); NaN where not finite."""
        out, transform = np.empty(len(factors)), np.ascontiguousarray(self.transform)
        each_piece(factors, len(transform), lambda rows, own: loops.moment_logs(rows, transform, out[own]))
        return out


@dataclass(frozen=True, slots=True, eq=False)
class VectorLengthSum:
    """The same over vectors, ℓ of the length of Lᵀ g, Lᵀ of each of its parts."""

    users: int  # n, the divisor
    transform: Matrix  # L
    top: float

    def of(self, values: Matrix, answered: Mask) -> Sums:
        """See clipping.Reduction."""
        return length_sums(self.logs(values), answered, self.top, self.users)

    def logs(self, values: Matrix) -> Vector:
        """Return ln ‖Lᵀ g‖ for every vector (k, p), Lᵀ of each of its parts, (k,); NaN where not finite."""
        rows, out = checked(values, len(self.transform), parts=True), np.empty(len(values))
        loops.vector_logs(rows, np.ascontiguousarray(self.transform), out)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class ShapedMomentSum:
    """Σ ⌊vec(A / B) 2ᵇ⌋ towards zero over factors, A = LᵀUᵀUL scaled into the ball of radius B, packed by rows.

    The first of `cells` counts factors that are finite. Whole numbers: the same in any pieces and in any order.
    """

    users: int  # n, the divisor
    transform: Square  # L
    radius: float  # B

    def of(self, factors: "Rows", answered: Mask) -> Sums:
        """See clipping.Reduction. ConfigError for factors of another length."""
        numbers, unit = packed(len(self.transform)), 2.0 ** sum_bits(0, self.users)
        transform = np.ascontiguousarray(self.transform)
        sums: list[tuple[Integers, int]] = []

        def added(rows: Matrix, own: slice) -> None:
            sums.append(loops.sum_moments(rows, answered[own], transform, self.radius, unit))

        each_piece(factors, len(transform), added)
        total = sum((part for part, _ in sums), np.zeros(numbers, np.int64))
        return Sums(total, _counted(sum(counted for _, counted in sums)), 0, int(np.count_nonzero(answered)))


class Rows(Protocol):
    """A matrix of which blocks of rows are looked at, one after the other; it need not be in memory as a whole."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(k, numbers of a row)."""

    def __len__(self) -> int:
        """k."""

    def __getitem__(self, rows: slice, /) -> Matrix:
        """Some of the rows, the same ones every time."""


def each_piece(factors: Rows, dimension: int, work: Callable[[Matrix, slice], object]) -> None:
    """work(some of the factors, where they stand) for all of them, on all threads, some BLOCK numbers at a time.

    ConfigError as `factors_of`.
    """
    step = max(1, BLOCK // max(1, factors.shape[-1]))
    for first in range(0, max(len(factors), 1), step):
        own = slice(first, min(first + step, len(factors)))
        loops.each_piece(factors_of(factors[own], dimension), first, work)


def length_sums(logs: Vector, answered: Mask, top: float, users: int) -> Sums:
    """Return the sums of ℓ from the logarithm of every user's length (k,), -inf for 0."""
    usable, places = length_places(logs, answered, top)
    total = np.array([np.rint(places * 2.0 ** sum_bits(0, users)).astype(np.int64).sum()])  # each within ± 2ᵇ⁻¹
    return Sums(total, _counted(int(usable.sum())), 0, int(np.count_nonzero(answered)))


def length_places(logs: Vector, answered: Mask, top: float) -> tuple[Mask, Vector]:
    """Return who has a length above 0, and ℓ of each from its logarithm, 0 for others, both (k,)."""
    usable = answered & (logs > -np.inf)  # nor NaN
    fall = np.clip(np.log(top) - np.where(usable, logs, 0.0), 0.0, SPAN)
    return usable, np.where(usable, fall / SPAN - 0.5, 0.0)


def _symmetric(row: Vector, dimension: int) -> Square:
    """Return the matrix of a vector of its upper triangle, whose entries off the diagonal are √2 times as large."""
    across, down = np.triu_indices(dimension)
    symmetric = np.empty((dimension, dimension))
    symmetric[across, down] = symmetric[down, across] = row / np.where(across == down, 1.0, sqrt(2.0))
    return symmetric


def _counted(users: int) -> Integers:
    return np.array([users, 0, 0, 0], np.int64)


def _one(users: int) -> float:
    """Of a mean of rows no two of which are farther apart than 1, nor any from the zero row."""
    return mean_sensitivity(1.0, users, "zero-out")


def _moment_sensitivity(dimension: int, users: int, adjacency: Adjacency) -> float:
    """√2 / n or 1 / n, with what the products and the grid add to a unit moment: see free-presence#p2."""
    off = 1.01 * (dimension + 4) * sqrt(dimension) * _ROUNDOFF + dimension * 2.0 ** -sum_bits(0, users)
    return acute_sensitivity(users, adjacency) * (1 + 3 * off)


@dataclass(frozen=True, slots=True, eq=False)
class Leading:
    """The first numbers of each row of a matrix, of which blocks of rows are looked at."""

    rows: Rows
    numbers: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(k, numbers)."""
        return len(self.rows), self.numbers

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> Matrix:
        return self.rows[rows][:, : self.numbers]


def _require_layout() -> None:
    """VerificationError unless rows of lengths are 1 apart at most, and those of moments √2, or 1 for zero-out."""
    for made in (WEIGHTS, SOFT):
        moments = {adjacency: (weights[0] ** 2, weights[3] ** 2) for adjacency, weights in made.items()}
        both = 2 * moments["replace-one"][0] <= 2 and sum(moments["replace-one"]) <= 2
        if not (0.5**2 + HERE**2 <= 1 and both and sum(moments["zero-out"]) <= 1):
            raise VerificationError(f"Expected weights of rows that are as near as they are taken to be, got {made}.")


_require_layout()  # once, where it is imported


@dataclass(frozen=True, slots=True)
class Contrasts:
    """Between models of K parts of p numbers, one part after the other, and points of q parts; q = 1 where K is 1.

    A loss that only differences of its predictions change, such as softmax, has gradients whose parts sum to zero over
    the K predictions. With orthonormal contrasts Q, (K, K - 1), whose columns sum to zero, Qᵀ keeps the length of every
    such gradient and drops a K-th of the coordinates, so of the noise (docs/privacy/whitened-tracking.md#w2).

        >>> Contrasts(1, 3).of(np.array([[0.5, 1.0, -1.5]])).round(3).tolist()
        [[-0.354, 1.837]]
    """

    features: int  # p
    outputs: int  # K

    @property
    def parts(self) -> int:
        """q."""
        return max(1, self.outputs - 1)

    @property
    def dimension(self) -> int:
        """Numbers of a point."""
        return self.parts * self.features

    def of(self, gradients: Matrix) -> Matrix:
        """Qᵀ G of every user's gradient (n, K p), shape (n, q p), without a product whose order of sums may change."""
        if self.outputs == 1:
            return gradients
        rows = gradients.reshape(len(gradients), self.outputs, self.features)
        found, total = np.empty((len(rows), self.parts, self.features)), rows[:, 0].copy()
        with np.errstate(all="ignore"):  # what is not finite is nobody's row
            for part in range(1, self.outputs):
                np.multiply(total - part * rows[:, part], (part * (part + 1)) ** -0.5, out=found[:, part - 1])
                total += rows[:, part]
        return found.reshape(len(rows), self.dimension)

    def model(self, transform: Matrix, point: Vector) -> Vector:
        """Of a point θ (q p,) in the metric L (p, p): Q θ Lᵀ, shape (K p,)."""
        if self.outputs == 1:
            return transform @ point
        parts: Vector = (self.matrix() @ point.reshape(self.parts, -1) @ transform.T).ravel()
        return parts

    def matrix(self) -> Matrix:
        """Q, (K, K - 1); 1 where K is 1."""
        if self.outputs == 1:
            return np.ones((1, 1))
        return Contrasts(1, self.outputs).of(np.eye(self.outputs))


@dataclass(frozen=True, slots=True, eq=False)
class ContrastSum:
    """A sum of gradients' contrasts, of which there is one vector fewer than classes."""

    contrasts: Contrasts
    own: NormCountSum | VectorLengthSum

    def of(self, values: Matrix, answered: NDArray[np.bool_]) -> Sums:
        """See clipping.Reduction. ConfigError for rows of another length."""
        numbers = self.contrasts.outputs * self.contrasts.features
        if values.ndim != 2 or values.shape[1] != numbers:
            raise ConfigError(f"Expected gradients of {numbers} numbers, got shape {values.shape}.")
        return self.own.of(self.contrasts.of(values), answered)


class Columns(NamedTuple):
    """A release of `ColumnMean`, (k,) or (3, k); noise included, so any number."""

    mean: Vector  # of m
    spread: Vector  # of s
    square: Vector  # of q
    still: Matrix  # of z, at -1, 0 and 1
    presence: float


@dataclass(frozen=True, slots=True)
class ColumnMean:
    """N(0, scale²) on the mean of (m, s, q, z) of k columns, weighted, over √k, and of who is here.

    Formal guarantee: `effective_mu`-GDP with exact noise under either adjacency (free-presence#p6), for every answer of
    every user. It draws 6k + 1 Gaussian samples.

    | input                                                              | what happens                   |
    | ------------------------------------------------------------------ | ------------------------------ |
    | outside its window                                                 | as at its end                  |
    | non-finite factor, no item beside a constant feature, absent user | the zero row; the divisor stays |

    A user's moment gives the mean μ of its items and their root mean square r about c, column by column. In a window
    about c of half width w:

        m = clip((μ - c) / w, ±1)    s = min(r / w, 1)    q = s²    z = 1[all items are at -1], 1[at 0], 1[at 1]

    |m| <= s <= 1, so the squares of what two users differ by in these, 3/2 of those of s and q and half of those of z,
    are never more than 5 together, where those of m alone may be 4.
    """

    columns: int  # k
    users: int  # n, the divisor
    scale: float  # of each number of a row of length 1 at most

    def __post_init__(self) -> None:
        count(columns=self.columns, users=self.users)
        _ = self._gaussian

    @classmethod
    def for_mu(cls, *, columns: int, users: int, mu: float) -> "ColumnMean":
        """Return the least noise for a μ-GDP release; Infeasible if rounding to the grid alone costs μ."""
        sensitivity = column_sensitivity(columns, users)
        noise = GaussianNoise.for_mu(sensitivity=sensitivity, mu=mu, dimension=KINDS * columns + 1)
        return cls(columns, users, noise.scale)

    @property
    def effective_mu(self) -> float:
        """μ of the release."""
        return self._gaussian.effective_mu(KINDS * self.columns + 1)

    @property
    def deviations(self) -> tuple[float, float, float, float]:
        """Of a number of the mean, of the spread, of the square and of the shares at a place."""
        mean, spread, square, still = (self.scale * sqrt(self.columns) / weight for weight in COLUMN_WEIGHTS[:4])
        return mean, spread, square, still

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer."""
        return self.scale / COLUMN_PRESENCE

    def release(self, sums: Sums, stream: RandomStream) -> Columns:
        """From the sums of a `ColumnSum`."""
        row: Vector | NoisySums = sums if isinstance(sums, NoisySums) else self._mean(sums)
        noised = self._gaussian.release(row, stream)
        own = noised[:-1].reshape(KINDS, self.columns) * (sqrt(self.columns) / np.array(COLUMN_WEIGHTS))[:, None]
        return Columns(own[0], own[1], own[2], own[3:], float(noised[-1]) / COLUMN_PRESENCE)

    @property
    def masked(self) -> tuple[MaskedBlock, ...]:
        """Of a user: its row."""
        return (("columns", "columns", KINDS * self.columns + 1, 1 / self.users / self.scale),)

    def _mean(self, sums: Sums) -> Vector:
        unit = 2.0 ** sum_bits(sums.answered, self.users)
        return np.append(sums.total / unit, COLUMN_PRESENCE * float(sums.cells[0])) / self.users

    def entry(self) -> Release:
        """Return the ledger entry of the release."""
        return self._gaussian.entry("column-mean", divisor=self.users, columns=self.columns)

    @property
    def _gaussian(self) -> GaussianNoise:
        return GaussianNoise(column_sensitivity(self.columns, self.users), self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnSum:
    """Σ ⌊row 2ᵇ⌋ towards zero over factors, row of length 1 at most, and in the first of `cells` who is here.

    Columns are numbers over the constant feature where there is one, the last, else numbers times `scale`.
    """

    users: int  # n, the divisor
    windows: Matrix  # (2, k): centres, half widths
    scale: float
    constant: bool

    def __post_init__(self) -> None:
        count(users=self.users)
        windows = np.asarray(self.windows)
        sound = windows.ndim == 2 and windows.shape[0] == 2 and windows.shape[1] > 0 and np.isfinite(windows).all()
        if not (sound and (windows[1] > 0).all() and 0 < self.scale < np.inf):
            raise ConfigError("Expected windows of shape (2, k), finite, half widths above 0, got others.")

    @property
    def length(self) -> int:
        """Of a row, but for who is here."""
        return KINDS * int(np.shape(self.windows)[1])

    @property
    def dimension(self) -> int:
        """Of the features."""
        return int(np.shape(self.windows)[1]) + self.constant

    def weights(self, unit: float) -> Vector:
        """Of a number of each kind, (KINDS,): what it is at most, in steps of which `unit` are 1."""
        return np.array(COLUMN_WEIGHTS) / sqrt(np.shape(self.windows)[1]) * unit

    def of(self, factors: Rows, answered: Mask) -> Sums:
        """See clipping.Reduction. ConfigError for factors of another length."""
        sums: list[tuple[NDArray[np.int64], int]] = []

        def added(rows: Matrix, own: slice) -> None:
            total = np.zeros(self.length, np.int64)
            sums.append((total, self.add(rows, answered[own], 2.0 ** sum_bits(0, self.users), total)))

        each_piece(factors, self.dimension, added)
        total = sum((part for part, _ in sums), np.zeros(self.length, np.int64))
        here = sum(counted for _, counted in sums)
        return Sums(total, np.array([here, 0, 0, 0], np.int64), 0, int(np.count_nonzero(answered)))

    def add(self, rows: Matrix, answered: Mask, unit: float, total: NDArray[np.int64]) -> int:
        """Add rows to the total, and say how many there are."""
        weights = self.weights(unit)
        windows = np.ascontiguousarray(self.windows, np.float64)
        return int(loops.sum_columns(rows, answered, windows, self.scale, self.constant, weights, total))


def column_sensitivity(columns: int, users: int) -> float:
    """1 / n, with what the grid adds: see free-presence#p6."""
    off = 2 * sqrt(KINDS * columns) * (2.0 ** -sum_bits(0, users) + 2.0**-50)
    return mean_sensitivity(1.0, users, "zero-out") * (1 + off)


def _require_column_layout() -> None:
    """VerificationError unless rows of one column are at most 1 apart, and as far from nobody's: all of a grid."""
    steps = np.linspace(0.0, 1.0, 5)
    made = [
        (part * s, s, s * s, *still) for s in steps for part in (*-steps, *steps) for still in [*np.eye(3), [0] * 3]
    ]
    rows = np.array(made) * np.array(COLUMN_WEIGHTS)
    apart = ((rows[:, None] - rows) ** 2).sum(axis=-1).max()
    if not (len(COLUMN_WEIGHTS) == KINDS and max(apart, (rows**2).sum(axis=1).max() + COLUMN_PRESENCE**2) <= 1 + 1e-12):
        raise VerificationError(
            f"Expected {KINDS} weights of rows that are at most 1 apart, got {COLUMN_WEIGHTS}, {COLUMN_PRESENCE}."
        )


_require_column_layout()  # once, where it is imported

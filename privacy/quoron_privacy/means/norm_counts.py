"""Means of clipped vectors that count, at no extra cost, users within the radius and users who answered.

    >>> from quoron_privacy.noise.streams import SeededNoise
    >>> mean = NormCountMean.for_mu(dimension=2, users=1000, mu=0.5)
    >>> rows, everybody = np.full((1000, 2), 0.1), np.ones(1000, bool)
    >>> released = mean.release(NormCountSum(1.0, 1000).of(rows, everybody), SeededNoise(1).stream("mean"))
    >>> bool(abs(released.presence - 1) < 0.05 and abs(released.mean[0] - 0.1) < 0.05)
    True

`NormCountMean` is one release, `PrefixNormCounts` those of many rounds with correlated noise; both read `NormCountSum`.
Two users' rows are as far apart as a user's and nobody's, so the counts cost nothing beside the mean.

Statement and proof: docs/privacy/free-presence.md#p3 and #ac1; over many rounds #p4, and #p5 where users come back.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import inf, sqrt
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Mask
from quoron_privacy.errors import ConfigError, VerificationError, count, positive
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.clipping import ClippedSum, centred
from quoron_privacy.noise.streams import NoiseSource, RandomStream
from quoron_privacy.prefix.noise import DEFAULT, PrefixNoise, PrefixState, factorise
from quoron_privacy.release import Adjacency, MaskedBlock, NoisySums, Release, Sums, sum_bits

Matrix = Annotated[NDArray[np.float64], "p d"]
Vector = Annotated[NDArray[np.float64], "q"]

loops = OnFirstUse("quoron_privacy.means.clipping_loops")

SHARES = 3  # coordinates of a row beside those of c
LEAST_SHARE = 0.2  # of users who answer, that an estimate of it goes down to

# Weights of (c, length, within, here), below (1, √2, 1, 1) and below (√(1-γ²), √(1-γ²)/√2, √(1-γ²)/√2, γ), γ² = 0.1.
WEIGHTS = {
    "replace-one": (1.0, 1.4142135, 1.0, 1.0),
    "zero-out": (0.9486832, 0.6708203, 0.6708203, 0.3162277),
}
# Of soft rows, with h in place of within: γ = 0 for zero-out, where presence is the one share that is not free.
SOFT = {"replace-one": WEIGHTS["replace-one"], "zero-out": (1.0, 0.7071067, 0.7071067, 0.0)}


def weights_of(adjacency: Adjacency, soft: bool = False) -> tuple[float, float, float, float]:
    """Of the row's (c, length, within or h, here)."""
    return (SOFT if soft else WEIGHTS)[adjacency]


def row_kind(soft: bool) -> str:
    """Return the row's name where two servers sum it."""
    return "soft-norm-counts" if soft else "norm-counts"


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
    centre: Vector | None = None  # c₀, q = d, or as long as all parts together; None for zero

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
        kind, unit = row_kind(self.soft), 1 / self.users / self._gaussian.scale
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


def _require_layout() -> None:
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


_require_layout()  # once, where it is imported: neither a calibration nor a verification counts weights again


@dataclass(frozen=True, slots=True)
class PrefixNormCounts:
    """The rows of `NormCountMean` over T rounds: c with correlated noise, shares with independent noise.

    Noise of the sums Σ_j mean of c is that of `prefix`. The noise of the shares of round t is N(0, (s q_t / κ)²), s the
    scale, κ the column norm of `prefix` and q_t `louder`: 1 where users are in one round, else what their other rounds
    leave. A radius multiplies what is released.

    Formal guarantee: for a user of one round, or of all rounds t ≡ r modulo `separation` for one r, all rounds together
    are `effective_mu`-GDP with exact noise (free-presence#p4, #p5), for every answer of every user. A round draws d + 3
    Gaussian samples.

    | input                               | what happens                                     |
    | ----------------------------------- | ------------------------------------------------ |
    | ‖v‖ above C                         | scaled down to it, a = 1                         |
    | v not finite, absent user           | the zero row, presence too; the divisor stays    |
    | a release after the last round      | RunError: the column norm counts the rounds      |
    | more than k rounds of a user        | ConfigError: T > k b                             |

        >>> made = PrefixNormCounts.for_mu(dimension=3, users=50, mu=1.0, rounds=40, participations=4, separation=10)
        >>> round(made.scale, 3), round(made.typical, 3)  # seed noise of the means, noise of a share
        (0.124, 0.08)
    """

    dimension: int  # d
    users: int  # n of a round, the divisor
    adjacency: Adjacency
    scale: float  # s, of the seed noise of a weighted row
    rounds: int  # T
    factorisation: str = DEFAULT
    participations: int = 1  # k: rounds of one user, at most
    separation: int = 1  # b: their exact distance, where k > 1
    soft: bool = False  # whether the row has h

    def __post_init__(self) -> None:
        count(dimension=self.dimension, users=self.users)
        _ = self.prefix
        if self.participations > 1 and self.participations * self.separation < self.rounds:
            raise ConfigError(
                f"Expected rounds <= participations * separation = {self.participations * self.separation}, "
                f"got rounds={self.rounds}."
            )

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
        participations: int = 1,
        separation: int = 1,
        soft: bool = False,
    ) -> "PrefixNormCounts":
        """Return the least noise for μ-GDP rounds; Infeasible if rounding to the grid alone costs μ."""
        made = PrefixNoise.for_mu(
            rounds=rounds,
            sensitivity=mean_sensitivity(1.0, users, adjacency),
            mu=mu,
            dimension=dimension + 3,
            factorisation=factorisation,
            participations=participations,
            separation=separation,
        )
        return cls(dimension, users, adjacency, made.scale, rounds, factorisation, participations, separation, soft)

    @property
    def effective_mu(self) -> float:
        """μ of all rounds."""
        return self.prefix.effective_mu(self.dimension + 3)

    @property
    def presence_deviation(self) -> float:
        """Of the share of users who answer, typically; inf where it is not released."""
        weight = weights_of(self.adjacency, self.soft)[3]
        return self.typical / weight if weight else inf

    @property
    def typical(self) -> float:
        """Noise of a weighted share: one over the root mean square precision of k rounds of one user."""
        return self.scale * sqrt(self.participations) / self.prefix.column_norm

    @property
    def prefix(self) -> PrefixNoise:
        """The noise of the weighted sums."""
        sensitivity = mean_sensitivity(1.0, self.users, self.adjacency)
        own = self.participations, self.separation
        return PrefixNoise(self.rounds, sensitivity, self.scale, self.factorisation, *own)

    @property
    def seed_scale(self) -> float:
        """Seed noise of a coordinate of the mean of c."""
        return self.scale / weights_of(self.adjacency, self.soft)[0]

    def start(self) -> PrefixState:
        """Return the state before the first round."""
        return self.prefix.start(self.dimension)

    @property
    def masked(self) -> tuple[MaskedBlock, ...]:
        """Of a user of one round: c, and its shares beside it."""
        kind, own = row_kind(self.soft), 1 / self.users
        shares = ("shares", kind, SHARES, own / self.shares(0).scale)
        return ("sums", kind, self.dimension, own / self.scale), shares

    def release(self, state: PrefixState, sums: Sums, noise: NoiseSource) -> tuple[MeanAndCounts, PrefixState]:
        """Return what a round adds to the sum, and its shares, from a `NormCountSum`; and the next state."""
        weights, made = weights_of(self.adjacency, self.soft), self.prefix
        row = sums if isinstance(sums, NoisySums) else weighted_row(sums, self.users, weights, self.soft)
        _, after = made.release(state, row[:-3], noise)
        added = made.added(state, after, row[:-3])
        shares = self.shares(state.round).release(row[-3:], noise.stream("shares", state.round))
        return released_from(np.concatenate([added, shares]), weights, sums.clipped), after

    def shares(self, round_: int) -> GaussianNoise:
        """Of the weighted shares of a round."""
        made = self.prefix
        return GaussianNoise(made.sensitivity, made.scale * float(self._louder[round_]) / made.column_norm)

    def entry(self) -> Release:
        """Return the ledger entry of all rounds, for a radius of 1."""
        made = self.prefix
        parameters = {"sensitivity": made.sensitivity, "scale": made.scale, "divisor": self.users}
        if self.participations > 1:
            parameters |= {"participations": self.participations, "separation": self.separation}
        return Release(f"prefix-norm-counts-{self.factorisation}", parameters | {"rounds": self.rounds})

    @property
    def _louder(self) -> Vector:
        if self.participations == 1:
            return np.ones(self.rounds)
        return louder(self.factorisation, self.rounds, self.separation)


@lru_cache(maxsize=32)
def louder(factorisation: str, rounds: int, separation: int) -> Vector:
    """q_t = √(Σ_S R_j / R_t), S the rounds t, t ± b, ..., and R_t = Σ_{j in S} ⟨C[:, t], C[:, j]⟩; shape (rounds,).

    How much louder shares of round t are where a user is in all of S than where it may be in any one round: Σ_S q_t⁻²
    is 1. ConfigError where C is no Toeplitz matrix.
    """
    c = factorise(factorisation, rounds, separation).coefficients
    if c is None:
        raise ConfigError(f"Expected a Toeplitz factorisation for several participations, got {factorisation!r}.")
    reach = np.zeros(rounds)
    for lag in range(0, rounds, separation):
        common = np.cumsum(c[: rounds - lag] * c[lag:])[::-1]  # ⟨C[:, i], C[:, i + lag]⟩ for every i
        reach[: rounds - lag] += common
        if lag:
            reach[lag:] += common
    classes = np.arange(rounds) % separation
    together = np.bincount(classes, weights=reach)[classes]
    made: Vector = np.sqrt(together / reach)
    made.setflags(write=False)
    return made

"""Private running sums: correlated noise that grows with the logarithm of the rounds instead of their root.

    >>> from quoron_privacy.accounts.gdp import mu_for
    >>> mu = mu_for(1.0, 1e-6, gaussians=128 * 10)
    >>> noise = PrefixNoise.for_mu(rounds=128, sensitivity=0.02, mu=mu, dimension=10)
    >>> round(noise.max_std, 3), round(0.02 / 0.2367 * 128**0.5, 3)  # the same with independent noise
    (0.221, 0.956)

Round t adds its contribution g_t and noise N_t, the noise chosen so that C N is independent Gaussian noise for a
factorisation A = B C of prefix sums (`factorise`); the released sums then carry noise B Z. A verification asks `mu`,
which plays a user's rounds through the sampler, and not what a factorisation says of itself.

Source: Denisov, McMahan, Rush, Smith & Thakurta (2022). Proof, with everything in integers:
docs/privacy/prefix-noise.md.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.arrays import Floats
from quoron_privacy.errors import ConfigError, Infeasible, RunError, count, positive
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.noise.streams import GRID_BITS, NoiseSource
from quoron_privacy.release import NoisySums, Release

strategies = OnFirstUse("quoron_privacy.prefix.strategies")  # imported where a plan first has correlated noise

FACTORISATIONS = "blt", "banded", "tree"
FITTED = "blt", "banded"  # to how often and how soon users come back
LONGEST = 1 << 20  # rounds; the error budget of docs/privacy/prefix-noise.md is checked up to here

DEFAULT = "blt"
_ARITHMETIC = 1 + 1e-9  # rounding of plans: products and quotients of public floats

_STEP = 2.0**-30  # of the grid of the noise, in standard deviations
_SIMULATED = 1 << 14  # users' first rounds up to which all are simulated where no one is known to be the worst: seconds


@dataclass(frozen=True, slots=True)
class Factorisation:
    """The numbers and the two streaming functions of one factorisation over a fixed number of rounds.

    A is the lower triangular matrix of ones, C is lower triangular with ones on its diagonal and non-negative
    elsewhere. From a memory of the noise N so far, `predict` gives Σ_{j < t} C[t, j] N_j; `remember` adds N_t to it.
    """

    column_norm: float  # max_t ‖C[:, t]‖₂: how far one unit contribution moves C x
    row_norms: Floats  # ‖B[t, :]‖₂, shape (rounds,): noise of the t-th prefix sum per unit of seed noise
    rounding: float  # bound for |rounded prediction as computed - exact prediction| in steps (prefix-noise#c2)
    slots: int  # vectors in the memory
    coefficients: Floats | None  # first column of a Toeplitz C, shape (rounds,); None where C is none
    predict: Callable[[int, Floats], Floats]  # (t, memory) -> Σ_{j < t} C[t, j] N_j, shape (d,)
    remember: Callable[[int, Floats, Floats], Floats]  # (t, memory, N_t) -> new memory, shape (slots, d)

    def participation_norm(self, participations: int, separation: int) -> float:
        """max ‖Σ_{i in S} C[:, i]‖₂ over sets S of so many rounds, any two of them `separation` or more apart.

        Attained at rounds 0, b, 2b, ... (prefix-noise#c3). ConfigError for several participations where C is no
        Toeplitz matrix whose coefficients never grow.
        """
        norm: float = self.column_norm if participations == 1 else strategies.norm_of(self, participations, separation)
        return norm


def sqrt_coefficients(rounds: int) -> tuple[Floats, Floats]:
    """Return first columns of A's square root and of its inverse: coefficients of (1 - x)^(-1/2) and (1 - x)^(1/2)."""
    k = np.arange(rounds, dtype=np.float64)
    coefficients = np.cumprod(np.concatenate([[1.0], (2 * k[1:] - 1) / (2 * k[1:])]))
    return coefficients, coefficients / (1 - 2 * k)


def together(column: Floats, separation: int) -> Floats:
    """Σ_j ⟨C[:, t], C[:, j]⟩ over all rounds j a multiple of `separation` from t, of a Toeplitz C; shape (rounds,)."""
    rounds, made = len(column), np.zeros(len(column))
    for lag in range(0, rounds, separation):
        common = np.cumsum(column[: rounds - lag] * column[lag:])[::-1]  # ⟨C[:, i], C[:, i + lag]⟩ for every i
        made[: rounds - lag] += common
        if lag:
            made[lag:] += common
    return made


@lru_cache(maxsize=32)
def factorise(
    name: str, rounds: int, separation: int | None = None, participations: int | None = None
) -> Factorisation:
    """Return the factorisation `name` of prefix sums over `rounds` rounds; ConfigError if there is none.

    `separation` is after how many rounds users may come back, and `participations` how often they take part; None: they
    do not come back, and as often as they may.

        >>> for name in FACTORISATIONS:  # the largest deviation of a prefix sum per unit of sensitivity / μ
        ...     made = factorise(name, 128)
        ...     print(f"{name:6} {made.column_norm * made.row_norms.max():.2f}")
        blt    2.61
        banded 3.17
        tree   7.48
    """
    if name not in FACTORISATIONS:
        raise ConfigError(f"Expected factorisation in {sorted(FACTORISATIONS)}, got factorisation={name!r}.")
    count(rounds=rounds)
    if rounds > LONGEST:
        raise ConfigError(f"Expected rounds <= {LONGEST}, got rounds={rounds}. Use larger cohorts.")
    apart = separation or rounds
    times = min(participations or rounds, -(-rounds // apart))
    fitted = times > 1 and name in FITTED
    strategy = getattr(strategies, name + ("_repeated" if fitted else ""))
    made: Factorisation = strategy(rounds, times, apart) if fitted else strategy(rounds)
    return made


@dataclass(frozen=True, slots=True)
class PrefixState:
    """State between two rounds. Secret: with the memory one can subtract noise. No contribution is stored un-noised."""

    round: int  # releases so far
    total: NDArray[np.int64]  # the last released sum in steps, shape (d,)
    memory: Floats  # what the factorisation keeps of the noise, shape (slots, d)


@dataclass(frozen=True, slots=True)
class PrefixNoise:
    """Noise for the sums g_0 + ... + g_t of `rounds` contributions, on a grid of scale / 2³⁰.

    Formal guarantee: let a user take part in `participations` rounds at most, known before the first and any two of
    them `separation` or more apart, and move each contribution by at most `sensitivity` in ℓ2 whatever was released
    before. Then all releases together are `effective_mu(dimension)`-GDP with exact noise (prefix-noise#c2 for one
    participation, prefix-noise#c3). The total variation `noise.total_variation(gaussians=rounds * dimension)` bounds
    how far drawn noise is from it.

    | input                            | what happens                                             |
    | -------------------------------- | -------------------------------------------------------- |
    | a release after the last round   | RunError: the column norm counts the rounds              |
    | coordinate beyond 2²² · scale    | clamped to it (2³¹/rounds · scale if that is less)       |
    | non-finite coordinate            | clamped, NaN as zero: no value can raise                 |
    """

    rounds: int  # T, fixed and public
    sensitivity: float  # ℓ2 of one contribution
    scale: float  # s, standard deviation per coordinate of the seed noise Z
    factorisation: str = DEFAULT
    participations: int = 1  # k: rounds of one user, at most
    separation: int = 1  # b: least distance of two of them; 1 is any

    def __post_init__(self) -> None:
        count(participations=self.participations, separation=self.separation)
        _ = self.column_norm  # refuses what it does not know
        positive(sensitivity=self.sensitivity, scale=self.scale)
        if not 1e-200 < self.scale < 1e200:
            raise ConfigError(f"Expected scale in (1e-200, 1e200), got scale={self.scale}. Change the units.")
        if self.sensitivity > 16 * self.scale:  # the error bound of prefix-noise#c2; μ above 16 protects nobody
            raise ConfigError(f"Expected scale >= sensitivity / 16, got scale={self.scale}. Use more noise.")

    @classmethod
    def for_mu(
        cls,
        *,
        rounds: int,
        sensitivity: float,
        mu: float,
        dimension: int,
        factorisation: str = DEFAULT,
        participations: int = 1,
        separation: int = 1,
    ) -> "PrefixNoise":
        """Return the least noise for a μ-GDP transcript; Infeasible if rounding to the grid alone costs μ."""
        positive(sensitivity=sensitivity, mu=mu)
        count(rounds=rounds, dimension=dimension)
        unit = cls(rounds, 1.0, 1.0, factorisation, participations, separation)
        left = mu - unit._grid_mu(dimension)
        if left <= 0:
            raise Infeasible("prefix-noise", f"mu={mu:g} is below the resolution of the grid", "fewer rounds")
        scale = unit.column_norm * sensitivity * _ARITHMETIC / left
        return cls(rounds, sensitivity, scale, factorisation, participations, separation)

    @property
    def column_norm(self) -> float:
        """κ: how far contributions of norm one in all of a user's rounds move C g."""
        return self.factors.participation_norm(self.participations, self.separation)

    @property
    def step(self) -> float:
        """Distance of neighbouring outputs; a power of two times the scale, so exact."""
        return self.scale * 2.0**-GRID_BITS

    @property
    def max_std(self) -> float:
        """Largest standard deviation per coordinate of any released sum."""
        return self.scale * float(self.factors.row_norms.max())

    def effective_mu(self, dimension: int) -> float:
        """Return μ of all releases: column norm · sensitivity / scale, and what rounding adds (prefix-noise#c2)."""
        count(dimension=dimension)
        exact = self.column_norm * self.sensitivity * _ARITHMETIC / self.scale
        return exact + self._grid_mu(dimension)

    def start(self, dimension: int) -> PrefixState:
        """Return the state before the first round, for contributions of shape (dimension,)."""
        count(dimension=dimension)
        return PrefixState(0, np.zeros(dimension, np.int64), np.zeros((self.factors.slots, dimension)))

    def release(
        self, state: PrefixState, contribution: Floats | NoisySums, noise: NoiseSource, name: str = "prefix"
    ) -> tuple[Floats, PrefixState]:
        """Return the noised sum of all contributions so far, shape (d,), and the next state.

        Seed noise comes from the stream (name, round): two `PrefixNoise` of one run need two names. With zero
        contributions the result is the noise alone. One in which two servers' correlated noise is already only adds up.
        """
        if state.round >= self.rounds:
            raise RunError(f"Expected at most rounds={self.rounds} releases, got one more. Plan for more rounds.")
        if isinstance(contribution, NoisySums):
            after = PrefixState(state.round + 1, state.total + contribution.total, state.memory)
            return after.total.astype(np.float64) * self._step_of(contribution), after
        value = np.asarray(contribution, np.float64)
        if value.shape != state.total.shape:
            raise ConfigError(f"Expected a contribution of shape {state.total.shape}, got {value.shape}.")
        seed = noise.stream(name, state.round).gaussian_steps(value.shape)
        # C N = Z up to rounding: N is Z less what earlier noise already puts into this row
        own = seed - np.rint(self.factors.predict(state.round, state.memory)).astype(np.int64)
        total = state.total + self._steps(value) + own
        memory = self.factors.remember(state.round, state.memory, own.astype(np.float64))
        return total.astype(np.float64) * self.step, PrefixState(state.round + 1, total, memory)

    def added(self, before: PrefixState, after: PrefixState, contribution: Floats | NoisySums) -> Floats:
        """Return what the release of a contribution added to the sum, with its noise, shape (d,)."""
        return (after.total - before.total).astype(np.float64) * self._step_of(contribution)

    def entry(self) -> Release:
        """Return the ledger entry of the whole transcript."""
        return Release(
            f"prefix-{self.factorisation}",
            {
                "sensitivity": self.sensitivity,
                "scale": self.scale,
                "rounds": self.rounds,
                "participations": self.participations,
                "separation": self.separation,
            },
        )

    @property
    def factors(self) -> Factorisation:
        """B C = A over these rounds."""
        apart = self.separation if self.participations > 1 else None
        return factorise(self.factorisation, self.rounds, apart, self.participations)

    def _step_of(self, contribution: Floats | NoisySums) -> float:
        """The grid is one server's, who has half of the variance."""
        return self.step / sqrt(2.0) if isinstance(contribution, NoisySums) else self.step

    def _grid_mu(self, dimension: int) -> float:
        """Contributions are rounded by a step, predictions by `rounding`, in each of two worlds (prefix-noise#c2)."""
        steps = 2 * self.column_norm + 2 * self.factors.rounding * sqrt(self.rounds)
        return steps * sqrt(dimension) * 2.0**-GRID_BITS

    def _steps(self, value: Floats) -> NDArray[np.int64]:
        """Return the contribution in whole steps; clamped such that a sum of all rounds is below 2⁶²."""
        largest = min(2.0**22, 2.0**31 / self.rounds)
        with np.errstate(all="ignore"):  # an overflow becomes a clamp, silently: nothing in the data may warn or raise
            scaled = value / self.scale
        return np.rint(np.clip(np.where(np.isnan(scaled), 0.0, scaled), -largest, largest) * 2.0**GRID_BITS).astype(
            np.int64
        )


def mu(noise: PrefixNoise, moved: float, dimension: int) -> float:
    """Return GDP of all releases for a user who moves each of its rounds so far in ℓ2, at most.

    C times the user's rounds is what the sampler predicts of these, and themselves. Where C is no Toeplitz matrix every
    first round is simulated, up to 16,384; where there are more, the column norm is believed. Else the user of
    rounds 0, b, 2b, ... is the worst as long as the column of round 0, simulated with it, never grows; else inf.
    """
    norm = _simulated_norm(noise)
    rounding = (2 * norm + 2 * noise.factors.rounding * math.sqrt(noise.rounds)) * math.sqrt(dimension) * _STEP
    return norm * moved / noise.scale * (1 + 1e-9) + rounding


def _simulated_norm(noise: PrefixNoise) -> float:
    factors, often, apart = noise.factors, noise.participations, noise.separation
    toeplitz, falls, last = factors.coefficients is not None, True, math.inf
    firsts = np.zeros(1 + (often > 1), np.int64) if toeplitz else np.arange(apart if often > 1 else noise.rounds)
    times = np.array([often, 1][: len(firsts)]) if toeplitz else often
    if len(firsts) > _SIMULATED:
        norm = noise.column_norm
    else:
        memory, square = np.zeros((factors.slots, len(firsts))), np.zeros(len(firsts))
        for t in range(noise.rounds):
            since = t - firsts
            own = ((since >= 0) & (since % apart == 0) & (since // apart < times)).astype(np.float64)
            now = factors.predict(t, memory) + own
            memory, square = factors.remember(t, memory, own), square + now**2
            falls = falls and (not toeplitz or often == 1 or 0 <= now[1] <= last + 1e-12)
            last = float(now[-1])
        norm = math.sqrt(float(square.max())) if falls else math.inf
    return norm

"""Private running sums: correlated noise that grows with the logarithm of the rounds instead of their root.

    >>> from quoron_privacy.accounts.gdp import mu_for
    >>> mu = mu_for(1.0, 1e-6, gaussians=128 * 10)
    >>> noise = PrefixNoise.for_mu(rounds=128, sensitivity=0.02, mu=mu, dimension=10)
    >>> round(noise.max_std, 3), round(0.02 / 0.2367 * 128**0.5, 3)  # the same with independent noise
    (0.221, 0.956)

Round t adds its contribution g_t and noise N_t, the noise chosen so that C N is independent Gaussian noise for a
factorisation A = B C of prefix sums; the released sums then carry noise B Z. Source: Denisov, McMahan, Rush, Smith &
Thakurta (2022). Proof, with everything in integers: docs/privacy/prefix-noise.md.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.errors import ConfigError, Infeasible, RunError, count, positive
from quoron_privacy.noise.streams import GRID_BITS, NoiseSource
from quoron_privacy.prefix.factorisations import Factorisation, factorise
from quoron_privacy.release import NoisySums, Release

Floats = NDArray[np.float64]

DEFAULT = "blt"
_ARITHMETIC = 1 + 1e-9  # rounding of plans: products and quotients of public floats


@dataclass(frozen=True, slots=True)
class PrefixState:
    """Between two rounds. Secret: whoever knows the memory can subtract noise. No contribution is stored un-noised."""

    round: int  # releases so far
    total: NDArray[np.int64]  # the last released sum in steps, shape (d,)
    memory: Floats  # what the factorisation keeps of the noise, shape (slots, d)


@dataclass(frozen=True, slots=True)
class PrefixNoise:
    """Noise for the sums g_0 + ... + g_t of `rounds` contributions, on a grid of scale / 2³⁰.

    Formal guarantee: if the own user takes part in `participations` rounds at most, known before the first and any two
    of them `separation` or more apart, and moves each of their contributions by at most `sensitivity` in ℓ2 whatever
    was released before, all releases together are `effective_mu(dimension)`-GDP with exact noise (prefix-noise#c2 for
    one participation, several-epochs#c3); `noise.total_variation(gaussians=rounds * dimension)` bounds what the noise
    lacks.

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
        """The least noise for a μ-GDP transcript; Infeasible if rounding to the grid alone costs μ."""
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
        return self.factors.reach(self.participations, self.separation)

    @property
    def step(self) -> float:
        """Distance of neighbouring outputs; a power of two times the scale, so exact."""
        return self.scale * 2.0**-GRID_BITS

    @property
    def max_std(self) -> float:
        """Largest standard deviation per coordinate of any released sum."""
        return self.scale * float(self.factors.row_norms.max())

    @property
    def rms_std(self) -> float:
        """Root mean square over rounds of the standard deviations."""
        return self.scale * float(np.sqrt(np.mean(self.factors.row_norms**2)))

    def std(self, t: int) -> float:
        """Standard deviation per coordinate of the noise in the sum released in round t, 0 <= t < rounds."""
        if not 0 <= t < self.rounds:
            raise ConfigError(f"Expected 0 <= t < {self.rounds}, got t={t}.")
        return self.scale * float(self.factors.row_norms[t])

    def effective_mu(self, dimension: int) -> float:
        """μ of all releases together: column norm · sensitivity / scale, and what rounding adds (prefix-noise#c2)."""
        count(dimension=dimension)
        exact = self.column_norm * self.sensitivity * _ARITHMETIC / self.scale
        return exact + self._grid_mu(dimension)

    def start(self, dimension: int) -> PrefixState:
        """The state before the first round, for contributions of shape (dimension,)."""
        count(dimension=dimension)
        return PrefixState(0, np.zeros(dimension, np.int64), np.zeros((self.factors.slots, dimension)))

    def release(
        self, state: PrefixState, contribution: Floats | NoisySums, noise: NoiseSource, name: str = "prefix"
    ) -> tuple[Floats, PrefixState]:
        """The noised sum of all contributions so far, shape (d,), and the next state.

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
        """What the release of a contribution added to the sum, with its noise, shape (d,)."""
        return (after.total - before.total).astype(np.float64) * self._step_of(contribution)

    def entry(self) -> Release:
        """The ledger entry of the whole transcript."""
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
        """The contribution in whole steps; clamped such that a sum of all rounds is below 2⁶²."""
        largest = min(2.0**22, 2.0**31 / self.rounds)
        with np.errstate(all="ignore"):  # an overflow becomes a clamp, silently: nothing in the data may warn or raise
            scaled = value / self.scale
        return np.rint(np.clip(np.where(np.isnan(scaled), 0.0, scaled), -largest, largest) * 2.0**GRID_BITS).astype(
            np.int64
        )

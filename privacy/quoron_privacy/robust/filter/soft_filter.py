"""The soft outlier filter (Algorithm 2S, our own): weights that fade with the score, and one noisy test per phase.

    >>> parameters = calibrate(4.0, 1e-6, cohort_size=2500, eta_beta=1.0, phase_users=25_000)
    >>> verify(parameters, 4.0, 1e-6) <= 1e-6
    True

User i of a cohort of B with score k_i = κ_i/B has softness s_i = min(1, exp(−L(k_i − f1))) and weight w_i = 1 − s_i in
the cohort's weighted mean. The phase halts when V, the sum of softness so far, exceeds Vmax; at its end a public
average of the iterates is released with Gaussian noise, if V + N(0, s_u²) is at most `test_threshold`. No noise per
user, no random cutoff; needs smaller cohorts than the hard filter when ηβ is small, and more noise in large ones.

    >>> scores = np.array([3.0, 3.0, 3.0, 1.0])
    >>> soft_weights(suspicions(scores, cohort_size=4, slope=100.0, cutoff=0.7)).round(4)
    array([0.9933, 0.9933, 0.9933, 0.    ])

A small change of the score changes s by a small *factor*. It needs the scores themselves, of all pairs. An isolated
slot scores 1, which lies below every admissible cutoff: its weight is 0.

Source: our own. Statement, proof and symbols: docs/privacy/soft-filter.md.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from quoron_privacy.accounts import gdp, sensitivity_recount
from quoron_privacy.accounts.pair import Pair
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError, count, non_negative, positive, probability
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.robust.filter.concentration import Vector
from quoron_privacy.robust.filter.thresholds import left_of_delta, require

loops = OnFirstUse("quoron_privacy.robust.filter.soft_filter_loops")

_SUMMATION = 1e-9  # relative slack for adding up softness in float arithmetic


@dataclass(frozen=True, slots=True)
class SoftFilterParameters:
    """Numbers of one phase, fixed before it starts."""

    cohort_size: int  # B
    steepness: float  # L
    floor: float  # f1: at and below this score (per user of the cohort) the weight is 0
    softness_limit: float  # Vmax
    test_noise: float  # s_u: standard deviation of the release test
    test_failure: float  # δ_u: how likely a phase that reached Vmax in one world passes the test in the other
    eta_beta: float  # upper bound on step size × smoothness over the phase
    theta: float  # τ·d: the distance of ordinary users on the kernel's scale
    noise_multiplier: float  # s
    score_error: float  # kerr: bound on |computed κ − κ|

    @property
    def weight(self) -> float:
        """B − Vmax: least total weight of a cohort unless the phase halts."""
        return self.cohort_size - self.softness_limit

    @property
    def softness_sensitivity(self) -> float:
        """Δ_V: how far one user moves the sum of softness."""
        return _fixed_point(self)[1]

    @property
    def test_threshold(self) -> float:
        """Release when V + N(0, s_u²) is at most this."""
        margin = self.test_noise * -float(ndtri(self.test_failure)) * (1 + 1e-12)
        return self.softness_limit - self.softness_sensitivity - margin

    @property
    def noise_factor(self) -> float:
        """Ξ = s·B / (θ·(B − Vmax)): the release's noise is η·d·Ξ/B."""
        return self.noise_multiplier * self.cohort_size / (self.theta * self.weight)

    def temperature(self, distance: float) -> float:
        """τ = θ/d for a public typical distance d between users' average gradients."""
        positive(distance=distance)
        return self.theta / distance

    def sensitivity(self, step: float, distance: float) -> float:
        """b = η·ρ(1 + I)/(τ·(B − Vmax)): one user moves the release by at most this."""
        positive(step=step)
        return step * _fixed_point(self)[0] / (self.temperature(distance) * self.weight)

    def noise_scale(self, step: float, distance: float) -> float:
        """Return σ = η·s / (τ·(B − Vmax)), the standard deviation a coordinate of a public average of iterates."""
        positive(step=step)
        return step * self.noise_multiplier / (self.temperature(distance) * self.weight)


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """What a search tries."""

    floors: Vector  # f1
    thetas: Vector  # θ
    shares: Vector  # of μ², spent on the release test


_WIDE = _Grid(
    floors=np.linspace(0.51, 0.95, 23),
    thetas=np.geomspace(0.005, 0.5, 24),
    shares=np.array([0.05, 0.1, 0.16, 0.23, 0.3, 0.38, 0.46, 0.55, 0.65, 0.75]),
)


def verify(parameters: SoftFilterParameters, epsilon: float, delta: float, *, delta_slack: float = 0.0) -> float:
    """Return δ that soft-filter#sf1 certifies at ε for one or more phases on disjoint users, ≤ `delta`; replace-one.

    `delta_slack` bounds the total-variation distance of all noise of a phase from its ideal law; it costs
    (1 + e^ε)·delta_slack. Raises VerificationError naming the condition that fails.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)
    non_negative(delta_slack=delta_slack)
    p = parameters
    numbers = [float(getattr(p, name)) for name in SoftFilterParameters.__slots__]
    require(all(math.isfinite(number) for number in numbers), "finite parameters", p)
    require(isinstance(p.cohort_size, int) and p.cohort_size >= 2, "integer B >= 2", p)
    require(p.steepness > 0 and p.test_noise > 0 and p.noise_multiplier > 0 and p.theta > 0, "L, s_u, s, θ > 0", p)
    require(0.5 < p.floor < 1, "1/2 < f1 < 1", p)
    require(0 < 2 * p.softness_limit < p.cohort_size, "0 < Vmax < B/2", p)
    require(0 < p.test_failure < 1, "0 < δ_u < 1", p)
    require(0 <= p.eta_beta <= 2, "0 <= step·smoothness <= 2", p)
    require(p.score_error >= 0, "kerr >= 0", p)
    shift, sensitivity = _recounted(p)
    room = p.softness_limit - sensitivity - p.test_threshold
    passed = 0.5 * math.erfc(room / p.test_noise / math.sqrt(2))  # of a phase whose other world reached Vmax
    require(passed <= p.test_failure * (1 + 1e-9), f"a test that passes with chance δ_u (got {passed:.4g})", p)
    mu = sensitivity_recount.together(shift / p.noise_multiplier, sensitivity / p.test_noise) * (1 + 1e-12)
    certified = max(Pair.gaussian(mu).delta(epsilon, delta), p.test_failure) + (1 + math.exp(epsilon)) * delta_slack
    require(certified <= delta, f"a certified delta <= {delta:g} at epsilon={epsilon:g} (got {certified:.4g})", p)
    return certified


def calibrate(
    epsilon: float,
    delta: float,
    cohort_size: int,
    eta_beta: float,
    phase_users: int,
    *,
    score_error: float = 0.0,
    delta_slack: float = 0.0,
) -> SoftFilterParameters:
    """Return parameters with small noise factor Ξ that `verify` accepts at (ε, δ).

    `phase_users` bears on utility alone: ordinary users use up at most three tenths of Vmax over a phase of that
    many, and then pass the test with probability 0.998. Raises Infeasible naming the smallest cohort that would do.
    """
    count(cohort_size=cohort_size, phase_users=phase_users)
    non_negative(score_error=score_error)
    target = left_of_delta("soft filter", epsilon, delta, eta_beta, delta_slack)
    best = _search(epsilon, target, cohort_size, eta_beta, phase_users, score_error)
    if best is None:
        edge = _smallest_cohort(epsilon, target, eta_beta, phase_users, score_error)
        why = f"at epsilon={epsilon:g}, delta={delta:g}, ηβ={eta_beta:g}"
        raise Infeasible.small_cohort("soft filter (soft-filter#sf1)", cohort_size, why, edge, 2 * edge)
    return best


def smallest_cohort(epsilon: float, delta: float, eta_beta: float) -> int:
    """B_min, the least cohort for which `calibrate` finds parameters, at ten rounds a phase. Use at least twice it."""
    left_of_delta("soft filter", epsilon, delta, eta_beta)
    return _smallest_cohort(epsilon, delta, eta_beta, 1, 0.0)


@lru_cache(maxsize=256)
def _smallest_cohort(epsilon: float, delta: float, eta_beta: float, users: int, score_error: float) -> int:
    def feasible(size: int) -> bool:
        # A smaller θ leaves ordinary users farther from the floor: weights fade more gently and everything moves less.
        gentlest = _Grid(_WIDE.floors, _WIDE.thetas[:1], _WIDE.shares)
        return math.isfinite(_proposed(epsilon, delta, size, eta_beta, max(users, 10 * size), score_error, gentlest)[0])

    size = least_number(feasible, 16, low=8, within=1000)
    if size is None:
        raise Infeasible("soft filter", "no cohort is large enough", "a larger epsilon or delta")
    return size


def _fixed_point(p: SoftFilterParameters) -> tuple[float, float]:
    """(ρ(1 + I), Δ_V): shift of an iterate in units of η/(τ(B − Vmax)), and of the softness; from the docs' induction.

    Any point that the map sends below itself is a bound: the iteration climbs to the least fixed point and then proves,
    by one evaluation, that a point a little above is such a one.
    """
    shift, shift_factor = 0.0, 1 + 1e-7
    for _ in range(500):
        moved, sensitivity = _climb(p, shift)
        if moved <= shift:
            return shift, sensitivity
        shift = moved * shift_factor
    raise VerificationError(f"Expected a fixed point of the iterates' distance, found none for {p}.")


def _climb(p: SoftFilterParameters, shift: float) -> tuple[float, float]:
    """One step of the induction: (bound on the shift, Δ_V) when every earlier iterate is within `shift`."""
    size, error = p.cohort_size, 2 * p.score_error / p.cohort_size
    move = max(1 / size, -math.expm1(-p.eta_beta * shift / p.weight)) + error
    room = 2 * p.floor - 1 - move
    require(room > 0, "a positive 2·f1 − 1 − ω", p)
    growth = math.expm1(min(p.steepness * move, 700.0)) * p.softness_limit
    return -math.log(room) * (1 + growth) * (1 + 1e-12), (1 + growth) * (1 + _SUMMATION) + _SUMMATION


def _recounted(p: SoftFilterParameters) -> tuple[float, float]:
    """`_fixed_point` again: the least shift that soft-filter#sf1 maps below itself, by trying and halving; and Δ_V."""
    users, weight = p.cohort_size, p.cohort_size - p.softness_limit

    def mapped(shift: float) -> tuple[float, float]:
        later = 1 - math.exp(-p.eta_beta * shift / weight)  # of a score, by an iterate that far off
        change = (max(1 / users, later) + 2 * p.score_error / users) * (1 + 1e-12)
        together = p.floor - change + p.floor  # of two scores that both count: e^-ρ beyond one
        require(together > 1, "a positive 2·f1 − 1 − ω", p)
        own = 1 + p.softness_limit * (math.exp(min(p.steepness * change, 700.0)) - 1) * (1 + 1e-12)
        return own * math.log(1 / (together - 1)), own

    low, high = 0.0, mapped(0.0)[0]
    while mapped(high)[0] > high:
        low, high = high, 1.001 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mapped(middle)[0] > middle else (low, middle)
    return mapped(high)[0], mapped(high)[1] * (1 + _SUMMATION) + _SUMMATION


def _search(
    epsilon: float, delta: float, size: int, eta_beta: float, users: int, score_error: float
) -> SoftFilterParameters | None:
    """Grid over (f1, θ, share of the test), then twice around the best."""
    full = _usable_mu(epsilon, delta)
    best: tuple[float, ...] = (math.inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    grid = _WIDE
    for width in (0.02, 0.005, 0.0012):
        best = min(best, _proposed(epsilon, delta, size, eta_beta, users, score_error, grid))
        if not math.isfinite(best[0]):
            return None
        _, floor, theta, share, *_ = best
        around = np.linspace(-1, 1, 7)
        grid = _Grid(
            floors=np.clip(floor + width * around, 0.501, 0.999),
            thetas=theta * np.exp(8 * width * around),
            shares=np.clip(share + 2 * width * around, 0.005, 0.95),
        )
    _, floor, theta, share, limit, steepness, sensitivity = best
    draft = SoftFilterParameters(
        cohort_size=size,
        steepness=steepness,
        floor=floor,
        softness_limit=limit,
        test_noise=1.0,
        test_failure=delta,
        eta_beta=eta_beta,
        theta=theta,
        noise_multiplier=1.0,
        score_error=score_error,
    )
    shift, sensitivity = _fixed_point(draft)
    return replace(
        draft,
        test_noise=sensitivity / (full * math.sqrt(share)),
        noise_multiplier=shift / (full * math.sqrt(1 - share)),
    )


def _proposed(
    epsilon: float, delta: float, size: int, eta_beta: float, users: int, score_error: float, grid: _Grid
) -> tuple[float, ...]:
    """`loops.propose` on a grid."""
    full, margin = _usable_mu(epsilon, delta), -float(ndtri(delta))
    found: tuple[float, ...] = loops.propose(
        size, eta_beta, users, score_error, full, margin, grid.floors, grid.thetas, grid.shares
    )
    return found


def _usable_mu(epsilon: float, delta: float) -> float:
    """What test and release may cost together, rounding apart."""
    return gdp.mu_for(epsilon, delta) * (1 - 1e-9)


def suspicions(scores: ArrayLike, *, cohort_size: int, slope: float, cutoff: float) -> Vector:
    """s_i in [0, 1], (k,) -> (k,); their sum over all rounds is the statistic V of the release test.

    Args:
        scores: κ_i of every slot, isolated slots included (`concentration.cohort_scores`).
        cohort_size: B, the public number of slots, at least 2.
        slope: L > 0.
        cutoff: f₁, in (1/2, 1), as a fraction of B.

    Raises:
        ConfigError: a parameter out of range.
    """
    count(cohort_size=cohort_size)
    positive(slope=slope)
    if cohort_size < 2 or not 0.5 < cutoff < 1.0:
        raise ConfigError(f"Expected cohort_size >= 2 and cutoff in (1/2, 1), got {cohort_size} and {cutoff}.")
    excess = np.asarray(scores, dtype=np.float64) / cohort_size - cutoff
    return np.exp(-slope * np.maximum(excess, 0.0))


def soft_weights(suspicions: Vector) -> Vector:
    """w_i = 1 - s_i in [0, 1), (k,) -> (k,); exactly 0 at and below the cutoff."""
    return 1.0 - suspicions


def soft_mean(gradients: ArrayLike, weights: NDArray[np.float64]) -> Vector:
    """Σ w_i q_i / Σ w_i over rows of positive weight, (k, d) and (k,) -> (d,); zeros when every weight is 0.

    Rows of weight 0 are never read, so it does not matter whether they are finite.
    """
    rows = np.ascontiguousarray(gradients, dtype=np.float64)
    whole = float(weights.sum())
    if whole <= 0.0:
        return np.zeros(rows.shape[1])
    mean: Vector = loops.weighted_sum(rows, weights / whole)
    return mean

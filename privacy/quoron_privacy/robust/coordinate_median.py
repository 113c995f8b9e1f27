"""Means near coordinatewise medians, and one noisy test of concentration a phase (Ghazi et al., Algorithms 7, 8).

    >>> parameters = calibrate(2.0, 1e-6, cohort_size=1000, eta_beta=1e-4, clip=3.0)
    >>> verify(parameters, 2.0, 1e-6) <= 1e-6
    True

The estimate (`debiased_mean`) moves by no more than the answers do, so steps of SGD on a box bring no two iterates
farther apart. While most answers lie together, one user moves it by a distance of concentration and not by the worst
gradient; the test, once a phase, releases iff the least score of its rounds plus Laplace noise clears a threshold. The
shift of a phase has no 1/B, unlike a plain mean's: see `noise_factor` before use.

Source: Ghazi, Kumar, Liu & Manurangsi, Appendix D, whose test has noise for half its sensitivity. Repaired statement,
proof and symbols: docs/privacy/median-sgd.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit

from quoron_privacy.accounts import gdp
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.arrays import Matrix, Vector
from quoron_privacy.errors import ConfigError, Infeasible, count, non_negative, positive, probability
from quoron_privacy.noise.streams import RandomStream
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold, left_of_delta, require

_PASS = 1e-3  # chance that noise fails a phase of ordinary users, as planned for
_GRID = 2.0**-19  # two grid steps of the test, in units of its scale
_ROUNDING = 1e-9


def median_trim(cohort_size: int) -> int:
    """Return how many answers a median leaves out on a side: all but the middle one, or the middle two of an even B."""
    return (cohort_size - 1) // 2


def trimmed_mean(rows: Matrix, trim: int) -> Vector:
    """Return the mean (d,) of each coordinate of `rows` (B, d) without its `trim` smallest and `trim` largest values.

    Formal guarantee (the paper's Assumption 28), for any rows, in the sup norm.
    (i) If more than B - trim - 1 rows lie within ρ of a point, so does the result.
    (ii) Moving every row by at most Δ moves the result by at most Δ.
    (iii) Scaling by any number, negative ones too, and translating by any vector do the same to the result.

    `median_trim` makes it the median, that of an even number of rows being the middle of the two middle ones. Raises
    ConfigError unless 0 <= 2 trim < B.
    """
    users = len(rows)
    if not 0 <= 2 * trim < users:
        raise ConfigError(f"Expected 0 <= 2 * trim < {users} rows, got trim={trim}.")
    middle = np.sort(rows, axis=0)[trim : users - trim]
    if len(middle) <= 2:
        halves: Vector = middle[0] / 2 + middle[-1] / 2
        return halves
    return np.clip(_mean(middle), middle[0], middle[-1])


def debiased_mean(rows: Matrix, trim: int, radius: float) -> Vector:
    """Return the mean of `rows` (B, d), every coordinate held within `radius` of that of `trimmed_mean`; shape (d,).

    Formal guarantee: it has property (ii) of `trimmed_mean` (the paper's Lemma 31), and properties (i) for a radius
    larger by `radius`, and (iii) where the radius is scaled as the rows are.

        >>> rows = np.array([[0.0, 1.0], [0.1, 1.1], [0.2, 1.2], [50.0, 1.3]])
        >>> debiased_mean(rows, trim=1, radius=0.5)
        array([0.65, 1.15])
    """
    robust = trimmed_mean(rows, trim)
    return np.clip(_mean(rows), robust - radius, robust + radius)


def _mean(rows: Matrix) -> Vector:
    """Return the mean of columns that are contiguous, which numpy adds pairwise."""
    total: Vector = np.sum(np.ascontiguousarray(rows.T), axis=1) / len(rows)
    return total


@dataclass(frozen=True, slots=True)
class MedianParameters:
    """Numbers of one phase, fixed before it starts. Scores are the mean of κ_i over the cohort; lengths are times τ.

    Formal guarantee of the test at its end: `test_epsilon`-DP where one user moves the score by at most
    `test_sensitivity`; and below `floor` it passes with chance at most `failure`. Up to `noise.LAPLACE_SLACK` in total
    variation.
    """

    cohort_size: int  # B
    trim: int  # k: what the robust statistic leaves out on either side
    core: float  # s_min: a release assumes scores of at least core · B
    test_scale: float  # λ
    threshold: float  # v
    eta_beta: float  # upper bound on step size × β∞ over the phase
    theta: float  # τ·d: the distance of ordinary users
    clip: float  # τ·G∞: coordinates of answers are held within it of zero
    room: float  # τ·ς: how far the mean may lie from the median
    noise_multiplier: float  # s
    score_error: float  # kerr: bound on |computed score - score|

    @property
    def reach(self) -> float:
        """r: with a score of core · B, more than B - k answers lie within r of one of them."""
        size = self.cohort_size
        return -math.log((self.core * size - (size - self.trim)) / self.trim) * (1 + 1e-12)

    @property
    def shift(self) -> float:
        """R: one user moves an estimate by at most R/τ, and so every later iterate by at most ηR/τ, in ℓ∞."""
        # Medians move by 2r at most, clipped means by 2τG/B; or both estimates lie within τς of their medians.
        moved = max(2 * self.reach, 2 * self.clip / self.cohort_size)
        return min(moved, 2 * self.reach + 2 * self.room) * (1 + 1e-12)

    @property
    def test(self) -> LaplaceThreshold:
        """The test at the end of the phase: its least score, plus Laplace noise, above a threshold."""
        return LaplaceThreshold(self.test_scale, self.threshold)

    @property
    def test_sensitivity(self) -> float:
        """Δ + 2 kerr: of the computed score."""
        others, log_distance = self.cohort_size - 1, self.eta_beta * self.shift  # τ·β∞·b
        # Row and column of the own user in its own cohort; all pairs in later ones.
        moved = max(2 * others / self.cohort_size, -others * math.expm1(-log_distance) * (1 + 1e-12))
        return moved + 2 * self.score_error

    @property
    def test_epsilon(self) -> float:
        """ε of one decision."""
        return self.test.epsilon(self.test_sensitivity)

    @property
    def floor(self) -> float:
        """A score below it, in either world, is taken to halt the phase."""
        return self.core * self.cohort_size + 2 + self.score_error

    @property
    def failure(self) -> float:
        """Chance at most that a score below the floor passes."""
        return 0.5 * math.exp(-max(0.0, self.threshold - self.floor - self.test.grid) / self.test_scale)

    def decide(self, score: float, stream: RandomStream) -> bool:
        """Return whether `score` with noise clears the threshold."""
        return bool(self.test.decide(np.array([score]), stream)[0])

    @property
    def noise_factor(self) -> float:
        """Ξ: the release's noise is η·√d·d∞·Ξ, against η·G·(2/μ)/B for a plain mean."""
        return self.noise_multiplier / self.theta

    def temperature(self, distance: float) -> float:
        """τ = θ/d for a public typical distance d, in ℓ∞, between users' average gradients."""
        positive(distance=distance)
        return self.theta / distance

    def sensitivity(self, step: float, length: float) -> float:
        """√d·η·R/τ, with `length` = √d times the typical distance: one user moves the release so far in ℓ2."""
        positive(step=step, length=length)
        return step * self.shift * length / self.theta

    def noise_scale(self, step: float, length: float) -> float:
        """Return σ = √d·η·s/τ: standard deviation per coordinate of the release, with `length` as for `sensitivity`."""
        positive(step=step, length=length)
        return step * self.noise_multiplier * length / self.theta


def verify(parameters: MedianParameters, epsilon: float, delta: float, *, delta_slack: float = 0.0) -> float:
    """Return δ that the theorem certifies at ε for one or more phases on disjoint users (replace-one); at most `delta`.

    `delta_slack` bounds the total variation of a phase's noise from its ideal law; it costs (1 + e^ε)·delta_slack.
    Raises VerificationError naming the condition that fails.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)
    non_negative(delta_slack=delta_slack)
    p, size = parameters, parameters.cohort_size
    numbers = [float(getattr(p, name)) for name in MedianParameters.__slots__]
    require(all(math.isfinite(number) for number in numbers), "finite parameters", p)
    require(type(size) is int and type(p.trim) is int and p.trim >= 1 and 2 * p.trim < size, "1 <= k < B/2", p)
    require(size - p.trim < p.core * size < size, "B - k < core·B < B", p)
    require(min(p.test_scale, p.theta, p.clip, p.room, p.noise_multiplier) > 0, "λ, θ, τG, τς, s > 0", p)
    require(0 <= p.eta_beta <= 2, "0 <= step·β∞ <= 2", p)
    require(p.score_error >= 0, "kerr >= 0", p)
    cost = p.test_epsilon
    require(cost <= epsilon, "a test of at most ε", p)
    mu = p.shift / p.noise_multiplier * (1 + 1e-12)
    both = DominatingPair.gaussian(mu).and_(DominatingPair.response(cost))
    certified = max(both.delta(epsilon, delta), p.failure) * (1 + _ROUNDING)
    certified += (1 + math.exp(epsilon)) * delta_slack
    require(certified <= delta, f"a certified delta <= {delta:g} at epsilon={epsilon:g} (got {certified:.4g})", p)
    return certified


def calibrate(
    epsilon: float,
    delta: float,
    cohort_size: int,
    eta_beta: float,
    clip: float,
    *,
    score_error: float = 0.0,
    delta_slack: float = 0.0,
) -> MedianParameters:
    """Return parameters with a small noise factor that `verify` accepts at (ε, δ).

    `clip` is G∞/d: how far a coordinate may lie from zero, in distances of ordinary users.
    Raises Infeasible naming the smallest cohort that would do.
    """
    positive(clip=clip)
    count(cohort_size=cohort_size)
    non_negative(score_error=score_error)
    target = left_of_delta("median test", epsilon, delta, eta_beta, delta_slack) / (1 + 2 * _ROUNDING)
    if (found := _search(epsilon, target, cohort_size, eta_beta, clip, score_error)) is not None:
        return found
    edge = smallest_cohort(epsilon, delta, eta_beta)
    raise Infeasible(
        "median test",
        f"cohort_size={cohort_size:,} with step·smoothness={eta_beta:g} is too small or too steep at "
        f"epsilon={epsilon:g}, delta={delta:g}",
        "a smaller step" if edge is None else f"cohort_size >= {edge:,} and step·smoothness <= {4 / edge:.2g}",
    )


@lru_cache(maxsize=256)
def smallest_cohort(epsilon: float, delta: float, eta_beta: float) -> int | None:
    """Return the least cohort, but for 1 %, for which `calibrate` finds parameters; None where no cohort is feasible.

    Larger cohorts need smaller steps: the score's sensitivity grows as step·β∞·B.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)

    def feasible(size: int) -> bool:
        return _search(epsilon, delta / 2, size, eta_beta, 1.0, 0.0) is not None

    high = 8
    while not feasible(high):
        high = math.ceil(1.25 * high)
        if high > 1 << 24:
            return None
    low = high * 4 // 5
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if feasible(middle) else (middle, high)
    return high


def _search(
    epsilon: float, delta: float, size: int, eta_beta: float, clip: float, error: float
) -> MedianParameters | None:
    """The least noise factor over a grid of shares for the test and of cores, twice refined; None if there is none."""
    trim = median_trim(size)
    if not 1 <= trim < size / 2:
        return None

    def least(share: float, mu: float, parts: Vector) -> tuple[float, MedianParameters] | None:
        """Return the best of cores at `parts` of the way from B - k to B; the test gets `share` of ε, the release μ."""
        core = (size - trim + parts * trim) / size
        reach = -np.log(parts) * (1 + 1e-9)
        widest = -np.log(core)  # θ is at most this
        moved = np.maximum(2 * reach, 2 * clip * widest / size)
        moved = np.minimum(moved, 2 * reach + 2 * widest) * (1 + 1e-9)
        sensitivity = np.maximum(2 * (size - 1) / size, -(size - 1) * np.expm1(-eta_beta * moved)) + 2 * error
        scale = sensitivity * (1 + 1e-8) / (share * epsilon - _GRID)
        threshold = core * size + 2 + error + scale * (math.log(1 / (2 * delta)) + _GRID)
        ordinary = (threshold + error + scale * math.log(1 / (2 * _PASS))) / size
        with np.errstate(invalid="ignore", divide="ignore"):
            theta = np.where(ordinary < 1, -np.log(ordinary), 0.0)
            shift = np.minimum(np.maximum(2 * reach, 2 * clip * theta / size), 2 * reach + 2 * theta)
            factor = np.where(theta > 0, shift / theta, np.inf)
        at = int(np.argmin(factor))
        if not math.isfinite(factor[at]):
            return None
        draft = MedianParameters(
            cohort_size=size,
            trim=trim,
            core=float(core[at]),
            test_scale=float(scale[at]),
            threshold=float(threshold[at]),
            eta_beta=eta_beta,
            theta=float(theta[at]),
            clip=float(clip * theta[at]),
            room=float(theta[at]),
            noise_multiplier=float(shift[at] / mu * (1 + 1e-8)),
            score_error=error,
        )
        return draft.noise_factor, draft

    best: tuple[float, MedianParameters] | None = None
    shares, cores = np.linspace(0.06, 0.94, 12), np.linspace(0.0, 1.0, 42)[1:-1]
    for width in (0.04, 0.01, 0.0):
        for share in shares:
            found = least(float(share), _usable_mu(epsilon, delta, round(float(share), 6)), cores)
            if found is not None and (best is None or found[0] < best[0]):
                best, at = found, float(share)
        if best is None:
            return None
        around, middle = np.linspace(-width, width, 5), (best[1].core * size - (size - trim)) / trim
        shares, cores = np.clip(at + around, 0.01, 0.99), np.clip(middle + around / 2, 1e-4, 1 - 1e-4)
    assert best is not None
    return best[1]


@lru_cache(maxsize=4096)
def _usable_mu(epsilon: float, delta: float, share: float) -> float:
    """Return what the release may cost beside a test of `share` of ε, rounded down."""
    low, high = 0.0, gdp.mu_for(epsilon, delta)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _pair_delta(epsilon, share * epsilon, middle) <= delta else (low, middle)
    return low


def _pair_delta(epsilon: float, cost: float, mu: float) -> float:
    """Return δ at ε of a test that costs `cost` with a release that is μ-GDP: randomised response, then a Gaussian."""
    likely = float(expit(cost))
    return likely * gdp.delta_for(mu, epsilon - cost) + (1 - likely) * gdp.delta_for(mu, epsilon + cost)

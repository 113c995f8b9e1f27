"""The noisy-threshold outlier filter (Ghazi et al., Algorithm 2): the guarantee of its parameters, and which to choose.

    >>> parameters = calibrate(4.0, 1e-6, cohort_size=2500, eta_beta=1.0, phase_users=25_000)
    >>> verify(parameters, 4.0, 1e-6) <= 1e-6
    True

A phase keeps user i of a cohort of B when κ_i + Lap(λ) > F, κ_i the concentration score. It halts when the number of
users filtered reaches a hidden random cutoff, and releases a public average of its iterates with Gaussian noise.
Function `verify` evaluates outlier-filter#f1, `calibrate` searches for the least noise that it accepts, by a faster
game. Everything is free of scale: a length d (how far apart ordinary users' average gradients lie) enters only through
τ = θ/d and σ = η·d·Ξ/B.

A phase is an adaptive series of tests of which only hits count, and one release. A test's two outcomes are each within
e^±e0 of one another between neighbouring datasets; the series stops at the last hit, and unless it did, one μ-GDP
release is made. Calibration asks `looked_up`: the exact value of an adversary's game (`game_values`), averaged over the
hidden cutoff by the first account. Verification asks `recounted`: supersolutions of the game (`recounted_values`), the
law that is drawn and the second account. They share nothing.

Source: Ghazi, Kumar, Liu & Manurangsi, Algorithm 2, with the cutoff, the halt and the constants of our own proof.
Statement, proof and symbols: docs/privacy/outlier-filter.md#f1; of the game outlier-filter.md#f3.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from quoron_privacy.accounts import gdp, pld_lattice
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.arrays import Integers, Matrix, Vector
from quoron_privacy.errors import Infeasible, VerificationError, count, non_negative, positive, probability
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.robust.filter.thresholds import HiddenCutoff, cutoff_law, end_mass, left_of_delta, require

loops = OnFirstUse("quoron_privacy.robust.filter.outlier_filter_loops")

_Wanted = tuple[int, float, int, float]  # cohort, step·smoothness, users of a phase, score error

_ROUNDING = 1e-9  # relative slack on every δ for float arithmetic in the evaluation of the theorem
_TAIL_SHARE = 0.1  # of δ, for each of the two tails
_WIDE = np.linspace(0.53, 0.98, 24)  # thresholds, as shares of the cohort, that are tried first

_MUS_PER_FOLD = 30  # μ is rounded up to a grid of this many points for each factor e
# Well beyond what (ε, δ) allows: a shift met with probability 1e-5 may cost 1e-2 of its own.
_BELOW, _ABOVE = 2.5, 2.0
LARGEST_RESIDUAL = 1e-15
_SWEEPS = 400
_UNRESOLVED = 1e-40  # below every δ that noise as it is drawn allows


@dataclass(frozen=True, slots=True)
class FilterParameters:
    """Numbers of one phase, fixed before it starts. Scores and thresholds are in users, as κ is."""

    cohort_size: int  # B
    decision_epsilon: float  # e0: what one user can do to another's decision
    laplace_scale: float  # λ
    threshold: float  # F
    cutoff_centre: int  # c_mid; the cutoff lies in {1, …, 2·c_mid − 1}
    cutoff_lattice: int  # j_c; the cutoff law decays as exp(−j_c·e0·|k − c_mid|)
    own_tail: float  # w1: a user scoring below F − w1 is taken to be filtered
    others_tail: float  # w2, the same for the users around
    eta_beta: float  # upper bound on step size × smoothness over the phase
    theta: float  # τ·d: the distance of ordinary users on the kernel's scale
    noise_multiplier: float  # s
    score_error: float  # kerr: bound on |computed κ − κ|

    @property
    def cutoff_max(self) -> int:
        """Largest possible cutoff, c_max."""
        return 2 * self.cutoff_centre - 1

    @property
    def survivors(self) -> int:
        """N = B − c_max: other users of a cohort that are kept unless the phase halts."""
        return self.cohort_size - self.cutoff_max

    @property
    def cutoff_decay(self) -> float:
        """ε_c = j_c·e0."""
        return self.cutoff_lattice * self.decision_epsilon

    @property
    def noise_factor(self) -> float:
        """Ξ = s·B / (θ·(N + 1)): the release's noise is η·d·Ξ/B, against η·G·(2/μ)/B for a plain average."""
        return self.noise_multiplier * self.cohort_size / (self.theta * (self.survivors + 1))

    def temperature(self, distance: float) -> float:
        """τ = θ/d for a public typical distance d between users' average gradients."""
        positive(distance=distance)
        return self.theta / distance

    def noise_scale(self, step: float, distance: float) -> float:
        """Return σ = η·s / (τ·(N + 1)), the standard deviation a coordinate of any public average of iterates."""
        positive(step=step)
        return step * self.noise_multiplier / (self.temperature(distance) * (self.survivors + 1))

    def sensitivity(self, step: float, distance: float) -> float:
        """b = η·ρ/(τ·(N + 1)): one user moves the release by at most this, unless its own noise exceeds w1."""
        positive(step=step)
        farthest = max(float(bound[0]) for bound in _shifts(self, np.array([self.own_tail])))
        return step * farthest / (self.temperature(distance) * (self.survivors + 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Frontier:
    """Cutoff laws with their e0 (P,), and ln δ_A, ln δ_B (P, M) on a grid of μ. Free of the cohort size."""

    each: Vector  # e0
    centres: Integers  # c_mid
    lattices: Integers  # j_c
    log_mus: Vector  # (M,)
    log_same: Vector
    log_shifted: Vector


def verify(parameters: FilterParameters, epsilon: float, delta: float, *, delta_slack: float = 0.0) -> float:
    """Return δ that outlier-filter#f1 certifies at ε for one or more phases on disjoint users; at most `delta`.

    Under replace-one: an empty place counts as a filtered user.

    `delta_slack` bounds the total-variation distance between the noise drawn in a phase (Laplace, cutoff, Gaussian, all
    draws together) and the ideal laws; it costs (1 + e^ε)·delta_slack.

    Raises VerificationError naming the condition that fails, also when the certified δ exceeds `delta`.
    """
    positive(epsilon=epsilon)
    probability(delta=delta)
    non_negative(delta_slack=delta_slack)
    certified = _recounted(parameters, epsilon, delta)
    certified += (1 + math.exp(epsilon)) * delta_slack
    if not certified <= delta:
        raise VerificationError(
            f"Expected a certified delta <= {delta:g} at epsilon={epsilon:g}, got {certified:.4g} for {parameters}."
        )
    return certified


@lru_cache(maxsize=64)  # for any number of rounds a plan looks at the same few cohorts
def calibrate(
    epsilon: float,
    delta: float,
    cohort_size: int,
    eta_beta: float,
    phase_users: int,
    *,
    score_error: float = 0.0,
    delta_slack: float = 0.0,
) -> FilterParameters:
    """Return parameters with small noise factor Ξ that `verify` accepts at (ε, δ).

    `phase_users` (users asked over the longest phase) bears on utility alone: θ leaves ordinary users so far above the
    threshold that about a tenth of the cutoff is spent on them by bad luck.

    Raises Infeasible naming the smallest cohort that would do.
    """
    count(cohort_size=cohort_size, phase_users=phase_users)
    non_negative(score_error=score_error)
    target = left_of_delta("outlier filter", epsilon, delta, eta_beta, delta_slack)
    wanted = cohort_size, eta_beta, phase_users, score_error
    best = _search(epsilon, target, wanted)
    if best is None:
        edge = _smallest_cohort(epsilon, target, *wanted[1:])
        why, better = f"at epsilon={epsilon:g}, delta={delta:g}, ηβ={eta_beta:g}", math.ceil(1.5 * edge)
        raise Infeasible.small_cohort("outlier filter (outlier-filter#f1)", cohort_size, why, edge, better)
    return _least_noise(best, epsilon, delta, delta_slack)


def smallest_cohort(epsilon: float, delta: float, eta_beta: float) -> int:
    """B_min, the least cohort for which `calibrate` finds parameters, at ten rounds a phase.

    The noise explodes at this edge; plan for at least 1.5 times as many.
    """
    left_of_delta("outlier filter", epsilon, delta, eta_beta)
    return _smallest_cohort(epsilon, delta, eta_beta, 1, 0.0)


@lru_cache(maxsize=256)
def _smallest_cohort(epsilon: float, delta: float, eta_beta: float, users: int, score_error: float) -> int:
    frontier = _frontier(epsilon, delta, 2)  # whether anything is feasible hangs on the smallest μ alone

    def feasible(size: int) -> bool:
        wanted = size, eta_beta, max(users, 10 * size), score_error
        return _proposed(delta, wanted, frontier, np.arange(len(frontier.each)), _WIDE)[0] >= 0

    size = least_number(feasible, 64, low=32, within=1000)
    if size is None:
        raise Infeasible("outlier filter", "no cohort is large enough", "a larger epsilon or delta")
    return size


def _certified(p: FilterParameters, epsilon: float, delta: float) -> Callable[[float], float]:
    """Return δ of outlier-filter#f1 as a function of the noise multiplier alone."""
    size = p.cohort_size
    both_kept, one_kept = _shifts(p, np.array([p.own_tail]))
    farthest = float(np.maximum(both_kept, one_kept)[0])
    sensitivity = score_sensitivity(size, p.eta_beta * farthest / (p.survivors + 1)) + 2 * p.score_error
    if sensitivity / p.laplace_scale > p.decision_epsilon:
        return lambda noise_multiplier: 1.0
    # The mean over the own user's noise: bins of max(ν, 0)/λ, each at its right end, where the shift is largest.
    depth = np.linspace(0.0, p.own_tail / p.laplace_scale, 512)
    weights = np.concatenate(([0.5], -0.5 * np.diff(np.exp(-depth))))
    both_kept, one_kept = _shifts(p, depth * p.laplace_scale)
    tails = 0.5 * math.exp(-p.own_tail / p.laplace_scale)
    tails += 0.5 * (size - 1) * math.exp(-(p.others_tail - 1 - 2 * p.score_error) / p.laplace_scale)

    def certified(noise_multiplier: float) -> float:
        mus = np.concatenate([both_kept, one_kept]) / noise_multiplier
        same, shifted = looked_up(epsilon, delta, p.decision_epsilon, p.cutoff_centre, p.cutoff_lattice, mus)
        pairs = np.maximum(same[: len(depth)], shifted[len(depth) :])
        return (float(weights @ pairs) + tails) * (1 + _ROUNDING)

    return certified


def _recounted(p: FilterParameters, epsilon: float, delta: float) -> float:
    """δ of outlier-filter#f1 from its statement, after every hypothesis has been checked; the search asks `_certified`.

    The own user's noise is told apart twice as finely.
    """
    _check_hypotheses(p)
    size, largest, spare = p.cohort_size, 2 * p.cutoff_centre - 1, 1 + 1e-12
    k2 = p.threshold - p.others_tail - p.score_error
    depth = p.own_tail / p.laplace_scale * np.arange(1023) / 1022
    k1 = p.threshold - p.score_error - depth * p.laplace_scale
    both = np.log((size - 1) / (2 * k1 - 1 - size)) * spare  # of one step, in units of η/(τ(N + 1))
    at, beside = np.minimum(k1, size), size - largest  # others who are kept
    apart = np.maximum(np.log(size / (at + k2 - size)), 1e-300)
    one = np.minimum(apart, apart * (size - at) / (beside * (1 - np.exp(-apart)))) * spare  # kept in one world
    farthest = float(max(both[-1], one[-1]))
    moved = (size - 1) * (1 - math.exp(-p.eta_beta * farthest / (size - largest + 1))) * spare
    decided = (max(1.0, moved) + p.score_error + p.score_error) / p.laplace_scale
    require(decided <= p.decision_epsilon * spare, "(Δ + 2·kerr)/λ <= e0", p)
    mus = np.concatenate([both, one]) / p.noise_multiplier
    same, shifted = recounted(epsilon, delta, p.decision_epsilon, p.cutoff_centre, p.cutoff_lattice, mus)
    worst = np.maximum(same[: len(k1)], shifted[len(k1) :])
    beyond = np.exp(-depth) / 2  # chance that the own noise is deeper; half of the time it lifts
    total = 0.5 * worst[0] + (beyond[:-1] - beyond[1:]) @ worst[1:] + beyond[-1]
    total += (size - 1) / 2 * math.exp((1 + 2 * p.score_error - p.others_tail) / p.laplace_scale)
    return float(total) * (1 + _ROUNDING)


def _least_noise(p: FilterParameters, epsilon: float, delta: float, delta_slack: float) -> FilterParameters:
    """Return the smallest noise multiplier that the theorem accepts, the other parameters as proposed."""
    certified = _certified(p, epsilon, delta)
    target = (delta - (1 + math.exp(epsilon)) * delta_slack) * (1 - 1e-7)  # by which two accounts may differ
    low, high = p.noise_multiplier / 2, p.noise_multiplier
    while certified(high) > target:
        low, high = high, 1.2 * high
        if high > 1e6 * p.noise_multiplier:
            raise Infeasible("outlier filter (outlier-filter#f1)", "decisions alone exceed delta", "a larger cohort")
    while high > low * (1 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if certified(middle) <= target else (middle, high)
    return replace(p, noise_multiplier=high)


def _search(epsilon: float, delta: float, wanted: _Wanted) -> FilterParameters | None:
    """Return the proposal with the smallest Ξ, or None."""
    frontier, (size, eta_beta, _, score_error) = _frontier(epsilon, delta), wanted
    found = _proposed(delta, wanted, frontier, np.arange(len(frontier.each)), _WIDE)
    if found[0] < 0:
        return None
    point, width = int(found[0]), 0.02
    for _ in range(2):
        around = found[1] / size + width * np.linspace(-1, 1, 9)
        found = _proposed(delta, wanted, frontier, np.array([point]), around)
        width /= 5
    _, threshold, scale, own, others, theta, multiplier, _ = found
    return FilterParameters(
        cohort_size=size,
        decision_epsilon=float(frontier.each[point]),
        laplace_scale=scale,
        threshold=threshold,
        cutoff_centre=int(frontier.centres[point]),
        cutoff_lattice=int(frontier.lattices[point]),
        own_tail=own,
        others_tail=others,
        eta_beta=eta_beta,
        theta=theta,
        noise_multiplier=multiplier,
        score_error=score_error,
    )


def _proposed(
    delta: float, wanted: _Wanted, frontier: _Frontier, points: Integers, fractions: Vector
) -> tuple[float, ...]:
    """`propose` for some points of the frontier and thresholds; the point is −1 if none is feasible."""
    tails = math.log(0.5 / (_TAIL_SHARE * delta)), math.log(0.5 * (wanted[0] - 1) / (_TAIL_SHARE * delta))
    tables = (
        frontier.each[points],
        frontier.centres[points],
        frontier.log_mus,
        frontier.log_same[points],
        frontier.log_shifted[points],
    )
    found: tuple[float, ...] = loops.propose(*wanted, *tails, (1 - 2 * _TAIL_SHARE) * delta, tables, fractions)
    return (int(points[int(found[0])]), *found[1:]) if found[0] >= 0 else found


@lru_cache(maxsize=32)
def _frontier(epsilon: float, delta: float, columns: int | None = None) -> _Frontier:
    """Pairs of (cutoff law, e0) worth trying, with their curves at the first `columns` of a coarse grid of μ."""
    main, full = (1 - 2 * _TAIL_SHARE) * delta, gdp.mu_for(epsilon, delta)
    grid = mu_grid(full, 4)[:columns]
    rows = []
    # A table costs time as ε^−2 and moves in coarser steps at large ε: spend about the same on every ε.
    fine = min(max(epsilon / 2, 1.0), 4.0)
    for decay in np.geomspace(0.27, 0.66, round(2 * fine) + 1):
        for share in np.geomspace(0.04, 0.7, round(8 * fine)):
            centre = _cutoff_centre(decay * epsilon, 0.2 * main)
            each = math.sqrt(share / (2 * centre)) * full
            lattice = max(1, round(decay * epsilon / each))
            centre = _cutoff_centre(lattice * each, 0.2 * main)
            same, shifted = cutoff_curves(epsilon, each, centre, lattice, grid)
            rows.append((each, centre, lattice, np.log(same), np.log(shifted)))
            if max(same[0], shifted[0]) > main:
                break
    each_, centres, lattices, log_same, log_shifted = (np.array(column) for column in zip(*rows, strict=True))
    return _Frontier(each_, centres, lattices, np.log(grid), log_same, log_shifted)


def _cutoff_centre(decay: float, mass: float) -> int:
    """Smallest centre with end mass at most `mass`."""
    centre = max(2, math.floor(math.log(1 / mass) / decay) - 8)
    while end_mass(centre, decay) > mass:
        centre += 1
    return centre


def score_sensitivity(cohort_size: int, log_distance: float) -> float:
    """Δ: how far one user moves another's score, in his own cohort (less than 1) or later, `log_distance` = τ·β·b."""
    return max(1.0, -(cohort_size - 1) * math.expm1(-log_distance) * (1 + 1e-12))


def _check_hypotheses(p: FilterParameters) -> None:
    numbers = [getattr(p, name) for name in FilterParameters.__slots__]
    require(all(math.isfinite(number) for number in numbers), "finite parameters", p)
    whole = (p.cohort_size, p.cutoff_centre, p.cutoff_lattice)
    require(all(type(number) is int for number in whole), "integer B, c_mid, j_c", p)
    require(p.cutoff_centre >= 2 and p.cutoff_lattice >= 1, "c_mid >= 2 and j_c >= 1", p)
    require(p.decision_epsilon > 0 and p.laplace_scale > 0, "e0 > 0 and λ > 0", p)
    require(p.cutoff_decay == p.cutoff_lattice * p.decision_epsilon, "a cutoff that is drawn with ε_c = j_c·e0", p)
    require(p.noise_multiplier > 0 and p.theta > 0, "s > 0 and θ > 0", p)
    require(0 < p.threshold < p.cohort_size, "0 < F < B", p)
    require(p.own_tail >= 0 and p.score_error >= 0, "w1 >= 0 and kerr >= 0", p)
    require(p.others_tail >= 1 + 2 * p.score_error, "w2 >= 1 + 2·kerr", p)
    require(0 <= p.eta_beta <= 2, "0 <= step·smoothness <= 2", p)
    largest = 2 * p.cutoff_centre - 1
    require(2 * largest < p.cohort_size, "c_max < B/2", p)
    k1, k2 = (p.threshold - tail - p.score_error for tail in (p.own_tail, p.others_tail))
    require(2 * (k1 - 1) > p.cohort_size - 1, "2·(F − w1 − kerr − 1) > B − 1", p)
    require(k1 + k2 > p.cohort_size, "2·F − w1 − w2 − 2·kerr > B", p)


def _shifts(p: FilterParameters, own_noise: Vector) -> tuple[Vector, Vector]:
    """ρ_A, ρ_B for own noise values in [0, w1]: one step's shift in units of η/(τ(N + 1)); same shape."""
    size = p.cohort_size
    k1, k2 = p.threshold - own_noise - p.score_error, p.threshold - p.others_tail - p.score_error
    both_kept = -np.log(2 * (k1 - 1) / (size - 1) - 1)
    return both_kept * (1 + 1e-12), _one_kept(k1, k2, size, p.survivors)


def _one_kept(k1: Vector, k2: float, size: int, others: int) -> Vector:
    """ρ_B: distance, times τ, of the own user from the mean of at least `others` kept users among `size`."""
    reach = -np.log(np.minimum((k1 + k2) / size - 1, 1.0)) + 1e-300
    chord = reach / -np.expm1(-reach) * (size - k1) / others
    bound: Vector = np.minimum(reach, chord) * (1 + 1e-12)
    return bound


def mu_grid(full: float, per_fold: int) -> Vector:
    """From far below to far above what (ε, δ) allows of a plain release, `full`."""
    grid: Vector = full * np.exp(np.linspace(-_BELOW, _ABOVE, round((_BELOW + _ABOVE) * per_fold) + 1))
    return grid


def cutoff_curves(epsilon: float, each: float, centre: int, lattice: int, mus: Vector) -> tuple[Vector, Vector]:
    """δ_A(μ), δ_B(μ) of outlier-filter#f1: the cutoff's law the same in both worlds, or shifted by one between them."""
    law = cutoff_law(centre, each * lattice)
    hits, offsets = 2 * centre - 1, (-lattice, 0, lattice)
    values = game_values(epsilon=epsilon, each=each, hits=hits, offsets=offsets, mus=mus)
    same = law @ values[:, 1]
    # Between e and e + 1 the law falls or rises by e^{ε_c}; the end that the shift uncovers is charged in full.
    rising = np.arange(1, 2 * centre - 1) < centre
    upward = np.where(rising[:, None], values[:-1, 0], values[:-1, 2])
    downward = np.where(rising[:, None], values[:-1, 2], values[:-1, 0])
    shifted = np.maximum(law[-1] + law[:-1] @ upward, law[0] + law[1:] @ downward)
    return same, shifted


def looked_up(
    epsilon: float, delta: float, each: float, centre: int, lattice: int, mus: Vector
) -> tuple[Vector, Vector]:
    """δ_A, δ_B at each μ rounded up to a grid, and 1 beyond it."""
    grid, *tables = _tables(epsilon, gdp.mu_for(epsilon, delta), each, centre, lattice)
    place = np.searchsorted(grid, mus, side="left")
    same, shifted = (np.append(table, 1.0)[place] for table in tables)
    return same, shifted


@lru_cache(maxsize=64)
def _tables(epsilon: float, full: float, each: float, centre: int, lattice: int) -> tuple[Vector, Vector, Vector]:
    return (grid := mu_grid(full, _MUS_PER_FOLD)), *cutoff_curves(epsilon, each, centre, lattice, grid)


def recounted(
    epsilon: float, delta: float, each: float, centre: int, lattice: int, mus: Vector
) -> tuple[Vector, Vector]:
    """Return the same on a grid that is larger by 1e-10, computed independently."""
    full, last = _full(epsilon, delta) * (1 + 1e-10), round(_ABOVE * _MUS_PER_FOLD)
    place = np.ceil(_MUS_PER_FOLD * np.log(np.maximum(mus / full, math.exp(-_BELOW))))
    needed, where = np.unique(np.minimum(place, last + 1), return_inverse=True)
    tables = _recounted_tables(epsilon, each, centre, lattice, full, tuple(needed.tolist()))
    same, shifted = (np.where(needed > last, 1.0, table)[where] for table in tables)
    return same, shifted


@lru_cache(maxsize=64)
def _recounted_tables(
    epsilon: float, each: float, centre: int, lattice: int, full: float, places: tuple[float, ...]
) -> tuple[Vector, Vector]:
    mus = full * np.exp(np.array(places) / _MUS_PER_FOLD) * (1 + 1e-12)
    drawn = HiddenCutoff(centre, each * lattice).weights  # whole numbers, as the draw has them
    largest, whole = len(drawn), sum(drawn)
    law = [weight / whole for weight in drawn]
    values = recounted_values(epsilon=epsilon, each=each, hits=largest, offsets=(-lattice, 0, lattice), mus=mus)
    same = sum(chance * values[hits, 1] for hits, chance in enumerate(law))
    worlds = []
    for one, other in ((0, 1), (1, 0)):  # the cutoff is larger by one in the second world, or in the first
        known = np.full(len(mus), law[-1] if one == 0 else law[0])  # by a cutoff that the other world has not
        for hits in range(largest - 1):
            here, there = drawn[hits + one], drawn[hits + other]
            known = known + law[hits + one] * values[hits, 2 if here > there else 0]  # the prior ratio is e^±ε_c
        worlds.append(known)
    return same, np.maximum(*worlds)


@lru_cache(maxsize=256)
def _full(epsilon: float, delta: float) -> float:
    """Return μ for which the second account has δ at ε, nearly: where the grid lies, and no bound."""
    low, high = 0.0, pld_lattice.FARTHEST
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        private = pld_lattice.gaussian(middle, np.array([epsilon]))[0] <= delta
        low, high = (middle, high) if private else (low, middle)
    return low


def game_values(
    *, epsilon: float, each: float, hits: int, offsets: tuple[int, ...], mus: NDArray[np.float64]
) -> NDArray[np.float64]:
    """V_r(l; μ) for r = 1, …, hits, at prior log-likelihood ratios l = offset·each; shape (hits, offsets, mus).

    V_r(l) bounds the hockey-stick divergence at ε of everything released, for every adaptive adversary with at most r
    hits, when the likelihood ratio before the first test is e^l. `each` is e0.

    Raises VerificationError when the fixed point is not reached to 1e-15. What remains of the residual is added, so the
    values returned are a supersolution of the recursion and hence an upper bound whatever the iteration did.
    """
    positive(epsilon=epsilon, each=each)
    count(hits=hits)
    # Above the lattice the value is replaced by 1 and below it by its value at the bottom, both upper bounds.
    low = -max(math.ceil(0.2 * epsilon / each), 16) + min(*offsets, 0)
    high = math.ceil(1.4 * epsilon / each) + 16
    lattice = np.arange(low, max(high, *offsets) + 1, dtype=np.float64)
    after = delta_for(mus[None, :], epsilon - lattice[:, None] * each)
    picks = np.array([offset - low for offset in offsets])
    rare, likely = 1 / (1 + math.exp(each)), 1 / (1 + math.exp(-each))
    current = np.concatenate([after[:1], after, np.ones_like(after[:1])])
    values = np.empty((hits, len(offsets), len(mus)))
    residual = loops.solve(
        current, np.empty_like(current), np.empty_like(current), values, rare, likely, picks, _SWEEPS
    )
    if not residual < LARGEST_RESIDUAL:
        raise VerificationError(f"Expected the charging game to converge below 1e-15, got residual={residual}.")
    lift = np.arange(1, hits + 1) * residual * (1 + math.exp(each))
    bounded: NDArray[np.float64] = np.minimum(values + lift[:, None, None], 1.0)
    return bounded


def recounted_values(
    *, epsilon: float, each: float, hits: int, offsets: tuple[int, ...], mus: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the same, shape (hits, offsets, mus), by another method.

    Each level is guessed and raised a little. What the recursion makes of it has to be smaller everywhere: then it is a
    supersolution, whatever was guessed. Raises VerificationError where it is none.
    """
    positive(epsilon=epsilon, each=each)
    count(hits=hits)
    if each > 5:
        raise VerificationError(f"Expected decisions of at most e0 = 5, got {each:g}.")
    lowest = min(*offsets, 0) - max(math.ceil(0.2 * epsilon / each), 16)
    points = np.arange(lowest, max(math.ceil(1.4 * epsilon / each) + 16, *offsets) + 1, dtype=np.float64)
    stop = np.stack([pld_lattice.gaussian(float(mu), epsilon - points * each) for mu in mus], axis=1)
    rare, likely, one = 1 / (1 + math.exp(each)), 1 / (1 + math.exp(-each)), np.ones((1, len(mus)))
    values = np.empty((hits, len(offsets), len(mus)))
    before = np.concatenate([stop[:1], stop, one])  # below the lattice, on it, above it
    slack = 1 + 1e-12 + 4e-15 * np.arange(len(points), 0, -1)[:, None]  # a value may be a share of the one above it
    for level in range(hits):
        hit_up, hit_down = likely * before[2:], rare * before[:-2]
        guess = np.maximum(stop, before[1:-1])
        guess[0] = np.maximum(guess[0], hit_up[0] / likely)
        guess[1:] = np.maximum(guess[1:], (hit_up[1:] + rare * hit_down[:-1]) / (1 - rare * likely))  # to and fro
        upwards = _one_way(guess, hit_up, rare)
        downwards = _one_way(np.concatenate([one, guess[::-1]]), np.concatenate([one, hit_down[::-1]]), likely)
        now = np.maximum(upwards, downwards[:0:-1]) * slack + _UNRESOLVED
        now = np.concatenate([now[:1], now, one])
        after = np.maximum(stop, np.maximum(hit_up + rare * now[:-2], hit_down + likely * now[2:]))
        if not np.all(after * (1 + 1e-15) <= now[1:-1]):  # for rounding: 6 units in the last place, at most
            raise VerificationError(f"Expected a supersolution of the charging game, got none at level {level + 1}.")
        before = np.minimum(now, 1.0)
        values[level] = before[np.array(offsets) - lowest + 1]
    return values


def _one_way(start: Matrix, gains: Matrix, share: float) -> Matrix:
    """Return x_i = max(start_i, gains_i + share · x_{i-1}), row by row from x_0 = start_0, by doubling."""
    best, gained, steps = start.copy(), gains.copy(), 1  # by fewer than `steps` steps, and by as many
    while steps < len(start) and share > _UNRESOLVED * 1e-10:
        best[steps:] = np.maximum(best[steps:], gained[steps:] + share * best[:-steps])
        gained[steps:] = gained[steps:] + share * gained[:-steps]
        share, steps = share * share, 2 * steps
    return best

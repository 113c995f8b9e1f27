"""Many runs of `tracking-srgd` at once, one dimension, one run a column; and what an observer makes of them.

`test_audit_tracking_srgd` shows that each column is the algorithm object's run, for the sound object and for every
broken twin of it. The mechanisms are the project's own; only the schedule is written again, for columns.
"""

from dataclasses import dataclass

import numpy as np

from one_epoch_reference import strategy
from quoron_privacy.gaussian import GaussianNoise
from quoron_server.algorithms.tracking import plan as planning
from quoron_server.plan import Plan

HUGE = 1e6
OUTER, INNER = 3, 2  # cells of the own user: beyond q, and at q exactly


@dataclass(frozen=True)
class Scene:
    """A plan in one dimension, what everybody else answers, and where the own user has its slot."""

    plan: Plan
    others: str  # far | centre | wild
    own: tuple[int, ...]  # rounds; more than one only in a broken run
    curvature: float = 1.0  # H


def residual(others, x, centre):
    """What each of the others sends: the gradient at x less the centre."""
    if others == "far":
        return np.full_like(x, HUGE)
    if others == "centre":
        return np.zeros_like(x)
    return 1.5 * np.sin(50.0 * x + 3.0 * centre)  # any function of what was broadcast


@dataclass(frozen=True)
class Shown:
    """What an observer has of each round after the pilot: arrays of shape (rounds, runs), cells (rounds, runs, 4)."""

    scene: Scene
    centre: np.ndarray
    radius: np.ndarray
    inner: np.ndarray
    rows: np.ndarray  # the released row: mean of normalised rows and noise
    known: np.ndarray  # what the others contribute to it
    cells: np.ndarray  # released, less what the others contribute
    spread: np.ndarray  # after the round
    x: np.ndarray


def run(scene, outlier, noise, runs, twin="sound"):
    """`runs` runs; the own user sends HUGE, or with `outlier` False as far to the other side as its cell allows."""
    plan, p = scene.plan, scene.plan.parameters
    made, h, bound = planning.mechanisms(p, 1), scene.curvature, plan.problem.domain.radius
    recursive, zero = p.variant == "recursive", np.zeros(runs)
    inverse = np.linalg.inv(strategy(p.factorisation, p.main_rounds)) if recursive else None
    root = np.linalg.inv(strategy("sqrt-toeplitz", p.main_rounds))
    x, before, gradient, variance, summed, sampled = zero, zero, zero, zero, zero, zero
    spread, radii, told = np.full(runs, p.spread), [], {name: [] for name in Shown.__dataclass_fields__}
    state = made.prefix.start(runs) if made.prefix else None
    left = np.zeros((p.main_rounds, runs))  # of each seed draw, in the sum

    def aim(t, x, before, gradient, variance, spread):
        main = t > p.warmup_rounds
        j = t - p.warmup_rounds if main and recursive else 1
        divisor = p.main_divisor if main else p.warmup_divisor
        cap = 3 * p.first_radius if main and recursive else p.first_radius
        ahead = h * (x - before)
        change = j**2 * p.feature_norm**2 * p.link_curvature * (x - before) * ahead / (4 * plan.problem.items_per_user)
        inner = p.margin * np.sqrt((spread**2 + change * (j > 1)) * (1 + 1 / divisor) + variance)
        lag = j * 0.5 * np.abs(ahead)
        return gradient + j * 0.7 * ahead, np.clip(inner + lag, 1e-6 * p.first_radius, cap), inner, lag

    for t in range(1, p.rounds):
        main = t > p.warmup_rounds
        j = t - p.warmup_rounds if main and recursive else 1
        phase, asked = (made.main, p.main_cohort) if main else (made.warmup, p.warmup_cohort)
        centre, radius, inner, lag = (zero, zero + p.first_radius, zero + p.first_radius, zero)
        if t > 1:
            centre, radius, inner, lag = aim(t, x, before, gradient, variance, spread)
        sent, mine = residual(scene.others, x, centre), HUGE if outlier else -inner
        crowd = asked - (t in scene.own)
        known = crowd * np.clip(sent / radius, -1, 1) / phase.divisor
        unit = known + (t in scene.own) * np.clip(mine / radius, -1, 1) / phase.divisor
        cell = (np.abs(sent)[:, None] > inner[:, None] * [0.25, 0.5, 1.0]).sum(axis=1)
        public = crowd * np.eye(4)[cell] / phase.divisor
        counts = public + (t in scene.own) * np.eye(4)[OUTER if outlier else INNER] / phase.divisor
        cells = GaussianNoise(phase.cells.sensitivity, phase.cells.scale).release(counts, noise.stream("cells", t))
        chance = spread**2 / phase.divisor
        if main and recursive:
            old = state.total
            _, state = made.prefix.release(state, unit, noise)
            row = (state.total - old) * made.prefix.step
            radii.append(radius)
            if twin == "constant-noise":
                row = unit + (row - unit) * radii[0] / radius
            if twin == "seed-scaled":
                seeds = [noise.stream("prefix", k).gaussian_steps(runs) * made.prefix.step for k in range(j)]
                row = unit + inverse[j - 1, :j] @ (np.array(radii) * seeds) / radius
            sampled = sampled + chance
            left += root[j - 1][:, None] * radius * p.main_scale
            after = (np.sum(left**2, axis=0) + sampled) / j**2
        else:
            row = phase.gaussian.release(unit, noise.stream("release", t))
            after = (radius * phase.gaussian.scale) ** 2 + chance
        fractions = np.cumsum(counts if twin == "radius-raw" else cells, axis=1)[:, :3]
        wider = spread if t == 1 else _moved(spread, fractions, p, phase.cells.scale, lag > 0.5 * p.margin * spread)

        def step(row, t=t, centre=centre, radius=radius, summed=summed, x=x, j=j, recursive=main and recursive):
            moved = centre + radius * row
            total = summed + moved if recursive else summed
            estimate = total / j if recursive else moved
            return total, estimate, np.clip(x - estimate / h, -bound, bound)

        total, estimate, following = step(row)
        if twin == "wrong-round":
            row = unit + (row - unit) * aim(t + 1, following, x, estimate, after, wider)[1] / radius
            total, estimate, following = step(row)
        summed, x, before, variance = total, following, x, after
        gradient = centre + radius * unit if twin == "centre-raw" else estimate
        seen = (centre, radius, inner, row, known, cells - public, wider, x)
        for name, value in zip(list(told)[1:], seen, strict=True):
            told[name].append(value)
        spread = wider
    return Shown(scene, *(np.array(told[name]) for name in list(told)[1:]))


def _moved(spread, fractions, p, deviation, drifting):
    quarter, half, whole = fractions.T
    over = np.clip(whole, 0.0, 1.0) - p.quantile
    rules = [quarter > p.quantile + deviation, half > p.quantile + 1.4 * deviation, whole < 0.35 - deviation, over > 0]
    factors = [0.35, 0.6, 2.0, np.exp(-0.6 * over)]
    factor = np.select(rules, factors, np.exp(-0.06 * over / (1 - p.quantile)))
    factor = np.where(drifting, np.maximum(factor, 1.0), factor)
    return np.clip(spread * factor, 1e-6 * p.first_radius, p.first_radius)


def evidence(shown, noise="by radius"):
    """Log-likelihood ratio of the own user's two answers, for an observer who thinks he knows how noise is scaled.

    `noise`: by radius (the truth), `constant-noise`, `seed-scaled` or `wrong-round`: what the twins do.
    """
    p, own = shown.scene.plan.parameters, shown.scene.own
    made = planning.mechanisms(p, 1)
    main = own[0] > p.warmup_rounds
    phase = made.main if main else made.warmup
    ends = np.stack([np.ones_like(shown.radius), -np.minimum(1.0, shown.inner / shown.radius)]) / phase.divisor
    present = np.isin(np.arange(1, p.rounds), own)[:, None]
    apart, middle = (ends[0] - ends[1]) * present, ends.mean(axis=0) * present
    left, right, radius, matrix = 1.0, 1.0, shown.radius, np.eye(p.rounds - 1)
    if main and p.variant == "recursive":
        apart, middle, radius = (part[p.warmup_rounds :] for part in (apart, middle, radius))
        matrix = strategy(p.factorisation, p.main_rounds)
    if noise == "constant-noise":
        right = radius / radius[0]
    elif noise == "seed-scaled":
        left, right = radius, radius
    elif noise == "wrong-round":
        right = radius / np.concatenate([radius[1:], radius[-1:]])
    rest = (shown.rows - shown.known)[-len(radius) :] - middle
    gradient = np.sum((matrix @ (apart * right)) / left * ((matrix @ (rest * right)) / left), axis=0)
    difference = (shown.cells[..., OUTER] - shown.cells[..., INNER]) * present
    cells = np.sum(difference, axis=0) / phase.divisor
    return gradient / phase.gaussian.scale**2 + cells / phase.cells.scale**2


def next_centre(shown):
    """What the centre after the own user's round says beyond the points: its normalised row, noised or not."""
    t = shown.scene.own[0]  # row t of the arrays is the round after it
    before = shown.x[t - 2] if t > 1 else 0.0
    ahead = shown.scene.curvature * (shown.x[t - 1] - before)
    return (shown.centre[t] - 0.7 * ahead - shown.centre[t - 1]) / shown.radius[t - 1] - shown.known[t - 1]


def next_spread(shown):
    """The spread after the own user's round over the one before."""
    t = shown.scene.own[0]
    return shown.spread[t - 1] / (shown.spread[t - 2] if t > 1 else 1.0)

"""Many runs of `tracking-srgd` at once, one dimension, one run a column; and what an observer makes of them.

`test_tracking_lab` shows that each column is the algorithm object's run, for the sound object and for every
broken twin of it. The mechanisms are the project's own; only the schedule is written again, for columns.
"""

from dataclasses import dataclass

import numpy as np

from one_epoch_reference import strategy
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means.free_counts import PrefixNormCounts
from quoron_server.algorithms import tracking as planning
from quoron_server.algorithms.tracking import PILOT
from quoron_server.plan import RunPlan

HUGE = 1e6
INNER = 2 / 3 * (1 - 1e-9)  # of the radius: how far to the other side the own user counts as within
WEIGHTS = np.array([1.4142135, 1.0, 1.0])  # of the shares


@dataclass(frozen=True)
class Scene:
    """A plan in one dimension, what everybody else answers, and where the own user has its slot."""

    plan: RunPlan
    others: str  # far | centre | leaving | wild
    own: tuple[int, ...]  # rounds after the pilot, from 1; more than one only in a broken run
    curvature: float = 1.0  # H


def residual(others, x, centre, late):
    """What each of the others sends: the gradient at x less the centre; `late` from the second main round on."""
    if others == "far" or (others == "leaving" and late):
        return np.full_like(x, HUGE)
    if others in ("centre", "leaving"):
        return np.zeros_like(x)
    return 1.5 * np.sin(50.0 * x + 3.0 * centre)  # any function of what was broadcast


@dataclass(frozen=True)
class Shown:
    """What an observer has of each round after the pilot: arrays of shape (rounds, runs), shares (rounds, runs, 3)."""

    scene: Scene
    centre: np.ndarray
    radius: np.ndarray
    rows: np.ndarray  # the released row: mean of normalised rows and noise
    known: np.ndarray  # what the others contribute to it
    shares: np.ndarray  # released, weighted, less what the others contribute
    spread: np.ndarray  # after the round
    x: np.ndarray


def run(scene, outlier, noise, runs, twin="sound"):
    """`runs` runs; the own user sends HUGE, or with `outlier` False as far to the other side as counts as within."""
    plan, p = scene.plan, scene.plan.parameters
    made, h, bound = planning.mechanisms(p, 1, 1), scene.curvature, plan.problem.domain.radius
    zero, inverse = np.zeros(runs), np.linalg.inv(strategy(p.factorisation, p.main_rounds))
    root = np.linalg.inv(strategy("sqrt-toeplitz", p.main_rounds))
    x, before, gradient, variance, summed, sampled = zero, zero, zero, zero, zero, zero
    spread, margin, radii = np.full(runs, p.spread), np.full(runs, p.margin), []
    values = {name: [] for name in Shown.__dataclass_fields__}
    seen, precision = zero, 0.0  # of presence
    state = made.main.prefix.start(runs)
    left = np.zeros((p.main_rounds, runs))  # of each seed draw, in the sum

    def aim(t, x, before, gradient, variance, spread, margin):
        main = t > p.warmup_rounds
        j = t - p.warmup_rounds if main else 1
        divisor = p.main_divisor if main else p.warmup_divisor
        cap = 3 * p.first_radius if main else p.first_radius
        ahead = h * (x - before)
        change = j**2 * (x - before) * ahead / (4 * plan.problem.items_per_user)
        change = change * (j > 1)
        reach = margin * np.sqrt((spread**2 + change) * (1 + 1 / divisor) + variance) + j * 0.5 * np.abs(ahead)
        return gradient + j * 0.7 * ahead, np.clip(reach, 1e-6 * p.first_radius, cap), change + variance

    for t in range(1, p.rounds + 1 - PILOT):
        main = t > p.warmup_rounds
        j = t - p.warmup_rounds if main else 1
        phase, asked = (made.main, p.main_cohort) if main else (made.warmup, p.warmup_cohort)
        centre, radius, expected = zero, zero + p.first_radius, zero
        if t > 1:
            centre, radius, expected = aim(t, x, before, gradient, variance, spread, margin)
        own, crowd = t in scene.own, asked - (t in scene.own)
        sent = np.clip(residual(scene.others, x, centre, t > p.warmup_rounds + 1) / radius, -1, 1)
        known = crowd * sent / phase.users
        unit = known + own * (1.0 if outlier else -INNER) / phase.users
        length = np.abs(sent)
        public = crowd * WEIGHTS * np.stack([1 - length, length <= 2 / 3, np.ones(runs)], axis=1) / phase.users
        counts = public + own * WEIGHTS * ([0.0, 0.0, 1.0] if outlier else [1 - INNER, 1.0, 1.0]) / phase.users
        chance = spread**2 / phase.users
        if main:
            old = state.total
            _, state = phase.prefix.release(state, unit, noise)
            row = (state.total - old) * phase.prefix.step
            gaussian = GaussianNoise(phase.prefix.sensitivity, phase.scale / phase.prefix.column_norm)
            shares = gaussian.release(counts, noise.stream("shares", j - 1))
            radii.append(radius)
            if twin == "constant-noise":
                row = unit + (row - unit) * radii[0] / radius
            if twin == "seed-scaled":
                seeds = [noise.stream("prefix", k).gaussian_steps(runs) * phase.prefix.step for k in range(j)]
                row = unit + inverse[j - 1, :j] @ (np.array(radii) * seeds) / radius
            sampled = sampled + chance
            left += root[j - 1][:, None] * radius * p.main_scale
            after = (np.sum(left**2, axis=0) + sampled) / j**2
        else:
            gaussian = GaussianNoise(2 / phase.users, phase.scale)
            released = gaussian.release(np.column_stack([unit, counts]), noise.stream("release", t + PILOT - 1))
            row, shares = released[:, 0], released[:, 1:]
            after = (radius * phase.scale) ** 2 + chance

        def step(row, t=t, centre=centre, radius=radius, summed=summed, x=x, j=j, recursive=main):
            moved = centre + radius * row
            total = summed + moved if recursive else summed
            estimate = total / j if recursive else moved
            return total, estimate, np.clip(x - estimate / h, -bound, bound)

        total, estimate, following = step(row)
        heard = (counts if twin == "radius-raw" else shares) / WEIGHTS
        seen, precision = seen + heard[:, 2] / gaussian.scale**2, precision + 1 / gaussian.scale**2

        expected = np.maximum(estimate**2 - after, 0.0) if t == 1 else expected
        present = np.maximum(seen / precision, 0.2)[:, None]
        wider, reach = _moved(spread, margin, radius, 1 - heard[:, :2] / present, expected, gaussian.scale, p)

        def next_radius(estimate, error, t=t, following=following, x=x, wider=wider, reach=reach):
            return aim(t + 1, following, x, estimate, error, wider, reach)[1]

        if twin == "wrong-round":
            row = unit + (row - unit) * next_radius(estimate, after) / radius
            total, estimate, following = step(row)
        summed, x, before, variance = total, following, x, after
        gradient = centre + radius * unit if twin == "centre-raw" else estimate
        shown = (centre, radius, row, known, shares - public, wider, x)
        for name, value in zip(list(values)[1:], shown, strict=True):
            values[name].append(value)
        spread, margin = wider, reach
    return Shown(scene, *(np.array(values[name]) for name in list(values)[1:]))


def _moved(spread, margin, radius, far, known, deviation, p):
    reached, beyond = far.T
    distance = np.where(reached < 0.93, radius * np.maximum(reached, 0.1), 1.5 * radius)
    own = np.maximum(distance**2 - known, 0.2 * distance**2)
    spread = np.clip(spread**0.3 * np.sqrt(own) ** 0.7, 1e-6 * p.first_radius, p.first_radius)
    surprise = np.clip((beyond - p.beyond) / max(p.beyond, deviation), -1.0, 1.0)
    return spread, np.clip(margin * np.exp(0.5 * surprise), 1.0, 6.0)


def evidence(shown, noise="by radius"):
    """Log-likelihood ratio of the own user's two answers, for an observer who thinks he knows how noise is scaled.

    `noise`: by radius (the truth), `constant-noise`, `seed-scaled` or `wrong-round`: what the twins do.
    """
    p, own = shown.scene.plan.parameters, shown.scene.own
    made = planning.mechanisms(p, 1, 1)
    main = own[0] > p.warmup_rounds
    phase = made.main if main else made.warmup
    present = np.isin(np.arange(1, p.rounds + 1 - PILOT), own)[:, None]
    apart, middle = (1 + INNER) / phase.users * present, (1 - INNER) / 2 / phase.users * present
    apart, middle = (part * np.ones_like(shown.radius) for part in (apart, middle))
    left, right, radius, matrix = 1.0, 1.0, shown.radius, np.eye(p.rounds - PILOT)
    if main:
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
    quiet = phase.scale / phase.prefix.column_norm if isinstance(phase, PrefixNormCounts) else phase.scale
    shares = np.sum(-(shown.shares @ (WEIGHTS * [1 - INNER, 1.0, 0.0])) * present, axis=0) / phase.users
    return gradient / phase.scale**2 + shares / quiet**2


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

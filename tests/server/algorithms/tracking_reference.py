"""`tracking-srgd` by definition: a whole run with full matrices, one user at a time; and the users it asks.

Follows docs/privacy/tracking-srgd.md and free-presence.md, not the code. Constants stand here as numbers.
"""

from dataclasses import dataclass
from math import erf, exp, log, sqrt

import numpy as np
from scipy.optimize import brentq, lsq_linear

from one_epoch_reference import strategy
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import Answers, SecondMoment, Status
from quoron_privacy.means.free_counts import Length, LogLength, Moment, MomentMean, NormCountMean, PrefixNormCounts
from quoron_server.algorithms.centring import margin
from quoron_server.algorithms.tracking import THEOREM, TrackingParameters
from quoron_server.algorithms.whitening import eigen, typical_length, whitening
from quoron_server.plan import Cost, Guarantee, RunPlan
from quoron_server.problem import Problem


def small_plan(
    *,
    dimension=3,
    pilot=20,
    warmup=(2, 12),
    main=(5, 16),
    factorisation="banded",
    participation=1.0,
    mu=2.0,
    adjacency="replace-one",
    domain=None,
    ridge=0.0,
    first_radius=1.0,
    spread=0.5,
    beyond=0.4,
    reference_items=6,
    left_over=5,
    sigmoid=False,
    intercept=False,
    epsilon=15.0,
    delta=0.1,
):
    """A plan of chosen sizes: a μ-GDP transcript. No planner is involved."""
    divisors = [int(participation * size) for size in (pilot, warmup[1], main[1])]
    moments = {"dimension": dimension, "users": divisors[0], "mu": mu * (1 - 1e-6), "adjacency": adjacency}
    own = {"dimension": dimension, "mu": mu * (1 - 1e-6), "adjacency": adjacency}
    made = PrefixNormCounts.for_mu(users=divisors[2], rounds=main[0], factorisation=factorisation, **own)
    p = TrackingParameters(
        adjacency=adjacency,
        length_cohort=pilot,
        length_divisor=divisors[0],
        length_scale=LogLength.for_mu(users=divisors[0], mu=mu * (1 - 1e-6)).scale,
        moment_cohort=pilot,
        moment_divisor=divisors[0],
        moment_scale=MomentMean.for_mu(**moments).scale,
        warmup_rounds=warmup[0],
        warmup_cohort=warmup[1],
        warmup_divisor=divisors[1],
        warmup_scale=NormCountMean.for_mu(users=divisors[1], **own).scale,
        main_rounds=main[0],
        main_cohort=main[1],
        main_divisor=divisors[2],
        main_scale=made.scale,
        factorisation=factorisation,
        feature_norm=1.0,
        link_curvature=1.0,
        ridge=ridge,
        sigmoid=sigmoid,
        intercept=intercept,
        spread=spread,
        first_radius=first_radius,
        beyond=beyond,
        margin=margin(dimension),
        reference_items=reference_items,
        mu=mu,
    )
    problem = Problem(
        users=p.asked + left_over,
        items_per_user=6,
        dimension=dimension,
        domain=domain or L2Ball(1e6),
        lipschitz=1.0,
        smoothness=1.0,
        feature_norm=1.0,
        link_curvature=1.0,
        ridge=ridge,
    )
    promise = Guarantee(epsilon, delta, adjacency, "central-broadcast", (), THEOREM)
    return RunPlan("tracking-srgd", problem, promise, Cost.of(problem, p), p, None, 3)


class Users:
    """Ragged users of least squares (`logistic` False) or logistic losses with a ridge; some never answer."""

    def __init__(self, users, dimension, *, ridge=0.0, reference_items=6, logistic=False, absent=(), seed=5):
        rng = np.random.default_rng(seed)
        truth = rng.standard_normal(dimension)
        self.ridge, self.reference_items, self.logistic, self.absent = ridge, reference_items, logistic, set(absent)
        self.features, self.labels = [], []
        for _ in range(users):
            items = int(rng.integers(1, 10))
            features = rng.standard_normal((items, dimension)) / np.linspace(1.0, 3.0, dimension)
            features /= np.maximum(1.0, np.linalg.norm(features, axis=1))[:, None]
            labels = features @ truth + 0.3 * rng.standard_normal(items) + 0.2 * rng.standard_normal()
            self.features.append(features)
            self.labels.append(np.where(labels > 0, 1.0, -1.0) if logistic else labels)

    def data_gradient(self, user, x):
        """Of the user's average loss, without the ridge."""
        features, labels = self.features[user], self.labels[user]
        scores = features @ x
        slopes = -labels / (1 + np.exp(labels * scores)) if self.logistic else scores - labels
        return features.T @ slopes / len(labels)

    def moment(self, user):
        return self.features[user].T @ self.features[user] / len(self.labels[user])

    def weight(self, user):
        return min(1.0, sqrt(len(self.labels[user]) / self.reference_items))

    def ask(self, question):
        task, rows = question.task, []
        for user in question.cohort:
            if isinstance(task, SecondMoment):
                d = task.dimension
                factor = np.zeros((d, d))
                upper = np.linalg.qr(self.features[user] / sqrt(len(self.labels[user])), mode="r")
                factor[: len(upper)] = upper
                rows.append(factor[np.triu_indices(d)])
            else:
                gradients = [self.data_gradient(user, x) + self.ridge * x for x in task.points]
                summed = sum(w * gradient for w, gradient in zip(task.weights, gradients, strict=True))
                rows.append(self.weight(user) * (summed - task.centre))
        status = [Status.MISSING if user in self.absent else Status.ANSWERED for user in question.cohort]
        return Answers.checked(np.array(rows), np.array(status, np.uint8), largest=1e9)


@dataclass
class Round:
    """What was used and released in a round after the pilot."""

    centre: np.ndarray
    radius: float
    gradient: np.ndarray
    spread: float  # after the round
    margin: float  # after the round
    x: np.ndarray  # after the round


def project(domain, matrix, point):
    """argmin over the domain of (x - point)ᵀ matrix (x - point), by library solvers."""
    if isinstance(domain, Box):
        root = np.linalg.cholesky(matrix).T
        bounds = (-domain.half_width, domain.half_width)
        return lsq_linear(root, root @ point, bounds, method="bvls", tol=1e-14).x
    if np.linalg.norm(point) <= domain.radius:
        return point

    def at(level):
        return np.linalg.solve(matrix + level * np.eye(len(point)), matrix @ point)

    top = 1.0
    while np.linalg.norm(at(top)) > domain.radius:
        top *= 2
    return at(brentq(lambda level: np.linalg.norm(at(level)) - domain.radius, 0.0, top, xtol=1e-15, rtol=1e-14))


def run(plan, users, noise):
    """(H, rounds after the pilot, model): the algorithm box, line by line."""
    p, d, domain = plan.parameters, plan.problem.dimension, plan.problem.domain
    order = np.random.Generator(np.random.Philox(key=plan.seed)).permutation(plan.problem.users)
    sizes = [p.length_cohort, p.moment_cohort] * 4 + [p.warmup_cohort] * p.warmup_rounds
    sizes += [p.main_cohort] * p.main_rounds
    cohorts = [[u for u in part if u not in users.absent] for part in np.split(order, np.cumsum(sizes))[:-1]]
    w, rounds = p.warmup_rounds, p.main_rounds
    weights = WEIGHTS[p.adjacency]

    def drawn(shape, *labels):
        return noise.stream(*labels).gaussian_steps(shape) * 2.0**-30

    # pilot
    transform, seen, precision = np.eye(d) * sqrt(d) / p.feature_norm, 0.0, 0.0

    def heard(value, deviation, seen, precision):
        seen, precision = seen + value / deviation**2, precision + 1 / deviation**2
        return seen, precision, max(seen / precision, 0.2)

    for t in range(0, 8, 2):
        shapes = [transform.T @ users.moment(u) @ transform for u in cohorts[t]]
        falls = [min(max(log(d / np.linalg.norm(shape)), 0.0), 4.0) / 4 - 0.5 for shape in shapes]
        row = np.array([sum(falls), 0.8660254 * len(falls)]) / p.length_divisor
        value, here = row + drawn((2,), "release", t) * p.length_scale
        made = LogLength(p.length_divisor, p.length_scale)
        top = min(d, typical_length(Length(value, here / 0.8660254), made, float(d)))
        shapes = [transform.T @ users.moment(u) @ transform for u in cohorts[t + 1]]
        mean = sum(shape * min(1.0, top / np.linalg.norm(shape)) for shape in shapes) / p.moment_divisor
        flat = drawn((d * (d + 1) // 2 + 1,), "release", t + 1) * p.moment_scale
        error = np.zeros((d, d))
        for value, i, j in zip(flat, *np.triu_indices(d), strict=False):
            error[i, j] = error[j, i] = value if i == j else value / sqrt(2)
        here = len(shapes) / p.moment_divisor + flat[-1] * weights[0] / weights[3]
        seen, precision, present = heard(here, p.moment_scale * weights[0] / weights[3], seen, precision)
        found = whitening(Moment(mean + top * error, 0.0), present, top * p.moment_scale, top)
        transform = transform @ found.transform
    back = np.linalg.inv(transform)
    hessian = p.link_curvature * back.T @ np.diag(1 + found.doubt) @ back
    values, vectors = eigen(hessian)  # signs and order as the noise of a coordinate goes with
    whiten, colour = (vectors / np.sqrt(values)).T, vectors * np.sqrt(values)

    def curvature(x):
        if not p.sigmoid:
            return 1.0
        mean, width = of_predictions(x)
        return max(sqrt(8 / np.pi) / width * exp(-0.5 * (mean / width) ** 2), 0.25 if p.intercept else 0.5)

    def of_predictions(x):  # their mean, and the width of their spread and the logistic function's, as a normal one
        second = hessian / p.link_curvature
        mean, square = second[-1] @ x / sqrt(second[-1, -1]) if p.intercept else 0.0, x @ second @ x
        return mean, sqrt(8 / np.pi + max(square - mean**2, 0.0))

    def goal_beyond(x):
        if not (p.sigmoid and p.intercept):
            return p.beyond
        mean, width = of_predictions(x)
        chance = (1 + erf(mean / width / sqrt(2))) / 2
        return max(4 * chance * (1 - chance) * p.beyond, min(0.01, p.beyond))

    # noise of the weighted rows, all main rounds at once
    column = np.sqrt(np.sum(strategy(p.factorisation, rounds) ** 2, axis=0)).max()
    inverse = np.linalg.inv(strategy(p.factorisation, rounds))
    rows_noise = inverse @ np.array([drawn((d,), "prefix", j) for j in range(rounds)]) * p.main_scale / weights[0]
    root = np.linalg.inv(strategy("sqrt-toeplitz", rounds))  # the variance in the radius is always this one's

    x = before = gradient = summed = np.zeros(d)
    spread, margin, variance, sampled, radii, path = p.spread, p.margin, 0.0, 0.0, [], []
    for t in range(8, 8 + w + rounds):
        main = t >= 8 + w
        j = t - 7 - w if main else 1
        divisor, scale = (p.main_divisor, p.main_scale) if main else (p.warmup_divisor, p.warmup_scale)
        cap = 3 * p.first_radius if main else p.first_radius
        step, ahead = x - before, curvature(x) * hessian
        if t == 8:
            centre, radius = np.zeros(d), p.first_radius
        else:
            known = variance
            if j > 1:
                known += j**2 * d * (step @ ahead @ step) / (4 * 6)
            reach = margin * sqrt((spread**2 + known - variance) * (1 + 1 / divisor) + variance)
            lag = j * 0.5 * sqrt(step @ ahead @ step)
            radius = min(cap, max(reach + lag, 1e-6 * p.first_radius))
            centre = gradient + j * 0.7 * ahead @ step
        row = np.zeros(d + 3)  # weights taken off again where they do not matter
        for u in cohorts[t]:
            answer = j * users.data_gradient(u, x) - (j - 1) * users.data_gradient(u, before)
            residual = whiten @ (users.weight(u) * (answer - centre))
            clipped = residual * min(1.0, radius / np.linalg.norm(residual)) / radius
            a = np.linalg.norm(clipped)
            row += np.array([*clipped, 1 - a, a <= 2 / 3, 1.0]) / divisor
        unit, shares = row[:d], row[d:]
        chance = spread**2 / divisor
        if main:
            radii.append(radius)
            sampled += chance
            summed = summed + centre + colour @ (radius * (unit + rows_noise[j - 1]))
            gradient = summed / j
            # noise of the sum is Σ_i C_i N_i = (radii as a row) · inverse · Z
            factors = np.array(radii) @ root[:j, :j] * p.main_scale / weights[0]
            variance = (d * factors @ factors + sampled) / j**2
            noise_of_shares, scale = drawn((3,), "shares", j - 1) * p.main_scale / column, p.main_scale / column
        else:
            noised = drawn((d + 3,), "release", t) * scale * weights[0]
            noise_of_shares, gradient = noised[d:], centre + colour @ (radius * (unit + noised[:d] / weights[0]))
            scale_of_row = scale * weights[0]
            variance = d * (radius * scale) ** 2 + chance
        if t == 8:
            known = max(gradient @ np.linalg.solve(hessian, gradient) - variance, 0.0)
        deviation = (scale if main else scale_of_row) / weights[3]
        beyond, within, here = shares + noise_of_shares / weights[1:]
        seen, precision, present = heard(here, deviation, seen, precision)
        spread, margin = moved(
            spread, margin, radius, 1 - beyond / present, 1 - within / present, known, deviation, p, goal_beyond(x)
        )
        matrix = ahead + p.ridge * np.eye(d)
        goal = x - np.linalg.solve(matrix, gradient + p.ridge * x)
        x, before = project(domain, matrix, goal), x
        path.append(Round(centre, radius, gradient, spread, margin, x))
    return hessian, path, x


WEIGHTS = {
    "replace-one": np.array([1, 1.4142135, 1, 1]),
    "zero-out": np.array([0.9486832, 0.6708203, 0.6708203, 0.3162277]),
}


def moved(spread, margin, radius, reached, beyond, known, deviation, p, target):
    """The rules of docs/privacy/tracking-srgd.md, "Radius"."""
    distance = radius * max(reached, 0.1) if reached < 0.93 else 1.5 * radius
    own = max(distance**2 - known, 0.2 * distance**2)
    spread = sqrt(own) ** 0.7 * spread**0.3
    surprise = (beyond - target) / max(target, deviation)
    margin = margin * exp(0.5 * min(max(surprise, -1.0), 1.0))
    return min(max(spread, 1e-6 * p.first_radius), p.first_radius), min(max(margin, 1.0), 6.0)

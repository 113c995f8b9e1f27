"""The public numbers of a run of `whitened-tracking`, and the mechanisms that they make.

What is known of a loss before anybody answers: which of its predictions count, and mean curvatures of Gaussian ones.

Of several predictions all is along their contrasts (`quoron_privacy.means.free_counts`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from quoron_client.protocol.questions import AverageLoss, MomentAndGradient, SecondMoment, Task
from quoron_client.protocol.smoothing import moreau
from quoron_privacy.accounts import gdp
from quoron_privacy.arrays import Matrix, Vector
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.free_counts import KINDS, ColumnMean, Contrasts, LogLength, MomentMean, NormCountMean
from quoron_privacy.release import Adjacency, packed
from quoron_server.algorithms.whitening import FLOOR, WIDTH, eigen, mean_chance
from quoron_server.parameters import Parameters
from quoron_server.problem import Problem
from quoron_server.schedule import MaskedRows, RoundRelease, Rounds, clipped_row, count_beside, count_in, gradients

DRAWS = 512  # of predictions of several classes, by which means over Gaussian ones are taken
STEPS, HALVINGS = 6, 40  # by which predictions are found
MIN_CURVATURE = 0.4  # of a contrast, over that of even chances
PASSES, A_PASS = (3, 12), 100.0  # of `approached`, and the ν that one takes
DAMPED = 0.5, 0.25  # share of a pass that is gone, as γ may be twice as steep as its mean curvature; after one too far
MIN_BEYOND = 0.002  # share of users far away, below which nothing is taken to be cut off
MADE_ROWS, MIN_USERS, MAX_ITEMS = 1 << 16, 4096, 16  # of made-up users: rows in all, users, and items at most of one
_NORMAL, _LEAST, _ONE = NormalDist(), 1e-9, np.ones((1, 1))


@cache
def _widths() -> tuple[Vector, Vector]:
    """Widths (24,) and weights of the normal laws of which the logistic one is a mixture.

    The logistic law is that of 2K Z, K of Kolmogorov's law and Z normal: Andrews & Mallows (1974), Scale mixtures of
    normal distributions. Midpoints of the range of K beyond which less than 10⁻¹⁰ lies.
    """
    k, j = np.linspace(0.25, 3.6, 49)[1::2], np.arange(1, 40)[:, None]
    weights = np.sum((-1.0) ** (j + 1) * j**2 * np.exp(-2 * j**2 * k**2), axis=0) * k
    return 2 * k, weights / weights.sum()


def mean_slope(mean: float, variance: float) -> tuple[float, float]:
    """Means of the logistic function and of its derivative over predictions N(mean, variance), to 10⁻⁴.

    >>> chance, slope = mean_slope(-3.0, 4.0)
    >>> round(chance, 4), round(slope, 4)
    (0.1296, 0.0779)
    """
    widths, weights = _widths()
    whole = np.sqrt(widths**2 + variance)
    ratio = mean / whole
    slope = np.exp(-0.5 * ratio**2) / (whole * math.sqrt(2 * math.pi))
    return float(weights @ ndtr(ratio)), float(weights @ slope)


def predictions(chance: float, covariance: float, limit: float) -> tuple[float, float]:
    """(m, s) of the predictions m + s x, x normal, whose mean chance is that, and whose chances' covariance with x.

    s is at most `limit`. The covariance grows with s while the mean chance stays, up to φ(Φ⁻¹(chance)).
    """
    odds, mean = math.log(chance / (1 - chance)), 0.0

    def found(deviation: float) -> tuple[float, float]:
        mean = odds * math.sqrt(1 + (deviation / WIDTH) ** 2)
        for _ in range(STEPS):
            share, slope = mean_slope(mean, deviation**2)
            share = min(max(share, 1e-300), 1 - 1e-16)
            mean -= (math.log(share / (1 - share)) - odds) * share * (1 - share) / max(slope, 1e-300)
        return mean, deviation * slope

    low, high = 0.0, limit
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if found(middle)[1] < covariance else (low, middle)
    mean, _ = found(high)
    return mean, high


@cache
def _draws(parts: int) -> Matrix:
    """Standard normal vectors (DRAWS, q), each with its opposite, the same ones every time."""
    half = np.random.Generator(np.random.Philox(0)).standard_normal((DRAWS // 2, parts))
    return np.concatenate([half, -half])


@lru_cache(maxsize=4)
def _users(items: int, slopes: int) -> tuple[Matrix, Matrix, Vector, NDArray[np.int64]]:
    """Of made-up users of 1 to 2 `items` - 1 rows: normal and uniform numbers (u, rows), χ² of all slopes but one (u,),
    and how many rows they have, (u, 1); the same ones every time."""
    random, most = np.random.Generator(np.random.Philox(0)), 2 * items - 1
    shape = (max(MIN_USERS, MADE_ROWS // most), most)
    across = random.chisquare(slopes - 1, shape[0]) if slopes > 1 else np.zeros(shape[0])
    return random.standard_normal(shape), random.random(shape), across, random.integers(1, most + 1, (shape[0], 1))


@dataclass(frozen=True, slots=True)
class CurvatureModel:
    """The mean curvature at a point of q parts; of K classes it is a matrix among their K - 1 contrasts."""

    curvature: float  # φ₂, of one prediction; of several 1 / K, at even chances
    sigmoid: bool  # whether curvature falls as predictions grow
    outputs: int = 1  # K
    intercept: bool = False  # whether the last coordinate of a part is of the feature that is the same for every item
    resolution: float = 0.0  # ν
    level: bool = False  # whether that coordinate, beside others, is of labels that are numbers

    @property
    def parts(self) -> int:
        """q."""
        return max(1, self.outputs - 1)

    def at(self, x: Vector) -> tuple[Vector, Matrix]:
        """Mean curvatures (q,) at x (q d,), and the directions (q, q) among parts, as columns, that they are of."""
        if self.outputs == 1:
            return np.array([4 * self.curvature * self._even(x)[1] if self.sigmoid else self.curvature]), _ONE
        values, basis = np.linalg.eigh(self._mean(x)[0])
        return np.maximum(values, MIN_CURVATURE * self.curvature), basis

    def gradient(self, x: Vector) -> Vector:
        """Return γ(x), (q d,): exact where features are Gaussian in the metric and independent of labels."""
        if self.outputs == 1:
            if not self.sigmoid:
                found: Vector = self.curvature * x
                if self.level:
                    found[-1] /= 1 + FLOOR  # the metric takes a constant feature to be so much larger
                return found
            chance, bend = self._even(x)
            found = bend * x
            if self.intercept:
                found[-1] = chance - 0.5
            return 4 * self.curvature * found
        spread, shares = self._mean(x)
        found = spread @ x.reshape(self.parts, -1)
        if self.intercept:
            found[:, -1] = shares
        return found.ravel()

    def solved(self, gradient: Vector, deviation: float, limit: float) -> Vector:
        """x of at most the length `limit` with γ(x) = gradient (d,), a coordinate of which has noise of `deviation`.

        For one logistic prediction: γ is bounded, and what is nearer to its bounds than noise is taken for that near.
        """
        wanted, near = gradient / (4 * self.curvature), max(deviation / (4 * self.curvature), _LEAST)
        far = near * math.sqrt(len(wanted))  # how long the noise of all coordinates is
        share = 0.5 - min(near, 0.2)
        ratio = _NORMAL.inv_cdf(0.5 + min(max(float(wanted[-1]), -share), share)) if self.intercept else 0.0
        density, others = _NORMAL.pdf(ratio), wanted.copy()
        if self.intercept:
            others[-1] = 0.0
        length = float(np.linalg.norm(others))
        mean, deviation = predictions(_NORMAL.cdf(ratio), min(length, max(density - far, 0.5 * density)), limit)
        found = others * (deviation / max(length, 1e-300))
        if self.intercept:
            found[-1] = mean
        return found * min(1.0, limit / max(float(np.linalg.norm(found)), 1e-300))

    def approached(self, gradient: Vector, deviation: float, limit: float, start: Vector, pull: Matrix) -> Vector:
        """Of several classes: x of at most the length `limit` with γ(x) + x pull = gradient, nearly, (q d,).

        By a few passes from `start`, each by the mean curvature where it is: with a small ν little of the way is gone
        where γ is flat. No class is taken to be rarer than the `deviation` of a coordinate.
        """
        wanted, x = gradient.reshape(self.parts, -1).copy(), start.reshape(self.parts, -1)
        if self.intercept:
            contrasts, even = Contrasts(1, self.outputs).matrix(), 1 / self.outputs
            shares = np.maximum(even + contrasts @ wanted[:, -1], min(deviation, 0.5 * even))
            wanted[:, -1] = contrasts.T @ (shares / shares.sum())
        bends, turn = np.linalg.eigh(pull)
        share, last = DAMPED[0], math.inf
        for _ in range(int(min(max(self.resolution / A_PASS, PASSES[0]), PASSES[1]))):
            values, basis = self.at(x.ravel())
            rest = wanted - self.gradient(x.ravel()).reshape(x.shape) - x @ pull
            length = float(np.linalg.norm(rest))
            share, last = share if length <= last else DAMPED[1], length
            x = x + share * basis @ ((basis.T @ rest @ turn) / (values[:, None] + bends)) @ turn.T
            x = x * min(1.0, limit / max(float(np.linalg.norm(x)), 1e-300))
        return x.ravel()

    def clipped(self, x: Vector, beyond: float, items: int) -> Vector:
        """By how much clipping moves the mean gradient at x, (d,), if a share of users is `beyond` ⅔ of the radius.

        Of users as the model has them, of 1 to 2 `items` - 1 rows. Those whose labels surprise it have long gradients,
        most towards a shorter model. For one logistic prediction.
        """
        slopes, level = (x[:-1], float(x[-1])) if self.intercept else (x, 0.0)
        length = float(np.linalg.norm(slopes))
        if beyond <= MIN_BEYOND or length == 0.0:
            return np.zeros(len(x))
        scores, uniform, across, counts = _users(min(items, MAX_ITEMS), len(slopes))
        chances = expit(level + length * scores)
        residuals = (chances - (uniform < chances)) * (np.arange(scores.shape[1]) < counts) / counts
        rows = np.stack([np.sum(residuals * scores, axis=1), residuals.sum(axis=1) * self.intercept])
        rows -= rows.mean(axis=1)[:, None]
        lengths = np.sqrt(np.sum(rows**2, axis=0) + across * np.sum(residuals**2, axis=1)) + 1e-300
        radius = 1.5 * float(np.quantile(lengths, max(1 - beyond, 0.0)))
        along, constant = 4 * self.curvature * np.mean(rows * np.minimum(radius / lengths, 1.0), axis=1)
        found = along / length * slopes
        return np.append(found, constant) if self.intercept else found

    def _even(self, x: Vector) -> tuple[float, float]:
        """Mean chance and mean slope of it at x."""
        mean = float(x[-1]) if self.intercept else 0.0
        return mean_slope(mean, max(float(x @ x) - mean**2, 0.0))

    def _mean(self, x: Vector) -> tuple[Matrix, Vector]:
        """E Qᵀ (diag(p) - p pᵀ) Q and E Qᵀ p over the predictions at x: docs/privacy/whitened-tracking.md#w3."""
        points = x.reshape(self.parts, -1)
        level = points[:, -1] if self.intercept else np.zeros(self.parts)
        others = points[:, :-1] if self.intercept else points
        chances = self.chances(level, others @ others.T)
        contrasts = Contrasts(1, self.outputs).matrix()
        spread = np.diag(chances.mean(axis=0)) - chances.T @ chances / len(chances)
        return contrasts.T @ spread @ contrasts, contrasts.T @ chances.mean(axis=0)

    def chances(self, level: Vector, covariance: Matrix) -> Matrix:
        """Of every class, for some predictions Q u, u of N(level, covariance), (draws, K)."""
        values, basis = eigen(covariance)
        drawn = level + _draws(self.parts) @ (basis * np.sqrt(np.maximum(values, 0.0))).T
        scores = drawn @ Contrasts(1, self.outputs).matrix().T
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        found: Matrix = shares / shares.sum(axis=1, keepdims=True)
        return found

    def rarity(self, x: Vector) -> float:
        """4p̄ (1 - p̄) of the mean chance p̄ at x, (q d,), which for two classes `variety` takes too near to 0 or 1."""
        if self.outputs > 1:
            return 4 * self.variety(x)
        chance = self._even(x)[0]
        return 4 * chance * (1 - chance)

    def variety(self, x: Vector) -> float:
        """p̄ (1 - p̄) of the mean chance p̄ at x, (q d,); a label that is rare has little."""
        levels = x.reshape(self.parts, -1)[:, -1] * self.intercept
        rest = float(x @ x - levels @ levels)
        if self.outputs == 1:
            chance = mean_chance(float(levels[0]), rest)
            return chance * (1 - chance)
        shares = self.chances(levels, max(rest, 0.0) / self.parts * np.eye(self.parts)).mean(axis=0)
        return 0.25 * (1 - float(shares @ shares)) * self.outputs / self.parts


MAX_CONTRASTED = 512  # numbers of a model of several classes, of which a client is sent a whole matrix
COLUMNS = 3  # looks at columns
STAGES = 4  # second moments
PARTS = COLUMNS + 2 * STAGES + 1  # those, a length and a second moment as often as that, and the length of a gradient


@dataclass(frozen=True, slots=True)
class WhitenedParameters(Parameters):
    """Public numbers of one run."""

    cohort_size: int  # n: everybody, every round, and every divisor
    rounds: int  # T + 1: T gradients, the first beside the second moment, and a vote
    adjacency: Adjacency
    length_scale: float  # noise of each of the STAGES + 1 logarithms
    column_scale: float  # of each of the COLUMNS means of columns, of rows of length 1
    moment_scales: tuple[float, ...]  # of the STAGES second moments, for a radius of 1
    gradient_scales: tuple[float, ...]  # of the T means, for a radius of 1
    vote_scale: float  # of the mean change of the loss, for a bound of 1
    vote_bound: float  # V at most
    feature_norm: float  # R
    link_curvature: float  # φ₂
    mean_curvature: float  # that steps begin with, at most φ₂
    smoothing: float  # λ of the Moreau envelope that gradients are of; 0 for a loss whose slope does not jump
    start_slope: float  # s₀: |φ'| at the start is at most this
    ridge: float  # λ
    sigmoid: bool  # whether φ' is the logistic function, whose curvature falls as predictions grow
    outputs: int  # K: predictions of an item
    intercept: bool  # whether the last feature is the same for every item
    resolution: float  # ν = nμ_g / √d, with every user
    robust: bool  # whether to clip more, and to bound predictions, in fear of adversarial users
    mu: float  # GDP parameter of the whole transcript
    parts: bool = False  # whether the first message is asked in PARTS + 1 questions, each for one release

    @property
    def first(self) -> int:
        """Questions before that of the first gradient."""
        return PARTS if self.parts else 0

    @property
    def gradients(self) -> int:
        """T."""
        return self.rounds - 1

    @property
    def width(self) -> float:
        """By which predictions of K classes are longer together than that of one: (K - 1) / 2, at least 1."""
        return max(1.0, 0.5 * (self.outputs - 1))

    @property
    def law(self) -> CurvatureModel:
        """What is known of the loss before anybody answers."""
        return CurvatureModel(self.mean_curvature, self.sigmoid, self.outputs, self.intercept, self.resolution)

    def length(self) -> LogLength:
        """Of the logarithm of a length."""
        return LogLength(self.cohort_size, self.length_scale)

    def constant(self, features: int) -> bool:
        """Return whether there is a constant feature beside others."""
        return self.intercept and features > 1

    def columns(self, features: int) -> ColumnMean:
        """Of where columns lie."""
        return ColumnMean(features - self.constant(features), self.cohort_size, self.column_scale)

    def moment(self, dimension: int, stage: int) -> MomentMean:
        """Of features' second moments, as whitened so far, at a stage; for models of `dimension`."""
        return MomentMean(dimension // self.outputs, self.cohort_size, self.adjacency, self.moment_scales[stage])

    def gradient(self, dimension: int, round_: int) -> NormCountMean:
        """Of the gradients of a round: all contrasts are one vector."""
        numbers = Contrasts(dimension // self.outputs, self.outputs).dimension
        return NormCountMean(numbers, self.cohort_size, self.adjacency, self.gradient_scales[round_])

    @property
    def vote(self) -> GaussianNoise:
        """Of clipped changes of the loss, over V."""
        return GaussianNoise(mean_sensitivity(1.0, self.cohort_size, self.adjacency), self.vote_scale)

    def spent(self, dimension: int) -> tuple[float, ...]:
        """Return μ of every round: all that is released of one answer."""
        features = dimension // self.outputs
        first = [COLUMNS * self.columns(features).effective_mu ** 2, (STAGES + 1) * (self.length().effective_mu ** 2)]
        first += [self.moment(dimension, stage).effective_mu ** 2 for stage in range(STAGES)]
        means = [self.gradient(dimension, round_).effective_mu for round_ in range(self.gradients)]
        return (gdp.compose(*(square**0.5 for square in first), means[0]), *means[1:], self.vote.effective_mu(1))

    def stretches(self, problem: Problem) -> Iterator[Rounds]:
        """Columns, lengths and second moments of the first answers; a mean in each of T rounds; the vote.

        All of everybody. The shares of gradients, and in parts of second moments, tell who answers; beside the vote
        there is room where one user may be replaced. That of a length counts users with one above zero
        (free-presence#p1), that of columns users with an item: neither ends a round. Of several classes two servers
        take matrices of moderate size alone.
        """
        d, zero = problem.dimension, np.zeros(problem.dimension)
        columns, length, vote = self.columns(problem.features), self.length(), self.vote
        moments = [self.moment(d, stage) for stage in range(STAGES)]
        means = [self.gradient(d, round_) for round_ in range(self.gradients)]
        at_start = gradients(problem)
        later = replace(at_start, centre=zero if self.ridge else None, smoothing=moreau(self.smoothing))
        looks = (*(columns,) * COLUMNS, *(mu for moment in moments for mu in (length, moment)))
        if self.parts:
            asked: list[tuple[Task, tuple[Any, ...]]] = [(SecondMoment(problem.features), (by,)) for by in looks]
            asked += [(at_start, (by,)) for by in (length, means[0])]
        else:
            whole = (*(columns,) * COLUMNS, *(length,) * (STAGES + 1), *moments, means[0])
            asked = [(MomentAndGradient(problem.features, zero), whole)]
        asked += [*((later, (mean,)) for mean in means[1:]), (AverageLoss(np.zeros((2, d))), (vote,))]
        made, halved = dict[int, RoundRelease](), self.adjacency == "replace-one"
        mus = () if self.parts else self.spent(d)
        for message, (task, mechanisms) in enumerate(asked):
            for by in mechanisms:
                if id(by) not in made:
                    mu = mus[message] if mus else by.effective_mu(1) if by is vote else by.effective_mu
                    made[id(by)] = RoundRelease(by, by.entry(), mu)
            tells = isinstance(by, MomentMean | NormCountMean)
            rows = None
            if self.parts and (self.outputs == 1 or d <= MAX_CONTRASTED):
                vote_unit = 1 / self.cohort_size / self.vote_scale
                rows = MaskedRows(self.adjacency, clipped_row(1, vote_unit, "vote") if by is vote else by.masked)
            yield Rounds(
                1,
                self.cohort_size,
                task,
                tuple(made[id(by)] for by in mechanisms),
                fresh=message == 0,
                leaks=count_in(by) if tells else count_beside(vote if by is vote and halved else None),
                summed=self.parts,
                rows=rows,
            )

    def long_once(self) -> bool:
        """Of second moments."""
        return True


def drawn(problem: Problem, rounds: int) -> int:
    """Gaussian samples of a run, at most: of every feature as a column, lengths, second moments, T means, a vote."""
    numbers = Contrasts(problem.features, problem.outputs).dimension
    looks = COLUMNS * (KINDS * problem.features + 1) + 2 * (STAGES + 1) + STAGES * (packed(problem.features) + 1)
    return looks + (rounds - 1) * (numbers + 3) + 1

"""A table with a user column as a population: CSV, Parquet, a pandas DataFrame or a pyarrow Table.

    >>> import pandas as pd
    >>> from quoron_client.data.encoding import Signs
    >>> from quoron_client.data.features import Numeric
    >>> from quoron_client.losses import Logistic
    >>> visits = pd.DataFrame({"who": ["a", "a", "b", "c", "d"], "age": [30, 31, 62, 55, 80], "sick": [0, 0, 1, 0, 1]})
    >>> rules = Encoding((Numeric("age", 0, 100),), label=Signs("sick"))
    >>> clinic = from_table(visits, rules, user="who", loss=Logistic(), test_fraction=0.25)
    >>> clinic.users, clinic.dimension
    (3, 2)

Features are scaled by public ranges and vocabularies, and every row to the loss's feature norm at most, so that what
one user holds changes nobody else's numbers. Held-out users are drawn by a public seed.

The training objective, its minimiser, `Fit` and all figures are functions of private data: for reports of simulations.
As clients do, an item's weight multiplies its loss and not the ridge, and a user's average divides by its number of
items.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from quoron.data.user_rows import group
from quoron.data.users import (
    ALL_HONEST,
    Corruption,
    Declared,
    Outliers,
    Purpose,
    TabularUsers,
    Users,
    Vector,
    about_boundary,
    flipped,
    words,
)
from quoron_client.compute.enforcement import bounded
from quoron_client.data import fused, tables
from quoron_client.data.encoding import Encoding, Owners, Range
from quoron_client.data.fused import RowCounts, declared_columns, declared_labels, held_at_end
from quoron_client.data.items import ItemBatch, ItemView
from quoron_client.losses import Absolute, Classification, Hinge, Huber, Linear, Loss, SmoothedHinge, Softmax
from quoron_client.protocol.domains import Domain, L2Ball, free_ball, on_boundary
from quoron_client.protocol.questions import Matrix
from quoron_privacy.accounts.roots import root
from quoron_privacy.errors import DataError, RunError
from quoron_privacy.kernels.threads import in_pieces

OFTEN = 0.05  # share of values from which on a misfit is spoken of


@dataclass(frozen=True, slots=True)
class Fit:
    """How a table fits its rules."""

    users: int  # all, held out or not
    users_without: int  # whose rows are all left out
    max_rows: int  # of any one user
    whole: RowCounts  # of all rows, as if they were one user's

    def unfit(self, encoding: Encoding) -> dict[str, float]:
        """Share of values that do not fit, by column, and of labels that are held at an end; only where there are."""
        unfit = zip(declared_columns(encoding), self.whole.unfit[0].tolist(), strict=True)
        shares = {column.name: count / int(self.whole.rows[0]) for column, count in unfit if count}
        return shares | self._ends(encoding)

    def _ends(self, encoding: Encoding) -> dict[str, float]:
        found = zip(declared_labels(encoding), self.whole.labelled[0].tolist(), strict=True)
        usable = int(self.whole.usable[0])
        return {name: count / usable for name, count in found if count} if isinstance(encoding.label, Range) else {}

    def remarks(self, encoding: Encoding) -> Iterator[str]:
        """One sentence for each thing that is amiss, with its fix."""
        if self.users == 1:
            yield (
                "The table has one user: there is nobody to hide among, and nothing useful can be learnt privately. "
                "Name the column that tells users apart as `user`."
            )
        elif self.max_rows == 1:
            yield (
                "Every user has one row: user-level privacy is then item-level. If rows of the same person exist, name "
                "the column that tells persons apart as `user`."
            )
        if self.users_without > OFTEN * self.users:
            yield (
                f"{_share(self.users_without / self.users)} of the users have no row that can be used, and answer "
                "zero. See which columns rows are left out for."
            )
        shares, dropped = self.unfit(encoding), 1 - self.whole.usable[0] / self.whole.rows[0]
        if dropped > OFTEN:
            yield f"{_share(dropped)} of the rows cannot be used, and are left out: see the columns that do not fit."
        for column in declared_columns(encoding):
            if shares.get(column.name, 0.0) > OFTEN:
                words = column.remark(f"{_share(shares[column.name])} of the rows")
                yield words[:1].upper() + words[1:]
        for name, share in self._ends(encoding).items():
            if share > OFTEN:
                yield f"{_share(share)} of {held_at_end(name)}"


def _share(share: float) -> str:
    return f"{100 * share:.3g} %"


def binary(scores: Vector, labels: Vector) -> dict[str, float]:
    """auc, accuracy and log_loss of `scores` (N,) for `labels` +-1 (N,); auc is absent when one class is."""
    margins = labels * scores
    figures = {
        "accuracy": float(np.mean(np.where(scores > 0, 1.0, -1.0) == labels)),
        "log_loss": float(np.mean(np.logaddexp(0.0, -margins))),
    }
    positive = labels > 0
    if positive.any() and not positive.all():
        figures = {"auc": auc(scores, positive)} | figures
    return figures


def classes(scores: Vector, labels: Vector) -> dict[str, float]:
    """accuracy and log_loss of `scores` (N, K) for class numbers `labels` (N,)."""
    wanted = labels.astype(np.int64)
    own = np.take_along_axis(scores, wanted[:, None], axis=1)[:, 0]
    return {
        "accuracy": float(np.mean(np.argmax(scores, axis=1) == wanted)),
        "log_loss": float(np.mean(scipy.special.logsumexp(scores, axis=1) - own)),
    }


def regression(scores: Vector, labels: Vector) -> dict[str, float]:
    """Root mean squared error `rmse` of `scores` (N,)."""
    return {"rmse": float(np.sqrt(np.mean((scores - labels) ** 2)))}


def auc(scores: Vector, positive: NDArray[np.bool_]) -> float:
    """Chance that a positive outscores a negative, ties counting half (Mann-Whitney)."""
    ones, zeros = np.sort(scores[positive]), np.sort(scores[~positive])
    below = sum(int(np.searchsorted(zeros, ones, side).sum()) for side in ("left", "right"))
    return below / (2 * len(ones) * len(zeros))


_CACHED = 1 << 16  # numbers of rows that a thread holds as float64: a library multiplies more by threads of its own
_SQUARED = 1 << 20  # the same where matrices are made of them: threads of a library meet at the end of every product
TRACED = 1 << 22  # numbers of the items, at most, for which the risk of a round is exact; for more it is of a sample
FEWEST_TRACED = 100  # users in that sample, at least
_WIDTHS = (1.0, 0.1, 0.01, 1e-3)  # smoothing of the non-smooth losses, each solution the next one's start
Objective = Callable[[Vector], tuple[float, Vector, Matrix]]
_STEPS = 200
_ROUNDING = 4e-16  # share of a value below which a further gain is rounding error
SETTLED = 1e-9  # of what there is to gain, where no point is best and better ones are ever farther away
_FLAT = 1e-12  # eigenvalues below this share of the largest are lifted to it, so that unused columns stay at zero


@dataclass(frozen=True, eq=False)
class TrainingObjective:
    """F(x) = mean over users u of (1/m_u) sum of u's weighted item losses, plus ridge/2 |x|^2."""

    items: ItemBatch
    loss: Loss

    @cached_property
    def labels(self) -> Vector:
        """Those of the items, within the loss's bound, shape (N,)."""
        return self.loss.bound_labels(self.items.labels)

    @cached_property
    def weights(self) -> Vector:
        """What one item counts: its weight / (n m_u), shape (N,)."""
        counts = np.diff(self.items.offsets)
        shares = np.repeat(1.0 / (self.items.users * counts), counts)
        return shares if self.items.weights is None else shares * self.items.weights

    def losses(self, scores: Vector) -> Vector:
        """Of the items, shape (N,), at such scores (N,) or (N, K)."""
        losses = np.empty(len(scores))

        def score(first: int, last: int) -> None:
            losses[first:last] = self.loss.value(scores[first:last], self.labels[first:last])

        in_pieces(score, len(scores), self.loss.outputs, _CACHED)
        return losses

    def scores(self, model: Vector) -> Vector:
        """<a, x> of every item, shape (N,), float64; <a, x_k>, shape (N, K), of a loss with K outputs."""
        point = self._point(model)
        scores = np.empty((len(self.items.features), *point.shape[1:]))

        def score(part: slice, rows: Matrix) -> None:
            scores[part] = rows @ point

        self._in_pieces(score)
        return scores

    def gradient(self, model: Vector) -> Vector:
        """Of F at `model`, shape (d,); where F has a kink, one of its subgradients."""
        point, parts = self._point(model), {}

        def add(part: slice, rows: Matrix) -> None:
            slopes = self.loss.slope(rows @ point, self.labels[part])
            parts[part.start] = rows.T @ (self.weights[part] * slopes.T).T

        self._in_pieces(add)
        whole: Vector = np.sum([parts[start] for start in sorted(parts)], axis=0)  # in one order: the same bits
        return whole.T.ravel() + self.loss.ridge * model

    def expansion(self, model: Vector) -> tuple[float, Vector, Matrix]:
        """Value, gradient (d,) and Hessian (d, d) at `model`; second derivatives are central differences of slopes.

        Those of the softmax loss are diag(p) - p p' between its classes.
        """
        if isinstance(self.loss, Softmax):
            return self._expansion_of_classes(self.loss, model)
        gradient, hessian = self.loss.ridge * model, self.loss.ridge * np.eye(len(model))
        value, nudge = 0.5 * self.loss.ridge * (model @ model), 1e-5
        for part, rows in self._pieces():
            labels, weights, scores = self.labels[part], self.weights[part], rows @ model
            bends = self.loss.slope(scores + nudge, labels) - self.loss.slope(scores - nudge, labels)
            value = value + weights @ self.loss.value(scores, labels)
            gradient = gradient + (weights * self.loss.slope(scores, labels)) @ rows
            hessian += rows.T @ ((weights / (2 * nudge) * bends)[:, None] * rows)
        return float(value), gradient, hessian

    def _expansion_of_classes(self, loss: Softmax, model: Vector) -> tuple[float, Vector, Matrix]:
        classes, features, value = loss.classes, self.items.dimension, 0.5 * loss.ridge * (model @ model)
        gradient, hessian = np.zeros((classes, features)), np.zeros((classes, features, classes, features))
        for part, rows in self._pieces():
            labels, weights, scores = self.labels[part], self.weights[part], rows @ self._point(model)
            chances = loss.chances(scores)
            value = value + weights @ loss.value(scores, labels)
            gradient += (weights[:, None] * loss.slope(scores, labels)).T @ rows
            for k in range(classes):
                for j in range(k + 1):
                    bends = weights * chances[:, k] * ((k == j) - chances[:, j])
                    hessian[k, :, j] += rows.T @ (bends[:, None] * rows)
        for k in range(classes):
            for j in range(k):
                hessian[j, :, k] = hessian[k, :, j].T
        whole = hessian.reshape(model.size, model.size) + loss.ridge * np.eye(model.size)
        return float(value), gradient.ravel() + loss.ridge * model, whole

    @property
    def has_infimum(self) -> bool:
        """Whether it is bounded below over all models: a linear loss is not, unless a ridge holds it."""
        return self.loss.name != Linear.name or self.loss.ridge > 0

    def minimiser(self, domain: Domain, part: "TrainingObjective | None" = None) -> Vector:
        """argmin over `domain`, shape (d,); over a ball sooner with a `part` of the users, drawn at random.

        For the hinge and absolute losses it is that of their smoothed forms, whose value is at most 5e-4 above.
        """
        point = np.zeros(self.items.dimension * self.loss.outputs)
        for loss, scale in _smooth_forms(self.loss):
            smooth, near = self._with(loss), None
            if part is not None and isinstance(domain, L2Ball):
                near = smooth._subsampled(part._with(loss), scale, domain, point)
            point = minimise(smooth._scaled(scale), domain, point) if near is None else near
        return point

    def _with(self, loss: Loss) -> "TrainingObjective":
        return self if loss is self.loss else TrainingObjective(self.items, loss)

    def _scaled(self, scale: float) -> "Objective":
        def scaled(x: Vector) -> tuple[float, Vector, Matrix]:
            value, gradient, hessian = self.expansion(x)
            return scale * value, scale * gradient, scale * hessian

        return scaled

    def _subsampled(self, part: "TrainingObjective", scale: float, domain: L2Ball, start: Vector) -> Vector | None:
        """argmin of it, scaled, over a ball: from that of some users with their Hessian, by everybody's gradients.

        None where that does not converge fast, as with a direction in which `part` has no data.
        """
        try:
            point = minimise(part._scaled(scale), domain, start)
        except RunError:
            return None
        (value, _, hessian), before = part._scaled(scale)(point), math.inf
        for _ in range(_STEPS):
            gradient = scale * self.gradient(point)
            towards = _least_on_ball(hessian, hessian @ point - gradient, domain.radius)
            gain = float(gradient @ (point - towards))
            if gain > before / 10:
                return None
            left = gain if before == math.inf else gain * gain / before  # after this step, if it is as good as the last
            if left <= _ROUNDING * max(1.0, abs(value)):
                return towards
            point, before = towards, gain
        return None

    def _point(self, model: Vector) -> Vector:
        """As rows (p,) are multiplied by it: (p,), or (p, K) of a loss with K outputs."""
        return model if self.loss.outputs == 1 else model.reshape(self.loss.outputs, -1).T

    def _pieces(self) -> Iterator[tuple[slice, Matrix]]:
        """Yield the rows in float64, piece by piece, and where they are; for products of rows with rows."""
        features, most = self.items.features, max(1, _SQUARED // max(1, self.items.dimension))
        for first in range(0, len(features), most):
            part = slice(first, first + most)
            yield part, features[part].astype(np.float64)

    def _in_pieces(self, work: Callable[[slice, Matrix], None]) -> None:
        """The same to a `work` on all threads, in pieces that one thread of a library multiplies."""
        features, width = self.items.features, max(1, self.items.dimension)

        def on(first: int, last: int) -> None:
            work(slice(first, last), features[first:last].astype(np.float64))

        in_pieces(on, len(features), width, max(1, _CACHED // width))


@dataclass(frozen=True, eq=False)
class ExcessLoss:
    """An objective's excess over its value at one point, whose scores and losses are computed once."""

    objective: TrainingObjective
    point: Vector

    @cached_property
    def scores(self) -> Vector:
        """Of the point."""
        return self.objective.scores(self.point)

    @cached_property
    def losses(self) -> Vector:
        """Of the items at the point, shape (N,)."""
        return self.objective.losses(self.scores)

    @cached_property
    def slopes(self) -> Vector:
        """Of the items at the point, shape (N,) or (N, K)."""
        return self.objective.loss.slope(self.scores, self.objective.labels)

    def difference(self, model: Vector) -> float:
        """F(model) - F(point), subtracted item by item so that little cancels."""
        objective = self.objective
        differences = objective.losses(objective.scores(model)) - self.losses
        square = (model - self.point) @ (model + self.point)
        return float(objective.weights @ differences + 0.5 * objective.loss.ridge * square)

    def divergence(self, model: Vector) -> Vector:
        """Bregman divergence from the point of each user's share of F at `model`, shape (n,)."""
        objective, items = self.objective, self.objective.items
        scores = objective.scores(model)
        along = self.slopes * (scores - self.scores)
        above = objective.losses(scores) - self.losses
        above -= along if along.ndim == 1 else along.sum(axis=1)
        users = np.repeat(np.arange(items.users), np.diff(items.offsets))
        shares: Vector = np.bincount(users, objective.weights * above, minlength=items.users).astype(np.float64)
        moved = model - self.point
        return items.users * shares + 0.5 * objective.loss.ridge * float(moved @ moved)


def _smooth_forms(loss: Loss) -> list[tuple[Loss, float]]:
    """Smooth losses, each with its scale, that approach `loss`; the loss itself where it is smooth."""
    norm, ridge = loss.feature_norm, loss.ridge
    if isinstance(loss, Hinge):
        return [(SmoothedHinge(feature_norm=norm, ridge=ridge, width=w), 1.0) for w in _WIDTHS]
    if isinstance(loss, Absolute):  # |r| is the limit of Huber's loss divided by its threshold
        bound = loss.label_bound
        return [(Huber(feature_norm=norm, ridge=ridge * w, label_bound=bound, threshold=w), 1.0 / w) for w in _WIDTHS]
    return [(loss, 1.0)]


def minimise(objective: Objective, domain: Domain, start: Vector) -> Vector:
    """argmin of `objective` (value, gradient (d,), Hessian (d, d)) over `domain`, from `start` (d,) of the domain.

    On a ball: Newton steps that solve each quadratic model exactly on the ball (the trust-region subproblem in the
    eigenbasis, More and Sorensen 1983), with Armijo's line search. On a box: L-BFGS-B of scipy.

    Where better points are ever farther away, as for separable classes, it is one from which Newton's next step would
    gain no more than SETTLED. Raises RunError if it does not converge.
    """
    if not isinstance(domain, L2Ball):
        result = scipy.optimize.minimize(
            lambda x: objective(x)[:2],
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(-domain.half_width, domain.half_width)] * len(start),
            options={"maxiter": 10_000, "ftol": 0.0, "gtol": 1e-11},
        )
        return np.asarray(result.x, np.float64)
    point, radius = start, domain.radius
    value, gradient, hessian = objective(point)
    for _ in range(_STEPS):
        towards = _least_on_ball(hessian, hessian @ point - gradient, radius) - point
        gain = -float(gradient @ towards)
        if gain <= _ROUNDING * max(1.0, abs(value)):
            return point
        step = 1.0
        while True:
            candidate = point + step * towards
            reached = objective(candidate)
            if reached[0] <= value - 1e-4 * step * gain:
                break
            step /= 2
            if step < 1e-9:  # the remaining gain drowns in rounding
                return point
        point, (value, gradient, hessian) = candidate, reached
    if gain <= SETTLED * max(1.0, abs(value)):
        return point
    raise RunError(f"Expected the non-private optimum within {_STEPS} Newton steps; it is not finite or too flat.")


def _least_on_ball(hessian: Matrix, target: Vector, radius: float) -> Vector:
    """argmin of y'Hy/2 - target'y over |y| <= radius."""
    eigenvalues, basis = np.linalg.eigh(hessian)
    along = basis.T @ target
    pull = float(np.linalg.norm(along)) / radius  # a multiplier that keeps any step inside
    lifted = np.maximum(eigenvalues, _FLAT * max(eigenvalues[-1], pull))
    if pull == 0.0:
        return np.zeros_like(target)

    def beyond(multiplier: float) -> float:
        return float(np.linalg.norm(along / (lifted + multiplier))) - radius

    if beyond(0.0) <= 0.0:
        return np.asarray(basis @ (along / lifted))
    multiplier = root(beyond, 0.0, pull, xtol=1e-300, rtol=1e-14)
    inside = basis @ (along / (lifted + multiplier))
    return np.asarray(inside * (radius / max(radius, float(np.linalg.norm(inside)))))


@dataclass(frozen=True, eq=False)
class TableUsers(TabularUsers):
    """Users whose items are rows of a table, kept ragged in one block of memory: all, or some under their numbers."""

    training: ItemBatch = field(kw_only=True, repr=False)  # float32 features
    own: Users | None = field(kw_only=True, default=None, repr=False)  # (k,), sorted, whose these are; None: all

    def items(self, users: Users) -> ItemBatch:
        """Return the rows of `users` (k,), in that order."""
        return flipped(self._rows(users), self.corruption(users), self.loss)

    @cached_property
    def all_items(self) -> ItemBatch | ItemView:
        """Their items within the bounds of the loss: enforced once, copied only if that changes any."""
        batch = bounded(self.training, self.loss)
        if self.own is None:
            return batch
        begins, ends = np.zeros((2, self.users), np.int64)
        begins[self.own], ends[self.own] = batch.begins, batch.ends
        return batch.where(begins, ends)

    def part(self, users: Users) -> "TableUsers":
        """Some users (k,), sorted by number, and nothing of the others."""
        rows = self._rows(users)
        return TableUsers(**self.public(), own=users, training=rows, outliers=self.outliers, seed=self.seed)

    def _rows(self, users: Users) -> ItemBatch:
        return self.training.of(users if self.own is None else np.searchsorted(self.own, users))


DOMAIN = L2Ball(10.0)  # of models, where none is given


@dataclass(frozen=True, eq=False, kw_only=True)
class TablePopulation(TableUsers):
    """All users of a table, with what figures of a simulation need."""

    held_out: ItemBatch = field(repr=False)
    encoding: Encoding
    usual: float | Vector  # the score, or K of them, that answers training items best if it is the same for all
    fit: Fit = field(repr=False)  # how the table fits its rules
    tested: NDArray[np.bool_] = field(repr=False)  # held-out items that are rows, and do not stand for none

    @property
    def total_users(self) -> int:
        """Number of users of the table, those held out among them."""
        return self.users + self.held_out.users

    @cached_property
    def _best(self) -> Vector:
        return self._honest.minimiser(self.domain, self._sample)

    @cached_property
    def _free(self) -> Vector:
        """The best model without a bound; where there is none, as of a linear loss, that of the domain."""
        if not on_boundary(self.domain, self._best) or not self._honest.has_infimum:
            return self._best
        model = self._honest.minimiser(free_ball(self.loss.feature_norm), self._sample)
        return model if ExcessLoss(self._honest, self._best).difference(model) < 0 else self._best

    @cached_property
    def _honest(self) -> TrainingObjective:
        honest = np.flatnonzero(self.corruption(np.arange(self.users)) == Corruption.HONEST)
        return TrainingObjective(self.training if len(honest) == self.users else self.training.of(honest), self.loss)

    @property
    def optimum(self) -> Vector:
        """Non-private minimiser over the domain of the mean over honest training users of their average loss."""
        return self._best.copy()

    def excess_risk(self, model: Vector) -> float:
        """Training objective of `model` (honest users) minus its infimum over all models, in the domain or not.

        Where no model is best, as for separable classes, the infimum is approached to 1e-9. A linear loss
        has none: there it is that over the domain.
        """
        return self._excess.difference(np.asarray(model, np.float64))

    @cached_property
    def _excess(self) -> ExcessLoss:
        return ExcessLoss(self._honest, self._free)

    @cached_property
    def _held_back(self) -> float:
        return 0.0 if self._free is self._best else max(0.0, self.excess_risk(self._best))

    def risk_by_sample(self, model: Vector) -> dict[str, float]:
        """The excess risk for a round of a run: exact where items are few, else by a sample, with its standard error.

        How far the sample's users' losses lie above their tangents at the best model, whose slope is known of
        everybody: an unbiased estimate, off by a share of itself, however small it is.
        """
        point, sample = np.asarray(model, np.float64), self._sampled_excess
        if sample is None:
            return {"excess_risk": self.excess_risk(point)}
        above, slope = sample.divergence(point), self._slope
        error = float(np.std(above, ddof=1)) * math.sqrt(1 / len(above) - 1 / self._honest.items.users)
        return {"excess_risk": float(np.mean(above) + slope @ (point - self._free)), "excess_risk_error": error}

    @cached_property
    def _slope(self) -> Vector:
        return self._honest.gradient(self._free)

    @cached_property
    def _sampled_excess(self) -> ExcessLoss | None:
        return None if self._sample is None else ExcessLoss(self._sample, self._free)

    @cached_property
    def _sample(self) -> TrainingObjective | None:
        """Honest users, drawn by the public seed, who hold about TRACED numbers; None where all of them are few."""
        items = self._honest.items
        few = max(FEWEST_TRACED, int(items.users * TRACED / max(1, items.features.size)))
        if few >= items.users:
            return None
        drawn = np.random.default_rng(self.seed).choice(items.users, few, replace=False)
        return TrainingObjective(items.of(np.sort(drawn)), self.loss)

    def test_metrics(self, model: Vector) -> dict[str, float]:
        """On usable items of held-out users: auc (of two classes), accuracy and log_loss, or rmse; empty without any.

        With the public range of a label, rmse is in the label's own units.
        """
        return self._figures(TrainingObjective(self.held_out, self.loss).scores(np.asarray(model, np.float64)))

    def _figures(self, scores: Vector) -> dict[str, float]:
        """Of scores of the held-out items, shape (N,), or (N, K) with an output for each class."""
        if not self.tested.any() or self.loss.name == "linear":
            return {}
        scores, labels = scores[self.tested], self.held_out.labels[self.tested]
        if self.loss.outputs > 1:
            return classes(scores, labels)
        if isinstance(self.loss, Classification):
            return binary(scores, labels)
        unit = self.encoding.label.unit if isinstance(self.encoding.label, Range) else 1.0
        return regression(unit * scores, unit * labels)

    def summary_fields(self, model: Vector) -> dict[str, Any]:
        """Return what a summary says beside a model's figures, and what is amiss.

        Figures of the start, of the best constant and of the optimum without a bound; what the bound costs.
        """
        items = len(self.held_out.labels)
        return {
            "test_start": self._figures(np.zeros((items, *np.shape(self.usual)))),
            "test_baseline": self._figures(np.tile(self.usual, (items, *(1 for _ in np.shape(self.usual))))),
            "test_unbounded": self.test_metrics(self._free),
            "held_back": self._held_back,
            "unfit_simulation_only": self.fit.unfit(self.encoding),
            "remarks_simulation_only": (
                *self.knowledge.assumptions,
                *self.fit.remarks(self.encoding),
                *about_boundary(self.domain, np.asarray(model, np.float64), self._best, self._held_back),
            ),
        }


def from_table(
    source: Any,
    encoding: Encoding,
    *,
    user: str,
    loss: Loss,
    domain: Domain = DOMAIN,
    test_fraction: float = 0.2,
    items_per_user: int | None = None,
    outliers: Outliers = ALL_HONEST,
    seed: int = 0,
) -> TablePopulation:
    """Return the users of a table as a population.

    `source` is a path (.csv, .parquet), a DataFrame or a pyarrow Table; what becomes of a row says `encoding`.
    `items_per_user` is the public nominal m; left out, it is 1.

    Raises DataError for a table that cannot be read, a missing column, a row without a user; ConfigError for arguments
    out of range and for labels that the loss does not take. No other value of a row is an error.
    """
    encoding.check_loss(loss)
    table = tables.read(source, (*encoding.columns, user))
    users, owners = group(table, user)
    training = trained(users, test_fraction, seed)
    sizes: dict[str, Any] = {"users": int(training.sum()), "items_per_user": items_per_user}
    declared = Declared.of_rows(encoding, loss, domain, **sizes)
    return population_of(declared, table, owners, training, encoding=encoding, outliers=outliers, seed=seed)


def population_of(
    declared: Declared,
    table: pa.Table,
    owners: Owners,
    training: NDArray[np.bool_],
    *,
    encoding: Encoding,
    outliers: Outliers,
    seed: int,
) -> TablePopulation:
    """Return a population of a table's rows, row i being that of user owners[i], with what is `declared` of it.

    `training` (users,) says who is trained on; the others are held out.
    """
    loss = declared.loss
    encoded = fused.encoded(encoding, table)
    users, chosen, held_out = len(training), np.flatnonzero(training), np.flatnonzero(~training)
    rows = np.bincount(owners[encoded.kept], minlength=users)
    usual = _usual(encoded.labels[encoded.kept & training[owners]], loss)
    whole = RowCounts(encoding, 1)
    whole.add(np.zeros(len(owners), np.int32), encoded.marks)
    everyone = encoded.batch(users, owners, np.concatenate([chosen, held_out]))
    asked = everyone.between(0, len(chosen))
    return TablePopulation(
        **declared.public() | {"users": len(chosen)},
        training=bounded(asked, loss) if loss.narrow else asked,
        held_out=everyone.between(len(chosen), users),
        encoding=encoding,
        usual=usual,
        fit=Fit(users, int(np.sum(rows == 0)), int(np.bincount(owners).max()), whole),
        tested=np.repeat(rows[held_out] > 0, np.maximum(rows[held_out], 1)),
        outliers=outliers,
        seed=seed,
    )


def trained(users: int, test_fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which users are trained on, (users,): all but round(test_fraction n), drawn by `seed`. DataError if nobody is."""
    ticket = words(seed=seed, purpose=Purpose.SPLIT, users=np.arange(users))[:, 0]
    chosen = np.ones(users, np.bool_)
    chosen[np.argsort(ticket, kind="stable")[: round(test_fraction * users)]] = False
    if not chosen.any():
        raise DataError(f"Expected a user to train on, got none of {users} with test_fraction={test_fraction}.")
    return chosen


def _usual(labels: Vector, loss: Loss) -> float | Vector:
    """Return the score that answers labels (N,) best whatever the row: log odds, a mean, or log shares (K,)."""
    if loss.outputs > 1:
        shares = np.bincount(labels.astype(np.int64), minlength=loss.outputs) / max(1, len(labels))
        return np.log(np.clip(shares, 1e-9, 1.0))
    if not len(labels):
        return 0.0
    if not isinstance(loss, Classification):
        return float(np.mean(labels))
    share = float(np.clip(np.mean(labels > 0), 1e-9, 1 - 1e-9))
    return float(np.log(share / (1 - share)))

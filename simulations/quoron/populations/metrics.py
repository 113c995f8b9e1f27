"""Figures of a linear classifier or regressor on a set of items."""

import numpy as np
import scipy
from numpy.typing import NDArray

Vector = NDArray[np.float64]


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


def constant(labels: Vector, *, two_classes: bool) -> float:
    """The one score that answers labels (N,) best: their log odds, or their mean."""
    if not len(labels):
        return 0.0
    if not two_classes:
        return float(np.mean(labels))
    share = float(np.clip(np.mean(labels > 0), 1e-9, 1 - 1e-9))
    return float(np.log(share / (1 - share)))


def class_odds(labels: Vector, classes: int) -> Vector:
    """The scores (K,) that answer class numbers (N,) best: log shares."""
    shares = np.bincount(labels.astype(np.int64), minlength=classes) / max(1, len(labels))
    return np.log(np.clip(shares, 1e-9, 1.0))


def auc(scores: Vector, positive: NDArray[np.bool_]) -> float:
    """Chance that a positive outscores a negative, ties counting half (Mann-Whitney)."""
    ones = int(positive.sum())
    zeros = len(positive) - ones
    return float((scipy.stats.rankdata(scores)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))

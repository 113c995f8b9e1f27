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


def regression(scores: Vector, labels: Vector) -> dict[str, float]:
    """Root mean squared error `rmse` of `scores` (N,)."""
    return {"rmse": float(np.sqrt(np.mean((scores - labels) ** 2)))}


def auc(scores: Vector, positive: NDArray[np.bool_]) -> float:
    """Chance that a positive outscores a negative, ties counting half (Mann-Whitney)."""
    ones = int(positive.sum())
    zeros = len(positive) - ones
    return float((scipy.stats.rankdata(scores)[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))

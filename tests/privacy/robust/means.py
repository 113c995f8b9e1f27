"""Outlier means with any ramp at one radius: for tests of their arithmetic, where no theorem is asked."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from quoron_privacy.robust.outlier_mean import Kind, Observation, OutlierMean


@dataclass(frozen=True)
class MeanAt:
    """An outlier mean whose answers are counted at `radius`."""

    mean: OutlierMean
    radius: float

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mean, name)

    def observe(self, points: np.ndarray, answered: np.ndarray, *, reference: np.ndarray) -> Observation:
        return self.mean.observe(points, answered, radius=self.radius, reference=reference)

    def aggregate(self, points: np.ndarray, weights: np.ndarray, *, reference: np.ndarray) -> np.ndarray:
        return self.mean.aggregate(points, weights, radius=self.radius, reference=reference)


def mean_at(cohort_size: int, radius: float, kind: Kind, ramp_low: int, ramp_high: int) -> MeanAt:
    return MeanAt(OutlierMean(kind, cohort_size, ramp_high, ramp_low, ramp_high, (1.0,), (1.0,)), radius)

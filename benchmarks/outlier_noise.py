"""How much noise outlier means need behind their tests, and the least cohort for which they are of use.

    python benchmarks/outlier_noise.py

σ/τ of one release, and of T releases on secret cohorts or with everybody asked; the least cohort with σ/τ <= 1/10, to
two per cent. At δ = 1e-6, of the weighted mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from quoron_privacy.errors import Infeasible
from quoron_privacy.robust import smooth_test, subsampled_test

DELTA = 1e-6
ONE = ((0.1, 2000), (0.5, 300), (1.0, 200), (1.0, 600), (2.0, 3000), (4.0, 600), (8.0, 3000), (12.0, 100))  # ε, C


@dataclass(frozen=True)
class Series:
    """T releases on cohorts that are drawn with this rate."""

    epsilon: float
    rate: float
    releases: int
    cohort: int

    def noise(self, cohort: int) -> float:
        """σ/τ; inf where there is no plan."""
        try:
            plan = subsampled_test.calibrate(
                self.epsilon, DELTA, users=round(cohort / self.rate), cohort_size=cohort, releases=self.releases
            )
        except Infeasible:
            return float("inf")
        return plan.noise_multiplier


MANY = (
    Series(0.2, 1.0, 10, 10_000), Series(0.5, 1.0, 50, 10_000), Series(1.0, 1.0, 50, 2000), Series(1.0, 0.1, 50, 1000),
    Series(1.0, 0.05, 100, 5000), Series(4.0, 1.0, 10, 1000), Series(8.0, 1.0, 50, 1000), Series(12.0, 0.01, 200, 1000),
)  # fmt: skip


def least(noise: Callable[[int], float], start: int, most: float = 0.1) -> int:
    """The least cohort whose noise is at most `most`, or a little more."""
    low, high = 2, start
    while noise(high) > most:
        low, high = high, 2 * high
    while high > max(low + 1, 1.02 * low):
        middle = (low + high) // 2
        low, high = (middle, high) if noise(middle) > most else (low, middle)
    return high


def main() -> None:
    """Three tables."""
    print("one release: epsilon, C, sigma/tau, least C with sigma/tau <= 0.1")
    for epsilon, size in ONE:
        noise = smooth_test.calibrate(epsilon, DELTA, size).noise_multiplier
        useful = least(partial(smooth_test.estimate, epsilon, DELTA), 8)
        print(f"{epsilon:6g}{size:8d}{noise:12.3g}{useful:8d}", flush=True)
    print("T releases: epsilon, rate, T, K, sigma/tau, least K with sigma/tau <= 0.1")
    for each in MANY:
        noise, useful = each.noise(each.cohort), least(each.noise, 64)
        print(f"{each.epsilon:6g}{each.rate:6g}{each.releases:6d}{each.cohort:8d}{noise:12.3g}{useful:8d}", flush=True)


if __name__ == "__main__":
    main()

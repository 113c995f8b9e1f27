"""The Laplace test of one release: is the cohort's average count, plus noise, at least the threshold?

    >>> from quoron_server.noise import SeededNoise
    >>> test = LaplaceTest(cohort_size=1000, threshold=700.0, scale=20.0)
    >>> test.decide(1_000_000, SeededNoise(1).stream("test", 0)), test.decide(500_000, SeededNoise(1).stream("test", 0))
    (True, False)

Decided between integers: with T = ⌈C · threshold⌉ and the integer score S, S + ⌊L⌋ >= T holds iff S + L >= T. So this
is the test with continuous noise L ~ Laplace(C · scale) and a threshold rounded up: rounding costs no privacy at all.

Source: Lowy, Liu & Asi (2024), Algorithm 1 lines 6 and 7. Theorem 5: docs/privacy/outlier-mean.md.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, nextafter

from quoron_protos.errors import ConfigError
from quoron_server._validate import count, positive
from quoron_server.algorithm import Release
from quoron_server.noise import RandomStream


def in_score_units(average: float, cohort_size: int) -> int:
    """⌈C · average⌉, exactly: a threshold for the integer score S from one for S / C."""
    return ceil(Fraction(average) * cohort_size)


def score_scale(scale: float, cohort_size: int) -> float:
    """C · scale, rounded up: the scale of noise on S from that of noise on S / C. ConfigError beyond 2⁵⁰."""
    widened = nextafter(scale * cohort_size, inf)
    if not widened <= 2.0**50:
        raise ConfigError(f"Expected cohort_size * scale <= 2**50, got {widened:g}.")
    return widened


@dataclass(frozen=True, slots=True)
class LaplaceTest:
    """Release iff S/C + Laplace(scale) >= threshold.

    Formal guarantee: (ε, δ) with threshold and scale as in Theorem 5, up to `noise.LAPLACE_SLACK` in total variation.
    """

    cohort_size: int  # C
    threshold: float  # θ, of the average count S / C
    scale: float  # b, in the same units

    def __post_init__(self) -> None:
        count(cohort_size=self.cohort_size)
        positive(threshold=self.threshold, scale=self.scale)
        score_scale(self.scale, self.cohort_size)

    def decide(self, score: int, stream: RandomStream) -> bool:
        """Whether to release a cohort of score S (a Python integer)."""
        noise = stream.laplace_steps(score_scale(self.scale, self.cohort_size), 1)
        return score + int(noise[0]) >= in_score_units(self.threshold, self.cohort_size)

    def entry(self) -> Release:
        """The ledger entry of one decision, whichever way it went."""
        parameters = {"cohort_size": self.cohort_size, "threshold": self.threshold, "scale": self.scale}
        return Release("laplace-test", parameters)

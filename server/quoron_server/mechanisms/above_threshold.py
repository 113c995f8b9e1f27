"""A test for many releases: cohorts pass while their noisy score stays above a noisy threshold; the first below halts.

    >>> from quoron_server.noise import SeededNoise
    >>> noise = SeededNoise(1)
    >>> test = AboveThreshold(cohort_size=1000, threshold=700.0, threshold_scale=20.0, score_scale=40.0)
    >>> limit = test.draw_limit(noise.stream("limit", 0))
    >>> passed = test.decide(1_000_000, limit, noise.stream("test", 1))
    >>> passed == limit, test.decide(1_000, passed, noise.stream("test", 2))
    (True, None)

All in integers of the score S: the threshold is C · θ rounded up, plus one for the grid, plus one secret draw a phase.

Source: Lowy, Liu & Asi (2024), Algorithm 4, with one draw of threshold noise for the whole phase. Theorem 6:
docs/privacy/subsampled-lottery.md.
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext

from quoron_server._validate import count, positive
from quoron_server.algorithm import Release
from quoron_server.mechanisms import laplace_test
from quoron_server.noise import RandomStream

_BITS = 96


@dataclass(frozen=True, slots=True)
class AboveThreshold:
    """Pass iff S_t/C + Laplace(score_scale) >= threshold + Laplace(threshold_scale); after one failure, never again.

    Formal guarantee: (ε, δ) with Theorem 6's numbers for users in at most r cohorts of a public schedule, up to
    `noise.LAPLACE_SLACK` a decision and 2⁻⁸⁸ for the threshold in total variation.
    """

    cohort_size: int  # C
    threshold: float  # θ, of the average count S / C
    threshold_scale: float  # b_ξ
    score_scale: float  # b_v

    def __post_init__(self) -> None:
        count(cohort_size=self.cohort_size)
        positive(threshold=self.threshold, threshold_scale=self.threshold_scale, score_scale=self.score_scale)
        for scale in (self.threshold_scale, self.score_scale):
            laplace_test.score_scale(scale, self.cohort_size)

    def draw_limit(self, stream: RandomStream) -> int:
        """The phase's noisy threshold. Draw it once a phase and keep it secret."""
        noise = _whole_laplace(laplace_test.score_scale(self.threshold_scale, self.cohort_size), stream)
        return laplace_test.in_score_units(self.threshold, self.cohort_size) + 1 + noise

    def decide(self, score: int, limit: int | None, stream: RandomStream) -> int | None:
        """`limit` again if a cohort of score S passes; None, which stays None, if it or an earlier one did not."""
        noise = stream.laplace_steps(laplace_test.score_scale(self.score_scale, self.cohort_size), 1)
        return limit if limit is not None and score + int(noise[0]) >= limit else None

    def entry(self) -> Release:
        """The ledger entry of one decision, whichever way it went."""
        scales = {"threshold_scale": self.threshold_scale, "score_scale": self.score_scale}
        return Release("above-threshold", {"cohort_size": self.cohort_size, "threshold": self.threshold, **scales})


def _whole_laplace(scale: float, stream: RandomStream) -> int:
    """⌊L⌋ for L ~ Laplace(scale), up to total variation 2⁻⁸⁸: cell by cell, unlike `laplace_steps`.

    |L|'s whole part is geometric, and the binary digits of a geometric variable are independent: digit i is one with
    odds exp(-2^i / scale).
    """
    magnitude, digit = 0, 0
    with localcontext() as context:
        context.prec = 60
        while odds := int((-(2**digit) / Decimal(scale)).exp() * 2**_BITS):
            magnitude += stream.weighted_choice((2**_BITS, odds)) << digit
            digit += 1
    return magnitude if stream.weighted_choice((1, 1)) else -magnitude - 1

"""One released gradient: a private test of the cohort, the mean without outliers, Gaussian noise.

    q_u = what the cohort answers;    r = a public reference, the last released gradient
    S   = #{(u, v) : ‖q_u - q_v‖ <= τ};   a private test of S decides whether anything is released
    g   = r + (mean of q_u - r, outliers weighing nothing) + N(0, σ² I)

or, without a test, g = r + (1/K) Σ clip_C(q_u - r) + N(0, σ² I).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from quoron_client.protocol.questions import Answers
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means.clipping import clipped_mean
from quoron_privacy.noise.streams import NoiseSource, RandomStream
from quoron_privacy.release import Release
from quoron_privacy.robust.above_threshold import AboveThreshold, Series
from quoron_privacy.robust.lottery import Lottery
from quoron_privacy.robust.subsampled_lottery import SubsampledLottery
from quoron_server.algorithm import Vector
from quoron_server.algorithms.accelerated_erm.parameters import Clipped

Decide = Callable[[int], tuple[bool, tuple[Release, ...]]]


class Numbers(Protocol):
    """What public numbers say of released gradients."""

    @property
    def users(self) -> int:
        """Whom cohorts are drawn from."""

    @property
    def cohort_size(self) -> int:
        """K."""

    @property
    def rounds(self) -> int:
        """How many gradients."""

    @property
    def radius(self) -> float:
        """τ, or C."""

    @property
    def accounting(self) -> SubsampledLottery | Series | Clipped:
        """The mechanism with its account."""

    @property
    def noise_scale(self) -> float:
        """σ."""

    @property
    def noise(self) -> GaussianNoise:
        """What is added."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of one cohort's answers."""

    gradient: Vector | None  # None: the test withheld it
    entries: tuple[Release, ...]
    diagnostics: dict[str, Any]  # functions of private data, for simulation only


def released_gradient(
    p: Numbers, answers: Answers, reference: Vector, noise: NoiseSource, round_: int, decide: Decide
) -> Outcome:
    """The gradient of one round; `decide` says of a score whether it is released, and what the ledger is told."""
    accounting, answered = p.accounting, int(np.sum(answers.answered))
    if isinstance(accounting, Clipped):
        with np.errstate(all="ignore"):  # an overflow is not finite, and left out: nothing in the data may warn
            residuals = answers.values - reference
        mean, clipped = clipped_mean(residuals, answers.answered, p.radius, accounting.cohort_size)
        gradient = reference + p.noise.release(mean, noise.stream("release", round_))
        return Outcome(gradient, (p.noise.entry(),), {"answered": answered, "clipped": clipped})
    mean_of = accounting.mean
    seen = mean_of.observe(answers.values, answers.answered, radius=p.radius, reference=reference)
    diagnostics = {
        "answered": answered,
        "concentration": seen.score / len(seen.weights) ** 2,
        "removed": answered - int(np.count_nonzero(seen.weights)),
    }
    passed, entries = decide(seen.score)
    if not passed:
        return Outcome(None, entries, diagnostics)
    weights = seen.weights
    if mean_of.kind == "random":
        weights = mean_of.include(weights, noise.stream("include", round_))
    shift = mean_of.aggregate(answers.values, weights, radius=p.radius, reference=reference)
    gradient = reference + p.noise.release(shift, noise.stream("release", round_))
    return Outcome(gradient, (*entries, p.noise.entry()), diagnostics)


def decision(
    test: Lottery | AboveThreshold | None, score: int, stream: RandomStream, *, limit: int, halted: bool
) -> tuple[bool, tuple[Release, ...]]:
    """Whether a step is released, and the ledger's entry; `halted`: the noisy threshold was missed before."""
    if test is None:
        return True, ()
    if not isinstance(test, AboveThreshold):
        return test.decide(score, stream), (test.entry(),)
    if halted:
        return False, ()
    return test.decide(score, limit, stream) is not None, (test.entry(),)

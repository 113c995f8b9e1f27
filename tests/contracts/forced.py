"""How `replay` forces each mechanism: each function is given the world and the method that it stands before."""

import math
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np

from contracts.charges import mean_of
from contracts.worlds import Charged, Complaint, Given, Spent, Stream, World
from quoron_client import randomisers
from quoron_client.randomisers import RangeBits, VectorNoise
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.histograms.min_cohort import MinCohort
from quoron_privacy.means.private_range import PrivateRange, bounded_range_mu, costs
from quoron_privacy.noise.streams import GRID_BITS, NoiseSource
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_privacy.robust.coordinate_median import MedianParameters
from quoron_privacy.robust.filter import concentration as outlier_filter
from quoron_privacy.robust.filter.concentration import cohort_scores
from quoron_privacy.robust.filter.thresholds import HiddenCutoff, LaplaceThreshold
from quoron_privacy.robust.laplace_gate import LaplaceGate
from quoron_privacy.robust.outlier_mean import OutlierMean
from quoron_privacy.robust.smooth_test import TICKETS, SmoothTest
from quoron_server.algorithms import min_cohort as min_cohorts
from quoron_server.algorithms.printed.lowy_erm import AboveThreshold


def _gaussian(world: World, release: Callable[..., Any]) -> Callable[..., Any]:
    def forced(self: GaussianNoise, value: np.ndarray, stream: Stream) -> np.ndarray:
        steps = np.rint(release(self, value, Given(0)) / self.step).astype(np.int64)
        public = stream.labels, self.sensitivity, self.scale, steps.shape
        first = world.meet("gaussian", public, steps, lambda: stream.gaussian_steps(steps.shape))
        world.spend("gaussian", first.private - steps)
        return release(self, value, Given(first.outcome + first.private - steps))

    return forced


def _prefix(world: World, release: Callable[..., Any]) -> Callable[..., Any]:
    def forced(
        self: PrefixNoise, state: Any, contribution: np.ndarray, noise: NoiseSource, name: str = "prefix"
    ) -> Any:
        total = release(self, state, contribution, Given(0), name)[1].total  # less what memory predicts of the noise
        public = name, state.round, self.sensitivity, self.scale, self.factorisation, total.shape
        seed = noise.stream(name, state.round)
        first = world.meet("prefix", public, total, lambda: seed.gaussian_steps(total.shape))
        world.spend("prefix", first.private - total)
        return release(self, state, contribution, Given(first.outcome + first.private - total), name)

    return forced


def _require_score(world: World, one: int, other: int, cohort_size: int) -> None:
    if abs(one - other) > 2 * (cohort_size - 1):
        raise Complaint(f"round {world.round}: the score moves from {one} to {other}, by more than 2(C - 1)")


def _require_core(world: World, score: int) -> None:
    """Below C k a noisy test lets hardly anything pass: the theorems take that off δ."""
    mean = mean_of(world.plan, world.round)
    if score < mean.cohort_size * mean.core:
        raise Charged("a score below C k")


def _smooth(world: World, decide: Callable[..., Any]) -> Callable[..., Any]:
    def forced(self: SmoothTest, score: int, stream: Stream) -> bool:
        public = stream.labels, self.cohort_size, self.core, self.table
        first = world.meet(
            "lottery", public, score, lambda: self.tickets(score) > 0 if world.lenient else decide(self, score, stream)
        )
        _require_score(world, first.private, score, self.cohort_size)
        one, other = (-1 if level is None else level for level in (self.level(first.private), self.level(score)))
        if abs(one - other) > 1:
            raise Complaint(f"round {world.round}: the smooth test's level moves from {one} to {other}")
        if self.tickets(score) in ((0,) if first.outcome else (TICKETS,)):
            raise Charged("the lowest level's chance")
        world.level = max(one, other)
        if first.outcome and world.level == 0:
            raise Charged("the lowest level's chance, wherever the means are")
        return bool(first.outcome)

    return forced


def _laplace_test(world: World, decide: Callable[..., Any]) -> Callable[..., Any]:
    def forced(self: LaplaceGate, score: int, stream: Stream) -> bool:
        public = stream.labels, self.cohort_size, self.threshold, self.scale
        first = world.meet("laplace-test", public, score, lambda: world.lenient or decide(self, score, stream))
        _require_score(world, first.private, score, self.cohort_size)
        _require_core(world, min(first.private, score))
        return bool(first.outcome)

    return forced


def _above_threshold(world: World, decide: Callable[..., Any]) -> Callable[..., Any]:
    def forced(self: AboveThreshold, score: int, limit: int, stream: Stream) -> bool:
        public = stream.labels, self.cohort_size, self.threshold, self.threshold_scale, self.score_scale
        first = world.meet(
            "above-threshold", public, score, lambda: world.lenient or decide(self, score, limit, stream)
        )
        _require_score(world, first.private, score, self.cohort_size)
        _require_core(world, min(first.private, score))
        return bool(first.outcome)

    return forced


def _limit(world: World, draw: Callable[..., Any]) -> Callable[..., Any]:
    def forced(self: AboveThreshold, stream: Stream) -> int:
        return int(world.meet("limit", (stream.labels, self), None, lambda: draw(self, stream)).outcome)

    return forced


def _include(world: World, include: Callable[..., Any]) -> Callable[..., Any]:
    """One uniform number a slot decides in both worlds; of the others, as many differ as outlier-mean#o2 counts."""

    def forced(self: OutlierMean, weights: np.ndarray, stream: Stream) -> np.ndarray:
        with world.opened():
            chosen = include(self, weights, stream)
        first = world.meet("inclusion", (stream.labels, self), (weights, chosen), lambda: None)
        others = np.arange(self.cohort_size) != (-1 if world.row is None else world.row)
        moved = int(np.max(np.abs(first.private[0] - weights)[others], initial=0))
        if moved > 1:
            raise Complaint(f"round {world.round}: another user's weight moves by {moved} steps of the ramp")
        world.flips = int(np.sum((first.private[1] != chosen)[others]))
        return np.asarray(chosen)

    return forced


def _range(world: World, choose: Callable[..., Any]) -> Callable[..., Any]:
    def forced(self: PrivateRange, counts: np.ndarray, stream: Stream) -> int:
        public = stream.labels, self.epsilon, self.bins, self.half_width
        first = world.meet("range", public, counts.copy(), lambda: choose(self, counts, stream))
        moved = costs(first.private) - costs(counts)
        if np.max(np.abs(moved)) > 1:
            raise Complaint(f"round {world.round}: a bin's cost moves by more than one")
        # ln W moves by ε/2 a cost: between one way and the other ε apart, and half of that if all move one way.
        used = bounded_range_mu(self.epsilon * int(np.ptp(moved)) / 2) ** 2 if np.ptp(moved) else 0.0
        world.spent.append(Spent(world.round, "range", used))
        return int(first.outcome)

    return forced


def _thresholds(world: World, limits: Callable[..., Any]) -> Callable[..., Any]:
    """The same noise for everybody in both worlds."""

    def forced(self: LaplaceThreshold, shape: Any, stream: Stream) -> np.ndarray:
        drawn = world.meet("thresholds", (stream.labels, self), None, lambda: limits(self, shape, stream)).outcome
        world.tests = (math.ceil(self.threshold / self.grid) - drawn) * self.grid
        return np.asarray(drawn)

    return forced


def _filter(world: World, decide: Callable[..., Any]) -> Callable[..., Any]:
    """Others decide alike, the own user by the same noise in both worlds (docs/privacy/outlier-filter.md#f1)."""

    def forced(rows: np.ndarray, answered: np.ndarray, tau: float, thresholds: np.ndarray, *, step: float) -> Any:
        p, own = world.plan.parameters.filter, world.row
        decided = decide(rows, answered, tau, thresholds, step=step)
        scores = cohort_scores(rows, answered, tau)
        first = world.meet("filter", (tau, step, thresholds), (decided.kept, scores), lambda: None)
        others = np.arange(len(scores)) != (-1 if own is None else own)
        moved = float(np.max(np.abs(first.private[1] - scores)[others])) + 2 * step  # rounding to the grid
        if moved > p.decision_epsilon * p.laplace_scale:
            raise Complaint(f"round {world.round}: another user's score moves by {moved}, more than Δ + 2 kerr")
        kept = first.private[0].copy()
        if own is not None:
            noise = float(world.tests[own])
            near = p.threshold - p.others_tail - p.score_error  # k2
            if noise > p.own_tail or (kept & others & (np.minimum(scores, first.private[1]) <= near)).any():
                raise Charged("the tails w1 and w2")
            kept[own] = decided.kept[own]
            world.own = bool(first.private[0][own]), bool(kept[own]), noise
            world.cutoff = int(first.private[0][own]) - int(kept[own])
        return outlier_filter.Decisions(kept, 0, scores)

    return forced


def _median_test(world: World, decide: Callable[..., Any]) -> Callable[..., Any]:
    del decide  # it draws by a mechanism that is forced by itself elsewhere

    def drawn(test: LaplaceThreshold, score: float, stream: Stream) -> bool:
        steps = float(stream.laplace_steps(test.scale / test.grid, 1)[0])
        return world.lenient or score + steps * test.grid > test.threshold

    def forced(self: MedianParameters, score: float, stream: Stream) -> bool:
        first = world.meet("median-test", (stream.labels, self), score, lambda: drawn(self.test, score, stream))
        moved = abs(first.private - score)
        if moved > self.test_sensitivity:
            raise Complaint(
                f"round {world.round}: the score moves by {moved}, more than Δ + 2 kerr = {self.test_sensitivity}"
            )
        if min(first.private, score) < self.floor - 2:
            raise Charged("a score below core · B")
        return bool(first.outcome)

    return forced


def _cutoff(world: World, draw: Callable[..., Any]) -> Callable[..., Any]:
    def forced(self: HiddenCutoff, stream: Stream) -> int:
        first = world.meet("cutoff", (stream.labels, self.centre, self.decay), None, lambda: draw(self, stream))
        cutoff, world.cutoff = int(first.outcome) + world.cutoff, 0
        if not 1 <= cutoff <= self.largest:
            raise Charged("the ends of the cutoff's law")
        return cutoff

    return forced


def _min_cohort(world: World, decide: Callable[..., Any]) -> Callable[..., Any]:
    """The same decision in both worlds; min-cohort#q1 is about counts that one user moves by one."""

    def forced(min_cohort: MinCohort, answered: int, asked: int, limit: int, stream: Stream) -> bool:
        public = stream.labels, min_cohort, asked
        first = world.meet("min_cohort", public, answered, lambda: decide(min_cohort, answered, asked, limit, stream))
        moved = abs(first.private - answered)
        if moved > 1:
            raise Complaint(f"round {world.round}: the minimum cohort's count moves by {moved}")
        world.counted += moved
        if not min_cohort.threshold_scale and world.counted > min_cohort.participations:
            raise Complaint(
                f"round {world.round}: the minimum cohort's count moves in more than {min_cohort.participations} rounds"
            )
        return bool(first.outcome)

    return forced


def _min_cohort_limit(world: World, draw: Callable[..., Any]) -> Callable[..., Any]:
    def forced(min_cohort: MinCohort, stream: Stream) -> int:
        return int(
            world.meet(
                "minimum cohort limit", (stream.labels, min_cohort), None, lambda: draw(min_cohort, stream)
            ).outcome
        )

    return forced


def _vector_report(world: World, randomise: Callable[..., Any]) -> Callable[..., Any]:
    """A client's own noise; only the neighbour's report has anything to be forced."""

    def forced(self: VectorNoise, values: np.ndarray, centre: np.ndarray, randomness: Any, **where: Any) -> np.ndarray:
        def report(steps: Any) -> np.ndarray:
            with patch.object(randomisers, "gaussian_steps", lambda *_, **__: np.broadcast_to(steps, values.shape)):
                return np.asarray(randomise(self, values, centre, randomness, **where))

        step = self.scale(values.shape[1]) * 2.0**-GRID_BITS
        steps = np.rint((report(np.int64(0)) - centre) / step).astype(np.int64)
        drawn = randomisers.gaussian_steps
        public = self, centre, where
        first = world.meet(
            "report", public, steps, lambda: drawn(values.shape[1], randomness, **where).astype(np.int64)
        )
        world.spend("report", first.private - steps)
        return report(first.outcome + first.private - steps)

    return forced


def _range_report(world: World, randomise: Callable[..., Any]) -> Callable[..., Any]:
    def forced(self: RangeBits, values: np.ndarray, randomness: Any, **where: Any) -> np.ndarray:
        bins = self.indices(values)
        public = self, where
        first = world.meet("bits", public, bins, lambda: randomise(self, values, randomness, **where))
        odds = math.log((2**64 - self.flips) / self.flips)  # two bits change
        if (first.private != bins).any() and not 2 * odds <= self.epsilon:
            raise Complaint(f"round {world.round}: bits cost {2 * odds}, more than {self.epsilon}")
        return np.asarray(first.outcome)

    return forced


FORCED: tuple[tuple[Any, str, Callable[[World, Callable[..., Any]], Callable[..., Any]]], ...] = (
    (GaussianNoise, "release", _gaussian),
    (PrefixNoise, "release", _prefix),
    (SmoothTest, "decide", _smooth),
    (LaplaceGate, "decide", _laplace_test),
    (AboveThreshold, "decide", _above_threshold),
    (AboveThreshold, "draw_limit", _limit),
    (OutlierMean, "include", _include),
    (PrivateRange, "choose", _range),
    (LaplaceThreshold, "limits", _thresholds),
    (outlier_filter, "decide", _filter),
    (HiddenCutoff, "draw", _cutoff),
    (MedianParameters, "decide", _median_test),
    (min_cohorts, "decide", _min_cohort),
    (min_cohorts, "draw_limit", _min_cohort_limit),
    (VectorNoise, "randomise", _vector_report),
    (RangeBits, "randomise", _range_report),
)

"""Public numbers, shapes and plans for which nothing is proved are refused, each by its name."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from privacy.references import always
from quoron_privacy import local
from quoron_privacy.accounts import gdp, lifetime, roots, subsampling
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.histograms import min_cohort
from quoron_privacy.histograms.data_quality import DataQuality
from quoron_privacy.histograms.held_out import HeldOut
from quoron_privacy.histograms.private_bounds import CELLS, MARKS, EstimatedBounds, marks, share_for
from quoron_privacy.histograms.weighted_histogram import WeightedHistogram
from quoron_privacy.means import private_range, rotation, silo_sums
from quoron_privacy.means.adaptive_mean import AdaptiveMean
from quoron_privacy.means.clipping import ClippedSum, clipped_mean
from quoron_privacy.means.free_counts import ColumnSum, NormCountSum, ShapedMomentSum
from quoron_privacy.means.private_range import PrivateRange, WinsorisedMean, box_sensitivity
from quoron_privacy.mechanisms import OutlierMean
from quoron_privacy.noise.streams import SecureNoise, SeededNoise
from quoron_privacy.prefix.noise import LONGEST, PrefixNoise
from quoron_privacy.robust import laplace_gate, smooth_test, subsampled_test
from quoron_privacy.robust import outlier_mean as outliers
from quoron_privacy.robust.coordinate_median import trimmed_mean
from quoron_privacy.robust.filter import concentration, outlier_filter
from quoron_privacy.robust.filter.concentration import decide
from quoron_privacy.robust.filter.thresholds import LaplaceThreshold
from quoron_privacy.robust.outlier_mean import neighbour_counts
from quoron_privacy.selection.price import Selection
from quoron_privacy.selection.trials import Trials
from quoron_privacy.two_servers import seals, specification
from quoron_privacy.two_servers.specification import Block, MechanismSpec, RoundSpec

NAN, STREAM = math.nan, SeededNoise(1).stream("refused")
ONE, TWO, THREE = (np.ones(size, bool) for size in (1, 2, 3))
MADE = {
    "estimates": EstimatedBounds.calibrate(users=1000, columns=3, names=2, share=0.3, epsilon=2.0, delta=1e-6),
    "data_quality": DataQuality.for_mu(users=50, columns=3, labels=2, mu=0.5, adjacency="replace-one"),
    "coins": outliers.random_inclusion(200, 160),
}
CRUDE, COUNTED = PrivateRange(1.0, 8, 2.0), Block("sums", 1, 1, "norm-counts")


def estimates(**given: object) -> EstimatedBounds:
    sizes = {"users": 1000, "columns": 3, "names": 2, "share": 0.3, "epsilon": 2.0, "delta": 1e-6}
    return EstimatedBounds.calibrate(**(sizes | given))  # type: ignore[arg-type]


def coins(**given: object) -> float:
    return subsampling.poisson_round_mu(**({"rate": 0.1, "rounds": 2, "epsilon": 1.0, "delta": 1e-6} | given))  # type: ignore[arg-type]


def robust(**given: object) -> OutlierMean:
    usual = {"users": 1000, "dimension": 5, "outliers": 0.05, "spread": 0.1}
    return OutlierMean.calibrate(**(usual | {"epsilon": 2.0, "delta": 1e-6} | given))  # type: ignore[arg-type]


def prefix(**given: object) -> PrefixNoise:
    return PrefixNoise(**({"rounds": 4, "sensitivity": 1.0, "scale": 1.0} | given))  # type: ignore[arg-type]


def boxed(users: int, mu: float) -> WinsorisedMean:
    return WinsorisedMean.for_mu(users=users, crude=CRUDE, half_width=0.1, mu=mu, dimension=3)


def observed(radius: float, users: int, reference: float) -> object:
    rows, at = np.zeros((users, 2)), np.full(2, reference)
    return outliers.weighted_mean(6, 5).observe(rows, np.ones(users, bool), radius=radius, reference=at)


def decided(answered=THREE, tau=1.0, thresholds=np.zeros(3, np.int64), step=1.0):  # noqa: B008
    return decide(np.zeros((3, 2)), answered, tau, thresholds, step=step)


def several(words: str, call: Callable[..., object], *given: tuple | dict) -> list[tuple[str, Callable[[], object]]]:
    return [(words, partial(call, **own) if isinstance(own, dict) else partial(call, *own)) for own in given]


CONFIG: list[tuple[str, Callable[[], object]]] = [
    ("Expected epsilon", lambda: gdp.mu_for(-1.0, 1e-6)),
    ("Expected delta", lambda: gdp.mu_for(1.0, 1.5)),
    ("Expected mu", lambda: gdp.delta_for(-1.0, 1.0)),
    ("variation", lambda: lifetime.Charge("run", "all", 0.5, 1e-6, None, "replace-one", 1e-12)),
    ("variation", lambda: lifetime.Charge("run", "all", 0.5, 1e-6, 0.1, "replace-one", NAN)),
    *several("Expected", lifetime.Limit, ("all", 0.0, 1e-5, 0), ("all", 1, 1, 0), ("all", 1, 1e-5, 1.1)),
    ("rate", lambda: DominatingPair.sampled(1.2, 0.1, 3, "zero-out")),
    ("rounds", lambda: DominatingPair.sampled(0.2, 0.1, 0, "zero-out")),
    ("adjacency", lambda: DominatingPair.sampled(0.2, 0.1, 3, "none")),
    ("mu", lambda: DominatingPair.coins(0.2, 0.0, 3)),
    ("mu", lambda: DominatingPair.gaussian(0.0)),
    ("epsilon", lambda: DominatingPair.response(-1.0)),
    ("epsilon", lambda: DominatingPair.gaussian(0.1).delta(-0.1)),
    ("Expected", lambda: DominatingPair.table((0.2, 0.1), (0.5, 0.5))),
    ("Expected", lambda: DominatingPair.table((0.1, 0.2), (1.5, -0.5))),
    ("Expected", lambda: DominatingPair.table((0.1, 0.2), (1.0,))),
    ("Expected", lambda: DominatingPair.table((-3.0,), (1.0,))),
    ("places", lambda: DominatingPair.gaussian(30.0).and_(DominatingPair.response(1e-6, 100)).lattice(1e-12)),
    ("Expected rate", lambda: subsampling.wor_round_mu(1.2, 10, 1.0, 1e-6)),
    ("Expected rounds", lambda: subsampling.wor_round_mu(0.1, 0, 1.0, 1e-6)),
    ("Expected delta", lambda: subsampling.wor_round_mu(0.1, 10, 1.0, 0.0)),
    ("rate in", lambda: coins(rate=1.5)),
    ("delta", lambda: coins(delta=0.0)),
    ("min_cohort_epsilon=1 of epsilon=1", lambda: min_cohort.rest(1.0, 1e-6, 1.0)),
    *several("Expected", estimates, {"users": 0}, {"columns": -1}, {"names": 1.5}, {"share": 1.1}),
    ("Expected", lambda: estimates(columns=0, names=0)),
    ("Expected", lambda: estimates(adjacency="none")),
    ("a scale for each", lambda: replace(MADE["estimates"], scales=(1.0, 1.0, 1.0, 0.0))),
    (
        "marks of shape",
        lambda: MADE["estimates"].place_counts(np.zeros((5, 2, MARKS)), np.zeros((5, 2, MARKS), np.int8)),
    ),
    ("counts of 1 to 3 columns", lambda: MADE["estimates"].release_places(np.zeros((4, CELLS), np.int64), STREAM)),
    ("names of 1 to 2 columns", lambda: MADE["estimates"].release_names([], STREAM)),
    ("Expected", lambda: marks(np.ones(1), np.array([0, 1]), 3)),
    ("Expected", lambda: marks(np.ones(1), np.array([0.0]), 3)),
    ("Expected", lambda: marks(np.ones(1), np.array([3]), 3)),
    ("classes=1", lambda: HeldOut.calibrate(users=50, classes=1, epsilon=1.0, delta=1e-6)),
    ("one weight of each", lambda: WeightedHistogram(10, 1, 2, 1.0).held(*np.zeros((2, 2), int), np.full(2, 1 << 52))),
    ("10 users", lambda: WeightedHistogram(10, 1, 2, 1.0).held(np.array([10]), np.array([0]), np.array([1]))),
    ("weights of shape", lambda: WeightedHistogram(10, 1, 2, 1.0).release(np.zeros(2), STREAM)),
    ("Expected cells <=", lambda: WeightedHistogram(10, 1, 1 << 20, 1.0)),
    *several("Expected", partial(replace, MADE["data_quality"]), {"users": 0}, {"labels": 1.5}, {"scale": 0.0}),
    ("Expected", lambda: replace(MADE["data_quality"], adjacency="none")),
    (r"64 \* divisor rows", lambda: clipped_mean(np.ones((65, 1)), np.ones(65, bool), 1.0, 1)),
    ("centre of shape", lambda: ClippedSum(1.0, 9, centre=np.zeros(3)).of(np.zeros((1, 4)), ONE)),
    ("centre of shape", lambda: NormCountSum(1.0, 9, np.eye(4), np.zeros(3)).of(np.zeros((1, 4)), ONE)),
    ("windows", lambda: ColumnSum(9, np.zeros((2, 1)), 1.0, True)),
    ("windows", lambda: ColumnSum(9, np.array([[NAN], [1.0]]), 1.0, True)),
    ("windows", lambda: ColumnSum(9, np.zeros((1, 2)), 1.0, True)),
    ("rows of 6 numbers", lambda: ShapedMomentSum(2, np.eye(3), 1.0).of(np.ones((2, 9)), TWO)),
    ("vectors of shape", lambda: AdaptiveMean(5000, 3, 1.0, 0.24).release(np.zeros((3, 2)), THREE, STREAM, STREAM)),
    ("at most users=2", lambda: boxed(users=2, mu=9.0).release(np.zeros((3, 3)), THREE, np.ones(3), STREAM, STREAM)),
    ("adjacency", lambda: box_sensitivity(0.1, 10, 3, "add-remove")),
    *several("Expected", PrivateRange, (0.0, 4, 1.0), (2e3, 4, 1.0), (1.0, 0, 1.0), (1.0, 4, math.inf)),
    ("Expected counts of 8 coordinates", lambda: local.crude_mean(np.ones((4, 3), np.int64), 1.0, np.ones(5))),
    ("a coordinate for each report", lambda: local.count_bits(np.ones((3, 2)), THREE, np.zeros(2, int), 1)),
    ("got object", lambda: silo_sums.longest(object())),
    ("Expected rows of a power of two", lambda: rotation.rotate_back(np.ones((2, 6)), np.ones(6))),
    ("got zero bytes", lambda: SecureNoise(bytes(32))),
    *several("Expected scale", STREAM.laplace_steps, (2.0**51, 1), (0.0, 1), (NAN, 1)),
    ("chosen=4, size=3", lambda: STREAM.subset(3, 4)),
    *several("Expected chance", STREAM.bernoulli, (-0.1, 1), (1.1, 1), (NAN, 1)),
    *several("integer weights", STREAM.weighted_choice, ([],), ([0, 0],), ([3, -1],)),
    ("rounds", lambda: prefix(rounds=0)),
    ("rounds <=", lambda: prefix(rounds=LONGEST + 1)),
    ("sensitivity > 0", lambda: prefix(sensitivity=0.0)),
    ("Change the units", lambda: prefix(scale=1e-300, sensitivity=1e-300)),
    ("scale >= sensitivity / 16", lambda: prefix(scale=0.01)),
    ("factorisation='haar'", lambda: prefix(factorisation="haar")),
    (r"shape \(2,\), got \(3,\)", lambda: prefix().release(prefix().start(2), np.zeros(3), SeededNoise(1))),
    *several("Expected", LaplaceThreshold, (0.0, 1.0), (1.0, 1e12), (1.0, NAN)),
    *several("Expected", laplace_gate.LaplaceGate, (0, 5, 0.5, 6.0), (9, 5, 0.5, NAN), (9, 5, 0.0, 6.0)),

    ("shape", lambda: concentration.scores(np.zeros(3), 1.0)),
    ("answered", lambda: concentration.cohort_scores(np.zeros((3, 2)), TWO, 1.0)),
    ("at most", lambda: concentration.scores(np.zeros((2**19 + 1, 1)), 1.0)),
    ("step", lambda: decided(step=0.0)),
    ("thresholds", lambda: decided(thresholds=np.zeros(3))),
    ("answered", lambda: decided(answered=TWO)),
    ("tau", lambda: decided(tau=-1.0)),
    *several("trim=", partial(trimmed_mean, np.zeros((4, 1))), (-1,), (2,)),
    *several("Expected", smooth_test.SmoothTest, (9, 11, (0.5,)), *((9, 5, of) for of in ((), (0.0,), (1.5,), (NAN,)))),
    ("delta", lambda: smooth_test.calibrate(1.0, 0.0, 300)),
    ("cohort_size", lambda: smooth_test.calibrate(1.0, 1e-6, 0)),
    ("forgiven >= 0", lambda: smooth_test.calibrate(1.0, 1e-6, 300, forgiven=-1)),
    *several("radii", partial(neighbour_counts, np.zeros((3, 2)), THREE), ((),), ((0.0,),), ((NAN,),), ((1.0, 1e130),)),
    ("shape", lambda: neighbour_counts(np.zeros(3), THREE, (1.0,))),
    ("answered", lambda: neighbour_counts(np.zeros((3, 2)), TWO, (1.0,))),
    ("radius", lambda: observed(1e120, 6, 0.0)),
    ("shape", lambda: observed(1.0, 5, 0.0)),
    ("finite", lambda: observed(1.0, 6, NAN)),
    ("core <= cohort_size=10", lambda: outliers.weighted_mean(10, 11)),
    *several("outliers in", robust, {"outliers": -0.1}, {"outliers": 0.5}, {"outliers": NAN}),
    ("cohort_size", lambda: outlier_filter.calibrate(4.0, 1e-6, 0, 1.0, 25_000)),
    ("mean number of trials", lambda: Trials.negative_binomial(1.0)),
    ("shape", lambda: Trials.negative_binomial(4.0, shape=-1.0)),
    ("at most 10000 trials", lambda: Trials.negative_binomial(1e6)),
    ("add up to one", lambda: Trials((1, 2), "no law")),
    ("one pair or more", lambda: Selection(always(1), ())),
    *several("blocks", RoundSpec, ((),), ((COUNTED,),), ((COUNTED, Block("sums", 1, 1, "length")),)),
    ("blocks", lambda: RoundSpec((Block("shares", 3, 1, "norm-counts"), COUNTED))),
    ("unit", lambda: Block("sums", 1, (1 << 34) + 1, "clipped")),
    ("kind", lambda: Block("sums", 1, 1, "votes")),
    ("correlate", lambda: MechanismSpec((RoundSpec((Block("moment", 1, 1, "moment"),)),), "blt")),
    ("a key of", lambda: seals.seal(b"", bytes(32), b"")),
    ("bytes that are none", lambda: seals.seal(b"\xff" * seals.PUBLIC, b"s" * 32, b"")),
    ("odd", lambda: specification.noise_factor(4)),
    *several("means", specification.median, (np.zeros((0, 2)),), (np.zeros(3),), (np.array([[NAN]]),)),
]  # fmt: skip
INFEASIBLE: list[tuple[str, Callable[[], object]]] = [
    ("delta=1e-60", lambda: gdp.mu_for(1.0, 1e-60, gaussians=10)),
    (r"\w", lambda: WeightedHistogram.for_mu(users=10, groups=1, cells=1, mu=1e-12)),
    ("resolution", lambda: HeldOut.calibrate(users=10, classes=2, epsilon=15.0, delta=1e-50)),
    ("private ranges", lambda: boxed(users=10, mu=0.1)),
    ("below the resolution", lambda: private_range.calibrate(
        "none", users=20_000, dimension=10, bound=1.0, spread=1e-4, mu=1e-9
    )),
    ("mu=1e-09", lambda: PrefixNoise.for_mu(rounds=8, sensitivity=1.0, mu=1e-9, dimension=10)),
    ("core=50", lambda: outliers.weighted_mean(100, 50)),
    ("core >= 68", lambda: outliers.random_inclusion(100, 67, 67)),
    ("users do not tell", lambda: share_for(users=100, columns=12, names=1, epsilon=2.0, delta=1e-6)),
    (r"users >= \d+", lambda: AdaptiveMean(100, 10, 1.0, 0.24)),
    ("n >= ", lambda: robust(users=50, epsilon=1.0)),
    ("fewer outliers", lambda: robust(outliers=0.4)),
    ("too many", lambda: robust(users=10**6)),
    ("<= 2 fails", lambda: outlier_filter.calibrate(4.0, 1e-6, 2500, 2.5, 25_000)),
    ("delta_slack", lambda: outlier_filter.calibrate(4.0, 1e-6, 2500, 1.0, 25_000, delta_slack=1e-6)),
    (r"cohort_size >= \d+", lambda: outlier_filter.calibrate(4.0, 1e-6, 500, 1.0, 5000)),
    (r"delta >= 2\.22e-12", lambda: subsampled_test.calibrate(
        4.0, 1e-12, users=10_000, cohort_size=10_000, releases=10_000
    )),
]  # fmt: skip
NOT_VERIFIED: list[tuple[str, Callable[[], object]]] = [
    ("B <= k - 1", lambda: outliers.verify_outlier_mean(replace(outliers.random_inclusion(100, 68, 67), core=67))),
    ("weights, or coins", lambda: outliers.verify_outlier_mean(replace(MADE["coins"], kind="other"))),
    ("Expected weights", lambda: outliers.certified_shifts(MADE["coins"], np.array([32_000]))),
    ("positive total weight", lambda: outliers.certified_shifts(outliers.weighted_mean(40, 30), np.array([800]))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "calls"),
    [(ConfigError, CONFIG), (Infeasible, INFEASIBLE), (VerificationError, NOT_VERIFIED)],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_what_nothing_is_proved_of_is_refused_by_name(error, calls):
    for words, call in calls:
        with pytest.raises(error, match=words):
            call()


def test_a_root_between_ends_of_one_sign_or_of_no_number_is_refused():
    for words, function in (("different signs", lambda x: x * x), ("Expected a number", lambda x: NAN)):
        with pytest.raises(ValueError, match=words):
            roots.root(function, 1.0, 2.0)

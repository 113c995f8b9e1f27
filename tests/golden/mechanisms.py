"""What the parts of `quoron_privacy` say of themselves: accounts, prices, counts, learnt means, tests and filters."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from golden.plain import plain
from privacy import first_account
from privacy.references import always, vector_delta
from quoron_privacy.accounts import gdp, lifetime, subsampling
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import Infeasible
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.histograms import data_quality, held_out, min_cohort, private_bounds
from quoron_privacy.histograms.weighted_histogram import (
    WeightedHistogram,
    count_of,
    mean_of,
    needed,
    quantile_of,
    thirds,
)
from quoron_privacy.means import adaptive_mean, private_range, rotation
from quoron_privacy.means.adaptive_mean import AdaptiveMean, enough_users
from quoron_privacy.mechanisms import OutlierMean
from quoron_privacy.noise import streams
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.prefix.noise import PrefixNoise
from quoron_privacy.release import Adjacency, sum_bits
from quoron_privacy.robust import coordinate_median, laplace_gate, outlier_mean, smooth_test
from quoron_privacy.robust import subsampled_test as sampled
from quoron_privacy.robust.filter import concentration, outlier_filter, thresholds
from quoron_privacy.selection.price import Selection
from quoron_privacy.selection.trials import Trials

EPSILONS = (0.1, 1.0, 4.0)
ADJACENCIES: tuple[Adjacency, ...] = ("replace-one", "zero-out")
LATTICES = "gaussian", "sampled, there or not", "approximate", "gaussian and choices", "sampled often", "choices"
SEARCHES = (Trials.negative_binomial(10.0), always(3))


def _drawn() -> Any:
    return np.random.Generator(np.random.Philox(key=11))


def _stream() -> Any:
    return SeededNoise(6).stream("golden")


def _refused(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Infeasible as error:
        return str(error)


def _held() -> list[held_out.HeldOut]:
    sizes = [(classes, kind) for classes in (0, 2, 7) for kind in ADJACENCIES]
    return [
        held_out.HeldOut.calibrate(users=400, classes=classes, epsilon=1.0, delta=1e-6, adjacency=kind)
        for classes, kind in sizes
    ]


def _mu(held: held_out.HeldOut) -> float:
    return gdp.compose(*(mu for _, mu in held.releases()))


def _pairs() -> Mapping[str, DominatingPair]:
    gaussian, sampled_ = DominatingPair.gaussian(0.7), DominatingPair.sampled(0.05, 0.9, 20, "replace-one")
    return {
        "gaussian": gaussian,
        "sampled, replaced": sampled_,
        "sampled, there or not": DominatingPair.sampled(0.3, 0.5, 4, "zero-out"),
        "coins, one user replaced": DominatingPair.coins(0.2, 0.5, 3),
        "a choice": DominatingPair.response(0.5),
        "approximate": DominatingPair.approximate(0.5, 1e-7),
        "sampled often": DominatingPair.sampled(0.1, 0.3, 300, "replace-one"),
        "choices": DominatingPair.response(0.2).and_(DominatingPair.response(0.2)).and_(DominatingPair.response(0.4)),
        "gaussian and sampled": gaussian.and_(sampled_),
        "gaussian and choices": gaussian.and_(DominatingPair.response(0.2)).and_(DominatingPair.response(0.1)),
    }


def _account(pair: DominatingPair) -> Any:
    return {
        "delta": [pair.delta(epsilon) for epsilon in EPSILONS],
        "epsilon": [pair.epsilon(delta) for delta in (1e-3, 1e-6)],
        "mu": pair.mu,
    }


def _lattice(pair: DominatingPair) -> Any:
    made = pair.lattice()
    return [len(made.laws), *(float(made.delta(epsilon)) for epsilon in EPSILONS)]


def _lifetime() -> Any:
    limit = lifetime.Limit("everyone", 9.0, 1e-4, gaussian_share=0.5)
    account, charges = limit.account(), []
    for run in range(4):
        mu = (None, 0.3, 0.4, 0.2)[run]
        charge = lifetime.Charge(f"run {run}", "everyone", 0.7, 1e-6, mu, variation=0.0 if mu is None else 1e-12)
        charges.append(charge)
        account = account.after(charge)
    spent = [lifetime.compose(charges, delta) for delta in (None, 1e-6, 1e-4)]
    left = (
        account.largest_epsilon(1e-6),
        account.largest_epsilon(0.0, "zero-out"),
        account.largest_delta,
        account.largest_mu(1e-12),
        account.largest_lost,
    )
    numbers = [float(number) if isinstance(number, Fraction) else number for number in left]
    return [spent, numbers, account.words(), account.left_words()]


def _searches() -> Any:
    bases = (
        (DominatingPair.gaussian(0.4),),
        (DominatingPair.gaussian(0.3), DominatingPair.sampled(0.1, 0.5, 5, "replace-one")),
    )
    selections = [Selection(trials, pairs) for trials in SEARCHES for pairs in bases]
    return [[each.epsilon(1e-6), each.trial_epsilon(1e-6), each.delta(2.0)] for each in selections]


def _spread(running: bool) -> Any:
    cells = WeightedHistogram.for_mu(users=5_000, groups=3, cells=8, mu=0.5, running=running)
    draw = _drawn()
    weights = np.sort(draw.integers(0, 400, (3, 8)), axis=None).reshape(3, 8) / 5_000.0
    return [
        [cells.scale, GaussianNoise(cells.sensitivity, cells.scale).effective_mu(24), cells.sensitivity],
        [quantile_of(np.cumsum(row), share, cells) for row in weights for share in (0.1, 0.5, 0.9)],
        count_of(0.3, users=5_000, scale=cells.scale),
        [mean_of(found, scale=cells.scale) for found in (weights[0, :3], np.zeros(3), np.array([0, 0, 0.9]))],
        [needed("cells", groups=3, cells=8, unit=4.0, share=share) for share in (0.02, 0.5)],
    ]


def _places() -> Any:
    return _drawn().integers(0, 60, (3, 2 * private_bounds.ZERO + 1)).astype(float)


def _interval() -> Any:
    edges = adaptive_mean.bins_around(1.0, 1000.0, 200.0)
    draw = _drawn()
    values = np.concatenate([draw.normal(3.0, 1.0, 2_000), draw.normal(400.0, 5.0, 40)])
    shares = np.histogram(values, edges)[0] / len(values)
    deviations = np.full(len(shares), 1e-3)
    found = adaptive_mean.interval_of(shares, deviations, edges, 1.0, 1.0)
    narrow = adaptive_mean.narrow_of(shares, edges, found, len(values), 1.0)
    nodes = adaptive_mean.nodes_of(found, 1000.0)
    rows = adaptive_mean.rows_of(values[:, None], found, narrow, nodes)
    means = rows.mean(axis=0)
    return [found, narrow, nodes, means, adaptive_mean.interval_combined(means, found, narrow, 1.0)]


def _learnt() -> Any:
    made = []
    sizes = ((1, 0.0, None), (1, 900.0, 2.0), (4, 3.0, None), (4, 200.0, 5.0), (30, 50.0, None), (200, 1.0, None))
    for dimension, far, spread in sizes:
        draw = _drawn()
        rows = draw.normal(far, np.geomspace(0.1, 30.0, dimension), (4_000, dimension))
        rows[:40] += 300.0
        mean = AdaptiveMean(4_000, dimension, 1e4, 1.5, spread)
        noise = SeededNoise(5)
        made.append(mean.release(rows, np.ones(4_000, bool), noise.stream("noise"), noise.stream("pairs")))
    return [*made, [enough_users(d, mu) for d in (1, 8) for mu in (0.2, 2.0)]]


def _filters() -> Any:
    found = outlier_filter.calibrate(4.0, 1e-6, 3_000, 0.01, 60_000)
    least = [outlier_filter.smallest_cohort(e, 1e-6, 0.01) for e in EPSILONS[1:]]
    laws = [thresholds.cutoff_law(20, 0.2), thresholds.end_mass(20, 0.2)]
    return [found, least, laws]


def _decided() -> Any:
    rows = _drawn().normal(size=(700, 5))
    rows[:9] += 40.0
    view, here = concentration.observe(rows, concentration.middle(rows)), np.ones(700, bool)
    scores = concentration.cohort_scores(rows, here, 1.5)
    kept = scores > np.median(scores)
    return [
        concentration.score_summary(scores),
        concentration.score_summary(concentration.cohort_scores(rows, here, 1.5, norm="linf")),
        concentration.lower_bounds(rows, 1.5, view.centre, concentration._ends(view, 1.5)),
        concentration.upper_bounds(view, 1.5),
        concentration.filtered_mean(rows, kept),
        [concentration.score_error(size, 5) for size in (100, 10_000)],
    ]


LAPLACE = laplace_gate.LaplaceOneShot(
    outlier_mean.weighted_mean(4000, 3911),
    laplace_gate.LaplaceGate(4000, 3911, 4.499155939211172, 3972.039509064424),
    0.001846372010835459,
)


def _tests() -> Any:
    one = smooth_test.calibrate(2.0, 1e-6, 2_000)
    few = sampled.calibrate(2.0, 1e-6, users=20_000, cohort_size=2_000, releases=10)
    return [
        [shot.noise_multiplier for shot in (one, LAPLACE, few)],
        [one.test.chance(share * 4_000_000 // 100) for share in (60, 90, 97, 99, 100)],
        [LAPLACE.test.chance(share * 16_000_000 // 100) for share in (60, 90, 97, 99, 100)],
        [smooth_test.verify_one_shot(one, 2.0, 1e-6), laplace_gate.verify_laplace_gate(LAPLACE, 2.0, 1e-6)],
        [sampled.verify_subsampled(few, 2.0, 1e-6), sampled.subsampled_delta(few, 1.0)],
        smooth_test.estimate(2.0, 1e-6, 2_000),
    ]


def _prefix() -> Any:
    sizes: dict[str, Any] = {"rounds": 24, "sensitivity": 1.0, "mu": 0.5, "dimension": 3}
    made = [PrefixNoise.for_mu(**sizes, factorisation=kind) for kind in ("blt", "banded", "tree")]
    return [[noise.scale, noise.column_norm, noise.max_std] for noise in made]


def _robust() -> Any:
    sizes: dict[str, Any] = {"users": 9_000, "dimension": 4, "spread": 1.0, "outliers": 0.01}
    made = OutlierMean.calibrate(2.0, 1e-6, **sizes)
    return [made.radius, made.account, made.noise]


def _drawn_noise() -> Any:
    stream = SeededNoise(9).stream("golden")
    return [
        [
            math.log2(slack)
            for slack in (streams.GAUSSIAN_SLACK, streams.LAPLACE_SLACK, streams.total_variation(gaussians=1))
        ],
        stream.gaussian_steps(500),
        [stream.laplace_steps(scale, 200) for scale in (0.7, 40.0, 1e6)],
        stream.bernoulli(0.3, 100).astype(int),
        stream.poisson_subset(1_000, 0.1),
        stream.permutation(50),
    ]


MECHANISMS: Mapping[str, Callable[[], Any]] = {
    "gdp": lambda: [
        [gdp.delta_for(mu, e) for mu in (0.1, 1.0, 6.0) for e in EPSILONS],
        [gdp.epsilon_for(mu, d) for mu in (0.1, 1.0, 6.0) for d in (1e-9, 1e-3)],
        [gdp.mu_for(e, 1e-6) for e in EPSILONS],
        [gdp.pure_mu(e) for e in EPSILONS],
    ],
    "sampling": lambda: [
        [first_account.wor_epsilon(rate, 10, 0.8, 1e-6) for rate in (0.01, 0.5, 1.0)],
        [subsampling.wor_round_mu(rate, 10, 1.0, 1e-6) for rate in (0.01, 0.5, 1.0)],
        [first_account.poisson_epsilon(0.1, 10, 0.8, 1e-6, kind) for kind in ADJACENCIES],
    ],
    **{f"pair, {name}": (lambda pair=pair: _account(pair)) for name, pair in _pairs().items()},
    **{f"lattice, {name}": (lambda name=name: _lattice(_pairs()[name])) for name in LATTICES},
    "a lifetime": _lifetime,
    "searches": _searches,
    "running counts": lambda: _spread(True),
    "counts": lambda: _spread(False),
    "weights of users": lambda: thirds(np.array([3, 0, 7, 1]), np.array([0.2, 0.9, 0.5, 1.0])),
    "windows": lambda: [
        made := private_bounds.of_places(_places(), np.full(3, 2_000.0), 9.0),
        private_bounds.ranges(made),
        around := private_bounds.of_places(
            _places() * (np.arange(2 * private_bounds.ZERO + 1) == private_bounds.ZERO), np.ones(3), 0.1
        ),
        [private_bounds.of_cells(_drawn().integers(0, many, (3, 40)).astype(float), around, 2.0) for many in (30, 900)],
        private_bounds.cells(np.array([-1.0, 0.0, 0.49, 0.5, 1.0, np.nan]), 0.0, 1.0, 2),
    ],
    "estimates": lambda: [
        [
            private_bounds.share_for(users=n, columns=5, names=2, epsilon=e, delta=1e-6)
            for n in (2_000, 90_000)
            for e in EPSILONS[1:]
        ],
        [
            _refused(lambda n=n: private_bounds.share_for(users=n, columns=5, names=2, epsilon=1.0, delta=1e-6))
            for n in (90, 300)
        ],
        made := private_bounds.EstimatedBounds.calibrate(
            users=5_000, columns=5, names=2, epsilon=2.0, delta=1e-6, share=0.3
        ),
        [made.errors(columns=columns, names=names) for columns in (1, 5) for names in (0, 2)],
        [made.threshold, made.charged, made.mu],
    ],
    "people held out": lambda: [
        _held(),
        [
            [means, means.pair, means.errors, means.releases(), means.release(_drawn().random((390, 2)), _stream())]
            for means in (
                held_out.HeldMeans.calibrate(users=400, figures=2, epsilon=1.0, delta=1e-6, adjacency=kind)
                for kind in ADJACENCIES
            )
        ],
        [[held.pair, _mu(held), held.pair.variation, held.releases()] for held in _held()],
        [held_out.cells_for(signal) for signal in (1.0, 30.0, 900.0)],
        [held_out.waves(8, 0.5).sum(axis=0), held_out.parts_told(4)],
    ],
    "min_cohorts": lambda: [
        made := min_cohort.calibrate(0.5, 0.4, (900, 900, 800), participations=2, rest=min_cohort.rest(2.0, 1e-6, 0.4)),
        min_cohort.chances(made, (900, 900, 800)),
        min_cohort.exact(0.5, (900, 800), participations=1, rest=(2.0, 1e-6)),
        [min_cohort.rest(e, 1e-6, 0.05 * e) for e in EPSILONS],
        [min_cohort.spent_on(0.5, e, None) for e in EPSILONS],
    ],
    "table health": lambda: [
        [data_quality.share_for(users=n, columns=6, labels=2, mu=0.5) for n in (500, 90_000)],
        made := replace(data_quality.DataQuality.for_mu(users=3_000, columns=6, labels=2, mu=0.2), share=0.05),
        [made.errors, made.visible, made.threshold(0.1) if callable(made.threshold) else made.threshold],
        [data_quality.looked_at(n) for n in (100, 10**7)],
    ],
    "an interval": _interval,
    "learnt means": _learnt,
    "lengths": lambda: [
        [adaptive_mean.shells_of(2.0, 1e4, d) for d in (1, 30)],
        [adaptive_mean.reach(3.0, 10.0, 0.2, d) for d in (1, 30)],
        adaptive_mean.edges_of(2.0, 1e4),
        adaptive_mean.stands_out(np.array([0.1, 1.0, 50.0]), np.array([1e-3, 1e-3, 1e-2]), 12),
        adaptive_mean.turned(np.array([0.5, 3.0, 900.0]), 2.0, 50.0),
        adaptive_mean.joined(0.2, 0.7),
    ],
    "private ranges": lambda: [
        [private_range.bounded_range_mu(e) for e in EPSILONS],
        [private_range.range_epsilon(users=n, bins=64, choices=128, failure=1e-3) for n in (2_000, 90_000)],
        [
            private_range.calibrate(kind, users=9_000, dimension=4, bound=50.0, spread=1.0, mu=1.0)
            for kind in ("none", "gaussian", "range")
        ],
        rotation.coordinate_bound(2.0, dimension=12, rows=900, failure=1e-3),
    ],
    "local reports": lambda: [
        [vector_delta(radius=1.0, scale=3.0, dimension=5, epsilon=e) for e in EPSILONS],
    ],
    "prefix sums": _prefix,
    "filters": _filters,
    "scores": _decided,
    "tests of outliers": _tests,
    "a robust mean": _robust,
    "medians": lambda: [
        made := coordinate_median.calibrate(4.0, 1e-6, 2_000, 0.01, 1.0),
        coordinate_median.verify(made, 4.0, 1e-6),
        [coordinate_median.calibrate(e, 1e-6, 4_000, eta, 1.0) for e, eta in ((2.0, 0.005), (8.0, 0.02))],
        [
            [mean(_drawn().normal(size=(users, 3)), trim) for users, trim in ((60, 9), (60, 29), (61, 30))]
            for mean in (coordinate_median.trimmed_mean, partial(coordinate_median.debiased_mean, radius=0.5))
        ],
    ],
    "samplers": _drawn_noise,
    "bits of sums": lambda: [sum_bits(*sizes) for sizes in ((1, 1), (60, 1), (300, 300), (10**6, 10**9))],
}


def mechanisms(_: Path, name: str) -> Iterator[tuple[str, Any]]:
    """All numbers of a part."""
    yield name, json.loads(json.dumps(plain(MECHANISMS[name]())))

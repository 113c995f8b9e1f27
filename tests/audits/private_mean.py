"""Audits of the private mean in the central model: ranges, two releases, the mean that learns.

The exponential mechanism is also enumerated exactly (test_private_range.py), which says more than sampling can.
"""

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
from scipy.special import log_ndtr

from audits.harness import Audit, case, events
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means import adaptive_mean
from quoron_privacy.means.clipping import clipped_mean
from quoron_privacy.means.private_range import PrivateRange, calibrate, costs, weights
from quoron_privacy.noise.streams import SeededNoise

DRAWS, EPSILON, DELTA, USERS, HUGE = 150_000, 1.0, 1e-3, 8, 1e6
MU, HERE = gdp.mu_for(EPSILON, DELTA), np.ones(USERS, bool)
at_delta = partial(events, delta=DELTA)


def rows_of(own, others=0.0, columns=1):
    """Users at `others`, and the own user."""
    rows = np.full((USERS, columns), others)
    rows[3] = own
    return rows


def range_audits():
    """Five users, one of whom moves from one end to the other: the bins differ most in likelihood there."""

    def world(counts, number, spent):
        """Independent choices of the same range, by the exact integer weights."""
        whole = weights(costs(np.array(counts)), spent)
        below = np.cumsum([float(weight / sum(whole)) for weight in whole])
        stream = SeededNoise(number + 1).stream("choice")
        return lambda draws: np.searchsorted(below[:-1], stream.uniform(draws), side="right")

    yield Audit(
        "private range",
        1.0,
        events(world, ends=([3, 0, 2], [2, 0, 3]), delta=0.0, draws=DRAWS),
        {f"ε {epsilon}": case(spent=epsilon, claim=epsilon, least=0.3) for epsilon in (1.0, 3.0)},
        {f"four times ε {epsilon}": case(spent=4 * epsilon, claim=epsilon) for epsilon in (1.0, 3.0)},
    )


def two_release_audits():
    """Others at zero, the own user at ±HUGE: the first mean moves by L/n either way, the second by C/n.

    Eight users are too few for a useful centre, which is where most could go wrong: a third of μ² for it.
    """
    honest = calibrate("gaussian", users=USERS, dimension=1, bound=1.0, spread=0.5, mu=MU)
    alone = calibrate("none", users=USERS, dimension=1, bound=1.0, spread=None, mu=MU).noise.scale

    def world(own, number, mean=honest, clips=True):
        """The two releases of many runs, reduced to the log-likelihood ratio of the worst pair."""

        def draw(runs):
            source = SeededNoise(71 + number)
            first, _ = clipped_mean(rows_of(own), HERE, mean.bound if clips else math.inf, USERS)
            centre = mean.crude.release(np.full(runs, first[0]), source.stream("first"))
            # Others are clipped around the centre too: known to the observer, who sees the centre.
            end = np.sign(own) * mean.radius if clips else own
            last = mean.noise.release(np.full(runs, end / USERS), source.stream("last"))
            shifts = mean.bound / USERS, mean.radius / USERS
            return centre * shifts[0] / mean.crude.scale**2 + last * shifts[1] / mean.noise.scale**2

        return draw

    def scaled(last, first=honest.crude.scale):
        return replace(honest, noise=replace(honest.noise, scale=last), crude=replace(honest.crude, scale=first))

    yield Audit(
        "private mean of two releases",
        EPSILON,
        at_delta(world, ends=(HUGE, -HUGE), draws=DRAWS),
        {"as calibrated": case(least=0.6)},
        {
            "a quarter of the noise": case(mean=scaled(honest.noise.scale / 4)),
            "a first release that is not charged": case(mean=scaled(alone * honest.radius, alone), draws=400_000),
            "no clip": case(clips=False),
        },
    )


def whole_audits():
    """Rotation, ranges, clip and noise. Little power against the sound one; the broken twin is caught all the same."""
    mean = calibrate("none", users=USERS, dimension=2, bound=1.0, spread=None, mu=MU * 0.8)
    half = MU * 0.6 / math.sqrt(2) / 2
    crude = PrivateRange(2 * float(log_ndtr(half) - log_ndtr(-half)), 8, 1.0)

    def world(own, number, strengthen=1.0):
        assert math.hypot(crude.mu(2), mean.noise.effective_mu(2)) <= MU
        stronger = replace(crude, epsilon=crude.epsilon * strengthen)
        whole = replace(mean, crude=stronger, noise=replace(mean.noise, scale=mean.noise.scale / strengthen))

        def draw(runs):
            streams = [SeededNoise(81 + number).stream("noise", run) for run in range(runs)]
            rows = rows_of(own, 0.1, columns=2)
            return np.array(
                [whole.release(rows, HERE, each, SeededNoise(1).stream("public")).sum() for each in streams]
            )

        return draw

    yield Audit(
        "private mean with ranges",
        EPSILON,
        at_delta(world, ends=(HUGE, -HUGE), draws=500),
        {"as calibrated": case()},
        {"a tenth of the noise": case(strengthen=10.0)},
    )


FEW = (adaptive_mean, "LEAST", 0.0), (adaptive_mean, "MOST_PLACES", 64)  # the latter public, and quicker


def learnt_run(columns, own, number, run):
    """A mean that learns, of eight users, which it would refuse for their own good; others are near one another."""
    mean = adaptive_mean.AdaptiveMean(USERS, columns, 1.0, MU)
    rows = np.tile(np.linspace(0.1, 0.11, USERS)[:, None], columns)
    rows[3] = own
    noise, public = SeededNoise(61 + number).stream("n", run), SeededNoise(1).stream("p", run)
    return mean.release(rows, HERE, noise, public)


def learnt_audits():
    """All releases of the mean that learns, run after run."""
    statistics = {"value": lambda mean: mean.value[0], "radius": lambda mean: mean.radius}

    @cache
    def sound_runs(columns, own, number, runs):
        return [learnt_run(columns, own, number, run) for run in range(runs)]

    def world(own, number, statistic, columns=1, sound=False):
        def draw(runs):
            if sound:  # two statistics look at them
                means = sound_runs(columns, own, number, runs)
            else:
                means = [learnt_run(columns, own, number, run) for run in range(runs)]
            return np.array([statistics[statistic](mean) for mean in means])

        return draw

    for_mu, shares, interval_of = GaussianNoise.for_mu, adaptive_mean._Transcript.shares, adaptive_mean.interval_of
    with_lengths, bins_of, seen = adaptive_mean.with_lengths, adaptive_mean.bins_of, []

    def counted(self, edges, mu):
        """One column's users are counted and not released with noise,"""
        shares(self, edges, mu)
        return np.histogram(self.rows, edges)[0] / USERS

    def around_all(shares, noise, edges, scale, unit):
        """and none of them left out."""
        return interval_of(shares, noise * 1e-9, edges, scale, unit * 1e-9)

    def kept_lengths(centre, radius, edges):
        """Shares of lengths are counted"""
        of = with_lengths(centre, radius, edges)

        def kept(values):
            rows = of(values)
            seen.append(rows[:, 2:].mean(axis=0))
            return rows

        return kept

    def of_true_lengths(noisy, scale, *rest):
        """and not released with noise."""
        return bins_of(seen.pop(), 1e-9, *rest)

    quiet = GaussianNoise, "for_mu", lambda mu, **of: for_mu(mu=64 * mu, **of)
    yield Audit(
        "mean that learns",
        EPSILON,
        at_delta(world, ends=(0.1, HUGE), draws=300),
        {
            f"{statistic} of {columns}": case(*FEW, statistic=statistic, columns=columns, sound=True)
            for statistic in statistics
            for columns in (1, 2)
        },
        {f"a 64th of the noise of {k}": case(*FEW, quiet, statistic="value", columns=k) for k in (1, 2)}
        | {
            "an interval of true shares": case(
                *FEW,
                (adaptive_mean._Transcript, "shares", counted),
                (adaptive_mean, "interval_of", around_all),
                statistic="radius",
            ),
            "a radius of true lengths": case(
                *FEW,
                (adaptive_mean, "with_lengths", kept_lengths),
                (adaptive_mean, "bins_of", of_true_lengths),
                statistic="radius",
                columns=2,
            ),
        },
    )

    edges = np.array([0.1, 1.0, 2.0, 3.0, 4.0])

    def look(own, number, edges=edges, statistic=lambda shown: shown[:, 0] - shown[:, -1]):
        """Shares of users in parts of bins of length: one user moves from the first part to the last."""

        def draw(runs):
            transcript = adaptive_mean._Transcript(
                rows_of(own, 0.3, columns=2), HERE, SeededNoise(51 + number).stream("look")
            )
            return statistic(np.array([transcript.lengths(np.zeros(2), edges, MU) for _ in range(runs)]))

        return draw

    released = adaptive_mean._Transcript._released

    def every_part(self, shares, divisor, mu):
        """Users count in every part that they are beyond."""
        return released(self, np.cumsum(shares[::-1])[::-1], divisor, mu)

    yield Audit(
        "shares of lengths",
        EPSILON,
        at_delta(look, ends=(0.3, 2.5), draws=20_000),
        {"as released": case(least=0.2)},
        {
            "users who count in every part": case(
                (adaptive_mean._Transcript, "_released", every_part),
                edges=np.append(0.0, np.geomspace(0.5, 4.0, 40)),
                statistic=lambda shown: shown.sum(axis=1),
                draws=3_000,
            )
        },
    )


def shape_audits():
    """Second moments: one user moves from one diagonal to the other, whose numbers off the diagonal are opposite."""

    def world(side, number):
        def draw(runs):
            transcript = adaptive_mean._Transcript(
                rows_of([9.0, 9.0 * side], columns=2), HERE, SeededNoise(51 + number).stream("m")
            )
            return np.array([transcript.moment(np.zeros(2), 1.0, MU)[0, 1] for _ in range(runs)])

        return draw

    sensitivity = adaptive_mean.acute_sensitivity
    quiet = adaptive_mean, "acute_sensitivity", lambda *sizes: sensitivity(*sizes) / 16
    yield Audit(
        "second moments around a centre",
        EPSILON,
        at_delta(world, ends=(1, -1), draws=10_000),
        {"as released": case(least=0.2)},
        {"a 16th of the noise": case(quiet, draws=1_000)},
    )


def far_away_audits():
    """The last release: one user far away to one side, or to the other. What is at nodes is told times √2."""
    found = adaptive_mean.Interval(-1.0, 1.0, 0.0, 0.0, 0.0, (-1.0, 1.0))
    nodes, shells = adaptive_mean.nodes_of(found, 100.0), adaptive_mean.shells_of(1.0, 100.0, 2)

    def mean(transcript, columns):
        if columns == 1:
            narrow, size = adaptive_mean.Narrow(0.0, 0.5, 1.0, 0.0), 2 * len(nodes)
            rows = partial(adaptive_mean.rows_of, found=found, narrow=narrow, nodes=nodes)
            value, _ = transcript.mean(rows, size, MU, lengths=size - 2)
            return value[2:].reshape(2, -1)[:, :2].sum(axis=1) @ [1.0, -1.0]
        near = adaptive_mean.with_narrow(np.zeros(2), 1.0, 0.5)
        far = adaptive_mean.with_shells(np.zeros(2), 1.0, shells)
        value, _ = transcript.mean(near, 4 + 3 * len(shells), MU, lengths=len(shells), far=far)
        return value[4:6].sum()

    def world(side, number, columns):
        own = side * 0.99 * (nodes[2] if columns == 1 else shells[0] / math.sqrt(2))

        def draw(runs):
            transcript = adaptive_mean._Transcript(
                rows_of(own, columns=columns), HERE, SeededNoise(51 + number).stream("last")
            )
            return np.array([mean(transcript, columns) for _ in range(runs)])

        return draw

    clipped = adaptive_mean.ClippedSum.of

    def added_after(self, rows, here):
        """As if each part of a row were of norm one by itself, and all together more."""
        return clipped(self, rows, here) + clipped(self, rows, here) + clipped(self, rows, here)

    yield Audit(
        "users far away",
        EPSILON,
        at_delta(world, ends=(1, -1), draws=20_000),
        {
            "1 columns": case(columns=1, least=0.2, draws=13_000),
            "2 columns": case(columns=2, least=0.2),
        },
        {
            "nodes that count for six": case((adaptive_mean, "_ROOT", 6.0), columns=1, draws=2_000),
            "shells that are added after the clip": case(
                (adaptive_mean.ClippedSum, "of", added_after), columns=2, draws=4_000
            ),
        },
    )


AUDITS = [
    *range_audits(),
    *two_release_audits(),
    *whole_audits(),
    *learnt_audits(),
    *shape_audits(),
    *far_away_audits(),
]

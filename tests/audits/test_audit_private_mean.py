"""Audits of the private mean in the central model, on worst-case neighbours, and of its broken twins.

The exponential mechanism is also enumerated exactly (test_private_range.py), which says more than sampling can. Every
bound here is wrong with probability at most `harness.FAILURE` = 1e-8.
"""

import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means import learnt_interval, learnt_mean, learnt_radii
from quoron_privacy.means.clipping import clipped_mean
from quoron_privacy.means.private_range import PrivateRange, bounded_range_epsilon, costs, weights
from quoron_privacy.means.truncated_mean import calibrate
from quoron_privacy.noise.sources import SeededNoise
from quoron_privacy.robust import robust_mean
from quoron_privacy.robust.lottery import TICKETS

DRAWS = 150_000
EPSILON, DELTA = 1.0, 1e-3
USERS = 8
HUGE = 1e6


def choices(counts, epsilon, seed):
    """Many independent choices of the same range, by the exact integer weights."""
    whole = weights(costs(np.array(counts)), epsilon)
    below = np.cumsum([float(weight / sum(whole)) for weight in whole])
    return lambda draws: np.searchsorted(below[:-1], SeededNoise(seed).stream("choice").uniform(draws), side="right")


def range_audit(claimed, spent):
    """Five users, one of whom moves from one end to the other: the bins differ most in likelihood there."""
    worlds = choices([3, 0, 2], spent, 1), choices([2, 0, 3], spent, 2)
    return epsilon_lower_bound(*worlds, delta=0.0, draws=DRAWS) - claimed


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_a_private_range_never_exceeds_its_claimed_epsilon(epsilon):
    assert -0.7 * epsilon < range_audit(epsilon, epsilon) <= 0


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_audit_catches_a_range_at_four_times_its_epsilon(epsilon):
    assert range_audit(epsilon, 4 * epsilon) > 0


def honest():
    """Eight users are too few for a useful centre, which is where most could go wrong: a third of μ² for it."""
    mu = gdp.mu_for(EPSILON, DELTA)
    return calibrate("gaussian", users=USERS, dimension=1, bound=1.0, spread=0.5, mu=mu)


def world(mean, own, seed, *, clips=True):
    """The two releases of many runs, reduced to the log-likelihood ratio of the worst pair, as `release` makes them.

    Others sit at zero. The own user is at ±HUGE: the first mean moves by L/n either way, the second by C/n.
    """

    def draw(runs):
        source = SeededNoise(seed)
        rows = np.zeros((USERS, 1))
        rows[3] = own
        answered = np.ones(USERS, bool)
        first, _ = clipped_mean(rows, answered, mean.bound if clips else math.inf, USERS)
        centre = mean.crude.release(np.full(runs, first[0]), source.stream("first"))
        ends = np.sign(own) * mean.radius if clips else own
        # Others are clipped around the centre too: known to the observer, who sees the centre.
        last = mean.noise.release(np.full(runs, ends / USERS), source.stream("last"))
        shifts = mean.bound / USERS, mean.radius / USERS
        return centre * shifts[0] / mean.crude.scale**2 + last * shifts[1] / mean.noise.scale**2

    return draw


def audit(mean, draws=DRAWS, **keywords):
    worlds = (world(mean, own, 71 + i, **keywords) for i, own in enumerate((HUGE, -HUGE)))
    return epsilon_lower_bound(*worlds, delta=DELTA, draws=draws)


def test_two_releases_together_never_exceed_the_claimed_epsilon():
    assert 0.6 < audit(honest()) <= EPSILON


def test_the_audit_catches_a_quarter_of_the_noise():
    mean = honest()
    assert audit(replace(mean, noise=replace(mean.noise, scale=mean.noise.scale / 4))) > EPSILON


def test_the_audit_catches_a_first_release_that_is_not_charged():
    mean, alone = (
        honest(),
        calibrate("none", users=USERS, dimension=1, bound=1.0, spread=None, mu=gdp.mu_for(1.0, DELTA)),
    )
    last = replace(mean.noise, scale=alone.noise.scale * mean.radius)
    first = replace(mean.crude, scale=alone.noise.scale)
    assert audit(replace(mean, noise=last, crude=first), draws=400_000) > EPSILON


def test_the_audit_catches_a_missing_clip():
    assert audit(honest(), clips=False) > EPSILON


def ranged(mean, own, seed):
    """The whole estimator with private ranges, run after run."""

    def draw(runs):
        rows = np.full((USERS, 2), 0.1)
        rows[3] = own
        released = np.empty(runs)
        for run in range(runs):
            noise = SeededNoise(seed).stream("noise", run)
            value = mean.release(rows, np.ones(USERS, bool), noise, SeededNoise(1).stream("public"))
            released[run] = value.sum()
        return released

    return draw


class TestWholeEstimator:
    """Rotation, ranges, clip and noise. Little power against the sound one; the broken twin is caught all the same."""

    RUNS = 500

    def found(self, strengthen):
        mean = calibrate("none", users=USERS, dimension=2, bound=1.0, spread=None, mu=gdp.mu_for(EPSILON, DELTA) * 0.8)
        crude = PrivateRange(bounded_range_epsilon(gdp.mu_for(EPSILON, DELTA) * 0.6 / math.sqrt(2)), 8, 1.0)
        assert math.hypot(crude.mu(2), mean.noise.effective_mu(2)) <= gdp.mu_for(EPSILON, DELTA)
        crude = replace(crude, epsilon=crude.epsilon * strengthen)
        whole = replace(mean, crude=crude, noise=replace(mean.noise, scale=mean.noise.scale / strengthen))
        worlds = (ranged(whole, own, 81 + i) for i, own in enumerate((HUGE, -HUGE)))
        return epsilon_lower_bound(*worlds, delta=DELTA, draws=self.RUNS)

    def test_it_never_exceeds_the_claimed_epsilon(self):
        assert self.found(1.0) <= EPSILON

    def test_the_audit_catches_a_tenth_of_the_noise(self):
        assert self.found(10.0) > EPSILON


@cache
def learnt_runs(columns, own, seed, runs):
    """Values and radii of sound runs, which two statistics look at."""
    told = [TestLearntMean.run(columns, own, seed, run) for run in range(runs)]
    return {"value": [mean.value[0] for mean in told], "radius": [mean.radius for mean in told]}


class TestLearntMean:
    """All releases of the mean that learns, run after run; eight users, which it would refuse for their own good."""

    RUNS = 300

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        monkeypatch.setattr(learnt_mean, "LEAST", 0.0)
        monkeypatch.setattr(learnt_interval, "MOST_PLACES", 64)  # public, and quicker

    @staticmethod
    def run(columns, own, seed, run):
        """Others are within a hundredth of the bound of one another."""
        mean = learnt_mean.LearntMean(USERS, columns, 1.0, gdp.mu_for(EPSILON, DELTA))
        rows = np.tile(np.linspace(0.1, 0.11, USERS)[:, None], columns)
        rows[3] = own
        noise, public = SeededNoise(seed).stream("n", run), SeededNoise(1).stream("p", run)
        return mean.release(rows, np.ones(USERS, bool), noise, public)

    def found(self, statistic, columns=1):
        def world(own, seed):
            return lambda runs: np.array([statistic(self.run(columns, own, seed, run)) for run in range(runs)])

        return epsilon_lower_bound(world(0.1, 61), world(HUGE, 62), delta=DELTA, draws=self.RUNS)

    @pytest.mark.parametrize("columns", [1, 2])
    @pytest.mark.parametrize("statistic", ["value", "radius"])
    def test_it_never_exceeds_the_claimed_epsilon(self, statistic, columns):
        def world(own, seed):
            return lambda runs: np.array(learnt_runs(columns, own, seed, runs)[statistic])

        assert epsilon_lower_bound(world(0.1, 61), world(HUGE, 62), delta=DELTA, draws=self.RUNS) <= EPSILON

    @pytest.mark.parametrize("columns", [1, 2])
    def test_the_audit_catches_a_sixty_fourth_of_the_noise(self, columns, monkeypatch):
        honest = GaussianNoise.for_mu
        monkeypatch.setattr(GaussianNoise, "for_mu", lambda mu, **of: honest(mu=64 * mu, **of))
        assert self.found(lambda mean: mean.value[0], columns) > EPSILON

    def test_the_audit_catches_an_interval_of_true_shares(self, monkeypatch):
        """As if one column's users were counted and not released with noise, and none of them left out."""

        def counted(self, edges, mu):
            honest(self, edges, mu)
            return np.histogram(self.rows, edges)[0] / USERS

        honest, chosen = learnt_mean._Told.shares, learnt_interval.interval_of
        monkeypatch.setattr(learnt_mean._Told, "shares", counted)

        def around_all(shares, noise, edges, scale, unit):
            return chosen(shares, noise * 1e-9, edges, scale, unit * 1e-9)

        monkeypatch.setattr(learnt_interval, "interval_of", around_all)
        assert self.found(lambda mean: mean.radius) > EPSILON

    def test_the_audit_catches_a_radius_of_true_lengths(self, monkeypatch):
        """As if the shares of lengths were counted and not released with noise."""
        honest, seen = learnt_mean.with_lengths, []

        def row(centre, radius, edges):
            of = honest(centre, radius, edges)

            def kept(values):
                rows = of(values)
                seen.append(rows[:, 2:].mean(axis=0))
                return rows

            return kept

        def bins_of(noisy, scale, *rest):
            return from_released(seen.pop(), 1e-9, *rest)

        from_released = learnt_radii.bins_of
        monkeypatch.setattr(learnt_mean, "with_lengths", row)
        monkeypatch.setattr(learnt_radii, "bins_of", bins_of)
        assert self.found(lambda mean: mean.radius, columns=2) > EPSILON


class TestLookAtTheEdge:
    """Shares of users in parts of bins of length: one user moves from the first part to the last."""

    EDGES = np.array([0.1, 1.0, 2.0, 3.0, 4.0])

    def found(self, statistic, draws=20_000):
        def world(at, seed):
            rows = np.full((USERS, 2), 0.3)
            rows[3] = at

            def draw(runs):
                stream, mu = SeededNoise(seed).stream("look"), gdp.mu_for(EPSILON, DELTA)
                told = learnt_mean._Told(rows, np.ones(USERS, bool), stream)
                shown = np.array([told.lengths(np.zeros(2), self.EDGES, mu) for _ in range(runs)])
                return statistic(shown)

            return draw

        return epsilon_lower_bound(world(0.3, 51), world(2.5, 52), delta=DELTA, draws=draws)

    def test_it_never_exceeds_the_claimed_epsilon(self):
        assert 0.2 < self.found(lambda shown: shown[:, 0] - shown[:, -1]) <= EPSILON

    def test_the_audit_catches_users_who_count_in_every_part_that_they_are_beyond(self, monkeypatch):
        honest = learnt_mean._Told._released

        def released(self, shares, divisor, mu):
            return honest(self, np.cumsum(shares[::-1])[::-1], divisor, mu)

        monkeypatch.setattr(learnt_mean._Told, "_released", released)
        monkeypatch.setattr(TestLookAtTheEdge, "EDGES", np.append(0.0, np.geomspace(0.5, 4.0, 40)))
        assert self.found(lambda shown: shown.sum(axis=1), draws=5_000) > EPSILON


class TestUsersFarAway:
    """The last release: one user far away to one side, or to the other. What is at nodes is told times √2."""

    FOUND = learnt_interval.Interval(-1.0, 1.0, 0.0, 0.0, 0.0, (-1.0, 1.0))
    NODES = learnt_interval.nodes_of(FOUND, 100.0)
    SHELLS = learnt_radii.shells_of(1.0, 100.0, 2)

    def mean(self, told, columns, mu):
        if columns == 1:
            narrow, size = learnt_interval.Narrow(0.0, 0.5, 1.0, 0.0), 2 * len(self.NODES)
            rows = partial(learnt_interval.rows_of, found=self.FOUND, narrow=narrow, nodes=self.NODES)
            mean, _ = told.mean(rows, size, mu, lengths=size - 2)
            return mean[2:].reshape(2, -1)[:, :2].sum(axis=1) @ [1.0, -1.0]
        near, far = (
            learnt_mean.with_narrow(np.zeros(2), 1.0, 0.5),
            learnt_mean.with_shells(np.zeros(2), 1.0, self.SHELLS),
        )
        mean, _ = told.mean(near, 4 + 3 * len(self.SHELLS), mu, lengths=len(self.SHELLS), far=far)
        return mean[4:6].sum()

    def found(self, columns, draws):
        def world(at, seed):
            rows = np.zeros((USERS, columns))
            rows[3] = at

            def draw(runs):
                told = learnt_mean._Told(rows, np.ones(USERS, bool), SeededNoise(seed).stream("last"))
                return np.array([self.mean(told, columns, gdp.mu_for(EPSILON, DELTA)) for _ in range(runs)])

            return draw

        at = 0.99 * (self.NODES[2] if columns == 1 else self.SHELLS[0] / math.sqrt(2))
        return epsilon_lower_bound(world(at, 51), world(-at, 52), delta=DELTA, draws=draws)

    @pytest.mark.parametrize("columns", [1, 2])
    def test_they_never_exceed_the_claimed_epsilon(self, columns):
        assert 0.2 < self.found(columns, 20_000) <= EPSILON

    def test_the_audit_catches_nodes_that_count_for_six(self, monkeypatch):
        monkeypatch.setattr(learnt_mean, "_ROOT", 6.0)
        assert self.found(1, 4_000) > EPSILON

    def test_the_audit_catches_shells_whose_parts_are_added_after_the_clip(self, monkeypatch):
        """As if each part of a row were of norm one by itself, and all together more."""
        honest = learnt_mean.ClippedSum.of

        def of(self, rows, here):
            return honest(self, rows, here) + honest(self, rows, here) + honest(self, rows, here)

        monkeypatch.setattr(learnt_mean.ClippedSum, "of", of)
        assert self.found(2, 4_000) > EPSILON


class TestRobustMean:
    """Test and release together. Score, weights and mean are the mechanism's, coins and noise its samplers'."""

    USERS = 300
    SILENT = 1e12
    MEAN = robust_mean.calibrate(
        users=300, dimension=1, bound=1e6, spread=1.0, outliers=0.05, epsilon=EPSILON, delta=DELTA
    )

    def rows(self, own, strays=0):
        """Users at zero but for strays, far from everybody, and the own user."""
        rows = np.zeros((self.USERS, 1))
        rows[:strays, 0] = 1e4 * np.arange(1, strays + 1)
        rows[-1] = own
        return rows

    def halves(self, own):
        """Two camps of equal size, to which the own user adds."""
        rows = np.where(np.arange(self.USERS)[:, None] % 2, -1e4, 1e4)
        rows[-1] = own
        return rows

    def strays(self, chance):
        """How many strays bring the chance of a release, the own user at zero, down to this."""
        test = self.MEAN.plan.test
        return next(gone for gone in range(self.USERS) if test.chance((self.USERS - gone) ** 2 + gone) <= chance)

    def found(self, worlds, noise=1.0, tests=True):
        def world(rows, label):
            mean, source = self.MEAN, SeededNoise(91)
            at = {"radius": mean.radius, "reference": np.zeros(1)}
            seen = mean.plan.mean.observe(rows, np.ones(len(rows), bool), **at)
            value = mean.plan.mean.aggregate(rows, seen.weights, **at)[0]
            gaussian = replace(mean.noise, scale=mean.noise.scale * noise)

            def draw(runs):
                coins = source.stream("test", label).uniform_below(TICKETS, runs)
                passes = coins < mean.plan.test.tickets(seen.score) if tests else np.ones(runs, bool)
                released = gaussian.release(np.full(runs, value), source.stream("release", label))
                return np.where(passes, released, self.SILENT)

            return draw

        return epsilon_lower_bound(*(world(rows, i) for i, rows in enumerate(worlds)), delta=DELTA, draws=DRAWS)

    def antipodal(self):
        return [self.rows(end * self.MEAN.radius) for end in (1.0, -1.0)]

    def test_it_never_exceeds_the_claimed_epsilon_where_everybody_agrees(self):
        assert self.found(self.antipodal()) <= EPSILON

    @pytest.mark.parametrize("chance", [2 * DELTA, 0.3])
    def test_it_never_exceeds_the_claimed_epsilon_where_the_own_user_moves_the_chance_of_a_release(self, chance):
        strays = self.strays(chance)
        assert self.found([self.rows(own, strays) for own in (0.0, -1e5)]) <= EPSILON

    def test_it_never_exceeds_the_claimed_epsilon_between_two_camps(self):
        assert self.found([self.halves(own) for own in (1e4, -1e4)]) <= EPSILON

    def test_the_audit_catches_a_sixteenth_of_the_noise(self):
        assert self.found(self.antipodal(), noise=1 / 16) > EPSILON

    def test_the_audit_catches_a_mean_that_is_not_tested(self):
        assert self.found([self.halves(own) for own in (1e4, -1e4)], tests=False) > EPSILON

    def test_a_run_is_what_is_audited(self):
        """The same test, mean and noise as in `release`, by the law of large numbers: false alarm below 1e-9."""
        rows = self.rows(0.0, self.strays(0.5))
        seen = self.MEAN.plan.mean.observe(
            rows, np.ones(self.USERS, bool), radius=self.MEAN.radius, reference=np.zeros(1)
        )
        chance = self.MEAN.plan.test.chance(seen.score)
        runs = [self.MEAN.release(rows, np.ones(self.USERS, bool), SeededNoise(seed)) for seed in range(2000)]
        values = np.array([value[0] for value in runs if value is not None])
        assert abs(len(values) - 2000 * chance) < 6.2 * math.sqrt(2000 * chance * (1 - chance))
        assert abs(values.mean()) < 6.2 * self.MEAN.noise.scale / math.sqrt(len(values))

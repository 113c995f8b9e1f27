"""The mean that learns its radius: what it spends, how far a user moves a row, what it finds and at what error."""

import doctest
import math
from fractions import Fraction
from itertools import accumulate
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.errors import ConfigError
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means import learnt_interval, learnt_mean, learnt_radii
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.learnt_mean import Learnt, LearntMean
from quoron_privacy.noise.sources import SeededNoise

fast = settings(derandomize=True, deadline=None, max_examples=25)
MU = 0.2367  # of ε = 1, δ = 10⁻⁶
SHAPES = {
    "normal": lambda rng, n, d: rng.normal(size=(n, d)),
    "one large direction": lambda rng, n, d: rng.normal(size=(n, d)) * np.append(10.0, np.ones(d - 1)),
    "heavy": lambda rng, n, d: rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(2.5, (n, 1)) / 2.5),
    "skewed": lambda rng, n, d: rng.exponential(size=(n, d)) - 1.0,
    "rare": lambda rng, n, d: (rng.random((n, d)) < 0.05) - 0.05,
    "all alike": lambda rng, n, d: np.zeros((n, d)),
    "one far": lambda rng, n, d: np.where(np.arange(n)[:, None] == 7, 1e9, rng.normal(size=(n, d))),
}
every = pytest.mark.parametrize("shape", SHAPES)


def found(values, bound=1000.0, mu=MU, seed=1, answered=None, **more) -> Learnt:
    noise, here = SeededNoise(seed), np.ones(len(values), bool) if answered is None else answered
    mean = LearntMean(len(values), values.shape[1], bound, mu, **more)
    return mean.release(values, here, noise.stream("mean"), noise.stream("public"))


def error(values, seeds=12, **keywords):
    """Root of the mean square, over noise."""
    off = [np.sum((found(values, seed=seed, **keywords).value - values.mean(axis=0)) ** 2) for seed in range(seeds)]
    return math.sqrt(np.mean(off))


@pytest.mark.parametrize("module", [learnt_mean, learnt_radii, learnt_interval], ids=lambda each: each.__name__)
def test_the_examples_run(module):
    assert doctest.testmod(module, extraglobs={"np": np}).failed == 0


@given(
    users=st.integers(40, 400),
    dimension=st.integers(1, 20),
    mu=st.floats(3.0, 8.0),
    bound=st.sampled_from([1e-90, 1e-3, 1.0, 1e9, 1e90]),
    shape=st.sampled_from(list(SHAPES)),
    scale=st.sampled_from([1e-30, 1e-6, 0.1, 1.0]),
)
@fast
def test_everything_released_costs_the_mu_that_was_asked_for_and_no_more_samples_than_told(
    users, dimension, mu, bound, shape, scale
):
    values = scale * bound * SHAPES[shape](np.random.default_rng(0), users, dimension)
    released = found(values, bound, mu)
    assert mu * (1 - 1e-6) <= released.mu <= mu
    assert sum(size for _, size in released.noises) <= learnt_mean.gaussians(dimension)
    assert np.isfinite(released.value).all()


def course(mean, values, answered, seed, told=None):
    """What was learnt; (value, noise, what was shown) of every release: `told` what another world has shown."""
    honest, seen = GaussianNoise.release, []

    def release(self, value, stream):
        shown = honest(self, value, stream) if told is None else told[len(seen)][2]
        seen.append((np.array(value), self, shown))
        return shown

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianNoise, "release", release)
        noise = SeededNoise(seed)
        return mean.release(values, answered, noise.stream("mean"), noise.stream("public")), seen


def test_two_worlds_that_have_released_the_same_are_mu_apart_at_most_all_releases_together():
    """Noise, radii and numbers of releases are the same in both, whoever replaces a user, or is replaced by nobody."""
    rng, used = np.random.default_rng(5), []
    odd = [0.0, 1e-320, 1.0, 1e100, 1e308, -1e308, np.inf, np.nan]
    for trial in range(90):
        users, dimension, mu = int(rng.choice([30, 31, 60])), int(rng.choice([1, 2, 5])), float(rng.choice([3.0, 20.0]))
        mean = LearntMean(users, dimension, 1.0, mu, spread=rng.choice([None, 1e-3, 1e9]))
        one = rng.normal(size=(users, dimension)) * 10.0 ** rng.uniform(-9, 1)
        here, who = rng.random(users) < rng.choice([0.5, 1.0]), int(rng.integers(users))
        other, there = one.copy(), here.copy()
        one[who] = rng.normal(size=dimension) * 10.0 ** rng.uniform(-9, 3)
        other[who] = [-one[who], 2 * one[who], rng.choice(odd, size=dimension)][trial % 3]
        here[who], there[who] = True, trial % 4 > 0
        learnt, first = course(mean, one, here, trial)
        same, second = course(mean, other, there, trial, told=first)
        assert (learnt.value.tolist(), learnt.radius, learnt.mu) == (same.value.tolist(), same.radius, same.mu)
        apart = []
        for (value, noise, _), (beside, again, _) in zip(first, second, strict=True):
            assert noise == again
            apart.append(float(np.linalg.norm(value - beside)) / noise.scale)
            assert apart[-1] <= noise.effective_mu(value.size)
        used.append(math.hypot(*apart) / mean.mu)
    assert 0.9 < max(used) <= 1


@given(st.floats(0.1, 10.0), st.lists(st.integers(0, 5), min_size=8, max_size=8))
def test_parts_of_bins_ascend_where_bins_are_no_wider_than_a_rounding(low, widths):
    """Whoever looks a user up among edges that do not ascend finds a place that hangs on who was looked up before."""
    edges = np.array([0.0, *accumulate([low, *widths], lambda at, ulps: at + ulps * np.spacing(at))])
    seen = np.ones(len(edges) - 1)
    parts = learnt_radii.parts_of(learnt_radii.Bins(edges, seen, seen / 100, seen / 10))
    assert (np.diff(parts) >= 0).all()
    assert len(parts) == learnt_radii.MOST_PARTS + 1


SHELLS = learnt_radii.shells_of(4.0, 1e4, 3)
CENTRE, EDGES = np.array([0.3, -0.1, 0.0]), learnt_radii.edges_of(1.5, 100.0)
WAYS = {
    "a step": (learnt_mean.clipped(CENTRE, 1.5), 0),
    "the middle": (learnt_mean.with_lengths(CENTRE, 1.5, EDGES), len(EDGES)),
    "the last": (learnt_mean.with_narrow(CENTRE, 4.0, 1.1), 0),
    "the last, with shells": (lambda values: last_rows(values), len(SHELLS)),
}


def last_rows(values):
    """All users' rows of the last release, as they are summed: those beyond 4 in shells."""
    far, others = learnt_mean.with_shells(CENTRE, 4.0, SHELLS)(values)
    rows = np.zeros((len(values), 2 * 3 + 4 * len(SHELLS)))
    rows[:, :6] = learnt_mean.with_narrow(CENTRE, 4.0, 1.1)(values)
    rows[far] = others
    return rows


def test_shells_reach_every_user_and_are_no_more_than_samples_are_counted_for():
    for wide, most, dimension in ((1.0, 1.0, 2), (1.0, 1e4, 3), (1e-30, 1e30, 2), (1.0, 1e9, 5_000)):
        shells = learnt_radii.shells_of(wide, most, dimension)
        assert shells[-1] >= most * (1 - 1e-9)
        assert len(shells) <= learnt_radii.MOST_SHELLS
        assert np.all(np.diff(np.append(wide, shells)) > 0)


class TestRows:
    """What a user adds, in exact arithmetic: in whole steps of the grid of the sum that is released."""

    def steps(self, values, row):
        """Rows in units of the largest that may be: exact."""
        reduction = ClippedSum(1.0, 2)
        rows = [reduction.of(row(one), np.ones(1, bool)).total for one in values[:, None]]
        return [[Fraction(int(number), 2**reduction.bits) for number in each] for each in rows]

    def users(self):
        rng = np.random.default_rng(1)
        away = rng.normal(size=(40, 3)) * 10.0 ** rng.uniform(-9, 4, (40, 1))
        far = np.array([[1e100, 0, 0], [-1e100, 0, 0], [0, 0, 0], [1e-300, 0, 0], *CENTRE + 4.0 * np.eye(3)])
        return np.vstack([away, -away, far, 2 * CENTRE - far[-3:]])

    def farthest(self, row, lengths, root=Fraction(learnt_mean._ROOT)):
        """Squared distance of the two rows farthest apart, nobody's among them; what is released times a root is."""
        rows = [*self.steps(self.users(), row), []]
        width = max(map(len, rows))
        weights = [Fraction(1)] * (width - lengths) + [root**2] * lengths
        full = [each or [Fraction(0)] * width for each in rows]
        return max(
            sum(weight * (a - b) ** 2 for weight, a, b in zip(weights, one, other, strict=True))
            for i, one in enumerate(full)
            for other in full[:i]
        )

    @pytest.mark.parametrize("way", WAYS)
    def test_two_users_are_two_apart_at_most_and_nearly_so(self, way):
        assert 3.99 < self.farthest(*WAYS[way]) <= 4

    def test_lengths_that_count_for_more_than_a_root_of_two_would_be_farther_apart(self):
        assert self.farthest(*WAYS["the middle"], root=Fraction(2)) > 4


def test_no_clipped_mean_is_below_what_nobody_can_be_below_on_users_with_and_without_a_far_group():
    """private-mean#m8: users at zero, and the same with k of them at one; whatever the radius, a multiple of 1/(nμ)."""
    bound = {k: k / 2 * math.sqrt(NormalDist().cdf(-k / 2)) for k in (0.1, 0.5, 1.0, 2.0, 2.4, 3.0, 5.0, 8.0)}  # k μ
    assert max(bound.values()) == pytest.approx(0.407, abs=1e-3)
    for k, least in bound.items():
        radii = np.linspace(0.0, 1.0, 1001)  # of an interval from zero, whose noise is its width
        assert np.min(np.hypot(radii, k * (1 - radii))) >= least


def test_vectors_of_another_shape_are_refused():
    mean, stream = LearntMean(5000, 3, 1.0, MU), SeededNoise(1).stream("mean")
    with pytest.raises(ConfigError, match=r"Expected vectors of shape \(5000, 3\)"):
        mean.release(np.zeros((5000, 2)), np.ones(5000, bool), stream, stream)

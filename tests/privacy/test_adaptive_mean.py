"""The mean that learns its radius: what it spends, how far a user moves a row, what it finds and at what error."""

import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means import adaptive_mean
from quoron_privacy.means.adaptive_mean import LEAST, AdaptiveMean, MeanEstimate
from quoron_privacy.noise.streams import SeededNoise

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


def found(values, bound=1000.0, mu=MU, seed=1, answered=None, **more) -> MeanEstimate:
    noise, here = SeededNoise(seed), np.ones(len(values), bool) if answered is None else answered
    mean = AdaptiveMean(len(values), values.shape[1], bound, mu, **more)
    return mean.release(values, here, noise.stream("mean"), noise.stream("public"))


def spent(released: MeanEstimate) -> float:
    """GDP parameter of everything released."""
    return gdp.compose(*(noise.effective_mu(size) for noise, size in released.noises))


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
    assert mu * (1 - 1e-6) <= spent(released) <= mu
    assert sum(size for _, size in released.noises) <= adaptive_mean.gaussians(dimension)
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
        mean = AdaptiveMean(users, dimension, 1.0, mu, spread=rng.choice([None, 1e-3, 1e9]))
        one = rng.normal(size=(users, dimension)) * 10.0 ** rng.uniform(-9, 1)
        here, who = rng.random(users) < rng.choice([0.5, 1.0]), int(rng.integers(users))
        other, there = one.copy(), here.copy()
        one[who] = rng.normal(size=dimension) * 10.0 ** rng.uniform(-9, 3)
        other[who] = [-one[who], 2 * one[who], rng.choice(odd, size=dimension)][trial % 3]
        here[who], there[who] = True, trial % 4 > 0
        learnt, first = course(mean, one, here, trial)
        same, second = course(mean, other, there, trial, told=first)
        assert (learnt.value.tolist(), learnt.radius, spent(learnt)) == (same.value.tolist(), same.radius, spent(same))
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
    parts = adaptive_mean.parts_of(adaptive_mean.Bins(edges, seen, seen / 100, seen / 10))
    assert (np.diff(parts) >= 0).all()
    assert len(parts) == adaptive_mean.MOST_PARTS + 1


def test_shells_reach_every_user_and_are_no_more_than_samples_are_counted_for():
    for wide, most, dimension in ((1.0, 1.0, 2), (1.0, 1e4, 3), (1e-30, 1e30, 2), (1.0, 1e9, 5_000)):
        shells = adaptive_mean.shells_of(wide, most, dimension)
        assert shells[-1] >= most * (1 - 1e-9)
        assert len(shells) <= adaptive_mean.MOST_SHELLS
        assert np.all(np.diff(np.append(wide, shells)) > 0)


@pytest.mark.parametrize("dimension", [2, 3, 10, 100, 1000, 10_000])
def test_from_the_fewest_users_on_steps_end_within_eight_lengths_in_a_bound_a_thousand_times_as_large(dimension):
    """R_K of private-mean#m9, for more and more users."""
    for strength in LEAST * (math.sqrt(dimension) + adaptive_mean.BELOW) * np.geomspace(1.0, 100.0, 15):
        users, mu = round(strength / 0.01), 0.01 * math.sqrt(1 - adaptive_mean.first_share(strength))
        for bound in (2.0, 30.0, 1000.0):
            _, shares = adaptive_mean.planned(1.0, bound, users=users, dimension=dimension, mu=mu)
            radius, deviation = bound, math.inf
            for _ in range(shares.steps):
                noise = 2 * radius / (users * mu * math.sqrt(shares.step))
                _, deviation = adaptive_mean.joined(deviation, noise)
                radius = adaptive_mean.reach(1.0, radius, deviation, dimension)
            assert radius <= 8.0


@given(
    mu=st.floats(5.0, 20.0),
    rows=st.lists(st.floats(-10.0, 10.0), min_size=8, max_size=8),
    other=st.lists(st.floats(-10.0, 10.0), min_size=2, max_size=2),
)
@fast
def test_two_second_moments_are_no_farther_apart_than_their_noise_is_for(mu, rows, other):
    """For any two users' rows; rows on opposite diagonals attain the distance."""
    users, noises, means = np.array(rows).reshape(4, 2), [], []
    for own in (users[2], np.array(other), np.array([1.0, 1.0]), np.array([1.0, -1.0])):
        table = np.vstack([users[:2], own, users[3]])
        transcript = adaptive_mean._Transcript(table, np.ones(4, bool), SeededNoise(1).stream("moment"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GaussianNoise, "release", lambda self, value, stream: np.array(value))
            moment = transcript.moment(np.zeros(2), 1.0, mu)
        means.append(np.array([moment[0, 0], moment[1, 1], math.sqrt(2) * moment[0, 1]]))
        noises.append(transcript.noises[0][0])
    moved, opposite = (float(np.linalg.norm(means[at] - means[at + 1])) for at in (0, 2))
    assert moved <= noises[0].sensitivity
    assert opposite == pytest.approx(noises[0].sensitivity, rel=1e-4)
    assert noises[0].effective_mu(3) <= mu * (1 + 1e-12)


@pytest.mark.parametrize("dimension", [2, 3, 9])
@pytest.mark.parametrize("users", [1, 4, 7])
def test_second_moments_are_of_whole_numbers_and_exact(users, dimension):
    """Beside whole numbers of Python's; no row of them is longer than one, however long a user's was."""
    rng = np.random.default_rng(users)
    table = rng.normal(size=(users, dimension)) * 10.0 ** rng.uniform(-3, 3, (users, 1))
    here, steps = np.arange(users) != 2, 2 ** ((52 - users.bit_length()) // 2)
    transcript = adaptive_mean._Transcript(table.copy(), here, SeededNoise(1).stream("moment"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianNoise, "release", lambda self, value, stream: np.array(value))
        moment = transcript.moment(np.ones(dimension), 2.0, 1.0)
    whole = [
        [int(steps * value) for value in row] for row in adaptive_mean.clipped(np.ones(dimension), 2.0)(table[here])
    ]
    assert all(sum(value**2 for value in row) <= steps**2 for row in whole)
    sums = [[sum(row[i] * row[j] for row in whole) for j in range(dimension)] for i in range(dimension)]
    assert moment == pytest.approx(np.array(sums) / (steps**2 * users), rel=1e-14, abs=0.0)


@given(lengths=st.lists(st.floats(0.01, 10.0), min_size=2, max_size=12))
@fast
def test_a_rounder_map_needs_the_least_noise_of_all_columns_together_and_has_an_inverse(lengths):
    """Σ s² Σ λ / s² is (Σ √λ)², private-mean#m10, for moments without noise."""
    moment = np.diag(np.square(lengths))
    there, back = adaptive_mean.rounder(moment, 1e-12)
    assert there @ back == pytest.approx(np.eye(len(lengths)), abs=1e-9)
    product = np.sum(back**2) * np.trace(there @ moment @ there.T)
    assert product == pytest.approx(np.sum(lengths) ** 2, rel=1e-6)


def test_what_noise_explains_makes_no_map():
    rng = np.random.default_rng(0)
    for dimension in (10, 50):
        noise = rng.normal(size=(dimension, dimension)) * 0.01
        there, back = adaptive_mean.rounder(0.1 * np.eye(dimension) + (noise + noise.T) / 2, 0.01)
        assert (there == np.eye(dimension)).all()
        assert (back == there).all()


def test_columns_of_unlike_scales_cost_less_noise_than_if_no_shape_is_released(monkeypatch):
    rng, errors = np.random.default_rng(3), []
    values = rng.normal(size=(4_000, 6)) * np.array([50.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    for most in (adaptive_mean.MOST_SHAPED, 0):
        monkeypatch.setattr(adaptive_mean, "MOST_SHAPED", most)
        adaptive_mean.planned.cache_clear()
        far = [found(values, 1e5, 1.5, seed).value - values.mean(axis=0) for seed in range(12)]
        errors.append(float(np.sqrt(np.mean(np.square(far)))))
    adaptive_mean.planned.cache_clear()
    assert errors[0] < 0.75 * errors[1]


@given(strength=st.floats(4.5 * LEAST, 1e12))
@fast
def test_whatever_is_looked_at_there_is_enough_left_for_the_mean(strength):
    first, place, around = adaptive_mean.interval_shares(strength)
    assert min(first, place, around) > 0
    assert 1 - first - place - around >= adaptive_mean.LEAST_LAST


@given(
    centre=st.floats(-3.0, 3.0),
    ends=st.tuples(st.floats(0.1, 5.0), st.floats(0.1, 5.0)),
    radius=st.floats(1e-3, 10.0),
    values=st.lists(st.floats(-20.0, 20.0), min_size=1, max_size=9),
)
@fast
def test_both_means_together_are_of_rows_of_norm_one_and_the_narrow_one_is_even(centre, ends, radius, values):
    interval = adaptive_mean.Interval(centre - ends[0], centre + ends[1], 0.0, 0.0, 0.0)
    narrow = adaptive_mean.Narrow(centre, radius, 1.0, 0.0)
    there, back = (
        adaptive_mean.rows_of(centre + sign * np.array(values)[:, None], interval, narrow, np.ones(2))
        for sign in (1, -1)
    )
    assert np.all(np.linalg.norm(there, axis=1) <= 1 + 1e-15)
    assert there[:, 1] == pytest.approx(-back[:, 1], abs=1e-6)


@given(
    ends=st.tuples(st.floats(0.5, 5.0), st.floats(0.5, 5.0)),
    beyond=st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 3.0)),
    values=st.lists(st.floats(-400.0, 400.0), min_size=1, max_size=9),
)
@fast
def test_users_beyond_the_ends_are_told_whole_by_nodes_and_the_rest_as_if_there_were_none(ends, beyond, values):
    """Rows of norm one, parts at nodes not negative; all parts, times where they stand, add to where a user is."""
    low, high = -ends[0], ends[1]
    interval = adaptive_mean.Interval(low, high, 0.0, 0.0, 0.0, (low - beyond[0], high + beyond[1]))
    narrow = adaptive_mean.Narrow(interval.middle, 0.3, 1.0, 0.0)
    nodes = adaptive_mean.nodes_of(interval, 420.0)
    x = np.array(values)
    rows = adaptive_mean.rows_of(x[:, None], interval, narrow, nodes)
    above, below = rows[:, 2:].reshape(len(x), 2, -1).transpose(1, 0, 2)
    assert np.all(np.linalg.norm(rows, axis=1) <= 1 + 1e-12)
    assert (above.min() >= 0, below.min() >= 0) == (True, True)
    far = (x < interval.ends[0]) | (x > interval.ends[1])
    whole = interval.middle + interval.half * rows[:, 0] + (above - below) @ nodes[1:]
    assert whole == pytest.approx(np.where(far, x, np.clip(x, low, high)), rel=1e-9, abs=1e-9)
    assert not rows[~far, 2:].any()
    assert not rows[far, 1].any()


def test_nodes_count_where_they_stand_out_by_themselves_or_with_a_neighbour_and_no_others():
    nodes = adaptive_mean.nodes_of(adaptive_mean.Interval(-1.0, 1.0, 0.0, 0.0, 0.0), 100.0)
    own = np.zeros((2, len(nodes) - 1))
    assert adaptive_mean.interval_far(own.ravel(), 0.001, nodes) == (0.0, 0.0, 0.0)
    own[0, 1] = 0.003
    assert adaptive_mean.interval_far(own.ravel(), 0.001, nodes) == (0.0, 0.0, 0.0)
    own[1, 1] = 0.006
    total, noise, reach = adaptive_mean.interval_far(own.ravel(), 0.001, nodes)
    assert (total, noise, reach) == (pytest.approx(-0.006 * nodes[2]), pytest.approx(0.001 * nodes[2]), nodes[2])
    own[1, 1:3] = 0.0037
    assert adaptive_mean.interval_far(own.ravel(), 0.001, nodes)[0] == pytest.approx(-0.0037 * nodes[2:4].sum())


def test_no_scale_takes_more_looks_than_samples_are_counted_for():
    """From the whole range to the smallest scale by bins that are 4,096 times narrower than three of the last."""
    width, looks = 2.0 / adaptive_mean.MOST_PLACES, 1
    while not adaptive_mean.near_enough(width, adaptive_mean.SMALLEST):
        width, looks = max(3 * width / adaptive_mean.MOST_PLACES, 3 * adaptive_mean.SMALLEST), looks + 1
    assert looks + 1 <= adaptive_mean.LOOKS
    for scale in (adaptive_mean.SMALLEST, 1.0):
        assert len(adaptive_mean.bins_around(scale, 1.0, 1e12)) <= adaptive_mean.MOST_PLACES

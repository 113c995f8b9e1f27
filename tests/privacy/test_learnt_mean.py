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

from quoron_privacy.errors import ConfigError, Infeasible
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means import learnt_interval, learnt_mean, learnt_radii
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.means.learnt_mean import LEAST, Learnt, LearntMean
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
SKEW = {"normal": 1.4, "heavy": 1.3, "skewed": 1.6}  # what clipping does to skewed users has to be left out of account
every = pytest.mark.parametrize("shape", SHAPES)


def found(values, bound=1000.0, mu=MU, seed=1, answered=None, **more) -> Learnt:
    noise, here = SeededNoise(seed), np.ones(len(values), bool) if answered is None else answered
    mean = LearntMean(len(values), values.shape[1], bound, mu, **more)
    return mean.release(values, here, noise.stream("mean"), noise.stream("public"))


def error(values, seeds=12, **keywords):
    """Root of the mean square, over noise."""
    off = [np.sum((found(values, seed=seed, **keywords).value - values.mean(axis=0)) ** 2) for seed in range(seeds)]
    return math.sqrt(np.mean(off))


def oracle(tables, mu=MU):
    """Error of one clipped mean with all of μ around zero, the point that users are drawn about, by the best radius."""
    users, dimension = tables[0].shape
    lengths = [np.linalg.norm(table, axis=1) for table in tables]

    def square(radius):
        means = [(x * np.minimum(1.0, radius / r)[:, None]).mean(axis=0) for x, r in zip(tables, lengths, strict=True)]
        off = [np.sum((mean - table.mean(axis=0)) ** 2) for mean, table in zip(means, tables, strict=True)]
        return dimension * (2 * radius / users / mu) ** 2 + np.mean(off)

    return math.sqrt(min(square(radius) for radius in np.quantile(lengths[0], np.linspace(0.02, 1.0, 50))))


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


def test_bins_of_length_reach_every_user_and_are_narrow_but_where_that_would_be_too_many():
    for radius, bound in ((1.0, 1.0), (1.5, 100.0), (1e-6, 1e6)):
        edges = learnt_radii.edges_of(radius, bound)
        assert edges[-1] >= 2 * bound
        assert len(edges) <= learnt_radii.MOST_LENGTHS
        assert edges[-1] / edges[-2] == pytest.approx(2 ** (1 / 3))
    far = learnt_radii.edges_of(1e-30, 1e30)
    assert (far[-1] >= 2e30 or len(far) == learnt_radii.MOST_LENGTHS, far[-1] / far[-2]) == (True, pytest.approx(2))


@given(st.floats(0.1, 10.0), st.lists(st.integers(0, 5), min_size=8, max_size=8))
def test_parts_of_bins_ascend_where_bins_are_no_wider_than_a_rounding(low, widths):
    """Whoever looks a user up among edges that do not ascend finds a place that hangs on who was looked up before."""
    edges = np.array([0.0, *accumulate([low, *widths], lambda at, ulps: at + ulps * np.spacing(at))])
    seen = np.ones(len(edges) - 1)
    parts = learnt_radii.parts_of(learnt_radii.Bins(edges, seen, seen / 100, seen / 10))
    assert (np.diff(parts) >= 0).all()
    assert len(parts) == learnt_radii.MOST_PARTS + 1


def test_noise_hardly_ever_makes_users_and_the_less_the_farther_away():
    """A thousand draws of noise alone in bins of which one surely holds users. Fixed seed: thrice what is meant."""
    deviations, rng = np.full(60, 0.01), np.random.default_rng(6)
    far = np.concatenate([np.zeros(20), 2.0 ** (np.arange(40) / 3)])
    least = learnt_radii.stands_out(far, deviations, 40)
    assert np.all(np.diff(least) >= 0)
    noisy = rng.normal(0.0, 0.01, (1000, 60))
    noisy[:, 0] = 0.5
    seen = np.array([learnt_radii.seen_of(row, deviations, least, windows=(1, 2)) for row in noisy])
    assert np.all(seen[:, 0])
    assert np.mean(seen[:, 1:].any(axis=1)) < 3 * 60 * 2 * learnt_radii._OFTEN
    assert np.mean(seen[:, 40:].any(axis=1)) < 0.01


@pytest.mark.parametrize("strength", [4.5 * LEAST, 124.0, 300.0])
def test_noise_hardly_ever_hides_which_octave_pairs_are_in(strength):
    """A place that is looked for in the wrong octave is lost. Users in four octaves; 2,000 fixed draws."""
    share, rng = learnt_mean.first_share(strength), np.random.default_rng(8)
    pairs = rng.normal(0.0, 2 * math.sqrt(2 / share) / strength, (2000, learnt_radii.BINS))
    pairs[:, 6:10] += 0.2, 0.35, 0.25, 0.2
    found = np.array([learnt_radii.typical_length(own, 2.0**8) for own in pairs])
    assert np.mean((found < 0.15) | (found > 4.0)) < 0.005


def test_what_a_radius_clips_of_a_bin_is_what_it_clips_of_users_spread_over_it():
    lows, highs = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0, 5.0])
    for over in (0.3, 1.5, 2.0, 4.0, 6.0):
        slow = [np.maximum(np.linspace(a, b, 4001) - over, 0).mean() for a, b in zip(lows, highs, strict=True)]
        assert learnt_radii._excess(lows, highs, np.array([[over]]))[0] == pytest.approx(slow, abs=1e-3)


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12))
@fast
def test_every_step_counts_in_the_centre_as_much_as_its_noise_lets_it(noises):
    """Averaged one after the other: the best average of all, never noisier than any of them."""
    weights, deviation = [], math.inf
    for noise in noises:
        part, deviation = learnt_radii.joined(deviation, noise)
        weights = [weight * (1 - part) for weight in weights] + [part]
    best = np.array(noises) ** -2.0
    assert weights == pytest.approx((best / best.sum()).tolist(), rel=1e-9)
    assert deviation == pytest.approx(best.sum() ** -0.5)
    assert deviation <= min(noises) * (1 + 1e-12)


@pytest.mark.parametrize("columns", [1, 2])
def test_no_radius_reaches_beyond_where_users_can_be(columns):
    values = np.where(np.random.default_rng(9).random((10_000, 1)) < 0.5, 1.0, -1.0) * np.ones(columns)
    released = found(values, bound=math.sqrt(columns))
    assert released.radius <= math.sqrt(columns) + np.linalg.norm(released.centre) + 1e-9


def test_users_on_two_sides_of_an_edge_are_seen_together():
    shares, deviations = np.zeros(40), np.full(40, 0.01)
    shares[0], shares[30:32] = 0.9, 0.03
    least = learnt_radii.stands_out(np.zeros(40), deviations, 20)
    assert not learnt_radii.seen_of(shares, deviations, least, windows=(1,))[30]
    assert learnt_radii.seen_of(shares, deviations, least, windows=(1, 2))[30:32].all()


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


def test_rows_of_users_in_the_first_shell_add_to_them_and_farther_out_to_nearly():
    """Times the radii that parts are for."""
    rng = np.random.default_rng(3)
    away = rng.normal(size=(400, 3))
    away *= (4.0 * 2.0 ** rng.uniform(0.01, 10.0, 400) / np.linalg.norm(away, axis=1))[:, None]
    far, rows = learnt_mean.with_shells(CENTRE, 4.0, SHELLS)(CENTRE + away)
    assert far.all()
    parts = rows[:, : 3 * (2 + len(SHELLS))].reshape(400, -1, 3)
    middles = np.append(SHELLS[:1], np.sqrt(SHELLS[1:] * SHELLS[:-1]) / learnt_radii.UNCOUNTED)
    whole, lengths = 4.0 * parts[:, 0] + np.einsum("usc,s->uc", parts[:, 2:], middles), np.linalg.norm(away, axis=1)
    near = lengths <= SHELLS[0]
    assert whole[near] == pytest.approx(away[near], rel=1e-9)
    assert np.linalg.norm(whole[~near] - away[~near], axis=1) == pytest.approx(0.0, abs=0.2 * lengths.max())
    assert np.all(np.linalg.norm(whole[~near] - away[~near], axis=1) < 0.2 * lengths[~near])


def test_shells_reach_every_user_and_are_no_more_than_samples_are_counted_for():
    for wide, most, dimension in ((1.0, 1.0, 2), (1.0, 1e4, 3), (1e-30, 1e30, 2), (1.0, 1e9, 5_000)):
        shells = learnt_radii.shells_of(wide, most, dimension)
        assert shells[-1] >= most * (1 - 1e-9)
        assert len(shells) <= learnt_radii.MOST_SHELLS
        assert np.all(np.diff(np.append(wide, shells)) > 0)


def test_a_group_that_no_look_shows_is_told_by_the_last_release_or_left_out():
    """Means and counts of shells where nobody is are noise, of d + 1 columns: hardly ever taken for users."""
    shells, rng, d = learnt_radii.shells_of(1.0, 1e3, 3), np.random.default_rng(4), 3
    edges = np.append(0.0, 2.0 ** np.arange(12))
    bins = learnt_radii.Bins(edges, np.zeros(12), np.full(12, 0.002), np.full(12, 0.01))
    none = [
        learnt_radii.far_of(rng.normal(0.0, 1e-3, len(shells) * (d + 1)), 1e-3, shells, 1.0, bins) for _ in range(2_000)
    ]
    assert sum(each.reach > 0 for each in none) <= 2
    told = np.zeros(len(shells) * (d + 1))
    told[3 * 2 : 3 * 3], told[-len(shells) + 2] = 0.004, 0.004
    found = learnt_radii.far_of(told, 1e-3, shells, 1.0, bins)
    assert (found.reach, found.deviation > 0) == (shells[2], True)
    assert found.sum == pytest.approx(np.full(3, 0.004 * math.sqrt(shells[1] * shells[2]) / 0.8), rel=0.1)


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

    def test_replacing_a_user_moves_one_pair(self):
        values = np.random.default_rng(2).normal(size=(9, 2))
        order = SeededNoise(1).stream("public").permutation(9)

        def shares(rows, here):
            told = learnt_mean._Told(rows, here, SeededNoise(3).stream("mean"))
            return told.pairs(8.0, 4.0, SeededNoise(1).stream("public")), told.noises[0][0]

        for user in range(9):
            other, away = values.copy(), np.arange(9) != user
            other[user] = 1e-9 if user % 2 else 4.0
            (before, noise), (after, _), (absent, _) = (
                shares(*each) for each in ((values, away | True), (other, away | True), (values, away))
            )
            for moved in (after - before, absent - before):
                assert np.linalg.norm(moved) <= noise.sensitivity + 1e-6 * noise.scale
            assert user != order[-1] or np.array_equal(after, before)


@every
def test_no_shape_of_users_and_no_user_can_raise(shape):
    values = SHAPES[shape](np.random.default_rng(4), 2000, 3)
    values[:4] = np.array([np.nan, np.inf, 1e300, -1e300])[:, None]
    assert np.isfinite(found(values).value).all()
    assert np.isfinite(found(values, answered=np.zeros(2000, bool)).value).all()


@every
@pytest.mark.parametrize("bound", [10.0, 1e3, 1e6, 1e10])
def test_the_radius_follows_the_users_and_not_the_bound(shape, bound):
    """Users are about a point half the bound away. Fixed seeds."""
    values = SHAPES[shape](np.random.default_rng(5), 10_000, 3)
    lengths = np.linalg.norm(values - np.median(values, axis=0), axis=1)
    values += min(0.5 * bound, 1e6) / math.sqrt(3)
    released = found(values, 1.1 * bound + 30.0)
    assert released.radius < 3 * np.quantile(lengths, 0.995) + 1e-3 * min(bound, 1e3)
    assert shape == "all alike" or released.radius > np.median(lengths)


@pytest.mark.parametrize(
    ("shape", "users", "most"),
    [*((shape, 1_000, 3.0) for shape in SKEW), *((shape, 10_000, most) for shape, most in SKEW.items())],
)
@pytest.mark.parametrize("bound", [40.0, 1e6])
def test_the_error_is_near_that_of_the_best_radius_around_the_true_centre(users, most, bound, shape):
    """Twelve draws of users and of noise, fixed; far more in benchmarks/private_means.py."""
    dimension = 10
    tables = [SHAPES[shape](np.random.default_rng(draw), users, dimension) for draw in range(12)]
    away = 0.4 * bound / math.sqrt(dimension)
    off = [
        np.sum((found(x + away, bound=2 * bound, seed=i).value - away - x.mean(axis=0)) ** 2)
        for i, x in enumerate(tables)
    ]
    assert math.sqrt(np.mean(off)) < most * oracle(tables)


def test_no_clipped_mean_is_below_what_nobody_can_be_below_on_users_with_and_without_a_far_group():
    """private-mean#m8: users at zero, and the same with k of them at one; whatever the radius, a multiple of 1/(nμ)."""
    bound = {k: k / 2 * math.sqrt(NormalDist().cdf(-k / 2)) for k in (0.1, 0.5, 1.0, 2.0, 2.4, 3.0, 5.0, 8.0)}  # k μ
    assert max(bound.values()) == pytest.approx(0.407, abs=1e-3)
    for k, least in bound.items():
        radii = np.linspace(0.0, 1.0, 1001)  # of an interval from zero, whose noise is its width
        assert np.min(np.hypot(radii, k * (1 - radii))) >= least


@pytest.mark.parametrize("shape", ["normal", "heavy", "skewed"])
def test_more_users_and_a_larger_epsilon_never_make_it_worse(shape):
    """Six fixed draws of noise; 2.8 times the users or twice the μ each time."""
    values = SHAPES[shape](np.random.default_rng(7), 16_000, 5)
    few, more, many = (error(values[:users], seeds=6) for users in (2_000, 5_600, 16_000))
    assert many < more < few
    assert error(values, seeds=6, mu=1.0) < error(values, seeds=6, mu=0.5) < many


def test_users_who_are_all_alike_are_found_far_better_than_the_bound_allows():
    values = np.full((10_000, 4), 321.0)
    assert error(values) < 1e-3  # beside 8.4 of a mean clipped at the bound


def test_a_spread_that_is_known_is_used_and_a_wrong_one_costs_only_accuracy():
    values = np.random.default_rng(8).normal(5.0, 1.0, (5_000, 3))
    assert error(values, spread=5.0) < 1.2 * error(values)
    assert np.isfinite(found(values, spread=1e-9).value).all()


def test_too_few_users_are_told_how_many_it_takes():
    with pytest.raises(Infeasible, match=r"too few to learn a radius; needs users >= \d+") as raised:
        LearntMean(100, 10, 1.0, MU)
    enough = int(raised.value.needs.split()[-1].replace(",", ""))
    LearntMean(enough, 10, 1.0, MU)
    with pytest.raises(Infeasible):
        LearntMean(enough - 1, 10, 1.0, MU)


def test_vectors_of_another_shape_are_refused():
    mean, stream = LearntMean(5000, 3, 1.0, MU), SeededNoise(1).stream("mean")
    with pytest.raises(ConfigError, match=r"Expected vectors of shape \(5000, 3\)"):
        mean.release(np.zeros((5000, 2)), np.ones(5000, bool), stream, stream)

"""What `whitened-tracking` makes of its releases, against slow, obvious ones."""

import numpy as np
import pytest
from scipy import integrate, special
from scipy.stats import norm

from quoron_privacy.means.free_counts import LogLength, Moment, length_sums
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms.whitened.estimates import LEARNT, GradientModel, in_groups, shrunk
from quoron_server.algorithms.whitened.parameters import CurvatureModel
from quoron_server.algorithms.whitening import aligned, along, typical_length, whitening, without


class TestEstimates:
    def test_the_regression_is_a_gaussian_process_with_an_unknown_constant(self):
        rng = np.random.default_rng(1)
        points, x, walks = rng.normal(size=(4, 3)), rng.normal(size=3), np.array([0.0, 0.1, 0.15, 0.4])
        gradients, variances = rng.normal(size=(4, 3)), rng.uniform(0.01, 0.2, 4)
        model = GradientModel.of(points, gradients, variances, walks, law=CurvatureModel(1.0, False))
        found, variance = model.at(x, 0.5)
        flat, slope = 1e7, LEARNT**2 / 3
        every, paths = np.vstack([points, x]), np.array([*walks, 0.5])
        whole = slope * every @ every.T + np.minimum.outer(paths, paths) + flat
        noisy = whole[:4, :4] + np.diag(variances)
        weights = np.linalg.solve(noisy, whole[:4, 4])
        np.testing.assert_allclose(found, x + weights @ (gradients - points), atol=1e-5)
        assert variance == pytest.approx(whole[4, 4] - whole[:4, 4] @ weights, abs=1e-5)

    def test_shrinking_is_the_mean_under_a_scale_mixture(self):
        z, variances = np.array([0.9, -0.2, 0.05]), np.array([0.1, 0.2, 0.05])
        scales = np.concatenate([[0.0], np.mean(z**2) * np.geomspace(1e-4, 4, 60)])
        prior = np.concatenate([[1.0], np.full(60, 1 / 60)])
        weights = prior * [np.prod(norm.pdf(z, scale=np.sqrt(t + variances))) for t in scales]
        expected = z * sum(w * t / (t + variances) for w, t in zip(weights / weights.sum(), scales, strict=True))
        np.testing.assert_allclose(shrunk(z, variances), expected, rtol=1e-10)

    def test_shrinking_learns_whether_there_is_more_where_features_vary_more(self):
        """Over 40 draws: less than four fifths of the risk, and where features say nothing nearly what it was."""
        rng, signal = np.random.default_rng(1), np.geomspace(1, 1e-3, 60)
        deviation = np.sqrt(signal / signal.mean())
        found, plain, even = [], [], []
        for _ in range(40):
            truth, noise = 2 * deviation * rng.normal(size=60), rng.normal(size=60)
            found.append(np.sum((shrunk(truth + noise, np.ones(60), signal) - truth) ** 2))
            plain.append(np.sum((shrunk(truth + noise, np.ones(60)) - truth) ** 2))
            truth = rng.normal(size=60)  # as much everywhere
            z = truth + noise
            even.append(np.linalg.norm(shrunk(z, np.ones(60), signal) - shrunk(z, np.ones(60))))
        assert np.mean(found) < 0.8 * np.mean(plain)
        assert np.mean(even) < 0.5 * np.sqrt(60)

    def test_a_group_s_shrinking_is_that_of_its_coordinates_in_all_parts_alone(self):
        rng, groups = np.random.default_rng(2), np.array([0, 0, 1, 2, 2, 2, 0])
        z, variances, signal = rng.normal(size=14), rng.uniform(0.1, 1, 14), rng.uniform(0.1, 1, 14)
        for likely in (None, signal):
            found = in_groups(z, variances, groups, likely)
            for group in range(3):
                at = np.tile(groups == group, 2)
                alone = shrunk(z[at], variances[at], None if likely is None else likely[at])
                np.testing.assert_array_equal(found[at], alone)
        np.testing.assert_array_equal(in_groups(z, variances, 0 * groups), shrunk(z, variances))

    def test_what_has_no_evidence_loses_its_noise_and_what_has_keeps_its_signal(self):
        """Ten strong columns and ten groups of four without a signal: less than half the error of one scale for all."""
        rng, groups = np.random.default_rng(4), np.repeat(np.arange(11), [10] + [4] * 10)
        apart, together = [], []
        for _ in range(40):
            truth = 4 * rng.normal(size=50) * (groups == 0)
            z = truth + rng.normal(size=50)
            apart.append(np.sum((in_groups(z, np.ones(50), groups) - truth) ** 2))
            together.append(np.sum((shrunk(z, np.ones(50)) - truth) ** 2))
        assert np.mean(apart) < np.mean(together) / 2

    @pytest.mark.parametrize("constant", [False, True])
    def test_coordinates_of_groups_are_the_same_metric_and_the_first_ones_are_models_of_the_first_groups(
        self, constant: bool
    ):
        rng, groups = np.random.default_rng(5), (0, 2, 1, 0, 1, 3) + (0,) * constant
        own, d = 6, 6 + constant
        transform = np.eye(d)
        transform[:, :own] = rng.normal(size=(d, own))
        found, doubt = aligned(transform, np.arange(float(d)), groups, constant=constant)
        np.testing.assert_allclose(found @ found.T, transform @ transform.T, atol=1e-12)
        np.testing.assert_array_equal(found[:, own:], transform[:, own:])
        assert doubt.sum() == pytest.approx(np.arange(d).sum())
        for last in range(4):
            first = np.array([*groups[:own]]) <= last
            model = np.append(rng.normal(size=own) * first, rng.normal(size=d - own))
            point = np.linalg.solve(found, model)
            np.testing.assert_allclose(point[first.sum() : own], 0, atol=1e-12)

    def test_a_metric_is_aligned_with_the_features_and_remains_the_same(self):
        rng = np.random.default_rng(3)
        transform = np.zeros((5, 5))
        transform[:, :4], transform[4, 4] = rng.normal(size=(5, 4)), 2.0
        found, doubt = aligned(transform, np.arange(5.0), constant=True)
        np.testing.assert_allclose(found @ found.T, transform @ transform.T, atol=1e-12)
        own = found[:4, :4]
        np.testing.assert_allclose(own.T @ own, np.diag(np.diag(own.T @ own)), atol=1e-12)
        assert doubt[4] == 4.0
        assert doubt.sum() == pytest.approx(10.0)
        variance = along(found, constant=True)
        assert (np.diff(variance[:4]) < 0).all()
        assert variance[0] == 1.0
        assert variance[4] == pytest.approx(variance[:4].mean())
        np.testing.assert_array_equal(along(np.ones((1, 1)), constant=True), [1.0])

    def test_mean_gradients_of_gaussian_predictions_are_those_of_an_integral_also_where_labels_are_rare(self):
        law = CurvatureModel(0.25, True, intercept=True)
        for mean, length in ((0.0, 1.0), (-3.0, 1.5), (1.0, 0.2), (-8.0, 6.0), (-9.0, 0.1)):

            def over(function, mean=mean, length=length):
                return integrate.quad(lambda u: norm.pdf(u) * function(mean + length * u, u), -9, 9, limit=200)[0]

            found = law.gradient(np.array([0.6 * length, 0.8 * length, mean]))
            along = over(lambda score, u: u * special.expit(score))
            np.testing.assert_allclose(found[:2], [0.6 * along, 0.8 * along], atol=1e-4, rtol=2e-3)
            assert found[2] == pytest.approx(over(lambda score, _: special.expit(score)) - 0.5, abs=1e-4)
            if mean < -5:
                assert found[2] + 0.5 == pytest.approx(over(lambda score, _: special.expit(score)), rel=0.01)
            curved = over(lambda score, _: special.expit(score) * special.expit(-score))
            assert law.at(np.array([length, mean]))[0] == pytest.approx(curved, abs=1e-4)
            centred = CurvatureModel(0.25, True).gradient(np.array([0.0, length]))
            spread = integrate.quad(lambda u: norm.pdf(u) * u * special.expit(length * u), -9, 9)[0]  # noqa: B023
            np.testing.assert_allclose(centred, [0, spread], atol=1e-4)

    @pytest.mark.parametrize("intercept", [True, False])
    def test_a_mean_gradient_is_solved_for_its_point_and_noise_says_how_far(self, intercept):
        law, rng = CurvatureModel(0.25, True, intercept=intercept), np.random.default_rng(1)
        for length in (0.0, 0.3, 2.0, 20.0):
            x = rng.normal(size=5)
            x *= length / np.linalg.norm(x)
            np.testing.assert_allclose(law.solved(law.gradient(x), 0.0, 100.0), x, rtol=1e-5, atol=1e-9)
        far = 100 * rng.normal(size=5)
        reached = [np.linalg.norm(law.solved(far, noise, 1e9)) for noise in (0.1, 0.01, 0.001)]
        assert reached[0] < reached[1] < reached[2] < np.inf
        assert np.linalg.norm(law.solved(far, 0.0, 3.0)) == pytest.approx(3)

    def test_a_moment_without_noise_is_whitened_but_for_the_floor(self):
        rng = np.random.default_rng(1)
        basis = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        moment = basis @ np.diag([0.9, 1.0, 1.1, 1.2]) @ basis.T
        found = whitening(Moment(moment, 1.0), 1.0, 1e-9, 0.1)
        values = np.linalg.eigvalsh(found.transform.T @ moment @ found.transform)
        np.testing.assert_allclose(
            values, np.array([0.9, 1.0, 1.1, 1.2]) / (np.array([0.9, 1.0, 1.1, 1.2]) + 0.3 * 1.05), rtol=1e-6
        )

    def test_with_a_constant_feature_ranges_that_are_far_too_wide_cost_nothing(self):
        rng, s = np.random.default_rng(1), 1e-12
        for width in (1.0, 1e-2):
            rows = width * (rng.normal(size=(5000, 3)) * [1.0, 1.2, 0.9] + [0.5, -2.0, 1.0])
            rows = np.hstack([rows, np.ones((5000, 1))])
            found = whitening(Moment(rows.T @ rows / 5000, 1.0), 1.0, s, 0.1, constant=True)
            whitened = rows @ found.transform
            np.testing.assert_allclose(whitened[:, :3].mean(axis=0), 0, atol=1e-6)
            np.testing.assert_array_equal(found.transform[:3, 3], 0)
            np.testing.assert_allclose(np.linalg.eigvalsh(whitened.T @ whitened / 5000), 0.77, atol=0.1)

    @pytest.mark.parametrize("constant", [False, True])
    def test_directions_are_narrow_where_they_are_surely_far_less_than_the_constant_and_hidden(self, constant):
        def narrow(values, s):
            return whitening(Moment(np.diag([*values, 1.0]), 1.0), 1.0, s, 1.0, constant=constant).narrow

        assert not narrow([0.8, 0.9, 1.0], 0.01)  # all are seen
        assert narrow([0.001, 0.001, 0.001, 1.0], 0.01)  # most are hidden by the floor
        assert not narrow([0.01, 0.9, 1.0], 0.03)  # few may be what noise hides
        assert narrow([0.01, 0.9, 1.0], 0.01)  # unless noise is far below the floor
        assert narrow([0.0, 0.0, 0.0], 0.01)
        assert not narrow([0.0, 0.0, 0.0], 0.6)  # noise tells nothing
        assert not narrow([0.01, 0.01, 1.0], 0.6)

    def test_noise_around_means_is_as_much_more_along_them_as_is_reckoned_with(self):
        """Of 200 draws: means two away make noise along them five times as large; `heard` is in its deviations."""
        rng, s, far = np.random.default_rng(2), 0.01, np.array([2.0, 0, 0, 0, 0, 1])
        moment, heard = np.outer(far, far) + 0.005 * np.diag([1, 1, 1, 1, 1, 0]), []
        for _ in range(200):
            half = rng.normal(size=(6, 6)) * s / 2
            found = whitening(Moment(moment + half + half.T, 1.0), 1.0, s, 0.1, constant=True)
            metric = np.linalg.inv(found.transform[:5, :5] @ found.transform[:5, :5].T)
            assert metric[0, 0] > 0.3 * np.sqrt(10) * s * 5
            heard.append(found.heard)
        assert np.mean(heard) == pytest.approx(0.025 / (s * np.sqrt(4 + 5**2)), abs=0.4)
        assert np.std(heard) == pytest.approx(1, abs=0.4)

    def test_users_without_a_length_draw_the_typical_one_nowhere(self):
        """Their logarithm would be the least there is: half of them took the typical length from 1 down to e⁻²."""
        mechanism, logs = LogLength.for_mu(users=10_000, mu=1.0), np.zeros(10_000)
        logs[::2] = -np.inf
        released = mechanism.release(
            length_sums(logs, np.ones(10_000, bool), np.e, 10_000), SeededNoise(0).stream("length")
        )
        assert typical_length(released, mechanism, np.e) == pytest.approx(1.0, rel=0.01)


def test_what_lies_along_unknown_directions_is_gone_and_all_else_is_nearest_to_what_it_was():
    rng = np.random.default_rng(3)
    unwidened, points, unknown = rng.normal(size=(5, 5)), rng.normal(size=(2, 5)), np.array([1, 0, 0, 1, 0], bool)
    transform = unwidened @ (np.eye(5) + rng.normal(size=(5, 5)) / 5) @ np.diag([30.0, 1.0, 1.0, 20.0, 1.0])
    left = without(points, unknown, transform, unwidened)
    before, after = (np.linalg.solve(unwidened, transform @ each.T) for each in (points, left))
    directions = np.linalg.solve(unwidened, transform)[:, unknown]
    np.testing.assert_allclose(directions.T @ after, 0.0, atol=1e-9)
    best = np.linalg.lstsq(directions, before, rcond=None)[0]
    np.testing.assert_allclose(after, before - directions @ best, atol=1e-9)

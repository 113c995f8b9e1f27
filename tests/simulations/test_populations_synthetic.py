"""Synthetic populations: a user's items are a function of the seed and the user, and the truth is the truth."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from quoron.populations import Outliers, Synthetic
from quoron.populations._risk import divergence, sphere_plane
from quoron_client.compute.enforcement import bounded
from quoron_client.compute.work import answer
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.ends import on_boundary
from quoron_client.protocol.gradients import AverageGradient
from quoron_privacy.errors import ConfigError

FAMILIES = ("logistic", "least_squares", "linear")


def population(family="logistic", **changes):
    arguments = {
        "users": 1000,
        "items_per_user": 6,
        "dimension": 4,
        "domain": L2Ball(2.0),
        "signal_norm": 0.8,
        "seed": 7,
    }
    return Synthetic(family, **(arguments | changes))


def same(left, right):
    np.testing.assert_array_equal(left.features, right.features)
    np.testing.assert_array_equal(left.labels, right.labels)
    np.testing.assert_array_equal(left.offsets, right.offsets)


class TestItems:
    @pytest.mark.parametrize("family", FAMILIES)
    @settings(derandomize=True, deadline=None, max_examples=20)
    @given(users=st.lists(st.integers(0, 999), min_size=1, max_size=12), unequal=st.booleans())
    def test_items_do_not_depend_on_who_else_is_asked_or_in_which_order(self, family, users, unequal):
        crowd = population(family, unequal_items=unequal, heterogeneity=0.1, outliers=Outliers(0.3))
        together = crowd.items(np.array(users))
        for slot, user in enumerate(users):
            alone = crowd.items(np.array([user]))
            rows = slice(together.offsets[slot], together.offsets[slot + 1])
            np.testing.assert_array_equal(together.features[rows], alone.features)
            np.testing.assert_array_equal(together.labels[rows], alone.labels)

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("dimension", [1, 2, 33])
    def test_no_item_needs_clipping(self, family, dimension):
        crowd = population(family, dimension=dimension, feature_norm=1.3, heterogeneity=0.4, users=3000)
        batch = crowd.items(np.arange(3000))
        assert batch.features.dtype == np.float32
        assert np.linalg.norm(batch.features.astype(np.float64), axis=1).max() <= 1.3
        same(bounded(batch, crowd.loss), batch)

    def test_an_unknown_user_is_refused(self):
        with pytest.raises(ConfigError, match=r"Expected users in \[0, 1000\), got 3 to 1000"):
            population().items(np.array([3, 1000]))


class TestLaw:
    """Each statistical check has a false alarm below 1e-6."""

    def test_logistic_labels_follow_the_sigmoid_of_the_score(self):
        crowd = population(users=100_000, signal_norm=3.0, domain=L2Ball(5.0))
        batch = crowd.items(np.arange(100_000))
        chances = expit(batch.features.astype(np.float64) @ crowd.signal)
        for low in np.arange(0, 1, 0.1):
            here = (chances >= low) & (chances < low + 0.1)
            apart = np.sum((batch.labels[here] > 0) - chances[here])
            assert abs(apart) < 5.5 * np.sqrt(np.sum(chances[here] * (1 - chances[here])) + 1)

    @pytest.mark.parametrize(
        ("family", "changes"),
        [
            ("logistic", {}),
            ("logistic", {"heterogeneity": 0.7}),
            ("logistic", {"ridge": 0.05, "heterogeneity": 0.3}),
            ("least_squares", {"heterogeneity": 0.4}),
            ("least_squares", {"ridge": 0.1}),
            ("linear", {"heterogeneity": 0.1, "ridge": 0.6}),
        ],
    )
    def test_gradient_vanishes_at_the_optimum_and_deviates_as_the_design_says(self, family, changes):
        crowd = population(family, users=60_000, items_per_user=1, **changes)
        asked = AverageGradient(crowd.optimum[None], (1.0,))
        gradients = answer(crowd.loss, crowd.items(np.arange(60_000)), asked).values
        z = gradients.mean(axis=0) / (gradients.std(axis=0) / np.sqrt(60_000))
        assert np.abs(z).max() < 5.7
        deviation = np.sqrt(gradients.var(axis=0).sum())
        assert crowd.knowledge.gradient_deviation == pytest.approx(deviation, rel=0.02)


class TestExcessRisk:
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("domain", [L2Ball(2.0), L2Ball(0.3), Box(1.5)])
    @pytest.mark.parametrize("ridge", [0.0, 0.2])
    def test_is_least_at_the_optimum_in_the_domain_and_zero_where_the_best_of_all_is_inside(
        self, family, domain, ridge
    ):
        crowd = population(family, domain=domain, ridge=ridge, heterogeneity=0.1)
        best, held = crowd.optimum, crowd.beside(crowd.optimum).held_back
        assert crowd.excess_risk(best) == held
        without = family == "linear" and ridge == 0  # an infimum; then it is that over the domain
        assert (held == 0.0) == (without or not on_boundary(domain, best))
        rng = np.random.default_rng(0)
        for scale in (1e-6, 1e-3, 1.0):
            for _ in range(20):
                other = domain.project(best + scale * rng.standard_normal(4))
                assert crowd.excess_risk(other) >= held - 1e-15
                assert crowd.excess_risk(other) > 0 or np.array_equal(other, best)

    @pytest.mark.parametrize("family", ["logistic", "least_squares"])
    def test_is_the_same_in_every_domain(self, family):
        """A bound moves the best model that it lets in, and not what a model is compared with."""
        narrow, wide = population(family, domain=L2Ball(0.3)), population(family, domain=L2Ball(9.0))
        for model in (np.zeros(4), narrow.optimum, np.array([0.1, 0.1, -0.2, 0.05])):
            assert narrow.excess_risk(model) == pytest.approx(wide.excess_risk(model), rel=1e-9)
        (said,) = narrow.beside(narrow.optimum).remarks
        assert f"costs an excess risk of {narrow.excess_risk(narrow.optimum):.2g}" in said
        assert wide.beside(wide.optimum).remarks == ()

    @pytest.mark.parametrize(
        ("heterogeneity", "ridge", "radius"), [(0, 0, 9.0), (0.8, 0, 9.0), (0.8, 0.05, 9.0), (0.5, 0, 1.0)]
    )
    def test_logistic_matches_a_slow_reference_in_the_plane(self, heterogeneity, ridge, radius):
        # Features on a circle: expectations over two angles by the trapezoidal rule, labels integrated out.
        crowd = population(
            dimension=2, signal_norm=2.0, domain=L2Ball(radius), heterogeneity=heterogeneity, ridge=ridge
        )
        angles = 2 * np.pi * np.arange(720) / 720
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        own = crowd.signal + heterogeneity * circle  # (users, 2)
        chances = expit(circle @ own.T).mean(axis=1)

        def risk(x):
            scores = circle @ x
            losses = chances * np.logaddexp(0, -scores) + (1 - chances) * np.logaddexp(0, scores)
            return losses.mean() + 0.5 * ridge * x @ x

        best = crowd.optimum
        grid = np.linspace(0, min(2.0, radius), 4001)
        along = grid[np.argmin([risk(c * crowd.signal / 2.0) for c in grid])]
        assert np.linalg.norm(best) == pytest.approx(along, abs=6e-4)
        for offset in ([0.5, -0.2], [-0.05, 0.02], [-1.0, -1.0]):
            other = crowd.domain.project(best + np.array(offset))
            found = crowd.excess_risk(other) - crowd.excess_risk(best)
            assert found == pytest.approx(risk(other) - risk(best), rel=1e-9)

    def test_divergence_is_accurate_in_relative_terms_at_every_size(self):
        rng = np.random.default_rng(1)
        nodes, weights = np.polynomial.legendre.leggauss(200)
        t, best = (nodes + 1) / 2, 4 * rng.standard_normal(2_000)
        for scale in (1e-9, 1e-6, 1e-3, 3e-2, 1.0, 10.0):
            gap = scale * rng.standard_normal(2_000)
            # reference: gap^2 times the integral of (1 - t) sigmoid'(b + t gap), every term positive
            s = expit(best[:, None] + gap[:, None] * t)
            expected = gap**2 * ((s * (1 - s) * (1 - t)) @ (weights / 2))
            np.testing.assert_allclose(divergence(best, gap), expected, rtol=1e-6, atol=1e-15)

    @pytest.mark.parametrize("dimension", [1, 2, 3, 4, 7, 50, 20_000])
    def test_plane_quadrature_has_the_moments_of_two_sphere_coordinates(self, dimension):
        along, across, weights = sphere_plane(dimension)
        both = dimension > 1
        moments = {  # of along^i across^j
            (0, 0): 1.0,
            (2, 0): 1 / dimension,
            (0, 2): both / dimension,
            (1, 1): 0.0,
            (4, 0): 3 / (dimension * (dimension + 2)),
            (2, 2): both / (dimension * (dimension + 2)),
            (0, 6): both * 15 / (dimension * (dimension + 2) * (dimension + 4)),
        }
        for (i, j), expected in moments.items():
            assert weights @ (along**i * across**j) == pytest.approx(expected, rel=1e-11, abs=1e-16)

    @pytest.mark.parametrize(
        ("family", "domain"), [("least_squares", L2Ball(0.5)), ("linear", L2Ball(2.0)), ("linear", Box(0.4))]
    )
    def test_closed_forms_match_the_average_over_many_items(self, family, domain):
        crowd = population(family, domain=domain, users=50_000, items_per_user=4, label_noise=0.0)
        batch = crowd.items(np.arange(50_000))
        other = domain.project(np.array([0.3, -0.2, 0.1, 0.4]))
        losses = [crowd.loss.value(batch.features.astype(np.float64) @ x, batch.labels) for x in (other, crowd.optimum)]
        # 200,000 items: false alarm < 1e-6
        error = np.std(losses[0] - losses[1]) / np.sqrt(len(losses[0]))
        found = crowd.excess_risk(other) - crowd.excess_risk(crowd.optimum)
        assert abs(found - np.mean(losses[0] - losses[1])) < 6 * error

    def test_a_box_that_cuts_off_a_logistic_optimum_is_refused(self):
        with pytest.raises(ConfigError, match="Expected the optimum inside the box"):
            population(domain=Box(0.1)).excess_risk(np.zeros(4))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("probit", {}, "Expected family to be one of logistic, least_squares, linear, quadratic, got family='probit'"),
        ("logistic", {"seed": -1}, "seed"),
        ("linear", {"signal_norm": 1.5}, "signal_norm"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(family, changes, message):
    with pytest.raises(ConfigError, match=message):
        population(family, **changes)


def test_outliers_out_of_range_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"outlier_fraction=1\.5"):
        Outliers(1.5)
    with pytest.raises(ConfigError, match="outlier_kind='rude'"):
        Outliers(0.1, "rude")

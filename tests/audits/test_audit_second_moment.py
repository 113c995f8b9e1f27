"""Audits of the pilot's second moment and of the radius cells, on worst-case neighbours, and of their broken twins."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from audits.harness import delta_bounds, epsilon_lower_bound
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.moment import SecondMomentNoise
from quoron_privacy.means.radius_cells import RadiusCells
from quoron_privacy.noise.sources import SeededNoise
from sums import clipped_residuals

EPSILON, DELTA, COHORT = 1.0, 0.01, 5
DRAWS = 6_000
MU = gdp.mu_for(EPSILON, DELTA)
PILOT = SecondMomentNoise.for_mu(dimension=2, feature_norm=1.0, divisor=COHORT, mu=MU)
FACTORS = {"e1": [7.0, 0.0, 0.0], "e2": [0.0, 0.0, 7.0], "absent": [np.nan, 0.0, 0.0]}  # clients that send too much


def pilot(own, noise, seed, release=None):
    """The released moment of four users at e₁ and one own user, along the line on which the worlds differ."""
    factors = np.array([FACTORS["e1"]] * COHORT)
    factors[2] = FACTORS[own]
    stream, sums = SeededNoise(seed).stream("pilot"), noise.reduction.of(factors, np.ones(COHORT, bool))

    def draw(draws):
        released = np.array([noise.release(sums, stream) for _ in range(draws)])
        return released[:, 0, 0] - released[:, 1, 1]

    return draw


def pilot_epsilon(noise, worlds=("e1", "e2"), draws=DRAWS):
    one, two = (pilot(own, noise, seed) for seed, own in enumerate(worlds))
    return epsilon_lower_bound(one, two, delta=DELTA, draws=draws)


class TestSecondMoment:
    def test_replacing_a_user_by_an_orthogonal_one_is_within_the_promise(self):
        assert 0.3 < pilot_epsilon(PILOT, draws=10_000) <= EPSILON

    def test_leaving_a_user_out_is_within_the_promise_under_its_own_noise(self):
        noise = SecondMomentNoise.for_mu(dimension=2, feature_norm=1.0, divisor=COHORT, mu=MU, adjacency="zero-out")
        assert pilot_epsilon(noise, ("e1", "absent")) <= EPSILON

    def test_a_quarter_of_the_noise_is_caught(self):
        assert pilot_epsilon(replace(PILOT, scale=PILOT.scale / 4)) > 2 * EPSILON

    def test_a_divisor_that_counts_who_answered_is_caught(self):
        # the twin divides by the number of answers: noise planned for 50, five come
        twin = replace(SecondMomentNoise.for_mu(dimension=2, feature_norm=1.0, divisor=50, mu=MU), divisor=COHORT)
        assert pilot_epsilon(twin) > 3 * EPSILON


SPLIT = 0.5  # of μ², to the cells
HONEST = (
    GaussianNoise(mean_sensitivity(1.0, COHORT), mean_sensitivity(1.0, COHORT) / (MU * sqrt(1 - SPLIT)) * (1 + 1e-6)),
    RadiusCells.for_mu(divisor=COHORT, mu=MU * sqrt(SPLIT)),
)


def round_of(own, mechanisms, seed, draws):
    """Released (unit mean, three cells) of four users at the centre and one own user; shape (draws, 4)."""
    gaussian, cells = mechanisms
    rows = np.zeros((COHORT, 1))
    rows[1] = own
    unit, counts, _ = clipped_residuals(rows, None, np.ones(COHORT, bool), 1.0, 8.0, COHORT)
    noise = SeededNoise(seed)
    means = gaussian.release(np.repeat(unit, draws), noise.stream("release"))
    stream = noise.stream("cells")
    fractions = np.array([cells.release(counts, stream) for _ in range(draws)])
    return np.column_stack([means, np.diff(fractions, axis=1, prepend=0.0)])


def spent(mechanisms):
    """Bounds for δ(ε) of own rows 1 (first cell) and -5 (third), from the log-likelihood ratio of what came out."""
    gaussian, cells = mechanisms
    released = round_of(1.0, mechanisms, 3, DRAWS)
    centres = np.array([[1 / COHORT, 1.0, 0, 0], [-1 / COHORT, 0.8, 0, 0.2]])
    scales = np.array([gaussian.scale, cells.scale, cells.scale, cells.scale])
    far, near = (np.sum(((released - centre) / scales) ** 2, axis=1) for centre in centres[::-1])
    return delta_bounds((far - near) / 2, epsilon=EPSILON)


class TestRadiusCells:
    def test_a_gradient_and_its_cells_keep_the_promise_together_and_use_it_up(self):
        low, high = spent(HONEST)
        assert low <= DELTA <= high

    def test_cells_released_free_of_charge_are_caught(self):
        whole = mean_sensitivity(1.0, COHORT) / MU
        assert spent((GaussianNoise(mean_sensitivity(1.0, COHORT), whole), HONEST[1]))[0] > DELTA

    @pytest.mark.parametrize("which", [0, 1])
    def test_a_quarter_of_either_noise_is_caught(self, which):
        mechanisms = list(HONEST)
        mechanisms[which] = replace(mechanisms[which], scale=mechanisms[which].scale / 4)
        assert spent(mechanisms)[0] > DELTA

"""Audits of the pilot's second moment on worst-case neighbours, and of its broken twins."""

from dataclasses import replace

import numpy as np

from audits.harness import epsilon_lower_bound
from quoron_privacy.accounts import gdp
from quoron_privacy.means.moment import SecondMomentNoise
from quoron_privacy.noise.sources import SeededNoise

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

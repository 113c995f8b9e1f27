"""Audits of the Gaussian release of a clipped mean, on worst-case neighbours, and of its broken twins."""

import numpy as np
import pytest

from audits.harness import delta_bounds, epsilon_lower_bound
from quoron_privacy.accounts import gdp
from quoron_privacy.gaussian import GaussianNoise, mean_sensitivity
from quoron_privacy.means.clipping import clipped_mean
from quoron_privacy.noise.sources import SecureNoise, SeededNoise

EPSILON, DELTA, NORM, COHORT = 2.0, 1e-5, 1.0, 10
DRAWS = 200_000
SENSITIVITY = mean_sensitivity(NORM, COHORT)
MU = gdp.mu_for(EPSILON, DELTA, gaussians=1)
HONEST = GaussianNoise.for_mu(sensitivity=SENSITIVITY, mu=MU, dimension=1)


def world(own, noise, source, name, norm=NORM):
    """The released mean of nine users at zero and one own user."""
    rows = np.zeros((COHORT, 1))
    rows[3] = own
    mean, _ = clipped_mean(rows, np.ones(COHORT, bool), norm, COHORT)
    return lambda draws: noise.release(np.full(draws, mean[0]), source.stream(name))


def audit(noise, *, norm=NORM, source=SeededNoise(21), own=1e6):  # noqa: B008
    """The worst neighbours: the own user at opposite ends."""
    worlds = (world(value, noise, source, name, norm) for value, name in ((own, "P"), (-own, "Q")))
    return epsilon_lower_bound(*worlds, delta=DELTA, draws=DRAWS)


@pytest.mark.parametrize("source", [SeededNoise(22), SecureNoise(b"k" * 32)], ids=["seeded", "secure"])
def test_a_release_never_exceeds_its_claimed_epsilon(source):
    found = audit(HONEST, source=source)
    assert 0.5 < found <= EPSILON


def test_the_audit_catches_a_quarter_of_the_noise():
    assert audit(GaussianNoise(SENSITIVITY, HONEST.scale / 4)) > EPSILON


def test_the_audit_catches_the_sensitivity_of_one_end_instead_of_two():
    half = GaussianNoise.for_mu(sensitivity=SENSITIVITY / 2, mu=MU, dimension=1)
    assert audit(half) > EPSILON


def test_the_audit_catches_a_missing_clip():
    assert audit(HONEST, norm=float("inf")) > EPSILON


def test_the_audit_catches_noise_that_is_used_twice():
    # Two releases, each with half of the budget's μ²; the own user takes part in the second only.
    noise = GaussianNoise(SENSITIVITY, SENSITIVITY * np.sqrt(2) / gdp.mu_for(EPSILON, DELTA))

    def difference(own, seed, labels):
        def draw(draws):
            out = np.empty(draws)
            for i in range(draws):
                streams = [SeededNoise(seed + i).stream(*label) for label in labels]
                first, second = (noise.release(np.array([v]), s)[0] for v, s in zip((0.0, own), streams, strict=True))
                out[i] = second - first
            return out

        return draw

    def found(labels):
        worlds = (difference(own, seed, labels) for own, seed in ((NORM / COHORT, 0), (-NORM / COHORT, 50_000)))
        return epsilon_lower_bound(*worlds, delta=DELTA, draws=3000)

    assert found([("round", 0), ("round", 1)]) <= EPSILON
    assert found([("round",), ("round",)]) > EPSILON


@pytest.mark.parametrize(("factor", "caught"), [(1.0, False), (0.25, True), (0.5, True)])
def test_the_likelihood_ratio_audit_bounds_delta(factor, caught):
    # 64 coordinates that all move; L of the release under the noise that was really used
    used, d, draws = GaussianNoise(SENSITIVITY, HONEST.scale * factor), 64, 20_000
    shift = SENSITIVITY / np.sqrt(d)
    out = used.release(np.full((draws, d), shift), SeededNoise(23).stream("lr"))
    log_ratio = ((out * shift - shift**2 / 2) / used.scale**2).sum(axis=1)
    low, _ = delta_bounds(log_ratio, epsilon=EPSILON)
    assert (low > DELTA) == caught

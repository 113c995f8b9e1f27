"""The truncated mean: what it promises in all, that one user moves it no further, that it finds the mean."""

from quoron_privacy.accounts import gdp
from quoron_privacy.means.private_range import calibrate

KNOWN = {"users": 20_000, "dimension": 10, "bound": 1.0, "spread": 1e-4, "mu": 0.2367}


def test_mu_of_a_release_gives_the_epsilon_promised():
    mean = calibrate("range", **{**KNOWN, "mu": gdp.mu_for(1.0, 1e-6)})
    assert 0.98 < gdp.epsilon_for(mean.mu(10), 1e-6) <= 1.0

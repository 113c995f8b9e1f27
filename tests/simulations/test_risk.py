"""Measured excess risk falls as the theory says: with more users, with more items, and with more ε."""

from functools import cache

import pytest

import quoron

# Users of 8 items, 4 features, a generous promise: the filter is feasible with few users.
BASE = [
    "population.items_per_user=8",
    "population.dimension=4",
    "domain.radius=4.0",
    "privacy.epsilon=8",
    "privacy.delta=1e-3",
]


def laid(settings):
    """The base's settings, but for keys that are in `settings`."""
    own = {each.partition("=")[0] for each in settings}
    return [*(each for each in BASE if each.partition("=")[0] not in own), *settings]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run an algorithm on `BASE` and further settings: each run once for the whole file, with its seed."""
    place = tmp_path_factory.mktemp("risk")

    @cache
    def carried_out(algorithm, *settings, seed):
        out = place / str(carried_out.cache_info().misses)
        return quoron.simulate(algorithm=algorithm, seed=seed, out=out, settings=laid(settings))

    return carried_out


@pytest.mark.slow
def test_a_few_outliers_are_filtered_and_do_no_harm(ran):
    users = "population.users=64000"
    attack = ("population.outliers.share=4e-5", "population.outliers.send=huge")
    clean, attacked = (ran("filtered-sgd", users, *more, seed=0).summary.excess_risk for more in ((), attack))
    assert attacked < 2 * clean


def test_predictions_are_within_a_factor_of_five_of_what_is_measured(ran):
    for algorithm in ("filtered-sgd", "one-pass-dp-sgd", "phased-sgd"):
        users = 64_000 if algorithm == "filtered-sgd" else 16_000
        run = ran(algorithm, f"population.users={users}", seed=0)
        found = run.plan.predicted_excess_risk or run.plan.guessed_excess_risk
        assert run.summary.excess_risk / 5 < found < 5 * run.summary.excess_risk

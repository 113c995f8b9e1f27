"""What a lifetime is told of runs on secret samples: true of every (μ, t) by an account of its own, and re-checked."""

import math
from dataclasses import replace
from functools import cache, partial, reduce

import numpy as np
import pytest

from contracts.scenes import PROBLEM, make_plan
from contracts.test_gaussian_promises import shrunk
from cover import by_default
from privacy import first_account
from quoron_privacy.accounts.approximate_gdp import SHARES
from quoron_privacy.accounts.gdp import delta_for
from quoron_privacy.accounts.lifetime import Charge
from quoron_privacy.errors import VerificationError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.mean import MeanSGDParameters
from quoron_server.algorithms.noisy import NoisySGDParameters
from quoron_server.plan import Privacy, RunPlan
from quoron_server.runs import charge_of

PRIVACY = Privacy(1.0, 1e-6)
OPTIONS = {
    "dp-sgd-wor": {"rounds": 100, "rate": 0.05},
    "dp-sgd-poisson": {"rounds": 100, "rate": 0.05},
    "recentred-sgd": {"rounds": 100, "rate": 0.05},
}
OTHERS = tuple(name for name in ALGORITHMS if name not in (*OPTIONS, "mean-sgd"))  # of secret samples, too
SCALES = ("noise_scale", "multiplier")
NOTHING = (), 0.0


@cache
def planned(name: str, privacy: Privacy = PRIVACY) -> RunPlan:
    info = ALGORITHMS[name]
    return info.plan(PROBLEM, privacy, info.options(**OPTIONS[name]), "calibrated", 7)


def known(plan: RunPlan) -> list[tuple[float, float]]:
    """(ε, δ) of replacing one user, by the account that finds noise, which the lifetime does not ask."""
    p, n = plan.parameters, plan.problem.users
    assert isinstance(p, NoisySGDParameters | MeanSGDParameters)
    if p.poisson_sampling:
        epsilon = partial(
            first_account.poisson_epsilon, p.cohort_size / n, p.rounds, p.round_mu, adjacency="replace-one"
        )
    else:
        epsilon = partial(first_account.wor_epsilon, p.cohort_size / (n - 1), p.rounds, p.round_mu)
    return [(found, delta) for delta in np.geomspace(2e-9, 0.05, 24).tolist() if (found := epsilon(delta=delta)) > 0]


every = pytest.mark.parametrize("name", by_default(tuple(OPTIONS), ("dp-sgd-wor",)))


@every
def test_every_mu_and_t_is_true_of_the_run_and_hardly_any_smaller_mu_is(name: str) -> None:
    plan = planned(name)
    near, lack = ALGORITHMS[name].near_gaussian(plan)
    assert near[-1][1] == pytest.approx(SHARES[-1] * 1e-6)
    twice = 1 if plan.guarantee.adjacency == "replace-one" else 2
    points = known(plan)
    for mu, lost in near:
        claimed, less = ([lost + (1 - lost) * delta_for(size, at) for at, _ in points] for size in (mu, 0.9 * mu))
        assert all(delta <= most * 1.01 for (_, delta), most in zip(points, claimed, strict=True))
        tight = any(delta > most for (_, delta), most in zip(points, less, strict=True))
        assert tight or name == "accelerated-erm"  # few rounds: its profile falls too steeply for so few points
    assert 0 < lack < 1e-30
    charge = Charge("run", "everyone", **charge_of(plan))
    assert (charge.mu, charge.near, charge.variation) == (None, near, lack)
    assert charge.replace_one[0] == twice
    assert f"μ = {near[0][0]:g} but for t = " in charge.words()


@every
def test_less_noise_than_the_plan_says_is_no_promise(name: str) -> None:
    plan = planned(name)
    numbers = reduce(lambda held, _: shrunk(held, SCALES), range(20), plan.parameters)
    broken = replace(plan, parameters=numbers)
    with pytest.raises(VerificationError):
        ALGORITHMS[name].near_gaussian(broken)
    unproved = replace(plan, guarantee=replace(plan.guarantee, proved=False))
    assert ALGORITHMS[name].near_gaussian(unproved) == NOTHING


@pytest.mark.slow
@pytest.mark.parametrize("name", by_default(("dp-sgd-poisson", "dp-sgd-wor"), ("dp-sgd-poisson",)))
def test_a_min_cohort_is_counted_beside_it(name: str) -> None:
    info = ALGORITHMS[name]
    privacy = replace(PRIVACY, epsilon=2.0, min_cohort=0.5, min_cohort_epsilon=1.0)
    plan = info.plan(PROBLEM, privacy, info.options(rounds=4, rate=0.25), "calibrated", 7)
    min_cohort = plan.guarantee.min_cohort
    own, whole = (info.near_gaussian(each) for each in (plan.without("min_cohort"), plan))
    assert min_cohort is not None
    (alone, lost), (both, same) = own[0][-1], whole[0][-1]
    assert same == lost
    assert alone <= both < math.hypot(alone, min_cohort.mu) * 1.02
    assert (alone < both) == (min_cohort.mu > 0)  # else the rounds tell it for nothing
    assert whole[1] > own[1]


def test_whoever_asks_everybody_is_gaussian_and_nothing_nearly() -> None:
    info = ALGORITHMS["dp-sgd-wor"]
    plan = info.plan(PROBLEM, PRIVACY, info.options(rounds=5, rate=1.0), "calibrated", 7)
    assert info.gaussian(plan) is not None
    assert info.near_gaussian(plan) == NOTHING
    assert charge_of(plan)["near"] == ()


@pytest.mark.parametrize("name", by_default(OTHERS, ("tracking-srgd", "outlier-iterates", "local-model", "sgd")))
def test_without_secret_samples_there_is_none(name: str) -> None:
    assert ALGORITHMS[name].near_gaussian(make_plan(name)) == NOTHING

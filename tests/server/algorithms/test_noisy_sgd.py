"""Clipped noisy SGD: its plans are re-checked, its rounds have the claimed sensitivity."""

from dataclasses import replace

import pytest

from contracts.scenes import make_plan
from quoron_privacy.errors import VerificationError
from quoron_server.algorithms import ALGORITHMS

PRIVATE = ["one-pass-dp-sgd", "dp-sgd-poisson", "dp-sgd-wor"]

BROKEN = {
    "a quarter of the noise": lambda p: replace(p, noise_scale=p.noise_scale / 4),
    "a quarter of the noise, and of its claim": lambda p: replace(
        p, noise_scale=p.noise_scale / 4, round_mu=4.001 * p.round_mu
    ),
    "half the sensitivity": lambda p: replace(p, sensitivity=p.sensitivity / 2),
    "twice the clip": lambda p: replace(p, clip_norm=2 * p.clip_norm),
    "another sampling": lambda p: replace(p, sampling="poisson" if p.sampling == "disjoint" else "disjoint"),
}


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("how", list(BROKEN))
def test_a_broken_plan_is_refused_before_it_runs(name, how):
    plan = make_plan(name)
    with pytest.raises(VerificationError):
        ALGORITHMS[name].make(replace(plan, parameters=BROKEN[how](plan.parameters)))


def test_overlapping_cohorts_are_refused():
    plan = make_plan("one-pass-dp-sgd")
    with pytest.raises(VerificationError, match="disjoint"):
        ALGORITHMS["one-pass-dp-sgd"].make(replace(plan, parameters=replace(plan.parameters, rounds=7)))

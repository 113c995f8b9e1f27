"""A plan promises what its algorithm's theorem is about, or it does not run."""

from dataclasses import replace

import pytest

from contracts.scenes import make_plan
from quoron_privacy.errors import VerificationError
from quoron_server.algorithms import ALGORITHMS

every_algorithm = pytest.mark.parametrize("name", list(ALGORITHMS))


@every_algorithm
@pytest.mark.parametrize(("field", "value"), [("exposure", "local"), ("adjacency", "add-remove")])
def test_another_promise_than_the_theorem_gives_is_refused(name, field, value):
    plan = make_plan(name)
    value = "broadcast" if value == plan.guarantee.exposure else value
    with pytest.raises(VerificationError, match=field):
        ALGORITHMS[name].make(replace(plan, guarantee=replace(plan.guarantee, **{field: value})))


def test_poisson_noise_is_not_enough_for_replacing_a_user():
    plan = make_plan("dp-sgd-poisson")
    with pytest.raises(VerificationError, match="adjacency"):
        ALGORITHMS[plan.algorithm].make(replace(plan, guarantee=replace(plan.guarantee, adjacency="replace-one")))


@every_algorithm
def test_a_plan_of_another_algorithm_is_refused(name):
    other = "sgd" if name != "sgd" else "phased-sgd"
    with pytest.raises(VerificationError, match="algorithm"):
        ALGORITHMS[name].make(make_plan(other))


@pytest.mark.parametrize("change", [{"step_size": -1.0}, {"rounds": -3}, {"suffix": 0}])
def test_nonsense_phases_are_refused(change):
    plan = make_plan("phased-sgd")
    phases = (*plan.parameters.phases[:-1], replace(plan.parameters.phases[-1], **change))
    with pytest.raises(VerificationError):
        ALGORITHMS["phased-sgd"].make(replace(plan, parameters=replace(plan.parameters, phases=phases)))

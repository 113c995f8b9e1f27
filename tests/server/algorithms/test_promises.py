"""A plan promises what its algorithm's theorem is about, or it does not run."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from contracts.scenes import make_plan
from quoron_privacy.errors import ConfigError, VerificationError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.registered import derived
from quoron_server.algorithms.spec import Calibrated, Printed
from quoron_server.parameters import Parameters, PrintedParameters
from quoron_server.plan import Privacy
from quoron_server.problem import Problem
from quoron_server.schedule import Rounds

every_algorithm = pytest.mark.parametrize("name", list(ALGORITHMS))


def test_poisson_noise_is_not_enough_for_replacing_a_user():
    plan = make_plan("dp-sgd-poisson")
    replaced = replace(plan, guarantee=replace(plan.guarantee, adjacency="replace-one"))
    with pytest.raises(VerificationError, match="Expected numbers for adjacency 'replace-one'"):
        ALGORITHMS[plan.algorithm].make(replaced)
    called = replace(replaced, parameters=replace(plan.parameters, sampling="poisson-replaced"))
    with pytest.raises(VerificationError, match="the plan spends"):
        ALGORITHMS[plan.algorithm].make(called)


@every_algorithm
def test_a_plan_of_another_algorithm_is_refused(name):
    other = "sgd" if name != "sgd" else "phased-sgd"
    with pytest.raises(VerificationError, match="algorithm"):
        ALGORITHMS[name].make(make_plan(other))


@dataclass(frozen=True, slots=True)
class _Open:
    """A paper's open constants."""

    c: float = 1.0


@dataclass(frozen=True, slots=True)
class _AsPrinted(PrintedParameters):
    """Numbers of another run, as if a paper had printed them."""

    own: Parameters

    def stretches(self, problem: Problem) -> Iterable[Rounds]:
        return self.own.stretches(problem)


def test_what_a_planner_leaves_open_is_as_the_registry_says_and_what_it_says_wins():
    info, made = ALGORITHMS["one-pass-dp-sgd"], make_plan("one-pass-dp-sgd")
    bare = replace(info, planner=lambda *_: Calibrated(made.parameters, risk=2.0))
    plan = bare.plan(made.problem, Privacy(3.0, 1e-5), seed=9)
    promise = plan.guarantee
    assert (plan.algorithm, plan.seed, promise.epsilon, promise.delta) == (info.name, 9, 3.0, 1e-5)
    assert (promise.trust_model, promise.adjacency, promise.theorem) == (
        "central-broadcast",
        "replace-one",
        info.guarantees.theorem,
    )
    assert promise.proved
    assert promise.assumptions == derived(plan)
    assert plan.cost == made.cost
    assert (plan.guessed_excess_risk, plan.predicted_excess_risk) == (2.0, info.factor.bound(2.0, made.problem))
    other = Calibrated(made.parameters, None, "elsewhere.md#x1", "model", "zero-out")
    numbers = _AsPrinted(5.0, 1e-5, ("c = 1",), ("η β = 2 > 1",), made.parameters)
    other = replace(other, parameters=numbers)
    printed = Printed(_Open, _AsPrinted, lambda *_: other, lambda plan: plan, lambda *_: 7.0)
    with_paper = replace(info, printed=printed)
    plan = with_paper.plan(made.problem, Privacy(3.0, 1e-5), constants="paper")
    assert plan.guarantee.epsilon == 7.0  # what our accountant finds, whatever was asked for
    assert "as printed: ε = 7, δ = 1e-05, zero-out, by our accountant; the paper claims ε = 5\n" in repr(plan)
    filled = "Filled in where the paper leaves a constant open: c = 1."
    assert numbers.remarks()[1:] == (filled, "η β = 2 > 1")
    for refused in (Privacy(3.0, 1e-5, 0.5, 0.1), Privacy(3.0, 1e-5, trust_model="two-servers")):
        with pytest.raises(ConfigError, match="with constants='paper'"):
            with_paper.plan(made.problem, refused, constants="paper")
    with pytest.raises(ConfigError, match="calibrated constants"):
        plan.require_deployable(trust_clients=True)
    assert (plan.guarantee.theorem, plan.guarantee.trust_model) == ("elsewhere.md#x1", "model")
    assert (plan.guarantee.adjacency, plan.guarantee.proved) == ("zero-out", False)
    assert (plan.cost, plan.predicted_excess_risk) == (made.cost, None)

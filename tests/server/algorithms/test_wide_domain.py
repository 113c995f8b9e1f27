"""A wide domain costs methods whose noise does not depend on it nothing: the same plan, but for the domain."""

from dataclasses import replace

import pytest

from problems import changed
from quoron_client.protocol.domains import L2Ball
from quoron_privacy.errors import QuoronError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy, RunPlan
from quoron_server.problem import Beliefs, Problem, Wide

PROBLEM = Problem(
    users=20_000,
    items_per_user=5,
    dimension=8,
    domain=L2Ball(3.0),
    lipschitz=1.25,
    smoothness=0.25,
    start_gradient=0.5,
    feature_norm=1.0,
    link_curvature=0.25,
    beliefs=Beliefs(distance=3.0),
)
WIDE = replace(PROBLEM, wide=Wide(L2Ball(30.0), 7.0))
PRIVATE = [name for name, info in ALGORITHMS.items() if info.trust_model != "none"]


def planned(name: str, problem: Problem) -> RunPlan | str:
    adjacency = ALGORITHMS[name].guarantees.adjacency[0]
    try:
        return ALGORITHMS[name].plan(problem, Privacy(4.0, 1e-5))
    except QuoronError as error:
        return f"{adjacency}: {error}"


@pytest.mark.parametrize("name", PRIVATE)
def test_a_wide_domain_changes_nothing_else(name: str) -> None:
    narrow, wide = planned(name, PROBLEM), planned(name, WIDE)
    if isinstance(narrow, str) or isinstance(wide, str):
        assert narrow == wide
        return
    assert wide.problem == WIDE.settled(wide=ALGORITHMS[name].noise_ignores_domain)
    assert wide.problem.domain == (L2Ball(30.0) if ALGORITHMS[name].noise_ignores_domain else PROBLEM.domain)
    assert replace(wide, problem=narrow.problem) == narrow
    ALGORITHMS[name].verify(wide)


def test_some_methods_take_a_wide_domain() -> None:
    assert {name for name in PRIVATE if ALGORITHMS[name].noise_ignores_domain} >= {
        "tracking-srgd",
        "recentred-sgd",
        "dp-sgd-wor",
    }


@pytest.mark.parametrize("name", [name for name in PRIVATE if ALGORITHMS[name].noise_ignores_domain])
def test_the_noise_of_a_wide_method_does_not_depend_on_the_domain(name: str) -> None:
    """All its parameters are the same in a domain a hundred times as wide, where the optimum is believed to be near."""
    problem = changed(PROBLEM, sigmoid=True)
    near, far = planned(name, problem), planned(name, replace(problem, domain=L2Ball(300.0)))
    assert not isinstance(near, str)
    assert not isinstance(far, str)
    assert far.parameters == near.parameters

"""The n, ε and rounds that an `Infeasible` names are feasible, for every algorithm and all else as it is."""

import pickle
import re
from dataclasses import fields, replace
from typing import Any

import pytest

import quoron
from cover import by_default
from problems import problem_of
from quoron.config import from_tree
from quoron.simulation.comparison import Request
from quoron_client.protocol.domains import Box, L2Ball
from quoron_privacy.errors import ConfigError, Infeasible, Needs, QuoronError
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.search import settled
from quoron_server.plan import Privacy

FEW = problem_of(
    users=50,
    items_per_user=5,
    dimension=10,
    domain=L2Ball(3.0),
    lipschitz=1.0,
    smoothness=0.25,
    user_smoothness=0.06,
    start_gradient=0.5,
    feature_norm=1.0,
    link_curvature=0.25,
    sigmoid=True,
)
PLAIN = Privacy(1.0, 1e-6)
PROBLEMS = {
    "few users": (FEW, PLAIN),
    "few users in a box": (replace(FEW, domain=Box(1.0), coordinate_smoothness=0.25), PLAIN),
    "few users, two servers": (FEW, Privacy(1.0, 1e-6, trust_model="two-servers")),
    "a small epsilon": (replace(FEW, users=1_000), Privacy(0.3, 1e-6)),
    "the least epsilon, two servers": (
        replace(FEW, users=3_000),
        Privacy(0.01, 1e-6, trust_model="two-servers", groups=3),
    ),
    "many columns": (replace(FEW, users=2_000, dimension=900), PLAIN),
}
SOME = {  # for some algorithms only: the others need long
    "a minimum cohort": (FEW, Privacy(1.0, 1e-6, 0.8, 0.1)),
    "too small an epsilon": (replace(FEW, users=3_000), Privacy(0.05, 1e-6)),
    "more users": (replace(FEW, users=300_000, items_per_user=50), PLAIN),
}
NUMBERS = {
    "users": r"\bn >= ([\d,]+)",
    "epsilon": r"epsilon >= ([\d.e-]*\d)",
    "rounds": r"(?:^|at most |rounds >= )([\d,]+)(?= to| rounds|$| and)",
}


def ways(needs: str) -> list[dict[str, float]]:
    """What words ask for: numbers with "and" between them together, those with "or" between them each alone."""
    found = []
    for way in re.split(r",? or (?=n >=|epsilon >=)", needs):
        said = {name: re.search(pattern, way) for name, pattern in NUMBERS.items()}
        found.append({name: float(match[1].replace(",", "")) for name, match in said.items() if match})
    return [each for each in found if each]


def holds(name: str, scene: str, options: Any = None, constants: Any = "calibrated") -> int:
    """How many hints there are about one algorithm; each is planned for, with everything else as it is."""
    info, (problem, privacy) = ALGORITHMS[name], {**PROBLEMS, **SOME}[scene]
    options = info.options_for(constants)() if options is None else options
    needs = ""
    try:
        info.plan(problem, privacy, options, constants)
    except Infeasible as error:
        needs, users = error.needs, error.users
    except QuoronError:  # nothing that other numbers would mend
        pass
    found = ways(needs)
    assert not needs or users is None or {"users": users} in found, needs
    for way in found:
        info.plan(
            replace(problem, users=int(way.get("users", problem.users))),
            replace(privacy, epsilon=way.get("epsilon", privacy.epsilon)),
            replace(options, rounds=int(way["rounds"])) if "rounds" in way else options,
            constants,
        )
    return len(found)


@pytest.mark.parametrize("scene", by_default(PROBLEMS, ["few users"]))
def test_numbers_that_an_infeasible_problem_is_told_are_feasible_for_every_algorithm(scene: str) -> None:
    assert sum(holds(name, scene) for name in ALGORITHMS) >= 1


@pytest.mark.parametrize(
    "scene", by_default(["few users", "a small epsilon", "many columns", "more users"], ["few users"])
)
def test_so_they_are_with_printed_constants(scene: str) -> None:
    able = [name for name, info in ALGORITHMS.items() if "paper" in info.constants]
    assert sum(holds(name, scene, constants="paper") for name in able) >= 1


@pytest.mark.parametrize("rounds", by_default([1, 5, 1_000], [1]))
def test_so_they_are_with_a_number_of_rounds(rounds: int) -> None:
    able = [name for name, info in ALGORITHMS.items() if "rounds" in {each.name for each in fields(info.options)}]
    assert sum(holds(name, "few users", ALGORITHMS[name].options(rounds=rounds)) for name in able) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["filtered-sgd", "outlier-gd"])
def test_so_they_are_with_a_minimum_cohort(name: str) -> None:
    assert holds(name, "a minimum cohort") == 1


@pytest.mark.slow
def test_an_epsilon_at_which_there_are_too_few_users_is_named_with_their_number() -> None:
    assert holds("filtered-sgd", "too small an epsilon") == 1


PAPER = ("algorithm.constants=paper", "algorithm.name=filtered-sgd")


@pytest.mark.slow
def test_the_number_of_users_that_a_whole_configuration_is_told_will_do() -> None:
    with pytest.raises(Infeasible) as refused:
        quoron.plan("quickstart", settings=(*PAPER, "population.users=300_000"))
    assert 552_276 < refused.value.users < 1.1 * 576_300
    planned = quoron.plan("quickstart", settings=(*PAPER, f"population.users={refused.value.users}"))
    assert planned.plan.algorithm == "filtered-sgd"


@pytest.mark.slow
def test_a_limit_on_rounds_belongs_to_what_is_as_it_is() -> None:
    settings = ("algorithm.name=filtered-sgd", "budget.max_rounds=5")
    with pytest.raises(Infeasible) as refused:
        quoron.plan("quickstart", settings=(*settings, "population.users=500"))
    assert refused.value.users is not None
    planned = quoron.plan("quickstart", settings=(*settings, f"population.users={refused.value.users}"))
    assert planned.plan.cost.rounds <= 5


def test_an_algorithm_without_printed_constants_is_not_listed_as_infeasible_with_them() -> None:
    planned = quoron.plan("quickstart", settings=(*PAPER, "population.users=600_000"))
    printed = {name for name, info in ALGORITHMS.items() if "paper" in info.constants and info.trust_model != "none"}
    assert {each.algorithm for each in planned.candidates} == printed
    with pytest.raises(ConfigError, match=r"Expected algorithm.name with algorithm.constants='paper', got 'auto'"):
        quoron.plan("quickstart", settings=("algorithm.constants=paper",))
    assert not any("algorithm.constants" in each.reason for each in planned.candidates)


def test_so_it_is_where_algorithms_are_compared() -> None:
    paper, both = {"algorithm": {"constants": "paper"}}, {"algorithm.constants": ["calibrated", "paper"]}
    printed = {name for name, info in ALGORITHMS.items() if "paper" in info.constants and info.trust_model != "none"}
    assert set(Request.of(from_tree(paper)).algorithms) == printed
    cells = Request.of(from_tree({}), algorithms=["phased-sgd", "filtered-sgd"], vary=both).cells()
    assert [cell.algorithm for cell in cells] == ["phased-sgd", "filtered-sgd", "filtered-sgd"]
    with pytest.raises(ConfigError, match="one of calibrated for phased-sgd, got others"):
        Request.of(from_tree(paper), algorithms=["phased-sgd", "filtered-sgd"])


def test_where_no_number_of_users_will_do_none_is_named() -> None:
    def never(users: int, epsilon: float, rounds: int | None) -> None:
        raise Infeasible("some", f"n={users} are too few", f"n >= {2 * users:,}", users=2 * users)

    needs = settled(never, 70, 1.0, Needs("n >= 140, or fewer columns", 140))
    assert needs.users is None
    assert needs.words.startswith("other settings (no n up to")
    assert needs.words.endswith("or fewer columns")
    assert not ways(needs.words)


@pytest.mark.slow
def test_few_users_without_privacy_and_a_minimum_cohort_are_told_what_would_do() -> None:
    settings = ("algorithm.name=sgd", "privacy.min_cohort=0.8", "population.users=50")
    with pytest.raises(Infeasible, match=r"needs about [0-9,]+ users in every round or no minimum cohort"):
        quoron.plan("quickstart", settings=settings)


def test_what_is_infeasible_is_told_alike_by_another_process() -> None:
    with pytest.raises(Infeasible) as raised:
        ALGORITHMS["filtered-sgd"].plan(FEW, PLAIN, None, "calibrated", 0)
    copied = pickle.loads(pickle.dumps(raised.value))
    assert (str(copied), copied.users) == (str(raised.value), raised.value.users)

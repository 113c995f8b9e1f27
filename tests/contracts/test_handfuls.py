"""Planning for a handful of users ends, with a plan or with the reason why there is none."""

from dataclasses import replace

import pytest

from contracts.scenes import PRIVACY, PROBLEM
from quoron_privacy.accounts.roots import least_number
from quoron_privacy.errors import Infeasible
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Privacy
from quoron_server.problem import Problem

MANY = 10_000  # problems that a few plans may ask about: a search for enough users makes one for each number it tries
GENEROUS, TIGHT = Privacy(epsilon=15.0, delta=0.1), Privacy(epsilon=1.0, delta=1e-6)
SLOW = ("filtered-sgd", "local-model", "accelerated-erm", "dp-sgd-poisson")


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch):
    """Planning that asks about more problems than a search with an end would fails."""
    made, check = 0, Problem.__post_init__

    def counted(problem: Problem) -> None:
        nonlocal made
        made += 1
        assert made < MANY, "a search does not end"
        check(problem)

    monkeypatch.setattr(Problem, "__post_init__", counted)


def planned(name: str, users: int, privacy: Privacy) -> bool:
    info = ALGORITHMS[name]
    try:
        plan = info.plan(replace(PROBLEM, users=users), privacy, info.options(), "calibrated", 7)
    except Infeasible:
        return False
    info.verify(plan)
    return plan.problem.users == users


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "filtered-sgd"])
def test_a_plan_for_a_handful_answers_at_a_generous_budget(name: str, bounded: None) -> None:
    for users in (1, 2, 3, 8):
        planned(name, users, GENEROUS)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in SLOW])
def test_a_plan_for_a_handful_answers_at_a_tight_budget(name: str, bounded: None) -> None:
    for users in (1, 2, 3, 8):
        planned(name, users, TIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [GENEROUS, PRIVACY, TIGHT], ids=lambda privacy: f"{privacy.epsilon:g}")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_plan_for_every_handful_answers(name: str, privacy: Privacy, bounded: None) -> None:
    for users in range(1, 9):
        planned(name, users, privacy)


@pytest.mark.parametrize("within", [20, 10])
@pytest.mark.parametrize("too_few", [1, 2, 3, 7])
def test_the_search_for_enough_users_ends_close_to_the_least_of_them_however_few(too_few: int, within: int) -> None:
    for least in (*range(too_few + 1, 60), 1000, 12_345):
        tried: list[int] = []

        def enough(users: int, least: int = least, tried: list[int] = tried) -> bool:
            tried.append(users)
            assert len(tried) < 50, "it does not end"
            return users >= least

        found = least_number(enough, too_few + 1, within=within, most=10**6)
        assert least <= found <= (1 + 1 / within) * least + 1
        assert found in tried
    assert least_number(lambda users: False, too_few + 1, within=within, most=10**6) is None

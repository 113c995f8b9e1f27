"""How many real runs a lifetime limit admits, counted through the books, and that what they add up to is within it."""

import math
from pathlib import Path

import pytest
from scipy.stats import norm

from federation.crowd import specification
from quoron_privacy.accounts.lifetime import SAMPLERS, Charge
from quoron_privacy.errors import BudgetExceeded
from quoron_privacy.noise.streams import total_variation
from quoron_server.algorithms import ALGORITHMS
from quoron_server.books.database import Database
from quoron_server.plan import Plan
from quoron_server.runs import Books
from quoron_server.specification import RunSpecification, make_plan

EPSILON, DELTA = 4.0, 1e-5  # the limit
USERS = 20


def wanted(number: int, algorithm: str = "one-pass-dp-sgd") -> RunSpecification:
    return specification(algorithm, f"run-{number}", epsilon=0.5, delta=1e-7)


def small_plan(algorithm: str) -> Plan:
    return make_plan(wanted(0, algorithm))


def exact_delta(mu: float, epsilon: float) -> float:
    """δ of μ-GDP at ε by its formula."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def admitted(tmp_path: Path, share: float, plan: Plan) -> list[Charge]:
    """The charges of as many runs of `plan` as begin under the limit."""
    with Database(f"sqlite:///{tmp_path}/books.sqlite") as database:
        books = Books(database)
        for user in range(USERS):
            books.registry.enrol(f"user-{user}")
        books.population.limit("everyone", epsilon=EPSILON, delta=DELTA, gaussian_share=share)
        for number in range(200):
            run = wanted(number)
            books.registry.add_run(run.run, run.as_text())
            try:
                books.check(run, plan)
                books.begin(run, plan)
            except BudgetExceeded:
                break
        books.population.verify()
        return books.population.charges("everyone")


def most_gaussian(mu: float, variation: float, epsilon: float, delta: float) -> int:
    """The most runs for which both parts of lifetime#lt2 hold, one by one."""
    number = 0
    while (
        exact_delta(math.sqrt(number + 1) * mu, epsilon) <= (1 - SAMPLERS) * delta
        and (1 + math.exp(epsilon)) * (number + 1) * variation <= SAMPLERS * delta
    ):
        number += 1
    return number


@pytest.mark.parametrize(("share", "gaussian", "plain"), [(0.0, 0, 8), (0.5, 18, 4), (1.0, 69, 0)])
def test_runs_whose_theorem_proves_gaussian_privacy_add_up_as_squares(
    share: float, gaussian: int, plain: int, tmp_path: Path
) -> None:
    plan = small_plan("one-pass-dp-sgd")
    charges = admitted(tmp_path, share, plan)
    assert len(charges) == gaussian + plain
    promise = ALGORITHMS[plan.algorithm].gaussian(plan)
    assert promise is not None
    assert {(each.mu, each.variation) for each in charges} == {(promise.mu, promise.variation)}
    if share:
        assert gaussian == most_gaussian(promise.mu, promise.variation, share * EPSILON, share * DELTA)
    assert plain == math.floor((1 - share) * EPSILON / 0.5)
    # lifetime#lt2 by direct computation: all Gaussian runs as one, the samplers paid, beside Σ ε and Σ δ of the others
    spent = plain * 1e-7
    if gaussian:
        left = EPSILON - plain * 0.5
        spent += exact_delta(math.sqrt(gaussian) * promise.mu, left)
        spent += (1 + math.exp(left)) * gaussian * promise.variation
    assert spent <= DELTA


def test_without_samplers_to_pay_no_more_would_be_admitted() -> None:
    promise = ALGORITHMS["one-pass-dp-sgd"].gaussian(small_plan("one-pass-dp-sgd"))
    assert promise is not None
    assert promise.mu == pytest.approx(0.1112, abs=1e-4)
    free = [number for number in range(1, 200) if exact_delta(math.sqrt(number) * promise.mu, EPSILON) <= DELTA]
    assert free[-1] == 69
    assert promise.variation == total_variation(gaussians=3)


def test_a_run_that_proves_no_gaussian_privacy_finds_no_room_in_a_share_of_one(tmp_path: Path) -> None:
    plan = small_plan("dp-sgd-wor")
    assert ALGORITHMS["dp-sgd-wor"].gaussian(plan) is None
    assert admitted(tmp_path, 1.0, plan) == []


def test_every_other_run_is_charged_without_a_mu(tmp_path: Path) -> None:
    assert [each.mu for each in admitted(tmp_path, 0.5, small_plan("dp-sgd-wor"))] == [None] * 4

"""How many real runs a lifetime limit admits, counted through the store, and that what they add up to is within it."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import norm

from contracts.scenes import make_plan as planned
from federation.crowd import specification
from quoron_privacy.accounts import approximate_gdp
from quoron_privacy.accounts.lifetime import LOST, SAMPLERS, Charge, Limit, compose
from quoron_privacy.accounts.pair import DominatingPair
from quoron_privacy.errors import BudgetExceeded
from quoron_privacy.noise.streams import total_variation
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.noisy import NoisySGDParameters
from quoron_server.federation import RunStore
from quoron_server.plan import Privacy, RunPlan
from quoron_server.runs import charge_of
from quoron_server.specification import RunSpecification, make_plan
from quoron_server.storage.database import Database

EPSILON, DELTA = 4.0, 1e-5  # the limit
USERS = 20


def wanted(number: int, algorithm: str = "one-pass-dp-sgd") -> RunSpecification:
    return specification(algorithm, f"run-{number}", epsilon=0.5, delta=1e-7)


def small_plan(algorithm: str) -> RunPlan:
    return make_plan(wanted(0, algorithm))


def exact_delta(mu: float, epsilon: float) -> float:
    """δ of μ-GDP at ε by its formula."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def admitted(tmp_path: Path, share: float, plan: RunPlan) -> list[Charge]:
    """The charges of as many runs of `plan` as begin under the limit."""
    with Database(f"sqlite:///{tmp_path}/store.sqlite") as database:
        store = RunStore(database)
        for user in range(USERS):
            store.registry.enrol(f"user-{user}")
        store.population.limit("everyone", epsilon=EPSILON, delta=DELTA, gaussian_share=share)
        for number in range(200):
            run = wanted(number)
            store.registry.add_run(run.run, run.as_text())
            try:
                store._run(run, plan).check()
                store.begin(run, plan)
            except BudgetExceeded:
                break
        store.population.verify()
        return store.population.charges("everyone")


def most_gaussian(mu: float, variation: float, epsilon: float, delta: float) -> int:
    """The most runs for which both parts of lifetime#lt2 hold, one by one."""
    number = 0
    while (
        exact_delta(math.sqrt(number + 1) * mu, epsilon) <= (1 - SAMPLERS - LOST) * delta
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
    assert {each.variation for each in charges} == {promise.variation}
    assert all(each.mu is not None and 0 <= each.mu / promise.mu - 1 < 1e-7 for each in charges)
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
    assert promise.variation == pytest.approx(total_variation(gaussians=3), rel=1e-12)


def test_sixty_runs_on_secret_samples_fit_where_eight_did() -> None:
    info = ALGORITHMS["dp-sgd-wor"]
    problem = replace(small_plan("dp-sgd-wor").problem, users=2_000)
    plan = info.plan(problem, Privacy(0.5, 1e-7), info.options(rounds=100, rate=0.05))
    charge = Charge("run", "everyone", **charge_of(plan))
    assert charge.mu is None
    assert [lost / 1e-7 for _, lost in charge.near][-1] == pytest.approx(approximate_gdp.SHARES[-1])
    assert fitting(0.0, charge) == 8
    assert 20 <= fitting(0.5, charge) <= 22
    assert 60 <= fitting(1.0, charge) <= 69
    ten = [charge] * 10
    assert sum(each.epsilon for each in ten) == 5
    assert 1.4 < compose(ten).epsilon < 1.6
    assert 1.3 < compose(ten, DELTA).epsilon < 1.4
    assert compose([charge] * 60, DELTA).epsilon < EPSILON
    # and no fewer than the truth: all sixty as what they are, six thousand rounds
    round_mu = plan.parameters_of(NoisySGDParameters).round_mu
    whole = DominatingPair.sampled(100 / 1999, round_mu, 6_000, "replace-one").delta(EPSILON, DELTA)
    assert 0.05 * DELTA < whole < DELTA


def fitting(share: float, wanted: Charge) -> int:
    """How many of a charge a limit takes."""
    account, number = Limit("everyone", EPSILON, DELTA, share).account(), 0
    while (account := account.after(wanted)).holds:
        number += 1
    return number


def test_runs_on_secret_samples_pass_through_the_store_as_what_they_are(tmp_path: Path) -> None:
    charges = admitted(tmp_path, 1.0, small_plan("dp-sgd-wor"))
    assert 60 <= len(charges) <= 69
    assert {each.mu for each in charges} == {None}
    assert min(len(each.near) for each in charges) >= 1
    assert len({each.promise for each in charges}) == 1


def test_a_run_of_which_nothing_gaussian_is_known_finds_no_room_in_a_share_of_one() -> None:
    charge = Charge("run", "everyone", **charge_of(planned("local-model", None, Privacy(0.5, 1e-7))))
    assert (charge.mu, charge.near) == (None, ())
    assert [fitting(share, charge) for share in (0.0, 0.5, 1.0)] == [8, 4, 0]

"""Declarations bought beside any Gaussian algorithm: paid within the promise, charged beforehand, re-checked, told."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from contracts.scenes import PRIVACY, PROBLEM, PROBLEMS, empty_ledger, make_plan
from contracts.test_gaussian_promises import EVERYBODY, GAUSSIAN, shrunk
from contracts.test_looks import NOISE, OTHERS
from cover import by_default
from quoron.training.data_quality import with_data_quality
from quoron_privacy.accounts.lifetime import Charge, Limit
from quoron_privacy.errors import LedgerError, VerificationError
from quoron_privacy.histograms import data_quality
from quoron_privacy.histograms.held_out import HeldOut
from quoron_privacy.histograms.private_bounds import EstimatedBounds
from quoron_privacy.release import Release
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import ESTIMATES, PLANNED, PREFACE, Privacy, RunPlan
from quoron_server.runs import charge_of
from quoron_server.storage.ledger import Ledger
from quoron_server.wording import plan_json, sentence

SHARE, LOOK = 0.2, 0.05
SOME = ("tracking-srgd", "whitened-tracking", "one-pass-dp-sgd", "phased-sgd", "recentred-sgd")
every_gaussian = pytest.mark.parametrize("name", by_default((*GAUSSIAN, *EVERYBODY), SOME))


@cache
def paid() -> EstimatedBounds:
    sizes = {"columns": 5, "names": 2, "share": SHARE}
    return EstimatedBounds.calibrate(users=PROBLEM.users, epsilon=PRIVACY.epsilon, delta=PRIVACY.delta, **sizes)


def entries() -> tuple[Release, ...]:
    """What is paid for, in order."""
    return tuple(entry for entry, _ in paid().releases())


def with_estimates(own: RunPlan) -> RunPlan:
    """The whole plan."""
    promise = replace(own.guarantee, epsilon=PRIVACY.epsilon, delta=PRIVACY.delta, estimates=paid())
    return replace(own, guarantee=promise)


@cache
def planned(name: str, *, look: bool = True) -> RunPlan:
    """Purchases, a look, and the algorithm."""
    first = Privacy(paid().rest_epsilon, paid().rest_delta)
    left = Privacy(*data_quality.rest(first.epsilon, first.delta, LOOK)) if look else first
    if name in EVERYBODY:
        info = ALGORITHMS[name]
        own = info.plan(PROBLEM, left, info.options(rounds=5, rate=1.0), "calibrated", 7)
    else:
        own = make_plan(name, PROBLEMS.get(name, PROBLEM), left)
    looked = with_data_quality(own, first, share=LOOK, columns=4, labels=2) if look else own
    assert looked is not None
    return with_estimates(looked)


@every_gaussian
def test_purchases_look_and_algorithm_are_one_promise_whose_charge_is_known_beforehand(name: str) -> None:
    plan, info = planned(name), ALGORITHMS[name]
    info.verify(plan)
    promise = info.gaussian(plan)
    assert promise is not None
    assert (promise.mu, promise.variation) == paid().charged
    (pair,) = info.pairs(plan)
    assert 0.99 * promise.mu <= pair.mu <= promise.mu
    assert 0.95 * PRIVACY.delta <= pair.delta(PRIVACY.epsilon, PRIVACY.delta) <= PRIVACY.delta
    assert charge_of(plan) == charge_of(planned("recentred-sgd", look=False)) | {"adjacency": plan.guarantee.adjacency}
    assert "private-bounds.md#b1" in sentence(plan.guarantee)
    assert json.loads(json.dumps(plan_json(plan)))["guarantee"]["estimates"]["share"] == SHARE


def test_the_charge_beside_an_evaluation_tells_nothing_of_the_label_that_was_bought() -> None:
    """Rounded to eight digits it nearly never did; here it is compared before, with the twin that charges the pair."""
    plan, sizes = planned("whitened-tracking"), {"users": 500, "epsilon": PRIVACY.epsilon, "delta": PRIVACY.delta}
    ways = [HeldOut.calibrate(classes=classes, **sizes) for classes in (2, 3, 0, 50)]
    info = ALGORITHMS[plan.algorithm]
    told = {info.gaussian(replace(plan, guarantee=replace(plan.guarantee, held_out=each))) for each in ways}
    (charged,) = told
    assert charged is not None
    assert all(each.pair.mu <= charged.mu <= (1 + 1e-8) * each.pair.mu for each in ways)
    assert len({each.pair.mu for each in ways}) > 1


@every_gaussian
def test_a_run_whose_purchases_or_whose_rest_have_too_little_noise_is_refused(name: str) -> None:
    """The last is a run that bought what its promise does not have room for: it is whole without."""
    plan, info = planned(name), ALGORITHMS[name]
    promise, estimates = plan.guarantee, plan.guarantee.estimates
    assert estimates is not None
    whole = make_plan(name, PROBLEMS.get(name, PROBLEM)) if name not in EVERYBODY else plan

    def other(**changed: object) -> RunPlan:
        return replace(plan, guarantee=replace(promise, estimates=replace(estimates, **changed)))

    wrong = {
        "noise of the first release": other(scales=(0.97 * estimates.scales[0], *estimates.scales[1:])),
        "noise of names": other(scales=(*estimates.scales[:3], 0.97 * estimates.scales[3])),
        "a larger tail": other(tail=1e4 * estimates.tail),
        "fewer users": other(users=estimates.users - 1),
        "a rest of more than is left": other(rest_epsilon=PRIVACY.epsilon),
        "less noise in the rest": replace(plan, parameters=shrunk(plan.parameters, NOISE)),
        "a smaller epsilon": replace(plan, guarantee=replace(promise, epsilon=0.999 * promise.epsilon)),
    }
    if name not in EVERYBODY:
        wrong["purchases beside a whole guarantee"] = replace(
            whole, guarantee=replace(whole.guarantee, estimates=replace(estimates, rest_epsilon=PRIVACY.epsilon))
        )
    for broken in wrong.values():
        for use in (info.verify, info.gaussian, info.make):
            with pytest.raises(VerificationError):
                use(broken)


@every_gaussian
def test_a_plan_announces_its_purchases_before_all_else(name: str) -> None:
    plan = planned(name)
    made = plan.releases()
    first = made[: len(entries())]
    assert [(each.entry, each.rounds) for each in first] == [(entry, (ESTIMATES,)) for entry in entries()]
    assert made[len(first)].rounds == (PREFACE,)
    assert plan.without("estimates").releases() == made[len(first) :]
    assert (
        plan.without("held_out", "estimates", "data_quality").guarantee.epsilon
        < plan.without("estimates").guarantee.epsilon
        < PRIVACY.epsilon
    )


def test_ranges_alone_are_charged_as_a_gaussian_run_of_which_a_lifetime_of_such_has_room() -> None:
    """What is left to the samplers of the rest was half a tail of names, whether there are names or none."""
    sizes: dict[str, Any] = {"users": PROBLEM.users, "columns": 5, "epsilon": 4.0, "delta": 1e-6, "share": SHARE}
    limit = Limit("everyone", 16.0, 1e-5, 1.0)
    for names in (0, 2):
        mu, variation = EstimatedBounds.calibrate(names=names, **sizes).charged
        charge = Charge("run", "everyone", 4.0, 1e-6, mu, variation=variation)
        assert (limit.account([charge]).holds, variation < 1e-30) == (names == 0, names == 0)


@pytest.mark.parametrize("name", by_default(OTHERS, ("outlier-iterates", "local-model", "sgd")))
def test_beside_what_has_no_mu_nothing_is_bought(name: str) -> None:
    plan = with_estimates(make_plan(name))
    with pytest.raises(VerificationError):
        ALGORITHMS[name].verify(plan)


def test_a_ledger_keeps_what_was_bought_once_and_then_the_plan_that_is_made_of_it(tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(empty_ledger())
    made = entries()
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        forecast = ledger.plan_json
        assert ledger.released(ESTIMATES) is None
        ledger.commit(ESTIMATES, None, made, {"estimates": {"age": [0.0, 1.0]}})
        assert ledger.released(ESTIMATES) == {"estimates": {"age": [0.0, 1.0]}}
        assert (ledger.released(PLANNED), ledger.plan_json, ledger.resume_point()) == (None, forecast, None)
        ledger.commit(PLANNED, None, (), {"refused": ""}, plan="the plan")
        assert (ledger.released(PLANNED), ledger.plan_json) == ({"refused": ""}, "the plan")
        assert ledger.resume_point() is None
        with pytest.raises(LedgerError, match="to be new"):
            ledger.commit(ESTIMATES, None, made, {"estimates": {"age": [0.0, 2.0]}})
        with pytest.raises(LedgerError, match="to be new"):
            ledger.commit(PLANNED, None, (), {"refused": ""}, plan="another")
        assert ledger.plan_json == "the plan"
        ledger.commit(PREFACE, None, made[:1], {"table_health": []})
        assert [number for number, _ in ledger.releases()] == [ESTIMATES] * len(made) + [PREFACE]
        assert ledger.events() == []
    with Ledger.open(tmp_path / "ledger.sqlite") as again:
        assert again.released(ESTIMATES) == {"estimates": {"age": [0.0, 1.0]}}

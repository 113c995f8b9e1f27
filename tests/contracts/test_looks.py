"""A look at the table beside any Gaussian algorithm: paid within the promise, charged for, re-checked, announced."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.scenes import PRIVACY, PROBLEM, PROBLEMS, Quadratic, empty_ledger, make_plan
from contracts.test_dp_events import event_of, exact, left_of_delta
from contracts.test_gaussian_promises import EVERYBODY, GAUSSIAN, shrunk
from cover import by_default
from quoron.training.data_quality import with_data_quality
from quoron_privacy.accounts.gdp import compose, delta_for
from quoron_privacy.errors import LedgerError, UsageError, VerificationError
from quoron_privacy.histograms import data_quality
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import Release
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import PREFACE, Privacy, RunPlan
from quoron_server.rounds import run
from quoron_server.runs import charge_of
from quoron_server.storage.ledger import Ledger
from quoron_server.wording import sentence

SHARE, SIZES = 0.05, {"columns": 4, "labels": 2}
OTHERS = tuple(name for name in ALGORITHMS if name not in GAUSSIAN)
NOISE = ("noise_scale", "release_scale", "pilot_scale", "length_scale", "moment_scale", "scale")


def rest() -> Privacy:
    return Privacy(*data_quality.rest(PRIVACY.epsilon, PRIVACY.delta, SHARE))


def looking(name: str, own: RunPlan) -> RunPlan | None:
    return with_data_quality(own, PRIVACY, share=SHARE, **SIZES)


@cache
def planned(name: str) -> RunPlan:
    if name in EVERYBODY:
        info = ALGORITHMS[name]
        own = info.plan(PROBLEM, rest(), info.options(rounds=5, rate=1.0), "calibrated", 7)
    else:
        own = make_plan(name, PROBLEMS.get(name, PROBLEM), rest())
    whole = looking(name, own)
    assert whole is not None
    return whole


SOME = ("tracking-srgd", "whitened-tracking", "one-pass-dp-sgd", "dp-ftrl", "phased-sgd", "recentred-sgd")
every_gaussian = pytest.mark.parametrize("name", by_default((*GAUSSIAN, *EVERYBODY), SOME))


@every_gaussian
def test_look_and_algorithm_are_worth_the_whole_promise_and_nearly_no_less(name: str) -> None:
    plan = planned(name)
    ALGORITHMS[name].verify(plan)
    promise = ALGORITHMS[name].gaussian(plan)
    own = ALGORITHMS[name].gaussian(plan.without("held_out", "estimates", "data_quality"))
    assert promise is not None
    assert own is not None
    assert (plan.guarantee.epsilon, plan.guarantee.delta) == (PRIVACY.epsilon, PRIVACY.delta)
    quality = plan.guarantee.data_quality
    assert quality is not None
    assert promise.mu == pytest.approx(compose(own.mu, quality.effective_mu), rel=1e-14)
    spent = delta_for(promise.mu, PRIVACY.epsilon) + (1 + math.exp(PRIVACY.epsilon)) * promise.variation
    assert 0.99 * PRIVACY.delta <= spent <= PRIVACY.delta
    assert 0 <= charge_of(plan)["mu"] / promise.mu - 1 < 1e-7
    assert "data-quality.md#h1" in sentence(plan.guarantee)


@every_gaussian
def test_a_plan_whose_look_or_whose_rest_has_too_little_noise_is_refused(name: str) -> None:
    plan, info = planned(name), ALGORITHMS[name]
    promise, quality = plan.guarantee, plan.guarantee.data_quality
    assert quality is not None
    wrong = {
        "the look": replace(
            plan, guarantee=replace(promise, data_quality=replace(quality, scale=0.99 * quality.scale))
        ),
        "the rest": replace(plan, parameters=shrunk(plan.parameters, NOISE)),
        "fewer users": replace(
            plan, guarantee=replace(promise, data_quality=replace(quality, users=quality.users - 1))
        ),
        "a smaller epsilon": replace(plan, guarantee=replace(promise, epsilon=0.999 * promise.epsilon)),
    }
    for broken in wrong.values():
        for use in (info.verify, info.gaussian, info.make):
            with pytest.raises(VerificationError):
                use(broken)


@every_gaussian
def test_a_plan_announces_its_look_before_all_else(name: str) -> None:
    plan = planned(name)
    first, *others = plan.releases()
    quality = plan.guarantee.data_quality
    assert quality is not None
    assert (first.entry, first.count, first.rounds, first.mu) == (quality.entry(), 1, (PREFACE,), quality.effective_mu)
    assert tuple(others) == plan.without("held_out", "estimates", "data_quality").releases()


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "whitened-tracking"])
def test_an_accountant_of_others_finds_the_promise_kept_and_used_up(name: str) -> None:
    plan = planned(name)
    assert exact(event_of(plan), left_of_delta(plan)) == pytest.approx(PRIVACY.epsilon, rel=1e-5)
    alone = exact(event_of(plan.without("held_out", "estimates", "data_quality")), left_of_delta(plan))
    assert alone < PRIVACY.epsilon * (1 - 1e-2)


@pytest.mark.parametrize("name", by_default(OTHERS, ("dp-sgd-wor", "outlier-iterates", "local-model", "sgd")))
def test_where_only_epsilon_and_delta_are_proved_nobody_looks(name: str) -> None:
    assert looking(name, make_plan(name)) is None


def test_a_look_beside_a_min_cohort_or_beside_no_mu_is_refused() -> None:
    min_cohort = make_plan(
        "dp-ftrl", None, Privacy(PRIVACY.epsilon, PRIVACY.delta, min_cohort=0.5, min_cohort_epsilon=1.7)
    )
    quality = planned("dp-ftrl").guarantee.data_quality
    for plan in (min_cohort, make_plan("filtered-sgd"), make_plan("sgd")):
        wrong = replace(plan, guarantee=replace(plan.guarantee, data_quality=quality))
        with pytest.raises(VerificationError):
            ALGORITHMS[plan.algorithm].verify(wrong)
        with pytest.raises((VerificationError, UsageError)):
            event_of(wrong)


def test_the_run_after_a_look_is_the_algorithms_own_and_the_ledger_has_both(tmp_path: Path) -> None:
    plan = planned("one-pass-dp-sgd")
    quality = plan.guarantee.data_quality
    assert quality is not None

    def carried_out(name: str, *, look: bool) -> np.ndarray:
        (tmp_path / name).write_bytes(empty_ledger())
        with Ledger.open(tmp_path / name) as ledger:
            if look:
                ledger.commit(PREFACE, None, (quality.entry(),), {"seen": [0.5]})
            return run(ALGORITHMS[plan.algorithm].make(plan), Quadratic(), ledger, SeededNoise(11), simulation=True)

    np.testing.assert_array_equal(carried_out("with", look=True), carried_out("without", look=False))
    with Ledger.open(tmp_path / "with") as ledger:
        assert ledger.released(PREFACE) == {"seen": [0.5]}
        announced: dict[Any, int] = {}
        for each in plan.releases():
            announced |= {(number, str(each.entry)): 1 for number in each.rounds}
        assert [(number, str(entry)) for number, entry in ledger.releases()] == sorted(announced)
        assert len(ledger.events()) == plan.cost.rounds
    with Ledger.open(tmp_path / "without") as ledger:
        assert ledger.released(PREFACE) is None


def test_a_look_is_written_once_and_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(empty_ledger())
    entry = Release("data-quality", {"scale": 1.0})
    with Ledger.open(tmp_path / "l") as ledger:
        ledger.commit(PREFACE, None, (entry,), {"seen": [1]})
        assert ledger.resume_point() is None
        assert ledger.events() == []
        with pytest.raises(LedgerError, match="round -2 to be new"):
            ledger.commit(PREFACE, None, (entry,), {"seen": [2]})
        ledger.commit(-1, b"state", (), {})
        with pytest.raises(LedgerError, match="round -2 to be new"):
            ledger.commit(PREFACE, None, (entry,), {"seen": [2]})
        assert ledger.released(PREFACE) == {"seen": [1]}
        assert ledger.releases() == [(PREFACE, entry)]

"""Public participation costs nothing where its theorem applies, and is refused by name wherever it does not."""

from dataclasses import replace

import pytest

from federation.crowd import specification
from quoron_privacy.errors import ConfigError, Infeasible, VerificationError
from quoron_privacy.histograms.min_cohort import exact
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms import min_cohort as rules
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import Privacy
from quoron_server.specification import make_plan

PROBLEM = specification("one-pass-dp-sgd").problem


def test_a_promise_of_absence_and_attendance_without_a_min_cohort_are_refused() -> None:
    with pytest.raises(ConfigError, match="zero-out"):
        Privacy(1.0, 1e-6, 0.5, 0.05, "zero-out", "public")
    with pytest.raises(ConfigError, match="no minimum cohort"):
        Privacy(1.0, 1e-6, participation="public")


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("dp-sgd-wor", {"rounds": 5, "rate": 0.5}, "secret cohorts"),
        ("dp-sgd-poisson", {"rounds": 5, "rate": 0.5}, "secret cohorts"),
        ("phased-sgd", {"cohort_size": 2}, "true"),
        ("local-model", {"rounds": 6}, "private by themselves"),
    ],
)
def test_plans_to_which_the_theorem_does_not_apply_are_refused_by_name(
    name: str, options: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so they are by `verify` where whoever plans them forgot to ask."""
    info = ALGORITHMS[name]
    wanted = Privacy(15.0, 0.1, 0.5, 2.0, "replace-one", "public")
    asked = info.options(**options)
    with pytest.raises(Infeasible, match=why) as refused:
        info.plan(PROBLEM, wanted, asked)
    assert "public participation" in str(refused.value)
    with monkeypatch.context() as forgetful:
        forgetful.setattr(rules, "participation_refusal", lambda plan: None)
        plan = rules.with_public_participation(
            info.plan(PROBLEM, rules.left_by_min_cohort(wanted, spent=False), asked), wanted
        )
    with pytest.raises(VerificationError):
        info.verify(plan)


def test_a_plan_that_does_not_say_that_attendance_is_public_is_refused() -> None:
    info = ALGORITHMS["one-pass-dp-sgd"]
    plan = info.plan(PROBLEM, Privacy(15.0, 0.1, 0.5, 2.0, participation="public"), info.options(rounds=3))
    kept = tuple(each for each in plan.guarantee.assumptions if each.kind is not Kind.PUBLIC_PARTICIPATION)
    with pytest.raises(VerificationError, match="who answers is public"):
        info.verify(replace(plan, guarantee=replace(plan.guarantee, assumptions=kept)))
    loud = replace(plan.guarantee.min_cohort, count_scale=2.0)
    with pytest.raises(VerificationError):
        info.verify(replace(plan, guarantee=replace(plan.guarantee, min_cohort=loud)))


def test_a_plan_that_a_zero_out_promise_is_bent_into_is_refused() -> None:
    info = ALGORITHMS["recentred-sgd"]
    own = info.plan(PROBLEM, Privacy(15.0, 0.1, adjacency="zero-out"), info.options(rounds=3, rate=1.0))
    min_cohort = exact(0.5, own.schedule.cohorts, participations=3, rest=(14.0, 0.05))
    bent = own.assuming([Assumption(Kind.PUBLIC_PARTICIPATION)])
    with pytest.raises(VerificationError, match="under zero-out whether a user is there"):
        info.verify(replace(bent, guarantee=replace(bent.guarantee, min_cohort=min_cohort)))


COVERED = ("one-pass-dp-sgd", "dp-ftrl", "tracking-srgd", "whitened-tracking", "winsorised-erm", "outlier-gd")


@pytest.mark.parametrize("name", COVERED)
def test_it_costs_nothing(name: str) -> None:
    """The plan is that of the algorithm alone for all of ε, and a lifetime is charged the same but for δ's slack."""
    public = make_plan(specification(name, min_cohort=0.55, min_cohort_epsilon=1.0, participation="public"))
    alone = make_plan(specification(name))
    info = ALGORITHMS[name]
    assert public.guarantee.min_cohort is not None
    assert public.guarantee.min_cohort.rest_epsilon == alone.guarantee.epsilon
    assert public.cost == alone.cost
    one, other = info.gaussian(public), info.gaussian(alone)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.mu <= other.mu * (1 + 1e-9)
        assert one.variation <= other.variation + 1e-30
    assert all(each.count > 0 for each in public.releases())

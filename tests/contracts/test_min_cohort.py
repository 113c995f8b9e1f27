"""What a minimum cohort promises of every algorithm.

It changes nothing while it is met, and ends a run that nobody answers.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.scenes import FAULTS, PROBLEM, SMALL, Fault, Quadratic, empty_ledger, make_plan
from contracts.test_algorithms import Crash, crashing, dying_after_every_write, require_planned
from cover import EVERY_QUESTION, by_default
from quoron_privacy.errors import BelowMinCohort, VerificationError
from quoron_privacy.histograms import min_cohort as min_cohorts
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithm import Update
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.min_cohort import MET, NOT_MET, UNDECIDED, WithMinCohort
from quoron_server.algorithms.whitened.parameters import COLUMNS, PARTS, STAGES
from quoron_server.parameters import Assumption, Kind
from quoron_server.plan import Privacy, RunPlan
from quoron_server.rounds import run
from quoron_server.runs import charge_of
from quoron_server.schedule import Schedule
from quoron_server.storage.ledger import Ledger
from quoron_server.wording import sentence

MIN_COHORT = Privacy(epsilon=8.0, delta=1e-3, min_cohort=0.5, min_cohort_epsilon=1.7)
EVERY = list({**dict.fromkeys(ALGORITHMS), **SMALL})
pytestmark = pytest.mark.usefixtures("verified_once")
every_algorithm = pytest.mark.parametrize("name", list(ALGORITHMS))
ONE_ROUND = ("one-round-least-squares",)  # has no round to leave out, and none in the middle
every_variant = pytest.mark.parametrize("name", by_default(EVERY, ALGORITHMS))
NOBODY = next(fault for fault in FAULTS if fault.name == "everyone is missing")


def planned(name: str) -> RunPlan:
    return make_plan(name, None, MIN_COHORT)


def told_in(plan: RunPlan) -> set[int]:
    """Rounds whose own release decides."""
    return {number for number, each in enumerate(plan.count_leakage()) if each.released}


def undecided(plan: RunPlan) -> tuple[int, ...]:
    """Rounds that no release decides: of eleven questions that stand for one message the four about a length."""
    return (*range(COLUMNS), *range(COLUMNS, PARTS, 2)) if getattr(plan.parameters, "parts", False) else ()


def carried_out(plan: RunPlan, folder: Path, engine: Any = None, ledger_type: type[Ledger] = Ledger) -> np.ndarray:
    path = folder / "ledger.sqlite"
    folder.mkdir(exist_ok=True)
    if not path.exists():
        path.write_bytes(empty_ledger())
    with ledger_type.open(path) as ledger:
        made = ALGORITHMS[plan.algorithm].make(plan)
        return run(made, engine or Quadratic(), ledger, SeededNoise(11), simulation=True)


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        return ledger.events()


class Leaving(Quadratic):
    """Nobody answers from some round on."""

    def __init__(self, after: int) -> None:
        super().__init__(self._gone)
        self.after = after

    def _gone(self, values: np.ndarray, status: np.ndarray) -> None:
        if len(self.asked) > self.after:
            NOBODY(values, status)


@every_variant
def test_a_met_min_cohort_changes_no_bit_of_the_model_and_cohorts_are_what_rounds_ask(
    name: str, tmp_path: Path
) -> None:
    plan = planned(name)
    with_, without = tmp_path / "with", tmp_path / "without"
    model = carried_out(plan, with_)
    np.testing.assert_array_equal(model, carried_out(plan.without("min_cohort"), without))
    for number, (one, other) in enumerate(zip(rounds_of(with_), rounds_of(without), strict=True)):
        assert one["public"] == {**other["public"], "min_cohort": UNDECIDED if number in undecided(plan) else MET}
    with Ledger.open(with_ / "ledger.sqlite") as ledger:
        require_planned(plan, ledger.releases(), ledger.events())
    decided = [each for each in plan.releases() if each.entry.mechanism == "min_cohort"]
    cohorts, told = plan.schedule.cohorts, told_in(plan)
    assert tuple(event["messages"] for event in rounds_of(with_)) == cohorts
    assert sum(cohorts) == plan.cost.messages
    assert {number: each.entry.parameters["asked"] for each in decided for number in each.rounds} == {
        number: size for number, size in enumerate(cohorts) if number not in told.union(undecided(plan))
    }


@every_variant
def test_a_run_that_nobody_answers_ends_without_a_min_cohort_and_without_a_model(name: str, tmp_path: Path) -> None:
    engine, early = Quadratic(NOBODY), undecided(planned(name))
    before = next(number for number in range(PARTS) if number not in early)
    with pytest.raises(BelowMinCohort, match=f"Round {before + 1} of at most"):
        carried_out(planned(name), tmp_path, engine)
    assert len(engine.asked) == before + 1
    assert rounds_of(tmp_path)[before]["public"] == {"min_cohort": NOT_MET}
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        own = [entry.mechanism for round_, entry in ledger.releases() if round_ >= before]
        assert own == ["min_cohort"] if before not in told_in(planned(name)) else "min_cohort" not in own
        assert not ledger.finished
    with pytest.raises(BelowMinCohort, match=f"Round {before + 1} of at most"):  # and is not begun anew
        carried_out(planned(name), tmp_path, engine)
    assert len(engine.asked) == before + 1


def test_whose_gradient_at_the_start_is_zero_is_there_all_the_same(tmp_path: Path) -> None:
    """Nine users in ten have no length, and a count of lengths would end a run that everybody answers."""
    still = Fault("nine in ten send zeros", 0.0, slice(PROBLEM.users // 10, None))
    carried_out(planned("whitened-tracking/parts"), tmp_path, Quadratic(still))
    found = [event["public"]["min_cohort"] for event in rounds_of(tmp_path)][: PARTS + 2]
    assert found == [UNDECIDED] * COLUMNS + [UNDECIDED, MET] * STAGES + [UNDECIDED, MET, MET]


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ONE_ROUND])
def test_who_leaves_in_the_middle_ends_the_run_there(name: str, tmp_path: Path) -> None:
    engine = Leaving(2)
    with pytest.raises(BelowMinCohort, match="Round 3 of at most"):
        carried_out(planned(name), tmp_path, engine)
    assert [event["public"]["min_cohort"] for event in rounds_of(tmp_path)] == [MET, MET, NOT_MET]


@pytest.mark.parametrize("name", by_default(ALGORITHMS, EVERY_QUESTION))
def test_a_run_that_dies_after_every_write_comes_to_the_same_decisions_and_bits(name: str, tmp_path: Path) -> None:
    plan = planned(name)
    model, deaths = dying_after_every_write(lambda dying: carried_out(plan, tmp_path / "dying", ledger_type=dying))
    np.testing.assert_array_equal(model, carried_out(plan, tmp_path / "whole"))
    decided = [[event["public"] for event in rounds_of(tmp_path / which)] for which in ("dying", "whole")]
    assert decided[0] == decided[1]
    assert deaths == 2 * plan.cost.rounds + 2


@pytest.mark.slow
@every_algorithm
def test_a_crash_at_every_write_resumes_to_the_same_decisions_and_bits(name: str, tmp_path: Path) -> None:
    plan = planned(name)
    whole = carried_out(plan, tmp_path / "whole")
    for at in range(1, plan.cost.rounds + 4):
        folder = tmp_path / f"{at}"
        with pytest.raises(Crash):
            carried_out(plan, folder, ledger_type=crashing(at, after=at % 2 == 0))
        np.testing.assert_array_equal(carried_out(plan, folder), whole)


@pytest.mark.parametrize("at", range(1, 6))  # the initial commit, the first question, three rounds
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["dp-sgd-wor", "tracking-srgd"])
def test_a_crash_on_the_way_to_the_end_resumes_to_the_same_end(name: str, at: int, after: bool, tmp_path: Path) -> None:
    plan, leaving = planned(name), Leaving(2)
    with pytest.raises(Crash):
        carried_out(plan, tmp_path, leaving, crashing(at, after=after))
    asked = len(rounds_of(tmp_path))
    with pytest.raises(BelowMinCohort, match="Round 3 of at most"):
        carried_out(plan, tmp_path, Leaving(2 - asked if asked < 3 else 0))
    assert [event["public"]["min_cohort"] for event in rounds_of(tmp_path)] == [MET, MET, NOT_MET]


class Withholding(WithMinCohort):
    """Decides by a release that the store never sees: it holds the end of the run, and nothing that it was made of."""

    def update(self, state: Any, answers: Any, noise: Any) -> Update[Any]:
        update = super().update(state, answers, noise)
        return replace(update, releases=()) if update.state.ended else update


def undecided_in_store(made: WithMinCohort, folder: Path) -> list[int]:
    """Rounds that the store says a decision of, without anything that was released in them; after two with answers."""
    folder.mkdir()
    (folder / "ledger.sqlite").write_bytes(empty_ledger())
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        with pytest.raises(BelowMinCohort):
            run(made, Leaving(2), ledger, SeededNoise(11), simulation=True)
        released = {number for number, _ in ledger.releases()}
        return [event["round"] for event in ledger.events() if event["round"] not in released]


@pytest.mark.parametrize("name", ["tracking-srgd", "whitened-tracking"])
def test_the_store_holds_what_each_decision_was_made_from(name: str, tmp_path: Path) -> None:
    plan = planned(name)
    made = ALGORITHMS[name].make(plan)
    assert isinstance(made, WithMinCohort)
    assert undecided_in_store(made, tmp_path / "sound") == []
    assert plan.guarantee.min_cohort is not None
    twin = Withholding(plan, plan.guarantee.min_cohort, made.inner)
    assert undecided_in_store(twin, tmp_path / "twin") == [2]


@every_variant
def test_the_promise_pays_for_the_min_cohort_and_the_algorithm(name: str) -> None:
    plan, info = planned(name), ALGORITHMS[name.partition("/")[0]]
    info.verify(plan)
    promise, min_cohort = plan.guarantee, plan.guarantee.min_cohort
    assert min_cohort is not None
    if promise.trust_model == "none":
        return
    assert (promise.epsilon, promise.delta) == (MIN_COHORT.epsilon, MIN_COHORT.delta)
    assert min_cohort.rest_epsilon + min_cohort.epsilon <= MIN_COHORT.epsilon
    free = bool(plan.count_leakage())
    assert min_cohort.epsilon in (
        (0.0,) if free else (MIN_COHORT.min_cohort_epsilon / 16, MIN_COHORT.min_cohort_epsilon)
    )
    one = min_cohort.count_scale or promise.trust_model == "local"
    where = "min-cohort.md#q1" if one else "min-cohort.md#q"
    assert f"docs/privacy/{where}" in sentence(promise)
    with pytest.raises(VerificationError):
        info.make(replace(plan, guarantee=replace(promise, epsilon=promise.epsilon * 0.98)))
    if not free:
        broken = replace(min_cohort, count_scale=min_cohort.count_scale / 4, each=1.5 * min_cohort.each)
        with pytest.raises(VerificationError, match=r"cost|delta"):
            info.make(replace(plan, guarantee=replace(promise, min_cohort=broken)))
    if promise.trust_model != "local":
        with pytest.raises(
            VerificationError, match=r"paid for|one kind of noise|minimum cohort.epsilon > 0"
        ):  # by nothing
            info.make(replace(plan, guarantee=replace(promise, min_cohort=replace(min_cohort, each=0.1, epsilon=0.0))))
        for name_, value in (("participations", 0), ("epsilon", 0.01 if free else 0.0)):
            with pytest.raises(Exception, match=name_):
                info.make(replace(plan, guarantee=replace(promise, min_cohort=replace(min_cohort, **{name_: value}))))


@every_variant
def test_a_count_that_costs_nothing_is_within_what_its_round_is_charged(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken twin claims a quarter more: as if an absent user did not move the release at all."""
    plan, info = planned(name), ALGORITHMS[name.partition("/")[0]]
    given = plan.count_leakage()
    if plan.guarantee.trust_model in ("local", "none") or all(each.released for each in given):
        return
    more = tuple(each if each.released else replace(each, mu=1.25 * each.mu) for each in given)
    monkeypatch.setattr(Schedule, "count_leakage", more)
    with pytest.raises(VerificationError, match="leave room for"):
        info.verify(replace(plan, seed=plan.seed + 1))  # which is not verified yet


@every_algorithm
def test_where_clients_see_iterates_the_promise_assumes_that_these_move_nobody_to_answer(name: str) -> None:
    promise = planned(name).guarantee
    assert promise.assumptions.count(Assumption(Kind.UNMOVED_PARTICIPATION)) == (
        promise.trust_model == "central-release"
    )


@pytest.mark.parametrize("name", ["one-pass-dp-sgd", "tracking-srgd", "phased-sgd", "winsorised-erm"])
def test_a_lifetime_is_charged_the_mu_of_both(name: str) -> None:
    plan, info = planned(name), ALGORITHMS[name]
    whole, own, min_cohort = info.gaussian(plan), info.gaussian(plan.without("min_cohort")), plan.guarantee.min_cohort
    assert None not in (whole, own, min_cohort)
    assert whole.mu >= np.hypot(own.mu, min_cohort.mu)
    assert whole.variation >= own.variation

    charge = charge_of(plan)
    assert (charge["epsilon"], charge["delta"]) == (MIN_COHORT.epsilon, MIN_COHORT.delta)
    assert 0 <= charge["mu"] / whole.mu - 1 < 1e-7


def test_with_coins_half_of_beta_is_the_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, calibrate = [], min_cohorts.calibrate

    def noted(*given: Any, **named: Any) -> Any:
        allowed.append(named["beta"])
        return calibrate(*given, **named)

    monkeypatch.setattr(min_cohorts, "calibrate", noted)
    for name, beta in (("dp-sgd-poisson", min_cohorts.BETA / 2), ("dp-sgd-wor", min_cohorts.BETA)):
        info = ALGORITHMS[name]
        info.plan(PROBLEM, MIN_COHORT, info.options(**SMALL[name]), "calibrated", 7)
        assert {*allowed} == {beta}
        allowed.clear()


def test_a_count_beside_everybody_in_every_round_costs_what_it_was_planned_for() -> None:
    """Coins that all come up are no sample: the run is Gaussian as a whole, and so is what the counts add to it."""
    problem = replace(PROBLEM, users=720)
    privacy = Privacy(4.0, 1e-6, min_cohort=0.5, min_cohort_epsilon=0.3, adjacency="replace-one")
    info = ALGORITHMS["dp-sgd-poisson"]
    plan = info.plan(problem, privacy, info.options(rate=1.0, rounds=30))
    info.verify(plan)
    assert plan.guarantee.min_cohort is not None
    assert plan.guarantee.min_cohort.each > 0
    own = info.gaussian(plan.without("min_cohort"))
    assert own is not None
    whole = np.hypot(own.mu, plan.guarantee.min_cohort.mu)
    assert [pair.mu for pair in info.pairs(plan)] == pytest.approx([whole] * len(info.pairs(plan)), rel=1e-9)

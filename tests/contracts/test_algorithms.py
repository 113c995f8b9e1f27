"""What every algorithm promises, whoever wrote it."""

import dataclasses
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import warden
from contracts.scenes import HOSTILE, PROBLEM, SMALL, TWO_SERVERS, Quadratic, asking, execute, make, make_plan
from cover import by_default
from quoron_privacy.errors import BudgetExceeded
from quoron_privacy.noise.streams import SeededNoise, StartedNoise
from quoron_privacy.release import Release
from quoron_server import serial
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import Budget, RunPlan
from quoron_server.storage.ledger import Ledger, digest
from quoron_server.wording import plan_json, sentence

DISJOINT = [name for name, info in ALGORITHMS.items() if not info.policy.many_passes]
SCENES = list({**dict.fromkeys(ALGORITHMS), **SMALL, **TWO_SERVERS})  # with the variants of options
# Which takes longest: all tests have "whitened-tracking/classes" or "whitened-tracking/two-servers".
LATER = "whitened-tracking/classes/two-servers"
every_algorithm = pytest.mark.parametrize(
    "name", by_default([*ALGORITHMS, *TWO_SERVERS], [name for name in (*ALGORITHMS, *TWO_SERVERS) if name != LATER])
)
every_scene = pytest.mark.parametrize("name", by_default(SCENES, [name for name in SCENES if name != LATER]))
# Whose scenes draw cohorts by secret coins.
COINS = (
    "dp-sgd-wor",
    "dp-sgd-poisson",
    "mean-sgd",
    "recentred-sgd",
    "accelerated-erm",
)
ONE_ROUND = ("one-round-least-squares",)  # has no round to leave out, and none in the middle


T = TypeVar("T")


class Crash(BaseException):
    """Stands for the process dying."""


def crashing(at: int, *, after: bool) -> type[Ledger]:
    """A ledger that dies at its write number `at`, before or after that write is durable. A write within one is its."""
    writes, within = 0, False

    def dying(write):
        def wrapped(self, *arguments, **named):
            nonlocal writes, within
            if within:
                return write(self, *arguments, **named)
            writes += 1
            if writes == at and not after:
                raise Crash
            within = True
            result = write(self, *arguments, **named)
            within = False
            if writes == at:
                raise Crash
            return result

        return wrapped

    members = {name: dying(getattr(Ledger, name)) for name in ("spend", "commit", "finish")}
    return type("DyingLedger", (Ledger,), members)


def require_planned(plan: RunPlan, releases: list[tuple[int, Release]], events: list[dict[str, Any]]) -> None:
    """Every entry is one that the plan announced for that round, and of each there are as many as announced."""
    planned, written = plan.releases(), Counter()
    for number, entry in releases:
        radius = events[number]["public"].get("radius", 1.0)
        expected = [each.entry.scaled(radius) if each.scaled else each.entry for each in planned]
        (found,) = [at for at, each in enumerate(planned) if number in each.rounds and entry == expected[at]]
        written[found] += 1
    for at, each in enumerate(planned):
        assert written[at] == each.count or (each.tested and written[at] < each.count), each
    steps = [event["public"]["released"] for event in events if "released" in event["public"]]
    if steps:  # those that a test did not withhold
        assert sum(entry.mechanism == "gaussian" for _, entry in releases) == sum(steps) > 1


CURATED = ("median-sgd", "filtered-sgd")  # whose theorems need most of clients


@pytest.mark.parametrize("name", by_default({**dict.fromkeys(ALGORITHMS), **SMALL}, CURATED))
def test_a_curators_plan_passes_the_same_check_without_assumptions_on_clients(name):
    """Our own code computes all answers: what a theorem needs of clients holds, and nobody has to assume it."""
    plan = make_plan(name).as_curated()
    assert plan.guarantee.assumptions == ()
    ALGORITHMS[plan.algorithm].verify(plan)


@cache
def undisturbed(name: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """The model of a run among honest users, and whom it asked: once for all tests that compare with it."""
    with tempfile.TemporaryDirectory(prefix=warden.prefix()) as folder:
        engine = Quadratic()
        return execute(name, Path(folder), engine), engine.asked


@every_algorithm
def test_same_seed_gives_the_same_bits_and_resuming_a_finished_run_asks_nobody(name, tmp_path):
    model, asked = undisturbed(name)
    engine, later = Quadratic(), Quadratic()
    np.testing.assert_array_equal(execute(name, tmp_path, engine), model)
    for one, other in zip(engine.asked, asked, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(execute(name, tmp_path, later), model)
    assert later.asked == []


def dying_after_every_write(carry_out: Callable[[type[Ledger]], T]) -> tuple[T, int]:
    """What a run comes to that dies after each of its writes and goes on from there, and how often it died."""
    for deaths in range(10_000):
        again = deaths > 0 and deaths % 2 == 0  # a cohort is written as spent again before what follows it
        with suppress(Crash):
            return carry_out(crashing(2 if again else 1, after=True)), deaths
    pytest.fail("it never comes to its end")


@every_algorithm
def test_a_run_that_dies_after_every_write_comes_to_identical_bits_and_asks_nobody_twice(name, tmp_path):
    model, deaths = dying_after_every_write(lambda dying: execute(name, tmp_path, ledger_type=dying))
    np.testing.assert_array_equal(model, undisturbed(name)[0])
    rounds = make_plan(name).cost.rounds
    assert deaths == 2 * rounds + 2  # the initial commit; as the question is asked (again), one write a round; the end
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.finished
        assert ledger.spent()["rounds"] == len(ledger.events()) == rounds


@pytest.mark.slow
@pytest.mark.parametrize("after", [True, False])
@every_algorithm
def test_a_crash_at_every_write_resumes_to_identical_bits_and_asks_nobody_twice(name, after, tmp_path):
    (tmp_path / "whole").mkdir()
    whole = execute(name, tmp_path / "whole")
    rounds = make_plan(name).cost.rounds
    for at in range(1, rounds + 4):  # the initial commit, the first round's cohort, one write a round, the end
        folder = tmp_path / str(at)
        folder.mkdir()
        with pytest.raises(Crash):
            execute(name, folder, ledger_type=crashing(at, after=after))
        np.testing.assert_array_equal(execute(name, folder), whole)
        with Ledger.open(folder / "ledger.sqlite") as ledger:
            assert ledger.finished
            assert ledger.spent()["rounds"] == len(ledger.events()) == rounds


@every_scene
def test_another_start_asks_the_same_users_the_same_but_where_the_promise_rests_on_coins(name):
    """Then it is the coins alone that are others. An algorithm of one pass has none: nobody is asked in two rounds."""
    algorithm, engine, drawn = make(name), Quadratic(), []
    before, now = (StartedNoise.fresh(SeededNoise(7)) for _ in range(2))
    state = algorithm.init()
    while (earlier := algorithm.request(state, before)) is not None:
        question = algorithm.request(state, now)
        assert digest(question) == digest(earlier)
        whole, other = (digest(dataclasses.replace(each, drawn=False)) for each in (question, earlier))
        assert (whole == other) == (not question.drawn)
        drawn.append(question.drawn)
        state = algorithm.update(state, asking(name, engine).ask(question), now).state
    assert not (any(drawn) and name.split("/")[0] in DISJOINT)
    assert any(drawn) == (name in COINS) or "/" in name  # a variant may do without


@every_algorithm
@pytest.mark.parametrize("fault", HOSTILE, ids=lambda fault: fault.name)
def test_nothing_users_send_changes_the_course_of_a_run(name, fault, tmp_path):
    engine = Quadratic(fault)
    model = execute(name, tmp_path, engine)
    assert model.shape == (PROBLEM.dimension,)
    assert np.isfinite(model).all()
    _, honest = undisturbed(name)
    assert len(engine.asked) == len(honest)
    for one, other in zip(engine.asked, honest, strict=True):
        np.testing.assert_array_equal(one, other)


@every_scene
def test_the_ledger_equals_the_plan(name, tmp_path):
    plan = make_plan(name)
    execute(name, tmp_path)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        spent, releases, events = ledger.spent(), ledger.releases(), ledger.events()
    assert spent["rounds"] == plan.cost.rounds
    assert spent["users"] == plan.cost.messages  # as planned: the number of a Poisson cohort is a secret
    assert spent["gradient_evaluations"] == plan.cost.gradient_evaluations
    require_planned(plan, releases, events)


def test_a_ledger_with_a_quarter_of_the_noise_or_a_release_too_many_or_too_few_is_not_the_plan():
    plan = make_plan("tracking-srgd")
    radius = 0.5
    events = [{"public": {"radius": radius}} for _ in range(plan.cost.rounds)]
    written = [
        (number, each.entry.scaled(radius) if each.scaled else each.entry)
        for each in plan.releases()
        for number in each.rounds
    ]
    require_planned(plan, written, events)
    number, last = written[-1]
    quieter = dataclasses.replace(last, parameters={**last.parameters, "scale": last.parameters["scale"] / 4})
    for wrong in ([*written[:-1], (number, quieter)], [*written, written[0]], written[1:], [(number - 1, last)]):
        with pytest.raises((AssertionError, ValueError)):
            require_planned(plan, wrong, events)


@pytest.mark.parametrize("name", DISJOINT)
def test_one_pass_algorithms_ask_every_user_at_most_once(name, tmp_path):
    engine = Quadratic()
    execute(name, tmp_path, engine)
    asked = np.concatenate(engine.asked)
    assert len(np.unique(asked)) == len(asked)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ONE_ROUND])
def test_a_budget_one_round_short_is_refused_before_anyone_is_asked(name, tmp_path):
    engine = Quadratic()
    with pytest.raises(BudgetExceeded, match="rounds"):
        execute(name, tmp_path, engine, rounds=make_plan(name).cost.rounds - 1)
    assert engine.asked == []


@every_scene
def test_states_survive_storage_and_a_new_object_goes_on_from_one_as_the_one_that_asked(name):
    """An algorithm is pure: whatever a round needs of those before it is in its state."""
    algorithm, noise, engine = make(name), SeededNoise(3), Quadratic()
    initial = state = algorithm.init()
    summed = set()
    while (question := algorithm.request(state, noise)) is not None:
        answers, stored = asking(name, engine).ask(question), serial.encode(state)
        assert serial.encode(serial.decode(initial, stored)) == stored
        assert serial.size(state) == serial.size(initial)  # known before the run is charged
        assert len(stored) < serial.size(initial) + 10_000
        summed.add(question.reduction is not None)
        update = algorithm.update(state, answers, noise)
        again = make(name).update(serial.decode(initial, stored), answers, noise)  # which has asked nothing
        assert serial.encode(again.state) == serial.encode(update.state)
        assert again.releases == update.releases
        assert again.present == update.present
        assert serial.encode(state) == stored  # nor is what was given changed
        state = update.state
        asked = [each.request(state, noise) for each in (make(name), algorithm)]
        assert asked == [None, None] or digest(asked[0]) == digest(asked[1])
        np.testing.assert_array_equal(make(name).model(state), algorithm.model(state))
    assert serial.size(state) == serial.size(initial)
    assert len(summed) == 1  # so the first question tells whether a run keeps answers


@every_algorithm
def test_a_plan_is_plain_json_and_states_its_promise(name):
    plan = make_plan(name)
    report = json.loads(json.dumps(plan_json(plan)))
    assert report["statement"] == sentence(plan.guarantee)
    assert report["algorithm"] == plan.algorithm
    assert dataclasses.is_dataclass(plan.parameters)


@every_algorithm
def test_a_budget_of_exactly_the_plan_suffices(name):
    plan = make_plan(name)
    Budget(rounds=plan.cost.rounds, gradient_evaluations=plan.cost.gradient_evaluations).check_plan(plan)

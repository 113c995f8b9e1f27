"""What every algorithm promises, whoever wrote it."""

import dataclasses
import json

import numpy as np
import pytest

from contracts.scenes import FAULTS, PROBLEM, Fault, Quadratic, execute, make, make_plan
from quoron_protos.errors import BudgetExceeded
from quoron_server import serial
from quoron_server.algorithms import ALGORITHMS
from quoron_server.budget import Budget
from quoron_server.ledger import Ledger
from quoron_server.noise import SeededNoise

DISJOINT = [name for name, info in ALGORITHMS.items() if info.passes == "one"]
every_algorithm = pytest.mark.parametrize("name", list(ALGORITHMS))


class Crash(BaseException):
    """Stands for the process dying."""


def crashing(at: int, *, after: bool) -> type[Ledger]:
    """A ledger that dies at its write number `at`, before or after that write is durable."""
    writes = 0

    def dying(write):
        def wrapped(self, *arguments, **named):
            nonlocal writes
            writes += 1
            if writes == at and not after:
                raise Crash
            result = write(self, *arguments, **named)
            if writes == at:
                raise Crash
            return result

        return wrapped

    members = {name: dying(getattr(Ledger, name)) for name in ("spend", "commit", "finish")}
    return type("DyingLedger", (Ledger,), members)


@every_algorithm
def test_same_seed_gives_the_same_bits(name, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    np.testing.assert_array_equal(execute(name, tmp_path / "a"), execute(name, tmp_path / "b"))


@every_algorithm
def test_a_crash_at_every_write_resumes_to_identical_bits_and_asks_nobody_twice(name, tmp_path):
    (tmp_path / "whole").mkdir()
    whole = execute(name, tmp_path / "whole")
    rounds = make_plan(name).cost.rounds
    for after in (False, True):
        for at in range(1, 2 * rounds + 3):  # the initial commit, two writes a round, the end
            folder = tmp_path / f"{at}-{after}"
            folder.mkdir()
            with pytest.raises(Crash):
                execute(name, folder, ledger_type=crashing(at, after=after))
            np.testing.assert_array_equal(execute(name, folder), whole)
            with Ledger.open(folder / "ledger.sqlite") as ledger:
                assert ledger.finished
                assert ledger.spent()["rounds"] == len(ledger.events()) == rounds


@every_algorithm
def test_resuming_a_finished_run_asks_nobody(name, tmp_path):
    model = execute(name, tmp_path)
    engine = Quadratic()
    np.testing.assert_array_equal(execute(name, tmp_path, engine), model)
    assert engine.asked == []


@every_algorithm
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_nothing_a_user_sends_changes_the_course_of_a_run(name, fault: Fault, tmp_path):
    engine = Quadratic(fault)
    model = execute(name, tmp_path, engine)
    assert model.shape == (PROBLEM.dimension,)
    assert np.isfinite(model).all()
    honest = Quadratic()
    (tmp_path / "honest").mkdir()
    execute(name, tmp_path / "honest", honest)
    assert len(engine.asked) == len(honest.asked)
    for one, other in zip(engine.asked, honest.asked, strict=True):
        np.testing.assert_array_equal(one, other)


@every_algorithm
def test_the_ledger_equals_the_plan(name, tmp_path):
    plan = make_plan(name)
    execute(name, tmp_path)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        spent, releases, events = ledger.spent(), ledger.releases(), ledger.events()
    assert spent["rounds"] == plan.cost.rounds
    assert spent["users"] == plan.cost.messages  # as planned: the number of a Poisson cohort is a secret
    assert spent["gradient_evaluations"] == plan.cost.gradient_evaluations
    if name == "accelerated-erm":  # one decision a round, and the noise of each that passed
        passed = [event["public"] for event in events if event["public"]["released"]]
        scales = [plan.parameters.phases[public["phase"]].noise_scale for public in passed]
        assert len(passed) > 1
        assert [entry.mechanism for _, entry in releases].count("lottery-test") == plan.cost.rounds
        releases = [entry for entry in releases if entry[1].mechanism == "gaussian"]
    elif hasattr(plan.parameters, "estimator"):  # noise in proportion to each round's public radius
        scales = [event["public"]["radius"] * plan.parameters.noise_scale for event in events]
    elif hasattr(plan.parameters, "phases"):
        scales = [phase.release_scale for phase in plan.parameters.phases]
    elif hasattr(plan.parameters, "pilot_scale"):  # the second moment, then gradient and cells of every round
        p, scales = plan.parameters, [plan.parameters.pilot_scale]
        for event in events[1:]:
            main = event["public"]["phase"] == "main"
            radius = event["public"]["radius"]
            scales += [radius * (p.main_scale if main else p.warmup_scale), p.main_cells if main else p.warmup_cells]
    else:
        scales = [plan.parameters.noise_scale] * plan.cost.rounds if plan.parameters.noise_scale else []
    assert [entry.parameters["scale"] for _, entry in releases] == scales


@pytest.mark.parametrize("name", DISJOINT)
def test_one_pass_algorithms_ask_every_user_at_most_once(name, tmp_path):
    engine = Quadratic()
    execute(name, tmp_path, engine)
    asked = np.concatenate(engine.asked)
    assert len(np.unique(asked)) == len(asked)


@every_algorithm
def test_a_budget_one_round_short_is_refused_before_anyone_is_asked(name, tmp_path):
    engine = Quadratic()
    with pytest.raises(BudgetExceeded, match="rounds"):
        execute(name, tmp_path, engine, rounds=make_plan(name).cost.rounds - 1)
    assert engine.asked == []


@every_algorithm
def test_states_survive_storage_unchanged(name):
    algorithm, noise, engine = make(name), SeededNoise(3), Quadratic()
    state = algorithm.init()
    while (question := algorithm.request(state, noise)) is not None:
        state = algorithm.update(state, engine.ask(question), noise).state
        stored = serial.encode(state)
        assert serial.encode(serial.decode(type(state), stored)) == stored


@every_algorithm
def test_a_plan_is_plain_json_and_states_its_promise(name):
    plan = make_plan(name)
    told = json.loads(json.dumps(plan.as_json()))
    assert told["statement"] == plan.guarantee.sentence()
    assert told["algorithm"] == name
    assert dataclasses.is_dataclass(plan.parameters)


@every_algorithm
def test_a_budget_of_exactly_the_plan_suffices(name):
    plan = make_plan(name)
    Budget(rounds=plan.cost.rounds, gradient_evaluations=plan.cost.gradient_evaluations).check_plan(plan)

from dataclasses import replace

import numpy as np
import pytest

from contracts.scenes import Quadratic, execute, make
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.clipping import Sums
from quoron_privacy.errors import BudgetExceeded, ConfigError, LedgerError, RunError
from quoron_privacy.noise import AnsweredNoise, SecureNoise, SeededNoise
from quoron_privacy.noise_ahead import StartedNoise
from quoron_server import rounds
from quoron_server.books.ledger import Ledger
from quoron_server.budget import Budget
from quoron_server.rounds import chained, run

NAME = "one-pass-dp-sgd"


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "l.sqlite", plan="{}", config_digest="", noise_key=b"1") as made:
        yield made


@pytest.fixture
def deployed(tmp_path):
    with Ledger.create(tmp_path / "d.sqlite", plan="{}", config_digest="", noise_key=b"k" * 32) as made:
        yield made


class Recorder:
    def __init__(self, ledger):
        self.ledger, self.events = ledger, []

    def started(self, plan):
        self.events.append("started")

    def round_finished(self, event):
        assert self.ledger.resume_point()[0] == event.round, "shown before it was on the ledger"
        self.events.append(event)

    def finished(self, model):
        self.events.append("finished")


def test_a_round_is_on_the_ledger_before_anyone_sees_it(ledger):
    recorder = Recorder(ledger)
    algorithm = make(NAME)
    run(algorithm, Quadratic(), ledger, SeededNoise(1), observers=[recorder], simulation=True)
    rounds = [event for event in recorder.events if not isinstance(event, str)]
    assert recorder.events[0] == "started"
    assert recorder.events[-1] == "finished"
    assert [event.round for event in rounds] == list(range(algorithm.plan.cost.rounds))
    assert rounds[-1].total_messages == algorithm.plan.cost.messages


def test_a_cohort_is_spent_before_its_question_leaves(ledger):
    class Checking(Quadratic):
        def ask(self, question):
            assert ledger.spent()["rounds"] == question.round + 1
            return super().ask(question)

    run(make(NAME), Checking(), ledger, SeededNoise(1), simulation=True)


def test_diagnostics_of_private_data_exist_in_simulation_only(deployed):
    recorder = Recorder(deployed)
    run(make(NAME), Quadratic(), deployed, SecureNoise(b"k" * 32), observers=[recorder])
    assert all(event.diagnostics == {} for event in recorder.events[1:-1])
    with pytest.raises(RunError, match="outside simulation"):
        run(make(NAME), Quadratic(), deployed, SecureNoise(b"k" * 32), evaluate=lambda model: {})


class Counting(Quadratic):
    def measured(self):
        return {"measured_down": 10 + len(self.asked), "measured_up": 1}


def test_what_an_engine_measures_is_told_and_added_up_in_a_simulation_across_a_restart(ledger):
    class Stopping(Counting):
        def ask(self, question):
            if question.round == 2:
                raise RunError("Stopped.")
            return super().ask(question)

    with pytest.raises(RunError, match="Stopped"):
        run(make(NAME), Stopping(), ledger, SeededNoise(1), simulation=True)
    run(make(NAME), Counting(), ledger, SeededNoise(1), simulation=True)
    told = [event["diagnostics"] for event in ledger.events()]
    downs = [each["measured_down"] for each in told]
    assert downs[:3] == [11, 12, 11]
    assert [each["total_measured_down"] for each in told] == np.cumsum(downs).tolist()
    assert told[-1]["total_measured_up"] == len(told)


def test_what_an_engine_measures_is_told_in_simulation_only(deployed):
    run(make(NAME), Counting(), deployed, SecureNoise(b"k" * 32))
    assert all(event["diagnostics"] == {} for event in deployed.events())


def test_seeded_noise_is_refused_outside_simulation(ledger):
    engine = Quadratic()
    with pytest.raises(RunError, match="SecureNoise"):
        run(make(NAME), engine, ledger, SeededNoise(1))
    assert engine.asked == []


def test_exposure_model_needs_trusted_clients_outside_simulation(deployed):
    engine = Quadratic()
    with pytest.raises(ConfigError, match="trust_clients=true for phased-sgd"):
        run(make("phased-sgd"), engine, deployed, SecureNoise(b"k" * 32))
    assert engine.asked == []
    run(make("phased-sgd"), engine, deployed, SecureNoise(b"k" * 32), trust_clients=True)


def test_what_is_not_proved_or_not_private_is_refused_outside_simulation(deployed):
    with pytest.raises(ConfigError, match="proved promise"):
        run(make("sgd"), Quadratic(), deployed, SecureNoise(b"k" * 32))


def test_outside_simulation_no_time_and_no_realised_cohort_is_told(deployed):
    recorder = Recorder(deployed)
    run(make("dp-sgd-poisson"), Quadratic(), deployed, SecureNoise(b"k" * 32), observers=[recorder])
    planned = make("dp-sgd-poisson").plan.parameters.cohort_size
    for event in recorder.events[1:-1]:
        assert (event.asked, event.messages, event.seconds_clients, event.seconds_server) == (planned, planned, 0, 0)


def test_evaluation_does_not_influence_the_run(tmp_path):
    models = []
    for folder, evaluate in (("a", None), ("b", lambda model: {"excess_risk": float(np.sum(model))})):
        path = tmp_path / f"{folder}.sqlite"
        with Ledger.create(path, plan="{}", config_digest="", noise_key=b"1") as ledger:
            models.append(run(make(NAME), Quadratic(), ledger, SeededNoise(1), simulation=True, evaluate=evaluate))
            traced = ["excess_risk" in event["diagnostics"] for event in ledger.events()]
            assert all(traced) if evaluate else not any(traced)
    np.testing.assert_array_equal(*models)


@pytest.mark.parametrize("limit", ["gradient_evaluations", "rounds"])
def test_an_overspending_round_is_refused_before_anyone_is_asked(tmp_path, limit, monkeypatch):
    """The plan's own check is switched off, so the check before each round has to catch it."""
    monkeypatch.setattr(Budget, "check_plan", lambda self, plan: None)
    cost = make(NAME).plan.cost
    engine = Quadratic()
    with pytest.raises(BudgetExceeded, match=limit):
        execute(NAME, tmp_path, engine, **{limit: getattr(cost, limit) - 1})
    assert len(engine.asked) == cost.rounds - 1


def test_epsilon_over_budget_is_refused(ledger):
    with pytest.raises(BudgetExceeded, match="epsilon"):
        run(make(NAME), Quadratic(), ledger, SeededNoise(1), budget=Budget(epsilon=0.5), simulation=True)


def test_a_run_continues_with_its_own_noise_only(ledger):
    engine = Quadratic()
    with pytest.raises(LedgerError, match="Expected the noise source that began the run"):
        run(make(NAME), engine, ledger, SeededNoise(2), simulation=True)
    assert engine.asked == []


class Watching(Quadratic):
    """Keeps the points it was sent; from round 0 on one user is absent, if one is named."""

    def __init__(self, absent=None):
        def silence(values, status):
            row = np.flatnonzero(self.asked[-1] == absent)
            values[row], status[row] = 0, Status.MISSING

        super().__init__(silence)
        self.points = []

    def ask(self, question):
        self.points.append(question.task.points[0])
        return super().ask(question)


def second_broadcast(path, engine, **options):
    """What everybody is sent after round 0, by books with one key."""
    with Ledger.create(path, plan="{}", config_digest="", noise_key=b"k" * 32) as books:
        run(make(NAME), engine, books, SecureNoise(b"k" * 32), **options)
    return engine.points[1]


def told_by_restored_books(tmp_path, **options):
    """(difference of two broadcasts, what one user's clipped answer puts into them)."""
    p, full = make(NAME).parameters, Watching()
    whole = second_broadcast(tmp_path / "whole.sqlite", full, **options)
    user = full.asked[0][0]
    restored = second_broadcast(tmp_path / "restored.sqlite", Watching(absent=user), **options)
    answer = -0.2 * full.centres[user]  # at zero, where the run starts
    clipped = answer * min(1.0, p.clip_norm / np.linalg.norm(answer))
    return restored - whole, p.step_size * clipped / p.cohort_size


def test_books_restored_in_mid_run_and_one_absence_show_no_answer(tmp_path):
    difference, answer = told_by_restored_books(tmp_path)
    assert not np.allclose(difference, answer, rtol=1e-3)


def test_noise_that_looks_at_the_round_alone_would_show_it(tmp_path, monkeypatch):
    monkeypatch.setattr(AnsweredNoise, "stream", lambda noise, *labels: noise.source.stream(*labels))
    np.testing.assert_allclose(*told_by_restored_books(tmp_path), rtol=1e-6)


def test_a_round_that_is_started_again_draws_independent_noise_whatever_is_answered(tmp_path):
    """Answers that do not come again: a secret of each start takes the place of their digest."""
    difference, answer = told_by_restored_books(tmp_path, reproducible=False)
    assert not np.allclose(difference, answer, rtol=1e-3)
    (tmp_path / "same").mkdir()
    same = [second_broadcast(tmp_path / "same" / f"{n}.sqlite", Watching(), reproducible=False) for n in range(2)]
    assert not np.allclose(*same, rtol=1e-3)  # the same answers too: what was not committed is not drawn again


def test_a_secret_of_the_start_that_were_always_the_same_would_show_an_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(StartedNoise, "fresh", classmethod(lambda cls, source: cls(source, "fixed")))
    np.testing.assert_allclose(*told_by_restored_books(tmp_path, reproducible=False), rtol=1e-6)


def test_the_secret_of_a_start_is_in_no_book(tmp_path, monkeypatch):
    nonces = []

    def fresh(cls, source):
        nonces.append("5ec4e7" * 8)
        return cls(source, nonces[-1])

    monkeypatch.setattr(StartedNoise, "fresh", classmethod(fresh))

    class Dying(Watching):
        def ask(self, question):
            if question.round == 2:
                raise KeyboardInterrupt
            return super().ask(question)

    with pytest.raises(KeyboardInterrupt):
        second_broadcast(tmp_path / "books.sqlite", Dying(), reproducible=False)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert len(nonces) == 1
    assert b"k" * 32 in written  # the key is there: it was looked for in the right place
    assert nonces[0].encode() not in written
    assert bytes.fromhex(nonces[0]) not in written


@pytest.mark.parametrize("name", [NAME, "dp-ftrl/epochs", "accelerated-sgd", "dp-sgd-poisson"])
def test_noise_drawn_ahead_is_the_noise_of_the_start(name, tmp_path):
    source = StartedNoise(SeededNoise(11), "simulation")
    algorithm, engine = make(name), Quadratic()
    state = algorithm.init()
    while (question := algorithm.request(state, SeededNoise(11))) is not None:
        state = algorithm.update(state, engine.ask(question), source).state
    with Ledger.create(tmp_path / "books.sqlite", plan="{}", config_digest="", noise_key=b"11") as books:
        model = run(make(name), Quadratic(), books, SeededNoise(11), simulation=True, reproducible=False)
    np.testing.assert_array_equal(model, algorithm.model(state))


def test_the_digest_of_answers_depends_on_usable_rows_alone_and_on_all_of_them():
    question = make(NAME).request(make(NAME).init(), SeededNoise(1))
    asked = len(question.cohort)
    values, status = np.arange(asked * 3.0).reshape(asked, 3), np.zeros(asked, np.uint8)
    status[5] = Status.MISSING

    def digest(values=values, status=status, before=bytes(32), question=question):
        return chained(before, question, Answers(values, status))

    def changed(array, place, to):
        copy = array.copy()
        copy[place] = to
        return copy

    assert digest(np.asfortranarray(values)) == digest()
    assert digest(changed(values, 5, np.nan)) == digest(changed(values, 5, 7.0)) == digest()
    assert digest(status=changed(status, 5, Status.REJECTED)) == digest()
    assert digest(changed(values, (3, 0), -0.0)) == digest(changed(values, (3, 0), 0.0))
    others = {
        digest(changed(values, (3, 0), 1e-300)),
        digest(status=changed(status, 4, Status.MISSING)),
        digest(before=b"k" * 32),
        digest(question=replace(question, round=1)),
        digest(values[[1, 0, *range(2, asked)]]),
    }
    assert len(others | {digest()}) == 6


@pytest.mark.parametrize("hashed", [1, 7, 100])
def test_the_digest_of_many_answers_depends_on_each_wherever_they_are_cut(hashed, monkeypatch):
    monkeypatch.setattr(rounds, "HASHED", hashed)
    question, status = make(NAME).request(make(NAME).init(), SeededNoise(1)), np.zeros(12, np.uint8)
    values = np.arange(36.0).reshape(12, 3)
    found = {chained(bytes(32), question, Answers(values, status))}
    for row in range(12):
        other = values.copy()
        other[row, 2] = -1.0
        found.add(chained(bytes(32), question, Answers(other, status)))
    found.add(chained(bytes(32), question, Answers(np.roll(values, 3, axis=0), status)))
    assert len(found) == 14
    nobody = Answers(np.zeros((0, 2, 3)), np.zeros(0, np.uint8))
    assert chained(bytes(32), question, nobody) not in found


def test_the_digest_of_sums_depends_on_every_integer_of_them():
    question = make(NAME).request(make(NAME).init(), SeededNoise(1))
    sums = Sums(np.arange(3), np.arange(4), 5, 6)
    others = [
        replace(sums, total=np.array([0, 1, 3])),
        replace(sums, cells=np.array([0, 1, 2, 4])),
        replace(sums, clipped=6),
        replace(sums, answered=5),
        Sums(np.arange(4), np.arange(1, 5), 5, 6),
    ]
    digests = {chained(bytes(32), question, each) for each in [sums, *others]}
    assert len(digests) == 6
    assert chained(bytes(32), question, replace(sums)) in digests
    assert chained(b"k" * 32, question, sums) not in digests

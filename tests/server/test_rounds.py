import subprocess
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from contracts.scenes import Quadratic, execute, make
from quoron_client.protocol.questions import Answers, Status
from quoron_privacy.errors import BudgetExceeded, ConfigError, LedgerError, LedgerUnavailable, RunError
from quoron_privacy.noise.streams import SecureNoise, SeededNoise, StartedNoise
from quoron_server import rounds
from quoron_server.algorithms.slots import partition
from quoron_server.plan import Budget
from quoron_server.rounds import run
from quoron_server.storage.ledger import Ledger, digest

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
    found = [event["diagnostics"] for event in ledger.events()]
    downs = [each["measured_down"] for each in found]
    assert downs[:3] == [11, 12, 11]
    assert [each["total_measured_down"] for each in found] == np.cumsum(downs).tolist()
    assert found[-1]["total_measured_up"] == len(found)


def test_seeded_noise_is_refused_outside_simulation(ledger):
    engine = Quadratic()
    with pytest.raises(RunError, match="SecureNoise"):
        run(make(NAME), engine, ledger, SeededNoise(1))
    assert engine.asked == []


def test_exposure_model_needs_trusted_clients_outside_simulation(deployed):
    engine = Quadratic()
    with pytest.raises(ConfigError, match=r"central-release.* for phased-sgd"):
        run(make("phased-sgd"), engine, deployed, SecureNoise(b"k" * 32))
    assert engine.asked == []
    run(make("phased-sgd"), engine, deployed, SecureNoise(b"k" * 32), trust_clients=True)


def test_what_is_not_proved_or_not_private_is_refused_outside_simulation(deployed):
    with pytest.raises(ConfigError, match="proved guarantee"):
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
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:  # the round before is committed
        assert ledger.spent()["rounds"] == len(ledger.events()) == cost.rounds - 1


def test_a_round_costs_one_durable_transaction(deployed):
    def durable():
        return deployed._database.rows("SELECT acknowledged FROM meta")[0]["acknowledged"]

    before = durable()
    run(make(NAME), Quadratic(), deployed, SecureNoise(b"k" * 32))
    assert durable() - before == 1 + 1 + make(NAME).plan.cost.rounds + 1  # first state, first cohort, rounds, model


class Enclosed(Quadratic):
    """Shows no one a point."""

    enclosed = True

    def __init__(self, at=-1, happens=lambda: None):
        super().__init__()
        self.at, self.happens = at, happens

    def ask(self, question):
        if question.round == self.at:
            self.happens()
        return super().ask(question)


@pytest.fixture
def large(monkeypatch):
    """Any state counts as one that takes long to save, and any time as short."""
    monkeypatch.setattr(rounds, "LARGE_STATE", 0)
    monkeypatch.setattr(rounds, "UNSEEN", np.inf)


def kept(path, name, *engines):
    """Everything that a simulation's ledger says, after as many starts as there are engines."""
    if not path.exists():
        Ledger.create(path, plan="{}", config_digest="", noise_key=b"1").close()
    for engine in engines:
        with Ledger.open(path) as ledger, suppress(RunError):
            run(make(name), engine, ledger, SeededNoise(1), simulation=True)
    with Ledger.open(path) as ledger:
        untimed = [{word: said for word, said in each.items() if "seconds" not in word} for each in ledger.events()]
        return ledger.model.tolist(), untimed, ledger.releases(), ledger.spent()


@pytest.mark.parametrize("name", [NAME, "dp-sgd-poisson", "outlier-iterates", "whitened-tracking"])
def test_rounds_that_no_one_sees_share_a_commit_and_leave_the_same_ledger(name, tmp_path, large):
    alone = kept(tmp_path / "alone.sqlite", name, Quadratic())
    assert kept(tmp_path / "together.sqlite", name, Enclosed()) == alone


def test_rounds_that_no_one_sees_cost_one_durable_transaction_and_others_one_each(tmp_path, large):
    def durable(name, engine):
        key = b"k" * 32
        with Ledger.create(tmp_path / name, plan="{}", config_digest="", noise_key=key) as ledger:
            recorder, database = Recorder(ledger), ledger._database
            before = database.rows("SELECT acknowledged FROM meta")[0]["acknowledged"]
            recorder.round_finished = lambda event: recorder.events.append((event.round, ledger.resume_point()[0]))
            run(make(NAME), engine, ledger, SecureNoise(key), observers=[recorder])
            count = database.rows("SELECT acknowledged FROM meta")[0]["acknowledged"] - before
        return count, recorder.events[1:-1]

    last = make(NAME).plan.cost.rounds - 1
    assert durable("together.sqlite", Enclosed()) == (1 + 1 + 1 + 1, [(round_, last) for round_ in range(last + 1)])
    assert durable("alone.sqlite", Quadratic()) == (
        1 + 1 + (last + 1) + 1,
        [(round_, round_) for round_ in range(last + 1)],
    )


def test_a_run_that_is_stopped_keeps_the_rounds_that_no_one_has_seen(tmp_path, large):
    def stop():
        raise RunError("Stopped.")

    path = tmp_path / "stopped.sqlite"
    with Ledger.create(path, plan="{}", config_digest="", noise_key=b"1") as ledger, pytest.raises(RunError):
        run(make(NAME), Enclosed(2, stop), ledger, SeededNoise(1), simulation=True)
    with Ledger.open(path) as ledger:
        assert (ledger.resume_point()[0], len(ledger.events()), ledger.spent()["rounds"]) == (1, 2, 3)
    assert kept(path, NAME, Enclosed()) == kept(tmp_path / "whole.sqlite", NAME, Quadratic())


@pytest.mark.parametrize("engine", [Quadratic(), Enclosed()])
def test_a_commit_that_fails_is_not_tried_again(engine, ledger, large, monkeypatch):
    """Its acknowledgement may be all that was lost: the next start reads what is there."""
    tried, commit = [], Ledger.commit

    def failing(self, round_, *given):
        tried.append(round_)
        if round_ >= 0:
            raise LedgerUnavailable("The connection is gone.")
        commit(self, round_, *given)

    monkeypatch.setattr(Ledger, "commit", failing)
    with pytest.raises(LedgerUnavailable):
        run(make(NAME), engine, ledger, SeededNoise(1), simulation=True)
    assert len(tried) == 2


@pytest.mark.parametrize("at", [1, 2])
def test_a_run_that_is_killed_goes_on_before_the_rounds_that_no_one_has_seen(at, tmp_path, large):
    """The files as a kill leaves them: what a process holds is gone."""
    path, left = tmp_path / "whole.sqlite", tmp_path / "left"
    left.mkdir()

    def kill():
        subprocess.run(["cp", *map(str, tmp_path.glob("whole.sqlite*")), str(left)], check=True)

    whole = kept(path, NAME, Enclosed(at, kill))
    with Ledger.open(left / path.name) as ledger:
        assert (ledger.resume_point()[0], ledger.events(), ledger.spent()["rounds"]) == (-1, [], 1)
    assert kept(left / path.name, NAME, Enclosed()) == whole


class Patient(Quadratic):
    """Waits before it asks, and is stopped at a round before or after it has asked."""

    def __init__(self, stop, *, asks):
        super().__init__()
        self.stop, self.asks, self.last_asked = stop, asks, -1

    def ask(self, question):
        if question.round != self.stop or self.asks:
            self.last_asked = question.round
        if question.round == self.stop:
            raise RunError("Stopped.")
        return super().ask(question)


@pytest.mark.parametrize("stop", [0, 2])
@pytest.mark.parametrize("asks", [True, False])
def test_a_run_that_is_stopped_has_spent_what_was_asked_and_no_more(stop, asks, deployed):
    noise, whole = SecureNoise(b"k" * 32), make(NAME).plan.cost.rounds
    with pytest.raises(RunError, match="Stopped"):
        run(make(NAME), Patient(stop, asks=asks), deployed, noise)
    assert deployed.spent()["rounds"] == stop + asks
    with pytest.raises(RunError, match="Stopped"):  # what an earlier start may have asked stays spent
        run(make(NAME), Patient(stop, asks=False), deployed, noise)
    assert deployed.spent()["rounds"] == stop + asks
    run(make(NAME), Quadratic(), deployed, noise)
    assert deployed.spent()["rounds"] == len(deployed.events()) == whole


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


def second_broadcast(path, engine):
    """What everybody is sent after round 0, by a store with one key."""
    with Ledger.create(path, plan="{}", config_digest="", noise_key=b"k" * 32) as store:
        run(make(NAME), engine, store, SecureNoise(b"k" * 32))
    return engine.points[1]


def learnt_from_a_restored_store(tmp_path):
    """(difference of two broadcasts, what one user's clipped answer puts into them)."""
    p, full = make(NAME).parameters, Watching()
    whole = second_broadcast(tmp_path / "whole.sqlite", full)
    user = full.asked[0][0]
    restored = second_broadcast(tmp_path / "restored.sqlite", Watching(absent=user))
    answer = -0.2 * full.centres[user]  # at zero, where the run starts
    clipped = answer * min(1.0, p.clip_norm / np.linalg.norm(answer))
    return restored - whole, p.step_size * clipped / p.cohort_size


class Guessing(Watching):
    """A victim answers and a colluder does not; or the victim is kept away and the colluder sends what it guesses."""

    def __init__(self, guess=None):
        super().__init__()
        self.guess = guess

    def ask(self, question):
        answers = super().ask(question)
        if question.round:
            return answers
        victim, colluder = 0, 1
        values, status = answers.values.copy(), answers.status.copy()
        silent = colluder if self.guess is None else victim
        if self.guess is not None:
            values[colluder] = self.guess
        values[silent], status[silent] = 0.0, Status.MISSING
        return Answers(values, status)


def releases_of_a_guess(tmp_path, by):
    """What round 0 released, then what it released of a store put back to its start: the guess is right, or off."""
    honest = Guessing()
    answer = -0.2 * honest.centres[partition(seed=make(NAME).plan.seed, users=make(NAME).plan.problem.users)[0]]
    first = second_broadcast(tmp_path / f"first-{by}.sqlite", honest)
    return first, second_broadcast(tmp_path / f"second-{by}.sqlite", Guessing(answer + by))


def test_a_store_restored_in_mid_run_and_one_absence_show_no_answer(tmp_path):
    """Nor does the same answer show itself: what was not committed is not drawn again, nor what was."""
    difference, answer = learnt_from_a_restored_store(tmp_path)
    assert not np.allclose(difference, answer, rtol=1e-3)
    (tmp_path / "same").mkdir()
    same = [second_broadcast(tmp_path / "same" / f"{n}.sqlite", Watching()) for n in range(2)]
    assert not np.allclose(*same, rtol=1e-3)


@pytest.mark.parametrize("by", [0.0, 0.125])
def test_no_release_of_a_restored_store_tells_a_colluder_that_its_guess_was_right(by, tmp_path):
    """The sums are equal where the guess is right: noise that followed from them would be, too, and so the releases."""
    first, second = releases_of_a_guess(tmp_path, by)
    assert not np.any(first == second)


def test_a_secret_of_the_start_that_were_always_the_same_would_show_an_answer_and_a_right_guess(tmp_path, monkeypatch):
    monkeypatch.setattr(StartedNoise, "fresh", classmethod(lambda cls, source: cls(source, "fixed")))
    np.testing.assert_allclose(*learnt_from_a_restored_store(tmp_path), rtol=1e-6)
    np.testing.assert_array_equal(*releases_of_a_guess(tmp_path, 0.0))
    assert not np.array_equal(*releases_of_a_guess(tmp_path, 0.125))


def test_every_start_draws_a_secret_of_its_own_that_is_in_no_store(tmp_path, monkeypatch):
    nonces, fresh = [], StartedNoise.fresh

    def noted(source):
        nonces.append(fresh(source).nonce)
        return StartedNoise(source, nonces[-1])

    monkeypatch.setattr(StartedNoise, "fresh", noted)

    class Dying(Watching):
        def ask(self, question):
            if question.round == 2:
                raise KeyboardInterrupt
            return super().ask(question)

    store = tmp_path / "store.sqlite"
    with pytest.raises(KeyboardInterrupt):
        second_broadcast(store, Dying())
    with pytest.raises(KeyboardInterrupt), Ledger.open(store) as ledger:
        run(make(NAME), Dying(), ledger, SecureNoise(b"k" * 32))
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"k" * 32 in written  # the key is there: it was looked for in the right place
    assert len(set(nonces)) == 2
    for nonce in nonces:
        assert nonce.encode() not in written
        assert bytes.fromhex(nonce) not in written


class Stopped(Quadratic):
    """Gives up in these rounds, the first time that they are asked; keeps whom each question asked."""

    def __init__(self, *stops):
        super().__init__()
        self.stops, self.questions = list(stops), []

    def ask(self, question):
        self.questions.append(question)
        if self.stops and question.round == self.stops[0]:
            raise KeyboardInterrupt(self.stops.pop(0))
        return super().ask(question)


def interrupted(name, path, stops):
    """A real run that is stopped and goes on.

    Digests of whom each round asked what, in each of its attempts; what was committed as each start left it; totals.
    """
    engine, prefixes = Stopped(*stops), []
    for start in range(len(stops) + 1):
        store = Ledger.open(path) if start else Ledger.create(path, plan="{}", config_digest="", noise_key=b"k" * 32)
        with store:
            try:
                run(make(name), engine, store, SecureNoise(b"k" * 32))
            except KeyboardInterrupt:
                prefixes.append([event for event in store.events() if event["round"] < stops[0]])
                prefixes[-1].append(store.resume_point())
            else:
                totals = store.spent()
                assert [event["round"] for event in store.events()] == list(range(make(name).plan.cost.rounds))
    asked: dict[int, list[str]] = {}
    for question in engine.questions:
        asked.setdefault(question.round, []).append(digest(replace(question, drawn=False)))
    return asked, prefixes, totals


@pytest.mark.parametrize("name", [NAME, "dp-sgd-wor", "dp-sgd-poisson", "recentred-sgd"])
def test_a_round_that_is_asked_again_keeps_a_public_cohort_and_draws_a_secret_one_anew(name, tmp_path):
    cost = make(name).plan.cost
    asked, prefixes, totals = interrupted(name, tmp_path / "store.sqlite", [1, 1, 1])
    assert [len(attempts) for _, attempts in sorted(asked.items())] == [1, 4, *[1] * (cost.rounds - 2)]
    assert len(set(asked[1])) == (1 if name == NAME else 4)
    assert prefixes[0] == prefixes[1] == prefixes[2]  # what is committed stands, to the bit, state and all
    assert totals["rounds"] == cost.rounds  # each counts once
    assert totals["users"] == cost.messages


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("name", [NAME, "dp-ftrl/epochs", "accelerated-sgd", "dp-sgd-poisson"])
def test_noise_drawn_ahead_is_the_noise_of_the_start(name, ahead, tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "MIN_AHEAD", 1 if ahead else 1 << 14)
    source = StartedNoise.simulated(SeededNoise(11))
    algorithm, engine = make(name), Quadratic()
    state = algorithm.init()
    while (question := algorithm.request(state, source)) is not None:
        state = algorithm.update(state, engine.ask(question), source).state
    with Ledger.create(tmp_path / "store.sqlite", plan="{}", config_digest="", noise_key=b"11") as store:
        model = run(make(name), Quadratic(), store, SeededNoise(11), simulation=True)
    np.testing.assert_array_equal(model, algorithm.model(state))

"""The round loop, the same for every algorithm and every engine: ask, update, commit, report, by a public schedule.

    model = run(algorithm, engine, ledger, noise, budget=Budget(), observers=[...], simulation=True)

Nothing is shown to anyone before the ledger holds it, and no question leaves before the ledger holds its cohort: one
transaction commits a round and spends the next, or, where neither leaves the process, several rounds. A run continues
from whatever the ledger holds: an empty one starts it, a complete one only returns the model. Noise and secret cohorts
are each start's own (`StartedNoise`): what a kill leaves uncommitted was seen by nobody and comes no more. Only a
simulation goes on to the bits that it would have had.

When rounds end: docs/comparing.md#when-rounds-end.
"""

import math
import os
import time
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from quoron_client.protocol.questions import Answers, Question, summed
from quoron_privacy.errors import BudgetExceeded, ConfigError, LedgerError, OtherVersion, RunError
from quoron_privacy.noise.streams import NoiseAhead, NoiseSource, StartedNoise
from quoron_privacy.release import Release, Sums
from quoron_server import serial
from quoron_server.algorithm import MAX_STATE, Algorithm, Vector, names_of
from quoron_server.plan import Budget, RunPlan
from quoron_server.traffic import Sizes

if TYPE_CHECKING:  # a plan is made, and an engine written, without a database
    from quoron_server.storage.ledger import Ledger

Evaluate = Callable[[Vector], Mapping[str, float]]

PAUSE = 0.1  # of a round's seconds

MIN_AHEAD = 1 << 14  # numbers of a model: fewer samples are drawn sooner than another thread is woken
MAX_AHEAD = 1 << 29  # bytes of noise that is drawn ahead
MOST_NAMED = 1000  # of those who are missing in a round, where that is public; how many there are is reported beside
LARGE_STATE = 1 << 20  # bytes: saving takes longer than a round, so rounds that no one sees share a commit
UNSEEN = 1.0  # seconds of rounds in such a commit
TRACED_ROUNDS = 60  # at most this many rounds of a simulation are evaluated


def opening(due: float, now: float, seconds: float) -> float:
    """Return when the next round opens, from `now` on: at `due`, or whole pauses after it. -inf as `due`: at once.

    A round takes answers for its whole `seconds`, also when everybody has answered long before. Then the coordinator
    has PAUSE of that time for its own work, and only when it is over does anything leave: the next question, the
    round's event. Work that takes longer shows, but rounded up to whole pauses, so times say nothing of who answered.
    With early ends, which an operator has to accept, a round ends once all users have answered: an observer of that
    time learns whether a user was absent.
    """
    if math.isinf(due):
        return now
    late = max(0, math.ceil((now - due) / (PAUSE * seconds)))
    return due + late * PAUSE * seconds


class Engine(Protocol):
    """Whatever carries a question to users and brings answers back: in process, gRPC, Flower.

    One that waits before it asks has a `last_asked` round, from -1 on: what was spent after that is taken back. One
    that is `enclosed` shows no one a point: its rounds may be committed together. One that counts what it moves has
    `measured`, figures of the last round that add up over rounds, by name: functions of who answered, for simulations
    only.
    """

    def ask(self, question: Question) -> Answers | Sums:
        """One row an asked user, in cohort order; their sums, if the question has a reduction and they are at hand.

        Never raises because of what a user sent.
        """


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One committed round. `diagnostics` and the seconds are functions of private data: simulation only."""

    round: int  # from 0
    rounds: int  # planned, at most
    asked: int  # users, as planned; the expected number under Poisson sampling
    messages: int
    gradient_evaluations: int  # item gradients at the nominal items per user
    bytes_down: int  # float64 payload
    bytes_up: int
    total_messages: int
    total_gradient_evaluations: int
    total_bytes_down: int
    total_bytes_up: int
    seconds_clients: float
    seconds_server: float
    encoded_down: int = 0  # bytes of all planned questions as messages of a run without a name
    encoded_up: int = 0  # bytes of all planned answers
    public: Mapping[str, Any] = field(default_factory=dict)
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Evaluations:
    """Releases of held-out users: of the final model, and of the iterate after some rounds (evaluation#ev5)."""

    release: Callable[[Vector, int], tuple[Sequence[Release], dict[str, Any]]]  # (d,), its number from 0 -> an event
    rounds: Container[int] = ()  # after which the iterate is evaluated
    enough: Callable[[Sequence[dict[str, Any]]], bool] = lambda _: False  # whether to stop, by all events so far


class Observer(Protocol):
    """Progress bars, event logs, reports. Who derives from it hears of what it has a method for."""

    def started(self, plan: RunPlan) -> None:
        """Before the first (or first resumed) round."""
        return

    def round_finished(self, event: RoundEvent) -> None:
        """After the round's commit."""
        return

    def finished(self, model: Vector) -> None:
        """After the last commit."""
        return


def require_storable(algorithm: Algorithm[Any]) -> None:
    """Raise ConfigError unless every database takes the state of a run as one value, and gives it back.

    All states of a run are as long as the first.
    """
    plan, needed = algorithm.plan, serial.size(algorithm.init())
    if needed > MAX_STATE:
        raise ConfigError(
            f"Expected a run whose state takes at most {MAX_STATE:,} bytes, as databases have it, got {needed:,} for "
            f"{plan.algorithm} with problem.dimension={plan.problem.dimension:,}. Use fewer features, or an algorithm "
            'that keeps fewer vectors, such as one-pass-dp-sgd, or dp-ftrl with factorisation="blt".'
        )


def other_run(place: object, thing: str) -> OtherVersion:
    """Return what is said where another run has begun."""
    return OtherVersion(
        f"Expected {place} to hold a run with the same {thing}, but it began with another. Go on with the data, the "
        "settings and the version of quoron that began it, or begin a new run elsewhere."
    )


def run(
    algorithm: Algorithm[Any],
    engine: Engine,
    ledger: "Ledger",
    noise: NoiseSource,
    *,
    budget: Budget | None = None,
    observers: Sequence[Observer] = (),
    simulation: bool = False,
    evaluate: Evaluate | None = None,
    trust_clients: bool = False,
    evaluations: Evaluations | None = None,
    finish: Callable[[Vector], Vector] = lambda model: model,
) -> Vector:
    """Run `algorithm` to its end and return the released model, shape (d,).

    `simulation` lets diagnostics of private data into the ledger and to observers, and `evaluate` (a map from the
    current iterate to figures such as the excess risk) is called in some rounds, which changes nothing of the run.
    Outside simulation the noise source must be deployable, the guarantee proved, and the trust model `central-release`,
    in which clients see un-noised iterates, needs `trust_clients`. Every call draws noise and coins of its own, a
    simulation those of its seed; where models are large, noise of coming rounds is drawn while users compute. What
    `evaluations` release is committed with the round or the model that it is of, or drawn again; where they are enough
    the last iterate is the model. Else `finish` may change the model before it is measured and committed, by public and
    released numbers alone. Raises BudgetExceeded, RunError, LedgerError; OtherVersion, with the ledger as it was, if
    another version, configuration or noise began this run.
    """
    budget = budget or Budget()
    budget.check_plan(algorithm.plan)
    if not simulation:
        noise.require_deployable()
        if evaluate is not None:
            raise RunError("Expected no evaluation outside simulation, got one: it would reveal private data.")
        algorithm.plan.require_deployable(trust_clients=trust_clients)
    if ledger.finished:
        return _tell(ledger.model, observers)
    if noise.export_key() != ledger.noise_key:
        raise OtherVersion(
            f"Expected the noise source that began the run in {ledger.path}, got the one named {noise.fingerprint()}. "
            "Rebuild it from the ledger's key: another key belongs to another run."
        )
    if simulation:
        ledger.relax()
    commits = _Commits(ledger, observers, in_one_transaction=getattr(engine, "enclosed", False))
    try:
        with _ahead(algorithm, noise, simulation=simulation) as drawn:
            model = _carry_out(algorithm, engine, commits, drawn, budget, simulation, evaluate, evaluations, finish)
    except BaseException:
        with suppress(LedgerError):  # a charge that cannot be returned stays, and the error is raised
            commits.write()
            ledger.withdraw(after=getattr(engine, "last_asked", algorithm.plan.cost.rounds))
        raise
    return _tell(model, observers)


def without_ledger(
    algorithm: Algorithm[Any], engine: Engine, noise: NoiseSource
) -> tuple[Vector, tuple[dict[str, Any], ...]]:
    """Return the model of `algorithm`, shape (d,), and each round's public figures; nothing is charged or kept.

    For a trial of a search, whose price covers it, and for a dry run by the data holder.
    """
    state, events = algorithm.init(), []
    while (question := algorithm.request(state, noise)) is not None:
        update = algorithm.update(state, engine.ask(question), noise)
        state = update.state
        events.append({"round": question.round, "rounds": algorithm.plan.cost.rounds, "public": dict(update.public)})
    return algorithm.model(state), tuple(events)


def _carry_out(
    algorithm: Algorithm[Any],
    engine: Engine,
    commits: "_Commits",
    noise: NoiseAhead,  # of this start
    budget: Budget,
    simulation: bool,
    evaluate: Evaluate | None,
    evaluations: Evaluations | None,
    finish: Callable[[Vector], Vector],
) -> Vector:
    ledger = commits.ledger
    state, totals, moved = _resume(algorithm, ledger)
    evaluated = [event["public"]["evaluation"] for event in ledger.events() if "evaluation" in event["public"]]
    stopped = evaluations is not None and evaluations.enough(evaluated)
    sizes = Sizes(algorithm.plan.problem.dimension)
    spent = False  # this round, with the commit of the one before
    measured = getattr(engine, "measured", None) if simulation else None
    for observer in commits.observers:
        observer.started(algorithm.plan)
    question = None if stopped else algorithm.request(state, noise)
    while question is not None:  # whom it asks depends on nobody's answers
        cost = _cost(algorithm.plan, question, budget, totals)
        encoded_down, encoded_up = sizes.of(question)
        if not spent:
            ledger.spend(question, cost["messages"], cost["gradient_evaluations"])
        _expect(algorithm, noise, question.round)
        began = time.perf_counter()
        # Where participation is reported, rows are needed; their sums are made here.
        answers = engine.ask(replace(question, reduction=None) if question.attended else question)
        there = participation_of(question, answers)
        if question.reduction is not None:
            answers = summed(answers, question.reduction)
        answered = time.perf_counter()
        update = algorithm.update(state, answers, noise)
        state = update.state
        totals = {name: totals[name] + cost[name] for name in totals}
        releases, public = update.releases, {**update.public, **there}
        if evaluations is not None and question.round in evaluations.rounds:
            entries, public["evaluation"] = evaluations.release(algorithm.iterate(state), len(evaluated))
            releases, evaluated = (*releases, *entries), [*evaluated, public["evaluation"]]
            stopped = evaluations.enough(evaluated)
        figures: Mapping[str, float] = {} if measured is None else measured()
        moved = {name: moved.get(name, 0) + figure for name, figure in figures.items()}
        diagnostics = {**update.diagnostics, **figures, **{f"total_{name}": total for name, total in moved.items()}}
        event = RoundEvent(
            round=question.round,
            rounds=algorithm.plan.cost.rounds,
            asked=cost["messages"],
            **cost,
            **{f"total_{name}": total for name, total in totals.items()},
            seconds_clients=answered - began if simulation else 0.0,
            seconds_server=time.perf_counter() - answered if simulation else 0.0,
            encoded_down=encoded_down,
            encoded_up=encoded_up,
            public=public,
            diagnostics=_diagnose(algorithm, state, question.round, diagnostics, evaluate) if simulation else {},
        )
        following, spending = None if stopped else algorithm.request(state, noise), None
        if following is not None:
            with suppress(BudgetExceeded):  # raised in its own turn, once this round is committed
                cost = _cost(algorithm.plan, following, budget, totals)
                spending = following, cost["messages"], cost["gradient_evaluations"]
        commits.add(state, releases, event, spending)
        question, spent = following, spending is not None
    model = algorithm.iterate(state) if stopped else finish(algorithm.model(state))
    if evaluations is None:
        ledger.finish(model)
    elif stopped:  # where it stands has been measured
        ledger.finish(model, (), evaluated[-1])
    else:
        ledger.finish(model, *evaluations.release(model, len(evaluated)))
    return model


class _Commits:
    """Rounds on their way into the ledger, and from there to observers.

    One by one; with `in_one_transaction` those of a large model share a commit each second. A kill then takes rounds
    that no one has seen, and they are drawn again, as a single one is (docs/privacy/restored-databases.md#rb1).
    """

    def __init__(self, ledger: "Ledger", observers: Sequence[Observer], *, in_one_transaction: bool) -> None:
        self.ledger, self.observers, self.in_one_transaction = ledger, observers, in_one_transaction
        self.unseen: list[tuple[int, Sequence[Release], dict[str, Any], int, int]] = []
        self.events: list[RoundEvent] = []
        self.last: tuple[Any, Sequence[Release], tuple[Question, int, int] | None] | None = None
        self.since = time.perf_counter()

    def add(
        self, state: Any, releases: Sequence[Release], event: RoundEvent, spending: tuple[Question, int, int] | None
    ) -> None:
        """Take one more round, which ends in `state` and spends the next one; tell observers of all that is written."""
        if self.last is not None and self.last[2] is not None:
            before = self.events[-1]
            self.unseen.append((before.round, self.last[1], _record(before), *self.last[2][1:]))
        self.last = (state, releases, spending)
        self.events.append(event)
        waits = self.in_one_transaction and spending is not None and serial.size(state) >= LARGE_STATE
        if not (waits and time.perf_counter() - self.since < UNSEEN):
            for written in self.write():
                for observer in self.observers:
                    observer.round_finished(written)
            self.since = time.perf_counter()

    def write(self) -> list[RoundEvent]:
        """Commit what is not yet written, in one transaction, and return its events."""
        if self.last is None:
            return []
        (state, releases, spending), events, unseen = self.last, self.events, self.unseen
        self.last, self.events, self.unseen = None, [], []  # tried once: one that failed may be there all the same
        last = _record(events[-1])
        self.ledger.commit(events[-1].round, serial.encode(state), releases, last, spending, unseen)
        return events


def participation_of(question: Question, answers: Answers | Sums) -> dict[str, Any]:
    """Return the participation that is reported where it is public: how many answered, and the slots of the others.

    By whose answers came alone, never by what was in them. Nothing where it is private.
    """
    if not question.attended:
        return {}
    if isinstance(answers, Sums):
        raise RunError("Expected an engine that says who answered, with public participation, got sums alone.")
    absent = question.cohort[~answers.answered]
    some = absent[:: max(1, -(-len(absent) // MOST_NAMED))]  # all over: people of one silo are beside each other
    return {"answered": len(question.cohort) - len(absent), "absent": some.tolist()}


def _ahead(algorithm: Algorithm[Any], noise: NoiseSource, *, simulation: bool) -> NoiseAhead:
    """Return the noise of this start, drawn ahead by all cores but one. A simulation's comes again with its seed."""
    started = StartedNoise.simulated(noise) if simulation else StartedNoise.fresh(noise)
    fit = MAX_AHEAD // (8 * algorithm.plan.problem.dimension)
    return NoiseAhead(started, threads=max(1, min((os.cpu_count() or 1) - 1, fit)))


def _expect(algorithm: Algorithm[Any], drawn: NoiseAhead, round_: int) -> None:
    """Begin with this round's noise and, on other threads, with that of the rounds after it.

    Of an algorithm with a `noise_label` of every round's one Gaussian sample for each number of the model.
    """
    dimension, label_of = algorithm.plan.problem.dimension, getattr(algorithm, "noise_label", None)
    if dimension >= MIN_AHEAD and label_of is not None:
        for later in range(round_, min(round_ + drawn.threads, algorithm.plan.cost.rounds)):
            drawn.expect(label_of(later), dimension)


def _tell(model: Vector, observers: Sequence[Observer]) -> Vector:
    for observer in observers:
        observer.finished(model)
    return model


def _resume(algorithm: Algorithm[Any], ledger: "Ledger") -> tuple[Any, dict[str, int], dict[str, float]]:
    """Return the state after the last commit, the costs, and what was measured, up to it."""
    initial = algorithm.init()
    point = ledger.resume_point()
    if point is None:
        point = (-1, serial.encode(initial))
        ledger.commit(*point, (), {})
    names = ("messages", "gradient_evaluations", "bytes_down", "bytes_up")
    events = ledger.events()
    totals = {name: int(events[-1][f"total_{name}"]) if events else 0 for name in names}
    diagnostics = events[-1]["diagnostics"] if events else {}
    moved = {name: diagnostics[f"total_{name}"] for name in diagnostics if f"total_{name}" in diagnostics}
    try:
        return serial.decode(initial, point[1]), totals, moved
    except OtherVersion as error:
        raise other_run(ledger.path, "kind of state") from error


def _record(event: RoundEvent) -> dict[str, Any]:
    """Its fields by name."""
    return {name: getattr(event, name) for name in names_of(RoundEvent) or ()}


def _cost(plan: RunPlan, question: Question, budget: Budget, before: Mapping[str, int]) -> dict[str, int]:
    """Of one round, as planned. BudgetExceeded, if the rounds `before` leave no room for it."""
    down, up = question.payload(plan.problem.dimension)
    evaluations = question.messages * question.task.planned_gradients(plan.problem.items_per_user)
    budget.check(rounds=question.round + 1, gradient_evaluations=before["gradient_evaluations"] + evaluations)
    return {
        "messages": question.messages,
        "gradient_evaluations": evaluations,
        "bytes_down": down,
        "bytes_up": up,
    }


def _diagnose(
    algorithm: Algorithm[Any], state: Any, round_: int, diagnostics: Mapping[str, Any], evaluate: Evaluate | None
) -> dict[str, Any]:
    rounds = algorithm.plan.cost.rounds
    traced = round_ % max(1, rounds // TRACED_ROUNDS) == 0 or round_ == rounds - 1
    figures = evaluate(algorithm.iterate(state)) if evaluate is not None and traced else {}
    return {**diagnostics, **figures}

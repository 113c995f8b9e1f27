"""Messages over a Grid and rows in their slots: what a node does wrong is nobody else's loss, and no bytes break it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.supercore.run import RunNotRunningException
from flwr.superlink.grid import InMemoryGrid
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.crowd import specification
from flower.grids import (
    SECRET,
    Failing,
    FakeGrid,
    FakeTime,
    Rows,
    computing,
    crossed,
    dimension_of,
    error_reply,
    from_node,
    in_reply_to,
    spread,
    with_answer,
    with_values,
)
from quoron_client.flower.serving import make_app
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.flower_records import (
    HELLO,
    Values,
    answered,
    question_values,
    record,
    values_of,
)
from quoron_client.protocol.questions import (
    Answers,
    AverageGradient,
    AverageLoss,
    LocalSGD,
    MomentAndGradient,
    Question,
    RangeReport,
    SecondMoment,
    Status,
    VectorReport,
)
from quoron_client.protocol.smoothing import Convolution, Moreau
from quoron_client.protocol.wire import array_to_wire
from quoron_privacy.errors import RunError, WireError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.flower import engine as engines
from quoron_server.flower import exchange as exchanging
from quoron_server.flower.engine import FlowerEngine, NodeFailed, Part, Shards
from quoron_server.flower.exchange import Outbound, Pulls, stream_replies
from quoron_server.problem import Problem
from quoron_server.rounds import PAUSE

pytestmark = pytest.mark.usefixtures("time")  # nobody sleeps
KINDS = ("gradient", "moment", "both", "losses", "passes", "range", "vector")


def question_of(kind: str, users: int, seed: int) -> Question:
    """A question of any kind to users of any number."""
    rng = np.random.default_rng(seed)
    dimension = int(rng.integers(1, 5))
    points = int(rng.integers(1, 3))
    smoothing = [None, Moreau(0.5), Convolution(0.25, 0)][int(rng.integers(3))]
    gradient = AverageGradient(
        rng.normal(size=(points, dimension)),
        tuple(rng.normal(size=points).tolist()),
        user_smoothness=[None, 0.25][int(rng.integers(2))],
        centre=[None, rng.normal(size=dimension)][int(rng.integers(2))],
        reference_items=[None, 4][int(rng.integers(2))],
        smoothing=smoothing,
    )
    cohort = rng.permutation(10 * users)[:users].astype(np.int64)
    if kind == "gradient":
        task = gradient
    elif kind == "moment":
        task = SecondMoment(dimension)
    elif kind == "both":
        task = MomentAndGradient(dimension, rng.normal(size=dimension), gradient.centre)
    elif kind == "losses":
        task = AverageLoss(rng.normal(size=(points, dimension)))
    elif kind == "passes":
        domain = [L2Ball(2.0), Box(1.5)][int(rng.integers(2))]
        task = LocalSGD(rng.normal(size=(users, dimension)), 0.125, domain, smoothing)
    elif kind == "range":
        signs = rng.choice([-1.0, 1.0], size=dimension)
        task = RangeReport(gradient, 0.5, 8, 2.0, signs, rng.integers(0, dimension, users))
    else:
        task = VectorReport(gradient, 0.5, 1e-6, 1.5, rng.normal(size=dimension))
    return Question(int(rng.integers(0, 100)), cohort, task)


def digest(question: Question, rows: np.ndarray) -> str:
    """Everything that the users in `rows` are asked, in words."""
    task = question.task
    own = {}
    if isinstance(task, LocalSGD):
        own["starts"] = task.starts[rows].tolist()
    if isinstance(task, RangeReport):
        own["coordinates"] = task.coordinates[rows].tolist()
    shared = {name: getattr(task, name) for name in task.__slots__ if name not in ("starts", "coordinates")}
    gradient = shared.pop("gradient", None)
    if gradient is not None:
        shared |= {f"gradient.{name}": getattr(gradient, name) for name in gradient.__slots__}
    words = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in shared.items()}
    return repr((question.round, question.cohort[rows].tolist(), type(task).__name__, words, own))


def values_for(question: Question, rows: np.ndarray) -> Values:
    """What the users in `rows` are sent, beside others."""
    others = np.setdiff1d(np.arange(len(question.cohort)), rows)
    parts = [others, rows] if len(others) else [rows]
    return list(question_values(question, parts, run="trial", seconds=60))[-1]


@given(
    kind=st.sampled_from(KINDS),
    users=st.integers(1, 12),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
@settings(derandomize=True, deadline=None, max_examples=60)
def test_a_shard_is_asked_exactly_what_its_users_are(kind: str, users: int, seed: int, data: st.DataObject) -> None:
    question = question_of(kind, users, seed)
    rows = np.array(data.draw(st.lists(st.integers(0, users - 1), min_size=1, unique=True)), np.int64)
    values = values_of(crossed(record(**values_for(question, rows))))
    received: list[Question] = []
    answered(values, lambda asked: received.append(asked) or ones(len(rows)))
    assert digest(received[0], np.arange(len(rows))) == digest(question, rows)


def ones(rows: int) -> Answers:
    return Answers(np.ones((rows, 2)), np.zeros(rows, np.uint8))


def read(reply: RecordDict, users: int, shape: tuple[int, ...]) -> Answers | None:
    """What a server makes of a node's reply."""
    return Shards("trial", (1,)).read(reply, Part(np.arange(users)), shape)


QUESTION = values_for(question_of("losses", 3, 1), np.arange(3))


@given(users=st.integers(1, 6), axes=st.lists(st.integers(1, 4), min_size=1, max_size=2), seed=st.integers(0, 1000))
@settings(derandomize=True, deadline=None, max_examples=60)
def test_answers_come_back_bit_by_bit(users: int, axes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    status = rng.integers(0, 3, users).astype(np.uint8)
    values = np.where((status == 0).reshape(-1, *[1] * len(axes)), rng.normal(size=(users, *axes)), 0.0)
    asked = values_for(question_of("losses", users, 1), np.arange(users))
    found = read(crossed(answered(asked, lambda _: Answers(values, status))), users, tuple(axes))
    assert found is not None
    np.testing.assert_array_equal(found.values, values)
    np.testing.assert_array_equal(found.status, status)


NO_ANSWERS = {
    "nothing": RecordDict(),
    "another record": RecordDict({"quoron": ArrayRecord([np.ones(3)])}),
    "no answer": record(nonce=b"n"),
    "an answer that is a number": record(answer=3.5),
    "an answer of no protocol": record(answer=b"\xff" * 50),
    "no bytes at all": record(answer=b""),
    "a row too few": answered(QUESTION, lambda _: ones(2)),
    "a row too many": answered(QUESTION, lambda _: ones(4)),
    "a refusal": record(refused="failed"),
}


@pytest.mark.parametrize("what", list(NO_ANSWERS))
def test_what_is_not_answers_is_none_and_never_raises(what: str) -> None:
    assert read(NO_ANSWERS[what], 3, (2,)) is None
    assert read(answered(QUESTION, lambda _: ones(3)), 3, (2,)) is not None
    assert read(answered(QUESTION, lambda _: ones(3)), 3, (1,)) is None


@pytest.mark.parametrize("kind", ["passes", "range"])
def test_a_shard_refuses_parts_that_are_not_one_for_each_user(kind: str) -> None:
    question = question_of(kind, 4, 1)
    values, fewer = values_for(question, np.arange(4)), values_for(question, np.arange(3))
    for wrong in ({"question": fewer["question"]}, {"users": fewer["users"]}, {"users": 3}, {"question": b"\xff"}):
        with pytest.raises(Exception, match=r"Expected|Error parsing") as raised:
            answered({**values, **wrong}, lambda asked: ones(len(asked.cohort)))
        assert isinstance(raised.value, WireError) or "parsing" in str(raised.value)


NODES = 40  # more than one push


def grid_of(**faults: object) -> FakeGrid:
    return FakeGrid(computing(Rows()), spread(NODES), **faults)


def greet(grid: FakeGrid, seconds: float = 60.0, pulls: Pulls | None = None) -> dict[int, int]:
    """Partition that each message reached, by its index."""
    messages = [Outbound(node, HELLO, {}) for node in sorted(grid.configs)]
    replies = stream_replies(grid, messages, group="test", seconds=seconds, pulls=pulls)
    return {index: values_of(reply)["partition"] for index, reply in replies if isinstance(reply, RecordDict)}


def right(grid: FakeGrid) -> dict[int, int]:
    return {index: grid.configs[node]["partition-id"] for index, node in enumerate(sorted(grid.configs))}


def the_first_three(grid: FakeGrid) -> list[int]:
    return sorted(grid.configs)[:3]


@pytest.mark.parametrize("silently", [True, False])
def test_nodes_that_the_superlink_does_not_know_shift_no_reply(silently: bool, time: FakeTime) -> None:
    grid = grid_of(silently=silently)
    grid.unknown = frozenset(the_first_three(grid))
    began = time.now
    assert greet(grid) == {index: place for index, place in right(grid).items() if index >= 3}
    assert time.now - began < 1, "nobody waits for a message that was not taken"


@pytest.mark.parametrize("calls", [{0}, {1, 2}, pytest.param({2, 3, 4}, marks=pytest.mark.slow), set(range(12))])
def test_while_the_superlink_is_away_the_clock_stands(calls: set[int], time: FakeTime) -> None:
    grid = grid_of(away=frozenset(calls), shuffled=True)
    assert greet(grid, seconds=10.0) == right(grid)


def of(node: int, does: Callable[[], object]) -> Callable[[Message], object]:
    """What is done when Flower reads a reply of that node."""
    return lambda reply: does() if reply.metadata.src_node_id == node else None


def raises() -> None:
    raise ValueError(SECRET)


def test_a_reply_that_flower_cannot_read_stops_nobody_else(time: FakeTime, caplog: pytest.LogCaptureFixture) -> None:
    grid = grid_of()
    grid.reading = of(sorted(grid.configs)[3], raises)
    began = time.now
    assert greet(grid) == {index: place for index, place in right(grid).items() if index != 3}
    assert time.now - began < 1
    assert SECRET not in caplog.text


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A pull that waits for it hangs, which is noticed soon."""
    monkeypatch.setattr(exchanging, "_HANGS", 0.05)
    event = threading.Event()
    yield event
    event.set()


def test_a_reply_that_never_comes_whole_keeps_its_own_node_waiting_and_no_round(
    time: FakeTime, held: threading.Event
) -> None:
    grid, pulls, pulled = grid_of(), Pulls(), list[int]()
    bad = set(sorted(grid.configs)[:10])  # more than are pulled at a time

    def hangs(reply: Message) -> None:
        if reply.metadata.src_node_id in bad:
            pulled.append(reply.metadata.src_node_id)
            held.wait()

    grid.reading = hangs
    others = {index: place for index, place in right(grid).items() if index >= 10}
    earlier = set(threading.enumerate())  # another test's may be about to end
    for _ in range(3):
        began = time.now
        assert greet(grid, pulls=pulls) == others
        assert time.now - began == pytest.approx(60.0, abs=1.0)
    assert sorted(pulled) == sorted(bad), "a thread a node, however many rounds"
    now = set(threading.enumerate()) - earlier
    threads = [thread for thread in now if thread.name.startswith("pull from node")]
    assert len(threads) == 10
    assert all(thread.daemon for thread in threads), "none of them keeps the process from ending"


def test_a_node_whose_pull_has_ended_takes_part_again(time: FakeTime, held: threading.Event) -> None:
    grid, pulls = grid_of(), Pulls()
    grid.reading = of(sorted(grid.configs)[0], held.wait)
    assert 0 not in greet(grid, pulls=pulls)
    held.set()
    for thread in threading.enumerate():
        if thread.name.startswith("pull from node"):
            thread.join()
    assert greet(grid, pulls=pulls) == right(grid), "what came too late is not taken for the new answer"


def test_an_answer_to_a_round_that_is_over_never_counts(time: FakeTime) -> None:
    grid, late = grid_of(), list[Message]()
    slow = sorted(grid.configs)[0]

    def answers(message: Message, reply: Message) -> list[Message]:
        """The slow one sends what it owes from the last round."""
        if message.metadata.dst_node_id != slow:
            return [reply]
        late.append(reply)
        return late[:-1]

    grid.fault = answers
    for _ in range(3):
        assert greet(grid) == {index: place for index, place in right(grid).items() if index > 0}
    assert len(late) == 3


def test_a_run_that_was_stopped_ends_and_its_users_are_not_taken_for_missing(time: FakeTime) -> None:
    def stopped() -> None:
        raise RunNotRunningException

    grid = grid_of()
    grid.reading = of(sorted(grid.configs)[3], stopped)
    with pytest.raises(RunNotRunningException):
        greet(grid)


@dataclass
class Simulated(FakeGrid, InMemoryGrid):
    """The kind of Grid that Flower's simulation has."""


def test_in_flower_s_simulation_a_look_is_one_call(time: FakeTime) -> None:
    grid = Simulated(computing(Rows()), spread(NODES))
    assert greet(grid) == right(grid)
    assert grid._calls == NODES / 8 + 1


PARTITIONS, USERS = 7, 30
BAD = 2  # partition that does something wrong


def problem(dimension: int) -> Problem:
    return Problem(
        users=1000,
        items_per_user=4,
        dimension=dimension,
        domain=L2Ball(1e9),
        lipschitz=1e9,
        smoothness=1.0,
        feature_norm=1e9,
    )


def engine_of(grid: FakeGrid, dimension: int, *, demanding: bool = False) -> FlowerEngine:
    fleet = Shards.found(grid, len(grid.configs), run="trial", seconds=60)
    return FlowerEngine(grid, fleet, "trial", problem(dimension), 60, early_ends=True, demanding=demanding)


def node_of(grid: FakeGrid, partition: int) -> int:
    return sorted(grid.configs)[partition]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_lands_at_its_slot(kind: str, shuffled: bool) -> None:
    for seed in range(3):
        question = question_of(kind, USERS, seed)
        task = question.task
        if kind == "range":  # so that the numbers of users are answers that may be sent
            task, question = question.task, Question(question.round, np.arange(USERS), task)
        grid = FakeGrid(computing(Rows()), spread(PARTITIONS), shuffled=shuffled)
        found = engine_of(grid, dimension_of(question)).ask(question)
        np.testing.assert_array_equal(found.values, Rows().ask(question).values)
        assert not found.status.any()
        asked = [message for message in grid.asked if message.metadata.message_type != "query.hello"]
        assert len(asked) == len(set(question.cohort % PARTITIONS)), "one message for each node that holds somebody"


def test_nodes_without_anybody_of_the_cohort_are_not_asked() -> None:
    question = question_of("gradient", 1, 0)
    grid = FakeGrid(computing(Rows()), spread(PARTITIONS))
    engine_of(grid, dimension_of(question)).ask(question)
    assert sum(message.metadata.message_type != "query.hello" for message in grid.asked) == 1


Fault = Callable[[Message, Message], Iterable[Message]]
FAULTS: dict[str, Fault] = {
    "never answers": lambda message, reply: [],
    "an exception with a secret": lambda message, reply: [error_reply(message)],
    "under another node's name": lambda message, reply: [from_node(reply, 5)],
    "to another message": lambda message, reply: [in_reply_to(reply, "message 1")],
    "no record": lambda message, reply: [Message(RecordDict(), reply_to=message)],
    "a refusal of its own": lambda message, reply: [with_values(reply, refused=SECRET, answer=None)],
    "a status too many": lambda message, reply: [with_answer(reply, statuses=b"\0" * 30)],
    "NaN": lambda message, reply: [_filled(reply, np.nan)],
    "infinity": lambda message, reply: [_filled(reply, np.inf)],
    "1e300": lambda message, reply: [_filled(reply, 1e300)],
}


def _filled(reply: Message, number: float) -> Message:
    shape = tuple(pb.Answer.FromString(reply.content["quoron"]["answer"]).values.shape)
    return with_answer(reply, values=array_to_wire(np.full(shape, number)))


def asked_with(fault: Fault) -> tuple[Question, FlowerEngine]:
    """A question to users on nodes that only compute, of which one does that instead of answering."""
    question = next(each for seed in range(99) if dimension_of(each := question_of("gradient", USERS, seed)) == 3)
    grid = FakeGrid(computing(Rows()), spread(PARTITIONS))
    engine = engine_of(grid, 3, demanding=True)
    bad = node_of(grid, BAD)
    grid.fault = lambda message, reply: fault(message, reply) if message.metadata.dst_node_id == bad else [reply]
    return question, engine


@pytest.mark.parametrize("name", list(FAULTS))
def test_where_nodes_only_compute_a_fault_ends_the_round(name: str) -> None:
    question, engine = asked_with(FAULTS[name])
    if name in ("NaN", "infinity", "1e300"):  # those are what users sent: the neutral element of its own users only
        found, lost = engine.ask(question), question.cohort % PARTITIONS == BAD
        np.testing.assert_array_equal(found.values, np.where(lost[:, None], 0.0, Rows().ask(question).values))
        np.testing.assert_array_equal(found.status, np.where(lost, Status.REJECTED, Status.ANSWERED))
        return
    with pytest.raises(
        NodeFailed, match=rf"Expected answers of \d nodes in round {question.round}, got \d\."
    ) as raised:
        engine.ask(question)
    assert SECRET not in str(raised.value)


def test_a_client_s_exception_leaves_no_word_of_it(caplog: pytest.LogCaptureFixture) -> None:
    question = question_of("gradient", USERS, 0)
    grid = FakeGrid(make_app(Failing(Rows()).answer), spread(PARTITIONS))
    found = engine_of(grid, dimension_of(question)).ask(question)
    assert set(found.status.tolist()) == {Status.MISSING}
    assert len(grid.received) == PARTITIONS
    for reply in grid.received:
        assert SECRET not in repr(reply.content)
        assert not reply.has_error()
    assert SECRET in caplog.text, "the node's own log has it"


def test_a_missing_node_is_an_error_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "time", FakeTime())
    with pytest.raises(RunError, match="Expected 4 nodes within 600 seconds, got 3"):
        Shards.found(FakeGrid(computing(Rows()), spread(3)), 4, run="trial", seconds=600)


FEW, ROUNDS, SECONDS = 5, 4, 60.0


@dataclass
class Timed(FakeGrid):
    """Remembers when each node was sent something; `silent` says who does not reply, by round."""

    clock: FakeTime = field(default_factory=FakeTime)
    silent: dict[int, int] = field(default_factory=dict)  # node by round
    sent: list[tuple[int, float]] = field(default_factory=list)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        self.sent += [(message.metadata.dst_node_id, self.clock.now) for message in messages]
        return super().push_messages(messages)


def asked_at(monkeypatch: pytest.MonkeyPatch, silent_rounds: set[int], *, early_ends: bool) -> dict[int, list[float]]:
    """When each node hears of each round, if the first node says nothing in some."""
    clock = FakeTime()
    for module in (exchanging, engines):
        monkeypatch.setattr(module, "time", clock)
    grid = Timed(computing(Rows()), spread(FEW), clock=clock)
    fleet = Shards.found(grid, FEW, run="trial", seconds=60)
    first, now = min(grid.configs), [0]
    grid.fault = lambda message, reply: (
        [] if now[0] in silent_rounds and message.metadata.dst_node_id == first else [reply]
    )
    grid.sent.clear()
    engine = FlowerEngine(
        grid, fleet, "trial", specification("one-pass-dp-sgd").problem, SECONDS, early_ends=early_ends
    )
    for number in range(ROUNDS):
        now[0] = number
        task = AverageGradient(np.zeros((1, 3)), (1.0,))
        engine.ask(Question(number, np.arange(2 * FEW), task))
        clock.sleep(0.5)  # what the server computes
    return {node: [when for who, when in grid.sent if who == node] for node in grid.configs}


def test_a_round_is_pushed_on_the_schedule_whoever_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = asked_at(monkeypatch, set(), early_ends=False)
    silent = asked_at(monkeypatch, {0, 2}, early_ends=False)
    assert usual == silent
    for times in usual.values():
        assert np.diff(times) == pytest.approx((1 + PAUSE) * SECONDS)


def test_with_early_ends_the_next_push_tells_who_was_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the schedule mends."""
    usual = asked_at(monkeypatch, set(), early_ends=True)
    silent = asked_at(monkeypatch, {0, 2}, early_ends=True)
    bystander = max(usual)
    assert max(np.diff(usual[bystander])) < 2.0
    assert np.diff(silent[bystander])[0] > SECONDS

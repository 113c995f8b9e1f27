"""Whatever engine computes the answers, the bits are the same: every algorithm over Flower's Grid, without Flower."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message

from contracts.scenes import FAULTS, PROBLEM, Fault, Quadratic, execute, make_plan
from contracts.test_algorithms import Crash, crashing, every_algorithm
from federation.crowd import FEW, SEED, inline_model, people, specification
from flower.grids import FakeGrid, FakeTime, computing, error_reply, spread, with_values
from flower.test_records import array
from quoron.simulation.inline import InlineEngine
from quoron_client.protocol.questions import Answers, Question
from quoron_client.protocol.wire import TASKS
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.books.ledger import Ledger
from quoron_server.flower import exchange
from quoron_server.flower.engine import FlowerEngine
from quoron_server.flower.shards import Shards
from quoron_server.rounds import Engine, run
from quoron_server.specification import RunSpecification
from quoron_server.specification import make_plan as plan_of

NODES = 20
# Between them every kind of question.
QUICK = ("tracking-srgd", "whitened-tracking", "local-model", "outlier-iterates", "group-dp-sgd")
SLOW = [name for name in FEW if name not in QUICK]
some = pytest.mark.parametrize(
    "name", ["tracking-srgd", *(pytest.param(each, marks=pytest.mark.slow) for each in FEW if each != "tracking-srgd")]
)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(exchange, "time", clock)
    return clock


def flower(engine: Engine, problem: object, *, seed: int = 0, **faults: object) -> FlowerEngine:
    """That engine behind the nodes of a Grid."""
    grid = FakeGrid(computing(engine, seed), spread(NODES), shuffled=True, **faults)
    return FlowerEngine(grid, Shards.found(grid, run="trial", seconds=60), "trial", problem, 60.0, early_ends=True)


def of_people(wanted: RunSpecification) -> FlowerEngine:
    return flower(InlineEngine(people(wanted.problem.users), seed=SEED), wanted.problem, seed=SEED)


def carried_out(wanted: RunSpecification, path: Path, engine: Engine) -> np.ndarray:
    plan, noise = plan_of(wanted), SeededNoise(SEED)
    if not path.exists():
        Ledger.create(path, plan="{}", config_digest="c", noise_key=noise.export_key()).close()
    with Ledger.open(path) as ledger:
        return run(ALGORITHMS[wanted.algorithm].make(plan), engine, ledger, noise, simulation=True)


def test_same_seed_gives_the_bits_of_the_inline_engine_for_every_kind_of_question_but_ranges(tmp_path: Path) -> None:
    asked = set()
    for number, wanted in enumerate(map(specification, QUICK)):
        engine, folder = of_people(wanted), tmp_path / str(number)
        folder.mkdir()
        np.testing.assert_array_equal(carried_out(wanted, folder / "ledger", engine), inline_model(wanted, folder))
        asked |= {message.metadata.message_type for message in engine.grid.asked}  # type: ignore[attr-defined]
    assert asked == {"query.hello", *(f"query.{action}" for action in TASKS if action != "range_report")}


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_same_seed_gives_the_bits_of_the_inline_engine(name: str, tmp_path: Path) -> None:
    wanted = specification(name)
    model = carried_out(wanted, tmp_path / "ledger.sqlite", of_people(wanted))
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path))


@dataclass
class Dying:
    """The ServerApp dies once it has the answers of a round, before anything is done with them."""

    engine: Engine
    at: int

    def ask(self, question: Question) -> Answers:
        answers = self.engine.ask(question)
        if question.round == self.at:
            raise Crash
        return answers


@some
def test_a_run_resumes_from_every_round_to_identical_bits_on_either_engine(name: str, tmp_path: Path) -> None:
    wanted = specification(name)
    whole = inline_model(wanted, tmp_path)
    here = InlineEngine(people(wanted.problem.users), seed=SEED)
    for at in range(plan_of(wanted).cost.rounds):
        for before, after in ((of_people(wanted), here), (here, of_people(wanted))):
            path = tmp_path / f"{at}-{before is here}"
            with pytest.raises(Crash):
                carried_out(wanted, path, Dying(before, at))
            np.testing.assert_array_equal(carried_out(wanted, path, after), whole)


# The contract that every algorithm keeps with every engine.


@pytest.mark.slow
@every_algorithm
def test_the_contract_s_own_users_give_the_same_bits(name: str, tmp_path: Path) -> None:
    for each in ("here", "there"):
        (tmp_path / each).mkdir()
    here = execute(name, tmp_path / "here")
    np.testing.assert_array_equal(execute(name, tmp_path / "there", flower(Quadratic(), PROBLEM)), here)


@pytest.mark.slow
@every_algorithm
def test_a_crash_at_every_write_resumes_to_identical_bits(name: str, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = execute(name, tmp_path / "whole")
    for at in range(1, 2 * make_plan(name).cost.rounds + 3):
        folder = tmp_path / str(at)
        folder.mkdir()
        with pytest.raises(Crash):
            execute(name, folder, flower(Quadratic(), PROBLEM), ledger_type=crashing(at, after=True))
        np.testing.assert_array_equal(execute(name, folder, flower(Quadratic(), PROBLEM)), whole)


CROSSING = ("one user sends NaN", "everyone is missing", "a single user survives")  # all ways to cross as a status


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("fault", [each for each in FAULTS if each.name in CROSSING], ids=lambda fault: fault.name)
def test_nothing_a_user_sends_changes_the_course_of_a_run(name: str, fault: Fault, tmp_path: Path) -> None:
    course_is_that_of_honest_users(name, tmp_path, lambda engine: flower(engine, PROBLEM), Quadratic(fault))


def one_node(made: Callable[[Message, Message], Iterable[Message]]) -> Callable[[Message, Message], Iterable[Message]]:
    """A node that does that whenever it is asked for answers."""

    def fault(message: Message, reply: Message) -> Iterable[Message]:
        greeted = message.metadata.message_type == "query.hello"
        return [reply] if greeted or message.metadata.dst_node_id % 10 else made(message, reply)

    return fault


HOSTILE = {
    "never answers": one_node(lambda message, reply: []),
    "fails": one_node(lambda message, reply: [error_reply(message)]),
    "sends NaN": one_node(lambda message, reply: [_full(reply, np.nan)]),
    "sends 1e300": one_node(lambda message, reply: [_full(reply, 1e300)]),
    "sends another shape": one_node(lambda message, reply: [with_values(reply, values=array(np.ones((2, 2))))]),
    "sends nothing of ours": one_node(lambda message, reply: [with_values(reply, values=None, status=None)]),
}


def _full(reply: Message, number: float) -> Message:
    record = reply.content["quoron"]
    return with_values(reply, values=array(np.full((len(record["status"]), PROBLEM.dimension), number)))


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("what", list(HOSTILE))
def test_nothing_a_node_sends_changes_the_course_of_a_run(name: str, what: str, tmp_path: Path) -> None:
    course_is_that_of_honest_users(name, tmp_path, lambda engine: flower(engine, PROBLEM, fault=HOSTILE[what]))


@dataclass
class Watched:
    """Remembers whom it asks."""

    engine: Engine
    asked: list[np.ndarray] = field(default_factory=list)

    def ask(self, question: Question) -> Answers:
        self.asked.append(question.cohort)
        return self.engine.ask(question)


def course_is_that_of_honest_users(
    name: str, folder: Path, over_flower: Callable[[Engine], Engine], users: Engine | None = None
) -> None:
    for each in ("hostile", "honest"):
        (folder / each).mkdir()
    hostile, honest = Watched(over_flower(users or Quadratic())), Watched(Quadratic())
    model = execute(name, folder / "hostile", hostile)
    execute(name, folder / "honest", honest)
    assert np.isfinite(model).all()
    assert len(hostile.asked) == len(honest.asked)
    for one, other in zip(hostile.asked, honest.asked, strict=True):
        np.testing.assert_array_equal(one, other)

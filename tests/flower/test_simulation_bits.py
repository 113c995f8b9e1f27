"""Whatever engine computes the answers, the bits are the same: every algorithm over Flower's Grid, without Flower."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from contracts.test_algorithms import Crash
from cover import by_default
from federation.crowd import FEW, SEED, inline_model, people, specification
from flower.grids import FakeGrid, FakeTime, computing, spread
from quoron.engine.inline import InlineEngine
from quoron_client.protocol.questions import Answers, Question
from quoron_client.protocol.wire import TASKS
from quoron_privacy.noise.streams import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.flower import exchange
from quoron_server.flower.engine import FlowerEngine, Shards
from quoron_server.rounds import Engine, run
from quoron_server.specification import RunSpecification
from quoron_server.specification import make_plan as plan_of
from quoron_server.storage.ledger import Ledger

NODES = 20
# Between them every kind of question.
QUICK = ("tracking-srgd", "whitened-tracking", "local-model", "outlier-iterates", "group-phased-sgd")
some = pytest.mark.parametrize("name", by_default(FEW, ["local-model"]))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    clock = FakeTime()
    monkeypatch.setattr(exchange, "time", clock)
    return clock


def flower(engine: Engine, problem: object, *, seed: int = 0, **faults: object) -> FlowerEngine:
    """That engine behind the nodes of a Grid."""
    grid = FakeGrid(computing(engine, seed), spread(NODES), shuffled=True, **faults)
    return FlowerEngine(
        grid, Shards.found(grid, NODES, run="trial", seconds=60), "trial", problem, 60.0, early_ends=True
    )


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
    assert asked == {f"query.{action}" for action in TASKS if action != "range_report"}


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
        before, after = (here, of_people(wanted)) if at % 2 else (of_people(wanted), here)
        with pytest.raises(Crash):
            carried_out(wanted, tmp_path / str(at), Dying(before, at))
        np.testing.assert_array_equal(carried_out(wanted, tmp_path / str(at), after), whole)

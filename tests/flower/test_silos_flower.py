"""Silos as nodes of Flower: one message a round for all asked persons, and the bits that their own nodes would give."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.crowd import SEED
from federation.silos import write_silos
from flower.federation import expected, small
from flower.grids import FakeGrid
from quoron_client.flower import app as apps
from quoron_client.flower.node import people_of, read_owner
from quoron_client.protocol.questions import Status
from quoron_privacy.errors import ConfigError, RunError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.books.database import Database
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.books.registry import Registry
from quoron_server.flower.serving import serve

SIZES = (3, 1, 2)
USERS = sum(SIZES)


pytestmark = pytest.mark.usefixtures("time")  # nobody sleeps


def hospitals(folder: Path, sizes: tuple[int, ...] = SIZES, **more: Any) -> FakeGrid:
    """A node for each silo, whose numbers are in no order; that of one person is a node of one user."""
    (folder / "items").mkdir(exist_ok=True, parents=True)
    paths, configs, keys = write_silos(folder / "items", sizes), {}, {}
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        node = 100 + 7 * (number + 2) % 11
        silo = {"user": "who", "people": size} if size > 1 else {}
        configs[node] = {
            "partition-id": number,
            "num-partitions": len(sizes),
            "data": str(path),
            "record": str(folder / f"record-{number}.sqlite"),
            "lifetime-epsilon": "inf",
            "lifetime-delta": 1.0,
            "accept": "none,model,broadcast,local",
            "simulation-seed": str(SEED),
            **silo,
        }
        keys[node] = f"key {number}".encode()
    return FakeGrid(apps.app, configs, keys=keys, **more)


def wanted(name: str = "one-pass-dp-sgd", run: str = "trial") -> Any:
    return small(name, run, USERS, silos=SIZES)


def served(grid: FakeGrid, spec: Any, folder: Path, *, most_people: int = 5) -> np.ndarray:
    where = f"sqlite:///{folder}/books.sqlite"
    given = {"waiting": 60.0, "allow_simulation": True, "most_people": most_people}
    return serve(grid, spec.as_text(), where, **given).model


QUICK = ("dp-sgd-poisson", "phased-sgd")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ("one-pass-dp-sgd", "srgd", "dp-ftrl"))]
)
def test_the_same_persons_give_the_same_bits_with_one_message_a_round_and_node(name: str, tmp_path: Path) -> None:
    spec, grid = wanted(name), hospitals(tmp_path)
    np.testing.assert_array_equal(served(grid, spec, tmp_path), expected(spec, tmp_path / "inline"))
    asked = [
        (message.metadata.dst_node_id, pb.Question.FromString(message.content["quoron"]["question"]).round)
        for message in grid.asked
        if "question" in message.content["quoron"]
    ]
    assert len(asked) == len(set(asked))
    with Database(f"sqlite:///{tmp_path}/books.sqlite") as database:
        assert Registry(database).roster.silos() == {0: 3, 4: 2}


def _statuses(message: Any) -> tuple[str, list[int]]:
    answer = pb.Answer.FromString(message.content["quoron"]["answer"])
    return answer.run, list(answer.statuses) or [int(answer.status)]


def test_a_silo_that_nobody_let_in_is_nobody(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Expected 6 users in group everyone within 60 seconds, got 1"):
        served(hospitals(tmp_path), wanted(), tmp_path, most_people=1)


def test_a_run_that_was_not_planned_for_silos_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="what is promised of a run with silos assumes more"):
        served(hospitals(tmp_path), small("one-pass-dp-sgd", "trial", USERS), tmp_path)
    with Database(f"sqlite:///{tmp_path}/books.sqlite") as database:
        assert PopulationLedger(database).charges("everyone") == []
        assert Registry(database).run("trial").state == "failed"


def test_how_many_a_silo_answers_for_is_declared_and_not_counted() -> None:
    for said in ({"user": "who"}, {"people": 3}, {"user": "who", "people": 0}):
        with pytest.raises(ConfigError, match="Expected user and people together"):
            people_of(said, {})
    assert people_of({}, {"QUORON_USER": "who", "QUORON_PEOPLE": "300"}) == 300
    assert people_of({}, {}) == 1
    owner = read_owner({"data": "x.csv", "record": "r", "user": "who", "people": 4}, {})
    assert (owner.user_column, owner.people) == ("who", 4)


def test_a_file_of_more_persons_than_were_declared_keeps_nobody_else_away(tmp_path: Path) -> None:
    """Whoever is one too many is left out; a silo that refused would show one person's rows in everybody's."""
    grid = hospitals(tmp_path)
    for config in grid.configs.values():
        if config.get("people") == 3:
            config["people"] = 2
    served(grid, small("one-pass-dp-sgd", "trial", USERS - 1, silos=(2, 1, 2)), tmp_path)
    statuses = [_statuses(message)[1] for message in grid.received if "answer" in message.content["quoron"]]
    assert all(status == Status.ANSWERED for each in statuses for status in each)

"""A quorum on Flower: the decisions and bits of one process, and an end that the books hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower.plugged import people, plugged, pulls, trained
from quoron.flower.training import BOOKS
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.errors import RunError, WithoutQuorum
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.registry import Registry
from quoron_server.rounds import run
from quoron_server.wording import sentence

USERS = 60
QUORUM: dict[str, Any] = {"users": USERS, "options": {"rounds": 2}, "quorum": 0.5, "quorum_epsilon": 2.0}


@pytest.fixture(autouse=True)
def _trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")


class Here:
    """The same users in this process."""

    def ask(self, question: Question) -> Answers:
        values = np.stack([pulls(int(user))(question.task.points[0]) for user in question.cohort])
        return Answers.checked(values, np.zeros(len(values), np.uint8), largest=1e6)


def silent(model: np.ndarray) -> np.ndarray:
    raise RuntimeError("away")


def test_a_run_that_is_answered_has_the_bits_of_one_process(tmp_path: Path) -> None:
    done = trained(plugged(people(USERS)), tmp_path / "flower", **QUORUM)
    noise = SeededNoise(5)
    made = ALGORITHMS[done.plan.algorithm].make(done.plan)
    with Ledger.create(tmp_path / "l", plan="{}", config_digest="c", noise_key=noise.export_key()) as ledger:
        np.testing.assert_array_equal(done.model, run(made, Here(), ledger, noise, simulation=True))
        assert [event["public"] for event in ledger.events()] == [{"quorum": "met"}] * 2
    assert done.guarantee.epsilon == 8.0
    assert "for a quorum of 0.5, which costs nothing" in sentence(done.guarantee)


def test_a_run_that_nobody_answers_ends_without_a_quorum_for_good(tmp_path: Path) -> None:
    nobody = dict.fromkeys(range(USERS), silent)
    with pytest.raises(WithoutQuorum, match="Round 1 of at most 2"):
        trained(plugged(nobody), tmp_path, **QUORUM)
    with Database(f"sqlite:///{tmp_path / BOOKS}") as database:
        assert Registry(database).run("private").state == "without-quorum"
        assert Ledger.unreleased(database) == set()
        assert Ledger.within(database, "private").spent()["rounds"] == 1
    grid = plugged(people(USERS))
    with pytest.raises(RunError, match="it is without-quorum"):
        trained(grid, tmp_path, **QUORUM)

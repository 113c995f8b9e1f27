"""A run goes on only by what it was submitted through: who was enrolled by one front hears of no other's questions."""

from pathlib import Path

import numpy as np
import pytest

from federation.crowd import specification
from quoron_privacy.errors import OtherVersion
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.flower import apps, serving
from quoron_server.plan import Privacy
from quoron_server.runs import Books
from quoron_server.specification import make_plan

WANTED = specification("one-pass-dp-sgd")
PROBLEM = WANTED.problem
TRAINING = apps.Training(
    run="trial",
    algorithm="one-pass-dp-sgd",
    problem=PROBLEM,
    privacy=Privacy(15.0, 0.1),
    clip_norm=1.0,
    simulation_seed=7,
)


class Nobody:
    """A grid that no node is on; whoever asks it anything fails."""


def test_a_run_of_the_coordinator_is_not_taken_up_by_flower(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/books.sqlite"
    with Database(url) as database:
        books = Books(database)
        for user in range(PROBLEM.users):
            books.registry.enrol(f"fingerprint-{user}")
        books.registry.add_run("trial", WANTED.as_text())
        books.begin(WANTED, make_plan(WANTED))
    with pytest.raises(OtherVersion, match="`quoron serve`"):
        serving.serve(Nobody(), WANTED.as_text(), url, waiting=0.0, allow_simulation=True)
    with Database(url) as database:
        assert Books(database).registry.run("trial").state == "running"
        assert Ledger.unreleased(database) == {"trial"}
        assert Ledger.within(database, "trial").spent()["rounds"] == 0


def test_a_run_of_the_coordinator_is_not_trained_on_by_a_serverapp_of_ones_own(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path}/books.sqlite") as database:
        books = Books(database)
        books.registry.add_run("trial", TRAINING.as_text())
        start = np.zeros(PROBLEM.dimension)
        with pytest.raises(OtherVersion, match="`quoron serve`"):
            apps.train(Nobody(), TRAINING, TRAINING.plan(), books, start, action="private", seconds=1.0, waiting=0.0)
        assert books.registry.run("trial").state == "waiting"

"""Whatever fails in a real federation of Flower: no secret leaves, no question changes, and the bits are the same."""

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower.federation import (
    expected,
    federation,
    kill,
    log_of,
    members,
    model_of,
    questions,
    rounds_answered,
    serverapp,
    small,
    status,
    submit,
    until,
    without,
)
from quoron_privacy.errors import RunError
from quoron_server.specification import RunSpecification

pytestmark = pytest.mark.slow
USERS = 3
SECRET = "diagnosis-of-user-one"
# What a node holds whose quoron is of another version.
OTHER_VERSION = """
import importlib.metadata as metadata

ours = metadata.version
metadata.version = lambda name: "0.0.1" if name == "quoron" else ours(name)
"""


@pytest.fixture(scope="module")
def federated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with federation(tmp_path_factory.mktemp("flower") / "federation", USERS, start=False) as started:
        yield started


@pytest.fixture
def running(federated: Any, tmp_path: Path) -> Any:
    """The federation with an empty store and without a SuperNode."""
    for number in list(federated.nodes):
        federated.nodes.pop(number).end()
    federated.superexec.end()
    federated.database, federated.results = f"sqlite:///{tmp_path}/store.sqlite", tmp_path / "results"
    own = {"QUORON_DATABASE": federated.database, "QUORON_RESULTS": str(federated.results)}
    federated.start_superexec(**own)
    for number in range(USERS):
        federated.configure(number)
    return federated


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


def start(running: Any, *numbers: int) -> None:
    for number in numbers:
        running.start_node(number)


def wanted(run: str, *, users: int = USERS, rounds: int = 3, seconds: float = 300.0) -> RunSpecification:
    options = {"rounds": rounds, "rate": 1.0 if users == 2 else 0.67}
    return small("dp-sgd-wor", run, users, options=options, seconds=seconds)


def asked_once(running: Any, run: str) -> int:
    """How many answers users have given in a run; fails if somebody was asked two questions in a round."""
    given = 0
    for number in range(USERS):
        asked = questions(running, number, run)
        assert len({round_number for round_number, _ in asked}) == len(asked), asked
        given += len(asked)
    return given


def test_only_one_user_a_key_of_this_version_takes_part_and_nothing_begins_without_them(
    running: Any, store: Path, tmp_path: Path
) -> None:
    """One node is there in two processes, one has another version; then the last one comes."""
    with pytest.raises(RunError, match="already in use"):
        running.connection().call("supernode", "register", str(running.node(0) / "key.pub"), "here")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sitecustomize.py").write_text(OTHER_VERSION)
    start(running, 0)
    running.nodes["twin"] = running.nodes.pop(0)
    start(running, 0)
    running.start_node(1, PYTHONPATH=str(tmp_path / "other"))
    run = wanted("few", users=2)
    number = submit(running, run)
    log = until(lambda: _says(running, number, "another version"), running)
    assert "waiting for users: 1 of 2" in log
    assert rounds_answered(running, "few") == 0
    start(running, 2)
    model_of(running, run, number)
    assert members(store, "few") == [0, 1]
    assert questions(running, 1, "few") == []
    assert len(questions(running, 0, "few")) == len(questions(running, 2, "few")) == 3


def _says(running: Any, number: int, text: str) -> str:
    log = log_of(running, number)
    return log if text in log else ""


def test_no_secret_of_a_client_is_anywhere_on_the_server(running: Any, tmp_path: Path) -> None:
    """One user has a value that cannot be read, another one a record that cannot be opened."""
    data = tmp_path / "bad.csv"
    data.write_text(f"x0,x1,x2,sick\n0.1,0.2,{SECRET},1\n0.1,0.2,0.3,0\n")
    running.configure(0, data=str(data))
    running.configure(1, state=str(tmp_path / f"{SECRET}.missing" / "record.sqlite"))
    start(running, 0, 1, 2)
    run = wanted("secret")
    number = submit(running, run)
    model_of(running, run, number)
    assert SECRET in running.log("node-1"), "the owner is told"
    log = log_of(running, number)
    assert "round 3 of at most 3" in log
    assert SECRET not in log
    served = [*running.folder.glob("superlink.sqlite*"), *tmp_path.glob("store.sqlite*")]
    served += [running.folder / "logs" / f"{name}.log" for name in ("superlink", "serverapp")]
    served += [path for path in running.results.rglob("*") if path.is_file()]
    assert len(served) >= 6
    for path in served:
        assert SECRET.encode() not in path.read_bytes(), path


def test_a_killed_supernode_is_a_user_without_an_answer(running: Any, tmp_path: Path) -> None:
    start(running, 0, 1, 2)
    run = wanted("node", rounds=4, seconds=60.0)
    number = submit(running, run)
    until(lambda: questions(running, 2, "node"), running, number)
    running.nodes.pop(2).kill()
    given = {round_number for round_number, _ in questions(running, 2, "node")}
    model = model_of(running, run, number)
    # What it answered last may have got out, or not.
    possible = [without(run, tmp_path, user=2, first=max(given) + got_out) for got_out in (0, 1)]
    assert any(np.array_equal(model, each) for each in possible)


def test_a_killed_serverapp_goes_on_with_the_same_questions_to_the_same_bits(running: Any, tmp_path: Path) -> None:
    start(running, 0, 1, 2)
    run = wanted("serverapp", rounds=4)
    number = submit(running, run)
    until(lambda: rounds_answered(running, "serverapp") >= 2, running, number)
    kill(serverapp(running))
    again = submit(running, run)
    np.testing.assert_array_equal(model_of(running, run, again), expected(run, tmp_path / "inline"))
    assert asked_once(running, "serverapp") == 4 * 2
    until(lambda: status(running, number).startswith("finished"), running)
    assert status(running, number).startswith("finished:failed")
    assert status(running, again).startswith("finished:completed")


def test_a_killed_superlink_that_comes_back_goes_on_to_the_same_bits(running: Any, tmp_path: Path) -> None:
    start(running, 0, 1, 2)
    run = wanted("superlink", rounds=4)
    number = submit(running, run)
    until(lambda: rounds_answered(running, "superlink") >= 2, running, number)
    running.superlink.kill()
    running.start_superlink()
    np.testing.assert_array_equal(model_of(running, run, number), expected(run, tmp_path / "inline"))
    assert asked_once(running, "superlink") == 4 * 2


# A SuperLink dies with an answer in its hand, for the ServerApp, that it will not hand out again.
DIES_WITH_MESSAGES = """
import os, pathlib, signal, sys, time

if any("flower-superlink" in each for each in sys.orig_argv):
    from importlib import import_module

    handlers = import_module("flwr.superlink.servicer.runtime.runtime_handlers")
    pull, taken = handlers.pull_messages, pathlib.Path(__file__).with_name("taken")

    def pull_messages(*given, **named):
        found = pull(*given, **named)
        asks = [each for each in found.messages_list if each.metadata.group_id == "lost/1"]
        if asks and not taken.exists():
            time.sleep(3.0)  # so that the ServerApp has sent its messages to all
            taken.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    handlers.pull_messages = pull_messages
"""


def test_answers_that_a_superlink_that_is_killed_was_handing_out_are_asked_for_again(
    running: Any, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES_WITH_MESSAGES)
    start(running, 0, 1, 2)
    running.superlink.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
        running.start_superlink()
    run = wanted("lost")
    number = submit(running, run)
    until((tmp_path / "taken").exists, running)  # it cannot be asked for the run any more
    running.superlink.end()
    running.start_superlink()
    np.testing.assert_array_equal(model_of(running, run, number), expected(run, tmp_path / "inline"))
    assert asked_once(running, "lost") == 3 * 2


# The first ServerApp dies before it has told Flower that it begins.
DIES_AT_ONCE = """
import os, pathlib, signal, sys

if any("flwr-serverapp" in each for each in sys.orig_argv):
    died = pathlib.Path(__file__).with_name("died")
    if not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_flower_itself_starts_a_serverapp_again_that_died_before_it_began(running: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES_AT_ONCE)
    running.superexec.end()
    own = {"QUORON_DATABASE": running.database, "QUORON_RESULTS": str(running.results)}
    running.start_superexec(**own, PYTHONPATH=str(tmp_path))
    start(running, 0, 1, 2)
    run = wanted("again", rounds=1)
    np.testing.assert_array_equal(model_of(running, run, submit(running, run)), expected(run, tmp_path / "inline"))
    assert (tmp_path / "died").exists()


def come_back(running: Any, node: int) -> None:
    """Start a SuperNode that was killed, as whatever watches it would: until its SuperLink has missed it, it ends."""
    before = running.log(f"node-{node}").count("SuperNode ID")

    def settled() -> bool:
        with contextlib.suppress(RunError):
            running.nodes[node].check()
            return running.log(f"node-{node}").count("SuperNode ID") > before
        running.nodes.pop(node).end()
        with contextlib.suppress(RunError):
            running.start_node(node)
        return False

    with contextlib.suppress(RunError):
        running.start_node(node)
    until(settled, running)


def test_nine_kills_of_every_part_in_one_run_change_no_bit_and_no_question(running: Any, tmp_path: Path) -> None:
    """ServerApp, SuperLink and a SuperNode, three times, in the middle of a round: the next ServerApp asks it again."""
    start(running, 0, 1, 2)
    run = wanted("every-part", rounds=4)
    number, draw = submit(running, run), random.Random(5)
    for answered in range(1, 4):
        until(lambda least=answered: rounds_answered(running, "every-part") >= least, running, number)
        # One that dies before it has begun Flower starts again, beside that of the next submission.
        until(lambda run=number: status(running, run) == "running", running, number)
        kill(until(lambda: serverapp(running), running))  # first, as it would go on without the SuperNode's user
        node = draw.randrange(USERS)
        running.nodes.pop(node).kill()
        running.superlink.kill()
        running.start_superlink()
        come_back(running, node)
        number = submit(running, run)
    np.testing.assert_array_equal(model_of(running, run, number), expected(run, tmp_path / "inline"))
    assert asked_once(running, "every-part") == 4 * 2

"""Twenty kills in a row of the ServerApp of one run, with secret noise and with a simulation's.

After each of them the store is whole and what was committed stands to the bit; a round that is asked again is the same
question; noise of a round that was not committed is drawn anew, but in a simulation, which comes to the bits of a run
that nobody killed; the run is charged once, by the operator's store and by every client.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dying
from committed import Committed
from dying import Moment
from federation.crowd import SEED, from_items, inline_model, specification, write_items
from flower import alone
from flower.alone import Scene
from flower.federation import command, expected, federation, log_of, model_of, questions, small, submit, until
from flower.plugged import people, plugged, trained
from quoron.flower.training import DATABASE_FILE
from quoron.run_folder import RunFolder
from quoron_client.federation import ClientState
from quoron_server.specification import RunSpecification
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger

TESTS = Path(__file__).parent.parent
EPSILON, ROUNDS = 15.0, 6
# Each user once; all of them in every round, behind a test; cohorts by secret coins.
RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "one-pass-dp-sgd": (12, {"rounds": ROUNDS}),
    "outlier-gd": (200, {"rounds": ROUNDS}),
    "dp-sgd-wor": (6, {"rounds": ROUNDS, "rate": 0.5}),
}
COINS = ("dp-sgd-wor",)
BEGUN = tuple(Moment(at, "after") for at in ("settle", "add_run", "fix_members", "charge", "begin", "set_state"))
ASKED = (Moment("spend", "before", 0), Moment("spend", "after", 0), Moment("push", "after", left=3))
COMMITTED = (Moment("commit", "before", 0), Moment("commit", "before", 1), Moment("commit", "after", 1))
AGAIN = (Moment("commit", "before", 3), Moment("commit", "before", 3))  # twice in one round
ENDED = (Moment("finish", "before"), Moment("finish", "after"), Moment("release", "after"))
HERE = (*BEGUN, *ASKED, *COMMITTED)
# A client has written its answer, and nobody has heard of it; a run is complete, and half of its files are there.
FEDERATED = (*HERE, Moment("read", "before", 2), *AGAIN, Moment("keep", "after", 4, 2), *ENDED)
FEDERATED += (Moment("write_json", "after"),)
PLUGGED = (*HERE, Moment("read", "before", 2), *AGAIN, Moment("read", "after", 4, 2), *ENDED)
PLUGGED += (Moment("end", "before"),)
FEW = (5, 8, 11, 14)  # of these moments, for whoever has seconds


def store(url: str) -> Committed:
    """What the store holds, whose chain of charges is whole, and which holds no more than one charge."""
    with Database(url) as database:
        population = PopulationLedger(database)
        population.verify()
        assert [row["kind"] for row in population.rows()].count("charge") <= 1
        found = [row["payload"]["run"] for row in population.rows() if row["kind"] == "charge"]
        began = [run for run in found if Ledger.begun(database, run)]
        return Committed.of(Ledger.within(database, began[0])) if began else Committed()


def killed_in_a_row(folder: Path, url: str, lives: Sequence[Moment], environment: dict[str, str]) -> None:
    before, environment = Committed(), os.environ | environment
    for moment in lives:
        words = dying.words(moment, "flower.alone", folder)
        life = subprocess.run(words, env=environment, capture_output=True, timeout=600)
        assert life.returncode == -signal.SIGKILL, (moment, life.stdout.decode(), life.stderr.decode())
        now = store(url)
        assert now.goes_on_from(before), moment
        before = now
    last = [sys.executable, "-m", "flower.alone", str(folder)]
    subprocess.run(last, cwd=TESTS, env=environment, check=True, capture_output=True, timeout=600)
    after = store(url)
    assert after.goes_on_from(before)
    assert [number for number, _, _ in after.rounds] == list(range(ROUNDS))
    assert np.isfinite(np.frombuffer(after.model)).all()
    with Database(url) as database:
        kinds = [row["kind"] for row in PopulationLedger(database).rows()]
        assert [each for each in kinds if each != "limit"] == ["submit", "charge", "release", "end"]


def require_same_questions(folder: Path) -> None:
    digests = defaultdict(set)
    for number, user, digest in alone.noted(folder, "asked"):
        digests[number, user].add(digest)
    assert digests
    assert all(len(each) == 1 for each in digests.values()), "somebody was asked two questions in a round"


def require_fresh_noise(folder: Path, *, secret: bool, lives: int) -> None:
    """Of all that starts came to commit in a round: never the same noise again, or in a simulation the same bits."""
    attempts = defaultdict(list)
    for number, noisy, digest in alone.noted(folder, "attempts"):
        if number >= 0 and (noisy or not secret):
            attempts[number].append(digest)
    most = max(map(len, attempts.values()), default=0)
    assert lives < 20 or most >= 3 or not most, "a run whose first test fails draws nothing"
    for number, found in attempts.items():
        assert len(set(found)) == (len(found) if secret else 1), f"round {number}"


def wanted(algorithm: str, *, secret: bool) -> RunSpecification:
    users, options = RUNS[algorithm]
    run = specification(algorithm, "trial")
    changes: dict[str, Any] = {"options": options, "problem": replace(run.problem, users=users)}
    if secret:
        changes |= {"simulation": False, "simulation_seed": None, "seconds": 300.0}
    if secret and algorithm in COINS:
        changes |= {"early_ends": False, "seconds": 0.5}  # a round lasts as long as it may
    return run.model_copy(update=changes)


@pytest.mark.parametrize("secret", [True, False], ids=["secret", "simulated"])
@pytest.mark.parametrize(
    ("algorithm", "lives"),
    [
        *(pytest.param(name, FEDERATED, marks=pytest.mark.slow) for name in RUNS),
        pytest.param("dp-sgd-wor", tuple(FEDERATED[each] for each in FEW), marks=pytest.mark.programs),
    ],
)
def test_kills_in_a_row_of_a_federation_s_serverapp_leave_one_release_a_round_for_one_charge(
    algorithm: str, lives: Sequence[Moment], secret: bool, tmp_path: Path
) -> None:
    run, url = wanted(algorithm, secret=secret), f"sqlite:///{tmp_path}/store.sqlite"
    users = run.problem.users
    write_items(tmp_path, users)
    alone.write(tmp_path, Scene(run.as_text(), {}, users, EPSILON))
    environment = {"QUORON_DATABASE": url, "QUORON_RESULTS": str(tmp_path / "results")}
    environment |= {"QUORON_SUPERNODE_AUTH": "1"} if secret else {"QUORON_ALLOW_SIMULATION": "1"}
    killed_in_a_row(tmp_path, url, lives, environment)
    model = RunFolder(tmp_path / "results" / "trial").model()
    assert store(url).model == model.tobytes()
    require_fresh_noise(tmp_path, secret=secret, lives=len(lives))
    require_same_questions(tmp_path)
    asked = {(number, user) for number, user, _ in alone.noted(tmp_path, "asked")}
    if not secret:
        np.testing.assert_array_equal(model, inline_model(run, tmp_path, from_items(users)))
    for user in range(users):
        with ClientState(tmp_path / f"record-{user}.sqlite", epsilon=EPSILON, delta=1.0) as kept:
            took_part = any(each == user for _, each in asked)
            charged = (run.epsilon, run.delta)
            if took_part or kept.spent != (0.0, 0.0):  # whom a secret cohort passes over is charged when it agrees
                assert kept.spent == charged


@pytest.mark.parametrize("secret", [True, False], ids=["secret", "simulated"])
@pytest.mark.parametrize(
    ("algorithm", "lives"),
    [
        *(pytest.param(name, PLUGGED, marks=pytest.mark.slow) for name in ("one-pass-dp-sgd", "dp-sgd-wor", "dp-ftrl")),
        pytest.param("one-pass-dp-sgd", tuple(PLUGGED[each] for each in FEW), marks=pytest.mark.programs),
    ],
)
def test_kills_in_a_row_of_a_serverapp_of_one_s_own_leave_one_release_a_round_for_one_charge(
    algorithm: str, lives: Sequence[Moment], secret: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"rounds": ROUNDS} | ({"rate": 0.5} if algorithm in COINS else {})
    training = {"name": algorithm, "users": 12, "options": options, "waiting": 60.0}
    training |= {"seed": None if secret else SEED}
    if secret and algorithm in COINS:
        training |= {"early_ends": False, "seconds": 0.5}
    alone.write(tmp_path, Scene("", training, 12, 0.0))
    url = f"sqlite:///{tmp_path}/store/{DATABASE_FILE}"
    (tmp_path / "store").mkdir(mode=0o700)
    with Database(url) as database:
        PopulationLedger(database).limit("everyone", epsilon=12.0, delta=1e-2)
    allowed = {"QUORON_SUPERNODE_AUTH": "1"} if secret else {"QUORON_ALLOW_SIMULATION": "1"}
    killed_in_a_row(tmp_path, url, lives, allowed)
    require_fresh_noise(tmp_path, secret=secret, lives=len(lives))
    require_same_questions(tmp_path)
    if not secret:
        monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
        whole = trained(plugged(people(12)), tmp_path / "whole", **training)
        assert store(url).model == whole.model.tobytes()


# A ServerApp of Flower's own takes what the test has left for it, and dies then.
DIES = """
import json, os, pathlib, sys

if any("flwr-serverapp" in each for each in sys.orig_argv):
    sys.path.append(os.environ["TESTS"])
    import dying
    from flower import alone

    folder = pathlib.Path(os.environ["MOMENTS"])
    (folder / "started").write_text(str(os.getpid()))
    if (folder / "moment").exists():
        moment = (folder / "moment").read_text()
        (folder / "moment").unlink()
        dying.die(dying.Moment(**json.loads(moment)))
    alone.note_attempts(folder)  # last, so that a commit before which it dies is noted
"""
ROUND = (Moment("spend", "after", 0), Moment("read", "before", 0), Moment("commit", "before", 0))
USERS = 6
REAL = (*BEGUN, *ROUND, Moment("commit", "before", 0), Moment("commit", "after", 0), Moment("push", "after", left=2))
REAL += (Moment("read", "after", 1), Moment("commit", "before", 1), Moment("spend", "before", 2))
REAL += (Moment("commit", "before", 2), *ENDED, Moment("write_json", "after"))


@pytest.mark.slow
@pytest.mark.parametrize("secret", [True, False], ids=["secret", "simulated"])
def test_twenty_kills_of_flower_s_own_serverapp_process_leave_one_release_a_round_for_one_charge(
    secret: bool, tmp_path: Path
) -> None:
    """Over TLS, with SuperNodes that live; a start that finds the store held is refused by name, and comes again."""
    run = small("one-pass-dp-sgd", "trial", USERS, options={"rounds": 3})
    if secret:
        run = run.model_copy(update={"simulation": False, "simulation_seed": None})
    url = f"sqlite:///{tmp_path}/store.sqlite"
    (tmp_path / "sitecustomize.py").write_text(DIES)
    mark = {"PYTHONPATH": str(tmp_path), "MOMENTS": str(tmp_path), "TESTS": str(TESTS)}
    before = Committed()
    with federation(tmp_path / "federation", USERS) as running:
        running.superexec.end()
        running.start_superexec(QUORON_DATABASE=url, **mark)
        for moment in (*REAL, None):
            taken = False
            while not taken:
                (tmp_path / "started").unlink(missing_ok=True)
                if moment is not None:
                    (tmp_path / "moment").write_text(moment.as_text())
                number = submit(running, run)
                started = int(until((lambda: _read(tmp_path / "started")), running, number))
                until(lambda started=started: not command(started), running)
                log = log_of(running, number)
                taken = "Another process holds this run or database" not in log
            assert moment is None or "Traceback" not in log, f"{moment} {log[-4000:]}"
            now = store(url)
            assert now.goes_on_from(before), moment
            before = now
        model = model_of(running, run, number)
        assert before.model == model.tobytes()
        assert [number for number, _, _ in before.rounds] == [0, 1, 2]
        for user in range(USERS):
            assert len(questions(running, user, "trial")) == 1
            assert "No answer" not in running.log(f"node-{user}")
    require_fresh_noise(tmp_path, secret=secret, lives=len(REAL))
    if not secret:
        np.testing.assert_array_equal(model, expected(run, tmp_path / "inline"))


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(
    ("attempts", "secret", "whole"),
    [
        (((0, True, "a"), (0, True, "b"), (1, False, "c"), (1, False, "c"), (1, True, "d")), True, True),
        (((0, True, "a"), (0, True, "a")), True, False),
        (((0, True, "a"), (0, True, "a")), False, True),
        (((0, True, "a"), (0, False, "b")), False, False),
    ],
)
def test_noise_that_comes_again_is_noticed_and_a_step_kept_back_is_none(
    attempts: tuple[tuple[int, bool, str], ...], secret: bool, whole: bool, tmp_path: Path
) -> None:
    (tmp_path / "attempts").write_text("".join(f"{json.dumps(each)}\n" for each in attempts))
    with contextlib.nullcontext() if whole else pytest.raises(AssertionError, match="round 0"):
        require_fresh_noise(tmp_path, secret=secret, lives=3)


def test_twenty_kills_are_twenty() -> None:
    assert [len(each) for each in (FEDERATED, PLUGGED, REAL)] == [20, 20, 20]

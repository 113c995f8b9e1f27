"""The whole program killed with SIGKILL in the middle of its work, then resumed: the same bits, nobody asked twice."""

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dying
from dying import Moment
from quoron.cli.app import invoke
from quoron_server.storage.ledger import Ledger

SETTINGS = [
    "population.users=4000",
    "population.items_per_user=3",
    "population.dimension=4",
    "privacy.epsilon=8",
    "algorithm.name=one-pass-dp-sgd",
    "algorithm.options.rounds=5",
]


def command(out: Path, *settings: str) -> list[str]:
    words = [word for setting in settings or SETTINGS for word in ("--set", setting)]
    return ["--quiet", "simulate", "--out", str(out), *words]


def killed(moment: Moment, words: list[str]) -> None:
    done = subprocess.run(dying.words(moment, "quoron", *words), capture_output=True, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def assert_whole(out: Path, whole: np.ndarray) -> None:
    """The bits of a run that nobody killed, and nobody asked twice."""
    with np.load(out / "model.npz") as stored:
        np.testing.assert_array_equal(stored[stored.files[0]], whole)
    with Ledger.open(out / "ledger.sqlite") as ledger:
        assert ledger.spent() == {"rounds": 5, "users": 4000, "gradient_evaluations": 12000}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> np.ndarray:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert invoke(command(out)) == 0
    with np.load(out / "model.npz") as stored:
        return stored[stored.files[0]]


@pytest.mark.parametrize(
    ("at", "when", "left"),
    [
        pytest.param("spend", "before", 1, marks=pytest.mark.programs),
        pytest.param("spend", "after", 3, marks=pytest.mark.slow),
        pytest.param("commit", "before", 4, marks=pytest.mark.slow),
        pytest.param("commit", "after", 5, marks=pytest.mark.slow),
        pytest.param("finish", "before", 1, marks=pytest.mark.slow),
        ("replace", "before", 1),  # the first file of the run folder
        pytest.param("replace", "after", 3, marks=pytest.mark.slow),  # the ledger itself, just in place
        pytest.param("replace", "before", 5, marks=pytest.mark.slow),  # a result file
    ],
)
def test_a_killed_run_resumes_to_identical_bits(at, when, left, whole, tmp_path):
    out = tmp_path / "run"
    killed(Moment(at, when, left=left), command(out))
    resumable = (out / "config.toml").is_file()
    again = ["--quiet", "resume", str(out)] if resumable else command(out)
    assert invoke(again) == 0  # in this process, which knows nothing of the one that died
    assert_whole(out, whole)
    assert not list(out.glob("*.new"))


@pytest.mark.programs
def test_a_run_that_is_killed_between_a_commit_and_the_next_question_has_spent_that_once(whole, tmp_path):
    out = tmp_path / "run"
    killed(Moment("ask", "before", round=2), command(out))
    with Ledger.open(out / "ledger.sqlite") as ledger:
        assert (len(ledger.events()), ledger.spent()["rounds"]) == (2, 3)  # whether anybody was asked, nobody knows
    assert invoke(["--quiet", "resume", str(out)]) == 0
    assert_whole(out, whole)


@pytest.mark.programs
def test_a_killed_run_of_a_large_model_resumes_to_identical_bits(tmp_path):
    """Rounds of a second share a commit: those that nobody has seen are asked again."""
    wide = ("population.users=1200", "population.items_per_user=1", "population.dimension=70000", *SETTINGS[3:5])
    settings, whole, out = (*wide, "algorithm.options.rounds=12"), tmp_path / "whole", tmp_path / "run"
    assert invoke(command(whole, *settings)) == 0
    killed(Moment("ask", "before", round=9), command(out, *settings))
    with Ledger.open(out / "ledger.sqlite") as ledger:
        assert ledger.spent()["rounds"] == len(ledger.events()) + 1 <= 10
    assert invoke(["--quiet", "resume", str(out)]) == 0
    assert (out / "model.npz").read_bytes() == (whole / "model.npz").read_bytes()
    with Ledger.open(out / "ledger.sqlite") as ledger:
        assert ledger.spent() == {"rounds": 12, "users": 1200, "gradient_evaluations": 1200}


@pytest.mark.programs
@pytest.mark.parametrize("kept", [0.0, pytest.param(0.6, marks=pytest.mark.slow)])
def test_a_simulation_whose_power_failed_resumes_to_identical_bits_from_a_round_before(kept, whole, tmp_path):
    """Its rounds are durable by the dozen: the journal that a power loss leaves is shorter than what was written."""
    out = tmp_path / "run"
    killed(Moment("commit", "after", 3), command(out))
    journal = out / "ledger.sqlite-wal"
    os.truncate(journal, int(kept * journal.stat().st_size))
    assert invoke(["--quiet", "resume", str(out)]) == 0
    assert_whole(out, whole)

"""The whole program killed with SIGKILL in the middle of its work, then resumed: the same bits, nobody asked twice."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from quoron.cli.app import invoke
from quoron_server.books.ledger import Ledger

SETTINGS = [
    "population.users=4000",
    "population.items_per_user=3",
    "population.dimension=4",
    "privacy.epsilon=8",
    "algorithm.name=one-pass-dp-sgd",
    "algorithm.options.rounds=5",
]

# Runs the command line, and kills itself without warning at the n-th call of one of the ledger's or folder's writes.
KILLER = textwrap.dedent(
    """
    import os, signal, sys
    from quoron_server.books.ledger import Ledger
    from quoron import run_folder as folder
    from quoron.__main__ import main

    at, when, left = sys.argv[1], sys.argv[2], int(sys.argv[3])
    owner, name = {"spend": (Ledger, "spend"), "commit": (Ledger, "commit"), "finish": (Ledger, "finish"),
                   "replace": (os, "replace")}[at]
    original = getattr(owner, name)

    def dying(*arguments, **named):
        global left
        left -= 1
        if left == 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)
    sys.argv = ["quoron", *sys.argv[4:]]
    main()
    """
)


def command(out: Path) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["simulate", "--quiet", "--out", str(out), *settings]


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
    killed = subprocess.run([sys.executable, "-c", KILLER, at, when, str(left), *command(out)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    resumable = (out / "config.toml").is_file()
    again = ["resume", str(out), "--quiet"] if resumable else command(out)
    assert invoke(again) == 0  # in this process, which knows nothing of the one that died
    with np.load(out / "model.npz") as stored:
        np.testing.assert_array_equal(stored[stored.files[0]], whole)
    with Ledger.open(out / "ledger.sqlite") as ledger:
        assert ledger.spent() == {"rounds": 5, "users": 4000, "gradient_evaluations": 12000}
    assert not list(out.glob("*.new"))

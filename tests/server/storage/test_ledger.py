import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing

import numpy as np
import pytest

from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import AverageGradient, LocalSGD, Question, VectorReport
from quoron_privacy.errors import LedgerError
from quoron_privacy.release import Release
from quoron_server.storage.ledger import Ledger, digest


def question(round_=0, users=(3, 1), point=0.5, weights=(1.0,), smoothness=None):
    points = np.full((len(weights), 2), point)
    return Question(round_, np.array(users, dtype=np.int64), AverageGradient(points, weights, smoothness))


@pytest.fixture
def ledger(tmp_path):
    made = Ledger.create(tmp_path / "ledger.sqlite", plan='{"a": 1}', config_digest="abc", noise_key=b"secret")
    with made:
        yield made


class TestLedger:
    def test_what_is_written_is_read_back_by_another_process_later(self, ledger):
        ledger.commit(-1, b"start", (), {})
        ledger.spend(question(), users=2, gradient_evaluations=40)
        ledger.commit(0, b"next", (Release("gaussian", {"scale": 0.5}),), {"asked": 2})
        path = ledger.path
        ledger.close()
        with Ledger.open(path) as again:
            assert again.plan_json == '{"a": 1}'
            assert again.config_digest == "abc"
            assert again.noise_key == b"secret"
            assert again.resume_point() == (0, b"next")
            assert again.spent() == {"rounds": 1, "users": 2, "gradient_evaluations": 40}
            assert again.releases() == [(0, Release("gaussian", {"scale": 0.5}))]
            assert again.events() == [{"asked": 2}]

    def test_whoever_reads_while_another_thread_commits_sees_no_change(self, ledger, monkeypatch):
        ledger.commit(-1, b"start", (), {})
        ledger.spend(question(), users=2, gradient_evaluations=40)
        committing = threading.Thread(target=ledger.commit, args=(0, b"next", (), {"asked": 2}))
        read = Ledger._of

        def of(self, *columns):
            if committing.ident is None:
                committing.start()
                committing.join(0.2)  # it waits for its turn; where it had none to wait for, it is there by now
            return read(self, *columns)

        monkeypatch.setattr(Ledger, "_of", of)
        assert ledger.events() == []
        committing.join()
        assert ledger.events() == [{"asked": 2}]

    @pytest.mark.parametrize("kept", [2, 1, 0])
    def test_a_complete_run_whose_last_rounds_were_taken_out_has_changed(self, ledger, kept):
        ledger.commit(-1, b"start", (), {})
        for round_ in range(3):
            ledger.spend(question(round_), users=2, gradient_evaluations=40)
            ledger.commit(round_, b"next", (Release("gaussian", {"scale": 0.5}),), {"asked": 2})
        ledger.finish(np.zeros(2))
        assert len(ledger.events()) == 3
        path = ledger.path
        ledger.close()
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("DELETE FROM commits WHERE round >= ?", (kept,))
        with Ledger.open(path) as again:
            for read in (again.events, again.releases):
                with pytest.raises(LedgerError, match="something in it has changed"):
                    read()

    def test_a_spent_round_accepts_only_the_identical_question(self, ledger):
        ledger.spend(question(), users=2, gradient_evaluations=40)
        ledger.spend(question(), users=2, gradient_evaluations=40)
        assert ledger.spent()["rounds"] == 1
        for other in (question(users=(3, 2)), question(point=0.6), question(smoothness=0.1), question(weights=(2.0,))):
            with pytest.raises(LedgerError, match="Round 0 was already asked another question"):
                ledger.spend(other, users=2, gradient_evaluations=40)

    def test_noise_key_state_and_digests_are_erased_from_the_file_when_the_run_is_complete(self, ledger):
        ledger.commit(-1, b"memory of the noise", (), {})
        ledger.spend(question(), users=2, gradient_evaluations=40)
        ledger.finish(np.array([1.5, -2.0]))
        with pytest.raises(LedgerError, match="erased"):
            _ = ledger.noise_key
        np.testing.assert_array_equal(ledger.model, [1.5, -2.0])
        path = ledger.path
        ledger.close()
        for secret in (b"secret", b"memory of the noise", digest(question()).encode()):
            assert all(secret not in file.read_bytes() for file in path.parent.iterdir())

    def test_a_commit_spends_the_next_round_with_it_and_what_nobody_was_asked_is_taken_back(self, ledger):
        ledger.commit(-1, b"start", (), {}, (question(), 2, 40))
        assert ledger.spent() == {"rounds": 1, "users": 2, "gradient_evaluations": 40}
        with pytest.raises(LedgerError, match="new"):  # and neither is written where one cannot be
            ledger.commit(-1, b"again", (), {}, (question(1), 2, 40))
        assert ledger.spent()["rounds"] == 1
        ledger.withdraw(after=0)
        assert ledger.spent()["rounds"] == 1
        ledger.withdraw(after=-1)  # by another start: it may have been asked in the one before
        assert ledger.spent()["rounds"] == 1
        ledger.spend(question(1), 2, 40)
        ledger.withdraw(after=0)
        assert (ledger.spent()["rounds"], ledger.resume_point()) == (1, (-1, b"start"))

    def test_only_the_newest_state_is_kept(self, ledger):
        ledger.commit(-1, b"first state", (), {})
        ledger.commit(0, b"second state", (), {})
        ledger.close()
        assert b"first state" not in ledger.path.read_bytes()

    def test_a_second_process_is_refused_while_one_holds_the_run(self, ledger):
        ledger.commit(-1, b"start", (), {})
        code = "import sys, pathlib; from quoron_server import Ledger; Ledger.open(pathlib.Path(sys.argv[1]))"
        done = subprocess.run([sys.executable, "-c", code, ledger.path], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "Another process holds this run" in done.stderr

    def test_creating_over_an_existing_run_is_refused(self, ledger):
        with pytest.raises(LedgerError, match="found one"):
            Ledger.create(ledger.path, plan="", config_digest="", noise_key=b"")

    def test_a_missing_or_foreign_file_is_named(self, tmp_path):
        with pytest.raises(LedgerError, match="found none"):
            Ledger.open(tmp_path / "nothing.sqlite")
        foreign = tmp_path / "foreign.sqlite"
        foreign.write_bytes(b"this is not a database, by far not" * 40)
        with pytest.raises(LedgerError, match="not a quoron ledger"):
            Ledger.open(foreign)

    def test_a_full_disk_is_an_error_that_says_so_and_loses_nothing(self, ledger):
        ledger.commit(-1, b"start", (), {})
        (found,) = ledger._database.rows("PRAGMA page_count")
        ledger._database.rows(f"PRAGMA max_page_count={found['page_count']}")
        with pytest.raises(LedgerError, match=r"disk is full.*Free some space"):
            ledger.commit(0, bytes(10**6), (), {})
        assert ledger.resume_point() == (-1, b"start")

    @pytest.mark.parametrize("at", ["create", "spend", "commit", "next"])
    def test_a_kill_in_the_middle_of_a_write_leaves_it_whole_or_absent(self, tmp_path, at):
        script = textwrap.dedent(
            """
            import os, signal, sys
            from pathlib import Path
            import numpy as np
            from quoron_client.protocol.questions import AverageGradient
            from quoron_client.protocol.questions import Question
            from quoron_server.storage import ledger as module
            from quoron_server.storage.store import Store
            path, at = Path(sys.argv[1]), sys.argv[2]
            execute = Store._execute
            def die(self, connection, statement, parameters=()):
                rows = execute(self, connection, statement, parameters)
                wanted = {"create": "INSERT INTO run", "commit": "INSERT INTO commits"}
                if statement.startswith(wanted.get(at, "INSERT INTO spent")):
                    os.kill(os.getpid(), signal.SIGKILL)
                return rows
            if at != "create":
                made = module.Ledger.create(path, plan="p", config_digest="c", noise_key=b"k")
            Store._execute = die
            if at == "create":
                module.Ledger.create(path, plan="p", config_digest="c", noise_key=b"k")
            question = Question(0, np.arange(2), AverageGradient(np.zeros((1, 2)), (1.0,)))
            if at == "spend":
                made.spend(question, users=2, gradient_evaluations=1)
            made.commit(-1, b"state", (), {}, (question, 2, 1))
            """
        )
        path = tmp_path / "ledger.sqlite"
        done = subprocess.run([sys.executable, "-c", script, path, at], check=False)
        assert done.returncode == -signal.SIGKILL
        if at == "create":
            assert not path.exists()
            Ledger.create(path, plan="p", config_digest="c", noise_key=b"k").close()
        with Ledger.open(path) as ledger:
            assert ledger.resume_point() is None
            assert ledger.spent()["rounds"] == 0

    def test_files_belong_to_the_owner_of_the_folder_only_while_the_key_is_inside(self, ledger):
        assert os.stat(ledger.path).st_mode & 0o077 == 0


def test_digest_tells_questions_apart_by_every_part():
    start = LocalSGD(np.zeros((2, 2)), 0.1, L2Ball(1.0))
    others = [
        question(),
        question(round_=1),
        question(users=(1, 3)),
        question(weights=(1.0, 1.0)),
        Question(0, np.array([3, 1]), start),
        Question(0, np.array([3, 1]), LocalSGD(np.zeros((2, 2)), 0.2, L2Ball(1.0))),
        Question(0, np.array([3, 1]), LocalSGD(np.zeros((2, 2)), 0.1, L2Ball(2.0))),
    ]
    assert len({digest(other) for other in others}) == len(others)


def test_digest_sees_every_number_of_a_gradient_within_a_report():
    points = np.zeros((2, 5000))
    points[1, 2500] = 1e-12  # what a printed array leaves out
    asked = [VectorReport(AverageGradient(each[None], (1.0,)), 1.0, 1e-6, 1.0, np.zeros(5000)) for each in points]
    assert len({digest(Question(0, np.array([3, 1]), task)) for task in asked}) == 2

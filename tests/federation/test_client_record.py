"""A client never gives two answers in one round, never more than it agreed to, and never beyond its owner's limits."""

import re
import resource
import stat
import subprocess
import sys
import textwrap

import pytest

from federation.dying import DYING
from quoron_client.durable import HighWaterMark
from quoron_client.federation.client_state import Agreement, ClientState, StoreClaim
from quoron_privacy.errors import LedgerError

Q, OTHER = b"q" * 16, b"o" * 16


def opened(folder, epsilon=10.0, delta=1e-3, **more):
    return ClientState(folder / "record.sqlite", epsilon=epsilon, delta=delta, **more)


def agreement(run="r", *, epsilon=1.0, delta=1e-6, participations=1, terms=b"t" * 16):
    return Agreement(run, terms, epsilon, delta, participations)


@pytest.fixture
def record(tmp_path):
    with opened(tmp_path) as record:
        assert record.agree(agreement(participations=3)) is None
        yield record


class TestOneAnswer:
    def test_is_one_between_two_processes_of_one_record(self, tmp_path, record):
        with opened(tmp_path) as beside:
            assert record.recall("r", 0, Q) is None
            assert beside.recall("r", 0, Q) is None
            assert record.keep("r", 0, Q, b"of the first") == b"of the first"
            assert beside.keep("r", 0, Q, b"of the second") == b"of the first"

    def test_that_no_disk_takes_is_not_given_and_the_disk_is_what_is_spoken_of(self, record):
        """SQLite ends a transaction that finds the disk full by itself."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        try:
            with pytest.raises(LedgerError, match=r"full|disk I/O error"):
                record.keep("r", 0, Q, bytes(16 << 20))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert record.recall("r", 0, Q) is None
        assert record.keep("r", 0, Q, b"answer") == b"answer", "with room it goes on"


class TestTheLimits:
    def test_are_given_back_by_a_run_that_ends_before_anybody_was_asked(self, tmp_path):
        with opened(tmp_path, epsilon=1.5) as record:
            assert record.agree(agreement("a")) is None
            assert record.end("a", begun=False)
            assert record.spent == (0.0, 0.0)
            assert record.agree(agreement("b")) is None
            assert record.keep("b", 0, Q, b"answer") == b"answer"
            assert record.end("b", begun=False)  # whatever is said: it was answered
            assert record.spent == (1.0, 1e-6)
            assert record.agree(agreement("c")) is not None
            assert record.agree(agreement("a")) is not None

    def test_of_a_run_already_charged_are_not_asked_for_again(self, tmp_path):
        with opened(tmp_path, epsilon=1.0) as record:
            record.agree(agreement(participations=2))
            record.keep("r", 0, Q, b"answer")
        with opened(tmp_path, epsilon=0.5) as record:  # the owner has lowered the limit
            assert record.agree(agreement(participations=2)) is None
            assert record.keep("r", 1, Q, b"answer") == b"answer"
            assert record.agree(agreement("new")) is not None

    def test_hold_between_runs_whichever_is_asked_first(self, tmp_path):
        """Which were asked may be secret, so it decides nothing."""
        with opened(tmp_path, epsilon=1.5) as record:
            assert record.agree(agreement("a")) is None
            assert record.agree(agreement("b")) == "its ε = 1 and the 1 spent before exceed the lifetime limit 1.5"
            assert record.keep("b", 0, Q, b"answer") is None
            assert record.may_answer("b", 0)[1] == "the run was not agreed to"
            assert record.keep("a", 0, Q, b"answer") == b"answer"

    def test_are_exact_to_the_last_run_that_fits(self, tmp_path):
        with opened(tmp_path, epsilon=1.0) as record:
            for number in range(11):
                run = f"run {number}"
                objection = record.agree(agreement(run, epsilon=0.1))
                kept = record.keep(run, 0, Q, b"answer")
                assert (objection is None, kept is not None) == (number < 10, number < 10), number
            assert record.spent[0] == 1.0


class TestTheFile:
    def test_is_its_owners_alone(self, tmp_path, record):
        record.keep("r", 0, Q, b"answer")
        for path in tmp_path.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name

    def test_holds_no_answer_of_a_run_that_has_ended(self, tmp_path, record):
        secret = b"a function of private data" * 200
        record.keep("r", 0, Q, secret)
        record.end("r")
        record.close()
        assert not any(secret[:26] in path.read_bytes() for path in tmp_path.iterdir())

    def test_that_is_no_database_or_no_file_is_a_named_error(self, tmp_path):
        (tmp_path / "record.sqlite").write_text("something else " * 99)
        with pytest.raises(LedgerError, match=r"record.sqlite', got: file is not a database"):
            opened(tmp_path)
        with pytest.raises(LedgerError, match=r"cannot open it"):
            opened(tmp_path / "nowhere")


class TestACopy:
    """An older, empty, torn or lonely copy would forget what its owner has spent."""

    def charged(self, folder, *runs):
        with opened(folder, epsilon=100.0) as record:
            for run in runs:
                assert record.agree(agreement(run)) is None
                assert record.keep(run, 0, Q, b"answer") == b"answer"
        return {each.name: each.read_bytes() for each in folder.iterdir()}

    def put_back(self, folder, files):
        for each in folder.iterdir():
            each.unlink()
        for name, content in files.items():
            (folder / name).write_bytes(content)

    @pytest.mark.parametrize("kept", [set(), {"record.sqlite-acknowledged"}, {"record.sqlite"}])
    def test_that_is_older_or_gone_is_refused_by_name(self, tmp_path, kept):
        older = self.charged(tmp_path, "a")
        newer = self.charged(tmp_path, "b")
        files = {name: content for name, content in newer.items() if name in kept}
        self.put_back(
            tmp_path, older | files if files else {"record.sqlite-acknowledged": newer["record.sqlite-acknowledged"]}
        )
        if kept == {"record.sqlite"}:  # newer than its count, which a power loss may leave: nothing is forgotten
            with opened(tmp_path) as record:
                assert record.spent == (2.0, 2e-6)
            return
        with pytest.raises(LedgerError, match=r"Expected \d+ writes .*, got \d+: it is an older copy, or was removed"):
            opened(tmp_path)

    def test_with_an_unreadable_count_is_refused_by_name(self, tmp_path):
        self.charged(tmp_path, "a")
        (tmp_path / "record.sqlite-acknowledged").write_text("many")
        with pytest.raises(LedgerError, match="beside it, got something unreadable"):
            opened(tmp_path)

    def test_that_was_made_in_the_middle_of_a_write_is_refused_by_name(self, tmp_path):
        before = self.charged(tmp_path, *map(str, range(40)))["record.sqlite"]
        files = self.charged(tmp_path, *map(str, range(40, 80)))
        after, refused, torn = files["record.sqlite"], 0, 0
        for cut in range(4096, len(after), 4096):  # pages of after, then of before
            mixed = after[:cut] + before[cut:]
            self.put_back(tmp_path, files | {"record.sqlite": mixed})
            said = ""
            try:
                with opened(tmp_path) as record:
                    assert record.spent[0] >= 80.0
                    continue
            except LedgerError as error:
                said = str(error)
            assert re.search("copied in the middle of a write|malformed|it is an older copy", said)
            refused, torn = refused + 1, torn + ("middle" in said)
        assert refused >= torn >= 1

    @pytest.mark.parametrize(("runs", "least"), [(12, 35), pytest.param(70, 200, marks=pytest.mark.slow)])
    def test_of_any_of_its_files_at_any_instant_forgets_nothing_or_is_refused_by_name(
        self, tmp_path, monkeypatch, runs, least
    ):
        """Before each count, after it, and between runs; what all files together cannot tell, the coordinator can."""
        place, instants, known = tmp_path / "own", [], []
        place.mkdir()

        def look():
            instants.append({each.name: each.read_bytes() for each in place.iterdir()})

        write = HighWaterMark.write

        def written(tally, count):
            look()
            write(tally, count)

        monkeypatch.setattr(HighWaterMark, "write", written)
        with opened(place, epsilon=100.0) as record:
            for number in range(runs):
                assert record.agree(agreement(f"run {number}")) is None
                known.append((f"run {number}", 1.0, 1e-6))
                look()
                assert record.keep(f"run {number}", 0, Q, b"answer" * number) == b"answer" * number
        monkeypatch.undo()
        final = {each.name: each.read_bytes() for each in place.iterdir()}
        refused = 0
        for older in instants:
            for kept in (set(), {"record.sqlite"}, {"record.sqlite-acknowledged"}, set(final)):
                self.put_back(place, final | {name: older[name] for name in kept & older.keys()})
                try:
                    with opened(place, epsilon=100.0) as record:
                        record.compare_agreed(known)
                        assert record.spent[0] == runs
                except LedgerError:
                    refused += 1
        assert len(instants) >= least
        assert refused > len(instants)


class TestWhatACoordinatorSays:
    """A witness can only raise what is counted: whoever lies keeps clients away, and lowers nothing."""

    KNOWN = (("r", 0.5, 1e-7), ("s", 2.0, 1e-6))

    def test_of_a_run_that_the_record_lacks_refuses_it_by_name(self, tmp_path):
        with opened(tmp_path) as record:
            record.agree(agreement("r"))
            with pytest.raises(LedgerError, match=r"to know run 's', which .* lacks 1 such: it is an older copy"):
                record.compare_agreed(self.KNOWN)
            assert record.spent == (1.0, 1e-6)

    def test_is_counted_as_spent_where_its_owner_has_nothing_else(self, tmp_path):
        with ClientState(tmp_path / "record.sqlite", epsilon=3.0, delta=1e-3, new_record=True) as record:
            record.compare_agreed(self.KNOWN)
            record.compare_agreed(self.KNOWN)
            assert record.spent == (2.5, 1.1e-6)
            assert record.agree(agreement("s")) == "its terms are not those of its first announcement"
            assert record.may_answer("s", 0)[1] == "the run has ended"
            assert "exceed the lifetime limit 3" in record.agree(agreement("t", epsilon=1.0))
        with opened(tmp_path) as record:
            record.compare_agreed(self.KNOWN)

    @pytest.mark.parametrize(("known", "spent"), [("rs", 1.75), ("r", 1.25), ("", 0.25)])
    def test_of_a_store_without_a_run_that_was_never_answered_gives_it_back(self, tmp_path, known, spent):
        """It has not begun: a coordinator writes who agreed before it asks. A later announcement charges it again."""
        claim = StoreClaim(("0" * 16,), 0, "0" * 64, "", frozenset())
        said = [(run, 1.0, 1e-6) for run in known]
        with opened(tmp_path, epsilon=2.0) as record:
            record.check_store("here", claim, 0)
            for run, epsilon in (("r", 1.0), ("s", 0.5), ("t", 0.25)):
                assert record.agree(agreement(run, epsilon=epsilon)) is None
            assert record.keep("t", 0, Q, b"answer") == b"answer"
            record.compare_agreed([])  # of this very process: it may still begin
            assert record.spent[0] == 1.75
        with opened(tmp_path, epsilon=2.0) as record:
            record.compare_agreed(said)
            assert record.spent[0] == 1.75  # of whose store is not known yet
            record.check_store("here", claim, 0)
            record.compare_agreed(said)
            assert record.spent[0] == spent
            assert (record.keep("r", 0, Q, b"answer") is None) == ("r" not in known)
            assert record.agree(agreement("r")) is None
            assert record.spent[0] == spent + ("r" not in known)


# Clients of one record, killed and started again; each prints what it sends, which happens after the record has it.
# Their answers are new random bytes each time, so an answer made twice shows. Forks, because starting Python is slow.
CLIENTS = DYING + textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from quoron_client.federation.client_state import Agreement, ClientState

    ROUNDS, ANSWER = 2, 20_000
    QUESTION, OTHER = bytes(16), bytes(15) + b"1"

    def work(path, pipe):
        record = ClientState(path, epsilon=1.0, delta=1e-6)
        assert record.agree(Agreement("r", bytes(16), 1.0, 1e-6, ROUNDS)) is None
        for number in range(ROUNDS):
            before = record.recall("r", number, QUESTION)
            answer = before or record.keep("r", number, QUESTION, os.urandom(ANSWER))
            os.write(pipe, b"%d %s\\n" % (number, answer.hex().encode()))
        assert all(record.keep("r", number, OTHER, b"") is None for number in range(ROUNDS + 1))
        assert record.spent == (1.0, 1e-6)

    way, points = sys.argv[2], range(*map(int, sys.argv[3:6]))
    kills = 0
    for point in points:
        path = Path(sys.argv[1]) / f"{point}.sqlite"
        died, first = client(work, path, point, way)
        again, second = client(work, path, points[(7 * point) % len(points)], way)
        whole, last = client(work, path, 0)
        assert not whole
        kills += died + again
        sent = {*first, *second, *last}
        assert sorted(line.split()[0] for line in sent) == [b"%d" % number for number in range(ROUNDS)], point
        for journal in Path(sys.argv[1]).iterdir():
            journal.unlink()
    print(kills)
    """
)


@pytest.mark.parametrize(
    ("way", "points", "least"),
    [("statement", (1, 38, 1), 50), pytest.param("write", (30_000, 80_000, 2_500), 20, marks=pytest.mark.slow)],
)
def test_clients_killed_at_every_write_of_the_record_never_send_two_answers_for_one_round(way, points, least, tmp_path):
    command = [sys.executable, "-c", CLIENTS, str(tmp_path), way, *map(str, points)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= least  # clients that did die

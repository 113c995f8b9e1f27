"""A silo's record charges each of its persons by itself, and what one has spent shows in nobody else's row."""

import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from math import fsum

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federation.dying import DYING
from federation.test_client_record import OTHER, Q, agreement, opened
from quoron_client.federation.client_state import StoreClaim
from quoron_privacy.errors import LedgerError

NOW = "2026-01-02T03:04:05+00:00"


def seats(*numbers):
    return np.array(numbers, np.int64)


@pytest.fixture
def record(tmp_path):
    with opened(tmp_path) as record:
        assert record.register(["anna", "ben", "carla"]).tolist() == [0, 1, 2]
        yield record


class TestNumbers:
    def test_of_whoever_has_left_are_given_to_nobody(self, record):
        record.depart("ben", time=NOW)
        assert record.register(["ben", "dora"]).tolist() == [-1, 3]

    def test_and_charges_are_settled_while_somebody_is_asked(self, tmp_path, record):
        """Else who is new, and when, would tell of a secret cohort: their node was asked, or it was not."""
        assert record.agree(agreement()) is None
        record.close()
        with opened(tmp_path, settled=True) as asked:
            assert asked.register(["dora", "ben"]).tolist() == [-1, 1]
            assert asked.agree(agreement()) is None
            assert "before it was announced" in asked.agree(agreement("other"))
            assert asked.people == 3
        with opened(tmp_path) as told:
            assert told.register(["dora"]).tolist() == [3]
            assert told.charged(seats(0, 3))[:, 0].tolist() == [1.0, 1.0]

    def test_lead_to_no_name_in_the_file(self, tmp_path, record):
        record.register(["somebody of a rare name"])
        with closing(sqlite3.connect(tmp_path / "record.sqlite")) as first:
            digests = {row[0] for row in first.execute("SELECT digest FROM people")}
        assert b"rare name" not in (tmp_path / "record.sqlite").read_bytes()
        (tmp_path / "other").mkdir()
        with opened(tmp_path / "other") as other:  # of another silo, or made anew: nothing links the two
            other.register(["anna", "ben", "carla", "somebody of a rare name"])
        with closing(sqlite3.connect(tmp_path / "other" / "record.sqlite")) as second:
            assert not digests & {row[0] for row in second.execute("SELECT digest FROM people")}

    def test_are_refused_to_the_record_of_one_user_who_has_answered(self, tmp_path):
        with opened(tmp_path) as record:
            assert record.agree(agreement()) is None
            assert record.keep("r", 0, Q, b"answer") == b"answer"
            with pytest.raises(LedgerError, match=r"got that of one user, who has answered\. Give the silo a"):
                record.register(["anna"])

    def test_make_a_record_that_answers_for_nobody_else(self, tmp_path, record):
        assert record.agree(agreement()) is None
        with opened(tmp_path) as alone:  # by a client of one user, which names nobody
            assert alone.keep("r", 0, Q, b"as one user") is None
            assert alone.may_answer("r", 0)[1] == "the client state is that of a silo's persons, not of one user"
        assert not record.may_answer("r", 0, seats(-1, 3, 10**6))[0].any()
        assert record.keep("r", 0, Q, b"answer", seats(3)) is None


class TestOneAnswer:
    def test_is_given_again_whoever_it_was_of(self, record):
        record.agree(agreement())
        record.keep("r", 0, Q, b"rows", seats(0, 2))
        assert record.recall("r", 0, Q) == record.keep("r", 0, Q, b"made anew", seats(1)) == b"rows"
        assert record.keep("r", 0, OTHER, b"rows", seats(0, 1)) is None
        assert record.keep("r", 0, OTHER, b"rows", seats(1)) == b"rows"


class TestAPersonsLimit:
    @pytest.mark.parametrize("asked", [(), (0,), (1, 2), (0, 1, 2)])
    def test_is_a_function_of_terms_whomever_a_secret_cohort_had(self, tmp_path, asked):
        """Who is away in a later run, and whether the silo takes part, may not show whom an earlier one had drawn."""
        with opened(tmp_path, epsilon=1.75) as record:
            record.register(["anna", "ben", "carla"])
            assert record.agree(agreement("secret cohort")) is None
            if asked:
                assert record.keep("secret cohort", 0, Q, b"rows", seats(*asked)) is not None
            record.end("secret cohort")
            assert (
                record.agree(agreement("too much")) == "its ε = 1 and the 1 spent before exceed the lifetime limit 1.75"
            )
            assert record.agree(agreement("later", epsilon=0.75)) is None
            assert record.may_answer("later", 0, seats(0, 1, 2))[0].all()

    def test_of_a_run_that_was_agreed_to_again_stays_though_it_has_not_begun(self, tmp_path):
        """A client that was started again and then loses its connection has agreed, and is not asked to once more."""
        for process in range(2):
            with opened(tmp_path) as record:
                record.register(["anna"])
                record.check_store("a:1", StoreClaim(("0" * 16,), 0, "0" * 64, "", frozenset()), 0)
                record.compare_agreed([])
                assert record.agree(agreement()) is None
                if process:
                    record.compare_agreed([])
                assert record.may_answer("r", 0, seats(0))[0].all()

    def test_leaves_it_out_of_the_answer_and_others_in(self, tmp_path, record):
        assert record.agree(agreement("before")) is None
        record.end("before")
        assert record.register(["dora"]).tolist() == [3]
        record.close()
        with opened(tmp_path, epsilon=1.5) as record:
            record.register(["anna", "ben", "carla", "dora"])
            assert record.agree(agreement("after")) is None
            assert record.may_answer("after", 0, seats(0, 1, 2, 3))[0].tolist() == [False] * 3 + [True]
            assert record.keep("after", 0, Q, b"rows", seats(2, 3)) is None
            assert record.may_answer("after", 0, seats(2))[1] == "the lifetime limit does not allow the run"
            assert record.keep("after", 0, Q, b"rows", seats(3)) == b"rows"
            assert record.charged(seats(2, 3)).tolist() == [[1.0, 1e-6]] * 2

    def test_of_local_reports_is_spent_by_a_persons_own(self, record):
        record.agree(agreement(participations=2))
        assert record.keep("r", 0, Q, b"report", seats(0), spends=(0.75, 0.0)) == b"report"
        assert record.keep("r", 0, OTHER, b"report", seats(1), spends=(0.25, 0.0)) == b"report"
        assert record.may_answer("r", 1, seats(0, 1, 2), spends=(0.5, 0.0))[0].tolist() == [False, True, True]


@dataclass
class OneByOne:
    """The slow reference: a record for each person, as its own client would keep it."""

    limit: float
    runs: dict = field(default_factory=dict)  # ε, participations, who is charged, and how many answers each has given
    given: set = field(default_factory=set)
    gone: set = field(default_factory=set)

    def spent(self, person):
        return [epsilon for epsilon, _, charged, _ in self.runs.values() if person in charged]

    def agree(self, run, epsilon, most, people):
        fits = {each for each in range(people) if fsum([*self.spent(each), epsilon]) <= self.limit}
        self.runs[run] = epsilon, most, fits - self.gone, Counter()
        return bool(fits - self.gone)

    def come(self, person):
        for epsilon, _, charged, _ in self.runs.values():
            if charged and fsum([*self.spent(person), epsilon]) <= self.limit:
                charged.add(person)

    def may(self, run, round, person):
        _, most, charged, answers = self.runs[run]
        open_ = (run, round) not in self.given and person not in self.gone
        return open_ and person in charged and answers[person] < most


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_each_person_is_judged_as_by_a_record_of_its_own(tmp_path_factory, data):
    people, folder = 4, tmp_path_factory.mktemp("record")
    reference = OneByOne(limit=data.draw(st.sampled_from([0.3, 0.5, 0.7])))
    with opened(folder, epsilon=reference.limit) as record:
        for step in range(12):
            what = data.draw(st.sampled_from(["agree", "agree", "come", "leave", *["ask"] * 5]))
            if what == "come" and record.people < people:
                reference.come(record.people)
                record.register([str(record.people)])
            elif what == "agree" and record.people:
                epsilon, most = data.draw(st.sampled_from([0.1, 0.2])), data.draw(st.integers(1, 3))
                agreed = record.agree(agreement(f"{step}", epsilon=epsilon, participations=most)) is None
                assert agreed == reference.agree(f"{step}", epsilon, most, record.people)
            elif what == "leave" and record.people:
                reference.gone.add(person := data.draw(st.integers(0, record.people - 1)))
                record.depart(str(person), time=NOW)
            elif what == "ask" and reference.runs and record.people:
                run = data.draw(st.sampled_from(sorted(reference.runs)))
                asked = seats(*sorted(data.draw(st.sets(st.integers(0, record.people - 1), min_size=1))))
                expected = [reference.may(run, step, person) for person in asked.tolist()]
                may = record.may_answer(run, step, asked)[0]
                assert may.tolist() == expected
                assert (record.may_answer(run, step, asked)[1] is None) == any(expected)
                assert record.keep(run, step, Q, b"rows", asked[may]) == (b"rows" if any(expected) else None)
                reference.given |= {(run, step)} if any(expected) else set()
                for person in asked[may].tolist():
                    reference.runs[run][3][person] += 1
        charged = [fsum(reference.spent(each)) for each in range(record.people)]
        assert record.charged(np.arange(record.people))[:, 0].tolist() == charged


class TestAPersonWhoLeaves:
    def test_is_in_no_answer_any_more_of_whichever_run(self, record):
        for run in ("going on", "later"):
            record.agree(agreement(run, participations=3))
        record.keep("going on", 0, Q, b"rows", seats(0, 1))
        assert record.depart("ben", time=NOW) == (1, NOW, 1)
        for run in ("going on", "later"):
            assert record.may_answer(run, 1, seats(0, 1, 2))[0].tolist() == [True, False, True]
            assert record.keep(run, 1, Q, b"rows", seats(0, 1)) is None
        assert record.charged(seats(1)).tolist() == [[2.0, 2e-6]]

    def test_is_in_no_answer_that_was_kept(self, tmp_path, record):
        """Of two answers to one question, with and without a row, the difference would be the row."""
        record.agree(agreement(participations=3))
        secret = b"a row of ben's" * 400
        record.keep("r", 0, Q, secret, seats(0, 1))
        record.keep("r", 1, Q, b"without", seats(0, 2))
        record.depart("ben", time=NOW)
        assert record.recall("r", 0, Q) is None
        assert record.keep("r", 0, Q, b"anew", seats(0)) is None
        assert record.recall("r", 1, Q) == b"without"
        assert secret[:28] not in (tmp_path / "record.sqlite").read_bytes()

    def test_leaves_once_and_again_is_the_same(self, record):
        first = record.depart("ben", time=NOW)
        assert record.depart("ben", time="2027-01-01T00:00:00+00:00") == first
        assert (record.people, record.departures) == (3, [NOW])

    def test_may_be_known_to_another_process_only_at_its_next_write(self, tmp_path, record):
        record.agree(agreement(participations=2))
        with opened(tmp_path) as beside:
            assert record.may_answer("r", 0, seats(0, 1))[0].all()  # and its rows are computed now
            beside.depart("ben", time=NOW)
        assert record.keep("r", 0, Q, b"rows", seats(0, 1)) is None
        assert record.keep("r", 0, Q, b"rows", seats(0)) == b"rows"


def rows_of(folder):
    with closing(sqlite3.connect(folder / "record.sqlite")) as database:
        return [
            database.execute(f"SELECT * FROM {table}").fetchall() for table in ("state", "runs", "answers", "people")
        ]


class TestACopyOfASilosRecord:
    def test_with_pages_of_before_is_refused_by_name(self, tmp_path, record):
        people = 20_000
        record.register([f"p{each}" for each in range(people)])
        record.agree(agreement(participations=2))
        draws = np.random.default_rng(3).random((2, people)) < 0.5
        files = []
        for number, draw in enumerate(draws):
            record.keep("r", number, bytes(16), b"rows", np.flatnonzero(draw))
            files.append((tmp_path / "record.sqlite").read_bytes())
        record.close()
        before, after = files
        mixed = [
            after[:cut] + before[cut : cut + 4096] + after[cut + 4096 :]
            for cut in range(4096, len(before), 4096)
            if before[cut : cut + 4096] != after[cut : cut + 4096]
        ]
        (tmp_path / "record.sqlite").write_bytes(after)
        newer, refused = rows_of(tmp_path), 0
        for each in mixed:
            (tmp_path / "record.sqlite").write_bytes(each)
            with suppress(LedgerError):
                opened(tmp_path).close()
                assert rows_of(tmp_path) == newer, "of a page that is free"
                continue
            refused += 1
        assert refused >= 4

    def test_of_before_somebodys_first_answer_has_charged_everybody(self, tmp_path, record):
        record.agree(agreement("r", participations=2))
        record.close()
        files = {each: each.read_bytes() for each in tmp_path.iterdir()}
        with opened(tmp_path) as later:
            later.register(["anna", "ben", "carla"])
            assert later.keep("r", 0, Q, b"rows", seats(0)) == b"rows"
        for each, content in files.items():  # the record and its count
            each.write_bytes(content)
        with opened(tmp_path, epsilon=1.5) as again:
            again.compare_agreed([("r", 1.0, 1e-6)])
            assert again.charged(seats(0, 1, 2))[:, 0].tolist() == [1.0] * 3


class TestAFlippedBit:
    """Of a disk, not of somebody who could compute the digests again."""

    @pytest.fixture
    def file(self, tmp_path, record):
        for run in ("over", "open"):
            record.agree(agreement(run, participations=3))
            record.keep(run, 0, Q, b"of two", seats(0, 2), tasks=b"d" * 16)
            record.keep(run, 0, OTHER, b"of one", seats(1), tasks=b"d" * 16)
        record.end("over")
        record.depart("carla", time=NOW)
        record.close()
        return tmp_path / "record.sqlite"

    def test_of_who_is_in_a_kept_answer_is_refused_by_name(self, tmp_path, file):
        with closing(sqlite3.connect(file)) as database:
            held = [
                each
                for row in database.execute("SELECT persons, tasks FROM answers WHERE persons NOTNULL")
                for each in row
            ]
        whole = file.read_bytes()
        assert len(held) == 4
        for each in held:
            start = whole.index(each)
            for bit in range(8 * len(each)):
                flipped = bytearray(whole)
                flipped[start + bit // 8] ^= 1 << bit % 8
                file.write_bytes(flipped)
                with pytest.raises(LedgerError, match="got one that was damaged"):
                    opened(tmp_path)

    def test_anywhere_is_refused_by_name_or_changes_nothing_that_is_charged_or_answered(self, tmp_path, file):
        def said():
            with opened(tmp_path) as record:
                persons = [(each.digest, each.persons.tolist()) for each in record.kept("open", 0)]
                known = record.known(["anna", "ben", "carla"])[0].tolist()
                record.register([])
                may = record.may_answer("open", 1, seats(0, 1, 2))[0].tolist()
                return persons, known, may, record.charged(seats(0, 1, 2)).tolist()

        whole, before, refused = file.read_bytes(), said(), 0
        for place in range(100, len(whole), 97):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << place % 8
            file.write_bytes(flipped)
            try:
                assert said() == before, place
            except LedgerError:
                refused += 1
        assert refused >= 20


# As in test_client_record: clients of one silo's record, killed and started again. A person leaves on the way.
CLIENTS = DYING + textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import numpy as np
    from quoron_client.federation.client_state import Agreement, ClientState

    NOW = "2026-01-02T03:04:05+00:00"

    def work(path, pipe):
        with ClientState(path, epsilon=1.0, delta=1e-6) as record:
            seats = record.register(["anna", "ben", "carla"])
            gone = seats[1] < 0
            assert record.agree(Agreement("r", bytes(16), 1.0, 1e-6, 2)) is None
            for number in range(2):
                before = record.recall("r", number, bytes(16))
                numbers = np.arange(3)
                may = numbers[record.may_answer("r", number, numbers)[0]]
                answer = before or record.keep("r", number, bytes(16), bytes([1 in may]) + os.urandom(9000), may)
                if answer is not None:
                    os.write(pipe, b"%d %d %d %s\\n" % (number, gone, answer[0], answer.hex().encode()))
            record.depart("ben", time=NOW)
            assert record.recall("r", 0, bytes(16)) is None or not record.recall("r", 0, bytes(16))[0]
            assert record.register(["carla", "ben", "anna"]).tolist() == [2, -1, 0]
            assert (record.charged(np.arange(3)) <= (1.0, 1e-6)).all()

    points = range(*map(int, sys.argv[2:5]))
    kills = 0
    for point in points:
        path = Path(sys.argv[1]) / f"{point}.sqlite"
        died, first = client(work, path, point)
        again, second = client(work, path, points[(7 * point) % len(points)])
        whole, last = client(work, path, 0)
        assert not whole
        kills += died + again
        sent = {tuple(line.split()) for line in first + second + last}
        answers = {(number, answer) for number, _, _, answer in sent}
        assert len(answers) <= 2, point  # never two for one round
        assert not [each for each in sent if each[1] == each[2] == b"1"], point  # none with ben once he has left
        for journal in Path(sys.argv[1]).iterdir():
            journal.unlink()
    print(kills)
    """
)


@pytest.mark.programs
def test_silos_killed_at_every_write_send_one_answer_a_round_and_nobodys_who_has_left(tmp_path):
    command = [sys.executable, "-c", CLIENTS, str(tmp_path), "1", "75", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 40  # clients that did die

"""A silo's client says of each person what a client of that person's own would, once a round, whatever is asked."""

import asyncio
import json
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from federation.conversation import GRADIENT, RANGE, TERMS, VECTOR, D, made
from one_answer import answer_from_wire
from quoron.cli.app import invoke
from quoron_client.federation import account as accounts
from quoron_client.federation import run_client
from quoron_client.federation.client_state import Agreement, ClientState
from quoron_client.federation.own_table import names_in
from quoron_client.federation.work import Worker
from quoron_client.protocol import wire
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, LocalSGD, PlacedGradient, Question, Status
from quoron_privacy.errors import ConfigError, DataError, LedgerError, WireError
from quoron_privacy.means.clipping import ChangeSum, ClippedSum
from quoron_privacy.means.free_counts import (
    ColumnSum,
    Contrasts,
    ContrastSum,
    NormCountSum,
    ShapedMomentSum,
    VectorLengthSum,
)
from quoron_privacy.release import Reduction
from quoron_protos.v1 import federation_pb2 as pb

FIRST, PEOPLE = 40, 6  # five persons in the file, one place more
NAMES = ["ada", "ben", "cleo", "dan", "eve"]
TWO = np.array([1, 4])
SEED = 3
PUBLIC = ("central-broadcast", "public-participation")


def table(names=NAMES, seed=2) -> pd.DataFrame:
    """Rows of each person by the name alone; those of the last cannot be used."""
    rows = []
    for name in names:
        rng = np.random.default_rng([seed, *name.encode()])
        for _ in range(1 + len(name) % 3):
            age = "?" if name == "eve" else rng.uniform(0, 100)
            rows.append({"who": name, "age": age, "weight": rng.uniform(0, 200), "sick": rng.integers(0, 2)})
    return pd.DataFrame(rows)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    table().sample(frac=1, random_state=1).to_csv(path, index=False)
    return path


def announced(**changes: object) -> pb.Announcement:
    return pb.Announcement(run="r", description=json.dumps(TERMS | {"simulation": True} | changes))


def owner(path: Path, **changes: object):
    options = {"user_column": "who", "people": PEOPLE, "simulation_seed": SEED, "lifetime_epsilon": 8.0}
    return made(path, 1, **(options | changes))


def opened(config) -> ClientState:
    return ClientState(config.record, epsilon=config.lifetime_epsilon, delta=config.lifetime_delta)


@contextmanager
def at_work(config, **terms: object):
    """A silo's client that has heard of the run."""
    with opened(config) as record:
        worker = Worker.of(config, record)
        worker.consider(announced(**terms), FIRST)
        yield worker


def question(task, persons, number=0, people=PEOPLE, reduction=None) -> pb.Question:
    persons = np.asarray(persons)
    body = wire.Body.of(task, wire.bits_of(persons, people=people), wire.reduction_to_wire(reduction))
    message = wire.question_head(body, run="r", round=number, user=FIRST, seconds=60)
    message.MergeFromString(body.data)
    return message


def rows(sent: bytes, task, asked: int) -> Answers:
    return wire.rows_from_wire(pb.Answer.FromString(sent), task.answer_shape(D), asked)


def alone(tmp_path: Path, place: int, task, number=0, **terms: object) -> tuple[np.ndarray, Status]:
    """What a client of a person's own says."""
    path = tmp_path / f"{NAMES[place]}.csv"
    everybody = table()
    everybody[everybody.who == NAMES[place]].drop(columns="who").to_csv(path, index=False)
    config = replace(owner(path, record=path.with_suffix(".sqlite")), user_column=None, people=None)
    with opened(config) as record:
        worker = Worker(config, record)
        assert worker.consider(announced(**terms), FIRST + place).takes_part
        asked = wire.question_to_wire(Question(number, np.array([0]), task), 0, run="r", user=FIRST + place, seconds=60)
        return answer_from_wire(pb.Answer.FromString(worker.reply(asked)), task.answer_shape(D))


CONVOLVED = VECTOR.gradient
PLACED = PlacedGradient(GRADIENT.points, np.array([[0, 2], [1, -1], [0, 1], [2, 0], [0, -1], [1, 0]]), 2.0)
STARTS = LocalSGD(np.arange(18.0).reshape(6, 3) / 20, 0.1, L2Ball(3.0))
COORDINATES = replace(RANGE, coordinates=np.array([0, 1, 2, 3, 0, 1]))
TASKS = {
    "gradient": (GRADIENT, {}),
    "with own directions": (CONVOLVED, {}),
    "of own places": (PLACED, {}),
    "from own starts": (STARTS, {}),
    "of own coordinates": (COORDINATES, {"trust_model": "local"}),
    "report": (VECTOR, {"trust_model": "local"}),
}


@pytest.mark.parametrize("kind", TASKS)
def test_every_row_is_that_of_a_client_of_its_own(kind: str, file: Path, tmp_path: Path) -> None:
    task, terms = TASKS[kind]
    with opened(config := owner(file)) as record:
        worker = Worker.of(config, record)
        assert worker.people == PEOPLE
        assert worker.consider(announced(**terms), FIRST).takes_part
        asked = np.array([0, 1, 3, 4])
        found = rows(worker.reply(question(task.part(asked), asked)), task, 4)
        nobody = rows(worker.reply(question(task.part(np.array([5])), [5], 1)), task, 1)
    for place, values, status in zip(asked, found.values, found.status, strict=True):
        expected, become = alone(tmp_path, place, task.part(np.array([place])), **terms)
        np.testing.assert_array_equal(values, expected)
        assert status == become
    assert nobody.status.tolist() == [Status.MISSING], "a place without a person"


def test_nobody_is_in_two_sums_of_a_round(file: Path) -> None:
    """A coordinator that comes back draws anew: of two sums the difference would be a row."""
    reduction = ClippedSum(0.3, 10)
    with at_work(owner(file), silo_sums=True) as worker:

        def told(persons, number=0, reduction=reduction) -> bytes:
            return worker.reply(question(GRADIENT, persons, number, reduction=reduction))

        def of(sent: bytes) -> tuple[list[int], int]:
            sums = wire.sums_from_wire(pb.Answer.FromString(sent), D, 6, reduction)
            return sums.total.tolist(), sums.answered

        one = told([0, 1])
        assert told([0, 1]) == one
        assert of(told([1, 2])) == of(told([2], 1)), "without the one who is in the first"
        assert told([0, 1]) == one
        assert of(told([0, 1, 2])) == ([0, 0, 0], 0)
        assert pb.Answer.FromString(told([3], reduction=None)).status == pb.STATUS_MISSING, "no row beside a sum"
    with at_work(owner(file), silo_sums=True) as again:
        assert again.reply(question(GRADIENT, [0, 1], reduction=reduction)) == one, "as the record has it"


L = np.array([[1.0, 0.25], [0.0, 2.0]])
CONTRASTS = Contrasts(2, 3)
SUMS = {
    "change": (ChangeSum(ClippedSum(0.3, 10)), 2),
    "lengths": (VectorLengthSum(10, L, 2.0), 4),
    "of classes": (ContrastSum(CONTRASTS, NormCountSum(1.3, 10, L, np.array([0.1, 0.2, 0.0, 0.3]))), 6),
    "lengths of classes": (ContrastSum(CONTRASTS, VectorLengthSum(10, L, 2.0)), 6),
    "columns": (ColumnSum(10, np.array([[0.1, -0.2], [0.5, 2.0]]), 1.5, True), 6),
    "shaped": (ShapedMomentSum(10, L, 0.5), 3),
}


@pytest.mark.parametrize("classes", [0, 1, 2**32 - 1])
def test_contrasts_of_impossible_classes_take_no_time(classes: int) -> None:
    sent = wire.reduction_to_wire(SUMS["lengths of classes"][0])
    sent.classes = classes
    with pytest.raises((WireError, ConfigError), match="Expected"):
        wire.reduction_from_wire(sent).of(np.zeros((0, 6)), np.zeros(0, bool))


@pytest.mark.parametrize(
    ("announced_sums", "odd"),
    [
        (False, ClippedSum(0.3, 10)),
        (True, ClippedSum(0.3, 10, np.zeros(5))),
        (True, ShapedMomentSum(10, np.eye(5), 1.0)),
    ],
)
def test_sums_that_were_not_announced_or_rows_do_not_have_are_refused_before_anything_is_kept(
    announced_sums: bool, odd: Reduction, file: Path
) -> None:
    """They come from outside: none may end a client."""
    with at_work(owner(file), silo_sums=announced_sums) as worker:
        sent = worker.reply(question(GRADIENT, np.arange(6), reduction=odd))
        assert pb.Answer.FromString(sent).status == pb.STATUS_MISSING
        assert not worker.record.kept("r", 0)


def test_who_has_answered_says_the_same_again_and_others_may_be_asked_in_the_same_round(file: Path) -> None:
    """A coordinator that was started again draws another cohort: the client was started again, too."""
    other = replace(GRADIENT, points=-GRADIENT.points)
    with at_work(owner(file)) as worker:
        first = rows(worker.reply(question(GRADIENT, [0, 1])), GRADIENT, 2)
    file.write_text(table(seed=9).to_csv(index=False))  # what is said once stays
    with at_work(owner(file)) as worker:
        again = rows(worker.reply(question(GRADIENT, [0, 1])), GRADIENT, 2)
        np.testing.assert_array_equal(again.values, first.values)
        both = rows(worker.reply(question(GRADIENT, [1, 2])), GRADIENT, 2)
        np.testing.assert_array_equal(both.values[0], first.values[1])
        assert both.status.tolist() == [0, 0]
        third = rows(worker.reply(question(other, [0, 1, 3])), GRADIENT, 3)
        assert third.status.tolist() == [Status.MISSING, Status.MISSING, 0], "one task a round"


def test_who_comes_later_is_in_no_answer_to_a_question_that_has_one(file: Path) -> None:
    with at_work(owner(file)) as worker:
        first = worker.reply(question(GRADIENT, [0, 5]))
        assert rows(first, GRADIENT, 2).status.tolist() == [0, Status.MISSING]
    file.write_text(table([*NAMES, "flo"]).to_csv(index=False))
    with at_work(owner(file)) as worker:
        assert worker.reply(question(GRADIENT, [0, 5])) == first
        both = rows(worker.reply(question(GRADIENT, [0, 1, 5])), GRADIENT, 3)
    assert both.status.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(both.values[0], rows(first, GRADIENT, 2).values[0])


def test_a_round_with_an_answer_that_was_erased_is_over_for_the_others_too(file: Path) -> None:
    with at_work(owner(file)) as worker:
        worker.reply(question(GRADIENT, [0, 1]))
        kept = worker.reply(question(GRADIENT, [2]))
        accounts.depart(worker.record, worker.owner.record, "ben")
        for asked in ([0, 1], [3]):
            answer = pb.Answer.FromString(worker.reply(question(GRADIENT, asked)))
            assert answer.status == pb.STATUS_MISSING
        assert worker.reply(question(GRADIENT, [2])) == kept


def test_what_is_of_its_own_is_not_asked_twice(file: Path) -> None:
    with at_work(owner(file)) as worker:
        first = rows(worker.reply(question(STARTS.part(TWO), TWO)), STARTS, 2)
        moved = replace(STARTS, starts=STARTS.starts + 0.01)
        moved.starts[2] = STARTS.starts[4]
        mixed = replace(STARTS, starts=np.stack([STARTS.starts[1], moved.starts[3]]))
        again = rows(worker.reply(question(mixed, [1, 3])), STARTS, 2)
        np.testing.assert_array_equal(again.values[0], first.values[0])
        changed = rows(worker.reply(question(moved.part(np.array([1, 2])), [1, 2])), STARTS, 2)
        assert changed.status.tolist() == [Status.MISSING, 0]


@pytest.mark.parametrize("asked", [[6], [0, 7]])
def test_persons_of_others_are_not_answered_for(asked: list[int], file: Path) -> None:
    with at_work(owner(file)) as worker:
        for people in (8, 100):
            answer = pb.Answer.FromString(worker.reply(question(GRADIENT, asked, people=people)))
            assert answer.status == pb.STATUS_MISSING
            assert not answer.statuses


def test_a_silo_of_one_person_sends_the_bytes_of_a_client(file: Path, tmp_path: Path) -> None:
    file.write_text(table(["ben"]).to_csv(index=False))
    asked = wire.question_to_wire(Question(0, np.array([0]), GRADIENT), 0, run="r", user=FIRST, seconds=60)
    table(["ben"]).drop(columns="who").to_csv(tmp_path / "ben.csv", index=False)
    own = replace(owner(tmp_path / "ben.csv", record=tmp_path / "ben.sqlite"), user_column=None, people=None)
    with opened(config := owner(file, people=1)) as record, opened(own) as other:
        several, one = Worker.of(config, record), Worker(own, other)
        for worker in (several, one):
            assert worker.consider(announced(), FIRST).takes_part
        assert several.reply(asked) == one.reply(asked)


def test_where_who_answers_is_told_everybody_has_answered_and_what_is_late_is_zeros_that_nothing_is_computed_for(
    file: Path, monkeypatch
) -> None:
    """How long computing takes is a function of the items: it may not show in when zeros leave."""
    terms = {"participation": "public", "seconds": 60.0, "participations": 9}
    with at_work(owner(file, accept_trust_models=PUBLIC), **terms) as worker:
        found = rows(worker.reply(question(GRADIENT, np.arange(6), 1)), GRADIENT, 6)
        assert found.status.tolist() == [Status.ANSWERED] * 6
        assert found.values.any(axis=1).tolist() == [True, True, True, True, False, False]
        empty = rows(worker.reply(question(GRADIENT, [5], 2)), GRADIENT, 1)
        assert empty.status.tolist() == [Status.ANSWERED], "that a place is empty shows nowhere"
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "_answers", lambda *given: pytest.fail("it was computed"))
            late = rows(worker.reply(question(GRADIENT, np.arange(6), 3), ready=False), GRADIENT, 6)
        assert late.status.tolist() == [Status.ANSWERED] * 6
        assert not late.values.any()
        again = rows(worker.reply(question(GRADIENT, np.arange(6), 3)), GRADIENT, 6)
        assert not again.values.any(), "one answer a round"


@pytest.mark.parametrize("kind", ["gradient", "report"])
def test_a_question_that_nobody_can_answer_ends_no_conversation(kind: str, file: Path, monkeypatch) -> None:
    """As a client of one user: it says of each that there is no answer, and the coordinator learns of no error."""
    task, terms = TASKS[kind]

    def fails(*given: object) -> Answers:
        raise ArithmeticError

    monkeypatch.setattr(Worker, "_answers", fails)
    with at_work(owner(file), **terms) as worker:
        said = rows(worker.reply(question(task, np.arange(6))), task, 6)
    assert said.status.tolist() == [Status.MISSING] * 6
    assert not said.values.any()


def test_what_was_ready_meanwhile_is_what_is_said(file: Path, monkeypatch) -> None:
    """Zeros that are late are not said beside an answer that was kept: one answer a round."""
    with at_work(owner(file, accept_trust_models=PUBLIC), participation="public", seconds=60.0) as worker:
        worker.prepare("r")
        asked, keep, first = question(GRADIENT, np.arange(6)), ClientState.keep, []

        def raced(self: ClientState, *given: object, **named: object) -> bytes | None:
            if not first:
                first.append(b"")
                first.append(worker.reply(asked))
            return keep(self, *given, **named)

        monkeypatch.setattr(ClientState, "keep", raced)
        late = worker.reply(asked, ready=False)
        assert rows(late, GRADIENT, 6).values.any()
        assert late == first[1]


def test_more_persons_than_were_declared_are_an_error_before_anything_is_sent(file: Path) -> None:
    with pytest.raises(DataError, match="Expected at most 4 users in column 'who', got 5"):
        asyncio.run(run_client(owner(file, people=4)))


def test_a_file_that_may_not_be_looked_at_needs_the_number_of_people(file: Path) -> None:
    with pytest.raises(ConfigError, match="Expected --set users=N with --accept public-participation"):
        asyncio.run(run_client(owner(file, people=None, accept_trust_models=PUBLIC)))


ODD_NAMES = ["Ødegård, Anna", "17", "8.5", "=cmd|x"]
TABLE = 'who,x\n"Ødegård, Anna",1\n17.0,2\n8.50,3\n=cmd|x,4\nzoe,5\n'
PROMISE = {"algorithm": "tracking-srgd", "statement": "(1, 1e-06)-DP <b>, by docs/privacy/tracking-srgd.md#t1."}


PROMISE |= {
    "theorem": "docs/privacy/tracking-srgd.md#t1",
    "adjacency": "replace-one",
    "trust_model": "central-broadcast",
}


SECRET = b"rows of persons" * 99


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A silo of four that has answered in two runs, in the second with two of its persons."""
    path = tmp_path / "silo.sqlite"
    with ClientState(path, epsilon=8.0, delta=1e-4) as record:
        seats = record.register(ODD_NAMES)
        for run, those in (("spring", seats), ("summer", seats[[0, 2]])):
            promise = json.dumps(PROMISE | {"epsilon": 1.0, "delta": 1e-6})
            assert record.agree(Agreement(run, b"t", 1.0, 1e-6, 2, promise=promise)) is None
            assert record.keep(run, 0, b"question", SECRET, those) == SECRET
        record.end("spring")
    return path


def opened_record(path: Path) -> ClientState:
    return ClientState(path, epsilon=8.0, delta=1e-4)


class TestTheAccount:
    def test_says_what_each_person_has_spent_by_its_name_and_writes_nothing(self, kept: Path) -> None:
        before = kept.read_bytes()
        with opened_record(kept) as record:
            found = accounts.of_each(record, [*ODD_NAMES, "zoe"])
        assert [each.epsilon for each in found] == [2.0, 2.0, 2.0, 2.0, 0.0]
        assert {each.runs for each in found[:4]} == {("spring", "summer")}
        assert [each.answered for each in found[:2]] == [("spring", "summer"), ("spring",)]
        assert [each.number for each in found] == [0, 1, 2, 3, None]
        assert kept.read_bytes() == before


async def test_of_a_real_run_is_by_the_names_of_the_silos_own_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client's record, read by the command beside its table; one person has left meanwhile, and is told so."""
    from federation.crowd import complete, coordinator, specification
    from federation.silos import clients_of, silo_config, write_silos

    wanted = specification("dp-sgd-poisson", silos=(7, 12, 1))
    paths = write_silos(tmp_path, wanted.silos)
    async with (
        coordinator(tmp_path, max_users_per_client=100) as running,
        clients_of([silo_config(path, running.listen) for path in paths], running),
    ):
        await running.scheduler.submit(wanted.as_text())
        await complete(running)
    table, kept = ["--data", str(paths[1]), "--user", "who"], ["--state", str(paths[1].with_suffix(".sqlite"))]
    first = names_in(paths[1], "who")[0]
    assert invoke(["admin", "silo", "forget", first, *kept, "--yes"]) == 0
    capsys.readouterr()
    assert invoke(["admin", "silo", "show", *table, *kept, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["number"] for each in told] == list(range(12))
    assert {each["epsilon"] > 0 for each in told} == {True}
    assert [each["left"] is None for each in told] == [False] + [True] * 11
    assert {tuple(each["runs"]) for each in told} == {("trial",)}
    assert any(each["answered"] for each in told)
    assert invoke(["admin", "silo", "show", *kept, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert "person of one silo" in run["statement"]
    assert (run["persons"], run["persons_charged"]) == (12, 12)


class TestTheAccountInJson:
    def test_has_no_name_and_no_digest_unless_asked(
        self, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["admin", "silo", "show", "--state", str(kept), "--json"]
        assert invoke(words) == 0
        told = capsys.readouterr().out
        with closing(sqlite3.connect(kept)) as record:
            digests = [row[0] for row in record.execute("SELECT digest FROM people")]
            (salt,) = record.execute("SELECT salt FROM state").fetchone()
        assert json.loads(told).keys() == {"made", "record", "persons", "departures", "spending", "runs"}
        assert not any(name in told for name in ("Ødegård", "=cmd"))
        assert not any(each.hex() in told for each in [*digests, salt])
        (tmp_path / "table.csv").write_text(TABLE)
        assert invoke([*words, "--data", str(tmp_path / "table.csv"), "--user", "who"]) == 0
        assert {line["name"]: line["epsilon"] for line in json.loads(capsys.readouterr().out)} == {
            "17.0": 0.0,  # text in a table is its name as it stands
            "8.50": 0.0,
            "=cmd|x": 2.0,
            "Ødegård, Anna": 2.0,
            "zoe": 0.0,
        }

    def test_of_nothing_or_of_half_a_table_is_a_named_error(self, kept: Path, tmp_path: Path) -> None:
        assert invoke(["admin", "silo", "show", "--state", str(kept), "--user", "who"]) == 2
        assert invoke(["admin", "silo", "show", "--state", str(tmp_path / "none")]) == 2


class TestAPersonWhoLeaves:
    def test_is_shown_what_would_be_done_and_gets_a_receipt(
        self, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words, receipt = ["admin", "silo", "forget", ODD_NAMES[0], "--state", str(kept)], tmp_path / "receipt.json"
        before = kept.read_bytes()
        assert invoke(words) == 0
        assert kept.read_bytes() == before
        assert invoke([*words, "--yes", "--receipt", str(receipt)]) == 0
        told = json.loads(receipt.read_text())
        assert (told["epsilon"], told["answers"], told["number"]) == (2.0, 1, 0)
        assert "erase this person's rows there" in capsys.readouterr().out
        assert SECRET not in kept.read_bytes()
        assert invoke([*words, "--yes", "--receipt", str(receipt)]) == 0  # where the first ended before its receipt
        assert json.loads(receipt.read_text())["left"] == told["left"]
        assert invoke(["admin", "silo", "show", ODD_NAMES[0], "--state", str(kept)]) == 0
        assert f"has left, {told['left'][:10]}" in capsys.readouterr().out

    def test_whom_the_record_does_not_know_is_a_named_error(self, kept: Path) -> None:
        with (
            opened_record(kept) as record,
            pytest.raises(ConfigError, match=r"got 'zoe'\. Write the name as the table does"),
        ):
            accounts.depart(record, kept, "zoe")

    def test_stays_away_where_an_older_copy_is_put_back(self, kept: Path) -> None:
        older = kept.read_bytes()
        with opened_record(kept) as record:
            accounts.depart(record, kept, "17")
        kept.write_bytes(older)
        with pytest.raises(LedgerError, match="it is an older copy"):
            opened_record(kept)

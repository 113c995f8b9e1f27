"""Books of the helper that are put back: every time is one more copy, and whoever asks hears what is promised now."""

import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from quoron.model import Model
from quoron_client.protocol.masked import check_signature
from quoron_privacy.errors import LedgerError, LedgerUnavailable
from quoron_privacy.two_servers.noise import FIRST
from quoron_protos.v1 import helper_pb2 as pb
from quoron_server.books.backup import charge_helped, copies_of, together
from quoron_server.books.database import Database
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.helper.desk import listed
from quoron_server.helper.keys import Keys
from quoron_server.helper.runs import Refused, Uncharged
from quoron_server.runs import charge_of
from quoron_server.service import helping
from quoron_server.service.helping import HelperAway, HelperDisagrees, Helping
from quoron_server.service.records import Records
from quoron_server.wording import plan_json
from server.helper_scene import LEADER, SIGNING, Leader, opened, plan_of, real, request


def copied(place: Path, to: Path) -> None:
    """The database with its count, as a backup has it, and not the folder of keys."""
    to.mkdir(exist_ok=True)
    for path in place.glob("helper.sqlite*"):
        shutil.copy(path, to)


def put_back(place: Path, kept: Path) -> None:
    for path in kept.iterdir():
        shutil.copy(path, place)


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    """A run of two lists, of whose books before either there is a copy in "kept"."""
    with opened(tmp_path) as helped:
        made = Leader(real(), helped)
    copied(tmp_path, tmp_path / "kept")
    with opened(tmp_path) as made.helped:
        made.ask(0, [made.masked(0, 0)[0]])
        made.ask(1, [made.masked(1, 1)[0]])
    return made


def test_the_same_backup_put_back_again_and_again_is_one_more_copy_each_time(leader: Leader, tmp_path: Path) -> None:
    """The backup itself says 1 every time: the keys' folder, which is in none, counts."""
    for copies in (2, 3, 4):
        put_back(tmp_path, tmp_path / "kept")
        with opened(tmp_path) as leader.helped:
            leader.chain = FIRST
            with pytest.raises(Refused, match="put back"):
                leader.ask(0, [])
            assert leader.helped.go_on("trial") == copies
            assert leader.ask(0, []).copies == copies


def test_no_new_list_is_answered_to_a_coordinator_that_has_not_charged_the_copies(
    leader: Leader, tmp_path: Path
) -> None:
    """Put back while the coordinator went on: it had the sum's noise before its books had the charge."""
    copied(tmp_path, tmp_path / "half")
    with opened(tmp_path) as leader.helped:
        leader.ask(2, [])
    put_back(tmp_path, tmp_path / "half")
    with opened(tmp_path) as helped:
        assert helped.go_on("trial") == 2
        leader.chain = helped.books.lists("trial")[-1].chain
        with pytest.raises(Uncharged, match=r"2 charged copies of run trial, .* got 1"):
            helped.sum(leader.head(2, [], copies=1), [], LEADER)
        assert helped.books.rounds("trial") == 2
        assert helped.sum(leader.head(2, [], copies=2), [], LEADER).copies == 2
        assert helped.recall("trial", 1, LEADER).copies == 2, "of what was answered before"


def test_who_is_told_so_begins_again_with_the_helpers_consent(leader: Leader, tmp_path: Path) -> None:
    at = object.__new__(Helping)
    at.link = SimpleNamespace(address="helper")  # type: ignore[assignment]
    with pytest.raises(HelperAway, match="asked again: said"):
        at._raise(grpc.StatusCode.ABORTED, "said")


def test_a_reply_without_end_is_left_before_it_fills_the_coordinators_memory(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helping, "_LONGEST", 1 << 20)
    at, sent = object.__new__(Helping), itertools.count()
    at.link = SimpleNamespace(address="helper")  # type: ignore[assignment]
    with pytest.raises(HelperDisagrees, match="at most 1,048,576 bytes, got more"):
        at._whole(bytes(1 << 18) for _ in sent)
    assert next(sent) == 5


def test_a_run_that_this_version_plans_otherwise_is_listed_without_what_its_copies_promise(
    leader: Leader, tmp_path: Path
) -> None:
    """Another plan's promise is not the run's; and what cannot be read keeps no other run from being listed."""
    with opened(tmp_path) as helped:
        (run,) = helped.books.runs()
        twice = replace(run, copies=2)
        assert "2, which guarantee ε" in listed(twice)
        for other in (replace(twice, plan_digest=bytes(32)), replace(twice, specification="{}")):
            assert listed(other).endswith(
                "copies 2, of which this version of quoron cannot say what they guarantee: it plans the run otherwise"
            )


def test_books_of_another_branch_with_more_lists_are_put_back_too(leader: Leader, tmp_path: Path) -> None:
    copied(tmp_path, tmp_path / "later")
    put_back(tmp_path, tmp_path / "kept")
    with opened(tmp_path) as leader.helped:
        leader.helped.go_on("trial")
    put_back(tmp_path, tmp_path / "later")
    with opened(tmp_path) as leader.helped, pytest.raises(Refused, match="put back"):
        leader.ask(2, [])


def test_continue_before_anybody_has_noticed_counts_and_of_books_that_were_not_put_back_is_refused(
    leader: Leader, tmp_path: Path
) -> None:
    """Else whoever said so first had lowered the count, and nobody would have noticed afterwards."""
    with opened(tmp_path) as helped:
        for run in ("trial", "none"):
            with pytest.raises(LedgerError, match="is held"):
                helped.go_on(run)
    put_back(tmp_path, tmp_path / "kept")
    with opened(tmp_path) as helped:
        assert helped.go_on("trial") == 2


def test_whoever_asks_hears_of_the_copies_of_replies_from_before_too_signed(leader: Leader, tmp_path: Path) -> None:
    copied(tmp_path, tmp_path / "half")
    with opened(tmp_path) as leader.helped:
        leader.ask(2, [])
    put_back(tmp_path, tmp_path / "half")
    with opened(tmp_path) as helped:
        with pytest.raises(Refused, match="put back"):
            helped.open(request(leader.run), LEADER)
        helped.go_on("trial")
        consent, reply = helped.open(request(leader.run), LEADER), helped.recall("trial", 1, LEADER)
        assert (consent.copies, reply.copies) == (2, 2)
        check_signature(consent, consent.signature, SIGNING.public_key())
        check_signature(reply, reply.signature, SIGNING.public_key())
        assert consent.run_key == leader.consent.run_key
        (run,) = helped.books.runs()
        epsilon = float(listed(run).partition("ε = ")[2].partition(",")[0])
        promised = plan_of(leader.run).guarantee.epsilon
        assert 1.3 * promised < epsilon < 2 * promised
        assert f"δ = {plan_of(leader.run).guarantee.delta:g} for replacing one user" in listed(run)


def test_a_reply_whose_number_was_not_noted_is_noted_before_it_is_sent(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a kill, between the books and the keys' folder: else a backup of before it passed for new."""

    def full(*_: object) -> None:
        raise LedgerUnavailable("no space left on device")

    copied(tmp_path, tmp_path / "half")
    with opened(tmp_path) as leader.helped:
        with monkeypatch.context() as patched:
            patched.setattr(Keys, "note", full)
            for _ in range(2):
                with pytest.raises(LedgerUnavailable):
                    leader.ask(2, [])
        assert leader.helped.keys.noted("trial").answered == 2
        again = leader.ask(2, [])
        np.testing.assert_array_equal(again.copies, 1)
    assert leader.helped.keys.noted("trial").answered == 3
    put_back(tmp_path, tmp_path / "half")
    with opened(tmp_path) as leader.helped, pytest.raises(Refused, match="put back"):
        leader.ask(2, [])


class TestCharged:
    """The coordinator's books: a run whose helper's books were put back is charged once more before it goes on."""

    @pytest.fixture
    def books(self, tmp_path: Path) -> Iterator[Database]:
        with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
            yield database

    def helping(self, books: Database, consent: pb.HelperConsent) -> Helping:
        made = object.__new__(Helping)
        made._database = books
        books.ensure(helping._schema)
        made._consent = lambda *_: consent  # type: ignore[method-assign]
        return made

    def charged(self, books: Database) -> PopulationLedger:
        population = PopulationLedger(books)
        population.charge("trial", "everyone", **charge_of(plan_of(real())))
        return population

    def test_before_a_list_leaves_and_once_however_often_it_is_asked(self, leader: Leader, books: Database) -> None:
        population = self.charged(books)
        at = self.helping(books, leader.consent)
        given = real(), plan_of(real())
        assert at.admit(*given) == 1
        assert len(population.charges("everyone")) == 1
        leader.consent.copies = 3
        for _ in range(2):
            assert at.admit(*given) == 3
        assert [each.run for each in population.charges("everyone")][1:] == [
            "trial (copy of the second server's, 2)",
            "trial (copy of the second server's, 3)",
        ]
        now = together(copies_of(population, "trial"))
        alone = population.charged("trial")
        assert alone is not None
        assert now.mu == pytest.approx(3**0.5 * (alone.mu or 0))
        assert alone.epsilon < now.epsilon < 3 * alone.epsilon
        assert at.charged("trial", 3, known=3) == 3

    def test_what_has_no_room_or_is_absurd_leaves_the_run_as_it_is(self, leader: Leader, books: Database) -> None:
        population = self.charged(books)
        alone = population.charged("trial")
        assert alone is not None
        population.limit("everyone", epsilon=1.5 * alone.epsilon, delta=0.5)
        at = self.helping(books, leader.consent)
        for copies in (2, 2**31):
            with pytest.raises(HelperDisagrees, match=r"room|at most 100"):
                at.charged("trial", copies)
        assert len(population.charges("everyone")) == 1

    def test_a_helper_that_has_lost_the_key_that_clients_seal_for_is_found_before_a_list_leaves(
        self, leader: Leader, books: Database, tmp_path: Path
    ) -> None:
        """No seal would open, and the model were noise."""
        at = self.helping(books, leader.consent)
        given = real(), plan_of(real())
        at.admit(*given)
        for path in tmp_path.glob("helper.sqlite*"):
            path.unlink()
        with opened(tmp_path) as helped:
            other = helped.open(request(real()), LEADER)
        with pytest.raises(HelperDisagrees, match="nothing would open"):
            self.helping(books, other).admit(*given)

    def test_whoever_fetches_the_run_reads_what_is_promised_now(self, books: Database) -> None:
        self.charged(books)
        records = Records(books)
        assert records._copies("trial") == {}
        charge_helped(books, "trial", 2)
        told = records._copies("trial")
        assert told["copies"] == 2
        assert told["together"]["epsilon"] > plan_of(real()).guarantee.epsilon
        assert "2 copies, which together guarantee" in told["together"]["words"]
        made = real()
        plan = plan_json(plan_of(made)) | {"columns": made.columns.as_json(), "loss": made.loss}
        for now, expected in (({}, plan_of(made).guarantee.epsilon), (told, told["together"]["epsilon"])):
            promise = Model.fetched(np.zeros(made.problem.dimension), json.loads(json.dumps(plan | now))).promise
            assert promise is not None
            assert promise.epsilon == expected
        records.close()

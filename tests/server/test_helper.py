"""What the helper of two servers does, and refuses: one list a round, in order, of users whom the plan has there."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from quoron_client.protocol.masked import check_signature
from quoron_privacy.errors import (
    ConfigError,
    IdentityError,
    LedgerError,
    LedgerUnavailable,
    QuoronError,
    VerificationError,
)
from quoron_privacy.two_servers import rows
from quoron_privacy.two_servers.noise import FIRST, next_chain
from quoron_protos.v1 import helper_pb2 as pb
from quoron_server.algorithms.two_servers import SECOND_SERVER, noise_of
from quoron_server.second_server import keys, runs
from quoron_server.second_server.runs import HelpedRunStore, Refused, UnknownRun
from quoron_server.second_server.service import CoordinatorCalls
from server.helper_scene import (
    LEADER,
    PLANNED,
    SIGNING,
    Clock,
    Leader,
    key_of,
    opened,
    plan_of,
    real,
    request,
    words_of,
)


def noise_in(leader: Leader, place: Path, round_: int, chains: list[bytes]) -> np.ndarray:
    """What a helper with these keys adds after these lists, made apart from it."""
    made = leader.helped.keys.read(leader.run.run)
    assert made is not None
    return noise_of(made.noise_key, SECOND_SERVER, plan_of(leader.run).without("min_cohort")).of(round_, chains)


class TestOneList:
    def test_the_reply_is_the_sum_of_masks_less_noise_that_the_list_labels(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            length = leader.spec.rounds[0].length
            row = np.arange(length, dtype=np.int64) - 1
            sent = [leader.masked(user, 0, row) for user in range(3)]
            reply = leader.ask(0, [entry for entry, _ in sent])
            check_signature(reply, reply.signature, SIGNING.public_key())
            total = rows.less(rows.added(*(values for _, values in sent)), words_of(reply))
            noise = noise_in(leader, tmp_path, 0, [leader.chain])
            np.testing.assert_array_equal(rows.signed(rows.less(total, noise)), 3 * row)
            assert np.abs(rows.signed(noise)).max() > 2**20, "the noise of one server is there"

    def test_the_same_list_has_the_same_bytes_also_after_a_restart(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            entries = sorted(leader.masked(user, 0)[0] for user in range(3))
            head = leader.head(0, entries)
            first = helped.sum(head, entries, LEADER).SerializeToString()
            assert helped.sum(head, entries, LEADER).SerializeToString() == first
        with opened(tmp_path) as helped:
            assert helped.sum(head, entries, LEADER).SerializeToString() == first

    def test_another_list_of_an_answered_round_gets_the_first_ones_reply_with_whose_it_is(self, tmp_path: Path) -> None:
        """Twin 2: the difference of two lists would be one user's answer."""
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            entries = sorted(leader.masked(user, 0)[0] for user in range(3))
            first = leader.ask(0, entries)
            for other in (entries[:2], entries[1:], [], sorted([*entries, leader.masked(9, 0)[0]])):
                again = helped.sum(leader.head(0, other, previous=FIRST), other, LEADER)
                assert (again.values, again.chain, again.left_out) == (first.values, first.chain, first.left_out)
                assert again.fingerprints == b"".join(each.fingerprint for each in entries)
            assert helped.recall(leader.run.run, 0, LEADER).values == first.values
            with pytest.raises(UnknownRun):
                helped.recall(leader.run.run, 1, LEADER)

    def test_lists_come_in_order_after_one_chain_in_one_group_and_a_skipped_round_is_noise_alone(
        self, tmp_path: Path
    ) -> None:
        """Twin 19."""
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            with pytest.raises(Refused, match="list of round 0"):
                leader.ask(1, [])
            with pytest.raises(Refused, match="after the lists that this server"):
                helped.sum(leader.head(0, [], previous=bytes([1]) * 32), [], LEADER)
            elsewhere = [leader.masked(0, 0)[0]._replace(group=1)]
            with pytest.raises(Refused, match="in one of 1 groups"):
                helped.sum(leader.head(0, elsewhere), elsewhere, LEADER)
            reply = leader.ask(0, [])
            noise = noise_in(leader, tmp_path, 0, [leader.chain])
            np.testing.assert_array_equal(rows.less(np.zeros_like(noise), noise), words_of(reply))
            leader.ask(1, [])

    def test_a_list_that_is_none_is_refused_and_answers_nothing(self, tmp_path: Path) -> None:
        """Twin 27 among them: digests are of 32 bytes."""
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            one, other = sorted(leader.masked(user, 0)[0] for user in range(2))
            wrong = ([other, one], [one, one], [one._replace(question_digest=bytes(16))], [one._replace(sealed=b"x")])
            for entries in (*wrong, [one._replace(fingerprint=bytes(16))]):
                with pytest.raises(Refused):
                    helped.sum(leader.head(0, entries), entries, LEADER)
            with pytest.raises(UnknownRun):
                helped.recall(leader.run.run, 0, LEADER)

    def test_a_list_of_more_than_the_runs_users_is_refused_before_it_fills_the_memory(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader, taken = Leader(real(), helped), []
            users = leader.run.problem.users

            async def parts(said: int) -> AsyncIterator[pb.ListPart]:
                for at in range(said):
                    taken.append(at)
                    entries = [pb.Entry(fingerprint=key_of(at))]
                    yield pb.ListPart(head=None if at else leader.head(0, [None] * said), entries=entries)  # type: ignore[list-item]

            calls = CoordinatorCalls(helped, *[None] * 4)  # type: ignore[arg-type]

            async def listed() -> None:
                async with asyncio.timeout(60) as timeout:
                    await calls._list(parts(users + 1), LEADER, timeout)

            with pytest.raises(Refused, match=f"at most {users} users"):
                asyncio.run(listed())
            assert taken == [0]


class TestReplay:
    """Twin 6: a seal opens under its own run, plan, round, question and user alone."""

    @pytest.mark.parametrize("about", [{"run": "other"}, {"plan": bytes(32)}, {"round": 1}, {"who": key_of(7)}])
    def test_a_seal_of_elsewhere_is_left_out_and_named(self, about: dict[str, object], tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            good = leader.masked(0, 0)
            entries = sorted([good[0], leader.masked(1, 0, **about)[0]])
            reply = leader.ask(0, entries)
            assert reply.left_out == key_of(1)
            noise = noise_in(leader, tmp_path, 0, [leader.chain])
            np.testing.assert_array_equal(rows.less(good[1], noise), words_of(reply))

    def test_so_is_one_under_another_question_or_another_users_name(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            moved = leader.masked(0, 0)[0]._replace(fingerprint=key_of(5))
            asked = leader.masked(1, 0)[0]._replace(question_digest=bytes(32))
            reply = leader.ask(0, [moved, asked])
            assert reply.left_out == b"".join(sorted([key_of(5), key_of(1)]))


class TestWhoMayBeAsked:
    """Twins 20 and 28: by fingerprint, count and separation of the plan, whatever the coordinator calls anybody."""

    def test_a_user_is_in_as_many_rounds_as_the_plan_has_and_so_far_apart(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader = Leader(real("dp-ftrl"), helped)
            spec = leader.spec
            assert (spec.participations, spec.separation) == (2, 3)
            kept = [leader.ask(t, [leader.masked(0, t)[0]]).left_out == b"" for t in range(len(spec.rounds))]
            assert kept == [True, False, False, True, False, False]

    def test_it_counts_what_it_knew_before_a_restart(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            leader.ask(0, [leader.masked(0, 0)[0]])
        with opened(tmp_path) as leader.helped:
            assert leader.ask(1, [leader.masked(0, 1)[0]]).left_out == key_of(0)


class TestConsent:
    def test_it_is_signed_and_names_the_units_that_the_helper_has_derived_itself(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader = Leader(real("dp-ftrl"), helped)
            consent, plan = leader.consent, plan_of(leader.run)
            check_signature(consent, consent.signature, SIGNING.public_key())
            assert consent.spec_digest == leader.spec.digest()
            assert (consent.epsilon, consent.participations, consent.separation) == (plan.guarantee.epsilon, 2, 3)
            assert helped.open(request(leader.run), LEADER) == consent, "asked again, it is the same"
            consent.epsilon /= 2
            with pytest.raises(IdentityError):
                check_signature(consent, consent.signature, SIGNING.public_key())

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"trust_model": None}, "trust model two-servers"),
            ({"early_ends": True}, "early_ends"),
            ({"simulation": True, "simulation_seed": 7}, "simulation"),
            ({"algorithm": "phased-sgd", "options": {"cohort_size": 2}, "trust_clients": True}, "phased-sgd"),
        ],
    )
    def test_what_it_cannot_vouch_for_is_refused_by_name(
        self, changes: dict[str, object], said: str, tmp_path: Path
    ) -> None:
        with opened(tmp_path) as helped:
            run = real().model_copy(update=changes)
            asked = request(real())
            asked.specification = run.as_text()
            with pytest.raises((QuoronError, ConfigError, VerificationError), match=said):
                helped.open(asked, LEADER)
            assert helped.store.runs() == []

    def test_lists_of_other_runs_are_answered_while_a_plan_is_made(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            waiting: list[bool] = []

            def slow(text: str) -> Any:
                waiting.append(helped._lock._is_owned())
                return PLANNED(text)

            with patch.object(runs, "planned", slow):
                helped.open(request(real()), LEADER)
        assert waiting == [False]

    def test_another_plan_than_the_coordinators_is_refused(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            asked = request(real())
            asked.plan_digest = bytes(32)
            with pytest.raises(Refused, match="the plan that this server makes"):
                helped.open(asked, LEADER)

    def test_another_coordinator_has_no_part_in_it(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            for work in (
                lambda: helped.open(request(leader.run), "b" * 64),
                lambda: helped.sum(leader.head(0, []), [], "b" * 64),
                lambda: helped.close(leader.run.run, leader.consent.plan_digest, "b" * 64),
            ):
                with pytest.raises(Refused):
                    work()


class TestKeysEnd:
    """Twin 18: a run's keys are in no database, and in nothing at all after its end."""

    def test_what_was_closed_is_never_opened_again_and_its_keys_are_gone(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            leader.ask(0, [leader.masked(0, 0)[0]])
            made = helped.keys.read("trial")
            assert made is not None
            assert helped.close("trial", leader.consent.plan_digest, LEADER)
            assert not helped.close("trial", leader.consent.plan_digest, LEADER)
            for work in (lambda: helped.open(request(leader.run), LEADER), lambda: helped.recall("trial", 0, LEADER)):
                with pytest.raises(Refused, match="keys are destroyed"):
                    work()
        held = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert made.noise_key not in held
        assert made.run_key not in held
        with opened(tmp_path) as helped, pytest.raises(Refused, match="keys are destroyed"):
            helped.open(request(leader.run), LEADER)

    def test_no_key_is_ever_in_the_store_and_its_folder_says_that_it_is_for_no_backup(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
            leader.ask(0, [leader.masked(0, 0)[0]])
            made = helped.keys.read("trial")
            assert made is not None
        store = b"".join(path.read_bytes() for path in tmp_path.glob("helper.sqlite*"))
        assert made.noise_key not in store
        assert made.run_key[:32] not in store
        tag = (tmp_path / "keys" / "CACHEDIR.TAG").read_bytes()
        assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55"), "as backup programs know it"

    def test_they_end_at_their_time_by_the_helpers_own_clock(self, tmp_path: Path) -> None:
        clock = Clock()
        with opened(tmp_path, clock=clock, keep=100.0) as helped:
            leader = Leader(real(), helped)
            assert leader.consent.expires == int(clock.now + 100)
            clock.now += 99
            leader.ask(0, [])
            clock.now += 1
            with pytest.raises(Refused, match="expired"):
                leader.ask(1, [])
            assert helped.keys.read("trial") is None

    def test_keys_that_cannot_be_removed_are_tried_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*_: object, **__: object) -> None:
            raise PermissionError("of the folder")

        clock = Clock()
        with opened(tmp_path, clock=clock, keep=100.0) as helped:
            Leader(real(), helped)
            clock.now += 100
            with monkeypatch.context() as patched:
                patched.setattr(keys, "erase", fails)
                with pytest.raises(PermissionError):
                    helped.expire()
            assert helped.keys.read("trial") is not None
            helped.expire()
            assert helped.keys.read("trial") is None


def test_a_reply_that_may_have_been_written_is_read_before_another_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = HelpedRunStore.answer

    def breaks(self: HelpedRunStore, *given: Any) -> None:
        kept(self, *given)
        raise LedgerUnavailable("the connection broke in the last step")

    with opened(tmp_path) as helped:
        leader = Leader(real(), helped)
        entries = sorted(leader.masked(user, 0)[0] for user in range(3))
        with monkeypatch.context() as patched:
            patched.setattr(HelpedRunStore, "answer", breaks)
            with pytest.raises(LedgerUnavailable):
                leader.ask(0, entries)
        again = leader.ask(0, entries)
        assert again.values == helped.recall("trial", 0, LEADER).values


def test_a_version_that_makes_another_plan_of_an_open_run_does_not_go_on_with_it(tmp_path: Path) -> None:
    """Labels of noise hold the plan: correlated noise would go on from what was never drawn."""
    with opened(tmp_path) as helped:
        leader = Leader(real("dp-ftrl"), helped)
        leader.ask(0, [])
    with (
        opened(tmp_path) as leader.helped,
        patch.object(runs, "planned", lambda _: (leader.run, plan_of(real()))),
        pytest.raises(Refused, match="this version of quoron makes another"),
    ):
        leader.ask(1, [])
    with opened(tmp_path) as leader.helped:
        leader.ask(1, [])


class TestRestored:
    """No second release of a round: never a difference of two lists."""

    def test_a_copy_of_the_database_is_refused_and_ends_its_runs_where_its_count_does_not_tell(
        self, tmp_path: Path
    ) -> None:
        kept = tmp_path / "kept"
        kept.mkdir()
        with opened(tmp_path) as helped:
            leader = Leader(real(), helped)
        for path in tmp_path.glob("helper.sqlite*"):
            shutil.copy(path, kept)
        with opened(tmp_path) as leader.helped:
            sent = [leader.masked(user, 0)[0] for user in range(3)]
            leader.ask(0, sent)
        shutil.copy(kept / "helper.sqlite", tmp_path)
        with pytest.raises(LedgerError, match="acknowledged"), opened(tmp_path):
            pass
        for path in kept.iterdir():  # with its count, as a backup of the whole folder has it: the keys know better
            shutil.copy(path, tmp_path)
        leader.chain = FIRST
        with opened(tmp_path) as leader.helped:
            for entries in ([], sent, sent[1:]):
                with pytest.raises(Refused, match="which is restored: its keys are destroyed"):
                    leader.ask(0, entries)
            assert leader.helped.keys.read("trial") is None

    def test_noise_after_another_first_list_is_another_in_every_later_round(self, tmp_path: Path) -> None:
        """Twin 13: labels chain all lists, as correlated noise would otherwise give the earlier one away."""
        with opened(tmp_path) as helped:
            leader = Leader(real("dp-ftrl"), helped)
            lists = [[leader.masked(user, t)[0]] for t, user in enumerate((0, 1))]
            chains = {len(some): _chains([some, lists[1]]) for some in (lists[0], [])}
            made = [noise_in(leader, tmp_path, 1, chains[size]) for size in (1, 0)]
            assert not np.any(made[0] == made[1])


def _chains(lists: list[list[object]]) -> list[bytes]:
    found, before = [], FIRST
    for round_, entries in enumerate(lists):
        before = next_chain(before, round_, entries)  # type: ignore[arg-type]
        found.append(before)
    return found

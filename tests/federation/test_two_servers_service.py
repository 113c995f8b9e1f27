"""Coordinator, helper and clients over mutual TLS: the bits of both servers in one process, and what nobody is told."""

import contextlib
import json
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from federation.crowd import carried_out, complete, coordinator, from_items, inline_model, write_items
from federation.tls import transport
from federation.two_servers import USERS, clients, enrol, helped, helper, hurried, link, wanted
from federation.wires import Wires
from quoron_client.federation import ClientConfig, work
from quoron_client.federation.client_state import ClientState
from quoron_client.federation.terms import Terms
from quoron_client.federation.work import Worker
from quoron_client.protocol import masked, wire
from quoron_client.protocol.masked import Pinned
from quoron_client.protocol.questions import Question
from quoron_privacy.errors import ConfigError, IdentityError
from quoron_privacy.means.clipping import ClippedSum
from quoron_privacy.noise.streams import SecureNoise
from quoron_privacy.two_servers import rows as ring
from quoron_privacy.two_servers import seals
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import helper_pb2
from quoron_protos.v1.helper_pb2_grpc import HelperStub
from quoron_server.algorithms import ALGORITHMS
from quoron_server.plan import RunPlan
from quoron_server.second_server import service
from quoron_server.second_server.keys import signing_key, write_public
from quoron_server.second_server.runs import HelpedRuns
from quoron_server.second_server.service import SecondServer
from quoron_server.service import ServeConfig, Transport, certificates, second_server_client
from quoron_server.service.second_server_client import SecondServerClient, ServerAway
from quoron_server.service.sessions import Sessions
from quoron_server.specification import RunSpecification, describe, make_plan, require_deployable
from quoron_server.storage.database import Database
from quoron_server.wording import digest
from server.helper_scene import SIGNING, Leader, key_of, opened, plan_of, real


@pytest.mark.parametrize(
    ("algorithm", "groups"),
    [
        ("dp-ftrl", 3),
        *(
            pytest.param(name, 1, marks=pytest.mark.slow)
            for name in ("one-pass-dp-sgd", "one-round-least-squares", "dp-ftrl")
        ),
    ],
)
def test_two_servers_and_twenty_clients_give_the_bits_of_the_simulation_of_both(
    algorithm: str, groups: int, issued: Path, tmp_path: Path
) -> None:
    same_bits(wanted(algorithm, groups=groups), USERS, issued, tmp_path)


@pytest.mark.slow
def test_so_do_a_hundred_clients_of_tracking_srgd(tmp_path: Path) -> None:
    """Pilot rounds, counted norms and correlated sums in one run: with fewer users it has no plan."""
    run, issued = wanted("tracking-srgd"), tmp_path / "issued"
    certificates.make_authority(issued, days=2)
    certificates.issue(issued, "coordinator", coordinator=True, hosts=("localhost", "127.0.0.1"), days=1)
    for user in range(run.problem.users):
        certificates.issue(issued, f"client-{user}", days=1)
    same_bits(run, run.problem.users, issued, tmp_path)


def same_bits(run: RunSpecification, users: int, issued: Path, tmp_path: Path) -> None:
    """Of a federation and of one process."""
    model = carried_out(federated(run, issued, tmp_path, write_items(tmp_path, users)))
    np.testing.assert_array_equal(model, inline_model(run, tmp_path, from_items(users)))


async def federated(run: RunSpecification, issued: Path, folder: Path, paths: list[Path]) -> np.ndarray:
    """The model of a coordinator, a helper in the folder `other` below its own, and a client for each table."""
    (place := folder / "other").mkdir()
    with helper(place) as second:
        async with helped(folder, issued, place, second) as running:
            await enrol(running.listen, issued, len(paths))
            async with clients(running.listen, issued, place, folder, paths):
                with hurried(running):
                    await running.scheduler.submit(run.as_text())
                    return await complete(running)


class Views:
    """All that each server was sent, what it keeps and what it logs; and what the clients kept to themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.coordinator: list[bytes] = []
        self.helper: list[bytes] = []
        self.values: list[np.ndarray] = []  # masked answers
        self.rows: list[np.ndarray] = []
        self.seeds: list[bytes] = []
        taken, summed = Sessions.answer, HelpedRuns.sum
        row, seed = masked._row, ring.seed_for

        def came(sessions: Sessions, user: int, message: pb.MaskedAnswer, size: int = 0) -> Any:
            self.coordinator.append(message.SerializeToString())
            self.values.append(np.frombuffer(message.values, "<u8"))
            return taken(sessions, user, message, size)

        def listed(helped: HelpedRuns, head: Any, entries: Any, who: str) -> Any:
            self.helper += [head.SerializeToString(), *(b"".join(each[:3]) for each in entries)]
            reply = summed(helped, head, entries, who)
            self.coordinator.append(reply.SerializeToString())
            return reply

        monkeypatch.setattr(Sessions, "answer", came)
        monkeypatch.setattr(HelpedRuns, "sum", listed)
        monkeypatch.setattr(masked, "_row", lambda *given: self.rows.append(row(*given)) or self.rows[-1])
        monkeypatch.setattr(ring, "seed_for", lambda *given: self.seeds.append(seed(*given)) or self.seeds[-1])


def test_what_each_server_receives_stores_and_logs_says_nothing_of_an_answer(
    issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twins 9, 17, 24: once with everybody's data, and once with the data of half of them broken."""
    caplog.set_level(logging.DEBUG)
    run, logs = wanted(simulation=False, simulation_seed=None), []
    for name in ("whole", "broken"):
        (folder := tmp_path / name).mkdir()
        place, paths, views = folder / "other", write_items(folder, USERS), Views(monkeypatch)
        for path in paths[::2] if name == "broken" else ():
            path.write_bytes(b"no table")
        caplog.clear()
        carried_out(federated(run, issued, folder, paths))
        assert len(views.values) == len(views.rows) == USERS
        zero = [not row.any() for row in views.rows]
        assert sum(zero) == (USERS // 2 if name == "broken" else 0), "a client whose data are broken masks the zero row"
        stored = {
            "coordinator": b"".join(path.read_bytes() for path in folder.glob("coordinator*")),
            "helper": b"".join(path.read_bytes() for path in place.glob("helper.sqlite*")),
        }
        secrets_ = [row.astype("<i8").tobytes()[:16] for row in views.rows if row.any()]
        for held in (b"".join(views.coordinator), stored["coordinator"], b"".join(views.helper), stored["helper"]):
            assert not any(secret in held for secret in (*secrets_, *views.seeds))
        hidden = [values.astype("<u8").tobytes()[:16] for values in views.values]
        for held in (b"".join(views.helper), stored["helper"], stored["coordinator"]):
            assert not any(each in held for each in hidden), "masked answers are the coordinator's, until the commit"
        _require_uniform(np.concatenate(views.values))
        said = [each.getMessage() for each in caplog.records if each.name in ("quoron", "quoron.second_server")]
        said = [each for each in said if "ends in" not in each and "took longer" not in each]  # files, and the machine
        logs.append([re.sub(r"[0-9a-f]{12,}|\d+\.\d+\.\d+\.\d+:\d+", "*", each) for each in said])
        monkeypatch.undo()
    assert sorted(logs[0]) == sorted(logs[1]), "what data are shows in no log of either server"
    assert not any(re.search(r"answered \d|\d+ (answered|clipped|left)", each) for each in logs[0])


def _require_uniform(words: np.ndarray) -> None:
    """Each of the 64 bits of a masked answer is one in half of them: a false alarm comes once in 10⁸ times."""
    ones = np.unpackbits(words.astype("<u8").view(np.uint8))
    assert abs(ones.sum() - ones.size / 2) < 6 * np.sqrt(ones.size) / 2
    signs = ones.reshape(-1, 64).sum(axis=0)
    assert np.abs(signs - len(words) / 2).max() < 7 * np.sqrt(len(words)) / 2


def test_a_connection_that_died_without_a_word_is_left_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a firewall drops one that was idle for a long round: its machine would try for a quarter of an hour."""
    monkeypatch.setattr(second_server_client, "TIMEOUT", 30.0)
    with helper(tmp_path) as second, Wires(second.listen) as wires, Database(f"sqlite:///{tmp_path}/c.sqlite") as store:
        at = SecondServerClient(replace(link(tmp_path, second), address=wires.address), store)
        asked = wanted()
        at.open(asked, make_plan(asked))
        assert at.recall("trial", 0) is None
        wires.cut.add(0)
        monkeypatch.setattr(second_server_client, "TIMEOUT", 0.5)
        with pytest.raises(ServerAway):
            at.recall("trial", 0)
        monkeypatch.setattr(second_server_client, "TIMEOUT", 30.0)
        assert at.recall("trial", 0) is None
        assert len(wires.made) == 4
        assert at._channel is not None
        at._channel.close()


def silent(over: threading.Event) -> Iterator[helper_pb2.ListPart]:
    """The beginning of a list, and nothing more."""
    yield helper_pb2.ListPart(head=helper_pb2.HelperList(run="trial", entries=3))
    over.wait(60)


def opening() -> helper_pb2.OpenRun:
    asked = wanted()
    plan = bytes.fromhex(digest(make_plan(asked)))
    return helper_pb2.OpenRun(run="trial", specification=asked.as_text(), plan_digest=plan, software="test")


@contextlib.contextmanager
def connected(place: Path, second: SecondServer) -> Iterator[HelperStub]:
    """What the coordinator calls, over a connection of its own."""
    files = [(place / name).read_bytes() for name in ("authority.pem", "leader/key.pem", "leader/certificate.pem")]
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.secure_channel(second.listen, grpc.ssl_channel_credentials(*files), options=options) as channel:
        yield HelperStub(channel)


class TestRefusals:
    """By name, before anybody is asked."""

    async def test_a_run_of_two_servers_needs_a_coordinator_with_a_helper(self, issued: Path, tmp_path: Path) -> None:
        async with coordinator(tmp_path, transport=transport(issued)) as running:
            with pytest.raises(ConfigError, match="--set second_server="):
                await running.scheduler.submit(wanted().as_text())

    def test_a_helper_needs_clients_whom_nobody_overhears(self, tmp_path: Path) -> None:
        words = "Expected certificates together with a second server"
        with helper(tmp_path) as second, pytest.raises(ConfigError, match=words):
            ServeConfig(transport=Transport(insecure=True), second_server=link(tmp_path, second))

    def test_rounds_end_at_their_time(self) -> None:
        run = wanted(early_ends=True)
        with pytest.raises(ConfigError, match="early_ends=false"):
            require_deployable(run, make_plan(run), allow_simulation=True)

    def test_a_coordinator_that_falls_silent_in_the_middle_of_lists_keeps_no_other_waiting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As many lists as the helper has threads are begun, and nothing more is said: without deadlines, for ever."""
        monkeypatch.setattr(service, "TIMEOUT", 0.2)
        over, said = threading.Event(), []

        with helper(tmp_path) as second, ExitStack() as open_:
            stubs = [open_.enter_context(connected(tmp_path, second)) for _ in range(3)]  # each may have four calls
            request = opening()
            stubs[2].Open(request, timeout=60)
            calls = [stubs[number // 4].Sum(silent(over)) for number in range(service._CALLS)]
            assert stubs[2].Open(request, timeout=60).run == "trial"
            for each in calls:
                with pytest.raises(grpc.RpcError) as caught:
                    list(each)
                said.append(caught.value.code())
            over.set()
        assert set(said) <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}

    def test_a_list_that_is_cut_off_in_the_middle_is_no_refusal(self, tmp_path: Path) -> None:
        """Its coordinator was killed, and asks again: nobody is to be alarmed."""
        over = threading.Event()
        with helper(tmp_path) as second:
            with connected(tmp_path, second) as stub:
                stub.Open(opening(), timeout=60)
                for _ in range(3):
                    call = stub.Sum(silent(over))
                    with pytest.raises(grpc.FutureTimeoutError):
                        call.result(0.2)
                    call.cancel()
            over.set()
        assert not second.metrics.refused

    def test_the_helper_lets_in_whom_its_operator_has_named_alone(self, issued: Path, tmp_path: Path) -> None:
        with helper(tmp_path) as second:
            certificates.issue(tmp_path, "stranger", days=1)
            codes = []
            for folder, name in ((tmp_path, "stranger"), (issued, "client-0")):
                pair = [(folder / f"{name}/{end}.pem").read_bytes() for end in ("key", "certificate")]
                files = grpc.ssl_channel_credentials((tmp_path / "authority.pem").read_bytes(), *pair)
                with grpc.secure_channel(second.listen, files) as channel:
                    with pytest.raises(grpc.RpcError) as caught:
                        HelperStub(channel).Close(helper_pb2.CloseRun(run="trial"), timeout=60)
                    codes.append(caught.value.code())
        assert codes == [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE]


ME = key_of(0)


class Scene:
    """One client, one helper and what a coordinator says."""

    def __init__(self, place: Path, algorithm: str = "one-pass-dp-sgd", data: Path | None = None) -> None:
        self.place, self.run = place, real(algorithm)
        self.plan: RunPlan = plan_of(self.run)
        with opened(place) as helped:
            self.leader = Leader(self.run, helped)
            self.secrets = helped.keys.read("trial")
        self.data = write_items(place, 1)[0] if data is None else data
        self.begin()

    def begin(self) -> None:
        """Begin a process of the client, on the record that is there."""
        self.record = ClientState(self.place / "record.sqlite", epsilon=1000.0, delta=0.9)
        self.worker = self.client()

    def restart(self) -> None:
        """End the client's process and begin another."""
        self.record.close()
        self.begin()

    def client(self, pinned: Pinned | None = None, **changes: Any) -> Worker:
        given = {"coordinator": "localhost:1", "data": self.data, "record": self.place / "record.sqlite"}
        files = {name: self.place / name for name in ("certificate", "key", "authority", "second_server_key")}
        limits = {"lifetime_epsilon": 1000.0, "lifetime_delta": 0.9, "accept_trust_models": ("two-servers",)}
        owner = ClientConfig(**(given | files | limits | {"one_user": True} | changes))
        return Worker(owner, self.record, pinned=pinned or Pinned(SIGNING.public_key(), ME))

    def announcement(self, **changes: Any) -> pb.Announcement:
        told = describe(self.run, self.plan) | changes.pop("description", {})
        said = {"run": "trial", "description": json.dumps(told), "spec": self.leader.spec.as_json()}
        return pb.Announcement(**(said | {"consent": self.leader.consent} | changes))

    def question(self, number: int = 0, **changes: Any) -> tuple[pb.Question, Question]:
        made = ALGORITHMS[self.run.algorithm].make(self.plan)
        asked = made.request(made.init(), SecureNoise.fresh())
        assert asked is not None
        rows: Any = asked.reduction
        row = changes.get("row") or wire.reduction_to_wire(rows.reduction)
        body = wire.Body.of(asked.task.part(slice(0, 1)), row=row)
        head = wire.question_head(body, run="trial", round=number, user=changes.get("user", 0), seconds=60)
        head.MergeFromString(body.data)
        return head, asked

    def opened(self, answer: bytes, question: pb.Question) -> np.ndarray:
        """The row in a masked answer, for whoever has both servers' halves."""
        sent = pb.MaskedAnswer.FromString(answer)
        name = masked.question_digest("trial", question.round, question.digest, wire.body_digest(question))
        plan = self.leader.consent.plan_digest
        about = seals.info(seals.SUITE, "trial", plan, question.round, name, ME)
        seed = seals.open_(self.secrets.run_key, sent.sealed, about)
        assert seed is not None
        words = np.frombuffer(sent.values, "<u8").astype(np.uint64)
        return ring.signed(ring.less(words, ring.mask(seed, len(words))))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def takes_part(scene: Scene, message: pb.Announcement, worker: Worker | None = None) -> bool:
    return (worker or scene.worker).consider(message, 0).takes_part


class TestConsent:
    def test_the_helper_whose_key_is_pinned_is_believed(self, scene: Scene) -> None:
        assert takes_part(scene, scene.announcement())

    def test_another_helper_is_not_whoever_vouches_for_it(self, scene: Scene, tmp_path: Path) -> None:
        """Twin 5: a key that comes from the coordinator."""
        own = signing_key(tmp_path / "own.key")
        consent = scene.leader.consent
        consent.signature = masked.signature_of(consent, own)
        assert not takes_part(scene, scene.announcement(consent=consent))
        write_public(tmp_path / "own.key", tmp_path / "key.pem")
        with pytest.raises(IdentityError, match="quoron second-server key"):
            masked.read_second_server_key(scene.data)
        assert masked.read_second_server_key(tmp_path / "key.pem") == own.public_key()

    @pytest.mark.parametrize(
        "changes",
        [
            {"description": {"epsilon": 1.0}},
            {"description": {"delta": 1e-9}},
            {"description": {"adjacency": "zero-out"}},
            {"description": {"rounds": 5}},
            {"description": {"trust_model": "central-broadcast"}},
            {"description": {"simulation": True, "simulation_seed": 7}},
            {"spec": ""},
            {"consent": None},
        ],
    )
    def test_a_coordinator_cannot_say_less_of_the_plan_than_the_helper_has_signed(
        self, changes: dict[str, Any], scene: Scene
    ) -> None:
        assert not takes_part(scene, scene.announcement(**changes))

    def test_longer_units_than_the_helper_has_signed_are_refused(self, scene: Scene) -> None:
        first = scene.leader.spec.rounds[0]
        louder = replace(first, blocks=tuple(replace(each, unit=2 * each.unit) for each in first.blocks))
        spec = replace(scene.leader.spec, rounds=(louder,) * len(scene.leader.spec.rounds))
        assert not takes_part(scene, scene.announcement(spec=spec.as_json()))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("run_key", key) for key in (b"", b"short", b"\xff" * seals.PUBLIC, bytes(seals.PUBLIC))),
            ("simulation", True),
        ],
    )
    def test_a_consent_without_a_key_or_to_a_simulation_is_none_to_a_run_of_secret_noise(
        self, name: str, value: Any, scene: Scene
    ) -> None:
        """Nothing could be sealed for it in the middle of a round; who knows a seed knows the helper's noise."""
        consent = scene.leader.consent
        setattr(consent, name, value)
        consent.signature = masked.signature_of(consent, SIGNING)
        assert not takes_part(scene, scene.announcement(consent=consent))

    def test_nothing_is_sealed_for_keys_whose_time_is_over(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        assert takes_part(scene, scene.announcement())
        monkeypatch.setattr(work.time, "time", lambda: float(scene.leader.consent.expires))
        assert scene.worker.reply(scene.question()[0]) is None
        assert scene.worker.reply(scene.question()[0], ready=False) is None

    def test_what_was_agreed_to_never_changes(self, scene: Scene) -> None:
        assert takes_part(scene, scene.announcement())
        consent = scene.leader.consent
        consent.expires += 1
        consent.signature = masked.signature_of(consent, SIGNING)
        assert not takes_part(scene, scene.announcement(consent=consent), scene.client())

    def test_two_servers_need_a_pinned_key_certificates_and_one_user(self, scene: Scene) -> None:
        for changes in (
            {"second_server_key": None},
            {"certificate": None, "key": None, "authority": None, "insecure": True, "client_name": "a"},
            {"one_user": False, "user_column": "who"},
        ):
            with pytest.raises(ConfigError):
                scene.client(**changes)
        worker = scene.client()
        worker.pinned = None
        assert not takes_part(scene, scene.announcement(), worker)


class TestAnswer:
    def test_its_row_is_within_the_plans_unit_whatever_the_question_says(self, scene: Scene) -> None:
        """Twins 16 and 29: norm and centre are the coordinator's, the length is not."""
        assert takes_part(scene, scene.announcement())
        spec = scene.leader.spec.rounds[0]
        rows = []
        for user, norm in enumerate((1e-149, 1e-9, 1.0, 1e9, 1e149)):
            scene.record.close()
            for each in scene.place.glob("record.sqlite*"):
                each.unlink()
            scene.restart()
            assert takes_part(scene, scene.announcement())
            question, _ = scene.question(row=wire.reduction_to_wire(ClippedSum(norm, 1)), user=user)
            rows.append(scene.opened(scene.worker.reply(question) or b"", question))
        assert all(len(row) == spec.length and ring.fits(row, spec) for row in rows)
        assert any(row.any() for row in rows)

    @pytest.mark.parametrize("norm", [1e-300, 1e300, float("nan"), -1.0, 0.0])
    def test_a_norm_that_is_none_gets_no_answer_whatever_the_client_holds(self, scene: Scene, norm: float) -> None:
        assert takes_part(scene, scene.announcement())
        question, _ = scene.question(row=pb.Reduction(clipped=pb.ClippedSum(norm=norm, divisor=1)))
        assert not scene.worker.reply(question)

    @pytest.mark.parametrize("centre", [None, 0.3])
    def test_broken_data_and_no_time_are_the_zero_row_and_nobody_can_tell(
        self, centre: float | None, scene: Scene, tmp_path: Path
    ) -> None:
        """Twin 17. The row of a vector of zeros is none: around a centre it is as long as any, on the other side."""
        made = scene.leader.spec.rounds[0]
        around = None if centre is None else np.full(made.length, centre)
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "mine.csv").write_text("x0,nonsense\n1,\n")
        broken = Scene(tmp_path / "broken", data=tmp_path / "broken" / "mine.csv")
        late = Scene(tmp_path / "late") if (tmp_path / "late").mkdir() is None else None
        assert late is not None
        sent = []
        for each, ready in ((scene, True), (broken, True), (late, False)):
            assert takes_part(each, each.announcement())
            question, _ = each.question(row=wire.reduction_to_wire(ClippedSum(1.0, 1, around)))
            assert each.worker.attends("trial") == each.run.seconds, "it answers at a time that is public"
            answer = each.worker.reply(question, ready=ready)
            sent.append((answer, each.opened(answer or b"", question)))
        assert sent[0][1].any()
        assert not sent[1][1].any()
        assert not sent[2][1].any()
        assert len({len(answer or b"") for answer, _ in sent}) == 1
        assert {each.name for each in pb.MaskedAnswer.DESCRIPTOR.fields}.isdisjoint({"status"})

    def test_the_same_question_has_the_same_bytes_and_another_one_of_the_round_none(self, scene: Scene) -> None:
        assert takes_part(scene, scene.announcement())
        question, _ = scene.question()
        first = scene.worker.reply(question)
        assert first is not None
        scene.restart()
        assert takes_part(scene, scene.announcement())
        assert scene.worker.reply(question) == first, "after a restart, too"
        other, _ = scene.question(user=1)
        assert scene.worker.reply(other) is None

    def test_the_plans_count_and_separation_hold_whatever_is_asked(self, tmp_path: Path) -> None:
        """Twin 20: dp-ftrl with two epochs of three rounds."""
        scene = Scene(tmp_path, "dp-ftrl")
        assert takes_part(scene, scene.announcement())
        asked = [scene.worker.reply(scene.question(number)[0]) is not None for number in range(6)]
        assert asked == [True, False, False, True, False, False]

    def test_neither_row_nor_seed_is_on_its_disk(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        """Twin 22."""
        seeds, rows = [], []
        made, added = ring.seed_for, ring.added
        monkeypatch.setattr(ring, "seed_for", lambda *given: seeds.append(made(*given)) or seeds[-1])
        monkeypatch.setattr(ring, "added", lambda *given: rows.append(given[0]) or added(*given))
        assert takes_part(scene, scene.announcement())
        assert scene.worker.reply(scene.question()[0]) is not None
        scene.record.close()
        held = b"".join(path.read_bytes() for path in scene.place.glob("record.sqlite*"))
        assert seeds
        assert rows[0].any()
        for secret in (*seeds, rows[0].tobytes()[:16]):
            assert secret not in held

    def test_a_machine_whose_randomness_comes_again_repeats_a_mask_for_the_same_row_alone(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Twin 21."""
        monkeypatch.setattr(masked.secrets, "token_bytes", lambda n: b"7" * n)
        masks = []
        made = ring.mask
        monkeypatch.setattr(ring, "mask", lambda seed, k: masks.append(seed) or made(seed, k))
        message = scene.announcement()
        agreed = Pinned(SIGNING.public_key(), ME).agree(message, Terms.read("trial", message.description))
        question, _ = scene.question()
        rows, body = agreed.rows(0, question), wire.body_digest(question)
        name = wire.question_name(question)
        for values in (np.full(3, 0.1), np.full(3, 0.1), np.full(3, -0.1)):
            agreed.answer(name, body, rows, values)
        assert masks[0] == masks[1] != masks[2]


def test_a_question_without_a_row_has_no_answer_in_a_run_of_two_servers(scene: Scene) -> None:
    """A coordinator that asks for what it could read."""
    assert takes_part(scene, scene.announcement())
    question, _ = scene.question()
    question.ClearField("row")
    answer = pb.Answer.FromString(scene.worker.reply(question) or b"")
    assert answer.status == pb.STATUS_MISSING
    assert not answer.values.data.strip(b"\0")


class Killed(BaseException):
    """Of a process, without warning."""


def test_twenty_kills_of_a_client_at_its_writes_change_no_byte_that_it_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each write five times before it is durable, then before it is counted, or before anything is said of it."""
    scene, kills, left = Scene(tmp_path, "dp-ftrl"), [0], [5]
    transaction, count = ClientState._transaction, ClientState._keep_count

    @contextlib.contextmanager
    def dying(state: ClientState) -> Iterator[Any]:
        before = state._database.total_changes
        with transaction(state) as database:
            yield database
            wrote = database.total_changes != before
            if wrote and left[0]:
                left[0] -= 1
                kills[0] += 1
                raise Killed
        if wrote:
            left[0] = 5
            kills[0] += 1
            raise Killed

    def uncounted(state: ClientState, number: int) -> None:
        if kills[0] % 2 and not left[0]:
            left[0] = 5
            kills[0] += 1
            raise Killed
        count(state, number)

    monkeypatch.setattr(ClientState, "_transaction", dying)
    monkeypatch.setattr(ClientState, "_keep_count", uncounted)
    sent: dict[int, list[bytes | None]] = {0: [], 3: []}
    questions = {number: scene.question(number)[0] for number in sent}
    ended = False
    while not ended:
        scene.restart()
        with contextlib.suppress(Killed):
            if takes_part(scene, scene.announcement()):
                for number, question in questions.items():
                    sent[number].append(scene.worker.reply(question, ready=not kills[0] % 3))
            scene.worker.forget("trial")
            ended = True
    assert kills[0] >= 20
    for number, answers in sent.items():
        said = [each for each in answers if each is not None]
        assert answers[: len(said)] == said, "nothing but after the run's end"
        assert len(said) > 1
        assert len(set(said)) == 1
        row = scene.opened(said[0], questions[number])
        assert ring.fits(row, scene.leader.spec.rounds[number])

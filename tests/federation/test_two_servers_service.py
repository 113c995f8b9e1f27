"""Coordinator, helper and clients over mutual TLS: the bits of both servers in one process, and what nobody is told."""

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
from quoron_client.federation import masking
from quoron_privacy.errors import ConfigError
from quoron_privacy.two_servers import ring
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import helper_pb2
from quoron_protos.v1.helper_pb2_grpc import HelperStub
from quoron_server.books.database import Database
from quoron_server.helper import service
from quoron_server.helper.runs import Helped
from quoron_server.service import Coordinator, ServeConfig, Transport, certificates, helping
from quoron_server.service.helping import Helping
from quoron_server.service.masked_sums import HelperAway
from quoron_server.service.sessions import Sessions
from quoron_server.specification import RunSpecification, make_plan, require_deployable
from quoron_server.wording import digest


@pytest.mark.parametrize(
    ("algorithm", "groups"),
    [("one-round-least-squares", 1), ("one-pass-dp-sgd", 1), ("dp-ftrl", 1), ("dp-ftrl", 3)],
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
    paths, place = write_items(tmp_path, users), tmp_path / "other"
    place.mkdir()

    async def federated() -> np.ndarray:
        with helper(place) as second:
            async with helped(tmp_path, issued, place, second) as running:
                await enrol(running.listen, issued, users)
                async with clients(running.listen, issued, place, tmp_path, paths):
                    with hurried(running):
                        await running.manager.submit(run.as_text())
                        return await complete(running)

    model = carried_out(federated())
    np.testing.assert_array_equal(model, inline_model(run, tmp_path, from_items(users)))


class Views:
    """All that each server was sent, what it keeps and what it logs; and what the clients kept to themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.coordinator: list[bytes] = []
        self.helper: list[bytes] = []
        self.values: list[np.ndarray] = []  # masked answers
        self.rows: list[np.ndarray] = []
        self.seeds: list[bytes] = []
        masked, summed = Sessions.masked, Helped.sum
        row, seed = masking._row, ring.seed_for

        def came(sessions: Sessions, user: int, message: pb.MaskedAnswer, size: int = 0) -> Any:
            self.coordinator.append(message.SerializeToString())
            self.values.append(np.frombuffer(message.values, "<u8"))
            return masked(sessions, user, message, size)

        def listed(helped: Helped, head: Any, entries: Any, who: str) -> Any:
            self.helper += [head.SerializeToString(), *(b"".join(each[:3]) for each in entries)]
            reply = summed(helped, head, entries, who)
            self.coordinator.append(reply.SerializeToString())
            return reply

        monkeypatch.setattr(Sessions, "masked", came)
        monkeypatch.setattr(Helped, "sum", listed)
        monkeypatch.setattr(masking, "_row", lambda *given: self.rows.append(row(*given)) or self.rows[-1])
        monkeypatch.setattr(ring, "seed_for", lambda *given: self.seeds.append(seed(*given)) or self.seeds[-1])


def test_what_each_server_receives_stores_and_logs_says_nothing_of_an_answer(
    issued: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Twins 9, 17, 24: once with everybody's data, and once with the data of half of them broken."""
    caplog.set_level(logging.DEBUG)
    run, logs = wanted(simulation=False, simulation_seed=None), []
    for name in ("whole", "broken"):
        (folder := tmp_path / name).mkdir()
        (place := folder / "other").mkdir()
        paths, views = write_items(folder, USERS), Views(monkeypatch)
        for path in paths[::2] if name == "broken" else ():
            path.write_bytes(b"no table")
        caplog.clear()

        async def federated(folder: Path = folder, place: Path = place, paths: list[Path] = paths) -> None:
            with helper(place) as second:
                async with helped(folder, issued, place, second) as running:
                    await enrol(running.listen, issued, USERS)
                    async with clients(running.listen, issued, place, folder, paths):
                        with hurried(running):
                            await running.manager.submit(run.as_text())
                            await complete(running)

        carried_out(federated())
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
        said = [each.getMessage() for each in caplog.records if each.name in ("quoron", "quoron.helper")]
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
    monkeypatch.setattr(helping, "PATIENCE", 30.0)
    with helper(tmp_path) as second, Wires(second.listen) as wires, Database(f"sqlite:///{tmp_path}/c.sqlite") as books:
        at = Helping(replace(link(tmp_path, second), address=wires.address), books)
        asked = wanted()
        at.open(asked, make_plan(asked))
        assert at.recall("trial", 0) is None
        wires.cut.add(0)
        monkeypatch.setattr(helping, "PATIENCE", 0.5)
        with pytest.raises(HelperAway):
            at.recall("trial", 0)
        monkeypatch.setattr(helping, "PATIENCE", 30.0)
        assert at.recall("trial", 0) is None
        assert len(wires.made) == 4
        at.close_channel()


class TestRefusals:
    """By name, before anybody is asked."""

    def test_a_run_of_two_servers_needs_a_coordinator_with_a_helper(self, issued: Path, tmp_path: Path) -> None:
        async def scene() -> None:
            async with coordinator(tmp_path, transport=transport(issued)) as running:
                with pytest.raises(ConfigError, match="--helper"):
                    await running.manager.submit(wanted().as_text())

        carried_out(scene())

    def test_a_helper_needs_clients_whom_nobody_overhears(self, tmp_path: Path) -> None:
        with helper(tmp_path) as second:
            config = ServeConfig(transport=Transport(insecure=True), helper=link(tmp_path, second))
            with pytest.raises(ConfigError, match="Expected certificates together with a helper"):
                Coordinator(config)

    def test_rounds_end_at_their_time(self) -> None:
        run = wanted(early_ends=True)
        with pytest.raises(ConfigError, match="early_ends=false"):
            require_deployable(run, make_plan(run), allow_simulation=True)

    def test_a_coordinator_that_falls_silent_in_the_middle_of_lists_keeps_no_other_waiting(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As many lists as the helper has threads are begun, and nothing more is said: without deadlines, for ever."""
        monkeypatch.setattr(service, "PATIENCE", 0.2)
        over, said = threading.Event(), []

        def silent() -> Iterator[helper_pb2.ListPart]:
            yield helper_pb2.ListPart(head=helper_pb2.HelperList(run="trial", entries=3))
            over.wait(60)

        with helper(tmp_path) as second, ExitStack() as open_:
            files = [(tmp_path / f"{name}").read_bytes() for name in ("authority.pem", "leader.key", "leader.pem")]
            stubs = []
            for _ in range(3):  # each of which may have four calls
                options = (("grpc.use_local_subchannel_pool", 1),)
                channel = grpc.secure_channel(second.listen, grpc.ssl_channel_credentials(*files), options=options)
                stubs.append(HelperStub(open_.enter_context(channel)))
            asked = wanted()
            plan = bytes.fromhex(digest(make_plan(asked)))
            request = helper_pb2.OpenRun(run="trial", specification=asked.as_text(), plan_digest=plan, software="test")
            stubs[2].Open(request, timeout=60)
            calls = [stubs[number // 4].Sum(silent()) for number in range(service._CALLS)]
            assert stubs[2].Open(request, timeout=60).run == "trial"
            for each in calls:
                with pytest.raises(grpc.RpcError) as caught:
                    list(each)
                said.append(caught.value.code())
            over.set()
        assert set(said) <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}

    def test_the_helper_lets_in_whom_its_operator_has_named_alone(self, issued: Path, tmp_path: Path) -> None:
        with helper(tmp_path) as second:
            certificates.issue(tmp_path, "stranger", days=1)
            codes = []
            for folder, name in ((tmp_path, "stranger"), (issued, "client-0")):
                pair = [(folder / f"{name}.{end}").read_bytes() for end in ("key", "pem")]
                files = grpc.ssl_channel_credentials((tmp_path / "authority.pem").read_bytes(), *pair)
                with grpc.secure_channel(second.listen, files) as channel:
                    with pytest.raises(grpc.RpcError) as caught:
                        HelperStub(channel).Close(helper_pb2.CloseRun(run="trial"), timeout=60)
                    codes.append(caught.value.code())
        assert codes == [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE]

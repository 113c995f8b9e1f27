"""The control plane: who may, what it tells, and what it refuses by name; and the population's lifetime budget."""

import asyncio
import contextlib
import datetime as dt
import json
import math
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography import x509

from federation.crowd import (
    Honest,
    bearer,
    carried_out,
    complete,
    coordinator,
    crowd,
    everybody,
    inline_model,
    specification,
    until,
)
from federation.tls import transport
from federation.wires import Wires
from operators import reaching
from quoron.cli.app import invoke
from quoron.federation import control
from quoron.federation import control as plane
from quoron.federation.control import Control
from quoron_privacy.errors import BudgetExceeded, ConfigError, LedgerError, LedgerUnavailable, Unreachable
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server.algorithms import ALGORITHMS
from quoron_server.service import Coordinator, certificates, control_plane, tokens
from quoron_server.specification import make_plan
from quoron_server.storage.database import Database
from quoron_server.storage.ledger import Ledger
from quoron_server.storage.lifetime_ledger import PopulationLedger

NAME, USERS, WEEK = "one-pass-dp-sgd", 20, dt.timedelta(days=7)


@contextlib.asynccontextmanager
async def dialled(running: Coordinator, token: str | None):
    """Calls of the control plane with a token."""
    metadata = () if token is None else bearer(token)
    async with grpc.aio.insecure_channel(running.control) as channel:
        stub = federation_pb2_grpc.ControlPlaneStub(channel)

        async def call(method: str, **fields: object) -> object:
            if method == "Model":
                return await stub.Model(pb.RunReference(**fields), metadata=metadata)
            request = pb.CallRequest(command=method, arguments=json.dumps(fields))
            return json.loads((await stub.Call(request, metadata=metadata)).json)

        yield call


async def status(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_roles_decide_who_may_and_a_removed_token_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    operator, auditor = (tokens.add(file, name=role, role=role) for role in ("operator", "auditor"))
    text = specification(NAME).as_text()
    async with coordinator(tmp_path) as running:
        for wrong in (None, "", "quoron_guess", operator[:-1], operator.upper()):
            async with dialled(running, wrong) as call:
                for method in ("Submit", "List", "Cancel", "Plan", "Model", "Ledger", "Limit"):
                    assert (await status(call(method)))[0] == grpc.StatusCode.UNAUTHENTICATED
        kept = file.read_text()
        file.write_text("{")
        async with dialled(running, auditor) as call:  # whoever has shown no token learns nothing of this machine
            assert await status(call("runs")) == (grpc.StatusCode.UNAVAILABLE, control_plane.UNREADABLE)
        file.write_text(kept)
        async with dialled(running, auditor) as call:
            assert (await status(call("submit", specification=text)))[0] == grpc.StatusCode.PERMISSION_DENIED
            assert (await status(call("cancel", run="trial")))[0] == grpc.StatusCode.PERMISSION_DENIED
            assert (await status(call("limit", group="everyone")))[0] == grpc.StatusCode.PERMISSION_DENIED
            assert await call("runs") == {"runs": []}
        async with dialled(running, operator) as call:
            assert await call("submit", specification=text) == {"run": "trial"}
            assert await call("submit", specification=text) == {"run": "trial"}  # the same is no other
            tokens.remove(file, name="operator")
            assert (await status(call("runs")))[0] == grpc.StatusCode.UNAUTHENTICATED


def test_tokens_are_kept_as_hashes_for_their_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = tokens.add(file, name="ada", role="auditor")
    assert token not in file.read_text()
    assert token.removeprefix(tokens.PREFIX) not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="'ada'"):
        tokens.add(file, name="ada", role="operator")
    with pytest.raises(ConfigError, match="role='root'"):
        tokens.add(file, name="eve", role="root")
    file.write_text("{")
    with pytest.raises(ConfigError, match="unreadable"):
        tokens.find(file, token)


async def test_a_token_that_is_over_opens_nothing_and_its_holder_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, began = tmp_path / "tokens.json", tokens.now()
    named = (("week", WEEK.total_seconds()), ("ever", math.inf))
    week, ever = (tokens.add(file, name=name, role="auditor", valid=valid) for name, valid in named)
    said = []
    async with coordinator(tmp_path) as running:
        for days in (6.9, 7.1, -100.0):  # by the coordinator's clock, also where it was put back
            monkeypatch.setattr(tokens, "now", lambda days=days: began + dt.timedelta(days=days))
            for token in (week, ever):
                async with dialled(running, token) as call:
                    try:
                        await call("runs")
                        said.append("let in")
                    except grpc.aio.AioRpcError as error:
                        said.append(error.details())
        tokens.remove(file, name="ever")
        async with dialled(running, ever) as call:
            said.append((await status(call("runs")))[1])
    (before, _, over, *others, back) = said
    assert [before, *others] == ["let in"] * 4
    assert over.startswith(
        f"This token ended on {tokens.read(file)['week'].ends:%Y-%m-%d %H:%M} UTC, by the coordinator's clock"
    )
    assert back.startswith("Expected a token")


def test_watch_tells_every_public_event_from_the_first_and_again_after_a_restart(tmp_path: Path) -> None:
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
    wanted = specification(NAME)

    async def watched(running: Coordinator) -> list[dict[str, object]]:
        async with grpc.aio.insecure_channel(running.control) as channel:
            stub = federation_pb2_grpc.ControlPlaneStub(channel)
            stream = stub.Watch(pb.RunReference(run="trial"), metadata=bearer(token))
            report = [json.loads(document.json) async for document in stream]
            return [event for event in report if event["kind"] != "awaits"]  # of which each sees what there was then

    async def scene() -> list[list[dict[str, object]]]:
        async with (
            coordinator(tmp_path) as running,
            contextlib.AsyncExitStack() as stack,
            dialled(running, token) as call,
        ):
            await call("submit", specification=wanted.as_text())
            early = asyncio.create_task(watched(running))  # before anybody has enrolled
            await everybody(running, stack)
            model = await complete(running)
            report = await call("Model", run="trial")
            np.testing.assert_array_equal(np.frombuffer(report.data, "<f8"), model)
            assert (await call("plan", run="trial"))["algorithm"] == NAME
            assert (await call("ledger", run="trial"))["spent"]["rounds"] == 6
            assert (await call("ledger"))["groups"]["everyone"]["epsilon"] == 15.0
            events = [await early, await watched(running)]
        async with coordinator(tmp_path) as running:
            return [*events, await watched(running)]

    early, late, restarted = carried_out(scene())
    assert [event["kind"] for event in early] == ["round"] * 6 + ["ended"]
    assert early == late
    assert early == restarted
    assert not any("diagnostics" in event for event in early)


async def test_watching_ends_when_the_token_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "MAX_TRUSTED", 0.01)
    file = tmp_path / "tokens.json"
    gone, kept = (tokens.add(file, name=name, role="auditor") for name in ("gone", "kept"))
    async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.control) as channel:
        await running.scheduler.submit(specification(NAME).as_text())  # nobody is enrolled: nothing happens
        stub = federation_pb2_grpc.ControlPlaneStub(channel)
        ending, lasting = (stub.Watch(pb.RunReference(run="trial"), metadata=bearer(token)) for token in (gone, kept))
        (await running.scheduler.feed("trial")).add({"kind": "round", "round": 0})
        for stream in (ending, lasting):
            assert json.loads((await stream.read()).json)["round"] == 0
        for stream in (ending, lasting):
            assert json.loads((await stream.read()).json)["kind"] == "awaits"
        waiting = asyncio.create_task(lasting.read())
        tokens.remove(file, name="gone")
        assert (await status(ending.read()))[0] == grpc.StatusCode.UNAUTHENTICATED
        await running.scheduler.cancel("trial")
        assert json.loads((await waiting).json) == {"kind": "ended", "how": "cancelled"}


async def test_a_model_of_any_length_is_fetched(tmp_path: Path) -> None:
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="auditor")
    released = np.arange(700_000.0)  # 5.6 MB, more than a message of gRPC has by itself
    async with coordinator(tmp_path) as running:

        async def model(run: str) -> np.ndarray:
            return released

        running.scheduler.records.model = model
        with Control(running.control, token, insecure=True) as own:
            found = await asyncio.to_thread(own.model, "trial")
    np.testing.assert_array_equal(found, released)


async def test_wrong_requests_are_refused_by_name(tmp_path: Path) -> None:
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
    good = json.loads(specification(NAME).as_text())
    problem = good["problem"]
    wrong = {
        "algorithm": good | {"algorithm": "magic"},
        "options.speed": good | {"options": {"speed": 3}},
        "options.rounds": good | {"options": {"rounds": 10**9}},
        "problem.colour": good | {"problem": problem | {"colour": 1}},
        "users": good | {"problem": problem | {"users": 0}},
        "colour": good | {"colour": 1},
        "run": good | {"run": "../escape"},
        "simulation_seed": good | {"simulation_seed": None},
        "features": good | {"columns": {"features": []}},
        "the plan": good | {"plan_digest": "0" * 64},
        "problem.lipschitz": good | {"problem": problem | {"lipschitz": 0.5}},
        "seconds": good | {"seconds": -1},
    }
    async with coordinator(tmp_path) as running, dialled(running, token) as call:
        for name, each in wrong.items():
            code, words = await status(call("submit", specification=json.dumps(each)))
            assert code == grpc.StatusCode.INVALID_ARGUMENT, (name, words)
            assert name in words, words
        code, words = await status(call("submit", specification="nonsense"))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        for method in ("plan", "Model", "ledger", "cancel"):
            code, words = await status(call(method, run="nothing"))
            assert (code, "'nothing'" in words) == (grpc.StatusCode.NOT_FOUND, True)
        assert await call("runs") == {"runs": []}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"simulation": True, "simulation_seed": 1}, "allow-simulation"),
        ({"algorithm": "sgd", "options": {"rounds": 6}}, "proved guarantee"),
        ({"algorithm": "phased-sgd", "options": {"cohort_size": 2}}, "central-release"),
    ],
)
async def test_a_deployment_refuses_what_protects_nobody(
    changes: dict[str, object], words: str, tmp_path: Path
) -> None:
    wanted = specification(NAME).model_copy(update={"simulation": False, "simulation_seed": None} | changes)
    async with coordinator(tmp_path, allow_simulation=False) as running:
        with pytest.raises(ConfigError, match=words):
            await running.scheduler.submit(wanted.as_text())


async def test_a_deployed_run_draws_secret_noise_and_erases_its_key(tmp_path: Path) -> None:
    wanted = specification(NAME, simulation=False, simulation_seed=None)
    async with coordinator(tmp_path, allow_simulation=False) as running, contextlib.AsyncExitStack() as stack:
        await everybody(running, stack)
        await running.scheduler.submit(wanted.as_text())
        model = await complete(running)
    assert not np.array_equal(model, inline_model(specification(NAME), tmp_path))
    with (
        Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database,
        pytest.raises(LedgerError, match="noise key is erased"),
    ):
        _ = Ledger.within(database, "trial").noise_key


async def test_a_run_beyond_the_populations_budget_is_refused_before_anyone_is_asked(tmp_path: Path) -> None:
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        PopulationLedger(database).limit("everyone", epsilon=20.0, delta=0.15)
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        honest = await everybody(running, stack)
        await running.scheduler.submit(specification(NAME).as_text())
        await complete(running)
        with pytest.raises(BudgetExceeded, match="everyone"):
            await running.scheduler.submit(specification(NAME, "second").as_text())
    assert {name for _, name, _, _ in honest.asked} == {"trial"}
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        PopulationLedger(database).verify()


async def test_a_cancelled_run_ends_without_a_model_and_stays_charged(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as running, crowd(running.listen, USERS) as peers:
        await running.scheduler.submit(specification(NAME).as_text())
        asked = asyncio.create_task(peers[0].next("ended"))
        await until(lambda: running.scheduler._active["trial"].engine is not None)  # before that nothing is charged
        ended = await running.scheduler.cancel("trial")
        assert (await asked).how == "cancelled"
        await running.scheduler.submit(specification(NAME, "idle", group="nobody").as_text())
        assert (await running.scheduler.cancel("idle"))["state"] == "cancelled"
    async with coordinator(tmp_path) as running:
        assert [each["state"] for each in await running.scheduler.records.runs()] == ["cancelled", "cancelled"]
    assert ended["state"] == "cancelled"
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        ledger = PopulationLedger(database)
        assert ledger.spent("everyone").epsilon == 15.0
        (charge,), promise = ledger.charges("everyone"), ALGORITHMS[NAME].gaussian(make_plan(specification(NAME)))
        assert (charge.mu, charge.variation) == (pytest.approx(promise.mu, rel=1e-7), promise.variation)


def test_two_runs_at_once_share_the_clients(tmp_path: Path) -> None:
    wanted = [specification(name, f"run-{name}") for name in (NAME, "recentred-sgd")]

    async def scene() -> list[np.ndarray]:
        honest = Honest.of(USERS)
        async with coordinator(tmp_path) as running, crowd(running.listen, USERS) as peers:
            tasks = [asyncio.create_task(peer.work(honest, len(wanted))) for peer in peers]
            for each in wanted:
                await running.scheduler.submit(each.as_text())
            models = [await complete(running, each.run) for each in wanted]
            await asyncio.gather(*tasks)
            return models

    for each, model in zip(wanted, carried_out(scene()), strict=True):
        (tmp_path / each.run).mkdir()
        np.testing.assert_array_equal(model, inline_model(each, tmp_path / each.run))


Captured = pytest.CaptureFixture[str]


def test_certs_adds_the_hosts_that_a_coordinators_certificate_lacks_and_keeps_its_key(tmp_path: Path) -> None:
    def stands() -> tuple[str, set[str], int]:
        loaded = certificates.load(tmp_path / "coordinator/certificate.pem")
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return certificates.fingerprint(loaded), {str(each.value) for each in names}, loaded.serial_number

    assert invoke(["admin", "certs", str(tmp_path), "--host", "hub", "--host", "10.0.0.7"]) == 0
    key, _, number = stands()
    assert invoke(["admin", "certs", str(tmp_path), "--host", "10.0.0.7"]) == 0
    assert stands() == (key, {"hub", "10.0.0.7"}, number)  # it has that one
    assert invoke(["admin", "certs", str(tmp_path), "--host", "hub.example.org", "--host", "hub"]) == 0
    assert stands()[:2] == (key, {"hub", "10.0.0.7", "hub.example.org"})
    assert invoke(["admin", "certs", str(tmp_path), "--host", "hub.example.org", "--renew"]) == 0
    assert stands()[:2] == (key, {"hub.example.org"})


def test_certs_revokes_clients_and_makes_nothing_else(tmp_path: Path, capsys: Captured) -> None:
    assert invoke(["admin", "certs", str(tmp_path), "--clients", "2"]) == 0
    before = {path.name for path in tmp_path.iterdir()}
    for _ in range(2):
        assert invoke(["admin", "certs", str(tmp_path), "--revoke", "client-1", "--revoke", "client-2"]) == 0
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'revoked.json'}\n")
    assert {path.name for path in tmp_path.iterdir()} == before
    listed = certificates.read_revoked(tmp_path / "revoked.json")
    assert listed == {
        certificates.fingerprint(certificates.load(tmp_path / f"{name}/certificate.pem")): name
        for name in ("client-1", "client-2")
    }
    assert invoke(["admin", "certs", str(tmp_path), "--client", "client-1", "--renew"]) == 2
    assert "not revoked" in capsys.readouterr().err
    for nobody in ("client-3", "coordinator", "../client-1"):
        assert invoke(["admin", "certs", str(tmp_path), "--revoke", nobody]) == 2
    assert certificates.read_revoked(tmp_path / "coordinator" / "revoked.json") == listed
    (tmp_path / "coordinator" / "revoked.json").write_text("[]")
    assert invoke(["serve", "--certs", str(tmp_path / "coordinator")]) == 2
    assert "coordinator/revoked.json" in capsys.readouterr().err


async def test_health_is_told_to_whoever_shows_a_certificate(issued: Path, tmp_path: Path, capsys: Captured) -> None:
    async with coordinator(tmp_path, transport=transport(issued)) as running:
        for folder, code in ((issued / "client-0", 0), (issued, 1)):
            asked = ["admin", "health", running.listen, "--certs", str(folder)]
            assert await asyncio.to_thread(invoke, asked) == code
    assert "Expected a coordinator that serves" in capsys.readouterr().err


ROUNDS = [{"kind": "round", "round": number, "rounds": 3, "messages": 5, "public": {}} for number in range(3)]
AWAITS, ENDED = {"kind": "awaits", "what": "clients", "ends": "12:00"}, {"kind": "ended", "how": "complete"}
Event = dict[str, Any]


class Scripted:
    """A control plane that says this, connection by connection: events, then perhaps how the connection ends."""

    def __init__(self, *connections: list[Event | Exception]) -> None:
        self.left = list(connections)

    def watch(self, run: str) -> Iterator[Event]:
        for each in self.left.pop(0):
            if isinstance(each, Exception):
                raise each
            yield each


def followed(control: Scripted, patience: float = 100.0) -> tuple[list[Event], list[float]]:
    slept: list[float] = []
    times: dict[str, Any] = {"sleep": slept.append, "clock": lambda: sum(slept)}
    events = plane.followed(lambda: control.watch("trial"), timeout=patience, **times)
    return list(events), slept


@pytest.mark.parametrize("away", [Unreachable("gone"), LedgerUnavailable("away")])
def test_every_event_is_told_once_through_restarts(away: Exception) -> None:
    control = Scripted(
        [AWAITS, *ROUNDS[:2], away], [away], [away], [AWAITS, *ROUNDS[:2]], [*ROUNDS, AWAITS | {"ends": "13:00"}, ENDED]
    )
    events, slept = followed(control)
    assert events == [AWAITS, *ROUNDS, AWAITS | {"ends": "13:00"}, ENDED]
    assert slept == [1.0, 2.0, 4.0, 1.0]  # longer each time, from the beginning once it was there


def test_what_is_awaited_is_told_once_however_many_seconds_are_left() -> None:
    first = AWAITS | {"left": 9}
    assert followed(Scripted([first, Unreachable("gone")], [AWAITS | {"left": 4}, ENDED]))[0] == [first, ENDED]


ENDS: dict[str, tuple[list[Event | Exception], int]] = {
    "done": ([ENDED], 0),
    "failed": ([ENDED | {"how": "failed", "error": "x"}], 1),
    "cancelled": ([ENDED | {"how": "cancelled"}], 1),
    "no such run": ([ConfigError("none of that name")], 2),
    "no minimum cohort": ([ENDED | {"how": "below-min-cohort", "error": "x"}], 3),
    "paused": ([{"kind": "paused", "error": "another version"}], 4),
    "unreachable": ([Unreachable("nobody")], 5),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_exit_code_says_how_it_ended(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said, code = ENDS[how]
    monkeypatch.setenv("QUORON_TOKEN", "quoron_x")
    monkeypatch.setattr(Control, "watch", lambda self, run: Scripted(list(said)).watch(run))
    assert invoke([*reaching(coordinator="127.0.0.1:1", insecure=True), "watch", "trial", "--timeout", "0"]) == code
    capsys.readouterr()
    assert invoke(["watch", "--help"]) == 0
    assert (str(code) if code != 2 else "") in capsys.readouterr().out


async def test_a_watch_over_a_connection_that_died_without_a_word_ends_as_one_that_may_be_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for words alone, and would for ever: nothing that it sends fails."""
    assert "grpc.keepalive_time_ms" in dict(control._OPTIONS)
    hurried = dict.fromkeys(("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"), 500)
    monkeypatch.setattr(control, "_OPTIONS", tuple((dict(control._OPTIONS) | hurried).items()))
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="auditor")
    async with coordinator(tmp_path) as running:
        await running.scheduler.submit(specification("one-pass-dp-sgd").as_text())
        with Wires(running.control) as wires, Control(wires.address, token, insecure=True) as own:
            events = own.watch("trial")
            assert (await asyncio.to_thread(next, events))["kind"] == "awaits"
            wires.cut.add(0)
            with pytest.raises(Unreachable):
                await asyncio.to_thread(next, events)


async def test_a_command_takes_its_own_arguments_and_no_others(tmp_path: Path) -> None:
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
    async with coordinator(tmp_path) as running, dialled(running, token) as call:
        for command, given in (
            ("plan", {}),
            ("plan", {"run": 7}),
            ("plan", {"run": "\ud800"}),
            ("plan", {"run": "trial", "by": "eve"}),
            ("cancel", {"run": "trial", "by": "eve"}),
            ("users", {"after": 1.5}),
            ("users", {"after": True}),
            ("limit", {"group": "everyone", "epsilon": "1", "delta": 0.0}),
            ("limit", {"group": "everyone", "epsilon": 10**400, "delta": 0.0}),
            ("runs", {"self": 1}),
        ):
            code, words = await status(call(command, **given))
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert f"with {command}, got " in words
        for command in ("", "watch", "__init__", "_scheduler"):
            code, words = await status(call(command))
            assert code == grpc.StatusCode.INVALID_ARGUMENT
            assert "Expected a command of submit, runs, cancel" in words
        assert (await call("limit", group="everyone", epsilon=2, delta=0.5))["group"] == "everyone"

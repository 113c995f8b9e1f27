"""A coordinator's roster: who is drawn follows connections and what operators say, and nothing that clients compute."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import numpy as np
import pytest
import sqlalchemy as sa

from federation.crowd import Honest, Peer, carried_out, coordinator, crowd, specification, until
from federation.tls import channel, own_authority, refused, transport
from quoron.cli.app import invoke
from quoron.operate.control import Address, Control
from quoron_client.protocol import rotation
from quoron_client.protocol.questions import Status
from quoron_privacy.errors import ConfigError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.books.drawing import draw, packed, seed_of
from quoron_server.books.lifetime_ledger import PopulationLedger
from quoron_server.books.registry import Registry
from quoron_server.books.roster import DAY, Roster
from quoron_server.service import Coordinator, certificates, revocation, tokens
from quoron_server.service.revocation import Revocations
from quoron_server.service.sessions import Sessions

USERS = 20
TEXT = specification("one-pass-dp-sgd").as_text()


@dataclass
class Clock:
    now: float = 1.8e9

    def __call__(self) -> float:
        return self.now


def clocked(running: Coordinator) -> Clock:
    clock = Clock()
    running.manager._registry.roster._clock = clock
    return clock


def registry(running: Coordinator) -> Registry:
    return running.manager._registry


def trusting(issued: Path, tmp_path: Path) -> dict[str, object]:
    revocation.make(tmp_path / "revoked.json")
    return {"transport": replace(transport(issued), revoked=Revocations(tmp_path / "revoked.json"))}


def key_of(folder: Path, name: str) -> str:
    return certificates.fingerprint(certificates.load_certificate(folder / f"{name}.pem"))


async def waits(running: Coordinator) -> dict[str, object]:
    found = await running.manager.awaited("trial")
    assert found is not None
    return {name: found[name] for name in ("active", "away", "retired", "needed")}


def test_five_dead_three_revoked_and_three_new_of_twenty_the_next_run_is_of_the_living(
    issued: Path, tmp_path: Path
) -> None:
    """Without a word from the operator: dead is not seen for a week, revoked is on the list, new is enrolled."""
    wanted = specification("one-pass-dp-sgd")
    fifteen = wanted.model_copy(update={"problem": replace(wanted.problem, users=15), "options": {"rounds": 5}})
    own = own_authority(issued, tmp_path)
    for number in range(3):
        certificates.issue(own, f"new-{number}", days=1)

    async def scene() -> tuple[list[int], list[dict[str, object]]]:
        async with coordinator(tmp_path, **trusting(issued, tmp_path)) as running:
            clock = clocked(running)
            for number in range(USERS):
                registry(running).enrol(key_of(issued, f"client-{number}"), name=f"client-{number}")
            clock.now += 8 * DAY
            for number in (5, 6, 7):
                revocation.add(tmp_path / "revoked.json", key_of(issued, f"client-{number}"), name=f"client-{number}")
            for number in range(5, USERS - 1):
                if number in (5, 6, 7):
                    assert await refused(running.listen, issued, f"client-{number}")
                    continue
                async with channel(running.listen, issued, f"client-{number}") as one:
                    await Peer(one).enrol()
            await running.manager.submit(fifteen.as_text())
            said = [await waits(running)]
            for folder, name in ((own, "new-0"), (own, "new-1"), (own, "new-2"), (issued, f"client-{USERS - 1}")):
                assert not len(registry(running).members("trial"))
                async with channel(running.listen, folder, name) as one:
                    await Peer(one).enrol()
            await until(lambda: len(registry(running).members("trial")) > 0)
            listed = (await running.manager.users.page(group="everyone", state="", after=0))["users"]
            return registry(running).members("trial").tolist(), said + listed

    members, (said, *listed) = carried_out(scene())
    assert said == {"active": 11, "away": 6, "retired": 3, "needed": 15}
    assert members == [*range(8, 20), 20, 21, 22]
    assert [user["name"] for user in listed if user["state"] == "away"] == [f"client-{n}" for n in range(5)]
    assert [user["why"] for user in listed if user["state"] == "retired"] == ["revoked"] * 3
    assert {user["software"] for user in listed if user["user"] >= 8} == {"test"}


async def test_a_run_that_has_begun_goes_on_with_its_members_wherever_they_are(tmp_path: Path) -> None:
    """After a restart of the coordinator, too: seats that are filled are not counted again."""
    async with coordinator(tmp_path) as running:
        for number in range(USERS):
            registry(running).enrol(f"name:client-{number}")
        await running.manager.submit(TEXT)
        await until(lambda: running.sessions.runs)
    async with coordinator(tmp_path) as running:
        registry(running).roster.retire(range(USERS))
        await until(lambda: running.sessions.runs)
    async with coordinator(tmp_path) as running:
        await until(lambda: running.sessions.runs)
        assert list(running.sessions.runs) == ["trial"]


async def test_a_user_who_is_retired_between_the_count_and_the_draw_makes_a_run_wait_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        roster = registry(running).roster
        for number in range(USERS):
            registry(running).enrol(f"name:client-{number}")
        standing = roster.standing

        def slow(group: str) -> object:
            found = standing(group)
            roster.retire([3])
            return found

        roster.standing = slow
        await running.manager.submit(TEXT)
        await until(lambda: not running.manager._active and running.manager._waiting)
        roster.standing = standing
        said, charged = await waits(running), PopulationLedger(running._database).rows()
        await running.manager.after(await running.manager.users.change("back", "3"))
        peers = await stack.enter_async_context(crowd(running.listen, USERS))
        honest = Honest.of(USERS)
        done = await asyncio.gather(*(peer.work(honest) for peer in peers))
        how = done[0]
    assert said == {"active": 19, "away": 0, "retired": 1, "needed": 20}
    assert how == "complete"
    assert [row["kind"] for row in charged] == ["submit"]


def after_a_run(folder: Path, kind: str) -> tuple[list[int], list[tuple[int, str]]]:
    """The members of the next run, and the roster, after one in which users were honest, silent, or rejected."""
    honest = Honest.of(USERS, range(USERS) if kind == "silent" else ())

    def answering(user: int, message: pb.Question) -> pb.Answer | None:
        given = honest(user, message)
        if kind == "rejected" and given is not None and user % 2:
            given.values.data = np.full(len(given.values.data) // 8, np.nan).tobytes()
        return given

    async def scene() -> tuple[list[int], list[tuple[int, str]]]:
        first = specification("one-pass-dp-sgd").model_copy(update={"seconds": 0.1, "early_ends": False})
        async with coordinator(folder) as running, crowd(running.listen, USERS) as peers:
            await running.manager.submit(first.as_text())
            await asyncio.gather(*(peer.work(answering) for peer in peers))
            registry(running).add_run("next", "{}")
            members = registry(running).fix_members("next", 7).tolist()
            return members, [(user.user, user.state) for user in registry(running).roster.page()]

    return carried_out(scene())


def test_nothing_that_a_client_answers_moves_who_is_drawn_next(tmp_path: Path) -> None:
    """Silent, rejected or honest: the next run's members are the same, since all of them were connected."""
    found = {}
    for kind in ("honest", "silent", "rejected"):
        (tmp_path / kind).mkdir()
        found[kind] = after_a_run(tmp_path / kind, kind)
    assert found["honest"][0] == draw(seed_of("next", "{}"), np.arange(USERS), 7).tolist()
    assert found["silent"] == found["rejected"] == found["honest"]


def test_a_roster_that_follows_rejected_answers_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: whose answer is rejected is away."""
    seen: list[Roster] = []
    made, answer = Roster.__init__, Sessions.answer

    def making(self: Roster, *given: object, **named: object) -> None:
        made(self, *given, **named)
        seen.append(self)

    def answered(self: Sessions, user: int, message: pb.Answer, size: int = 0) -> pb.Verdict:
        verdict = answer(self, user, message, size)
        if (
            user in (row := self.runs["trial"].open.cohort.rows)
            and self.runs["trial"].open.status[row[user][0]] == Status.REJECTED
        ):
            seen[-1].away(user)
        return verdict

    monkeypatch.setattr(Roster, "__init__", making)
    monkeypatch.setattr(Sessions, "answer", answered)
    assert after_a_run(tmp_path, "rejected")[0] != draw(seed_of("next", "{}"), np.arange(USERS), 7).tolist()


def test_who_was_charged_is_on_the_chain_with_the_draw_of_its_members(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = specification("one-pass-dp-sgd").model_copy(update={"simulation": False, "simulation_seed": None})

    async def scene() -> tuple[list[dict[str, object]], dict[str, object]]:
        async with coordinator(tmp_path, allow_simulation=False) as running:
            for number in range(USERS + 5):
                registry(running).enrol(f"name:client-{number}")
            registry(running).roster.retire([2])
            await running.manager.submit(wanted.as_text())
            await until(lambda: any(run.engine for run in running.manager._active.values()))  # begun, and charged
            own = operator(running, tmp_path)
            assert await asyncio.to_thread(invoke, ["users", "drawn", "trial", *own]) == 0
            assert capsys.readouterr().out.startswith("trial: 20 of 24 active users, by seed ")
            ledger, told = PopulationLedger(running._database), await running.manager.users.drawn("trial")
            with running._database.writing() as connection:  # another was put in by hand
                slots = {"old": told["drawn"][0], "new": 2}
                connection.execute(sa.text('UPDATE slots SET "user" = :new WHERE "user" = :old'), slots)
            assert await asyncio.to_thread(invoke, ["users", "drawn", "trial", *own]) == 1
            assert "to be those that its seed draws, got others" in capsys.readouterr().err
            with running._database.writing() as connection:  # and its traces are wiped
                slots = {"old": 2, "new": told["drawn"][0]}
                connection.execute(sa.text('UPDATE slots SET "user" = :new WHERE "user" = :old'), slots)
                connection.execute(sa.text("UPDATE draws SET active = :x"), {"x": packed(np.arange(USERS + 5))})
                members = draw(told["seed"], np.arange(USERS + 5), USERS)
                for slot, user in enumerate(members.tolist()):
                    connection.execute(sa.text('UPDATE slots SET "user" = :u WHERE slot = :s'), {"u": user, "s": slot})
            assert await asyncio.to_thread(invoke, ["users", "drawn", "trial", *own]) == 1
            assert "to be those on the chain, got others" in capsys.readouterr().err
            return ledger.rows(), told

    rows, told = carried_out(scene())
    (drawn,) = [row["payload"]["drawn"] for row in rows if row["kind"] == "charge"]
    assert drawn == {name: told[name] for name in ("seed", "active", "of", "members")}
    assert told["seed"] == seed_of("trial", wanted.as_text())
    assert told["users"] == [user for user in range(USERS + 5) if user != 2]
    assert told["drawn"] == draw(told["seed"], np.array(told["users"]), USERS).tolist()


def operator(running: Coordinator, folder: Path) -> list[str]:
    token = tokens.add(folder / "tokens.json", name="ada", role="operator")
    (folder / "token").write_text(token)
    return ["--coordinator", running.control, "--token-file", str(folder / "token"), "--insecure"]


async def test_an_auditor_reads_the_roster_and_changes_nothing(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as running, crowd(running.listen, 2):
        token = tokens.add(tmp_path / "tokens.json", name="eve", role="auditor")
        with Control(Address(running.control, token, None, True)) as control:
            listed = len(await asyncio.to_thread(lambda: list(control.users())))
            standing = await asyncio.to_thread(control.standing, "everyone")
            with pytest.raises(Exception, match="role operator, got auditor"):
                await asyncio.to_thread(control.change_user, "retire", "0")
    assert (listed, standing) == (2, {"active": 2, "away": 0, "retired": 0})


class TestRotation:
    """A key that the old one has signed is the same user, and the old one is nobody's."""

    @pytest.fixture
    def folder(self, issued: Path, tmp_path: Path) -> Path:
        own = own_authority(issued, tmp_path)
        for name in ("ada", "ada-2", "ben"):
            certificates.issue(own, name, days=1)
        return own

    def signed(self, folder: Path, old: str, new: str) -> str:
        return rotation.sign(folder / f"{old}.key", folder / f"{new}.key")

    async def test_the_same_user_comes_back_with_its_new_key_and_the_old_one_is_refused(
        self, issued: Path, folder: Path
    ) -> None:
        async with (
            coordinator(folder, **trusting(issued, folder)) as running,
            channel(running.listen, folder, "ada") as before,
            channel(running.listen, folder, "ada-2") as after,
        ):
            old, new = Peer(before), Peer(after)
            assert [await old.enrol(), await new.enrol()] == [0, 1]
            for peer in (old, new):
                await peer.hello()
            registry(running).note_agreed("before", [0], epsilon=1.0, delta=1e-6)
            said = await running.manager.users.rotate("ada", self.signed(folder, "ada", "ada-2"))
            assert "the same user, in the same runs, with the same lifetime budget" in said["said"]
            for peer in (old, new):
                assert await peer.call.code() == grpc.StatusCode.UNAVAILABLE  # it may come back
            assert await new.enrol() == 0
            await new.hello()
            assert await refused(running.listen, folder, "ada") == grpc.StatusCode.FAILED_PRECONDITION
            rows = [row["payload"] for row in PopulationLedger(running._database).rows()]
            assert rows == [
                {"what": "rotated", "user": 0, "old": key_of(folder, "ada"), "new": key_of(folder, "ada-2")}
            ]

    async def test_a_revoked_key_a_stranger_and_another_user_rotate_nothing(self, issued: Path, folder: Path) -> None:
        async with coordinator(folder, **trusting(issued, folder)) as running:
            for name in ("ada", "ben"):
                registry(running).enrol(key_of(folder, name), name=name)
            users = running.manager.users
            for who, statement, words in (
                (
                    "ben",
                    self.signed(folder, "ada", "ada-2"),
                    "a rotation of user 1, got one that the key of user 0",
                ),
                ("ada", self.signed(folder, "ada-2", "ben"), "Expected the key of a user"),
                ("ada", "{}", "Expected a rotation, signed by the old key"),
            ):
                with pytest.raises(ConfigError, match=words):
                    await users.rotate(who, statement)
            revocation.add(folder / "revoked.json", key_of(folder, "ada"), name="ada")
            with pytest.raises(ConfigError, match=r"never revoked, got .*, the old one"):
                await users.rotate("ada", self.signed(folder, "ada", "ada-2"))
            await asyncio.to_thread(users.look)
            with pytest.raises(ConfigError, match="whose certificate is good, got user 0"):
                await users.change("back", "ada")
            assert registry(running).user(key_of(folder, "ada")) == 0
            assert PopulationLedger(running._database).rows() == []

    def test_no_changed_statement_is_one(self, folder: Path) -> None:
        text = self.signed(folder, "ada", "ada-2")
        assert rotation.check(text) == (key_of(folder, "ada"), key_of(folder, "ada-2"))
        stated, other = json.loads(text), json.loads(self.signed(folder, "ben", "ada-2"))
        swapped = {"old": stated["new"], "new": stated["old"]}
        for change in (
            {"kind": "quoron rotation 2"},
            swapped,
            swapped | {"signatures": {"old": stated["signatures"]["new"], "new": stated["signatures"]["old"]}},
            {"old": other["old"]},
            {"signatures": other["signatures"]},
            {"signatures": {"old": stated["signatures"]["old"], "new": stated["signatures"]["old"]}},
            {"signatures": None},
            {"new": "§"},
        ):
            with pytest.raises(ConfigError, match="Expected a rotation"):
                rotation.check(json.dumps(stated | change))
        for nonsense in ("", "[]", "null", "[" * 20_000, "1" * 10_000):
            with pytest.raises(ConfigError, match="Expected a rotation"):
                rotation.check(nonsense)
        with pytest.raises(ConfigError, match="Expected two keys, got one"):
            self.signed(folder, "ada", "ada")

"""Members are drawn from the active users, by public randomness that anybody can draw again; keys may follow keys."""

import asyncio
import contextlib
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federation.crowd import Honest, Peer, carried_out, coordinator, crowd, specification, until
from federation.tls import channel, own_authority, refused, transport
from operators import reaching
from quoron.cli.app import invoke
from quoron.federation.control import Control
from quoron_client.protocol.questions import Status
from quoron_privacy.arrays import compressed
from quoron_privacy.errors import ConfigError
from quoron_protos.v1 import federation_pb2 as pb
from quoron_server.service import Coordinator, certificates, tokens
from quoron_server.service.certificates import Revocations
from quoron_server.service.sessions import Sessions
from quoron_server.silos import by_client, draw, homes, seed_of
from quoron_server.storage.lifetime_ledger import PopulationLedger
from quoron_server.storage.registry import DAY, Registry
from server.helper_scene import Clock

one_kind = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # of database: what SQL says is not asked


def enrolled(registry, *names, group="everyone"):
    return [registry.enrol(f"key of {name}", group, name=name, software="quoron 1") for name in names]


def states(registry):
    return {user.name: user.state for user in registry.page()}


def drawn_slowly(seed, active, n):
    ranked = sorted(active, key=lambda user: hashlib.sha256(f"{seed} {user}".encode()).hexdigest())
    return sorted(ranked[:n])


@given(users=st.sets(st.integers(0, 10**6), min_size=1, max_size=40), data=st.data())
def test_whoever_draws_again_gets_the_same_members(users, data):
    n, seed = data.draw(st.integers(1, len(users))), seed_of(data.draw(st.text(max_size=5)), "{}")
    active = np.array(sorted(users))
    assert draw(seed, active, n).tolist() == drawn_slowly(seed, users, n)
    assert draw(seed, active, len(users)).tolist() == sorted(users)


def test_everybody_is_drawn_equally_often():
    """Of 40,000 draws of 3 in 10 each user is in 12,000: farther than 600 by chance with less than 10⁻⁸ in all."""
    active = np.arange(10) * 7
    counts = np.zeros(64, int)
    for number in range(40_000):
        counts[draw(seed_of(str(number), ""), active, 3)] += 1
    assert np.all(np.abs(counts[active] - 12_000) < 600)


@one_kind
def test_who_was_not_seen_is_away_and_back_when_it_connects(registry, clock):
    enrolled(registry, "ada", "ben")
    clock.now += 6.9 * DAY
    assert states(registry) == {"ada": "active", "ben": "active"}
    enrolled(registry, "ben")
    clock.now += 0.5 * DAY  # beyond seven days, and the step in which it is kept
    assert states(registry) == {"ada": "away", "ben": "active"}
    assert registry.standing("everyone") == {"active": 1, "away": 1, "retired": 0}
    enrolled(registry, "ada")
    assert states(registry) == {"ada": "active", "ben": "active"}


@one_kind
def test_what_the_operator_says_stands_until_it_says_otherwise(registry, clock):
    enrolled(registry, "ada", "ben", "cem")
    registry.retire([0, 1])
    for _ in "ab":
        enrolled(registry, "ada", "ben", "cem")  # connecting changes nothing of it
        assert states(registry) == {"ada": "retired", "ben": "retired", "cem": "active"}
        clock.now += 30 * DAY
    assert registry.active("everyone").tolist() == []
    enrolled(registry, "ada", "ben", "cem")
    registry.back(0)
    registry.back(1)
    assert set(states(registry).values()) == {"active"}


def test_a_user_is_found_by_number_name_or_fingerprint_and_never_guessed(registry):
    enrolled(registry, "ada", "ben", "eve")
    registry.enrol("0123456789abcdef", name="eve")
    assert [registry.find(word).user for word in ("1", "ada", "key of ben", "01234567")] == [1, 0, 1, 3]
    with pytest.raises(ConfigError, match="'eve', which several have: 2, 3"):
        registry.find("eve")
    for word in ("dan", "9", "0123456", "", "-1", "²"):
        with pytest.raises(ConfigError, match="Expected a user's number, name or fingerprint"):
            registry.find(word)


@one_kind
def test_a_user_whose_key_was_revoked_is_not_trusted_again_by_a_second_word(registry):
    new, revoked = enrolled(registry, "new", "lost")
    registry.retire_keys(["key of lost"])
    registry.retire([revoked])
    assert registry.find("lost").why == "revoked"
    assert registry.active("everyone").tolist() == [new]


def enrolled_silos(registry, **people):
    return [registry.enrol(f"key of {name}", name=name, people=each) for name, each in people.items()]


def test_its_people_have_the_numbers_that_follow_its_own(registry):
    assert enrolled_silos(registry, ada=1, north=300, ben=1, south=2) == [0, 1, 301, 302]
    assert enrolled_silos(registry, north=300, ada=1) == [1, 0], "again is the same"
    assert registry.users_count() == 304
    assert registry.silos() == {1: 300, 302: 2}
    np.testing.assert_array_equal(registry.active("everyone"), np.arange(304))
    found = homes(np.array([0, 1, 150, 300, 301, 302, 303, 304]), registry.silos())
    assert found.tolist() == [0, 1, 1, 1, 301, 302, 302, 304]


def test_members_are_drawn_over_persons_and_each_has_a_slot(registry):
    enrolled_silos(registry, ada=1, north=300, south=200)
    registry.add_run("summer", "{}")
    members = registry.fix_members("summer", 100)
    expected = draw(seed_of("summer", "{}"), np.arange(501), 100)
    np.testing.assert_array_equal(members, expected)
    assert registry.called(members[[0, -1]].tolist()) == ["north (300 people)", "south (200 people)"]
    registry.set_state("summer", "complete")
    assert registry.ended_with(1, 10) == [("summer", "complete")], "once, not once a person"


def test_rows_of_a_cohort_are_by_client_in_the_order_of_their_persons():
    users, silos = np.array([9, 3, 0, 12, 5, 4, 1]), {3: 4, 9: 4}
    slow = {}
    for place, user in sorted(enumerate(users.tolist()), key=lambda each: each[1]):
        home = next((first for first, people in silos.items() if first <= user < first + people), user)
        slow.setdefault(home, []).append(place)
    found = {client: rows.tolist() for client, rows in by_client(users, silos).items()}
    assert found == slow
    assert {client: rows.tolist() for client, rows in by_client(users, {}).items()} == {
        user: [place] for place, user in enumerate(users.tolist())
    }


USERS = 20
TEXT = specification("one-pass-dp-sgd").as_text()


def clocked(running: Coordinator) -> Clock:
    clock = Clock()
    running.scheduler.registry._clock = clock
    return clock


def registry(running: Coordinator) -> Registry:
    return running.scheduler.registry


def trusting(issued: Path, tmp_path: Path) -> dict[str, object]:
    certificates.revoke_all(tmp_path / "revoked.json", {})
    return {"transport": replace(transport(issued), revoked=Revocations(tmp_path / "revoked.json"))}


def key_of(folder: Path, name: str) -> str:
    return certificates.fingerprint(certificates.load(folder / f"{name}/certificate.pem"))


async def waits(running: Coordinator) -> dict[str, object]:
    found = await running.scheduler.awaited("trial")
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
                certificates.revoke_all(
                    tmp_path / "revoked.json", {key_of(issued, f"client-{number}"): f"client-{number}"}
                )
            for number in range(5, USERS - 1):
                if number in (5, 6, 7):
                    assert await refused(running.listen, issued, f"client-{number}")
                    continue
                async with channel(running.listen, issued, f"client-{number}") as one:
                    await Peer(one).enrol()
            await running.scheduler.submit(fifteen.as_text())
            said = [await waits(running)]
            for folder, name in ((own, "new-0"), (own, "new-1"), (own, "new-2"), (issued, f"client-{USERS - 1}")):
                assert not len(registry(running).members("trial"))
                async with channel(running.listen, folder, name) as one:
                    await Peer(one).enrol()
            await until(lambda: len(registry(running).members("trial")) > 0)
            listed = (await running.scheduler.users.page(0))["users"]
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
        await running.scheduler.submit(TEXT)
        await until(lambda: running.sessions.runs)
    async with coordinator(tmp_path) as running:
        registry(running).retire(range(USERS))
        await until(lambda: running.sessions.runs)
    async with coordinator(tmp_path) as running:
        await until(lambda: running.sessions.runs)
        assert list(running.sessions.runs) == ["trial"]


async def test_a_user_who_is_retired_between_the_count_and_the_draw_makes_a_run_wait_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with coordinator(tmp_path) as running, contextlib.AsyncExitStack() as stack:
        roster = registry(running)
        for number in range(USERS):
            registry(running).enrol(f"name:client-{number}")
        standing = roster.standing

        def slow(group: str) -> object:
            found = standing(group)
            roster.retire([3])
            return found

        roster.standing = slow
        await running.scheduler.submit(TEXT)
        await until(lambda: not running.scheduler._active and running.scheduler._waiting)
        roster.standing = standing
        said, charged = await waits(running), PopulationLedger(running._database).rows()
        await running.scheduler.after(await running.scheduler.users.change("back", "3"))
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
            await running.scheduler.submit(first.as_text())
            await asyncio.gather(*(peer.work(answering) for peer in peers))
            registry(running).add_run("next", "{}")
            members = registry(running).fix_members("next", 7).tolist()
            return members, [(user.user, user.state) for user in registry(running).page()]

    return carried_out(scene())


@pytest.mark.slow
def test_nothing_that_a_client_answers_moves_who_is_drawn_next(tmp_path: Path) -> None:
    """Silent, rejected or honest: the next run's members are the same, since all of them were connected."""
    found = {}
    for kind in ("honest", "silent", "rejected"):
        (tmp_path / kind).mkdir()
        found[kind] = after_a_run(tmp_path / kind, kind)
    assert found["honest"][0] == draw(seed_of("next", "{}"), np.arange(USERS), 7).tolist()
    assert found["silent"] == found["rejected"] == found["honest"]


def test_a_roster_that_follows_rejected_answers_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: whose answer is rejected is retired."""
    seen: list[Registry] = []
    made, answer = Registry.__init__, Sessions.answer

    def making(self: Registry, *given: object, **named: object) -> None:
        made(self, *given, **named)
        seen.append(self)

    def answered(self: Sessions, user: int, message: pb.Answer, size: int = 0) -> pb.Verdict:
        verdict = answer(self, user, message, size)
        if (
            user in (row := self.runs["trial"].open.cohort.rows)
            and self.runs["trial"].open.status[row[user][0]] == Status.REJECTED
        ):
            seen[-1].retire([user])
        return verdict

    monkeypatch.setattr(Registry, "__init__", making)
    monkeypatch.setattr(Sessions, "answer", answered)
    assert after_a_run(tmp_path, "rejected")[0] != draw(seed_of("next", "{}"), np.arange(USERS), 7).tolist()


def test_an_operator_sets_the_state_of_several_users_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scene() -> list[list[str]]:
        found = []
        async with coordinator(tmp_path) as running:
            for number in range(3):
                registry(running).enrol(f"name:client-{number}")
            own = operator(running, tmp_path)
            for words in (["0", "1", "retired"], ["1", "active"], ["2", "retired"], ["2", "active"]):
                assert await asyncio.to_thread(invoke, [*own, "admin", "users", "set", *words]) == 0
                found.append([user.state for user in registry(running).page()])
            assert await asyncio.to_thread(invoke, [*own, "admin", "users", "set", "0", "gone"]) == 2
            assert "'gone' is not one of 'retired', 'active'" in " ".join(capsys.readouterr().err.split())
        return found

    assert carried_out(scene()) == [
        ["retired", "retired", "active"],
        ["retired", "active", "active"],
        ["retired", "active", "retired"],
        ["retired", "active", "active"],
    ]


def test_who_was_charged_is_on_the_chain_with_the_draw_of_its_members(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = specification("one-pass-dp-sgd").model_copy(update={"simulation": False, "simulation_seed": None})

    async def scene() -> tuple[list[dict[str, object]], dict[str, object]]:
        async with coordinator(tmp_path, allow_simulation=False) as running:
            for number in range(USERS + 5):
                registry(running).enrol(f"name:client-{number}")
            registry(running).retire([2])
            await running.scheduler.submit(wanted.as_text())
            await until(lambda: any(run.engine for run in running.scheduler._active.values()))  # begun, and charged
            own = operator(running, tmp_path)
            assert await asyncio.to_thread(invoke, [*own, "admin", "users", "drawn", "trial"]) == 0
            assert capsys.readouterr().out.startswith("trial: 20 of 24 active users, by seed ")
            ledger, told = PopulationLedger(running._database), await running.scheduler.users.drawn("trial")
            with running._database.writing() as connection:  # another was put in by hand
                connection.execute('UPDATE slots SET "user" = ? WHERE "user" = ?', (2, told["drawn"][0]))
            assert await asyncio.to_thread(invoke, [*own, "admin", "users", "drawn", "trial"]) == 1
            assert "to be those that its seed draws, got others" in capsys.readouterr().err
            with running._database.writing() as connection:  # and its traces are wiped
                connection.execute('UPDATE slots SET "user" = ? WHERE "user" = ?', (told["drawn"][0], 2))
                connection.execute("UPDATE draws SET active = ?", (compressed(np.ones(USERS + 5, bool)),))
                members = draw(told["seed"], np.arange(USERS + 5), USERS)
                for slot, user in enumerate(members.tolist()):
                    connection.execute('UPDATE slots SET "user" = ? WHERE slot = ?', (user, slot))
            assert await asyncio.to_thread(invoke, [*own, "admin", "users", "drawn", "trial"]) == 1
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
    return reaching(coordinator=running.control, token_file=folder / "token", insecure=True)


async def test_an_auditor_reads_the_roster_and_changes_nothing(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as running, crowd(running.listen, 2):
        token = tokens.add(tmp_path / "tokens.json", name="eve", role="auditor")
        with Control(running.control, token, None, True) as control:
            listed = len(await asyncio.to_thread(lambda: list(control.users())))
            standing = await asyncio.to_thread(control.call, "standing", group="everyone")
            with pytest.raises(Exception, match="role operator, got auditor"):
                await asyncio.to_thread(control.call, "change_user", action="retire", user="0")
    assert (listed, standing) == (2, {"active": 2, "away": 0, "retired": 0})

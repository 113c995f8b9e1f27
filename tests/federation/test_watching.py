"""`quoron watch` through restarts of its coordinator, and what its exit code says to a script."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from federation.crowd import carried_out, coordinator, specification
from federation.wires import Wires
from quoron.cli.app import invoke
from quoron.operate import control, watching
from quoron.operate.control import Address, Control
from quoron_privacy.errors import ConfigError, LedgerUnavailable, Unreachable
from quoron_server.service import tokens

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
    events = watching.followed(control, "trial", patience=patience, sleep=slept.append, clock=lambda: sum(slept))  # type: ignore[arg-type]
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
    "no quorum": ([ENDED | {"how": "without-quorum", "error": "x"}], 3),
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
    assert invoke(["watch", "trial", "--insecure", "--coordinator", "127.0.0.1:1", "--patience", "0"]) == code
    capsys.readouterr()
    assert invoke(["watch", "--help"]) == 0
    assert (str(code) if code != 2 else "") in capsys.readouterr().out


def test_a_watch_over_a_connection_that_died_without_a_word_ends_as_one_that_may_be_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for words alone, and would for ever: nothing that it sends fails."""
    assert "grpc.keepalive_time_ms" in dict(control._OPTIONS)
    hurried = dict.fromkeys(("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"), 500)
    monkeypatch.setattr(control, "_OPTIONS", tuple((dict(control._OPTIONS) | hurried).items()))
    token = tokens.add(tmp_path / "tokens.json", name="ada", role="auditor")

    async def scene() -> None:
        async with coordinator(tmp_path) as running:
            await running.manager.submit(specification("one-pass-dp-sgd").as_text())
            with Wires(running.control) as wires, Control(Address(wires.address, token, insecure=True)) as own:
                events = own.watch("trial")
                assert (await asyncio.to_thread(next, events))["kind"] == "awaits"
                wires.cut.add(0)
                with pytest.raises(Unreachable):
                    await asyncio.to_thread(next, events)

    carried_out(scene())

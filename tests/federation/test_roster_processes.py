"""The roster with real processes: twenty clients over TLS, of whom some die, are revoked, or get another key."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from federation.crowd import HANGS, SEED, write_items
from federation.test_service_processes import CONFIG, Program, programs, quoron, serve

USERS, LIVING = 20, 15
NEW = range(USERS, USERS + 3)
DEAD, REVOKED = range(5), range(5, 8)


def client(folder: Path, where: str, number: int, data: Path, name: str | None = None) -> Program:
    name = f"client-{number + 1}" if name is None else name
    own = ["--certificate", folder / f"{name}.pem", "--key", folder / f"{name}.key"]
    limits = ["--lifetime-epsilon", "inf", "--lifetime-delta", 1.0, "--accept", "broadcast", "--simulation-seed", SEED]
    record = ["--data", data, "--record", folder / f"record-{number}.sqlite"]
    return Program("client", *record, "--coordinator", where, "--authority", folder / "authority.pem", *own, *limits)


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < ends, "The test hung."


@pytest.mark.slow
def test_the_next_run_is_of_the_living_without_a_word_from_the_operator(tmp_path: Path) -> None:
    """Five of twenty are killed, three revoked, three new; then one goes on with a key that its old one has signed."""
    (tmp_path / "run.toml").write_text(CONFIG.replace("rounds = 6", "rounds = 5"))
    quoron("certs", tmp_path, "--clients", USERS + len(NEW), "--client", "another")
    token, authority = tmp_path / "token", ("--authority", tmp_path / "authority.pem")
    quoron("tokens", "add", "ada", "--role", "operator", "--file", tmp_path / "tokens.json", "--out", token)
    own = [*authority, "--certificate", tmp_path / "coordinator.pem", "--key", tmp_path / "coordinator.key"]
    paths = write_items(tmp_path, USERS + len(NEW))
    with programs() as started:
        started.append(serve(tmp_path, *own, "--revoked", tmp_path / "revoked.json", "--away-after", "20s"))
        where, control = started[0].listening()
        operator = ["--coordinator", control, "--token-file", token, *authority]

        def listed() -> dict[str, str]:
            rows = map(json.loads, quoron("users", "list", "--json", *operator).splitlines())
            return {row["name"]: row["state"] for row in rows}

        def named(state: str) -> set[str]:
            return {name for name, its in listed().items() if its == state}

        def names(numbers: Iterable[int]) -> set[str]:
            return {f"client-{number + 1}" for number in numbers}

        def carried_out(run: str) -> list[int]:
            asked = ["--run", run, "--users", LIVING, "--simulation-seed", SEED, "--early-ends"]
            assert "It waits" not in quoron("submit", tmp_path / "run.toml", *asked, *operator)
            assert json.loads(quoron("watch", run, "--json", *operator).splitlines()[-1])["how"] == "complete"
            return list(json.loads(quoron("users", "drawn", run, "--json", *operator))["drawn"])

        clients = {number: client(tmp_path, where, number, paths[number]) for number in range(USERS)}
        started.extend(clients.values())
        until(lambda: named("active") == names(range(USERS)))
        for number in DEAD:
            clients[number].process.kill()
        quoron("certs", tmp_path, *(word for number in REVOKED for word in ("--revoke", f"client-{number + 1}")))
        clients |= {number: client(tmp_path, where, number, paths[number]) for number in NEW}
        started.extend(clients[number] for number in NEW)
        until(lambda: named("away") == names(DEAD) and named("retired") == names(REVOKED))
        living = names(set(clients) - {*DEAD, *REVOKED})
        until(lambda: named("active") == living)
        rows = list(map(json.loads, quoron("users", "list", "--json", *operator).splitlines()))
        assert {row["name"] for row in rows if row["user"] in carried_out("first")} == living
        assert all(row["software"].startswith("quoron ") for row in rows)

        last = clients[USERS - 1]
        last.stop()
        words = ["--key", tmp_path / f"client-{USERS}.key", "--new-key", tmp_path / "another.key"]
        quoron("users", "rotation", *words, "--out", tmp_path / "signed")
        said = quoron("users", "replace", f"client-{USERS}", "--rotation", tmp_path / "signed", *operator)
        assert "the same user, in the same runs, with the same lifetime budget" in said
        started.append(client(tmp_path, where, USERS - 1, paths[USERS - 1], "another"))
        until(lambda: "another" in named("active"))
        again = list(map(json.loads, quoron("users", "list", "--json", *operator).splitlines()))
        assert {row["user"] for row in again} == {row["user"] for row in rows}
        assert carried_out("second") == sorted(row["user"] for row in rows if row["name"] in living)

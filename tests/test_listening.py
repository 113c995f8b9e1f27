"""Which commands listen, where, and whom they let in: docs/operate.md#what-listens. The list is of all commands.

Ray: tests/simulations/test_sharding_ray.py. Flower's simulation: tests/flower/test_simulation_ray.py.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import pytest
import typer.main

from listening import asked, at_rest, listening
from operators import reaching
from quoron.cli.app import app
from row_files import described, in_buckets, rows
from small_run import TOML

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(sys.platform != "linux", reason="sockets are read from /proc"),
]
ROOT = Path(__file__).parents[1]
LISTENS = {"serve": "clients' certificates, operators' tokens", "--engine flower": "own user"}
LISTENS |= {
    "--engine service": "as of serve",
    "local start": "as of serve",
    "second-server serve": "coordinators' certificates",
}
Words = list[object]


def _simulate(place: Path, *more: object) -> Words:
    (place / "small.toml").write_text(TOML)
    return ["simulate", place / "small.toml", "--out", place / "run", *more]


def _train(place: Path, *more: object) -> Words:
    in_buckets(rows(1000), place / "d")
    return ["train", described(place, "d"), "--out", place / "run", *more]


def _compare(place: Path) -> Words:
    (place / "small.toml").write_text(TOML)
    return ["compare", place / "small.toml", "--algorithms", "recentred-sgd", "--seeds", 2, "--out", place / "run"]


def _table(place: Path) -> Path:
    in_buckets(rows(1000), place / "d", files=1)
    return next((place / "d").glob("*.parquet"))


def _declare(place: Path) -> Words:
    return ["bounds", _table(place), "--user", "who", "--epsilon", 8, "--numeric", "a"]


def _statistics(place: Path) -> Words:
    return ["stats", _table(place), "mean of a", "--user", "who", "--epsilon", 8, "--numeric", "a=0:100"]


def _tune(place: Path) -> Words:
    columns = ["--user", "who", "--label", "sick", "--numeric", "a=0:100"]
    searched = ["--epsilon", 8, "--vary", "domain.radius=[1, 3]", "--out", place / "run"]
    return ["tune", _table(place), *columns, *searched]


# Every command, at rest in the middle of its work where that writes a run's ledger, else at its end. Those that speak
# with a coordinator are at their end when there is none.
NOBODY = "127.0.0.1:9"
TOKENS = ["admin", "tokens", "ada", "--role", "operator"]


def _nobody(place: Path) -> Words:
    (place / "token").write_text("quoron_x")
    return reaching(coordinator=NOBODY, token_file=place / "token", insecure=True)


QUIET: dict[str, Callable[[Path], Words]] = {
    "simulate": _simulate,
    "simulate --engine": lambda place: _simulate(place, "--engine", "inline:workers=2"),
    "train": _train,
    "train --engine": lambda place: _train(place, "--engine", "inline:workers=2"),
    "compare": _compare,
    "tune": _tune,
    "bounds": _declare,
    "stats": _statistics,
    "evaluate": lambda place: ["evaluate", place / "none", place / "none.csv", "--user", "who", "--epsilon", 1],
    "resume": lambda place: ["resume", place / "none"],
    "plan": lambda place: ["plan", "quickstart"],
    "show": lambda place: ["show", place / "none"],
    "show algorithms": lambda place: ["show", "algorithms"],
    "predict": lambda place: ["predict", place / "none", place / "none.csv"],
    "example": lambda place: ["example", "storms", "--out", place],
    "leave": lambda place: ["leave", "--state", place / "none"],
    "second-server runs": lambda place: ["second-server", "runs", "--database", f"sqlite:///{place}/none.sqlite"],
    "silo": lambda place: ["admin", "silo", "show", "--state", place / "none"],
    "certs": lambda place: ["admin", "certs", place / "certs"],
    "tokens": lambda place: [*TOKENS, "--file", place / "t", "--out", place / "a"],
    "ledger": lambda place: ["ledger", "show", "--file", place / "l.sqlite"],
    "backup": lambda place: [*reaching(database=f"sqlite:///{place}/none.sqlite"), "admin", "backup", place / "kept"],
    "restore": lambda place: ["admin", "restore", place / "none"],
    "local": lambda place: ["local", "status", "--folder", place / "none"],
    "users": lambda place: [*_nobody(place), "admin", "users", "list"],
    "login": lambda place: ["login", NOBODY, "--token-file", _nobody(place) and place / "token", "--insecure"],
    "health": lambda place: ["admin", "health", NOBODY, "--insecure"],
    "submit": lambda place: [*_nobody(place), "submit", _simulate(place)[1], "--run", "x", "--users", 9],
    "runs": lambda place: [*_nobody(place), "runs"],
    "watch": lambda place: [*_nobody(place), "watch", "x", "--timeout", 0],
    "cancel": lambda place: [*_nobody(place), "cancel", "x"],
    "fetch": lambda place: [*_nobody(place), "fetch", "x", "--out", place / "x"],
}
LONG_LIVED = {"serve", "client"}


def test_every_command_is_in_the_list() -> None:
    commands = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    known = {*commands, *commands.pop("admin").commands} - {"admin"}
    assert known == {name.partition(" ")[0] for name in QUIET} | LONG_LIVED
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8").partition("### What listens")[2]
    for name in LISTENS:
        assert f"`{name}" in page or f"{name}`" in page, name


@pytest.mark.parametrize("name", QUIET)
def test_a_command_that_serves_nobody_listens_nowhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORON_LEDGER", str(tmp_path / "lifetime.sqlite"))
    monkeypatch.chdir(tmp_path)
    (place := tmp_path / "place").mkdir()
    with at_rest(*QUIET[name](place), folder=tmp_path) as command:
        assert command.bound == ()
        assert listening(command.process) == []


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A coordinator over TLS, and where its planes are."""
    files = ["--file", str(tmp_path / "tokens.json"), "--out", str(tmp_path / "ada")]
    for words in (["admin", "certs", str(tmp_path), "--clients", "1"], [*TOKENS, *files]):
        subprocess.run([sys.executable, "-m", "quoron", *words], check=True, capture_output=True)
    words = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--database", f"sqlite:///{tmp_path}/c.sqlite"]
    words += ["--tokens", str(tmp_path / "tokens.json"), "--certs", str(tmp_path / "coordinator")]
    process = subprocess.Popen([sys.executable, "-m", "quoron", "serve", *words], stdout=subprocess.PIPE, text=True)
    try:
        found = re.fullmatch(r"listening: clients (\S+), control (\S+)\n", process.stdout.readline())  # type: ignore[union-attr]
        assert found
        yield process, found[1], found[2]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def test_a_coordinator_lets_nobody_in_without_a_certificate_or_a_token(federation, tmp_path: Path) -> None:
    process, clients, control = federation
    found = listening(process.pid)
    assert {each.address for each in found} == {clients, control}
    assert all(each.here_alone for each in found)
    for each in found:
        assert set(asked(each).values()) <= {"UNAVAILABLE", "RemoteProtocolError", "ReadError"}, "TLS only"
    plain = grpc.ssl_channel_credentials((tmp_path / "authority.pem").read_bytes())
    planes = {clients: "quoron.v1.Federation", control: "quoron.v1.ControlPlane"}
    values: dict[str, dict[str, str]] = {}
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    for address in planes:
        with grpc.secure_channel(address, plain) as channel:
            values[address] = {}
            for question in ("/quoron.v1.ControlPlane/ListRuns", "/grpc.health.v1.Health/Check"):
                ask = channel.unary_unary(question, request_serializer=bytes, response_deserializer=bytes)
                values[address][question] = _code(lambda ask=ask: ask(b"", timeout=20.0))  # type: ignore[misc]
            look = channel.stream_stream(reflection, request_serializer=bytes, response_deserializer=bytes)
            values[address][reflection] = _code(lambda look=look: list(look(iter([b""]), timeout=20.0)))  # type: ignore[misc]
    assert set(values[clients].values()) == {"UNAVAILABLE"}, "no certificate, no connection"
    assert values[control].pop("/grpc.health.v1.Health/Check") == "OK", "that it serves is what any may be told"
    assert set(values[control].values()) == {"UNAUTHENTICATED"}


def test_who_watches_over_a_coordinator_is_let_in_where_that_was_asked_for(tmp_path: Path) -> None:
    words = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--database", f"sqlite:///{tmp_path}/c.sqlite"]
    command = [sys.executable, "-m", "quoron", "serve", "--insecure", *words, "--metrics", "0", "--log", "info,json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        found = re.fullmatch(r"listening: clients (\S+), control (\S+), metrics (\S+)\n", process.stdout.readline())  # type: ignore[union-attr]
        assert found
        here = listening(process.pid)
        assert {each.address for each in here} == set(found.groups())
        assert all(each.here_alone for each in here)
        told = {path: httpx.get(f"http://{found[3]}/{path}") for path in ("metrics", "healthz", "tokens.json")}
        assert [each.status_code for each in told.values()] == [200, 200, 404]
        assert "\nquoron_database_up 1.0\n" in told["metrics"].text
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert [json.loads(line).get("event") for line in errors.splitlines()] == ["started", "leaving"]


def test_a_client_listens_nowhere(federation, tmp_path: Path) -> None:
    _, clients, _ = federation
    (tmp_path / "own.csv").write_text("x,sick\n0.5,1\n")
    words = ["client", "--data", "own.csv", "--coordinator", clients, "--certs", "client-1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "quoron", *words], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        line = process.stderr.readline()  # type: ignore[union-attr]
        assert process.poll() is None, line
        assert listening(process.pid) == []
    finally:
        process.kill()
        process.communicate()


def _code(call: Callable[[], object]) -> str:
    try:
        call()
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"

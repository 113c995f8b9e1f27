"""The program itself: coordinator, operators and twenty clients as processes, over TLS; and the coordinator killed."""

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from federation.crowd import (
    DIMENSION,
    HANGS,
    SEED,
    Peer,
    carried_out,
    from_items,
    inline_model,
    write_items,
)
from operators import reaching
from quoron.config import parse
from quoron.federation.control import Control
from quoron.federation.submission import specify

USERS = 20
CONFIG = f"""
[population]
kind = "table"
items_per_user = 4
path = "nobody-reads-this.parquet"
user = "who"
label = "sick"
columns.numeric = {{ {", ".join(f"x{j} = [-1.0, 1.0]" for j in range(DIMENSION))} }}
columns.intercept = false
test_fraction = 0.0

[domain]
radius = 2.0

[privacy]
trust_model = "central-release"
min_cohort = "none"
epsilon = 15.0
delta = 0.1

[algorithm]
name = "one-pass-dp-sgd"
options = {{ rounds = 6 }}

[run]
seed = {SEED}
"""


class Program:
    """A process of the command line, and what it prints."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quoron", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def listening(self) -> tuple[str, str]:
        """Addresses of the client and the control plane, once they are there."""
        line = self.process.stdout.readline()
        found = re.fullmatch(r"listening: clients (\S+), control (\S+)\n", line)
        assert found, line + self.process.stderr.read()
        return found[1], found[2]

    def done(self) -> str:
        out, errors = self.process.communicate(timeout=HANGS)
        assert self.process.returncode == 0, errors
        return out

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.done()


@contextlib.contextmanager
def programs() -> Iterator[list[Program]]:
    """Whatever is put in is gone at the end."""
    started: list[Program] = []
    try:
        yield started
    finally:
        for each in started:
            if each.process.poll() is None:
                each.process.kill()
            each.process.communicate()


def quoron(*arguments: object, **environment: str) -> str:
    return Program(*arguments, **environment).done()


@pytest.mark.programs
def test_an_interrupted_coordinator_leaves_in_order(tmp_path: Path) -> None:
    with programs() as started:
        started.append(serve(tmp_path, "--insecure"))
        started[0].listening()
        started[0].process.send_signal(signal.SIGINT)
        started[0].done()


def serve(folder: Path, *more: object) -> Program:
    places = [
        "--listen",
        "127.0.0.1:0",
        "--control",
        "127.0.0.1:0",
        "--database",
        f"sqlite:///{folder}/coordinator.sqlite",
    ]
    return Program("serve", *places, "--tokens", folder / "tokens.json", "--allow-simulation", *more)


@pytest.mark.slow
def test_authority_and_certificates_are_changed_under_three_clients_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """No restart, nobody asked twice, the bits of the inline engine."""
    users, changes = 3, ["algorithm.name=recentred-sgd", "algorithm.options={rounds = 4}"]
    trial, paths = tmp_path / "trial", write_items(tmp_path, 3)
    (tmp_path / "run.toml").write_text(CONFIG)
    quoron("admin", "certs", trial, "--clients", users)
    token = tmp_path / "token"
    quoron("admin", "tokens", "ada", "--role", "operator", "--file", tmp_path / "tokens.json", "--out", token)
    names = [f"client-{number + 1}" for number in range(users)]

    def hand_out(*who: str) -> None:
        for name in (*names, "operator"):
            (tmp_path / name).mkdir(exist_ok=True)
        for source, target in [
            *((trial / name / file, tmp_path / name / file) for name in who for file in ("key.pem", "certificate.pem")),
            *((trial / "authority.pem", tmp_path / name / "authority.pem") for name in (*names, "operator")),
        ]:
            (tmp_path / "draft").write_bytes(source.read_bytes())
            (tmp_path / "draft").rename(target)

    def client(user: int, where: str) -> Program:
        place = tmp_path / names[user]
        limits = ["--limit", "inf,1", "--accept", "central-broadcast", "--accept", "central-release"]
        state = ["--data", paths[user], "--state", place / "record.sqlite", "--set", f"seed={SEED}"]
        return Program("client", "--coordinator", where, *state, "--certs", place, *limits)

    def says(program: Program, words: str) -> None:
        while words not in (line := program.process.stderr.readline()):
            assert line, "it has ended"

    hand_out(*names)
    wanted, _ = specify(parse(CONFIG, settings=changes), run="trial", users=users, seconds=120.0, early_ends=True)
    wanted = wanted.model_copy(update={"simulation": True, "simulation_seed": SEED})
    with programs() as started:
        started.append(serve(tmp_path, "--certs", trial / "coordinator"))
        where, control = started[0].listening()
        carried_out(enrolled_in_order(where, trial, users))
        started += [client(user, where) for user in range(users - 1)]
        operator = reaching(coordinator=control, token_file=token, authority=tmp_path / "operator/authority.pem")
        with Control(control, token.read_text().strip(), trial / "authority.pem") as control_plane:
            control_plane.submit(wanted.as_text())
        for each in started[1:]:
            says(each, "waiting for runs")
        quoron("admin", "certs", tmp_path / "next")
        fresh, file = (tmp_path / "next/authority.pem").read_bytes(), trial / "authority.pem"
        file.write_bytes(fresh + file.read_bytes())
        (tmp_path / "next/authority.key").rename(trial / "authority.key")
        quoron("admin", "certs", trial, "--clients", users, "--renew")
        hand_out(*names)
        quoron("admin", "certs", trial, "--client", "coordinator", "--renew")
        file.write_bytes(fresh)
        quoron("admin", "certs", trial)
        hand_out()
        for each in started[1:]:  # ended, as their authority is gone; and back, by the new one
            says(each, "not trusted here now")
            says(each, "waiting for runs")
        started.append(client(users - 1, where))  # for whom the open round has waited
        lines = [json.loads(line) for line in quoron(*operator, "watch", "trial", "--json").splitlines()]
        quoron(*operator, "fetch", "trial", "--out", tmp_path / "fetched")
        for each in reversed(started):
            each.stop()
    assert lines[-1]["how"] == "complete"
    with np.load(tmp_path / "fetched" / "model.npz") as stored:
        np.testing.assert_array_equal(stored["model"], inline_model(wanted, tmp_path, from_items(users)))
    asked = []
    for name in names:
        with contextlib.closing(sqlite3.connect(tmp_path / name / "record.sqlite")) as record:
            asked += [record.execute("SELECT count(*), count(DISTINCT round) FROM answers").fetchone()]
    assert all(0 < answers == rounds for answers, rounds in asked), "somebody was asked twice"


async def enrolled_in_order(where: str, folder: Path, users: int = USERS) -> None:
    """User i of the table is the i-th to enrol."""
    roots = (folder / "authority.pem").read_bytes()
    for user in range(users):
        pair = [(folder / f"client-{user + 1}/{end}.pem").read_bytes() for end in ("key", "certificate")]
        async with grpc.aio.secure_channel(where, grpc.ssl_channel_credentials(roots, *pair)) as channel:
            assert await Peer(channel).enrol() == user


@pytest.mark.programs
def test_a_coordinator_whose_database_never_answers_leaves_when_it_is_told_to(tmp_path: Path) -> None:
    """A server that takes connections and says nothing holds a thread of ours for as long as it likes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"postgresql://quoron@127.0.0.1:{silent.getsockname()[1]}/quoron"
        program = Program(
            *("serve", "--insecure", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--database", where),
            *("--tokens", tmp_path / "tokens.json"),
        )
        silent.settimeout(HANGS)
        with silent.accept()[0]:  # it has begun to ask, and waits
            program.process.send_signal(signal.SIGTERM)
            program.done()


TWO_SERVERS = f"""{CONFIG.partition("[privacy]")[0]}
[privacy]
trust_model = "two-servers"
epsilon = 8.0
delta = 1e-3

[algorithm]
name = "one-pass-dp-sgd"
options = {{ rounds = 4 }}
"""


@pytest.mark.slow
@pytest.mark.programs
def test_a_run_of_two_operators_goes_on_through_the_deaths_of_either(tmp_path: Path) -> None:
    """By the commands of docs/two-servers.md, each operator's in a folder of its own."""
    ours, theirs = tmp_path / "coordinator", tmp_path / "second"
    for folder in (ours, theirs):
        folder.mkdir()
    (ours / "run.toml").write_text(TWO_SERVERS)
    quoron("admin", "certs", ours, "--clients", USERS)
    quoron("admin", "tokens", "ada", "--role", "operator", "--file", ours / "tokens.json", "--out", ours / "token")
    quoron("admin", "certs", theirs, "--clients", 1)  # coordinator is its own, client-1 what the other shows it
    signing = ("--signing-key", theirs / "signing.key")
    assert len(quoron("second-server", "key", theirs / "second.pem", *signing).split()[-1]) == 64
    store = ["--database", f"sqlite:///{theirs}/second.sqlite"]
    kept = [*store, "--keys", theirs / "keys", *signing]

    def second(listen: str) -> Program:
        whom = ["--certs", theirs / "coordinator", "--coordinator", theirs / "client-1/certificate.pem"]
        return Program("second-server", "serve", *whom, *kept, "--listen", listen)

    with programs() as started:
        started.append(second("127.0.0.1:0"))
        assert started[0].process.stdout is not None
        where = started[0].process.stdout.readline().split()[2].rstrip(",")
        pinned = ["--second-server-key", theirs / "second.pem"]
        link = ["--set", f"second_server={where}", "--set", f"second_server_certs={theirs / 'client-1'}"]
        link += ["--set", f"second_server_key={theirs / 'second.pem'}"]
        started.append(serve(ours, "--certs", ours / "coordinator", *link))
        clients, control = started[1].listening()
        for user, path in enumerate(write_items(ours, USERS)):
            own = ["--certs", ours / f"client-{user + 1}", "--one-user", "--accept", "two-servers"]
            data = ["--data", path, "--state", ours / f"state-{user}.sqlite", "--limit", "1000,1"]
            started.append(Program("client", "--coordinator", clients, *own, *data, *pinned))
        operator = reaching(coordinator=control, token_file=ours / "token", authority=ours / "authority.pem")
        patient = ["--set", "privacy.min_cohort=0.9", "--waiting", 300]  # all are there before anybody is asked
        quoron(*operator, "submit", ours / "run.toml", "--run", "both", "--users", USERS, "--timeout", 12.0, *patient)
        started[0].process.send_signal(signal.SIGKILL)
        started[0].process.wait()
        started.append(second(where))
        lines = [json.loads(line) for line in quoron(*operator, "watch", "both", "--json").splitlines()]
        assert lines[-1]["how"] == "complete"
        started[-1].stop()
        told = quoron("second-server", "runs", *store)
        assert "both  closed" in told
        assert "keys destroyed" in told

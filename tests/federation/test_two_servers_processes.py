"""Coordinator, helper and clients as programs of three parties; the helper and the coordinator die on the way."""

import json
import signal
from pathlib import Path

import pytest

from federation.crowd import write_items
from federation.test_service_processes import CONFIG as ONE_SERVER
from federation.test_service_processes import Program, programs, quoron, serve

pytestmark = [pytest.mark.slow, pytest.mark.programs]

USERS = 20
CONFIG = f"""{ONE_SERVER.partition("[privacy]")[0]}
[privacy]
exposure = "two-servers"
epsilon = 8.0
delta = 1e-3

[algorithm]
name = "one-pass-dp-sgd"
options = {{ rounds = 4 }}
"""


def test_a_run_of_two_operators_goes_on_through_the_deaths_of_either(tmp_path: Path) -> None:
    """By the commands of docs/two-servers.md, each operator's in a folder of its own."""
    ours, theirs = tmp_path / "coordinator", tmp_path / "helper"
    for folder in (ours, theirs):
        folder.mkdir()
    (ours / "run.toml").write_text(CONFIG)
    quoron("certs", ours, "--clients", USERS)
    quoron("tokens", "add", "ada", "--role", "operator", "--file", ours / "tokens.json", "--out", ours / "token")
    quoron("certs", theirs, "--clients", 1)  # its coordinator.pem is the helper's own, client-1 what the other shows it
    signing = ("--signing-key", theirs / "signing.key")
    assert len(quoron("helper", "key", theirs / "helper-key.pem", *signing).split()[-1]) == 64
    own = ["--certificate", theirs / "coordinator.pem", "--key", theirs / "coordinator.key"]
    books = ["--database", f"sqlite:///{theirs}/helper.sqlite"]
    kept = [*books, "--keys", theirs / "keys", *signing]

    def second(listen: str) -> Program:
        whom = ["--authority", theirs / "authority.pem", "--coordinator", theirs / "client-1.pem"]
        return Program("helper", "serve", *own, *whom, *kept, "--listen", listen)

    with programs() as started:
        started.append(second("127.0.0.1:0"))
        assert started[0].process.stdout is not None
        where = started[0].process.stdout.readline().split()[2].rstrip(",")
        authority = ("--authority", ours / "authority.pem")
        link = ["--helper", where, "--helper-authority", theirs / "authority.pem"]
        link += ["--helper-certificate", theirs / "client-1.pem", "--helper-private-key", theirs / "client-1.key"]
        link += ["--helper-key", theirs / "helper-key.pem"]
        files = ["--certificate", ours / "coordinator.pem", "--key", ours / "coordinator.key"]
        started.append(serve(ours, *authority, *files, *link))
        clients, control = started[1].listening()
        for user, path in enumerate(write_items(ours, USERS)):
            shown = ["--certificate", ours / f"client-{user + 1}.pem", "--key", ours / f"client-{user + 1}.key"]
            limits = ["--lifetime-epsilon", 1000, "--lifetime-delta", 1.0, "--one-user", "--accept", "two-servers"]
            data = ["--data", path, "--record", ours / f"record-{user}.sqlite"]
            pinned = ["--helper-key", theirs / "helper-key.pem"]
            started.append(Program("client", "--coordinator", clients, *authority, *shown, *limits, *data, *pinned))
        operator = ["--coordinator", control, "--token-file", ours / "token", *authority]
        patient = ["--quorum", 0.9, "--waiting", 300]  # all are there before anybody is asked
        quoron("submit", ours / "run.toml", "--run", "both", "--users", USERS, "--seconds", 12.0, *patient, *operator)
        started[0].process.send_signal(signal.SIGKILL)
        started[0].process.wait()
        started.append(second(where))
        lines = [json.loads(line) for line in quoron("watch", "both", "--json", *operator).splitlines()]
        assert lines[-1]["how"] == "complete"
        live = quoron("helper", "runs", *books, "--keys", theirs / "keys")  # beside the one that serves
        started[-1].stop()
        told = quoron("helper", "runs", *books)
        assert live == told
        assert "both  closed" in told
        assert "keys destroyed" in told

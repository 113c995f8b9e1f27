"""Twenty clients as processes over TLS, eleven of which stop: in the middle of a run, and before the next one."""

import json
import signal
from pathlib import Path

import pytest

from federation.crowd import write_items
from federation.test_service_processes import CONFIG as WITHOUT_QUORUM
from federation.test_service_processes import Program, programs, quoron, serve
from quoron.operate.control import Address, Control
from quoron_server.service import certificates

pytestmark = [pytest.mark.slow, pytest.mark.programs]

USERS, STOPPED = 20, 11
CONFIG = f"""{WITHOUT_QUORUM.partition("[privacy]")[0]}
[privacy]
attendance = "public"
quorum = 0.5
epsilon = 8.0
delta = 1e-3

[algorithm]
name = "one-pass-dp-sgd"
options = {{ rounds = 2 }}
"""


def asked_of_all(seconds: float) -> list[object]:
    """Everybody is asked in each round, so that eleven who are missing are missing in the first."""
    return ["--set", "algorithm.name=recentred-sgd", "--set", "algorithm.options.rate=1.0", "--seconds", seconds]


def test_a_run_whose_clients_stop_ends_in_its_first_round_and_names_them(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    quoron("certs", tmp_path, "--clients", USERS)
    token = tmp_path / "token"
    quoron("tokens", "add", "ada", "--role", "operator", "--file", tmp_path / "tokens.json", "--out", token)
    authority = ("--authority", tmp_path / "authority.pem")
    own = [*authority, "--certificate", tmp_path / "coordinator.pem", "--key", tmp_path / "coordinator.key"]
    paths = write_items(tmp_path, USERS)
    with programs() as started:
        started.append(serve(tmp_path, *own))
        where, control = started[0].listening()
        for user in range(USERS):
            files = {end: tmp_path / f"client-{user + 1}.{end}" for end in ("pem", "key")}
            arguments = ["--coordinator", where, *authority, "--certificate", files["pem"], "--key", files["key"]]
            limits = ["--lifetime-epsilon", 1000, "--lifetime-delta", 1.0]
            limits += ["--one-user", "--accept", "broadcast", "--accept", "public-attendance"]
            record = ["--data", paths[user], "--record", tmp_path / f"record-{user}.sqlite"]
            started.append(Program("client", *record, *arguments, *limits))
        clients = started[1:]
        operator = ["--coordinator", control, "--token-file", token, *authority]
        ask = ["submit", tmp_path / "run.toml", "--users", USERS, *operator, "--waiting"]

        quoron(*ask, 300, "--run", "all", *asked_of_all(8.0))
        lines = [json.loads(line) for line in quoron("watch", "all", "--json", *operator).splitlines()]
        assert lines[-1]["how"] == "complete"
        rounds = [line for line in lines if line["kind"] == "round"]
        assert rounds[-1]["public"]["answered"] == USERS

        stopped, names = clients[:STOPPED], called(tmp_path, range(1, STOPPED + 1))
        quoron(*ask, 300, "--run", "stopped", *asked_of_all(30.0))
        with Control(Address(control, token.read_text().strip(), tmp_path / "authority.pem")) as control_plane:
            for event in control_plane.watch("stopped"):
                if event.get("what") == "answers":
                    break
        for client in stopped:  # after they were asked, and before half of the round is over
            client.process.send_signal(signal.SIGSTOP)
        watching = Program("watch", "stopped", "--json", *operator)
        out, _ = watching.process.communicate()
        assert watching.process.returncode == 3
        (told,) = (line for line in map(json.loads, out.splitlines()) if line["kind"] == "round")
        assert told["round"] == 0
        assert told["public"]["answered"] == USERS - STOPPED
        assert {names[each] for each in told["public"]["missing"]} == set(range(1, STOPPED + 1))

        for client in stopped:
            client.process.kill()
            client.process.communicate()
        quoron(*ask, 5, "--run", "few", *asked_of_all(8.0))
        watching = Program("watch", "few", *operator)
        out, _ = watching.process.communicate()
        assert watching.process.returncode == 3
        assert f"No quorum of willing clients: {USERS - STOPPED} of {USERS}" in out
        assert {names[each] for each in names if each in out} == set(range(1, STOPPED + 1))
        shown = quoron("ledger", "verify", "--coordinator", control, "--token-file", token, *authority)
        assert shown
        with Control(Address(control, token.read_text().strip(), tmp_path / "authority.pem")) as control_plane:
            rows = control_plane.ledger("")["rows"]
        charged = [row["payload"]["run"] for row in rows if row["kind"] == "charge"]
        assert charged == ["all", "stopped"], "nothing was charged to the run that nobody was asked for"
        for each in reversed([started[0], *clients[STOPPED:]]):
            each.stop()


def called(folder: Path, numbers: range) -> dict[str, int]:
    """The number of a client by each of its names: that of its certificate, and the beginning of its fingerprint."""
    found = {}
    for number in numbers:
        certificate = certificates.parse_certificate((folder / f"client-{number}.pem").read_bytes(), "a file")
        found |= {f"client-{number}": number, certificates.fingerprint(certificate)[:16]: number}
    return found

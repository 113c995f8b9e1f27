"""compose.helper.yml: two operators' containers on networks and with secrets of their own, by options that exist."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from federation.engine import FILE, ROOT, Engine, in_containers, services

HELPER = ROOT / "compose.helper.yml"
OVER = yaml.safe_load(HELPER.read_text(encoding="utf-8"))
MERGED = services(FILE, HELPER, variables={})
SCRIPT = ROOT / "examples/federation/helper.sh"
THEIRS = ("helper-setup", "helper")
CLIENTS = ("client-1", "client-2", "client-3")


def sources(name: str) -> set[str]:
    return {mount.split(":")[0] for mount in MERGED[name]["volumes"]}


@pytest.mark.parametrize("name", THEIRS)
def test_the_other_operators_services_are_as_contained_as_ours(name: str) -> None:
    for key in ("image", "user", "read_only", "tmpfs", "cap_drop", "security_opt"):
        assert MERGED[name][key] == MERGED["setup"][key]


def test_the_helper_meets_nobody_but_the_coordinator() -> None:
    assert MERGED["helper"]["networks"] == ["between"]
    assert OVER["networks"] == {"between": {"internal": True}}
    on_it = {name for name, service in MERGED.items() if "between" in service.get("networks", ())}
    assert on_it == {"helper", "coordinator"}
    assert "network_mode" in MERGED["helper-setup"]


def test_no_server_sees_the_others_books_or_keys_and_runs_keys_are_apart_from_what_is_backed_up() -> None:
    ours = {name for name in MERGED if name not in THEIRS}
    kept = {"helper-authority", "helper-identity", "helper-books", "helper-run-keys"}
    assert not any(sources(name) & kept for name in ours if MERGED[name].get("volumes"))
    assert sources("helper") == {"helper-identity", "helper-books", "helper-run-keys"}
    assert sources("coordinator") & sources("helper") == set()
    environment = MERGED["helper"]["environment"]
    books, keys = environment["QUORON_HELPER_DATABASE"], environment["QUORON_HELPER_KEYS"]
    assert "/var/lib/quoron/" in books
    assert not keys.startswith("/var/lib/quoron")


def test_clients_have_the_helpers_key_from_its_operator_and_accept_nothing_else() -> None:
    for name in CLIENTS:
        assert "helper-public" in sources(name)
        assert not sources(name) & sources("coordinator")
        command = MERGED[name]["command"]
        assert [command[at + 1] for at, word in enumerate(command) if word == "--accept"] == ["two-servers"]


@pytest.mark.programs
def test_the_script_makes_them_once(tmp_path: Path) -> None:
    for part in ("authority", "helper", "link", "public"):
        (tmp_path / part).mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    made = []
    for _ in range(2):
        environment = {**os.environ, "PATH": path, "QUORON_TRIAL": str(tmp_path)}
        found = subprocess.run(["sh", str(SCRIPT)], env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        files = [each for each in tmp_path.rglob("*") if each.is_file()]
        made.append({str(each.relative_to(tmp_path)): each.read_bytes() for each in files})
    assert made[0] == made[1]
    given = {name for name in made[0] if name.startswith("link/")}
    assert given == {f"link/{each}.pem" for each in ("authority", "certificate", "key", "helper-key")}
    assert made[0]["link/helper-key.pem"] == made[0]["public/helper-key.pem"]
    assert made[0]["helper/signing.key"] not in [content for name, content in made[0].items() if "helper/s" not in name]


@in_containers
def test_two_operators_carry_a_run_to_its_end_and_the_helpers_asks_it_while_it_serves(tmp_path: Path) -> None:
    with Engine(tmp_path / "c", MERGED) as composed:
        composed.up(*CLIENTS)
        composed.up("submit", "watch")
        assert composed.running["watch"].wait() == 0, composed.running["watch"].log()
        assert "complete" in composed.running["watch"].log()
        told = composed.running["helper"].exec("quoron", "helper", "runs")
        assert (told.returncode, told.stdout[:15]) == (0, "example  closed"), told.stderr
        for other in ("client-1", "submit"):
            assert "helper" not in composed._hosts(other), "nobody but the coordinator reaches it"
        composed.running["helper"].stop()

"""The compose files promise what their services can do, keep their secrets apart, and need nothing but the image."""

import re
from typing import Any

import click
import pytest
import typer.main
import yaml

from federation.engine import FILE, ROOT, services
from quoron.cli.app import app

COMPOSED = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES = services()
CLIENT = yaml.safe_load((ROOT / "compose.client.yml").read_text(encoding="utf-8"))
PUBLISHED = yaml.safe_load((ROOT / "compose.published.yml").read_text(encoding="utf-8"))
EVERY = SERVICES | {f"elsewhere-{name}": service for name, service in CLIENT["services"].items()}
EXAMPLES = "/opt/quoron/examples"
OURS = {name: service for name, service in EVERY.items() if service["image"] == "quoron:local"}
CLIENTS = sorted(name for name in SERVICES if name.startswith("client-"))
NODES = sorted(name.removeprefix("flower-") for name in SERVICES if name.startswith("flower-node-"))


def command_of(service: dict[str, Any]) -> click.Command | None:
    """The command of the program that a service runs; None for a script."""
    if service.get("entrypoint", ["quoron"])[0] != "quoron":
        return None
    found: click.Command = typer.main.get_command(app)
    for word in [*service.get("entrypoint", ["quoron"])[1:], *service["command"]]:
        if not isinstance(found, click.Group):
            break
        found = found.commands[word]
    return found


@pytest.mark.parametrize("name", EVERY)
def test_no_service_can_gain_privileges_or_write_outside_its_volumes(name: str) -> None:
    service = EVERY[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert "privileged" not in service
    assert "cap_add" not in service


def test_no_port_leaves_the_machine() -> None:
    assert not any("ports" in service for service in EVERY.values())
    assert {name for name, network in COMPOSED["networks"].items() if network.get("internal") is not True} == set()


def test_where_ports_are_published_they_are_the_coordinators_and_operators_stay_on_loopback() -> None:
    assert set(PUBLISHED["services"]) == {"setup", "coordinator"}
    assert PUBLISHED["services"]["coordinator"] == {
        "networks": ["published"],
        "ports": ["${QUORON_PUBLISH:-0.0.0.0}:7443:7443", "${QUORON_PUBLISH_CONTROL:-127.0.0.1}:7444:7444"],
    }
    assert set(PUBLISHED["services"]["setup"]["environment"]) == {"QUORON_HOST"}
    assert PUBLISHED["networks"] == {"published": {}}, "no network of the example is opened"
    assert not any("published" in service.get("networks", ()) for service in SERVICES.values())


@pytest.mark.parametrize("name", EVERY)
def test_no_secret_stands_in_the_environment(name: str) -> None:
    service = EVERY[name]
    for key, value in service.get("environment", {}).items():
        if re.search("PASSWORD|TOKEN|KEY|SECRET|PASS", key):
            assert str(value).startswith("/"), f"{key} holds a secret, not the path of one"
        assert not re.search(r"://[^/@]*:[^/@]*@", str(value)), f"{key} holds a password"
        assert "INSECURE" not in key
    assert not any("insecure" in word for word in service.get("command", ()))


def test_every_key_is_seen_by_its_owner_alone() -> None:
    seen: dict[str, set[str]] = {}
    for name, service in SERVICES.items():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if not source.startswith("."):
                seen.setdefault(source, set()).add(name)
                writable = name.endswith("setup") or not source.endswith(("-identity", "-password"))
                assert writable or mount.endswith(":ro"), mount
    assert seen["authority"] == {"setup", "identity"}, "both end when their work is done, and have no network"
    for name in seen["authority"]:
        assert SERVICES[name]["network_mode"] == "none"
        assert "restart" not in SERVICES[name]
    assert seen["coordinator-identity"] == {"setup", "coordinator"}
    assert seen["operator-identity"] == {"setup", "submit", "watch", "operator"}
    assert seen["database-password"] == {"setup", "postgres", "coordinator"}
    assert seen["flower-authority"] == {"flower-setup"}
    assert seen["flower-operator-identity"] == {"flower-setup", "flower-register", "flower-submit"}
    assert seen["flower-database-password"] == {"flower-setup", "flower-postgres", "flower-server"}
    for name in ("superlink", "proxy", "server", *NODES, *(f"app-{node[-1]}" for node in NODES)):
        assert seen[f"flower-{name}-identity"] == {"flower-setup", f"flower-{name}"}
    for client in CLIENTS:
        assert seen[f"{client}-identity"] == {"setup", client}
        assert seen[f"{client}-record"] == {client}


def test_clients_by_number_share_one_volume_and_no_other_service_has_it() -> None:
    having = {
        name
        for name, service in SERVICES.items()
        for mount in service.get("volumes", ())
        if mount.startswith("clients:")
    }
    assert having == {"setup", "client"}
    assert SERVICES["client"]["scale"] == 0, "none unless asked for"
    assert re.search(r"QUORON_SCALED", str(SERVICES["setup"]["environment"]))


@pytest.mark.parametrize("name", OURS)
def test_every_command_and_variable_is_one_that_the_program_knows(name: str) -> None:
    command = command_of(OURS[name])
    if command is None:
        return
    known = {str(each.envvar) for each in command.params if isinstance(each, click.Option) and each.envvar}
    given = {key for key in OURS[name].get("environment", {}) if key.startswith("QUORON_")}
    assert given <= known
    options = {text for each in command.params for text in each.opts}
    assert {word for word in OURS[name]["command"] if word.startswith("--")} <= options


def test_the_image_is_built_of_what_is_there_and_runs_as_nobody() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    final = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", final, flags=re.MULTILINE)
    assert 'ENTRYPOINT ["quoron"]' in final
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, flags=re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists()
            assert source in kept, f".dockerignore keeps {source} out"
    for name in (*CLIENTS, *NODES):
        assert int(name.rpartition("-")[2]) <= 20, "the image has trial folders for twenty of each"
    for name, service in SERVICES.items():
        if name.endswith("setup"):
            for mount in service["volumes"]:
                target = mount.split(":")[1]
                part = re.sub(r"-\d+$", "-%g", target)
                assert not target.startswith("/trial/") or part in final, f"the image does not make {target}"

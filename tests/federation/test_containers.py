"""The compose files promise what their services can do, keep their secrets apart, and need nothing but the image."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
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


def test_what_is_missing_is_said_with_what_to_do() -> None:
    for text in (ROOT / "compose.published.yml", ROOT / "compose.client.yml"):
        needed = re.findall(r"\$\{(\w+):\?([^}]*)\}", text.read_text(encoding="utf-8"))
        assert needed
        assert all(said.startswith(f"Set {name} to ") for name, said in needed)


def test_a_client_elsewhere_starts_again_and_keeps_its_identity_to_itself() -> None:
    client, identity = CLIENT["services"]["client"], CLIENT["services"]["identity"]
    assert client["restart"] == "unless-stopped"
    assert client["healthcheck"]["test"][:3] == ["CMD", "quoron", "health"]
    data, *mounts = client["volumes"]
    assert data["read_only"] is True
    assert data["bind"] == {"create_host_path": False}, "a missing file is an error, not a new folder"
    assert mounts == ["identity:/identity:ro", "record:/var/lib/quoron"]
    assert identity["volumes"] == ["identity:/identity"]
    assert identity["network_mode"] == "none"


@pytest.mark.parametrize("name", OURS)
def test_no_registry_is_asked_for_the_image_that_is_built_here(name: str) -> None:
    assert OURS[name]["pull_policy"] == ("build" if "build" in OURS[name] else "never")


def test_no_service_needs_a_file_of_the_checkout() -> None:
    for name, service in SERVICES.items():
        mounts = [mount.split(":")[0] for mount in service.get("volumes", ())]
        assert not any(source.startswith((".", "/")) for source in mounts), f"{name}: a umask can make it unreadable"


def test_the_example_files_that_services_name_are_in_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = dict(re.findall(rf"^COPY (\S+) ({EXAMPLES}/\S+)$", dockerfile, flags=re.MULTILINE))
    assert copied
    assert dockerfile.index("RUN chmod -R a+rX /opt/quoron") > max(dockerfile.index(f"COPY {each}") for each in copied)
    named = set(re.findall(rf"{EXAMPLES}/[\w./-]+", FILE.read_text(encoding="utf-8")))
    assert len(named) > 5
    for path in named:
        assert any(Path(path).is_relative_to(folder) for folder in copied.values()), path
        assert (ROOT / "examples" / Path(path).relative_to(EXAMPLES)).is_file(), path


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


class TestClientsByNumber:
    """`client.sh`, as containers run it, with another program in the client's place."""

    @staticmethod
    def _prepared(place: Path, number: int) -> dict[str, str]:
        for each in range(1, number + 1):
            (place / "clients" / f"client-{each}").mkdir(parents=True)
            (place / "clients" / f"client-{each}" / "items.csv").touch()
        (place / "bin").mkdir()
        (place / "bin" / "quoron").write_text('#!/bin/sh\necho "$@"\ncat > /dev/null\n')  # as long as it is wanted
        (place / "bin" / "ln").write_text("#!/bin/sh\n")  # /tmp is everybody's here
        for program in (place / "bin").iterdir():
            program.chmod(0o755)
        path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"PATH": path, "QUORON_CLIENTS_FOLDER": str(place / "clients")}

    def _started(self, environment: dict[str, str], me: str) -> tuple["subprocess.Popen[str]", str]:
        """One that runs, and the folder that it took; empty if it got none."""
        (Path(environment["QUORON_CLIENTS_FOLDER"]).parent / "bin" / "hostname").write_text(f"#!/bin/sh\necho {me}\n")
        (Path(environment["QUORON_CLIENTS_FOLDER"]).parent / "bin" / "hostname").chmod(0o755)
        process = subprocess.Popen(
            ["sh", ROOT / "examples/federation/client.sh"],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        found = re.search(r"--record \S+/(client-\d+)/record.sqlite", process.stdout.readline())
        return process, "" if found is None else found[1]

    def test_each_takes_a_folder_of_its_own_and_keeps_it_over_a_restart(self, tmp_path: Path) -> None:
        environment = self._prepared(tmp_path, 3)
        running = {me: self._started(environment, me) for me in ("a", "b", "c")}
        assert [taken for _, taken in running.values()] == ["client-1", "client-2", "client-3"]
        refused, nothing = self._started(environment, "d")
        said = refused.communicate()[1]
        assert (refused.returncode, nothing) == (2, "")
        assert "Expected a client's folder" in said
        for me in ("a", "b"):
            running[me][0].communicate()
        back, taken = self._started(environment, "b")
        assert taken == "client-2", "the one that it had, though another is free"
        other, taken = self._started(environment, "d")
        assert taken == "client-1", "whoever ends gives it back"
        for process in (back, other, running["c"][0]):
            process.communicate()
            assert process.returncode == 0

    def test_keys_and_diaries_are_made_once_for_each(self, tmp_path: Path) -> None:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {
            "PATH": programs,
            "QUORON_TRIAL": str(tmp_path),
            "QUORON_CLIENTS": "1",
            "QUORON_SCALED": "2",
        }
        made = []
        for _ in range(2):
            subprocess.run(
                ["sh", ROOT / "examples/federation/setup.sh"], env=environment, check=True, capture_output=True
            )
            made.append({path: path.read_bytes() for path in (tmp_path / "clients").rglob("*") if path.is_file()})
        assert made[0] == made[1]
        assert {path.name for path in made[0]} == {"authority.pem", "certificate.pem", "key.pem", "items.csv"}
        keys = [text for path, text in made[0].items() if path.name == "key.pem"]
        diaries = [text for path, text in made[0].items() if path.name == "items.csv"]
        assert len(set(keys)) == len(set(diaries)) == 2
        assert all(len(text.splitlines()) == 11 for text in diaries)


def test_every_service_waits_for_something_that_happens() -> None:
    for service in SERVICES.values():
        for other, wanted in service.get("depends_on", {}).items():
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other]
            else:
                assert wanted["condition"] == "service_completed_successfully"
                assert "restart" not in SERVICES[other]


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


def test_the_compose_tool_accepts_the_file() -> None:
    tools = [
        [found, *rest] for name, *rest in (["docker", "compose"], ["docker-compose"]) if (found := shutil.which(name))
    ]
    usable = [
        tool for tool in tools if subprocess.run([*tool, "version"], capture_output=True, check=False).returncode == 0
    ]
    if not usable:
        pytest.skip("neither docker compose nor docker-compose is installed")
    profiles = [word for profile in ("tools", "flower", "simulate") for word in ("--profile", profile)]
    published = ["--file", str(FILE), "--file", str(ROOT / "compose.published.yml")]
    variables = {"QUORON_HOST": "a.example", "QUORON_COORDINATOR": "a.example:7443", "QUORON_DATA": "/items.csv"}
    wanted = [["--file", str(FILE)], published]
    if usable[0][-1] == "compose":  # the first compose tool does not know `create_host_path`
        wanted.append(["--file", str(ROOT / "compose.client.yml")])
    for files in wanted:
        checked = subprocess.run(
            [*usable[0], *files, *profiles, "config", "--quiet"],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stderr

"""The compose files promise what their services can do, keep their secrets apart, and need nothing but the image."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import jsonschema
import numpy as np
import pytest
import typer.main
import yaml

from federation.engine import FILE, FLOWER, ROOT, Engine, filled, in_containers, seconds, services
from quoron.cli.app import app
from quoron.cli.federation import SETTINGS
from quoron.federation import profiles
from quoron_server.service import metrics

COMPOSED = yaml.safe_load(FILE.read_text(encoding="utf-8"))
ON_FLOWER = yaml.safe_load(FLOWER.read_text(encoding="utf-8"))
SERVICES = services() | services(FLOWER)
CLIENT = yaml.safe_load(filled((ROOT / "compose.client.yml").read_text(encoding="utf-8"), None))
SCHEMA = jsonschema.Draft7Validator(json.loads((ROOT / "tests/schemas/compose-spec.json").read_text(encoding="utf-8")))
ELSEWHERE = ROOT / "compose.client.yml"
IMAGES = ("", "_POSTGRES", "_NGINX", "_PROMETHEUS", "_GRAFANA")
PROMETHEUS = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8"))
PUBLISHED = yaml.safe_load((ROOT / "compose.published.yml").read_text(encoding="utf-8"))
EVERY = SERVICES | {f"elsewhere-{name}": service for name, service in CLIENT["services"].items()}
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


@pytest.mark.parametrize("file", sorted(ROOT.glob("*compose*.yml")), ids=lambda file: file.name)
def test_a_file_fits_the_schema_of_compose(file: Path) -> None:
    """Of github.com/compose-spec/compose-spec, schema/compose-spec.json at 170098ba (Apache 2.0)."""
    SCHEMA.validate(yaml.safe_load(filled(file.read_text(encoding="utf-8"), None)))


def test_a_file_with_an_unknown_key_does_not_fit_it() -> None:
    with pytest.raises(jsonschema.ValidationError, match="memlimit"):
        SCHEMA.validate({"services": {"x": {"image": "x", "memlimit": "1g"}}})


@pytest.mark.parametrize("name", EVERY)
def test_no_service_can_gain_privileges_or_write_outside_its_volumes(name: str) -> None:
    service = EVERY[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"])
    assert "privileged" not in service
    assert "cap_add" not in service


@pytest.mark.parametrize("name", EVERY)
def test_no_service_can_fill_memory_or_the_disk_of_its_log(name: str) -> None:
    service = EVERY[name]
    assert re.fullmatch(r"[1-9]\d*[mg]", service["mem_limit"])
    assert service["pids_limit"] > 0
    assert service["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "5"}}


def test_an_image_is_a_variable_which_can_hold_a_digest() -> None:
    whole = {"QUORON_COORDINATOR": "x", "QUORON_DATA": "/x"}
    given = {f"QUORON{part}_IMAGE": "example.org/x@sha256:" + "0" * 64 for part in IMAGES}
    pinned = services(variables=given) | services(FLOWER, variables=given)
    pinned |= {f"elsewhere-{each}": one for each, one in services(ELSEWHERE, variables=whole | given).items()}
    assert {pinned[name]["image"] for name in EVERY} == {"example.org/x@sha256:" + "0" * 64}
    assert not [name for name, service in EVERY.items() if service["image"].endswith(":latest")]


@pytest.mark.parametrize("name", [name for name, service in EVERY.items() if "restart" in service])
def test_what_stays_says_whether_it_is_well(name: str) -> None:
    check = EVERY[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert seconds(check["timeout"]) >= 5


def test_no_port_leaves_the_machine_but_the_dashboards_which_is_on_its_loopback() -> None:
    assert {name: service["ports"] for name, service in EVERY.items() if "ports" in service} == {
        "grafana": ["127.0.0.1:3000:3000"]
    }
    networks = COMPOSED["networks"] | ON_FLOWER["networks"]
    assert {name for name, network in networks.items() if network.get("internal") is not True} == {"browser"}
    assert [name for name, service in EVERY.items() if "browser" in service.get("networks", ())] == ["grafana"]


def test_metrics_are_where_no_client_is() -> None:
    on_it = {name for name, service in EVERY.items() if "observe" in service.get("networks", ())}
    assert on_it == {"coordinator", "prometheus"}
    place, _, port = SERVICES["coordinator"]["environment"]["QUORON_METRICS"].partition(":")
    assert SERVICES["coordinator"]["aliases"]["observe"] == [place], "which is no address of another network"
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"{place}:{port}"]}]
    assert re.match("quoron", job["job_name"])


def test_what_operators_add_is_in_profiles() -> None:
    assert {name: SERVICES[name].get("profiles") for name in ("backup", "prometheus", "grafana", "coordinator")} == {
        "backup": ["backup"],
        "prometheus": ["observe"],
        "grafana": ["observe"],
        "coordinator": None,
    }
    source, target, _ = SERVICES["prometheus"]["volumes"][1].split(":")
    assert (ROOT / source).resolve() == metrics.ALARMS.resolve()
    assert PROMETHEUS["rule_files"] == [target]


def exported() -> set[str]:
    """The metrics that a page lists, of which test_metrics.py holds that they are those that are served."""
    page = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8").partition("\n## Metrics")[2]
    names = set(re.findall(r"`(?:quoron)?_?(\w+)", page.partition("\n## ")[0]))
    return {f"quoron_{name}" for name in names} | {f"quoron_run_{name}" for name in names}


def test_every_expression_of_the_dashboard_names_metrics_that_are_served() -> None:
    board = json.loads((ROOT / "deploy/grafana/dashboards/quoron.json").read_text(encoding="utf-8"))
    (source,) = yaml.safe_load((ROOT / "deploy/grafana/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    known, titles = exported(), [panel["title"] for panel in board["panels"]]
    assert len(titles) == len(set(titles)) >= 10
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == source["uid"]
        for target in panel["targets"]:
            named = re.findall(r"\bquoron_\w+", target["expr"])
            assert named or target["expr"].startswith(("ALERTS{", "up{"))
            assert {re.sub("_(bucket|sum|count)$", "", name) for name in named} <= known, target["expr"]


@pytest.mark.programs
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_its_configuration_and_every_expression(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/prometheus/alarms.yml", str(metrics.ALARMS)))
    board = json.loads((ROOT / "deploy/grafana/dashboards/quoron.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    recorded = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(asked)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    for words in (["config", "prometheus.yml"], ["rules", "rules.yml"]):
        done = subprocess.run(["promtool", "check", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


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
    assert seen["database-password"] == {"setup", "postgres", "coordinator", "backup"}
    assert seen["backups"] == {"backup"}
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
    known |= {f"QUORON_{key.upper()}" for key in SETTINGS} | {*profiles.VARIABLES.values()}
    given = {key for key in OURS[name].get("environment", {}) if key.startswith("QUORON_")}
    assert given <= known
    options = {text for each in command.params for text in each.opts}
    assert {word for word in OURS[name]["command"] if word.startswith("--")} <= options


def test_every_health_check_is_a_command_of_the_program() -> None:
    known, checked = typer.main.get_command(app), 0
    for name in ("docker-compose.yml", "compose.client.yml", "compose.second-server.yml"):
        for words in re.findall(r"test: \[CMD, quoron, (.*)\]", (ROOT / name).read_text(encoding="utf-8")):
            with known.make_context("quoron", words.split(", ")[:1]) as context:
                group = known.get_command(context, words.split(", ")[0])  # type: ignore[attr-defined]
            assert group.commands[words.split(", ")[1]].name == "health", (name, words)
            checked += 1
    assert checked == 5


SECOND_SERVER = ROOT / "compose.second-server.yml"
WITH_SECOND = yaml.safe_load(SECOND_SERVER.read_text(encoding="utf-8"))
OF_TWO = services(FILE, SECOND_SERVER, variables={})
SECOND_SCRIPT = ROOT / "examples/federation/second-server.sh"
THEIRS = ("second-server-setup", "second-server")
THREE = ("client-1", "client-2", "client-3")


def sources(name: str) -> set[str]:
    return {mount.split(":")[0] for mount in OF_TWO[name]["volumes"]}


@pytest.mark.parametrize("name", THEIRS)
def test_the_other_operators_services_are_as_contained_as_ours(name: str) -> None:
    for key in ("image", "user", "read_only", "tmpfs", "cap_drop", "security_opt"):
        assert OF_TWO[name][key] == OF_TWO["setup"][key]


def test_the_second_server_meets_nobody_but_the_coordinator() -> None:
    assert OF_TWO["second-server"]["networks"] == ["between"]
    assert WITH_SECOND["networks"] == {"between": {"internal": True}}
    on_it = {name for name, service in OF_TWO.items() if "between" in service.get("networks", ())}
    assert on_it == {"second-server", "coordinator"}
    assert "network_mode" in OF_TWO["second-server-setup"]


def test_no_server_sees_the_others_store_or_keys_and_runs_keys_are_apart_from_what_is_backed_up() -> None:
    ours = {name for name in OF_TWO if name not in THEIRS}
    kept = {"second-server-authority", "second-server-identity", "second-server-store", "second-server-run-keys"}
    assert not any(sources(name) & kept for name in ours if OF_TWO[name].get("volumes"))
    assert sources("second-server") == {"second-server-identity", "second-server-store", "second-server-run-keys"}
    assert sources("coordinator") & sources("second-server") == set()
    environment = OF_TWO["second-server"]["environment"]
    store, keys = environment["QUORON_SECOND_SERVER_DATABASE"], environment["QUORON_SECOND_SERVER_KEYS"]
    assert "/var/lib/quoron/" in store
    assert not keys.startswith("/var/lib/quoron")


def test_clients_have_the_second_servers_key_from_its_operator_and_accept_nothing_else() -> None:
    for name in THREE:
        assert "second-server-public" in sources(name)
        assert not sources(name) & sources("coordinator")
        command = OF_TWO[name]["command"]
        assert [command[at + 1] for at, word in enumerate(command) if word == "--accept"] == ["two-servers"]


@pytest.mark.programs
def test_the_second_servers_script_makes_them_once(tmp_path: Path) -> None:
    for part in ("authority", "second-server", "link", "public"):
        (tmp_path / part).mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    made = []
    for _ in range(2):
        environment = {**os.environ, "PATH": path, "QUORON_TRIAL": str(tmp_path)}
        found = subprocess.run(["sh", str(SECOND_SCRIPT)], env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        files = [each for each in tmp_path.rglob("*") if each.is_file()]
        made.append({str(each.relative_to(tmp_path)): each.read_bytes() for each in files})
    assert made[0] == made[1]
    given = {name for name in made[0] if name.startswith("link/")}
    assert given == {f"link/{each}.pem" for each in ("authority", "certificate", "key", "second-server-key")}
    assert made[0]["link/second-server-key.pem"] == made[0]["public/second-server-key.pem"]
    assert made[0]["second-server/signing.key"] not in [
        content for name, content in made[0].items() if name != "second-server/signing.key"
    ]


@in_containers
def test_two_operators_carry_a_run_to_its_end(tmp_path: Path) -> None:
    with Engine(tmp_path / "c", OF_TWO) as composed:
        composed.up(*THREE)
        composed.up("submit", "watch")
        assert composed.running["watch"].wait() == 0, composed.running["watch"].log()
        assert "complete" in composed.running["watch"].log()
        for other in ("client-1", "submit"):
            assert "second-server" not in composed._hosts(other), "nobody but the coordinator reaches it"
        composed.running["second-server"].stop()


HOSPITALS = ROOT / "compose.hospitals.yml"
MERGED = services(FILE, HOSPITALS)


def test_a_hospital_sees_its_own_visits_alone() -> None:
    sources = {name: {mount.split(":")[0] for mount in MERGED[name]["volumes"]} for name in THREE}
    assert sources == {name: {f"{name}-identity", f"{name}-record", f"hospital-{name[-1]}"} for name in THREE}
    assert all(f"hospital-{name[-1]}:/visits:ro" in MERGED[name]["volumes"] for name in THREE)
    assert not {mount.split(":")[0] for mount in MERGED["submit"]["volumes"]} & {f"hospital-{n}" for n in (1, 2, 3)}


@in_containers
def test_three_hospitals_of_300_patients_run_to_the_end(tmp_path: Path) -> None:
    with Engine(tmp_path / "c", MERGED) as composed:
        composed.up(*THREE)
        composed.up("submit", "watch")
        assert composed.running["watch"].wait() == 0, composed.running["watch"].log()
        assert "complete" in composed.running["watch"].log()
        assert "one person of one silo" in composed.running["submit"].log()
        composed.finish("operator", "fetch", "hospitals", "--out", "hospitals")
        with np.load(composed.volume("results") / "hospitals" / "model.npz") as stored:
            assert stored["model"].shape == (12,)
            assert np.abs(stored["model"]).max() > 0.1

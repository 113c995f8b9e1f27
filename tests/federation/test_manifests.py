"""The units of systemd and the manifests of Kubernetes are what these programs take, and name what quoron knows."""

import re
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main
import yaml

from federation.engine import ROOT
from quoron.cli.app import app
from quoron.cli.federation import SETTINGS

UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
FOLDERS = sorted((ROOT / "deploy" / "kubernetes").iterdir())
KUBERNETES = "1.31"
LARGEST_EXPOSURE = 30  # tenths, of systemd's 100: what is left is the network, and code that is compiled at run time
OF_THE_SCRIPT = set(re.findall(r"QUORON_\w+", (ROOT / "examples/federation/backup.sh").read_text(encoding="utf-8")))
OF_A_PROFILE = {"QUORON_TOKEN_FILE", "QUORON_AUTHORITY"}
analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def known(words: list[str]) -> set[str]:
    """The variables of a command of quoron; of the script of backups those that it and its commands read."""
    if words[0].endswith("sh"):
        return OF_THE_SCRIPT | OF_A_PROFILE
    found: click.Command = typer.main.get_command(app)
    for word in words:
        if isinstance(found, click.Group):
            found = found.commands[word]
    options = {str(each.envvar) for each in found.params if isinstance(each, click.Option) and each.envvar}
    return options | {f"QUORON_{key.upper()}" for key in SETTINGS}


def read(unit: Path) -> dict[str, dict[str, list[str]]]:
    """Keys and values of a unit, by section; a key may come again."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            section.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_unit_sets_what_its_command_reads_and_can_write_its_own_folders_alone(unit: Path) -> None:
    service = read(unit)["Service"]
    words = [word for value in service["Environment"] for word in value.split()]
    given = dict(word.split("=", 1) for word in words)
    program, *command = service["ExecStart"][0].split()
    names = {name for name in given if name.startswith("QUORON_")}
    assert names <= known(command if program.endswith("/quoron") else ["sh"])
    written = tuple(f"/var/lib/{folder}/" for folder in service["StateDirectory"][0].split())
    for name, value in given.items():
        path = value.removeprefix("sqlite:///")
        if path.startswith("/var/lib") and "PATH" not in name:
            assert f"{path}/".startswith(written), (name, value)
    assert service["ProtectSystem"] == ["strict"]
    assert service["User"] == ["quoron"]
    assert service["MemoryMax"]
    assert not any("TOKEN=" in word or "PASS" in word for word in words)


@analyze
@pytest.mark.programs
def test_systemd_takes_every_unit(tmp_path: Path) -> None:
    for unit in UNITS:  # the programs of an installation are not here
        text = unit.read_text(encoding="utf-8").replace("/opt/quoron/bin/quoron", "/bin/true")
        (tmp_path / unit.name.replace("@.", "@ada.")).write_text(text)
    names = sorted(str(each) for each in tmp_path.iterdir())
    done = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True, check=False)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "quoron" in line]
    assert (done.returncode, ours) == (0, [])
    (tmp_path / "quoron-client@ada.service").write_text("[Service]\nExecStart=/bin/true\nProtectSytem=strict\n")
    done = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True, check=False)
    assert "ProtectSytem" in done.stdout + done.stderr


@analyze
@pytest.mark.programs
@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_systemd_finds_little_that_a_service_could_do(unit: Path, tmp_path: Path) -> None:
    named = tmp_path / unit.name.replace("@.", "@ada.")
    named.write_text(unit.read_text(encoding="utf-8").replace("/opt/quoron/bin/quoron", "/bin/true"))
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={LARGEST_EXPOSURE}", str(named)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def pods(folder: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The pod of every workload, with each of its containers."""
    texts = [file.read_text(encoding="utf-8") for file in folder.glob("*.yaml")]
    documents = [each for text in texts for each in yaml.safe_load_all(text)]
    found = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "StatefulSet"]
    assert found
    return [(pod, container) for pod in found for container in pod["containers"]]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_container_sets_what_its_command_reads_and_can_do_nothing_else(folder: Path) -> None:
    for pod, container in pods(folder):
        names = {each["name"] for each in container["env"]}
        assert names <= known(container.get("command") or container["args"])
        assert not any("value" in each and re.search("TOKEN$|PASSWORD", each["name"]) for each in container["env"])
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is pod["enableServiceLinks"] is False
        context = container["securityContext"]
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        volumes = {each["name"] for each in pod["volumes"]} | {"database", "state"}
        assert {each["name"] for each in container["volumeMounts"]} <= volumes


def test_probes_ask_the_port_of_metrics_and_no_probe_restarts_a_coordinator_whose_database_is_away() -> None:
    (coordinator,) = [each for _, each in pods(ROOT / "deploy/kubernetes/coordinator") if each["name"] == "coordinator"]
    assert coordinator["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert coordinator["livenessProbe"]["tcpSocket"] == {"port": "clients"}
    given = {each["name"]: each["value"].rpartition(":")[2] for each in coordinator["env"]}
    ports = {each["name"]: str(each["containerPort"]) for each in coordinator["ports"]}
    assert ports == {name.lower(): given[f"QUORON_{key}"] for name, key in PORTS.items()}


PORTS = {"clients": "LISTEN", "control": "CONTROL", "metrics": "METRICS"}


@kubectl
@pytest.mark.programs
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_kustomize_makes_of_them_fits_the_schemas_of_kubernetes(folder: Path, tmp_path: Path) -> None:
    """With the files that the page's commands make; nothing is asked of a cluster."""
    validate = pytest.importorskip("kubernetes_validate")
    here = tmp_path / folder.name
    shutil.copytree(folder, here)
    quoron = [sys.executable, "-m", "quoron"]
    for words in (
        ["admin", "certs", "trial", "--clients", "1", "--host", "localhost", "--host", "coordinator.quoron"],
        ["admin", "tokens", "ada", "--role", "operator", "--file", "trial/coordinator/tokens.json", "--out", "token"],
    ):
        subprocess.run([*quoron, *words], cwd=tmp_path, check=True, capture_output=True)
    party = "coordinator" if folder.name == "coordinator" else "client-1"
    shutil.copytree(tmp_path / "trial" / party, here / "identity")
    (here / "backup").mkdir()
    (tmp_path / "token").rename(here / "backup" / "token")
    (here / "items.csv").write_text("a\n1\n")
    done = subprocess.run(["kubectl", "kustomize", str(here)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    for document in documents:
        validate.validate(document, KUBERNETES, strict=True)
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"].startswith("quoron")
    secrets = {each["metadata"]["name"] for each in documents if each["kind"] == "Secret"}
    mounted = {
        volume["secret"]["secretName"]
        for each in documents
        if each["kind"] == "StatefulSet"
        for volume in each["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }
    assert secrets == mounted
    broken = next(each for each in documents if each["kind"] == "StatefulSet")
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, KUBERNETES, strict=True)


def test_the_timer_is_of_a_service_that_is_there() -> None:
    timer = RawConfigParser(strict=True)
    timer.read(ROOT / "deploy/systemd/quoron-backup.timer")
    assert timer["Timer"]["Persistent"] == "yes"
    assert (ROOT / "deploy/systemd/quoron-backup.service").is_file()

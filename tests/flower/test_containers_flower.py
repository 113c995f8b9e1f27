"""The compose profile of Flower: only the fleet is reachable from outside, and it runs, as processes, to the end."""

import importlib.util
import re
import shutil
import ssl
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path

import numpy as np
import pytest

import postgres_server
from federation.containers import ROOT, Composition, services

NGINX = ROOT / "examples" / "flower" / "containers" / "nginx.conf"
FLOWER = {name: service for name, service in services().items() if name.startswith("flower-")}
NODES = ("1", "2", "3")
ALLOWED = ("/v1/fleet/pull-messages", "/v1/fleet/register-node", "/health")
FORBIDDEN = (
    "/",
    "/v1/control/list-runs",
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet//../control/start-run",
    "/v1/control/../fleet/pull-messages",
    "/v1/fleet/pull-messages/../../control/start-run",
    "/v1/fleet/pull-messages?x=/../",
    "/V1/control/start-run",
    "/docs",
    "/openapi.json",
)


def test_all_of_it_belongs_to_the_profile_and_uses_nothing_of_the_native_federation() -> None:
    native = {name: service for name, service in services().items() if name not in FLOWER}
    for name, service in services().items():
        assert (service.get("profiles") == ["flower"]) == (name in FLOWER)
    for name, service in FLOWER.items():
        assert set(service.get("depends_on", {})) <= set(FLOWER), name
        used = {mount.split(":")[0] for mount in service.get("volumes", ()) if not mount.startswith(".")}
        assert all(volume.startswith("flower-") for volume in used)
        assert all(network.startswith("flower-") for network in service.get("networks", ()))
    assert not any("flower" in str(service.get("networks")) for service in native.values())


def test_nodes_reach_the_proxy_alone_and_apps_their_own_node_alone() -> None:
    networks = {name: set(service.get("networks", ())) for name, service in FLOWER.items()}
    for number in NODES:
        beside = {name for name in networks if networks[name] & networks[f"flower-app-{number}"]}
        assert beside == {f"flower-app-{number}", f"flower-node-{number}"}
        assert not networks[f"flower-node-{number}"] & networks["flower-superlink"]
    assert networks["flower-superlink"] == {"flower-control"}
    assert networks["flower-proxy"] == {"flower-control", "flower-fleet"}


def test_who_holds_a_nodes_key_holds_no_data_and_who_holds_data_holds_no_key() -> None:
    for name, service in FLOWER.items():
        holds = " ".join(service.get("volumes", ()))
        assert ("QUORON_DATA" in service.get("environment", {})) == name.startswith("flower-app-")
        assert ("node-" in holds) == (name.startswith("flower-node-") or name == "flower-setup")


def test_the_superlink_demands_tls_keys_of_nodes_and_a_secret_of_whoever_runs_its_apps() -> None:
    words = " ".join(FLOWER["flower-superlink"]["command"])
    for wanted in ("--ssl-certfile", "--enable-supernode-auth", "--isolation process", "--superexec-auth-secret-file"):
        assert wanted in words
    assert FLOWER["flower-server"]["environment"]["QUORON_SUPERNODE_AUTH"] == "1"


def test_the_proxys_rule_lets_only_the_fleet_through() -> None:
    (rule,) = re.findall(r'if \(\$request_uri !~ "([^"]+)"\) \{ return 404; \}', NGINX.read_text(encoding="utf-8"))
    assert all(re.search(rule, path) for path in ALLOWED)
    assert not any(re.search(rule, path) for path in FORBIDDEN)


@pytest.fixture
def composition(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Composition]:
    """The parts that nodes need, up to the proxy where there is an nginx."""
    database = f"sqlite:///{tmp_path / 'books.sqlite'}"
    if postgres_server.missing() is None and importlib.util.find_spec("psycopg") is not None:
        database = str(request.getfixturevalue("postgres"))
    with Composition(tmp_path / "c", database) as all_:
        all_.finish("flower-setup")
        all_.start("flower-superlink")
        assert all_.becomes_healthy("flower-superlink"), all_.log("flower-superlink")
        if shutil.which("nginx") is None:
            all_.ports["flower-proxy", "8443"] = all_.ports["flower-superlink", "8443"]
        else:
            all_.write_config("flower-proxy", "/config/nginx.conf")
            all_.start("flower-proxy")
            assert all_.listens("flower-proxy", "8443"), all_.log("flower-proxy")
        yield all_


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_proxy_passes_the_fleet_on_and_refuses_everything_else(composition: Composition) -> None:
    trust = ssl.create_default_context(cafile=composition.volume("flower-operator-identity") / "authority.pem")
    trust.verify_flags |= ssl.VERIFY_X509_STRICT  # as is usual from Python 3.13 on
    outside, inside = (composition.ports[f"flower-{name}", "8443"] for name in ("proxy", "superlink"))

    def asked(port: int, path: str) -> int:
        connection = HTTPSConnection("localhost", port, context=trust, timeout=30)
        with closing(connection):  # which sends the path as it stands; others take its dots out first
            connection.request("GET" if path == "/health" else "POST", path)
            return connection.getresponse().status

    assert asked(outside, "/health") == 200
    assert asked(outside, "/v1/fleet/pull-messages") not in (404, 502)
    assert asked(inside, "/v1/control/list-runs") not in (404, 502)  # there is something to keep out
    assert {path: asked(outside, path) for path in FORBIDDEN} == dict.fromkeys(FORBIDDEN, 404)


@pytest.mark.slow
def test_the_example_runs_on_flower_with_the_commands_and_variables_of_the_compose_file(
    composition: Composition,
) -> None:
    keys = {path: path.read_bytes() for path in composition.volume(".").rglob("*") if path.parent.name.endswith("y")}
    composition.finish("flower-register")
    assert "knows node-1 already" in composition.finish("flower-register")
    for number in NODES:
        composition.start(f"flower-node-{number}")
    composition.start("flower-server")
    for number in NODES:
        assert composition.becomes_healthy(f"flower-node-{number}"), composition.log(f"flower-node-{number}")
        composition.start(f"flower-app-{number}")
    for name in ("server", *(f"app-{number}" for number in NODES)):
        assert composition.becomes_healthy(f"flower-{name}"), composition.log(f"flower-{name}")
    told = composition.finish("flower-submit", seconds=900)
    assert "(4, 1e-05)-differential privacy" in told
    with np.load(composition.volume("flower-results") / "example" / "model.npz") as stored:
        assert np.isfinite(stored["model"]).all()
        assert stored["model"].shape == (10,)
    for number in NODES:
        assert (composition.volume(f"flower-app-{number}-record") / "record.sqlite").is_file()
    for name, process in composition.running.items():
        if name.startswith("flower-") and "health" not in name and name in FLOWER and "restart" in FLOWER[name]:
            assert process.poll() is None, f"{name} ended early:\n{composition.log(name)}"
    composition.finish("flower-setup")  # as on the next start: nothing is made anew
    assert keys == {path: path.read_bytes() for path in keys}

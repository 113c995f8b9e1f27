"""The compose file of Flower: only the fleet is reachable from outside, and keys and data are apart."""

import re

from federation import engine
from federation.engine import ROOT, services

NGINX = ROOT / "examples" / "flower" / "containers" / "nginx.conf"
FLOWER = services(engine.FLOWER)
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


def test_it_uses_nothing_of_the_native_federation() -> None:
    native = services()
    for name, service in FLOWER.items():
        assert name.startswith("flower-")
        assert set(service.get("depends_on", {})) <= set(FLOWER), name
        used = {mount.split(":")[0] for mount in service.get("volumes", ()) if not mount.startswith(".")}
        assert all(volume.startswith("flower-") for volume in used)
        assert all(network.startswith("flower-") for network in service.get("networks", ()))
    assert not any("flower" in f"{name} {service.get('networks')}" for name, service in native.items())


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


def test_data_are_looked_at_before_a_node_can_ask_anything_of_them() -> None:
    script = (ROOT / "examples" / "flower" / "containers" / "app.sh").read_text(encoding="utf-8").splitlines()
    assert script[-3:] == ["set -eu", "quoron client --check", 'exec flower-superexec "$@"']
    for number in NODES:
        assert FLOWER[f"flower-app-{number}"]["entrypoint"] == ["sh", "/opt/quoron/examples/flower/containers/app.sh"]


def test_the_superlink_demands_tls_keys_of_nodes_and_a_secret_of_whoever_runs_its_apps() -> None:
    words = " ".join(FLOWER["flower-superlink"]["command"])
    for wanted in ("--ssl-certfile", "--enable-supernode-auth", "--isolation process", "--superexec-auth-secret-file"):
        assert wanted in words
    assert FLOWER["flower-server"]["environment"]["QUORON_SUPERNODE_AUTH"] == "1"


def test_the_proxys_rule_lets_only_the_fleet_through() -> None:
    (rule,) = re.findall(r'if \(\$request_uri !~ "([^"]+)"\) \{ return 404; \}', NGINX.read_text(encoding="utf-8"))
    assert all(re.search(rule, path) for path in ALLOWED)
    assert not any(re.search(rule, path) for path in FORBIDDEN)

"""The compose file of Flower is carried out, each service in namespaces of its own: see federation/engine.py."""

from pathlib import Path

import numpy as np
import pytest

from federation import engine
from federation.engine import Container, Engine, services
from flower.test_containers_flower import FORBIDDEN, NODES

ABSENT = engine.absent("nginx", "wget")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(ABSENT != "", reason=ABSENT)]

# The status of a path, sent as it stands; others take its dots out first.
ASK = """
import ssl, sys
from http.client import HTTPSConnection
host, *paths = sys.argv[1:]
trust = ssl.create_default_context(cafile="/identity/authority.pem")
trust.verify_flags |= ssl.VERIFY_X509_STRICT  # as is usual from Python 3.13 on
for path in paths:
    connection = HTTPSConnection(host, 8443, context=trust, timeout=30)
    connection.request("GET" if path == "/health" else "POST", path)
    print(connection.getresponse().status)
"""


def asked(container: Container, host: str, *paths: str) -> list[int]:
    """What a container is answered by a host."""
    done = container.exec("python", "-c", ASK, host, *paths)
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def test_the_example_runs_on_flower_behind_its_proxy(tmp_path: Path) -> None:
    with Engine(tmp_path / "c", services(engine.FLOWER)) as composed:
        composed.up("flower-node-1", "flower-server")
        volumes = tmp_path / "c" / "volumes"
        keys = {path: path.read_bytes() for path in volumes.rglob("*") if path.parent.name.endswith("-identity")}
        assert "knows node-1 already" in composed.finish("flower-register")

        node, server = composed.running["flower-node-1"], composed.running["flower-server"]
        node.becomes_healthy()
        assert asked(node, "flower-proxy", "/health") == [200]
        assert asked(node, "flower-proxy", "/v1/fleet/pull-messages")[0] not in (404, 502)
        assert set(asked(node, "flower-proxy", *FORBIDDEN)) == {404}
        # There is something to keep out, and no other way to it.
        assert asked(server, "flower-superlink", "/v1/control/list-runs")[0] not in (404, 502)
        behind = composed.address("flower-control", "flower-superlink")
        ask = f"import socket; socket.create_connection(({behind!r}, 8443), 3)"
        assert server.exec("python", "-c", ask).returncode == 0
        assert node.exec("python", "-c", ask).returncode != 0

        composed.up("flower-submit")
        submitted = composed.running["flower-submit"]
        assert submitted.wait(900) == 0, submitted.log()
        assert "(4, 1e-05)-differential privacy" in submitted.log()
        with np.load(composed.volume("flower-results") / "example" / "model.npz") as stored:
            assert np.isfinite(stored["model"]).all()
            assert stored["model"].shape == (10,)
        for number in NODES:
            assert (composed.volume(f"flower-app-{number}-record") / "state.sqlite").is_file()
        for name, container in composed.running.items():
            if "restart" in container.service:
                assert container.process.poll() is None, f"{name} ended early:\n{container.log()}"
        composed.finish("flower-setup")  # as on the next start: nothing is made anew
        assert keys == {path: path.read_bytes() for path in keys}

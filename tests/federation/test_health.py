"""`quoron health` believes the standard health service, and says what is wrong otherwise."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from quoron.cli.app import invoke
from quoron_server.service import certificates


@pytest.fixture
def servicer() -> HealthServicer:
    return HealthServicer()


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    certificates.make_authority(tmp_path, days=10)
    certificates.issue(tmp_path, "coordinator", coordinator=True, hosts=("127.0.0.1",), days=1)
    certificates.issue(tmp_path, "client-1", days=1)
    return tmp_path


@pytest.fixture
def ports(servicer: HealthServicer, trial: Path) -> Iterator[tuple[str, str]]:
    """Addresses of one server, in plaintext and by mutual TLS."""
    files = [trial / name for name in ("coordinator.key", "coordinator.pem", "authority.pem")]
    key, certificate, authority = (path.read_bytes() for path in files)
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        plain = server.add_insecure_port("127.0.0.1:0")
        credentials = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        secure = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        yield f"127.0.0.1:{plain}", f"127.0.0.1:{secure}"
        server.stop(None).wait()


def test_a_certificate_is_shown_where_it_must_be(
    ports: tuple[str, str], trial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = ["--authority", str(trial / "authority.pem")]
    own = ["--certificate", str(trial / "client-1.pem"), "--key", str(trial / "client-1.key")]
    assert invoke(["health", ports[1], *authority, *own]) == 0
    assert invoke(["health", ports[1], *authority]) == 1
    assert "Expected a coordinator that serves" in capsys.readouterr().err

"""What the compose files describe is carried out, each service in namespaces of its own: see engine.py."""

import fcntl
import importlib.util
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import postgres_server
from federation import engine
from federation.engine import FILE, ROOT, Engine, services

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(engine.missing() is not None, reason=f"containers cannot be made here: {engine.missing()}"),
]
CLIENTS = ("client-1", "client-2", "client-3")
SCALED = ("client-by-number", "another-by-number")
HOST = "federation.example.org"
TAKEN = re.compile(r"\.[0-9a-f]{32}\.nbc$")  # from the installation; what numba compiles itself it counts
needs_postgres = pytest.mark.skipif(
    postgres_server.missing() is not None or importlib.util.find_spec("psycopg") is None,
    reason="PostgreSQL or psycopg is not installed",
)


@pytest.fixture(scope="module", autouse=True)
def image(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the image's build compiles is compiled, by one of several test processes."""
    with (tmp_path_factory.getbasetemp().parent / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, "-m", "quoron.kernels", "--ship"], check=True, capture_output=True)


def elsewhere(place: Path) -> dict[str, engine.Service]:
    """The services of a client elsewhere, who reaches what is published and nothing else."""
    variables = {"QUORON_COORDINATOR": f"{HOST}:7443", "QUORON_DATA": str(place / "items.csv")}
    found = services(ROOT / "compose.client.yml", variables=variables)
    found["client"]["networks"] = ["published"]
    return {f"elsewhere-{name}": service for name, service in found.items()}


@needs_postgres
def test_the_example_and_a_client_elsewhere_run_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_bytes((ROOT / "examples/federation/users/client-1.csv").read_bytes())
    os.chown(tmp_path / "items.csv", 10001, 10001)
    (tmp_path / "items.csv").chmod(0o400)
    variables = {"QUORON_HOST": HOST, "QUORON_SCALED": "2"}
    all_services = services(FILE, ROOT / "compose.published.yml", variables=variables)
    all_services |= {name: dict(all_services["client"]) for name in SCALED}
    all_services |= elsewhere(tmp_path)
    with Engine(tmp_path / "c", all_services, names={HOST: "coordinator"}) as composed:
        composed.up(*CLIENTS)
        keys = {path: path.read_bytes() for path in (tmp_path / "c" / "volumes").rglob("*key.pem")}
        assert len(keys) == 2 * 6, "of the coordinator, three clients, two by number: theirs and the authority's copy"
        assert all(path.stat().st_mode & 0o077 == 0 for path in keys)

        # An identity is carried over, and its client enrols from outside.
        composed.finish("identity", "client-4")
        carried = (tmp_path / "c" / "identity.log").read_bytes()
        carried = carried[carried.index(b"certificate.pem\0") :]
        composed.finish("elsewhere-identity", given=carried)
        composed.up("elsewhere-client")
        composed.running["elsewhere-client"].becomes_healthy()

        composed.up(*SCALED)
        for name in SCALED:
            enrols(composed, name)
        assert all((composed.volume("clients") / f"client-{number}" / "record.sqlite").exists() for number in (1, 2))

        composed.up("submit", "watch")
        assert composed.running["watch"].wait() == 0, composed.running["watch"].log()
        assert "complete" in composed.running["watch"].log()
        composed.finish("operator", "fetch", "example", "--out", "example")
        with np.load(composed.volume("results") / "example" / "model.npz") as stored:
            assert np.isfinite(stored["model"]).all()
            assert stored["model"].shape == (10,)

        for name in CLIENTS:
            composed.running[name].becomes_healthy()
            found = composed.running[name].exec("find", "/tmp/numba", "-name", "*.nbc", "-type", "f").stdout.split()
            compiled = [each for each in found if not TAKEN.search(each)]
            assert found, f"{name} has no kernels"
            assert not compiled, f"{name} compiled what the image has: {compiled}"
        holds_its_promises(composed)
        composed.finish("setup", "revoke", "client-4")
        assert composed.running["elsewhere-client"].wait() != 0
        assert "revoked" in composed.running["elsewhere-client"].log()
        lasting = (*CLIENTS, *SCALED, "coordinator", "postgres")
        assert {name: composed.running[name].stop() for name in lasting} == dict.fromkeys(lasting, 0)
        composed.finish("setup")  # as on the next start: nothing is made anew
        assert keys == {path: path.read_bytes() for path in keys}


def enrols(composed: Engine, name: str) -> None:
    """Wait until a client says that it has."""
    ends = time.monotonic() + engine.PATIENCE
    while "enrolled" not in composed.running[name].log():
        assert composed.running[name].process.poll() is None, composed.running[name].log()
        assert time.monotonic() < ends, composed.running[name].log()
        time.sleep(0.1)


def holds_its_promises(composed: Engine) -> None:
    """Nobody is root, writes outside of volumes, or reaches whom it shares no network with."""
    client, coordinator = composed.running["client-1"], composed.running["coordinator"]
    status = client.exec("cat", "/proc/self/status").stdout
    assert "Uid:\t10001\t10001\t10001\t10001" in status
    assert "NoNewPrivs:\t1" in status
    assert all(f"Cap{kind}:\t0000000000000000" in status for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb"))
    assert "Read-only" in client.exec("touch", "/opt/quoron/new").stderr
    assert client.exec("touch", "/identity/new").returncode != 0
    assert client.exec("touch", "/var/lib/quoron/new").returncode == 0
    ask = "import socket; socket.create_connection(('{}', {}), 3)"
    assert coordinator.exec("python", "-c", ask.format("postgres", 5432)).returncode == 0
    address = composed.address("database", "postgres")
    assert client.exec("python", "-c", ask.format(address, 5432)).returncode != 0


@needs_postgres
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_prometheus_sees_the_coordinator_and_a_client_does_not_see_its_metrics(tmp_path: Path) -> None:
    with Engine(tmp_path / "c", services()) as composed:
        composed.up("client-1", "prometheus")
        prometheus, client = composed.running["prometheus"], composed.running["client-1"]
        prometheus.becomes_healthy()
        asked = ["wget", "-q", "-O", "-", "http://127.0.0.1:9090/api/v1/query?query=quoron_database_up"]
        ends = time.monotonic() + engine.PATIENCE
        while '"1"]' not in prometheus.exec(*asked).stdout:
            assert time.monotonic() < ends, prometheus.log()
            time.sleep(1)
        alarms = prometheus.exec(*asked[:-1], "http://127.0.0.1:9090/api/v1/rules").stdout
        assert "QuoronDatabaseAway" in alarms
        ask = "import socket; socket.create_connection(('{}', {}), 3)"
        address = composed.address("clients", "coordinator")
        assert client.exec("python", "-c", ask.format(address, 7443)).returncode == 0
        for network in ("clients", "observe"):
            address = composed.address(network, "coordinator")
            assert client.exec("python", "-c", ask.format(address, 9464)).returncode != 0


@needs_postgres
def test_backups_are_taken_and_pruned_and_the_newest_is_restored_into_an_empty_database(tmp_path: Path) -> None:
    everything = services()
    everything["backup"]["environment"] |= {"QUORON_BACKUPS_KEPT": "2", "QUORON_BACKUP_SECONDS": "1"}
    with Engine(tmp_path / "c", everything) as composed:
        composed.up("postgres")
        composed.running["postgres"].becomes_healthy()
        composed.finish("coordinator", "ledger", "limit", "--create", "--epsilon", "4", "--delta", "1e-5")
        composed.start("coordinator").becomes_healthy()
        composed.up("backup")
        folder, seen = composed.volume("backups"), set[str]()
        ends = time.monotonic() + engine.PATIENCE
        while len(seen) < 4:
            seen |= {each.name for each in folder.glob("*.backup")}
            assert time.monotonic() < ends, composed.running["backup"].log()
            time.sleep(0.1)
        composed.running["backup"].becomes_healthy()
        assert composed.running["backup"].stop() == 0
        left = sorted(each.name for each in folder.glob("*.backup"))
        assert len(left) in (2, 3), "it may have been stopped between a backup and what follows"
        assert set(left) >= set(sorted(seen)[-2:])

        assert composed.running["coordinator"].stop() == 0
        lose = ["psql", "--username=quoron", "--dbname=quoron", "--command=ALTER SCHEMA quoron RENAME TO lost"]
        moved = composed.running["postgres"].exec(*lose)
        assert moved.returncode == 0, moved.stderr
        assert "restored as" in composed.finish("backup", "restore")
        assert "δ = 1e-05" in composed.finish("coordinator", "ledger", "show")
        composed.start("coordinator").becomes_healthy()


def test_a_simulation_runs_by_its_name_and_leaves_its_folder_in_a_volume(tmp_path: Path) -> None:
    with Engine(tmp_path / "c", services()) as composed:
        composed.finish("simulate", "quickstart")
        (report,) = composed.volume("simulations").glob("runs/*/report.html")
        assert report.stat().st_uid == 10001


def test_nothing_outlives_a_test_that_is_killed(tmp_path: Path) -> None:
    program = f"""
        import sys, time
        from pathlib import Path
        from federation.engine import Engine, services
        engine = Engine(Path({str(tmp_path)!r}) / "c", services()).__enter__()
        service = dict(engine.services["simulate"], entrypoint=["sleep", "infinity"], command=[])
        engine.services["simulate"] = service
        print(engine.start("simulate").inside, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}) as killed:
        assert killed.stdout is not None
        inside = int(killed.stdout.readline())
        ending = os.pidfd_open(inside)
        killed.send_signal(signal.SIGKILL)
    assert select.select([ending], [], [], engine.PATIENCE)[0], "it is still there"
    os.close(ending)

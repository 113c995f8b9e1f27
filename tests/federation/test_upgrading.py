"""What docs/upgrading.md says: which versions are refused and with what words, the way back."""

import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from federation.crowd import HANGS, carried_out, coordinator
from federation.engine import ROOT
from federation.test_service_processes import Program, programs, quoron, serve
from operators import reaching
from quoron_client.protocol import wire
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1.federation_pb2_grpc import ClientPlaneStub
from quoron_server.storage.store import FORMAT, software

PAGE = " ".join((ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8").split())
SCRIPT = ROOT / "examples" / "federation" / "backup.sh"


def script(*words: str, **variables: object) -> subprocess.CompletedProcess[str]:
    """The script of backups, as images, units and manifests run it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path} | {name: str(value) for name, value in variables.items()}
    return subprocess.run(["sh", str(SCRIPT), *words], env=environment, capture_output=True, text=True, check=False)


def begun(started: list[Program], folder: Path) -> str:
    """A coordinator in a folder; where its operators connect."""
    started.append(serve(folder, "--insecure"))
    return started[-1].listening()[1]


def refused(folder: Path) -> str:
    """What a coordinator says that does not start."""
    program = serve(folder, "--insecure")
    _, said = program.process.communicate(timeout=HANGS)
    assert program.process.returncode == 1, said
    return " ".join(said.split())


@pytest.mark.programs
def test_a_database_of_another_format_is_refused_unchanged_and_the_newest_backup_leads_back(tmp_path: Path) -> None:
    database, token = tmp_path / "coordinator.sqlite", tmp_path / "ada.token"
    quoron("admin", "tokens", "ada", "--role", "operator", "--file", tmp_path / "tokens.json", "--out", token)
    with programs() as started:
        control = begun(started, tmp_path)
        profile = reaching(coordinator=control, token_file=token, insecure=True)
        quoron(*profile, "ledger", "limit", "--epsilon", "4", "--delta", "1e-5")
        asked = {"QUORON_CONTROL_ADDRESS": control, "QUORON_TOKEN_FILE": token, "QUORON_INSECURE": 1}
        kept = {"QUORON_BACKUPS": tmp_path, "QUORON_BACKUPS_KEPT": 2, "QUORON_BACKUP_SECONDS": 60}
        taken = []
        for _ in range(3):
            done = script("once", **asked, **kept)
            assert done.returncode == 0, done.stderr
            taken.append(done.stdout.split()[-1])
            time.sleep(1.1)  # their names have seconds
        assert sorted(each.name for each in tmp_path.glob("*.backup")) == taken[1:]
        assert script("check", **kept).returncode == 0
        started[-1].stop()
        assert script("once", **asked, **kept).returncode != 0, "nobody writes one"
        assert sorted(each.name for each in tmp_path.glob("*.backup")) == taken[1:], "and none is deleted"
    for each in tmp_path.glob("*.backup"):
        os.utime(each, (time.time() - 180,) * 2)
    assert script("check", **kept).returncode == 1

    with closing(sqlite3.connect(database)) as raw, raw:
        raw.execute(f"UPDATE meta SET format = {FORMAT - 1}")
    before = database.read_bytes()
    words = f"Expected ledger format {FORMAT} in sqlite:///{database}, got {FORMAT - 1}. Use the version that wrote it."
    assert words in refused(tmp_path)
    assert database.read_bytes() == before
    assert "Expected ledger format 6 in …, got 5. Use the version that wrote it." in PAGE

    back = tmp_path / "back"
    back.mkdir()
    (tmp_path / "tokens.json").rename(back / "tokens.json")
    done = script("restore", QUORON_DATABASE=f"sqlite:///{back}/coordinator.sqlite", **kept)
    assert done.stdout.startswith(f"restoring {taken[-1]}\nrestored as "), done.stderr
    with programs() as started:
        profile = reaching(coordinator=begun(started, back), token_file=token, insecure=True)
        assert "δ = 1e-05" in quoron(*profile, "ledger", "show")
    assert script("restore", QUORON_DATABASE=f"sqlite:///{back}/coordinator.sqlite", **kept).returncode != 0


@pytest.mark.programs
def test_a_backup_of_another_format_is_refused(tmp_path: Path) -> None:
    body = json.dumps({"kind": "quoron backup 1", "format": FORMAT - 1, "incarnations": []}).encode() + b"\n"
    digest = json.dumps({"sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n"
    (tmp_path / "old.backup").write_bytes(body + digest)
    done = script("restore", QUORON_BACKUPS=tmp_path, QUORON_DATABASE=f"sqlite:///{tmp_path}/new.sqlite")
    assert done.returncode != 0
    assert "Use the version that wrote it." in " ".join(done.stderr.split())
    assert not (tmp_path / "new.sqlite").exists()


def test_a_client_of_another_protocol_is_refused_by_the_names_of_both_versions(tmp_path: Path) -> None:
    async def scene() -> tuple[str, str, int]:
        async with coordinator(tmp_path) as running, grpc.aio.insecure_channel(running.listen) as channel:
            said = []
            metadata = (("quoron-client", "ada"),)
            for apart, name in ((-1, "quoron 0.0.9"), (1, "\x1b[31m" + "x" * 5000)):
                request = pb.EnrolRequest(protocol=wire.PROTOCOL + apart, software=name[:4000])
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await ClientPlaneStub(channel).Enrol(request, metadata=metadata)
                said.append(str(error.value.details()))
            return said[0], said[1], running.scheduler.counts.calls["foreign"]

    named, long, counted = carried_out(scene())
    expected = f"Expected protocol {wire.PROTOCOL}, which {software()} speaks, got {wire.PROTOCOL - 1} of quoron 0.0.9."
    assert named == f"{expected} Use a version that speaks the same."
    assert len(long) < 200
    assert "\x1b" not in long
    assert counted == 2
    assert re.sub("quoron [0-9.]+[0-9]", "quoron …", expected) in PAGE


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= 700

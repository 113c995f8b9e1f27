"""The SuperLink of a simulation answers programs of its own user only. Linux; to be a stranger takes root."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from listening import listening
from quoron.engine.processors import free_port
from quoron.federation import flower_superlink
from quoron.federation.flower_commands import Process
from quoron.federation.flower_superlink import MARK, gate, owner_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="whose a connection is stands in /proc")
# A program of another user of this machine, without anything of ours.
STRANGER = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as there:
    there.sendall(b"POST /v1/control/start-run HTTP/1.1\\r\\nHost: x\\r\\nX-Forwarded-For: 127.0.0.1\\r\\n"
                  b"Content-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    print(there.recv(1000).split(b"\\r\\n")[0].decode())
"""


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"served"})


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server behind the gate."""
    server = uvicorn.Server(uvicorn.Config(gate(app), port=0, lifespan="off", log_level="critical"))
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        own.listen()
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([own])))
        thread.start()
        yield own.getsockname()[1]
        server.should_exit = True
        thread.join()


def test_programs_of_our_own_user_are_served_and_others_are_not(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    where = f"http://127.0.0.1:{port}"
    assert httpx.get(where, trust_env=False).text == "served"
    assert httpx.get(f"{where}{MARK}", trust_env=False).status_code == 204
    own = os.getuid()
    monkeypatch.setattr(flower_superlink.os, "getuid", lambda: own + 1)  # now we are somebody else
    for path in ("/", MARK):
        assert httpx.get(f"{where}{path}", trust_env=False).status_code == 403


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_kernel_says_whose_a_connection_is_while_it_is_open(family: int, host: str) -> None:
    with socket.socket(family) as server:
        server.bind((host, 0))
        server.listen()
        with socket.socket(family) as client:
            client.connect(server.getsockname())
            ends = client.getsockname()[:2], server.getsockname()[:2]
            assert owner_of(*ends) == os.getuid()
            assert owner_of(ends[1], ends[0]) is None, "of a listening socket, and of none that waits to be accepted"
            assert owner_of((host, 1), ends[1]) is None
        assert owner_of(*ends) is None, "one that is closed is nobody's, not root's"
    assert owner_of(None, None) is None


@pytest.mark.programs
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="becomes another user: root, setpriv")
def test_flower_s_superlink_refuses_another_user_of_the_machine(tmp_path: Path) -> None:
    number = free_port()
    arguments = ["-m", "quoron.federation.flower_superlink", "--insecure", "--simulation", "--isolation", "process"]
    arguments += ["--host", "127.0.0.1", "--port", str(number)]
    with Process("python", arguments, home=tmp_path / "home", log=tmp_path / "log") as process:
        process.healthy(f"http://127.0.0.1:{number}{MARK}")
        assert {(each.host, each.port) for each in listening(process.number)} == {("127.0.0.1", number)}
        for user, one in (("65534", "HTTP/1.1 403"), ("0", "HTTP/1.1 ")):
            words = [
                "setpriv",
                "--reuid",
                user,
                "--clear-groups",
                "/usr/bin/env",
                "python3",
                "-c",
                STRANGER,
                str(number),
            ]
            said = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/").stdout
            assert said.startswith(one), said
            assert ("403" in said) == (user != "0"), said

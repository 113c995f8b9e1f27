"""What test_warden.py has killed in the middle: a test with all kinds of processes that tests start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import postgres_server
from federation.test_service_processes import serve

# Leaves its group, its session and its parent.
DAEMON = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(100_000)"


def test_that_does_not_end(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if postgres_server.missing() is None:
        request.getfixturevalue("postgres")
    coordinator = serve(tmp_path, "--insecure")
    coordinator.listening()
    subprocess.run([sys.executable, "-c", DAEMON], check=True)
    with open(os.environ["QUORON_SCENE"], "w", encoding="utf-8") as ready:
        ready.write(str(os.getpid()))
    coordinator.process.wait()

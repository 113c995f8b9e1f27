"""Every command line of the pages about federations, carried out as it is written there, in a network of its own."""

import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
APART = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
if os.geteuid():
    APART[1:1] = ["--map-root-user"]
ALL = ("federation.md", "durability.md", "local.md", "silos.md", "two-servers.md", "flower.md")

# What is not carried out, by its first words, and why.
LEFT_OUT = {
    "docker compose ": "needs a container engine; tests/federation/test_deployed.py has what the files describe",
    "(umask 077; docker compose ": "needs a container engine",
    "export QUORON_HOST=federation.example.org": "for containers on other machines",
    "export QUORON_COORDINATOR=federation.example.org": "for containers on other machines",
    "pip install '.[ray]'": "installs, from the checkout: scripts/test-flower",
    "quoron login sqlite:////path/to/private-run": "of a run of the reader's own",
    "quoron --profile store ledger charge flower-spring": "the same: tests/flower/test_flower_privacy.py",
    "flwr run ": "needs Ray or a federation of Flower's: scripts/test-flower",
    "python examples/flower/loopback.py ": "tests/flower/test_federation_example.py carries it out",
    "quoron submit flower-trial/run.toml ": "the same test: its port is told when it starts",
    "quoron simulate quickstart --engine flower:": "needs Ray; tests/flower/test_simulation_ray.py has fewer users",
}
BASE = "--certs trial/coordinator --tokens tokens.json --database sqlite:///"
CLIENT = "--certs trial/{0} --state {0}.sqlite"
DIARY = "quoron client --data examples/federation/users/client-1.csv"
HELPED = "--coordinator 127.0.0.1:7443 " + CLIENT.format("client-1")
# What stands for something of the reader's own, by page: a pattern, and what it is here. Several: once with each.
GIVEN: dict[str, list[tuple[str, list[str]]]] = {
    "federation.md": [
        (r"client-1(?=\.csv --state|\.sqlite| --limit)", ["client-1", "client-2", "client-3"]),
        (r"(?<=set ada )17", ["2"]),
        (r"(?<=users drawn )summer", ["example"]),
        (r"(ada|ada-2)(?=/key)", [r"trial/\1"]),
        (r"(?<=trial/coordinator )\.\.\.", ["--tokens tokens.json --database sqlite:///coordinator.sqlite"]),
    ],
    "silos.md": [
        (
            r"(hospital|client)-1(?=\.parquet --user|\.sqlite| --limit)",
            [r"\1-1", r"\1-2", r"\1-3"],
        )
    ],
    "two-servers.md": [
        (r"second\.example", ["localhost"]),
        (r"/var/lib/(quoron/)?", ["{here}/"]),
        (r"(?<=quoron serve )\.\.\.", [BASE + "coordinator.sqlite"]),
        (r"(?<=two-servers )\.\.\.$", [""]),
        (r"--coordinator \.\.\. .*$", [HELPED]),
    ],
}
# What is there before a line, by its first words.
BEFORE = {
    "quoron admin users list": [
        "quoron admin certs trial --client ada --client ada-2 --client ben --client cem",
        *(f"{DIARY} {CLIENT.format(name)}" for name in ("ada", "ben", "cem")),
    ],
    "quoron login sqlite:///coordinator": [
        "quoron admin certs trial --clients 1",
        "quoron admin tokens ada --role operator --file tokens.json --out ada.token",
        f"quoron serve {BASE}coordinator.sqlite",
        "stop",
    ],
    "quoron serve ... --set second_server": [
        "quoron admin certs trial --clients 1",
        "quoron admin tokens ada --role operator --file tokens.json --out ada.token",
    ],
    "quoron submit run.toml --run summer": [
        "quoron login 127.0.0.1:7444 --token-file ada.token --authority trial/authority.pem",
        "cp examples/federation/run.toml run.toml",
        'sed -i \'s/^name = "dp-sgd-wor"/name = "recentred-sgd"/\' run.toml',
    ],
    "quoron client --data mine.csv": ["cp examples/federation/users/client-1.csv mine.csv"],
}
# Programs that go on, with what they say once they are there. Another `quoron serve` ends the one before it.
SERVES = {"quoron serve": "listening", "quoron second-server serve": "listening", "quoron client": "enrolled, waiting"}


def blocks(page: str) -> Iterator[list[str]]:
    """The command lines of each block of a page, those that go on in the next line put together."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:sh|text)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        yield [line for line in re.sub(r"\\\n\s*", "", block).splitlines() if line.strip()]


def given(page: str, line: str) -> list[str]:
    """The lines that a line stands for."""
    found = [line]
    for pattern, values in GIVEN.get(page, []):
        if re.search(pattern, line):
            found = [re.sub(pattern, value, each) for value in values for each in found]
    return [each.replace("{here}", str(Path.cwd())) for each in found]


class Carried:
    """A page that is carried out in this folder, by the one process of a network."""

    def __init__(self, page: str) -> None:
        self.page = page
        self.going: list[tuple[str, subprocess.Popen[str]]] = []
        Path("state").touch()

    def page_through(self) -> None:
        """Every line, in order; each block begins in the folder of the page."""
        for lines in blocks(self.page):
            Path("where").write_text(".")
            for line in lines:
                if any(line.startswith(words) for words in LEFT_OUT):
                    print(f"left out: {line}")
                    continue
                for words, before in BEFORE.items():
                    if line.startswith(words):
                        for each in before:
                            self.carry_out(each)
                for each in given(self.page, line):
                    self.carry_out(each)
        self.stop()

    def carry_out(self, line: str) -> None:
        """One line, which must succeed, or say that it is there."""
        print(f"$ {line}", flush=True)
        served = next((words for words in SERVES if line.startswith(words) and "--check" not in line), None)
        if line == "stop" or served == "quoron serve":
            self.stop("quoron serve", "quoron client")
        if line == "stop":
            return
        script = f'. "$HERE/state"; cd "$(cat "$HERE/where")"; {"exec " if served else ""}{line}\n'
        if served is None:
            kept = 'code=$?; export -p > "$HERE/state"; realpath . > "$HERE/where"; exit $code'
            done = subprocess.run(["bash", "-c", script + kept], capture_output=True, text=True, check=False)
            print(done.stdout, done.stderr, flush=True)
            assert done.returncode == 0, f"{self.page}: {line}\n{done.stdout}{done.stderr}"
            return
        program = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.going.append((served, program))
        assert program.stdout is not None
        heard = []
        for said in program.stdout:
            heard.append(said)
            if SERVES[served] in said:
                return
        raise AssertionError(f"{self.page}: {line}\n{''.join(heard)}")

    def stop(self, *kinds: str) -> None:
        """End what goes on, clients first: all, or of these kinds."""
        for kind in reversed(SERVES):
            for served, program in self.going:
                if served == kind and (not kinds or kind in kinds):
                    program.send_signal(signal.SIGTERM)
                    program.communicate()
        self.going = [(served, program) for served, program in self.going if program.returncode is None]


def loopback_up() -> None:
    """In a new network, in which nothing is up."""
    with socket.socket() as some:
        fcntl.ioctl(some, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


def apart() -> str | None:
    """Why there is no network of one's own here; None if there is."""
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    done = subprocess.run([*APART, "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no namespaces: {done.stderr.strip()}"


@pytest.mark.programs
@pytest.mark.parametrize("page", ALL)
def test_every_command_line_of_a_page_is_carried_out_as_written(page: str, tmp_path: Path) -> None:
    if (why := apart()) is not None:
        pytest.skip(why)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = {
        "PATH": path,
        "HERE": str(tmp_path),
        "HOME": str(tmp_path),
        "QUORON_CONFIG_HOME": str(tmp_path),
        "QUORON_LEDGER": str(tmp_path / "own.sqlite"),
    }
    done = subprocess.run(
        [*APART, sys.executable, __file__, page],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if not key.startswith("QUORON_")} | here,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


@pytest.mark.parametrize("words", [*LEFT_OUT, *BEFORE])
def test_whatever_is_said_of_a_line_is_of_one_that_a_page_has(words: str) -> None:
    assert any(line.startswith(words) for page in ALL for block in blocks(page) for line in block)


if __name__ == "__main__":
    loopback_up()
    Carried(sys.argv[1]).page_through()

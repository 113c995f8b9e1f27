"""The compose files carried out without an engine: each service in namespaces of its own, as the file describes it.

Read from the files: command, entrypoint, environment, user, capabilities, read-only root, temporary file systems,
volumes, networks, health checks with their timeouts, and who waits for whom. Each service has its own mounts, processes
and network; each network of the file is a bridge, so that who shares none cannot be reached; names and ports are the
real ones. All of it hangs on one process that ends when the test does, however that ends.

What differs from an engine:

* No image is built. A container sees this machine's programs and libraries (/usr) and this environment's Python, the
  checkout's packages, and the examples and variables of the Dockerfile. Debian's PostgreSQL, nginx and Prometheus stand
  in for their images; what PostgreSQL's entrypoint does at a first start is done here in the same way.
* No cgroups, so that `pids_limit` and `mem_limit` are not held, no files of a log, and no profile for system calls.
* `restart` is not carried out, and health is asked as soon as it is wanted, not at every `interval`.
* Published ports are not forwarded: a client elsewhere reaches the coordinator in the network `published` itself.
"""

import functools
import importlib.util
import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

import postgres_server

ROOT = Path(__file__).parent.parent.parent
FILE = ROOT / "docker-compose.yml"
FLOWER = ROOT / "compose.flower.yml"
PATIENCE = 300  # seconds that any step may take
PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "mount")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PEOPLE = "root:x:0:0::/:/bin/sh\npostgres:x:70:70::/var/lib/postgresql:/bin/sh\nquoron:x:10001:10001::/:/bin/sh\n"
# What the entrypoint of PostgreSQL's image does; the folder of the binaries stands for its PATH.
POSTGRES = """
set -eu
export PGDATA=/var/lib/postgresql/data
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --no-locale -E UTF8 $POSTGRES_INITDB_ARGS
    printf 'host all all all scram-sha-256\\n' >> "$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D "$PGDATA" postgres
fi
exec postgres -c listen_addresses='*'
"""
USERS = {"postgres": 70, "prom/prometheus": 65534}  # of an image's folders
Service = dict[str, Any]
Test = TypeVar("Test", bound=Callable[..., None])
COMMANDS = {"command", "entrypoint", "test"}


def services(*files: Path, variables: Mapping[str, str] | None = None) -> dict[str, Service]:
    """The services of the compose file, or of others merged in their order, with variables filled in.

    Without `variables` what a file demands stands as it is. Networks are names, and `aliases` a service's further ones.
    """
    found: dict[str, Service] = {}
    for file in files or (FILE,):
        for name, service in yaml.safe_load(filled(file.read_text(encoding="utf-8"), variables))["services"].items():
            if isinstance(networks := service.get("networks"), dict):
                aliases = {network: how.get("aliases", []) for network, how in networks.items()}
                service = service | {"networks": list(networks), "aliases": aliases}
            found[name] = merged(found.get(name, {}), service)
    return found


def merged(one: Any, other: Any) -> Any:
    """A part of a compose file, overridden by another: mappings and lists grow, commands and all else are replaced."""
    if isinstance(one, dict) and isinstance(other, dict):
        grown = one.keys() - COMMANDS
        return one | {key: merged(one[key], value) if key in grown else value for key, value in other.items()}
    return [*one, *other] if isinstance(one, list) and isinstance(other, list) else other


def filled(text: str, variables: Mapping[str, str] | None) -> str:
    """A compose file's text with its variables, or what it says in their place; KeyError for one that it demands."""

    def value(found: re.Match[str]) -> str:
        if found[2] == "-":
            return (variables or {}).get(found[1], found[3])
        return found[0] if variables is None else variables[found[1]]

    return re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", value, text)


@functools.cache
def missing() -> str | None:
    """Why nothing can be contained here; None if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if os.geteuid() != 0:
        return "namespaces with other users need root"
    trial = "ip link add quoron type bridge && ip link add name a type veth peer name b && mount -t tmpfs none /run"
    command = ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "sh", "-c", trial]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no namespaces, bridges or mounts: {done.stderr.strip()}"


def absent(*programs: str) -> str:
    """What all services together need, `programs` too, and this machine lacks; empty if nothing."""
    found = {"containers": missing(), "PostgreSQL": postgres_server.missing()}
    found |= {} if importlib.util.find_spec("psycopg") else {"psycopg": "not installed"}
    found |= {program: "not installed" for program in programs if shutil.which(program) is None}
    return ", ".join(f"{name}: {why}" for name, why in found.items() if why is not None)


def in_containers(test: Test) -> Test:
    """Carried out slowly, where all services can be."""
    return pytest.mark.slow(pytest.mark.skipif(absent() != "", reason=absent())(test))


def seconds(text: str) -> float:
    """A duration of a compose file, such as 15s or 1m."""
    return float(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def image_variables() -> dict[str, str]:
    """ENV of the final image."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^ENV (.*)$", text[text.rindex("\nFROM ") :], flags=re.MULTILINE)
    pairs = [word.partition("=") for line in lines for word in shlex.split(line)]
    return {name: value.replace("$PATH", PATH) for name, _, value in pairs}


def child(pid: int) -> int:
    """The only child of a process."""
    (found,) = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _parent(entry) == pid
    ]  # fmt: skip
    return found


def _parent(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


@dataclass
class Container:
    """A service that was started."""

    name: str
    service: Service
    process: subprocess.Popen[bytes]
    inside: int  # the first process in it, as it is known outside
    environment: dict[str, str]
    log_file: Path

    def log(self) -> str:
        """What it has printed."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def wait(self, limit: float = PATIENCE) -> int:
        """Its exit code; an assertion with what it has printed if it goes on for longer."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} is still at work after {limit:g} s:\n{self.log()}") from None

    def exec(self, *words: str, limit: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run another program inside, as the service's user."""
        enter = ["nsenter", f"--target={self.inside}", "--mount", "--pid", "--net", "--root", "--wd"]
        command = [*enter, *privileges(self.service), *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=limit)

    def healthy(self) -> bool:
        """What its health check says within the time that the file gives it."""
        check = self.service["healthcheck"]
        assert check["test"][0] == "CMD"
        try:
            return self.exec(*check["test"][1:], limit=seconds(check["timeout"])).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def becomes_healthy(self) -> None:
        """Wait for a health check that succeeds."""
        ends = time.monotonic() + PATIENCE
        while not self.healthy():
            assert self.process.poll() is None, f"{self.name} ended:\n{self.log()}"
            assert time.monotonic() < ends, f"{self.name} did not become healthy:\n{self.log()}"

    def stop(self) -> int:
        """Ask it to end, as an engine does, and how it ended within its grace period."""
        os.kill(self.inside, signal.SIGTERM)
        return self.process.wait(seconds(self.service.get("stop_grace_period", "10s")))


def privileges(service: Service) -> list[str]:
    """What makes a program the service's user and no more."""
    user, group = service["user"].split(":")
    words = ["/usr/bin/setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    if "no-new-privileges:true" in service["security_opt"]:
        words.append("--no-new-privs")
    assert service["cap_drop"] == ["ALL"]
    return [*words, "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all", "--"]


@dataclass
class Engine:
    """Services as containers whose files are below `place`; all processes end with it."""

    place: Path
    services: dict[str, Service]
    names: dict[str, str] = field(default_factory=dict)  # further names of services, as of a public host
    running: dict[str, Container] = field(default_factory=dict)
    _begun: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> "Engine":
        self.place.mkdir(parents=True, exist_ok=True)
        (self.place / "root").mkdir()
        # It lasts as long as its standard input is open here, and every process below it as long as it does.
        command = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child=KILL", "--mount-proc", "cat"]
        self.holder = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.holder.stdin is not None
        assert self.holder.stdout is not None
        self.holder.stdin.write(b"!")
        self.holder.stdin.flush()
        assert self.holder.stdout.read(1) == b"!"  # so that the namespaces are there
        self._within("sh", "-euc", "\n".join(self._wiring()))
        return self

    def __exit__(self, *_: object) -> None:
        self.holder.kill()
        self.holder.communicate()
        for process in self._begun:
            process.wait(PATIENCE)

    def up(self, *names: str) -> None:
        """Start services and whatever they wait for."""
        for name in names:
            if name in self.running:
                continue
            waits_for = self.services[name].get("depends_on", {})
            self.up(*waits_for)
            for other, wanted in waits_for.items():
                if wanted["condition"] == "service_healthy":
                    self.running[other].becomes_healthy()
                else:
                    assert self.running[other].wait() == 0, self.running[other].log()
            self.start(name)

    def finish(self, name: str, *arguments: str, given: bytes = b"", limit: float = PATIENCE) -> str:
        """Run a service to its end, which must be a good one; what it printed."""
        container = self.start(name, *arguments, given=given)
        code = container.wait(limit)
        assert code == 0, f"{name} ended with {code}:\n{container.log()}"
        return container.log()

    def start(self, name: str, *arguments: str, given: bytes = b"") -> Container:
        """Start a service, with other arguments if some are given, and `given` as its standard input."""
        service = self.services[name]
        specification = self._specification(name, service, arguments)
        file = self.place / f"{name}.json"
        file.write_text(json.dumps(specification))
        (self.place / f"{name}.in").write_bytes(given)
        if service["image"].startswith("nginx:"):
            self._names_for(name)
        ready, writer = os.pipe()
        inside = ["ip", "netns", "exec", name, "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL"]
        inside += [sys.executable, str(Path(__file__).with_name("container.py")), str(file), str(writer)]
        with open(self.place / f"{name}.log", "wb") as log, open(self.place / f"{name}.in", "rb") as read:
            process = subprocess.Popen(
                [*self._enter(), *inside], stdin=read, stdout=log, stderr=subprocess.STDOUT, pass_fds=[writer]
            )
        self._begun.append(process)
        os.close(writer)
        stands = bool(select.select([ready], [], [], PATIENCE)[0]) and os.read(ready, 1) == b"!"
        os.close(ready)
        log_file = self.place / f"{name}.log"
        assert stands, f"{name} got no root:\n{log_file.read_text()}"
        try:
            first = child(child(process.pid))
        except ValueError:  # it has ended already
            first = -1
        container = Container(name, service, process, first, specification["environment"], log_file)
        self.running[name] = container
        return container

    def volume(self, name: str, at: str = "", image: str = "quoron:local") -> Path:
        """The folder of a named volume, which begins as the folder `at` of the image that it is first mounted in."""
        folder = self.place / "volumes" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            user = USERS.get(image.partition(":")[0], 10001)
            os.chown(folder, user, user)
            folder.chmod(0o755 if at == "/trial/database" else 0o700)
        return folder

    def _enter(self) -> list[str]:
        spaces = f"/proc/{self.holder.pid}/ns"
        return ["nsenter", f"--mount={spaces}/mnt", f"--net={spaces}/net", f"--pid={spaces}/pid_for_children"]

    def _within(self, *words: str) -> None:
        subprocess.run([*self._enter(), *words], check=True)

    def _networks(self) -> list[str]:
        return sorted({network for service in self.services.values() for network in service.get("networks", ())})

    def address(self, network: str, name: str) -> str:
        """Where a service is in a network."""
        return f"10.77.{self._networks().index(network)}.{list(self.services).index(name) + 2}"

    def _wiring(self) -> Iterator[str]:
        """The commands that make a network for every service and a bridge for every network."""
        yield "mount -t tmpfs none /run"
        for number, _ in enumerate(self._networks()):
            yield f"ip link add br{number} type bridge && ip link set br{number} up"
        for index, (name, service) in enumerate(self.services.items()):
            yield f"ip netns add {name} && ip -n {name} link set lo up"
            for number, network in enumerate(service.get("networks", ())):
                outer, inner = f"v{index}-{number}", f"eth{number}"
                yield f"ip link add name {outer} type veth peer name {inner} netns {name}"
                yield f"ip link set {outer} master br{self._networks().index(network)} up"
                yield f"ip -n {name} address add {self.address(network, name)}/24 dev {inner}"
                yield f"ip -n {name} link set {inner} up"

    def _hosts(self, name: str) -> dict[str, str]:
        """The addresses of those who share a network with a service, by name and alias."""
        shared = {
            called: self.address(network, other)
            for network in self.services[name].get("networks", ())
            for other, service in self.services.items()
            if network in service.get("networks", ())
            for called in (other, *service.get("aliases", {}).get(network, ()))
        }
        return shared | {public: shared[other] for public, other in self.names.items() if other in shared}

    def _names_for(self, name: str) -> None:
        """A name server as engines have it, for a program that does not read /etc/hosts."""
        server = [sys.executable, str(Path(__file__).with_name("name_server.py")), json.dumps(self._hosts(name))]
        process = subprocess.Popen([*self._enter(), "ip", "netns", "exec", name, *server], stdout=subprocess.PIPE)
        self._begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.stdout.close()

    def _specification(self, name: str, service: Service, arguments: Sequence[str]) -> dict[str, Any]:
        """What container.py makes true."""
        ours = service["image"] == "quoron:local"
        program = "prometheus" if service["image"].startswith("prom/prometheus:") else "quoron"
        words = [*service.get("entrypoint", [program]), *(arguments or service.get("command", ()))]
        variables = image_variables() if ours else {"PATH": PATH}
        if service["image"].startswith("postgres:"):
            words = ["sh", "-c", POSTGRES]
            variables["PATH"] = f"{Path(postgres_server.found('postgres') or '/').resolve().parent}:{PATH}"
        hosts = {"localhost": "127.0.0.1", **self._hosts(name)}
        return {
            "root": str(self.place / "root"),
            "read_only": service["read_only"],
            "tmpfs": {each.partition(":")[0]: each.partition(":")[2] or "mode=1777" for each in service["tmpfs"]},
            "binds": [*self._system(), *(self._image() if ours else ()), *self._mounts(service)],
            "links": self._links(ours),
            "files": {
                "/etc/hosts": "".join(f"{address} {host}\n" for host, address in hosts.items()),
                "/etc/passwd": PEOPLE,
                "/etc/nsswitch.conf": "hosts: files\n",
            },
            "workdir": "/var/lib/quoron" if ours else "/",
            "init": service.get("init", False),
            "privileges": privileges(service),
            "words": words,
            "environment": variables | {key: str(value) for key, value in service.get("environment", {}).items()},
        }

    def _mounts(self, service: Service) -> list[tuple[str, str, bool]]:
        found = []
        for mount in service.get("volumes", ()):
            if isinstance(mount, dict):
                found.append((mount["source"], mount["target"], not mount["read_only"]))
                continue
            source, target, *mode = mount.split(":")
            there = ROOT / source if source.startswith(".") else self.volume(source, target, service["image"])
            found.append((str(there), target, mode != ["ro"]))
        return found

    def _system(self) -> list[tuple[str, str, bool]]:
        """This machine's programs, in the place of an image's."""
        folders = ["/usr", *(each for each in ("/bin", "/sbin", "/lib", "/lib64") if not Path(each).is_symlink())]
        settings = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/openssl.cnf")
        return [(each, each, False) for each in (*folders, *settings) if Path(each).exists()]

    def _image(self) -> list[tuple[str, str, bool]]:
        """What the image has: this environment's Python, the packages, the examples as the Dockerfile copies them."""
        pythons = dict.fromkeys((sys.base_prefix, sys.prefix))
        places = [str(Path(each).resolve()) for each in pythons if not each.startswith("/usr/")]
        places += [str(ROOT / folder) for folder in ("protos", "privacy", "client", "server", "simulations")]
        copied = re.findall(r"^COPY (\S+) (/opt/quoron/\S+)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
        examples = [(str(self._readable(source)), target, False) for source, target in copied]
        return [*((each, each, False) for each in places), *examples]

    def _readable(self, source: str) -> Path:
        """A copy as in the image: everybody may read it, though in this checkout nobody else might."""
        copy = self.place / "copied" / source
        if not copy.exists():
            shutil.copytree(ROOT / source, copy)
            for mode in ("go=", "a+rX"):  # as a checkout under umask 077 has it, then as the Dockerfile makes it
                subprocess.run(["chmod", "-R", mode, copy], check=True)
        return copy

    def _links(self, ours: bool) -> dict[str, str]:
        links = {"/var/run": "/run"}
        links |= {each: os.readlink(each) for each in ("/bin", "/sbin", "/lib", "/lib64") if Path(each).is_symlink()}
        if ours:
            links |= {f"/opt/quoron/{each}": f"{sys.prefix}/{each}" for each in ("bin", "lib", "pyvenv.cfg")}
        return links

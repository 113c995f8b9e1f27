"""Sockets that a program and all that it has started listen on, and whether they answer strangers. Linux.

    with at_rest("simulate", ..., folder=folder, commits=1) as command:      # quoron, in the middle of its work
        for each in listening(command.process): ...

One that rests waits in Python: whatever serves beside that is at work.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import grpc
import httpx

from federation.crowd import HANGS

PROC = Path("/proc")
LISTENING = "0A"  # a TCP socket's state
ACCEPTING = 0x10000  # a Unix socket's flag

HOOKS = Path(__file__).parent / "at_rest"


@dataclass(frozen=True, slots=True)
class Listening:
    """A socket that others can connect to."""

    program: str  # what its process calls itself
    process: int
    host: str = ""  # of TCP
    port: int = 0
    path: str = ""  # of a Unix socket: in the file system, or "@..." where anybody may connect

    @property
    def address(self) -> str:
        """As gRPC reads it."""
        return f"{self.host}:{self.port}"

    @property
    def here_alone(self) -> bool:
        """Whether nobody but this machine, and of a Unix socket nobody but its owner, can connect."""
        if self.path:
            return not self.path.startswith("@") and _closed(Path(self.path))
        host = ip_address(self.host.strip("[]"))
        mapped = host.ipv4_mapped if isinstance(host, IPv6Address) else None
        return (mapped or host).is_loopback


def family(root: int) -> set[int]:
    """Numbers of a process and of all that descend from it."""
    parents: dict[int, int] = {}
    for each in PROC.iterdir():
        if each.name.isdigit():
            with suppress(OSError):
                parents[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {number for number, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(root: int) -> list[Listening]:
    """Of a process and its descendants."""
    owners: dict[str, int] = {}
    for number in family(root):
        with suppress(OSError):
            for each in (PROC / str(number) / "fd").iterdir():
                with suppress(OSError):
                    owners.setdefault(os.readlink(each).removeprefix("socket:[").removesuffix("]"), number)
    found = []
    for name in ("tcp", "tcp6"):
        for line in (PROC / "net" / name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in owners:
                number = owners[fields[9]]
                host, _, port = fields[1].rpartition(":")
                found.append(Listening(_called(number), number, _host(host), int(port, 16)))
    for line in (PROC / "net" / "unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & ACCEPTING and fields[6] in owners:
            number = owners[fields[6]]
            found.append(Listening(_called(number), number, path=fields[7] if len(fields) > 7 else "@"))
    return found


@dataclass(frozen=True, slots=True)
class AtRest:
    """A command that waits for ever."""

    process: int
    bound: tuple[str, ...]  # addresses that Python has bound by then, in any process of the command


@contextmanager
def at_rest(
    *arguments: object, folder: Path, commits: int = 2, environment: Mapping[str, str] | None = None
) -> Iterator[AtRest]:
    """A command of quoron's, at rest after so many commits of a run's ledger, or at its end; `folder` is for a pipe."""
    os.mkfifo(pipe := folder / "rest")
    ear = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # both ways, so that no end of a writer is one of the pipe
    more = {"QUORON_REST": str(pipe), "QUORON_COMMITS": str(commits), "PYTHONPATH": str(HOOKS)}
    with tempfile.TemporaryFile("w+") as out:
        command = [sys.executable, "-m", "quoron", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**(environment or os.environ), **more})
        ended = os.pidfd_open(process.pid)
        try:
            said = ""
            while "rest " not in said:
                ready, *_ = select.select([ear, ended], [], [], HANGS)
                if ear not in ready:
                    out.seek(0)
                    raise AssertionError(f"it did not come to rest: {out.read()}")
                said += os.read(ear, 1 << 16).decode()
            yield AtRest(process.pid, tuple(line for line in said.splitlines() if line.startswith("bind ")))
        finally:
            others = family(process.pid)
            for number in others:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            process.wait()
            os.close(ended)
            os.close(ear)
            pipe.unlink()


# What a stranger asks of a gRPC server: every kind that Ray has. (That it serves is what any may be told.)
QUESTIONS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.JobInfoGcsService/AddJob",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.CoreWorkerService/PushTask",
)


def asked(each: Listening) -> dict[str, str]:
    """What a stranger without a secret is told: by the question, a code of gRPC's or of HTTP's."""
    values = {}
    with grpc.insecure_channel(each.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        for question in QUESTIONS:
            ask = channel.unary_unary(question, request_serializer=bytes, response_deserializer=bytes)
            try:
                ask(b"", timeout=20.0)
                values[question] = "OK"
            except grpc.RpcError as error:
                values[question] = error.code().name
                if values[question] == "UNAVAILABLE":  # it does not speak gRPC in plaintext
                    break
    if set(values.values()) == {"UNAVAILABLE"}:
        try:
            values["HTTP"] = str(httpx.get(f"http://{each.address}/", timeout=20.0, trust_env=False).status_code)
        except httpx.HTTPError as error:
            values["HTTP"] = type(error).__name__
    return values


def _called(number: int) -> str:
    words = (PROC / str(number) / "cmdline").read_bytes().split(b"\0")
    return Path(words[0].decode(errors="replace").split(" ")[0]).name


def _host(text: str) -> str:
    """The kernel writes words of four bytes, each in the machine's order."""
    raw = b"".join(int(text[first : first + 8], 16).to_bytes(4, sys.byteorder) for first in range(0, len(text), 8))
    host = ip_address(raw)
    return f"[{host}]" if host.version == 6 and host.ipv4_mapped is None else str(getattr(host, "ipv4_mapped", host))


def _closed(path: Path) -> bool:
    """Whether only its owner passes the folders above a socket, or may write to it."""
    above = [path, *path.parents]
    return any(each.exists() and each.stat().st_mode & 0o077 == 0 for each in above[1:]) or not (
        path.stat().st_mode & 0o022
    )

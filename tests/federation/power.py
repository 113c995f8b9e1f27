"""A power loss at any moment: what a process did to its files, as strace saw it, and what a disk may have left of that.

    operations = recorded([sys.executable, "-m", "federation.power", "store", folder], folder)
    for left in disks(operations, seed=1):
        left.write(other_folder)        # then start what should survive it

A file's bytes are safe after an fsync or fdatasync of that file, a name (created, renamed, removed) after an fsync of
its folder. Of the rest any part may be there: names up to some moment, and any of the writes, whole or some sectors of
512 bytes; what lies before them and was never written is zeros. As a program: something that writes, and says on
standard output what it has acknowledged.
"""

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECTOR = 512
CALLS = "openat,write,pwrite64,fsync,fdatasync,ftruncate,rename,renameat,renameat2,unlink,unlinkat"
HOW = ("nothing", "everything", "some", "torn")  # of what was not yet safe
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "OPENBLAS_NUM_THREADS": "1"}
Write = tuple[int, bytes | None]  # where, and what; None cuts the file there


def missing() -> str | None:
    """Why nothing can be recorded here; None if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False)
    return None if tried.returncode == 0 else "strace may not look at processes here"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call: "create", "write", "sync", "rename", "remove" of a file, or "tell" of what was acknowledged."""

    kind: str
    name: str = ""
    data: bytes | None = None
    offset: int = 0
    to: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """What there is after a power loss."""

    acknowledged: bytes  # acknowledged before it
    files: dict[str, bytes]

    def write(self, folder: Path) -> None:
        for name, data in self.files.items():
            (folder / name).write_bytes(data)


def recorded(command: Sequence[object], folder: Path) -> list[Operation]:
    """What a command of one thread does to the files of a folder, which is empty at first."""
    log = folder.with_suffix(".strace")
    traced = ["strace", "-f", "-y", "-xx", "-s", str(1 << 24), "-e", f"trace={CALLS}", "-o", str(log)]
    done = subprocess.run([*traced, *map(str, command)], env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found, known, ends = [], set[str](), dict[str, int]()
    with log.open(encoding="ascii") as lines:
        for line in lines:
            found += _operations(line, os.path.realpath(folder), known, ends)
    log.unlink()
    return found


def _operations(line: str, folder: str, known: set[str], ends: dict[str, int]) -> list[Operation]:
    call = re.match(r"\d+\s+(\w+)\((.*)\)\s+= (\d+)", line)
    if call is None or "<unfinished" in line:
        assert folder not in _text(line), line
        return []
    name, given, result = call[1], call[2], int(call[3])
    paths = [_text(each) for each in re.findall(r"<([^>]*)>", given)]
    strings = [_bytes(each) for each in re.findall(r'"((?:\\x..)*)"', given)]
    if name == "write" and given.startswith("1<"):
        return [Operation("tell", data=strings[-1])]
    if name == "openat":
        path = strings[0].decode()
        inside = _inside(path, folder)
        if inside is None or "O_DIRECTORY" in given:
            return []
        ends[inside] = 0
        if inside in known or "O_CREAT" not in given:
            return []
        known.add(inside)
        return [Operation("create", inside)]
    if name.startswith(("rename", "unlink")):
        inside = [_inside(each.decode(), folder) for each in strings]
        if inside[0] is None:
            return []
        known.discard(inside[0])
        if name.startswith("unlink"):
            return [Operation("remove", inside[0])]
        assert inside[1] is not None, line
        known.add(inside[1])
        return [Operation("rename", inside[0], to=inside[1])]
    if not paths:
        return []
    if paths[0] == folder and "sync" in name:
        return [Operation("sync")]
    inside = _inside(paths[0], folder)
    if inside is None:
        return []
    numbers = [int(each) for each in given.rpartition('"')[2].split(",") if each.strip().isdigit()]
    if name == "pwrite64":
        return [Operation("write", inside, strings[-1][:result], numbers[-1])]
    if name == "write":
        ends[inside] += result
        return [Operation("write", inside, strings[-1][:result], ends[inside] - result)]
    if name == "ftruncate":
        return [Operation("write", inside, None, int(given.rpartition(",")[2]))]
    return [Operation("sync", inside)]


def _inside(path: str, folder: str) -> str | None:
    path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return path.removeprefix(folder + "/") if path.startswith(folder + "/") else None


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _text(text: str) -> str:
    return re.sub(r"\\x(..)", lambda found: chr(int(found[1], 16)), text)


@dataclass(slots=True)
class _File:
    safe: bytes = b""
    unsafe: list[Write] = field(default_factory=list)

    def left(self, how: str, draw: random.Random) -> bytes:
        data = bytearray(self.safe)
        for offset, written in self.unsafe:
            if how == "nothing" or (how != "everything" and draw.random() < 0.5):
                continue
            if written is None:
                del data[offset:]
                continue
            pieces = [(offset, written)] if how != "torn" else list(_pieces(offset, written, draw))
            for start, piece in pieces:
                data.extend(bytes(max(0, start + len(piece) - len(data))))
                data[start : start + len(piece)] = piece
        return bytes(data)


def _pieces(offset: int, data: bytes, draw: random.Random) -> Iterator[Write]:
    """Some sectors of a write."""
    start = 0
    while start < len(data):
        size = min(SECTOR - (offset + start) % SECTOR, len(data) - start)
        if draw.random() < 0.5:
            yield offset + start, data[start : start + size]
        start += size


class _Disk:
    def __init__(self) -> None:
        self.names: dict[str, _File] = {}
        self.safe_names: dict[str, _File] = {}
        self.since: list[dict[str, _File]] = []  # names after each change that is not yet safe
        self.acknowledged = b""

    def do(self, one: Operation) -> None:
        """What one call changes."""
        if one.kind == "tell":
            self.acknowledged += one.data or b""
        elif one.kind == "write":
            self.names[one.name].unsafe.append((one.offset, one.data))
        elif one.kind == "sync" and one.name:
            file = self.names[one.name]
            file.safe, file.unsafe = file.left("everything", random.Random(0)), []
        elif one.kind == "sync":
            self.safe_names, self.since = dict(self.names), []
        else:
            if one.kind == "create":
                self.names[one.name] = _File()
            elif one.kind == "remove":
                del self.names[one.name]
            else:
                self.names[one.to] = self.names.pop(one.name)
            self.since.append(dict(self.names))

    def left(self, how: str, draw: random.Random) -> Left:
        names = [self.safe_names, *self.since]
        which = {"nothing": 0, "everything": len(names) - 1}.get(how, draw.randrange(len(names)))
        return Left(self.acknowledged, {name: file.left(how, draw) for name, file in names[which].items()})


def disks(operations: Sequence[Operation], *, seed: int) -> Iterator[Left]:
    """What may be left after each call, in four ways, without those that were there before."""
    draw, disk, seen = random.Random(seed), _Disk(), set[int]()
    for one in operations:
        disk.do(one)
        for how in HOW:
            left = disk.left(how, draw)
            mark = hash((left.acknowledged, tuple(sorted(left.files.items()))))
            if mark not in seen:
                seen.add(mark)
                yield left


def _store(folder: str) -> None:
    """A coordinator's store, from the first enrolment to the end of a run."""
    from federation import store_scenario
    from quoron_client.durable import HighWaterMark

    write = HighWaterMark.write

    def write_and_say(tally: HighWaterMark, count: int, head: str = "") -> None:
        write(tally, count, head)
        os.write(1, f"{count}\n".encode())

    HighWaterMark.write = write_and_say
    store_scenario.carry_out(f"sqlite:///{folder}/store.sqlite")


def _record(folder: str) -> None:
    """A client's record: three answers of two runs, each told once it may be sent."""
    from quoron_client.federation.client_state import Agreement, ClientState

    with ClientState(Path(folder) / "record.sqlite", epsilon=2.0, delta=1e-5) as record:
        for run, round_ in (("a", 0), ("a", 1), ("b", 0)):
            assert record.agree(Agreement(run, bytes(16), 0.5, 1e-6, 2)) is None
            answer = os.urandom(3000)
            assert record.keep(run, round_, bytes(16), answer) == answer
            os.write(1, f"{run} {round_} {answer.hex()}\n".encode())


def _file(folder: str) -> None:
    """A file replaced whole, twice."""
    from quoron_client.durable import PRIVATE, replace_whole

    for content in ("one", "two"):
        replace_whole(Path(folder) / "tokens.json", content.encode() * 1000, mode=PRIVATE)
        os.write(1, f"{content}\n".encode())


if __name__ == "__main__":
    {"store": _store, "record": _record, "file": _file}[sys.argv[1]](sys.argv[2])

"""The inside of a container, without an engine: a root of its own, then its program, as engine.py describes both.

Run as root, as the first process of new mount and process namespaces: `container.py SPECIFICATION READY`, a JSON object
and the number of an open file, to which a byte is written once the root stands. Nothing here is imported by tests.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

DEVICES = ("null", "zero", "full", "random", "urandom")


def mount(*words: str) -> None:
    """The command `mount`, which must succeed."""
    subprocess.run(["mount", *words], check=True)


def place(root: Path, source: str, target: str, *, writable: bool) -> None:
    """Bind a file or folder at `target` below the root."""
    there = root / target.lstrip("/")
    there.parent.mkdir(parents=True, exist_ok=True)
    if Path(source).is_dir():
        there.mkdir(exist_ok=True)
    else:
        there.touch()
    mount("--bind", source, str(there))
    if not writable:
        mount("-o", "remount,bind,ro", str(there))


def build(root: Path, given: dict[str, Any]) -> None:
    """Everything that the program sees."""
    mount("-t", "tmpfs", "-o", "mode=0755", "none", str(root))
    for name in ("etc", "proc", "dev", "tmp"):
        (root / name).mkdir()
    mount("-t", "proc", "none", str(root / "proc"))
    for name in DEVICES:
        place(root, f"/dev/{name}", f"/dev/{name}", writable=True)
    (root / "dev" / "fd").symlink_to("/proc/self/fd")
    for target, options in {"/dev/shm": "mode=1777,size=64m", **given["tmpfs"]}.items():
        (root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        mount("-t", "tmpfs", "-o", f"nosuid,nodev,noexec,{options}", "none", str(root / target.lstrip("/")))
    for source, target, writable in given["binds"]:
        place(root, source, target, writable=writable)
    for target, source in given["links"].items():
        (root / target.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / target.lstrip("/")).symlink_to(source)
    for target, text in given["files"].items():
        (root / target.lstrip("/")).write_text(text)
    (root / given["workdir"].lstrip("/")).mkdir(parents=True, exist_ok=True)
    if given["read_only"]:
        mount("-o", "remount,ro", str(root))


def become(given: dict[str, Any]) -> None:
    """The program, in place of this process."""
    os.execve(given["privileges"][0], [*given["privileges"], *given["words"]], given["environment"])


def attend(given: dict[str, Any]) -> int:
    """Be the first process for the program: pass signals on, collect what is orphaned, and end as it ends."""
    child = os.fork()
    if child == 0:
        become(given)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda which, _: os.kill(child, which))
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    specification, ready = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    new = Path(specification["root"])
    build(new, specification)
    os.chroot(new)
    os.chdir(specification["workdir"])
    os.write(ready, b"!")
    os.close(ready)
    if not specification["init"]:
        become(specification)
    code = attend(specification)
    sys.exit(code if code >= 0 else 128 - code)

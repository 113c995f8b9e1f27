"""Write the Python of every .proto file beside it; with `--check`, only say if it is up to date.

The tools are pinned, so that the same sources give the same bytes: what they generate carries their versions, and runs
with these or newer releases of grpcio and protobuf.
"""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent / "protos"
TOOLS = {"grpcio-tools": "1.81.1", "mypy-protobuf": "5.1.0"}


def generated() -> dict[Path, bytes]:
    """Path and content of every generated file. Raises RuntimeError where a tool is missing or fails."""
    _require_tools()
    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.proto"))
    services = [name for name in sources if "\nservice " in (ROOT / name).read_text(encoding="utf-8")]
    with TemporaryDirectory() as folder:
        _compile(folder, ["--python_out", "--pyi_out"], sources)
        _compile(folder, ["--grpc_python_out", "--mypy_grpc_out"], services)
        made = (path for path in Path(folder).rglob("*") if path.is_file())
        return {ROOT / path.relative_to(folder): path.read_bytes() for path in made}


def _require_tools() -> None:
    for tool, wanted in TOOLS.items():
        try:
            found = version(tool)
        except PackageNotFoundError:
            found = "none"
        if found != wanted:
            raise RuntimeError(f"Expected {tool}=={wanted}, got {found}. Install it: pip install '.[test]'.")


def _compile(folder: str, outputs: list[str], sources: list[str]) -> None:
    """Run the compiler in a process of its own: its plugins are programs beside this Python."""
    includes = [str(ROOT), str(files("grpc_tools") / "_proto")]
    plugin = Path(sys.executable).parent / "protoc-gen-mypy_grpc"
    command = [sys.executable, "-m", protoc.__name__, f"--plugin=protoc-gen-mypy_grpc={plugin}"]
    command += [f"--proto_path={path}" for path in includes] + [f"{output}={folder}" for output in outputs]
    done = subprocess.run([*command, *sources], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"protoc failed:\n{done.stderr}")


def stale(wanted: dict[Path, bytes]) -> Iterator[Path]:
    """Generated files that are missing, or hold something else, or that no source makes."""
    for path, content in wanted.items():
        if not path.exists() or path.read_bytes() != content:
            yield path
    yield from (path for path in ROOT.rglob("*_pb2*.py*") if path.suffix in (".py", ".pyi") and path not in wanted)


def main() -> int:
    """Write or check the files."""
    wanted = generated()
    behind = sorted(stale(wanted))
    if "--check" in sys.argv:
        for path in behind:
            print(f"{path} is out of date: run python scripts/gen_protos.py", file=sys.stderr)
        return 1 if behind else 0
    for path in behind:
        if path in wanted:
            path.write_bytes(wanted[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())

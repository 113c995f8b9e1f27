"""The wheel, built of what goes into the image, holds everything: installed alone, every module is imported from it."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"protos": "quoron_protos", "client": "quoron_client", "server": "quoron_server", "simulations": "quoron"}

IMPORT_ALL = """
import importlib, json, pkgutil
places = {}
for package in ("quoron_protos", "quoron_client", "quoron_server", "quoron"):
    root = importlib.import_module(package)
    names = [package] + [each.name for each in pkgutil.walk_packages(root.__path__, package + ".")]
    names = [name for name in names if not name.startswith(("quoron.torch", "quoron.jax"))]  # tests/models has these
    places.update({name: importlib.import_module(name).__file__ for name in names})
from quoron.presets import presets
print(json.dumps({"places": places, "presets": [each.name for each in presets()]}))
"""


def let_through(path: str, rules: list[str]) -> bool:
    """Whether .dockerignore leaves a file in the build: the last rule for it, or for a folder above, decides."""
    through = True
    for rule in rules:
        wanted = re.escape(rule.removeprefix("!")).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if re.fullmatch(f"{wanted}(/.*)?", path):
            through = rule.startswith("!")
    return through


def copied() -> list[tuple[str, str]]:
    """Each source that the Dockerfile copies before it builds the wheel, and where to."""
    before = (ROOT / "Dockerfile").read_text(encoding="utf-8").split("pip wheel")[0]
    lines = [line.split() for line in re.findall(r"^COPY (.*)$", before, flags=re.MULTILINE)]
    return [(source, target) for *sources, target in lines for source in sources]


@pytest.mark.parametrize(
    ("path", "through"),
    [("a/b", True), ("c", False), ("a/__pycache__/b", False), ("__pycache__", False), ("a/x.egg-info/y", False)],
)
def test_the_rules_of_dockerignore_are_read_as_they_are_meant(path: str, through: bool) -> None:
    assert let_through(path, ["*", "!a", "**/__pycache__", "**/*.egg-info"]) is through


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the image: from what its Dockerfile copies and .dockerignore lets through, and nothing else."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    for name, target in copied():
        for path in [ROOT / name, *(ROOT / name).rglob("*")]:
            if path.is_file() and let_through(path.relative_to(ROOT).as_posix(), rules):
                inside = Path(name) if target == "./" else Path(target)
                copy = source / inside / path.relative_to(ROOT / name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
    # No isolation: the build backend comes from this environment, so nothing is downloaded.
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(source)]
    without = os.environ | {"QUORON_KERNELS": "0"}  # what is compiled has its tests in test_prebuilt_kernels.py
    subprocess.run(command, env=without, check=True, capture_output=True, text=True)
    (built,) = place.glob("*.whl")
    return built


@pytest.mark.programs
def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(path.relative_to(ROOT / folder))
        for folder, package in FOLDERS.items()
        for pattern in ("*.py", "py.typed", "*.toml", "*.parquet", "*.proto", "*.md", "*.yml")
        for path in (ROOT / folder / package).rglob(pattern)
    }
    assert wanted <= held
    assert any(name.endswith("flights.parquet") for name in held)
    assert not any(name.startswith("tests") for name in held)


@pytest.mark.programs
def test_every_module_imports_from_the_wheel_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "clean"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    inside = Path(
        subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
    )
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True, text=True)
    for name, target in _dependencies().items():
        (inside / name).symlink_to(target)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "numba")
    done = subprocess.run(
        [python, "-I", "-c", IMPORT_ALL], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert all(Path(file).is_relative_to(place) for file in printed["places"].values())
    assert {"quickstart", "flights"} <= set(printed["presets"])
    listed = subprocess.run(
        [place / "bin" / "quoron", "show", "presets"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert listed.returncode == 0, listed.stderr
    assert "quickstart" in listed.stdout


def _dependencies() -> dict[str, Path]:
    """What this environment has installed, but not our own packages in any form."""
    here = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    return {
        path.name: path
        for folder in here
        for path in folder.iterdir()
        if "quoron" not in path.name.lower() and path.suffix != ".pth" and path.name != "__pycache__"
    }

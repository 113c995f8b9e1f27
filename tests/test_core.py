"""quoron-core: mechanisms and everything that trains on one machine, without what touches a network, by itself."""

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from quoron.cli.app import NETWORK

ROOT = Path(__file__).parent.parent
CORE = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text(encoding="utf-8"))
WHOLE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

ALONE = """
import sys
wheel, others = sys.argv[1:]
sys.path += [wheel, others]
"""
EVERYTHING = """
import importlib, pkgutil
for package in ("quoron_privacy", "quoron_client", "quoron_server", "quoron"):
    root = importlib.import_module(package)
    assert root.__file__.startswith(wheel), root.__file__
    for each in pkgutil.walk_packages(root.__path__, package + "."):
        if not each.name.startswith(("quoron.torch", "quoron.jax", "quoron.sklearn")) and (
            each.name not in ("quoron.cli.health", "quoron_client.protocol.flower_records", "quoron.__main__")
        ):
            importlib.import_module(each.name)
print("imported")
"""
TRAINED = """
import numpy as np, quoron
from quoron.cli.app import invoke
users = np.random.default_rng(0).uniform(4, 6, size=(5000, 2))
assert quoron.mean(users, epsilon=1.0, bound=20.0, spread=2.0).guarantee
assert invoke(["simulate", "quickstart", "--set", "population.users=3000", "--out", "run", "--quiet"]) == 0
assert invoke(["plan", "quickstart", "--json"]) == 0
assert invoke(["client", "--help"]) == 0
assert invoke(["simulate", "quickstart", "--engine", "flower", "--out", "other"]) == 2
assert invoke(["tokens", "list"]) == 2
print("trained")
"""


def needs(project: dict[str, list[str]]) -> set[str]:
    """Distributions that a project's dependencies bring, themselves and what they need, as installed here."""
    found: set[str] = set()
    waiting = [Requirement(each) for each in project["dependencies"]]
    while waiting:
        name = canonicalize_name(waiting.pop().name)
        if name not in found:
            found.add(name)
            asked = map(Requirement, metadata.requires(name) or ())
            waiting.extend(each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""}))
    return found


def test_core_is_the_whole_without_its_network() -> None:
    core, whole = CORE["project"], WHOLE["project"]
    for key in ("version", "license", "requires-python", "scripts"):
        assert core[key] == whole[key]
    network = {"flwr", "grpcio", "grpcio-health-checking", "grpcio-reflection"}
    assert {Requirement(each).name for each in whole["dependencies"]} - network == {
        Requirement(each).name for each in core["dependencies"]
    }
    assert set(core["dependencies"]) <= set(whole["dependencies"])
    shared = {name: core["optional-dependencies"][name] for name in core["optional-dependencies"]}
    assert shared.items() <= whole["optional-dependencies"].items()
    assert {each.removesuffix("*") for each in CORE["tool"]["setuptools"]["packages"]["find"]["exclude"]} == NETWORK


def test_core_brings_at_most_35_distributions() -> None:
    assert len(needs(CORE["project"])) + 1 <= 35


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel of quoron-core holds, unpacked."""
    place = tmp_path_factory.mktemp("core")
    source = place / "source"
    source.mkdir()
    for each in ("protos", "privacy", "client", "server", "simulations", "LICENSE", "README.md"):
        (source / each).symlink_to(ROOT / each)
    (source / "pyproject.toml").write_bytes((ROOT / "core" / "pyproject.toml").read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (built,) = place.glob("*.whl")
    zipfile.ZipFile(built).extractall(place / "unpacked")
    return place / "unpacked"


@pytest.mark.programs
@pytest.mark.parametrize(("code", "last"), [(EVERYTHING, "imported"), (TRAINED, "trained")], ids=["imports", "works"])
def test_core_works_with_what_it_brings_and_nothing_else(wheel: Path, code: str, last: str, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    for name in needs(CORE["project"]):
        distribution = metadata.distribution(name)
        for top in {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (others / top).exists():
                (others / top).symlink_to(distribution.locate_file(top))
    # Neither this environment's packages nor the checkout: what is on the path is the wheel and what it brings.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ALONE + code, str(wheel), str(others)],
        cwd=tmp_path,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "numba")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == last
    if last == "trained":
        assert done.stderr.count("got quoron-core") == 2, done.stderr

"""A plain install trains on one machine with what it brings; what needs more names the extra that has it."""

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from measures import ROOT, distributions

TEXTS = ("pyproject.toml", "LICENSE", "README.md")
ALONE = """
import sys
wheel, others = sys.argv[1:]
sys.path += [wheel, others]
"""
EVERYTHING = """
import importlib, pkgutil
extras = (
    "quoron.torch", "quoron.jax", "quoron.sklearn", "quoron.flower", "quoron.federation", "quoron.federation",
    "quoron.__main__", "quoron.cli.admin", "quoron_client.federation", "quoron_client.flower",
    "quoron_client.protocol.flower_records", "quoron_server.federation", "quoron_server.flower",
    "quoron_server.second_server", "quoron_server.service",
    *(f"quoron_server.storage.{each}" for each in ("backup", "connections", "database", "re", "ro", "seats")),
)
for package in ("quoron_privacy", "quoron_client", "quoron_server", "quoron"):
    root = importlib.import_module(package)
    assert root.__file__.startswith(wheel), root.__file__
    for each in pkgutil.walk_packages(root.__path__, package + "."):
        if not each.name.startswith(extras):
            importlib.import_module(each.name)
print("imported")
"""
TRAINED = """
import numpy as np, quoron
from quoron.cli.app import invoke
users = np.random.default_rng(0).uniform(4, 6, size=(5000, 2))
assert quoron.mean(users, epsilon=1.0, bound=20.0, spread=2.0).statement
assert invoke(["--quiet", "simulate", "quickstart", "--set", "population.users=3000", "--out", "run"]) == 0
assert invoke(["plan", "quickstart", "--json"]) == 0
assert invoke(["client", "--help"]) == 0
assert invoke(["simulate", "quickstart", "--engine", "flower", "--out", "other"]) == 2
assert invoke(["runs"]) == 2
print("trained")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel holds, unpacked."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for each in ("building", "protos", "privacy", "client", "server", "simulations", *TEXTS):
        (source / each).symlink_to(ROOT / each)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(source)]
    subprocess.run(command, env=os.environ | {"QUORON_KERNELS": "0"}, check=True, capture_output=True, text=True)
    (built,) = place.glob("*.whl")
    zipfile.ZipFile(built).extractall(place / "unpacked")
    return place / "unpacked"


@pytest.mark.programs
@pytest.mark.parametrize(("code", "last"), [(EVERYTHING, "imported"), (TRAINED, "trained")], ids=["imports", "works"])
def test_it_works_with_what_it_brings_and_nothing_else(wheel: Path, code: str, last: str, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir()
    for name in distributions() - {"quoron"}:
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
        assert "pip install 'quoron[flower]'" in done.stderr
        assert "pip install 'quoron[federation]'" in done.stderr

"""Run tests/flower with the oldest and the newest Flower that the pin in pyproject.toml admits.

Each is put before the installed one, without its dependencies: these are the installed ones, and what it would rather
have is said. Ends with 1 if a test fails, or if the index does not tell which versions there are.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def pin() -> Requirement:
    """What pyproject.toml says of Flower."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(each for each in map(Requirement, project["dependencies"]) if each.name == "flwr")


def released() -> list[Version]:
    """Every version that the index has, in order. SystemExit if it does not say."""
    asked = subprocess.run([*PIP, "index", "versions", "flwr"], capture_output=True, text=True, check=False)
    told = [line for line in asked.stdout.splitlines() if line.startswith("Available versions:")]
    if asked.returncode or not told:
        sys.exit(f"NOT TESTED with other versions of Flower: the package index does not tell them.\n{asked.stderr}")
    return sorted(Version(each) for each in told[0].partition(":")[2].split(","))


def unmet(folder: str, flower: Version) -> Iterator[str]:
    """Dependencies of the Flower in a folder that the installed packages do not satisfy."""
    (found,) = (each for each in distributions(path=[folder]) if each.name == "flwr" and each.version == str(flower))
    for wanted in map(Requirement, found.requires or []):
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            has = version(wanted.name)
        except PackageNotFoundError:
            has = "none"
        if has == "none" or not wanted.specifier.contains(has, prereleases=True):
            yield f"{wanted.name}{wanted.specifier}, got {has}"


def passes(flower: Version) -> bool:
    """Whether the tests pass with this version."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*PIP, "install", "--quiet", "--no-deps", "--target", folder, f"flwr=={flower}"], check=True)
        print(f"Flower {flower}", *(f"; it asks for {each}" for each in unmet(folder, flower)), sep="", flush=True)
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": path, "QUORON_FLOWER": str(flower)}
        jobs = os.environ.get("JOBS", "2")
        command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", jobs, "--dist", "worksteal", "tests/flower"]
        return subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> int:
    """One after the other."""
    admitted = list(pin().specifier.filter(released()))
    if not admitted:
        sys.exit(f"NOT TESTED with other versions of Flower: the package index has none of {pin()}.")
    installed = Version(version("flwr"))
    others = [each for each in dict.fromkeys((admitted[0], admitted[-1])) if each != installed]
    print(f"{pin()} admits {admitted[0]} to {admitted[-1]}; {installed} is installed.", flush=True)
    failed = [str(each) for each in others if not passes(each)]
    if failed:
        print(f"FAILED with Flower {', '.join(failed)}", file=sys.stderr)
    return min(len(failed), 1)


if __name__ == "__main__":
    sys.exit(main())

"""What images and CI install is pinned by hash, covers what the package asks for, and names no index."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"image": ("flower", "postgres"), "image-ray": ("postgres", "ray"), "ci": ("test", "docs")}
LOCKS = (*EXTRAS, "build")
# The systems of the image, and of whoever runs the tests.
PYTHONS = [
    default_environment() | {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.0"}  # type: ignore[arg-type]
    for minor in (11, 12, 13)
]


def entries(lock: str) -> list[str]:
    """Each pinned distribution of a lock with its hashes, on one line."""
    text = (FOLDER / f"{lock}.txt").read_text(encoding="utf-8")
    return [line for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines() if line and not line.startswith("#")]


def pinned(lock: str, environment: dict[str, str]) -> dict[str, Version]:
    """What a lock installs in an environment."""
    found = {}
    for entry in entries(lock):
        requirement = Requirement(entry.partition(" --hash")[0].strip())
        if requirement.marker is None or requirement.marker.evaluate(environment):
            ((version),) = [each.version for each in requirement.specifier]
            found[canonicalize_name(requirement.name)] = Version(version)
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_distribution_is_pinned_to_one_version_with_hashes_and_without_an_address(lock: str) -> None:
    for entry in entries(lock):
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[^ ;]+( ; [^#]*?)?( --hash=sha256:[0-9a-f]{64})+", entry), entry
    assert "://" not in (FOLDER / f"{lock}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("lock", EXTRAS)
@pytest.mark.parametrize("environment", PYTHONS, ids=lambda each: each["python_version"])
def test_a_lock_has_what_the_package_asks_for(lock: str, environment: dict[str, str]) -> None:
    held = pinned(lock, environment)
    asked = [*PROJECT["dependencies"], *(each for extra in EXTRAS[lock] for each in _extra(extra))]
    for requirement in map(Requirement, asked):
        name = canonicalize_name(requirement.name)
        assert name in held, f"run scripts/lock: {name} is not in requirements/{lock}.txt"
        assert requirement.specifier.contains(held[name], prereleases=True), f"run scripts/lock: {name} {held[name]}"


def test_the_build_is_pinned_too() -> None:
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    requirement = Requirement(backend)
    for lock in ("build", "ci"):
        assert pinned(lock, PYTHONS[0])[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_library_itself_keeps_ranges() -> None:
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert not any(each.operator == "==" for each in SpecifierSet(str(requirement.specifier))), requirement


def test_the_image_and_ci_install_nothing_without_a_hash() -> None:
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    for command in re.findall(r"pip install[^&\n]*", image):
        assert "--require-hashes" in command or ("--no-index" in command and "--no-deps" in command), command
    assert re.search(r"pip wheel --no-deps --no-build-isolation", image)
    assert re.search(r"^LOCKED=1$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)


def _extra(name: str) -> list[str]:
    found = []
    for each in PROJECT["optional-dependencies"][name]:
        within = Requirement(each)
        found += [one for extra in within.extras for one in _extra(extra)] if within.name == "quoron" else [each]
    return found

"""Kernels that come with an image are used by whoever may not write them; what does not fit is compiled elsewhere."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCATOR = "quoron.shipped_kernels.ShippedKernels"
MODULE = """
from numba import njit

@njit(cache=True)
def twice(number):
    return 2 * number
"""
CALL = "import kernel; print(kernel.twice({argument}))"


def call(place: Path, argument: str, own: Path, **environment: str) -> str:
    """What a fresh process, which may write nothing but `own`, says of a function's result."""
    command = [sys.executable, "-c", CALL.format(argument=argument)]
    if os.geteuid() == 0 and shutil.which("setpriv") is not None:
        # Root may write anywhere; without its capabilities it may not, and still reads what is its own.
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", *command]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    variables = {**kept, "PYTHONPATH": f"{place}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **environment}
    done = subprocess.run(
        command,
        env={**variables, "NUMBA_CACHE_DIR": str(own)},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def files(folder: Path) -> list[Path]:
    """What was compiled into a folder: files, not links."""
    return [path for path in folder.rglob("*.nb?") if not path.is_symlink()]


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """A read-only folder of kernels compiled for a whole number."""
    (tmp_path / "kernel.py").write_text(MODULE)
    folder = tmp_path / "shipped"
    assert call(tmp_path, "21", folder) == "42"
    assert files(folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o555)
    return folder


@pytest.mark.programs
def test_a_second_start_compiles_nothing_and_a_miss_is_compiled_elsewhere(shipped: Path, tmp_path: Path) -> None:
    own, before = tmp_path / "own", files(shipped)
    variables = {"NUMBA_CACHE_LOCATOR_CLASSES": LOCATOR, "QUORON_KERNELS": str(shipped)}
    assert call(tmp_path, "21", own, **variables) == "42"
    assert files(own) == []
    assert [path for path in own.rglob("*.nbi") if path.is_symlink()]
    assert call(tmp_path, "2.5", own, **variables) == "5.0"  # another signature, as for another processor
    assert len(files(own)) == 2, "an index and a kernel"
    assert call(tmp_path, "21", own, **variables) == "42"
    assert len(files(own)) == 2, "the links are followed beside what was compiled"
    assert files(shipped) == before


@pytest.mark.slow
def test_another_processor_compiles_its_own(shipped: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    variables = {"NUMBA_CACHE_LOCATOR_CLASSES": LOCATOR, "QUORON_KERNELS": str(shipped), "NUMBA_CPU_NAME": "generic"}
    assert call(tmp_path, "21", own, **variables) == "42"
    assert len(files(own)) == 2


@pytest.mark.slow
def test_without_shipped_kernels_there_is_numbas_own_folder(shipped: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    variables = {"NUMBA_CACHE_LOCATOR_CLASSES": LOCATOR, "QUORON_KERNELS": str(tmp_path / "absent")}
    assert call(tmp_path, "21", own, **variables) == "42"
    assert len(files(own)) == 2


def test_the_image_compiles_where_its_programs_look() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    final = text[text.rindex("\nFROM ") :]
    (compiled,) = re.findall(r"^RUN NUMBA_CACHE_DIR=(\S+) \S+ -m quoron\.kernels$", final, flags=re.MULTILINE)
    assert f"QUORON_KERNELS={compiled}" in final
    assert f"NUMBA_CACHE_LOCATOR_CLASSES={LOCATOR}" in final

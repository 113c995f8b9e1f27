"""Kernels that come with an installation are used wherever they fit, by whoever may not write them."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quoron_privacy.kernels.prebuilt import LEVELS, fits

ROOT = Path(__file__).parent.parent
MODULE = """
from quoron_privacy.kernels.prebuilt import njit

@njit(cache=True)
def twice(number):
    return 2 * number
"""
CALL = """
import sys
from pathlib import Path
from quoron_privacy.kernels import prebuilt
prebuilt.PREBUILT = Path("prebuilt")
import kernel
print(*[kernel.twice(eval(each)) for each in sys.argv[1:]])
"""
SLOW_CALL = CALL.replace(
    "import kernel",
    """
import time
from numba.core.caching import IndexDataCacheFile as Files
load = Files._load_index
Files._load_index = lambda files: (load(files), time.sleep(1.0))[0]
import kernel""",
)
LEVEL = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
ABLE = ",".join(f"+{each}" for each in (*LEVELS["x86-64-v3"], "avx512f"))


def call(place: Path, own: str, *arguments: str, program: str = CALL, **environment: str) -> str:
    """What a fresh process, which may write nothing but the folder `own` of `place`, says of a function's results."""
    command = [sys.executable, "-c", program, *arguments]
    if os.geteuid() == 0 and shutil.which("setpriv") is not None:
        # Root may write anywhere; without its capabilities it may not, and still reads what is its own.
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", *command]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    variables = {**kept, "PYTHONPATH": f"{place}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **environment}
    done = subprocess.run(
        command,
        env={**variables, "NUMBA_CACHE_DIR": str(place / own)},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def compiled(folder: Path) -> list[str]:
    """What numba has compiled itself, by the number that it gives to a file; what was shipped has a digest."""
    return [path.name for path in folder.rglob("*.nbc") if re.search(r"\.\d{1,3}\.nbc$", path.name)]


def ship(place: Path, *arguments: str, **environment: str) -> Path:
    """A read-only folder of kernels compiled for some arguments, in their order."""
    (place / "kernel.py").write_text(MODULE)
    shutil.rmtree(place / "prebuilt", ignore_errors=True)
    call(place, "made", *arguments, **environment)
    (folder,) = (place / "made").iterdir()
    assert len(compiled(folder)) == len(arguments)
    shutil.move(folder, place / "prebuilt")
    shutil.rmtree(place / "made")
    for path in (place / "prebuilt", *(place / "prebuilt").iterdir()):
        path.chmod(0o555)
    return place / "prebuilt"


@pytest.mark.programs
def test_a_second_start_compiles_nothing_and_a_miss_is_compiled_elsewhere(tmp_path: Path) -> None:
    folder = ship(tmp_path, "21")
    before = sorted(folder.iterdir())
    assert call(tmp_path, "own", "21") == "42"
    assert compiled(tmp_path / "own") == []
    assert call(tmp_path, "own", "2.5") == "5.0"  # another signature
    assert len(compiled(tmp_path / "own")) == 1
    assert call(tmp_path, "own", "21", "2.5") == "42 5.0"
    assert len(compiled(tmp_path / "own")) == 1
    assert sorted(folder.iterdir()) == before


@pytest.mark.programs
def test_what_was_numbered_otherwise_in_an_older_installation_is_not_taken_for_it(tmp_path: Path) -> None:
    ship(tmp_path, "21", "2.5")
    assert call(tmp_path, "own", "21") == "42"
    ship(tmp_path, "2.5", "21", "True")
    assert call(tmp_path, "own", "21", "2.5", "True") == "42 5.0 2"
    assert compiled(tmp_path / "own") == []


@pytest.mark.slow
def test_what_processes_compile_at_the_same_time_is_all_kept(tmp_path: Path) -> None:
    """As the processes of `--ship` do, each for its own signatures of a function that several of them call."""
    (tmp_path / "kernel.py").write_text(MODULE)
    with ThreadPoolExecutor() as processes:
        results = processes.map(lambda number: call(tmp_path, "own", number, program=SLOW_CALL), ("21", "2.5", "True"))
        assert list(results) == ["42", "5.0", "2"]
    assert len(compiled(tmp_path / "own")) == 3
    assert call(tmp_path, "own", "21", "2.5", "True") == "42 5.0 2"
    assert len(compiled(tmp_path / "own")) == 3


@pytest.mark.slow
def test_what_was_compiled_for_a_level_serves_every_processor_of_it(tmp_path: Path) -> None:
    ship(tmp_path, "21", **LEVEL)
    assert call(tmp_path, "own", "21") == "42"
    assert compiled(tmp_path / "own") == []


@pytest.mark.slow
def test_another_processor_or_source_compiles_its_own(tmp_path: Path) -> None:
    ship(tmp_path, "21", **LEVEL)
    assert call(tmp_path, "own", "21", NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == "42"
    assert len(compiled(tmp_path / "own")) == 1
    (tmp_path / "kernel.py").write_text(MODULE.replace("2 * number", "3 * number"))
    assert call(tmp_path, "another", "21") == "63"
    assert len(compiled(tmp_path / "another")) == 1


@pytest.mark.slow
def test_where_somebody_says_where_numba_looks_it_looks_there_alone(tmp_path: Path) -> None:
    ship(tmp_path, "21")
    assert call(tmp_path, "own", "21", NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator") == "42"
    assert len(compiled(tmp_path / "own")) == 1


@pytest.mark.parametrize(
    ("made", "processor", "carried_out"),
    [
        (("linux", "x86-64-v3", ""), ("linux", "znver4", ABLE), True),
        (("linux", "znver4", ABLE), ("linux", "znver4", ABLE), True),
        (("linux", "x86-64-v3", ""), ("linux", "znver4", ABLE.replace("+fma", "-fma")), False),
        (("linux", "x86-64-v3", ""), ("darwin", "znver4", ABLE), False),
        (("linux", "znver4", ABLE), ("linux", "rocketlake", ABLE), False),
        (("linux", "x86-64-v3", ""), ("linux", "nehalem", ""), False),
    ],
)
def test_only_what_a_processor_can_do_fits(
    made: tuple[str, str, str], processor: tuple[str, str, str], carried_out: bool
) -> None:
    assert fits(made, processor) is carried_out


def test_the_image_and_the_set_up_compile_before_anybody_waits() -> None:
    for path in ("Dockerfile", "scripts/_environment"):
        assert "-m quoron.kernels --ship" in (ROOT / path).read_text(encoding="utf-8"), path

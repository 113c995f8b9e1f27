"""Compiled once, loops are not compiled again: what the container image relies on, and first runs."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numba
import pytest

from quoron import kernels
from quoron.simulation import first_use
from quoron_client.compute.gradients import gradient_loop

ALONE = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}  # nothing that is shipped
TABLE = ("train", "scorecard.csv", "--user", "unitid", "--epsilon", "4", "--label")
FIRST = {  # what people begin with
    "a description": ("train", "scorecard.toml", "--evaluate", "0.1"),
    "a number, undeclared": (*TABLE, "earnings_med"),
    "classes, undeclared": (*TABLE, "pred_degree_awarded_ipeds"),
    "yes or no": ("train", "storms"),
    "a simulation": ("simulate", "--quiet"),
}


def carry_out(folder: Path, *words: str, environment: Mapping[str, str] = ALONE) -> set[Path]:
    """What is compiled in a folder after one more command there."""
    own = {"NUMBA_CACHE_DIR": str(folder / "kernels"), "QUORON_LEDGER": str(folder / "lifetime.sqlite")}
    variables = os.environ | own | environment
    subprocess.run([sys.executable, "-m", *words], env=variables, cwd=folder, check=True, capture_output=True)
    return set((folder / "kernels").rglob("*.nbc"))


@pytest.mark.programs
def test_a_first_train_compiles_nothing_where_kernels_are_shipped(tmp_path: Path) -> None:
    if not kernels.shipped():
        pytest.skip("nothing is compiled of this source: python -m quoron.kernels --ship")
    carry_out(tmp_path, "quoron", "example", "scorecard")
    for what in ("a description", "a number, undeclared"):
        held = carry_out(tmp_path, "quoron", *FIRST[what], environment={})
        assert len(held) > 50, what
        # Numba numbers what it compiles; what was shipped has a digest in its name.
        assert {path.name for path in held if re.search(r"\.\d{1,3}\.nbc$", path.name)} == set(), what


@pytest.mark.slow
def test_after_compiling_all_a_simulation_compiles_nothing(tmp_path: Path) -> None:
    compiled = carry_out(tmp_path, "quoron.kernels")
    assert len(compiled) > 50
    carry_out(tmp_path, "quoron", "example", "scorecard")
    assert carry_out(tmp_path, "quoron", "simulate", "flights", "--quiet") == compiled
    for what, words in FIRST.items():
        assert carry_out(tmp_path, "quoron", *words) == compiled, what


@pytest.mark.slow
def test_what_is_compiled_beside_the_first_plan_is_what_its_run_calls(tmp_path: Path) -> None:
    def functions(compiled: set[Path]) -> list[str]:
        return sorted(path.name.split("-")[0] for path in compiled)

    rounds = carry_out(tmp_path, "quoron.simulation.first_use", *first_use.PARTS)
    beside, after = functions(rounds), carry_out(tmp_path, "quoron", "simulate", "--quiet", "--out", "run")
    assert len(beside) > 8
    assert after > rounds
    assert [name for name in functions(after) if name in beside] == beside, "nothing is compiled for other types again"
    assert not [path for path in after - rounds if "compute_" in path.parent.name], "nothing of clients is left"


class TestBesideAPlan:
    @pytest.fixture
    def python(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """What stands for Python in the commands of the other processes, on a machine with two processors."""
        script = tmp_path / "python"
        script.write_text('#!/bin/sh\necho "$*" >>"$0.started"\n')
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 2)
        monkeypatch.setattr(type(gradient_loop), "kept", lambda loop: False)
        return script

    @staticmethod
    def started(python: Path) -> list[str]:
        found = python.with_name("python.started")
        return found.read_text().splitlines() if found.exists() else []

    def test_they_end_with_a_plan_that_fails(self, python: Path) -> None:
        python.write_text("#!/bin/sh\nexec tail -f /dev/null\n")  # for ever
        with pytest.raises(ValueError, match="no such plan"), first_use.rounds_compiled_meanwhile():
            raise ValueError("no such plan")

    def test_what_has_been_called_is_kept(self) -> None:
        first_use.compile_gradients()
        assert gradient_loop.kept()

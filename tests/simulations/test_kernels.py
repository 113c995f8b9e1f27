"""Compiled once, loops are not compiled again: what the container image relies on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_after_compiling_all_a_simulation_compiles_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}

    def carry_out(*words: str) -> set[Path]:
        subprocess.run([sys.executable, "-m", *words], env=environment, cwd=tmp_path, check=True, capture_output=True)
        return set((tmp_path / "kernels").rglob("*.nbc"))

    compiled = carry_out("quoron.kernels")
    assert len(compiled) > 50
    for preset in ("quickstart", "flights"):
        assert carry_out("quoron", "simulate", preset, "--quiet", "--out", preset) == compiled, preset

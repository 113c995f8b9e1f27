"""compose.hospitals.yml: each hospital sees its own visits alone, and 900 patients of three clients make a run."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from federation.engine import FILE, ROOT, Engine, in_containers, services

HOSPITALS = ROOT / "compose.hospitals.yml"
OVER = yaml.safe_load(HOSPITALS.read_text(encoding="utf-8"))
MERGED = services(FILE, HOSPITALS)
SCRIPT = ROOT / "examples/federation/hospitals.sh"
CLIENTS = ("client-1", "client-2", "client-3")


def test_a_hospital_sees_its_own_visits_alone() -> None:
    sources = {name: {mount.split(":")[0] for mount in MERGED[name]["volumes"]} for name in CLIENTS}
    assert sources == {name: {f"{name}-identity", f"{name}-record", f"hospital-{name[-1]}"} for name in CLIENTS}
    assert all(f"hospital-{name[-1]}:/visits:ro" in MERGED[name]["volumes"] for name in CLIENTS)
    assert not {mount.split(":")[0] for mount in MERGED["submit"]["volumes"]} & {f"hospital-{n}" for n in (1, 2, 3)}


@pytest.mark.programs
def test_the_script_makes_them_once(tmp_path: Path) -> None:
    for part in (*CLIENTS, "operator"):
        (tmp_path / part).mkdir()
    for _ in range(2):
        found = subprocess.run(
            ["sh", str(SCRIPT)], env=engine_environment(tmp_path), capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        made = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert set(made) == {f"{name}/visits.parquet" for name in CLIENTS} | {"operator/run.toml"}
        assert len(set(made.values())) == 4


def engine_environment(trial: Path) -> dict[str, str]:
    """Of the script: the program on its path."""
    import os
    import sys

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "QUORON_TRIAL": str(trial)}


@in_containers
def test_three_hospitals_of_300_patients_run_to_the_end(tmp_path: Path) -> None:
    with Engine(tmp_path / "c", MERGED) as composed:
        composed.up(*CLIENTS)
        composed.up("submit", "watch")
        assert composed.running["watch"].wait() == 0, composed.running["watch"].log()
        assert "complete" in composed.running["watch"].log()
        assert "one person of one silo" in composed.running["submit"].log()
        composed.finish("operator", "fetch", "hospitals", "--out", "hospitals")
        with np.load(composed.volume("results") / "hospitals" / "model.npz") as stored:
            assert stored["model"].shape == (12,)
            assert np.abs(stored["model"]).max() > 0.1

"""The README's first command, in a folder where nobody has run it yet."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.programs
def test_the_first_command_of_the_readme_trains_a_model_and_says_what_it_is_good_for(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    installed = tmp_path / "environment"  # this one, as if the script had made it
    (installed / "bin").mkdir(parents=True)
    (installed / "bin" / "quoron").symlink_to(Path(sys.executable).parent / "quoron")
    (installed / ".installed").touch()
    environment = os.environ | {"VENV": str(installed), "QUORON_LEDGER": str(tmp_path / "ledger.sqlite")}

    done = subprocess.run(["scripts/quickstart"], cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "arning" not in done.stdout + done.stderr
    assert len((done.stdout + done.stderr).splitlines()) < 25
    assert "rmse per user, with 95 %" in done.stdout
    assert (tmp_path / "runs" / "scorecard-1" / "report.html").is_file()
    assert (tmp_path / "ledger.sqlite").is_file()

"""docs/adding-an-algorithm.md, followed to the letter in a copy of the server; then the contracts."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/adding-an-algorithm.md").read_text(encoding="utf-8")


@pytest.mark.programs
def test_an_algorithm_added_as_the_page_says_keeps_every_contract(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "server", tmp_path / "server", ignore=shutil.ignore_patterns("*.nb?"))
    files = re.findall(r"^`(server/\S+\.py)`:\n\n```python\n(.*?)```", PAGE, flags=re.MULTILINE | re.DOTALL)
    ((name, text),) = files
    assert len(text.splitlines()) <= 60
    (tmp_path / name).write_text(text, encoding="utf-8")
    (line,) = re.findall(r"^```text\n(.*\n)```", PAGE, flags=re.MULTILINE)
    registry = tmp_path / "server/quoron_server/algorithms/__init__.py"
    text = registry.read_text(encoding="utf-8")
    place = text.index("\n}", text.index("_PLACES = {")) + 1
    registry.write_text(text[:place] + line + text[place:], encoding="utf-8")
    contracts = ["tests/contracts/test_algorithms.py", "tests/contracts/test_min_cohort.py", "-k", "averaged-sgd"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *contracts],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "server"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 10

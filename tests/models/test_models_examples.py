"""The examples of networks run as they stand, in small, and say what they should."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from quoron.training import lifetime

EXAMPLES = Path(__file__).parents[2] / "examples" / "models"


def said(
    name: str, arguments: str, tmp_path: Path, patched: pytest.MonkeyPatch, captured: pytest.CaptureFixture
) -> str:
    patched.setenv(lifetime.VARIABLE, str(tmp_path / "lifetime.sqlite"))
    patched.setattr(sys, "argv", [name, *arguments.split(), "--out", str(tmp_path / "run")])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return captured.readouterr().out


def test_a_convolutional_network_learns_made_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    printed = said(
        "images.py", "--users 1500 --rounds 20 --epsilon 15 --simulation-seed 3", tmp_path, monkeypatch, capsys
    )
    assert "(15, 1e-06)-differential privacy" in printed
    assert float(re.findall(r"at the end: ([\d.]+)%", printed)[0]) > 65


def test_adapters_of_a_transformer_learn_made_text_and_nothing_else_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    printed = said(
        "text.py",
        "--users 800 --rounds 15 --epsilon 15 --public 150 --simulation-seed 3",
        tmp_path,
        monkeypatch,
        capsys,
    )
    size, before, after = re.findall(
        r"([\d,]+) numbers are trained; before: ([\d.]+)[\s\S]*at the end: ([\d.]+)", printed
    )[0]
    assert int(size.replace(",", "")) < 300
    assert float(after) < float(before) - 0.2

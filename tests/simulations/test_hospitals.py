"""Made-up hospitals: their files, what they say of themselves, and that something can be learnt of them."""

from pathlib import Path

import pytest

import quoron
from quoron import config as configs
from quoron.cli.app import invoke
from quoron.sections import Keep
from quoron.training.hospitals import write_hospitals


def test_a_hospital_is_the_same_whatever_others_there_are(tmp_path: Path) -> None:
    few, many = write_hospitals(tmp_path / "few", hospitals=2), write_hospitals(tmp_path / "many", hospitals=4)
    assert [path.name for path in few] == ["hospital-1.parquet", "hospital-2.parquet", "run.toml"]
    assert few[1].read_bytes() == many[1].read_bytes()
    assert few[0].read_bytes() != few[1].read_bytes()
    other = write_hospitals(tmp_path / "other", hospitals=2, seed=1)
    assert few[0].read_bytes() != other[0].read_bytes()


def test_the_command_writes_a_run_that_learns_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["example", "hospitals", "--out", "trial"]) == 0
    said = capsys.readouterr()
    assert "no patient of these hospitals exists" in said.err
    assert said.out.split()[-1] == "trial/run.toml"
    text = (tmp_path / "trial" / "run.toml").read_text()
    assert "MADE UP" in text
    assert configs.parse(text).privacy.quorum is None, "`quoron train` takes none"
    result = quoron.simulate(
        "trial/run.toml", keep=Keep(tmp_path / "run"), settings=["algorithm.name=whitened-tracking"]
    )
    assert result.summary.silos["silos"] == 3
    assert result.summary.excess_risk is not None
    assert result.summary.excess_risk < 0.1 * float(result.summary.excess_risk_initial or 0.0)

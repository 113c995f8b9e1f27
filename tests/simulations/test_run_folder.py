"""Files of a run folder: whole, as they were written, and nobody else's."""

import json

import numpy as np
import pytest

from quoron.run_folder import RunFolder
from quoron_privacy.errors import ConfigError, RunError


def test_a_json_file_comes_back_and_any_change_of_it_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    values = {"b": [1, 2.5, None, "ü"], "a": {"x": True}}
    folder.write_json("plan.json", values | {"endless": float("inf")})
    assert folder.plan() == values | {"endless": None}
    text = (tmp_path / "plan.json").read_text()
    laid_out = json.dumps(json.loads(text), indent=4)
    (tmp_path / "plan.json").write_text(laid_out)
    assert folder.plan() == values | {"endless": None}  # an editor may lay it out anew
    for other in (text.replace("2.5", "2.25"), text.replace("sha256", "sha"), text[:-9], "", "[]", "1", "[" * 10**5):
        (tmp_path / "plan.json").write_text(other)
        with pytest.raises(RunError, match=r"plan.json as it was written"):
            folder.plan()
    (tmp_path / "plan.json").write_bytes(b"\xff")
    with pytest.raises(RunError, match=r"plan.json as it was written"):
        folder.plan()


def test_a_damaged_model_or_configuration_is_named(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_model(np.arange(5.0))
    whole = (tmp_path / "model.npz").read_bytes()
    for at in range(0, len(whole), 3):
        (tmp_path / "model.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            assert folder.model().tolist() == [0, 1, 2, 3, 4]
        except RunError:
            continue
    (tmp_path / "model.npz").write_bytes(whole[:-30])
    with pytest.raises(RunError, match=r"model.npz as it was written"):
        folder.model()
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"text of a configuration in .*config.toml, got UnicodeDecodeError"):
        folder.config()


def test_damaged_rounds_are_named(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_rounds([{"round": at, "asked": 3} for at in range(5)])
    whole = (tmp_path / "rounds.parquet").read_bytes()
    middle = len(whole) // 2
    for wrong in (whole[:-9], whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :], b"", b"text"):
        (tmp_path / "rounds.parquet").write_bytes(wrong)
        with pytest.raises(RunError, match=r"rounds.parquet as it was written"):
            folder.rounds()


def test_no_file_is_written_through_a_link(tmp_path):
    (tmp_path / "run").mkdir()
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "run" / ".plan.json.new").symlink_to(mine)
    with pytest.raises(RunError, match=r"Cannot write .*plan.json"):
        RunFolder(tmp_path / "run").write_json("plan.json", {})
    assert mine.read_text() == "mine"

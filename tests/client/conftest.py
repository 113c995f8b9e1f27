"""What tests of this folder share."""

import pytest

from quoron_client.data import csv_file, json_lines


@pytest.fixture(params=["small pieces", "as they are"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "small pieces":
        monkeypatch.setattr(csv_file, "_PIECE", 50)
        monkeypatch.setattr(json_lines, "_PIECE", 50)

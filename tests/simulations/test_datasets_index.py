"""Who is where in a folder: numbered once, whatever interrupts it, and refused by name where it cannot be."""

from pathlib import Path

import numpy as np
import pytest

from quoron.data import index as _indexing
from quoron.data.index import opened
from row_files import in_buckets, little, rows


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many pieces and buckets of little data."""
    little(monkeypatch, tmp_path)


class TestTheIndex:
    @pytest.mark.parametrize("calls", [1, 3, 5])
    def test_goes_on_where_it_was_interrupted(self, calls, tmp_path, monkeypatch):
        in_buckets(rows(300), tmp_path / "d")
        done = _indexing._runs
        read: list[int] = []

        def dying(files, user, piece):
            if len(read) == calls:
                raise KeyboardInterrupt
            read.append(piece.number)
            return done(files, user, piece)

        monkeypatch.setattr(_indexing, "_runs", dying)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path / "d", "who")
        monkeypatch.setattr(_indexing, "_runs", lambda *given: (read.append(given[2].number), done(*given))[1])
        made = opened(tmp_path / "d", "who")
        assert sorted(read) == list(range(len(made.pieces)))
        monkeypatch.setattr(_indexing, "_runs", done)
        in_buckets(rows(300), tmp_path / "whole")
        np.testing.assert_array_equal(made.held(), opened(tmp_path / "whole", "who").held())

"""Who is where in a folder: numbered once, whatever interrupts it, and refused by name where it cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quoron.cli.app import invoke
from quoron.datasets.index import opened, renewed
from quoron_privacy.errors import DataError
from row_files import described, in_buckets, in_order, little, rows


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many pieces and buckets of little data."""
    little(monkeypatch, tmp_path)


class TestTheIndex:
    def test_is_made_once_and_keeps_no_name(self, tmp_path):
        in_buckets(rows(200), tmp_path / "d")
        made = opened(tmp_path / "d", "who")
        again = opened(tmp_path / "d", "who")
        assert made.users == again.users == 200
        assert not made.sorted
        np.testing.assert_array_equal(made.held(), again.held())
        kept = [path for path in made.folder.iterdir() if path.is_file()]
        assert all(b"u000" not in path.read_bytes() for path in kept)
        assert all(path.stat().st_mode & 0o077 == 0 for path in kept)

    def test_survives_a_kill(self, tmp_path):
        in_buckets(rows(300), tmp_path / "d")
        program = (
            "import os, sys\nfrom quoron.datasets import _indexing, index\n_indexing.PIECE = 300\n"
            "count = []\ndone = _indexing.write\ndef write(path, data):\n    done(path, data)\n    count.append(path)\n"
            "    if len(count) == 9: os.kill(os.getpid(), 9)\n"
            "_indexing.write = write\nindex.opened(sys.argv[1], 'who')\n"
        )
        ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "d")], env=dict(os.environ), check=False)
        assert ended.returncode == -9
        made = opened(tmp_path / "d", "who")
        assert made.users == 300
        assert made.rows == rows(300).num_rows

    def test_a_user_in_two_unsorted_files_is_refused_by_the_files_names(self, tmp_path):
        in_buckets(rows(100), tmp_path / "d")
        path = tmp_path / "d" / "bucket-002.parquet"
        stray = pq.read_table(tmp_path / "d" / "bucket-000.parquet").slice(0, 1)
        pq.write_table(pa.concat_tables([pq.read_table(path), stray]), path, row_group_size=50)
        with pytest.raises(
            DataError,
            match=r"of column 'who' in one file.*group 0 of 'bucket-000.parquet' and in row group \d of 'bucket-002",
        ) as error:
            opened(tmp_path / "d", "who")
        assert "u000" not in str(error.value)

    def test_files_that_changed_are_named_and_can_be_indexed_again(self, tmp_path):
        in_order(rows(60), tmp_path / "d")
        opened(tmp_path / "d", "who")
        (tmp_path / "d" / "part-002.parquet").unlink()
        with pytest.raises(DataError, match=r"'part-002.parquet' is gone since.*quoron index"):
            opened(tmp_path / "d", "who")
        assert renewed(tmp_path / "d", "who").users < 60

    def test_the_command_says_what_there_is(self, tmp_path, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)
        in_order(rows(60), tmp_path / "d")
        assert invoke(["index", "d", "--user", "who", "--quiet"]) == 0
        assert "60 users" in capsys.readouterr().out
        assert invoke(["index", str(described(tmp_path, "d")), "--quiet"]) == 0
        assert "sorted by user" in capsys.readouterr().out
        assert invoke(["index", "d"]) == 2
        assert invoke(["index", "nowhere", "--user", "who"]) == 2

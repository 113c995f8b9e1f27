"""A run of `quoron train` on a disk that is full again and again goes on by the same command, and is charged once."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import quoron
from quoron.cli.app import invoke
from test_kills_in_a_row import charges, scene

# No file of this life may grow beyond so many bytes, as on a disk without more room.
FULL = textwrap.dedent(
    """
    import resource, sys
    from quoron.__main__ import main

    room = int(sys.argv[1])
    sys.argv = ["quoron", *sys.argv[2:]]
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    sys.exit(main())
    """
)


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1_500, 2_900])
def test_a_run_goes_on_when_there_is_room_wherever_the_disk_was_full(first: int, tmp_path: Path) -> None:
    here, refused = scene(tmp_path, "train", "outlier-gd"), 0
    for room in range(first, 150_000, 7_001):
        life = subprocess.run([sys.executable, "-c", FULL, str(room), *here.command()], capture_output=True, text=True)
        if life.returncode == 0:
            break
        refused += 1
        assert life.returncode == 1, (room, life.stderr)
        assert "Traceback" not in life.stderr, (room, life.stderr)
    assert refused >= 5
    assert invoke(here.command()) == 0
    assert charges(tmp_path) == ["charge", "release", "end"]
    assert np.isfinite(quoron.load(here.run).weights).all()

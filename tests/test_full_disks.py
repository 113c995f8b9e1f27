"""A run of `quoron train` on a disk that is full at any byte goes on by the same command, and is charged once."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

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

# Books that acknowledge a charge which the disk had no room for.
FORGETTING = textwrap.dedent(
    """
    import contextlib, sys
    import filling
    from quoron_privacy.errors import LedgerError
    from quoron_server.books.lifetime_ledger import PopulationLedger

    charge = PopulationLedger.charge

    def forgetting(*given, **named):
        with contextlib.suppress(LedgerError):
            charge(*given, **named)

    PopulationLedger.charge = forgetting
    filling.main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    """
)
MOMENTS = ("start", "charge", "round", "finish", "files", "release", "end")


def swept(step: int, *moments: str, program: tuple[str, ...] = ("filling.py",)) -> list[dict[str, Any]]:
    """What `filling` found with a disk that is full at every so many bytes, a moment each."""
    command = [sys.executable, *program, "0", str(step), *moments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.programs
def test_a_disk_that_is_full_loses_nothing_and_leaves_nothing_that_the_next_start_cannot_go_on_from() -> None:
    found = swept(997)
    assert tuple(each["moment"] for each in found) == MOMENTS
    for each in found:
        assert each["wrong"] == []
        assert each["refused"] >= 2


@pytest.mark.programs
def test_books_that_forget_a_charge_on_a_full_disk_are_found() -> None:
    (found,) = swept(997, "charge", program=("-c", FORGETTING))
    assert [what for _, what in found["wrong"]] == ["acknowledged and gone: ['charge']"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_disk_that_is_full_at_any_byte_loses_nothing(moment: str) -> None:
    (found,) = swept(1, moment)
    assert found["wrong"] == []
    assert found["refused"] == found["room"] >= 2_000  # every byte up to the largest that is written


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

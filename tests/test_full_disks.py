"""A run of `quoron train` on a disk that is full at any byte goes on by the same command, and is charged once."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import quoron
import warden
from federation.power import missing
from postgres_server import quick_folder
from quoron.cli.app import invoke
from test_kills_in_a_row import charges, scene
from writes import STRACE, Swept, Trace, some, traces

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

# A store that acknowledges a charge which the disk had no room for.
FORGETTING = textwrap.dedent(
    """
    import contextlib, sys
    import filling
    from quoron_privacy.errors import LedgerError
    from quoron_server.storage.lifetime_ledger import PopulationLedger

    charge = PopulationLedger.charge

    def forgetting(*given, **named):
        with contextlib.suppress(LedgerError):
            charge(*given, **named)

    PopulationLedger.charge = forgetting
    filling.main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    """
)
MOMENTS = ("start", "charge", "round", "finish", "files", "release", "end")


def lives(step: int, *moments: str, program: tuple[str, ...] = ("filling.py",)) -> dict[str, list[dict[str, Any]]]:
    """What `filling` found with a disk that is full at every so many bytes, up to the first with room, by moment."""
    command = [sys.executable, *program, "0", str(step), *moments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for line in done.stdout.splitlines():
        life = json.loads(line)
        found.setdefault(life["moment"], []).append(life)
    return found


def wrong(lives: Iterable[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(life["room"], life["wrong"]) for life in lives if life["wrong"] is not None]


@pytest.mark.programs
def test_a_disk_that_is_full_loses_nothing_and_leaves_nothing_that_the_next_start_cannot_go_on_from() -> None:
    found = lives(997)
    assert tuple(found) == MOMENTS
    for each in found.values():
        assert wrong(each) == []
        assert len(each) >= 3


@pytest.mark.programs
def test_a_store_that_forgets_a_charge_on_a_full_disk_is_found() -> None:
    found = lives(997, "charge", program=("-c", FORGETTING))["charge"]
    assert [what for _, what in wrong(found)] == ["acknowledged and gone: ['charge']"] * 3


def tried(rooms: dict[str, list[int]], log: Path | None = None) -> tuple[list[dict[str, Any]], list[Trace]]:
    """Lives with room for so many bytes each, and with a log what they tried to write."""
    with TemporaryDirectory(prefix=warden.prefix(), dir=quick_folder()) as place:
        done = subprocess.run(
            [*(() if log is None else (*STRACE, str(log))), sys.executable, "filling.py"],
            input=json.dumps(rooms),
            env=os.environ | {"TMPDIR": place},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=3600,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line) for line in done.stdout.splitlines()], [] if log is None else [*traces(log, place)]


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_disk_that_is_full_at_any_byte_loses_nothing(moment: str, tmp_path: Path) -> None:
    """At each byte where a write begins or ends, and at some between two of them: at all unless those are alike."""
    swept = Swept()
    while swept.untried:
        for life, trace in zip(*tried({moment: swept.untried}, tmp_path / "strace"), strict=True):
            swept.add(life, trace)
    borders = len(swept.lives)
    for which in (some, list):
        stretches = swept.stretches if which is some else swept.unlike
        for life in tried({moment: [room for stretch in stretches for room in which(stretch)]})[0]:
            swept.lives[life["room"]] = life
    unlike = [(each.start, each.stop) for each in swept.unlike]
    print(f"{moment}: to {swept.most}, {borders} borders, {len(swept.lives)} lives, at every byte of {unlike}")
    assert wrong(swept.lives.values()) == []
    assert all(life["whole"] == (room >= swept.most) for room, life in swept.lives.items())
    assert swept.most >= 2_000


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1_500, 2_900])
def test_a_run_goes_on_when_there_is_room_wherever_the_disk_was_full(first: int, tmp_path: Path) -> None:
    here, refused = scene(tmp_path, "train", "outlier-gd"), 0
    for room in range(first, 150_000, 7_001):
        life = subprocess.run(
            [sys.executable, "-c", FULL, str(room), *here.command()], capture_output=True, text=True, timeout=600
        )
        if life.returncode == 0:
            break
        refused += 1
        assert life.returncode == 1, (room, life.stderr)
        assert "Traceback" not in life.stderr, (room, life.stderr)
    assert refused >= 5
    assert invoke(here.command()) == 0
    assert charges(tmp_path) == ["charge", "release", "end"]
    assert np.isfinite(quoron.load(here.run).weights).all()

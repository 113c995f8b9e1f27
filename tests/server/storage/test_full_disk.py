"""A disk that fills at any byte while a store is made leaves nothing behind that the same call cannot go on from."""

import json
import subprocess
import sys
import textwrap

import pytest

# Every file of this process may grow to so many bytes from the given call on, as on a disk with as much room.
SWEEP = textwrap.dedent(
    """
    import json, resource, sys, tempfile
    from pathlib import Path
    from quoron_privacy.errors import LedgerUnavailable
    from quoron_server.storage.database import Database
    from quoron_server.storage.ledger import Ledger
    from quoron_server.storage.registry import Registry

    what, moment, sizes = sys.argv[1], sys.argv[2], range(*map(int, sys.argv[3:6]))
    hard, begin, room = resource.getrlimit(resource.RLIMIT_FSIZE)[1], Ledger.begin, None

    def fill(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    def begun(*given, **named):
        made = begin(*given, **named)
        fill(room)
        return made

    def make(path):
        if what == "ledger":
            Ledger.create(path, plan="{}", config_digest="c", noise_key=b"k" * 32).close()
        else:
            with Database(f"sqlite:///{path}") as database:
                Registry(database).enrol("ada")

    def whole(path):
        if what == "ledger":
            with Ledger.open(path) as ledger:
                return ledger.noise_key == b"k" * 32 and ledger.plan_json == "{}"
        with Database(f"sqlite:///{path}", create=False) as database:
            return Registry(database).users_count() == 1

    found = {"refused": 0, "made": 0, "wrong": []}
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.sqlite"
            try:
                if moment == "begun":
                    Ledger.begin, room = begun, size
                else:
                    fill(size)
                make(path)
                found["made"] += 1
            except LedgerUnavailable:
                found["refused"] += 1
            finally:
                Ledger.begin = begin
                fill(None)
            left = sorted(each.name for each in Path(folder).iterdir())
            try:
                if what == "ledger" and not path.exists() and left:
                    found["wrong"].append((size, left))
                if what != "ledger" or not path.exists():
                    make(path)
                if not whole(path):
                    found["wrong"].append((size, "not whole"))
            except Exception as error:
                found["wrong"].append((size, left, repr(error)))
    print(json.dumps(found))
    """
)


def swept(what: str, moment: str, *sizes: int) -> dict[str, object]:
    command = [sys.executable, "-c", SWEEP, what, moment, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.programs
@pytest.mark.parametrize(
    ("what", "moment", "sizes"),
    [
        ("ledger", "called", (0, 120_000, 7_001)),
        ("ledger", "begun", (0, 60_000, 4_001)),  # what is folded into the file when it is closed
        ("database", "called", (0, 120_000, 7_001)),
    ],
)
def test_a_store_that_could_not_be_made_is_made_by_the_next_call(
    what: str, moment: str, sizes: tuple[int, int, int]
) -> None:
    found = swept(what, moment, *sizes)
    assert found["wrong"] == []
    assert int(str(found["refused"])) >= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "moment", "most"),
    [("ledger", "called", 120_000), ("ledger", "begun", 60_000), ("database", "called", 120_000)],
)
def test_a_store_is_made_at_the_next_call_wherever_the_disk_was_full(what: str, moment: str, most: int) -> None:
    found = swept(what, moment, 0, most, 97)
    assert found["wrong"] == []

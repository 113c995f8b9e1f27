"""A power loss at any write, with whatever a disk keeps of what was not yet safe: nothing acknowledged is undone."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation import power, store_scenario
from quoron_client.federation.client_state import Agreement, ClientState
from quoron_privacy.errors import LedgerError
from quoron_server.storage.database import Database

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(power.missing() is not None, reason=power.missing() or ""),
]


def recorded(what: str, folder: Path) -> list[power.Operation]:
    place = folder / what
    place.mkdir()
    return power.recorded([sys.executable, "-m", "federation.power", what, place], place)


def laid_out(operations: list[power.Operation], folder: Path) -> Iterator[tuple[power.Left, Path]]:
    """What is left after each moment, in a folder of its own."""
    for number, left in enumerate(power.disks(operations, seed=7)):
        place = folder / str(number)
        place.mkdir()
        left.write(place)
        yield left, place


def lost(left: power.Left, place: Path, whole: dict[str, list[str]]) -> str | None:
    """What is wrong with a coordinator's store after a power loss: None if it is carried on to the same end."""
    url, found = f"sqlite:///{place}/store.sqlite", int((left.acknowledged.split() or [b"0"])[-1])
    try:
        with Database(url) as database:
            kept = int(database.rows("SELECT acknowledged FROM meta")[0]["acknowledged"])
        store_scenario.carry_out(url)
    except LedgerError as error:
        return f"refused: {error}"
    if kept < found:
        return f"undone: {found} were acknowledged, {kept} are there"
    return None if store_scenario.stored(url) == whole else "another end"


def test_the_store_of_a_coordinator_is_carried_on_from_any_power_loss(tmp_path: Path) -> None:
    operations = recorded("store", tmp_path)
    whole = store_scenario.stored(f"sqlite:///{tmp_path}/store/store.sqlite")
    wrong, cases = [], 0
    for left, place in laid_out(operations, tmp_path):
        cases += 1
        found = lost(left, place, whole)
        if found is not None:
            wrong.append((cases, left.acknowledged[-3:], found))
    assert cases > 300
    assert wrong == []


def test_the_sweep_finds_a_journal_that_is_never_synced(tmp_path: Path) -> None:
    """And the store notices it: what was acknowledged and is gone is refused by name."""
    operations = recorded("store", tmp_path)
    whole = store_scenario.stored(f"sqlite:///{tmp_path}/store/store.sqlite")
    careless = [each for each in operations if (each.kind, each.name) != ("sync", "store.sqlite-wal")]
    found = {lost(left, place, whole) for left, place in laid_out(careless, tmp_path)} - {None}
    assert all(each.startswith("refused: ") for each in found), found
    assert any("acknowledged transactions in" in each for each in found)


def test_an_answer_that_a_client_may_have_sent_is_on_its_record_after_any_power_loss(tmp_path: Path) -> None:
    operations = recorded("record", tmp_path)
    assert forgotten(operations, tmp_path) == []


def test_the_sweep_finds_a_record_that_is_never_synced(tmp_path: Path) -> None:
    careless = [each for each in recorded("record", tmp_path) if (each.kind, each.name) != ("sync", "record.sqlite")]
    assert forgotten(careless, tmp_path)


def forgotten(operations: list[power.Operation], folder: Path) -> list[str]:
    """What is wrong with a client's record after a power loss."""
    found = [_forgotten(left, place) for left, place in laid_out(operations, folder)]
    return [each for each in found if each is not None]


def _forgotten(left: power.Left, place: Path) -> str | None:
    sent = [line.decode().split() for line in left.acknowledged.splitlines()]
    try:
        with ClientState(place / "record.sqlite", epsilon=2.0, delta=1e-5) as record:
            for run, number, answer in sent:
                if record.recall(run, int(number), bytes(16)) != bytes.fromhex(answer):
                    return f"the answer of round {number} of run {run}"
            if record.spent[0] < 0.5 * len({run for run, *_ in sent}):
                return "what was spent"
            assert record.agree(Agreement("c", bytes(16), 0.5, 1e-6, 1)) is None
            assert record.keep("c", 0, bytes(16), b"answer") == b"answer"
    except LedgerError as error:
        return f"refused: {error}"
    return None


def test_a_file_that_is_replaced_is_there_whole_and_the_last_that_was_reported(tmp_path: Path) -> None:
    operations, versions = recorded("file", tmp_path), [b"", b"one" * 1000, b"two" * 1000]
    for left in power.disks(operations, seed=7):
        assert versions.index(left.files.get("tokens.json", b"")) >= len(left.acknowledged.split())
    careless = [each for each in operations if each.kind != "sync" or not each.name]
    assert any(left.files.get("tokens.json", b"") not in versions for left in power.disks(careless, seed=7))

"""The helper's database is restored from a copy: its open runs end, and no list is answered a second time."""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from quoron.cli.app import invoke
from quoron_privacy.errors import LedgerError, LedgerUnavailable
from quoron_privacy.two_servers.noise import FIRST
from quoron_server.second_server.keys import Keys
from quoron_server.second_server.runs import Refused
from quoron_server.service import second_server_client
from quoron_server.service.second_server_client import SecondServerClient, ServerDisagrees
from quoron_server.storage.database import Database
from server.helper_scene import LEADER, Leader, opened, plan_of, real, request


def copied(place: Path, to: Path) -> None:
    """The database with its count, as a backup has it, and not the folder of keys."""
    to.mkdir(exist_ok=True)
    for path in place.glob("helper.sqlite*"):
        shutil.copy(path, to)


def put_back(place: Path, kept: Path) -> None:
    for path in kept.iterdir():
        shutil.copy(path, place)


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    """A run of two lists, of whose store before either there is a copy in "kept"."""
    with opened(tmp_path) as helped:
        made = Leader(real(), helped)
    copied(tmp_path, tmp_path / "kept")
    with opened(tmp_path) as made.helped:
        made.ask(0, [made.masked(0, 0)[0]])
        made.ask(1, [made.masked(1, 1)[0]])
    return made


def test_a_run_ends_whoever_asks_first_and_however_the_database_is_put_back_afterwards(
    leader: Leader, tmp_path: Path
) -> None:
    """The keys' folder, which is in no backup, knows of more lists; once the keys are gone no copy finds them."""
    copied(tmp_path, tmp_path / "later")
    asked = (
        lambda helped: helped.open(request(leader.run), LEADER),
        lambda helped: helped.recall("trial", 0, LEADER),
        lambda helped: leader.ask(0, []),
    )
    for name in ("kept", "kept", "later"):
        put_back(tmp_path, tmp_path / name)
        leader.chain = FIRST
        for call in asked:
            with opened(tmp_path) as leader.helped:
                with pytest.raises((Refused, LedgerError), match=r"which is restored|Nobody can tell|keys .* are gone"):
                    call(leader.helped)
                assert not leader.helped.keys.holds("trial")


def test_a_database_that_is_taken_for_all_that_there_is_ends_its_runs(
    leader: Leader, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["second-server", "runs", "--database", f"sqlite:///{tmp_path}/helper.sqlite"]
    (tmp_path / "helper.sqlite-acknowledged").unlink()
    with pytest.raises(LedgerError, match="the file was copied"), opened(tmp_path):
        pass
    assert invoke([*store, "--restored"]) == 0
    assert "Ended: trial." in capsys.readouterr().out
    with opened(tmp_path) as leader.helped:
        assert leader.helped.keys.read("trial") is None
        with pytest.raises(Refused, match=r"which is restored: its keys are destroyed. The second server's database"):
            leader.ask(2, [])
    assert invoke(store) == 0
    assert capsys.readouterr().out.startswith("trial  restored")


def test_a_reply_without_end_is_left_before_it_fills_the_coordinators_memory(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_server_client, "_LONGEST", 1 << 20)
    at, sent = object.__new__(SecondServerClient), itertools.count()
    at.link = SimpleNamespace(address="helper")  # type: ignore[assignment]
    with pytest.raises(ServerDisagrees, match="at most 1,048,576 bytes, got more"):
        at._whole(bytes(1 << 18) for _ in sent)
    assert next(sent) == 5


def test_a_reply_whose_number_was_not_noted_is_noted_before_it_is_sent(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a kill, between the store and the keys' folder: else a backup of before it passed for new."""

    def full(*_: object) -> None:
        raise LedgerUnavailable("no space left on device")

    copied(tmp_path, tmp_path / "half")
    with opened(tmp_path) as leader.helped:
        with monkeypatch.context() as patched:
            patched.setattr(Keys, "note", full)
            for _ in range(2):
                with pytest.raises(LedgerUnavailable):
                    leader.ask(2, [])
        assert leader.helped.keys.noted("trial") == 2
        leader.ask(2, [])
    assert leader.helped.keys.noted("trial") == 3
    put_back(tmp_path, tmp_path / "half")
    with opened(tmp_path) as leader.helped, pytest.raises(Refused, match="which is restored"):
        leader.ask(2, [])


def test_a_helper_that_has_lost_the_key_that_clients_seal_for_is_found_before_a_list_leaves(
    leader: Leader, tmp_path: Path
) -> None:
    """No seal would open, and the model were noise."""
    given = real(), plan_of(real())
    for path in tmp_path.glob("helper.sqlite*"):
        path.unlink()
    with opened(tmp_path) as helped:
        other = helped.open(request(real()), LEADER)
    with Database(f"sqlite:///{tmp_path}/coordinator.sqlite") as database:
        at = object.__new__(SecondServerClient)
        at._database = database
        database.ensure(second_server_client.SCHEMA)
        at._consent = lambda *_: leader.consent  # type: ignore[method-assign]
        at.require_same_key(*given)
        at._consent = lambda *_: other  # type: ignore[method-assign]
        with pytest.raises(ServerDisagrees, match="nothing would open"):
            at.require_same_key(*given)

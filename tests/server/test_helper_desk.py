"""The helper's operator: the same commands while it serves and while it does not, and what it tells who watches."""

import json
import shutil
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from quoron_privacy.errors import ConfigError, LedgerError
from quoron_server.books.database import Database
from quoron_server.helper import desk
from quoron_server.helper.books import HelperBooks
from quoron_server.helper.desk import Desk, ask
from quoron_server.helper.metrics import ALARMS, HelperMetrics, Watched
from quoron_server.helper.runs import Helped, Refused
from server.helper_scene import LEADER, Leader, opened, real
from server.test_helper_copies import copied, put_back


def books_of(place: Path) -> str:
    return f"sqlite:///{place}/helper.sqlite"


def said(place: Path, command: str, run: str = "trial") -> str:
    return ask(command, run, books_of(place), place / "keys")


def serving(helped: Helped) -> Desk:
    return Desk(helped, helped.books._database)


def test_commands_say_the_same_while_it_serves_and_while_it_does_not(tmp_path: Path) -> None:
    with opened(tmp_path) as helped:
        leader = Leader(real(), helped)
        with serving(helped):
            live = said(tmp_path, "runs")
            with pytest.raises(LedgerError, match="is held"):
                said(tmp_path, "continue")
            with pytest.raises(LedgerError, match="was consented to, got 'trail'"):  # and not that it is closed
                said(tmp_path, "close", "trail")
    assert said(tmp_path, "runs") == live
    assert live.startswith("trial  open")
    with opened(tmp_path) as helped, serving(helped):
        assert "closed" in said(tmp_path, "close")
        with pytest.raises(Refused, match="closed"):
            helped.sum(leader.head(0, []), [], LEADER)
    assert "was not open" in said(tmp_path, "close")
    assert said(tmp_path, "runs").startswith("trial  closed")


def test_keys_that_are_in_another_folder_are_not_said_to_be_destroyed(tmp_path: Path) -> None:
    with opened(tmp_path) as helped:
        Leader(real(), helped)
    wrong = tmp_path / "kyes"
    with pytest.raises(LedgerError, match="where there is none"):
        ask("close", "trial", books_of(tmp_path), wrong)
    assert said(tmp_path, "runs").startswith("trial  open")
    wrong.mkdir(mode=0o700)
    assert f"no keys of it are in {wrong}" in ask("close", "trial", books_of(tmp_path), wrong)
    with opened(tmp_path) as helped:
        assert not helped.keys.holds("trial"), "the next start destroys them"


def test_a_held_run_goes_on_while_the_helper_serves(tmp_path: Path) -> None:
    with opened(tmp_path) as helped:
        leader = Leader(real(), helped)
    copied(tmp_path, tmp_path / "kept")
    with opened(tmp_path) as leader.helped:
        leader.ask(0, [])
    put_back(tmp_path, tmp_path / "kept")
    leader.chain = bytes(32)
    with opened(tmp_path) as leader.helped, serving(leader.helped):
        assert "2, which guarantee" in said(tmp_path, "continue")
        assert leader.ask(0, []).copies == 2


def test_no_list_is_answered_while_a_run_is_being_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are gone and its books still say that it is open: a list that comes then waits, and is refused."""
    between, go_on, end = threading.Event(), threading.Event(), HelperBooks.end

    def slow(self: HelperBooks, run: str, state: str) -> bool:
        between.set()
        assert go_on.wait(60)
        return end(self, run, state)

    monkeypatch.setattr(HelperBooks, "end", slow)
    with opened(tmp_path) as helped:
        leader = Leader(real(), helped)
        found: list[str] = []

        def listed() -> None:
            try:
                helped.sum(leader.head(0, []), [], LEADER)
            except Refused as error:
                found.append(str(error))

        with serving(helped):
            closing = threading.Thread(target=said, args=(tmp_path, "close"))
            closing.start()
            assert between.wait(60)
            asking = threading.Thread(target=listed)
            asking.start()
            assert not found
            assert said_by(helped) == ["open"], "which can be read meanwhile"
            go_on.set()
            for each in (closing, asking):
                each.join(60)
    assert "is closed" in found[0]


def said_by(helped: Helped) -> list[str]:
    return [run.state for run in helped.books.runs()]


def test_other_books_another_helper_and_a_folder_for_all_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as helped:
        with serving(helped):
            with pytest.raises(LedgerError, match="books of the second server"):
                ask("runs", "", f"sqlite:///{tmp_path}/other.sqlite", tmp_path / "keys")
            with pytest.raises(ConfigError, match="another serves there"), serving(helped):
                pass
        (tmp_path / "keys").chmod(0o755)
        with pytest.raises(ConfigError, match="chmod 700"), serving(helped):
            pass


def test_a_socket_of_one_that_was_killed_is_nobodys_and_nonsense_ends_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as helped:
        left = socket.socket(socket.AF_UNIX)
        with desk._reached(tmp_path / "keys") as path:
            left.bind(path)
        left.close()
        with serving(helped):
            for line in (b"\xff\n", b"[]\n", b"{}\n", b""):
                caller = desk._connected(tmp_path / "keys")
                assert caller is not None
                with caller:
                    caller.sendall(line)
                    caller.shutdown(socket.SHUT_WR)
                    assert "error" in json.loads(desk._line(caller, 1 << 20))
            assert said(tmp_path, "runs") == ""
        assert not (tmp_path / "keys" / "operator.sock").exists()


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room that others on this machine do not fill between two looks."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))


@pytest.mark.usefixtures("steady")
class TestMetrics:
    def scraped(self, helped: Helped, database: Database, path: str = "metrics", *, on_time: bool = True) -> str:
        metrics = HelperMetrics(helped, database, lambda: {"helper": 30.5}, clock=lambda: 1_800_000_000.0)
        with (
            Watched("0", metrics, lambda: on_time) as watched,
            urllib.request.urlopen(f"http://{watched.address}/{path}") as reply,
        ):
            return str(reply.read().decode())

    def test_they_say_how_far_a_run_is_and_not_how_many_are_in_it(self, tmp_path: Path) -> None:
        texts = []
        for name, users in (("one", 1), ("three", 3)):
            place = tmp_path / name
            place.mkdir()
            with opened(place) as helped:
                leader = Leader(real(), helped)
                leader.ask(0, [leader.masked(user, 0)[0] for user in range(users)])
                expires = helped.books.runs()[0].expires - 1_800_000_000
                made = self.scraped(helped, helped.books._database)
                assert 'quoron_second_server_run_rounds_answered{run="trial"} 1\n' in made
                assert 'quoron_second_server_runs{state="open"} 1\n' in made
                assert f'quoron_second_server_run_keys_seconds_left{{run="trial"}} {expires}\n' in made
                texts.append(made.replace(str(expires), ""))
        assert texts[0] == texts[1]

    def test_alarms_ask_for_metrics_that_there_are_and_name_sections_that_there_are(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            Leader(real(), helped)
            made = self.scraped(helped, helped.books._database)
            served = self.scraped(helped, helped.books._database, "alarms.yml")
        assert served == ALARMS.read_text(encoding="utf-8")
        page = (Path(__file__).parents[2] / "docs" / "two-servers.md").read_text(encoding="utf-8").lower()
        for rule in yaml.safe_load(served)["groups"][0]["rules"]:
            names = [word for word in _words(rule["expr"]) if word.startswith("quoron_")]
            assert all(f"\n{name}" in made for name in names), rule["alert"]
            section = rule["annotations"]["runbook"].partition("#")[2]
            assert f"# {section.replace('-', ' ')}" in page

    def test_health_is_that_keys_end_in_time(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            assert self.scraped(helped, helped.books._database, "healthz") == "serving\n"
            with pytest.raises(urllib.error.HTTPError, match="503") as found:
                self.scraped(helped, helped.books._database, "healthz", on_time=False)
            found.value.close()


def _words(expression: str) -> list[str]:
    return "".join(each if each.isalnum() or each == "_" else " " for each in expression).split()

"""The second server's operator: commands while it is stopped, and what it tells those who watch it."""

import asyncio
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from gen_faults import BY_NAME

from quoron.cli.app import invoke
from quoron_client.durable import locked
from quoron_privacy.errors import ConfigError
from quoron_server.second_server.keys import Keys
from quoron_server.second_server.runs import HelpedRuns, Refused
from quoron_server.second_server.service import SecondServerMetrics
from quoron_server.service.metrics import ALARMS, address_of, listen
from quoron_server.storage.database import Database
from server.helper_scene import LEADER, Leader, opened, real


def test_a_run_is_closed_for_good_and_only_where_its_keys_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str, keys: str = "keys", code: int = 0) -> str:
        store = ["--database", f"sqlite:///{tmp_path}/helper.sqlite", "--keys", str(tmp_path / keys)]
        assert invoke(["second-server", "runs", *words, *store]) == code
        told = capsys.readouterr()
        return told.out if code == 0 else " ".join(told.err.split())

    with opened(tmp_path) as helped:
        leader = Leader(real(), helped)
        assert "database is locked" in said(code=1)
    assert said().startswith("trial  open")
    assert "was consented to, got 'trail'" in said("trail", "--close", code=1)
    assert "where there is none" in said("trial", "--close", keys="kyes", code=2)
    (tmp_path / "kyes").mkdir(mode=0o700)
    assert "closed; no keys of it are in" in said("trial", "--close", keys="kyes")
    with opened(tmp_path) as helped:
        assert not helped.keys.holds("trial"), "the next start destroys them"
        with pytest.raises(Refused, match="which is closed"):
            helped.sum(leader.head(0, []), [], LEADER)
    assert "was not open" in said("trial", "--close")
    assert said().startswith("trial  closed")


def test_a_folder_of_keys_is_one_servers_and_its_owners_alone(tmp_path: Path) -> None:
    """Beside another process a copy of the database could answer another list of a round."""
    keys = tmp_path / "keys"
    Keys(keys)
    with locked(keys, wait=False), pytest.raises(ConfigError, match="no other process uses"), locked(keys, wait=False):
        pass
    keys.chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        Keys(keys)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room that others on this machine do not fill between two looks."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))


def read(url: str) -> str:
    with urllib.request.urlopen(url) as reply:
        return str(reply.read().decode())


@pytest.mark.usefixtures("steady")
class TestMetrics:
    def scraped(self, helped: HelpedRuns, database: Database, path: str = "metrics", *, on_time: bool = True) -> str:
        metrics = SecondServerMetrics(helped, database, lambda: {"helper": 30.5})
        metrics._clock, metrics._started = (lambda: 1_800_000_000.0), 1_800_000_000.0

        async def asked() -> str:
            async with await listen("0", metrics, serving=lambda: on_time) as server:
                return await asyncio.to_thread(read, f"http://{address_of(server)}/{path}")

        return asyncio.run(asked())

    def test_they_do_not_say_how_many_are_in_a_run(self, tmp_path: Path) -> None:
        texts = []
        for name, users in (("one", 1), ("three", 3)):
            place = tmp_path / name
            place.mkdir()
            with opened(place) as helped:
                leader = Leader(real(), helped)
                leader.ask(0, [leader.masked(user, 0)[0] for user in range(users)])
                made = self.scraped(helped, helped.store._database)
                assert 'quoron_second_server_runs{state="open"} 1.0\n' in made
                texts.append(made)
        assert texts[0] == texts[1]

    def test_it_serves_the_coordinators_alarms_and_the_metrics_of_its_own_faults(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            made = self.scraped(helped, helped.store._database)
            assert self.scraped(helped, helped.store._database, "alarms.yml") == ALARMS.read_text(encoding="utf-8")
        own = ("database-away", "disk-full", "clock-jumped", "certificate-ends", "wrong-key", "keys-stay")
        for name in set.union(*(BY_NAME[fault].metrics for fault in own)):
            assert f"\n{name}" in made, name

    def test_health_is_that_keys_end_in_time(self, tmp_path: Path) -> None:
        with opened(tmp_path) as helped:
            assert self.scraped(helped, helped.store._database, "healthz") == "serving\n"
            with pytest.raises(urllib.error.HTTPError, match="503") as found:
                self.scraped(helped, helped.store._database, "healthz", on_time=False)
            found.value.close()

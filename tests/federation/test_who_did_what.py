"""Who did what: on the chain, for an auditor with nothing but an export; and in the log, for people and programs."""

import asyncio
import contextlib
import json
import logging
from collections import Counter
from pathlib import Path

import pytest

from federation.crowd import carried_out, complete, coordinator, everybody, specification
from federation.faults import rehearsed
from operators import reaching
from quoron.cli.app import invoke
from quoron.federation.control import Control
from quoron.federation.log_limit import JsonLines
from quoron_privacy.errors import LedgerError
from quoron_server.federation import RunStore
from quoron_server.service import tokens
from quoron_server.specification import make_plan
from quoron_server.storage import store
from quoron_server.storage.database import Database
from quoron_server.wording import digest

NAME, USERS = "one-pass-dp-sgd", 20
CODE, PLAN = store.software(), digest(make_plan(specification(NAME)))


async def a_day(folder: Path) -> str:
    """Two operators and a crowd: a limit, a run to its end, one that is cancelled, one too many; then the export."""
    ada, ben = (tokens.add(folder / "tokens.json", name=name, role="operator") for name in ("ada", "ben"))
    async with coordinator(folder) as running, contextlib.AsyncExitStack() as stack:

        async def said(token: str, command: str, **arguments: object) -> object:
            with Control(running.control, token, insecure=True) as own:
                return await asyncio.to_thread(own.call, command, **arguments)

        await said(ben, "limit", group="everyone", epsilon=20.0, delta=0.5)
        await said(ada, "submit", specification=specification(NAME, "summer").as_text())
        await everybody(running, stack, USERS, runs=2)
        await complete(running, "summer")
        await said(ada, "submit", specification=specification(NAME, "winter", epsilon=5.0, group="nobody").as_text())
        await said(ben, "cancel", run="winter")
        with pytest.raises(Exception, match="limit of population"):
            await said(ada, "submit", specification=specification(NAME, "autumn").as_text())
        await said(ada, "change_user", action="retire", user="3")
        await said(ben, "charge", run="counts", group="everyone", epsilon=1.0, delta=0.0, note="another library")
        return json.dumps(await said(ada, "ledger"))


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("day")
    (folder / "export.json").write_text(carried_out(a_day(folder)))
    return folder


class TestAnExport:
    def test_tells_who_submitted_cancelled_and_limited_and_who_spent_what_with_which_code(self, day: Path) -> None:
        rows = json.loads((day / "export.json").read_text())["rows"]
        acts = store.acts(rows)
        shown = [(act["what"], act["by"], act.get("run") or act["population"], act.get("epsilon")) for act in acts]
        assert shown == [
            ("limit", "ben", "everyone", 20.0),
            ("submit", "ada", "summer", None),
            ("charge", "ada", "summer", 15.0),
            ("submit", "ada", "winter", None),
            ("cancel", "ben", "winter", None),
            ("charge", "ben", "counts", 1.0),
        ]
        assert {act["software"] for act in acts} == {CODE}
        plans = {act["run"]: act["plan"] for act in acts if "plan" in act}
        assert plans["summer"] == PLAN
        assert plans["winter"] == digest(make_plan(specification(NAME, "winter", epsilon=5.0, group="nobody")))

    def test_in_which_somebody_else_is_named_does_not_verify(self, day: Path) -> None:
        text = (day / "export.json").read_text()
        store.verify_export(text)
        with pytest.raises(LedgerError, match="row 1 "):
            store.verify_export(text.replace('"by": "ada"', '"by": "eve"', 1))

    def test_is_read_by_a_command_without_a_coordinator(self, day: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert invoke(["ledger", "show", "--history", "--export", str(day / "export.json"), "--json"]) == 0
        acts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(act["what"], act["by"]) for act in acts][:2] == [("limit", "ben"), ("submit", "ada")]
        assert (
            invoke([*reaching(database=f"sqlite:///{day}/coordinator.sqlite"), "ledger", "show", "--history", "--json"])
            == 0
        )
        assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == acts
        assert invoke(["ledger", "show", "--history", "--export", str(day / "export.json")]) == 0
        assert "cancel" in capsys.readouterr().out


class TestTheChain:
    def test_names_who_asks_before_the_run_is_taken_on_and_once(self, tmp_path: Path) -> None:
        wanted, plan = specification(NAME), make_plan(specification(NAME))
        with Database(f"sqlite:///{tmp_path}/c.sqlite") as database:
            run_store = RunStore(database)
            run_store.population.submit("trial", "everyone", plan=digest(plan), by="ada")  # and then the process died
            assert run_store.registry.run("trial") is None
            assert run_store.submit(wanted, plan, "service", by="ada")
            assert not run_store.submit(wanted, plan, "service", by="ben")
            assert [row["kind"] for row in run_store.population.rows()] == ["submit"]
            assert [run_store.cancel("trial", by="ben"), run_store.cancel("trial", by="ada")] == ["cancelled"] * 2
            assert [row["payload"].get("by") for row in run_store.population.rows()] == ["ada", "ben"]

    def test_that_is_broken_keeps_nobody_from_erasing_a_cancelled_run_s_secrets(self, tmp_path: Path) -> None:
        wanted, plan = specification(NAME), make_plan(specification(NAME))
        url = f"sqlite:///{tmp_path}/c.sqlite"
        with Database(url) as database:
            run_store = RunStore(database)
            for user in range(USERS):
                run_store.registry.enrol(f"{user}")
            run_store.submit(wanted, plan, "service", by="ada")
            run_store.begin(wanted, plan)
            with database.writing() as connection:
                connection.execute("UPDATE population SET time = 'never' WHERE sequence = 0")
        with Database(url) as database:
            run_store = RunStore(database)
            with pytest.raises(LedgerError, match="row 0"):
                run_store.cancel("trial", by="ben")
            assert run_store.registry.run("trial").state == "cancelled"


def test_the_log_says_the_same_as_fields_of_json_in_a_line_each(
    tmp_path: Path, our_logs: pytest.LogCaptureFixture
) -> None:
    with our_logs.at_level(logging.INFO):
        carried_out(a_day(tmp_path))
    lines = [json.loads(JsonLines().format(record)) for record in our_logs.records if hasattr(record, "event")]
    events = [line["event"] for line in lines]
    assert events.count("enrolled") == USERS
    told = [line for line in lines if line["event"] != "enrolled"]
    assert [(line["event"], line.get("by"), line.get("run")) for line in told if "by" in line] == [
        ("limited", "ben", None),
        ("submitted", "ada", "summer"),
        ("submitted", "ada", "winter"),
        ("cancelled", "ben", "winter"),
        ("refused", "ada", None),
        ("user", "ada", None),
        ("charged", "ben", "counts"),
    ]
    assert {"began", "ended"} <= set(events)
    (began,) = (line for line in lines if line["event"] == "began")
    assert (began["users"], began["rounds"], began["done"]) == (USERS, 6, 0)
    assert our_logs.text.count("run summer was submitted by ada for group everyone, plan ") == 1
    traceback = logging.LogRecord("quoron", logging.ERROR, "x.py", 1, "failed\n%s", ("there",), None)
    assert "\n" not in JsonLines().format(traceback)


def test_a_restart_a_resumption_and_a_pause_are_logged(tmp_path: Path, our_logs: pytest.LogCaptureFixture) -> None:
    with our_logs.at_level(logging.INFO):
        scene = carried_out(rehearsed("run-paused", tmp_path))
    assert scene.mended['quoron_runs{state="running"}'] == 1
    found = Counter(record.__dict__["event"] for record in our_logs.records if hasattr(record, "event"))
    assert found == {"enrolled": USERS, "started": 3, "submitted": 1, "began": 1, "paused": 1, "resumed": 1}

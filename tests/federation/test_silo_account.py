"""A silo sees what each of its persons has spent, tells no name to whoever reads its account, and lets persons go."""

import csv
import json
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from quoron.cli.app import invoke
from quoron.operate import silo_page
from quoron_client.federation import account as accounts
from quoron_client.federation.own_people import names_in
from quoron_client.federation.record import Agreement, Record
from quoron_privacy.errors import ConfigError, LedgerError

NAMES = ["Ødegård, Anna", "17", "8.5", "=cmd|x"]
TABLE = 'who,x\n"Ødegård, Anna",1\n17.0,2\n8.50,3\n=cmd|x,4\nzoe,5\n'
PROMISE = {"algorithm": "tracking-srgd", "statement": "(1, 1e-06)-DP <b>, by docs/privacy/tracking-srgd.md#t1."}
PROMISE |= {"theorem": "docs/privacy/tracking-srgd.md#t1", "adjacency": "replace-one", "exposure": "broadcast"}
SECRET = b"rows of persons" * 99


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A silo of four that has answered in two runs, in the second with two of its persons."""
    path = tmp_path / "silo.sqlite"
    with Record.open(path, epsilon=8.0, delta=1e-4) as record:
        seats = record.register(NAMES)
        for run, those in (("spring", seats), ("summer", seats[[0, 2]])):
            promise = json.dumps(PROMISE | {"epsilon": 1.0, "delta": 1e-6})
            assert record.agree(Agreement(run, b"t", 1.0, 1e-6, 2, promise=promise)) is None
            assert record.keep(run, 0, b"question", SECRET, those) == SECRET
        record.end("spring")
    return path


def opened(path: Path) -> Record:
    return Record.open(path, epsilon=8.0, delta=1e-4)


class TestTheAccount:
    def test_says_what_each_person_has_spent_by_its_name_and_writes_nothing(self, kept: Path) -> None:
        before = kept.read_bytes()
        with opened(kept) as record:
            found = accounts.of_each(record, [*NAMES, "zoe"])
        assert [each.epsilon for each in found] == [2.0, 2.0, 2.0, 2.0, 0.0]
        assert {each.runs for each in found[:4]} == {("spring", "summer")}
        assert [each.answered for each in found[:2]] == [("spring", "summer"), ("spring",)]
        assert [each.number for each in found] == [0, 1, 2, 3, None]
        assert kept.read_bytes() == before


def test_of_a_real_run_is_by_the_names_of_the_silos_own_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client's record, read by the command beside its table; one person has left meanwhile, and is told so."""
    from federation.crowd import carried_out, complete, coordinator, specification
    from federation.silos import clients_of, silo_config, write_silos

    wanted = specification("dp-sgd-poisson", silos=(7, 12, 1))
    paths = write_silos(tmp_path, wanted.silos)

    async def scene() -> None:
        async with (
            coordinator(tmp_path, most_people=100) as running,
            clients_of([silo_config(path, running.listen) for path in paths], running),
        ):
            await running.manager.submit(wanted.as_text())
            await complete(running)

    carried_out(scene())
    table, kept = ["--data", str(paths[1]), "--user", "who"], ["--record", str(paths[1].with_suffix(".sqlite"))]
    first = names_in(paths[1], "who")[0]
    assert invoke(["silo", "forget", first, *kept, "--for-good"]) == 0
    capsys.readouterr()
    assert invoke(["silo", "account", *table, *kept, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["number"] for each in told] == list(range(12))
    assert {each["epsilon"] > 0 for each in told} == {True}
    assert [each["left"] is None for each in told] == [False] + [True] * 11
    assert {tuple(each["runs"]) for each in told} == {("trial",)}
    assert any(each["answered"] for each in told)
    assert invoke(["silo", "account", *kept, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert "person of one silo" in run["statement"]
    assert (run["persons"], run["persons_charged"]) == (12, 12)


class TestTheExport:
    def test_has_no_name_and_no_digest_unless_asked(self, kept: Path, tmp_path: Path) -> None:
        words = ["silo", "export", "--record", str(kept), "--out", str(tmp_path / "out")]
        assert invoke(words) == 0
        with closing(sqlite3.connect(kept)) as record:
            digests = [row[0] for row in record.execute("SELECT digest FROM people")]
            (salt,) = record.execute("SELECT salt FROM silo").fetchone()
        files = {each.name: each.read_bytes() for each in (tmp_path / "out").iterdir()}
        assert files.keys() == {"account.html", "account.json", "runs.csv"}
        for content in files.values():
            assert not any(name.encode() in content for name in ("Ødegård", "=cmd"))
            assert not any(each in content or each.hex().encode() in content for each in [*digests, salt])
        for each in (tmp_path / "out").iterdir():
            assert stat.S_IMODE(each.stat().st_mode) == 0o600
        (tmp_path / "table.csv").write_text(TABLE)
        assert invoke([*words, "--names", "--data", str(tmp_path / "table.csv"), "--user", "who"]) == 0
        with (tmp_path / "out" / "persons.csv").open() as stream:
            lines = {line["name"]: line for line in csv.DictReader(stream)}
        assert {name: float(line["epsilon"]) for name, line in lines.items()} == {
            "17.0": 0.0,  # text in a table is its name as it stands
            "8.50": 0.0,
            "'=cmd|x": 2.0,
            "Ødegård, Anna": 2.0,
            "zoe": 0.0,
        }

    def test_is_a_page_that_loads_nothing_and_escapes_what_a_coordinator_says(self, kept: Path) -> None:
        with opened(kept) as record:
            page = silo_page.document(accounts.account(record, kept))
        assert "DP &lt;b&gt;" in page
        assert "default-src 'none'" in page
        assert "Nobody has left." in page
        assert "A person who is known to another silo too is two persons" in page
        assert "4 charged, 2 answered, of 4" in page

    def test_in_a_folder_that_cannot_be_written_is_a_named_error(self, kept: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert invoke(["silo", "export", "--record", str(kept), "--out", str(tmp_path / "file" / "out")]) == 1
        assert invoke(["silo", "export", "--record", str(kept), "--out", str(tmp_path), "--names"]) == 2
        assert invoke(["silo", "account", "--record", str(tmp_path / "none")]) == 2


class TestAPersonWhoLeaves:
    def test_is_shown_what_would_be_done_and_gets_a_receipt(
        self, kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words, receipt = ["silo", "forget", NAMES[0], "--record", str(kept)], tmp_path / "receipt.json"
        before = kept.read_bytes()
        assert invoke(words) == 0
        assert kept.read_bytes() == before
        assert invoke([*words, "--for-good", "--receipt", str(receipt)]) == 0
        told = json.loads(receipt.read_text())
        assert (told["epsilon"], told["answers"], told["number"]) == (2.0, 1, 0)
        assert "erase this person's rows there" in capsys.readouterr().out
        assert SECRET not in kept.read_bytes()
        assert (
            invoke([*words, "--for-good", "--receipt", str(receipt)]) == 0
        )  # where the first ended before its receipt
        assert json.loads(receipt.read_text())["left"] == told["left"]
        assert invoke(["silo", "account", NAMES[0], "--record", str(kept)]) == 0
        assert f"has left, {told['left'][:10]}" in capsys.readouterr().out

    def test_whom_the_record_does_not_know_is_a_named_error(self, kept: Path) -> None:
        with opened(kept) as record, pytest.raises(ConfigError, match=r"got 'zoe'\. Write the name as the table does"):
            accounts.depart(record, kept, "zoe")

    def test_stays_away_where_an_older_copy_is_put_back(self, kept: Path) -> None:
        older = kept.read_bytes()
        with opened(kept) as record:
            accounts.depart(record, kept, "17")
        kept.write_bytes(older)
        with pytest.raises(LedgerError, match="it is an older copy"):
            opened(kept)

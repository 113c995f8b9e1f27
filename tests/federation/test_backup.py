"""Books put back from a copy are others: nothing that was open goes on by itself, and each more copy is charged."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from federation.crowd import carried_out, coordinator
from quoron.operate.control import Address, Control
from quoron_privacy.errors import LedgerError, QuoronError
from quoron_server.books.backup import back_up
from quoron_server.books.database import Database
from quoron_server.books.ledger import Ledger
from quoron_server.books.registry import Registry
from quoron_server.books.restoring import accept, restore
from quoron_server.runs import Books
from quoron_server.service import tokens


def filled(url: str, limit: float = 9.0) -> None:
    """Books with a complete run, one that runs and one that waits."""
    with Database(url) as database:
        books = Books(database)
        for name in ("ada", "ben"):
            books.registry.enrol(name)
        books.population.limit("everyone", epsilon=limit, delta=1e-3)
        for run in ("done", "open"):
            books.registry.add_run(run, "{}")
            books.registry.fix_members(run, 2)
            books.population.charge(run, "everyone", epsilon=1.0, delta=1e-6, mu=0.2, variation=1e-12)
            ledger = Ledger.begin(database, run, plan="p", config_digest="c", noise_key=b"the secret key")
            books.registry.set_state(run, "running")
            ledger.commit(-1, b"the secret state", (), {})
            if run == "done":
                ledger.finish(np.ones(2))
                books.end(run, "complete")
        books.registry.add_run("later", "{}")
        books.registry.note_agreed("open", [0, 1], epsilon=1.0, delta=1e-6)


def backed_up(url: str, out: Path, *, with_secrets: bool = True) -> str:
    with Database(url, create=False, sole=False) as database:
        return back_up(database, out, with_secrets=with_secrets)


@pytest.fixture
def url(database_url: str) -> str:
    """SQLite, and PostgreSQL where there is a server."""
    filled(database_url)
    return database_url


def other(tmp_path: Path, name: str = "other") -> str:
    return f"sqlite:///{tmp_path}/{name}.sqlite"


def test_no_secret_leaves_the_books_unasked(url: str, tmp_path: Path) -> None:
    backed_up(url, tmp_path / "b", with_secrets=False)
    backed_up(url, tmp_path / "c", with_secrets=True)
    words = [b"dGhlIHNlY3JldCBrZXk", b"dGhlIHNlY3JldCBzdGF0"]  # base64
    assert [[word in (tmp_path / name).read_bytes() for word in words] for name in "bc"] == [[False] * 2, [True] * 2]


def test_a_backup_that_has_changed_is_refused(tmp_path: Path) -> None:
    filled(other(tmp_path, "books"))
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    content = (tmp_path / "b").read_bytes()
    for at in range(0, len(content), 61):
        changed = bytearray(content)
        changed[at] ^= 4
        (tmp_path / "c").write_bytes(changed)
        with pytest.raises(LedgerError, match="Expected a whole backup"):
            restore(tmp_path / "c", other(tmp_path))
    for cut in (0, 1, len(content) // 2, len(content) - 2):
        (tmp_path / "c").write_bytes(content[:cut])
        with pytest.raises(LedgerError, match="Expected a whole backup"):
            restore(tmp_path / "c", other(tmp_path))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    filled(other(tmp_path, "books"))
    backed_up(other(tmp_path, "books"), tmp_path / "b")
    with pytest.raises(LedgerError, match="found one"):
        backed_up(other(tmp_path, "books"), tmp_path / "b")
    with pytest.raises(LedgerError, match="found some, or their count"):
        restore(tmp_path / "b", other(tmp_path, "books"))


def test_the_ledger_of_a_run_folder_goes_on_from_a_copy_only_if_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, plan="p", config_digest="c", noise_key=b"k") as ledger:
        ledger.commit(-1, b"state", (), {})
    (tmp_path / "ledger.sqlite-acknowledged").unlink()
    for _ in "ab":  # being refused does not make it any better
        with pytest.raises(LedgerError, match="found none: the file was copied"):
            Ledger.open(path)
        with pytest.raises(LedgerError, match="Say --continue-restored"):
            accept(path)
    assert accept(path, continue_open=True).continued == ("run",)
    with Ledger.open(path) as ledger:
        assert ledger.resume_point() == (-1, b"state")
    assert {each.name for each in tmp_path.iterdir()} == {path.name, f"{path.name}-acknowledged"}


def test_a_running_coordinator_copies_its_file_beside_it_for_operators_only(tmp_path: Path) -> None:
    async def scene() -> None:
        async with coordinator(tmp_path) as running:
            auditor = tokens.add(tmp_path / "tokens.json", name="eve", role="auditor")
            operator = tokens.add(tmp_path / "tokens.json", name="ada", role="operator")
            await running.manager.enrol("ada", "everyone")

            def asked(token: str) -> tuple[str, str]:
                with Control(Address(running.control, token, insecure=True)) as control:
                    return control.backup()

            with pytest.raises(QuoronError, match="role operator"):
                await asyncio.to_thread(asked, auditor)
            name, digest = await asyncio.to_thread(asked, operator)
            assert digest.encode() in (tmp_path / name).read_bytes()
            restore(tmp_path / name, other(tmp_path))  # while the other one goes on
            with Database(other(tmp_path), create=False) as database:
                assert Registry(database).users_count() == 1

    carried_out(scene())

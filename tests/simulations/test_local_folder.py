"""A federation on this machine: its folder, and the processes that hold it."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from quoron.local import folder as folders
from quoron.local import keeper, launch, programs
from quoron.local.folder import MARK, PASSING, RUNNING, Folder, sweep
from quoron.local.launch import Local
from quoron.local.order import Order
from quoron_privacy.errors import DataError, RunError

ORDERED = Order(clients=7, processes=3, listen="127.0.0.1:1", control="127.0.0.1:2")


def _never(*_: object, **__: object) -> None:
    raise RuntimeError


def _interrupted(_: bytes) -> None:
    raise KeyboardInterrupt


class TestFolder:
    def test_everybody_has_an_identity_and_what_is_there_is_kept(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path / "f")
        folder.make(2)
        keys = {path: path.read_bytes() for path in folder.path.rglob("key.pem")}
        token = folder.token
        folder.make(3)
        assert {path: path.read_bytes() for path in keys} == keys
        assert folder.token == token
        assert len({(folder.client(number) / "key.pem").read_bytes() for number in (1, 2, 3)}) == 3
        for path in folder.path.rglob("*"):
            assert path.stat().st_mode & 0o022 == 0, path
            assert (
                path.suffix != ".key" and path.name not in ("key.pem", "token")
            ) or path.stat().st_mode & 0o077 == 0, path

    def test_a_folder_is_held_by_one(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path)
        assert not folder.runs
        with folder.held() as first:
            assert first is not None
            assert folder.runs
            with folder.held() as second:
                assert second is None
        assert not folder.runs

    def test_a_number_of_a_federation_that_was_killed_is_nobodys_to_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, sent = Folder(tmp_path), list[int]()
        monkeypatch.setattr(launch.os, "kill", lambda number, _: sent.append(number))
        monkeypatch.setattr(launch.subprocess, "Popen", _never)
        folder.write(RUNNING, {"keeper": 123456})
        with suppress(RuntimeError):
            Local(folder, ORDERED).__enter__()
        with folder.held(), pytest.raises(RunError, match="Expected the federation"):
            launch.stop(folder, 0.1)
        assert sent == []

    def test_one_that_starts_is_stopped_once_it_says_who_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, sent = Folder(tmp_path), list[int]()
        monkeypatch.setattr(launch.os, "kill", lambda number, _: (sent.append(number), holding.close()))
        monkeypatch.setattr(launch.time, "sleep", lambda _: folder.write(RUNNING, {"keeper": 123456}))
        with ExitStack() as holding:
            holding.enter_context(folder.held())
            assert launch.stop(folder)
        assert sent == [123456]

    def test_what_is_kept_is_not_waited_for_though_nobody_is_told(self, tmp_path: Path) -> None:
        local = Local(Folder(tmp_path), ORDERED)
        with suppress(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "_say", _interrupted)
            local.keep()
        assert local._kept


class TestSweeping:
    """Folders that were to pass stay when a command and its keeper are killed together."""

    def old(self, path: Path, *, marked: bool = True) -> Path:
        path.mkdir(parents=True)
        (path / "key.pem").write_text("secret")
        if marked:
            (path / MARK).touch()
        with Folder(path).held():
            pass
        os.utime(path, (0, 0))
        return path

    def test_leaves_what_somebody_keeps_under_such_a_name(self, tmp_path: Path) -> None:
        stopped, bare = self.old(tmp_path / f"{PASSING}mine", marked=False), tmp_path / f"{PASSING}bare"
        linked = self.old(tmp_path / f"{PASSING}linked", marked=False)
        (linked / MARK).symlink_to(linked / "key.pem")
        bare.mkdir()
        for each in (linked, bare):
            os.utime(each, (0, 0))
        sweep(tmp_path)
        assert all((each / "key.pem").exists() for each in (stopped, linked))
        assert bare.exists()

    def test_holds_what_it_removes_until_it_is_gone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        old, seen = self.old(tmp_path / f"{PASSING}one"), []
        monkeypatch.setattr(folders.shutil, "rmtree", lambda path, **_: seen.append((path, Folder(path).runs)))
        sweep(tmp_path)
        assert seen == [(old, True)]

    def test_follows_no_link(self, tmp_path: Path) -> None:
        elsewhere = self.old(tmp_path / "elsewhere")
        whole = tmp_path / f"{PASSING}whole"
        whole.symlink_to(elsewhere, target_is_directory=True)
        with_link = self.old(tmp_path / f"{PASSING}inside")
        (with_link / "clients").symlink_to(elsewhere, target_is_directory=True)
        locked = self.old(tmp_path / f"{PASSING}locked")
        (locked / ".lock").unlink()
        (locked / ".lock").symlink_to(elsewhere / ".lock")
        for each in (with_link, locked):
            os.utime(each, (0, 0))
        sweep(tmp_path)
        assert (elsewhere / "key.pem").exists()
        assert whole.is_symlink()
        assert not with_link.exists()
        assert locked.exists()


def test_nobody_is_here_while_the_coordinator_is_away(tmp_path: Path) -> None:
    kept_by, died = keeper.Keeper(Folder(tmp_path), ORDERED, None), subprocess.Popen([sys.executable, "-c", ""])
    kept_by.children, kept_by.here = [keeper.Child(process=died.pid)], 7
    kept_by.pipes = (-1, -1, os.open(os.devnull, os.O_RDONLY))
    while kept_by.here:
        kept_by._reap()
    died.returncode = 0  # who waited for it was the keeper
    os.close(kept_by.pipes[2])


class TestAClientThatFails:
    """Is named at once, with its reason, whoever shares its process."""

    def heard(self, tmp_path: Path, *told: dict[str, object]) -> Local:
        local = Local(Folder(tmp_path), ORDERED)
        local._ours, theirs = socket.socketpair()
        with theirs:
            for each in told:
                theirs.sendall(json.dumps(each).encode() + b"\n")
        return local

    def test_keeps_nobody_waiting_who_starts(self, tmp_path: Path) -> None:
        local = self.heard(tmp_path, {"here": 6}, {"failed": "Client 3 has failed: no disk."})
        with local._ours, pytest.raises(RunError, match=r"does not start\. Client 3 has failed: no disk\."):
            local.ready()

    def test_is_why_a_run_ends(self, tmp_path: Path) -> None:
        local = self.heard(tmp_path, {"here": 6}, {"failed": "Client 3 has failed: no disk."})
        local._process = subprocess.Popen([sys.executable, "-c", ""])
        with local._ours, local._process, pytest.raises(RunError, match=r"ended\. Client 3 has failed: no disk\."):
            local.check()

    def test_keeps_nobody_from_stopping(self, tmp_path: Path) -> None:
        local = self.heard(tmp_path, {"failed": "Client 3 has failed: no disk."}, {"stopped": {"killed": []}})
        with local._ours:
            assert local.stop() == {"killed": []}

    @pytest.mark.parametrize("seed", [None, 7])
    def test_ends_a_simulation_and_no_federation_that_is_kept(self, seed: int | None, tmp_path: Path) -> None:
        ears, hearing, saying = socket.socketpair(), *os.pipe()
        os.set_blocking(hearing, False)
        kept_by = keeper.Keeper(Folder(tmp_path), replace(ORDERED, simulation_seed=seed), ears[0])
        kept_by.pipes = (-1, saying, hearing)
        os.write(saying, b"here 6\nfailed 3 Expected a disk, got none.\n")
        kept_by._hear()
        told = [json.loads(line) for line in ears[1].recv(1 << 12).splitlines()]
        assert told == [{"here": 6}, {"failed": "Client 3 has failed: Expected a disk, got none."}]
        assert kept_by.failed == (seed is not None)
        for each in ears:
            each.close()
        for number in (hearing, saying):
            os.close(number)

    @pytest.mark.parametrize("error", [DataError("Expected\na disk, got none."), OSError("a disk " * 1000)])
    def test_says_so_and_tries_again_later(
        self, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tries = []

        async def fails(*_: object, **__: object) -> None:
            tries.append(error)
            if len(tries) > 1:
                stop.set()
                return
            raise error

        monkeypatch.setattr(programs, "run_client", fails)
        monkeypatch.setattr(programs, "LATER", 0.0)
        stop, (hearing, saying) = asyncio.Event(), os.pipe()
        asyncio.run(programs._client(tmp_path, "127.0.0.1:1", ORDERED, 3, lambda _: None, stop, saying))
        line = os.read(hearing, 1 << 16).decode()
        assert line.count("\n") == 1
        assert line.startswith(
            "failed 3 Expected a disk, got none." if isinstance(error, DataError) else "failed 3 OSE"
        )
        assert len(line) < 1100
        assert len(tries) == 2
        for number in (hearing, saying):
            os.close(number)

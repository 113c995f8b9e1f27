"""A federation on this machine: orders, faults, its folder, who holds it, and whose items clients hold."""

import asyncio
import json
import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import quoron
from federation.crowd import DIMENSION, items
from quoron.config import parse
from quoron.engine import processes as supervising
from quoron.engine.choice import Service
from quoron.federation import launch, programs
from quoron.federation.client_items import give_tables, silos_in
from quoron.federation.engine import specification
from quoron.federation.folder import ITEMS, MAX_CLIENTS, ORDER, RUN, RUNNING, Folder, Order
from quoron.federation.launch import Local
from quoron.federation.submission import declared
from quoron.simulation import run as runs
from quoron_client.data.items import ItemBatch
from quoron_client.federation.own_table import own_items
from quoron_client.federation.terms import Terms
from quoron_privacy.errors import ConfigError, DataError, RunError
from quoron_server.silos import Silos
from quoron_server.specification import describe, make_plan
from small_run import TOML


def order(**changes: object) -> Order:
    return Order(**{"clients": 7, "processes": 3, "listen": "127.0.0.1:1", "control": "127.0.0.1:2"} | changes)


class TestOrders:
    def test_every_client_is_in_one_process(self) -> None:
        split = order().split
        assert sorted(number for some in split for number in some) == list(range(1, 8))
        assert max(map(len, split)) - min(map(len, split)) <= 1
        assert order().words == "7 clients, 3 processes, up to 3 in each"
        assert order(processes=7).words == "7 clients, one process each"

    @pytest.mark.parametrize("wrong", [{"clients": 0}, {"clients": MAX_CLIENTS + 1}, {"listen": "0.0.0.0:1"}])
    def test_what_cannot_be_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ConfigError, match="Expected"):
            order(**wrong)


def test_a_run_that_goes_on_has_the_clients_of_its_beginning(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no clients to resume"):
        quoron.resume(tmp_path, engine=Service(clients=3))


def test_a_federation_that_cannot_begin_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(supervising.subprocess, "Popen", full)
    order = Order(clients=2, processes=1, listen="127.0.0.1:1", control="127.0.0.1:2", simulation_seed=1)
    with pytest.raises(RunError, match=r"room for another process.*temporarily"), Local(Folder(tmp_path / "f"), order):
        pass
    assert not (tmp_path / "f").exists()


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
        with folder.lock() as first:
            assert first is not None
            assert folder.runs
            with folder.lock() as second:
                assert second is None
        assert not folder.runs

    def test_a_number_of_a_federation_that_was_killed_is_nobodys_to_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, sent = Folder(tmp_path), list[int]()
        monkeypatch.setattr(supervising.os, "kill", lambda number, _: sent.append(number))
        monkeypatch.setattr(supervising.subprocess, "Popen", _never)
        folder.write(RUNNING, {"supervisor": 123456})
        with suppress(RuntimeError):
            Local(folder, ORDERED).__enter__()
        with folder.lock(), pytest.raises(RunError, match="Expected the federation"):
            launch.stop(folder.path, 0.1)
        assert sent == []

    def test_one_that_starts_is_stopped_once_it_says_who_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, sent = Folder(tmp_path), list[int]()
        monkeypatch.setattr(supervising.os, "kill", lambda number, _: (sent.append(number), holding.close()))
        monkeypatch.setattr(launch.time, "sleep", lambda _: folder.write(RUNNING, {"supervisor": 123456}))
        with ExitStack() as holding:
            holding.enter_context(folder.lock())
            assert launch.stop(folder.path)
        assert sent == [123456]

    def test_what_is_kept_is_not_waited_for_though_nobody_is_told(self, tmp_path: Path) -> None:
        local = Local(Folder(tmp_path), ORDERED)
        with suppress(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "_say", _interrupted)
            local.detach()
        assert local._detached


def test_nobody_is_here_while_the_coordinator_is_away(tmp_path: Path) -> None:
    kept_by = programs.Supervisor(Folder(tmp_path), ORDERED, None)
    died = SimpleNamespace(is_alive=lambda: False, exitcode=1)
    kept_by.children, kept_by.here = [programs.Child(process=died)], 7
    kept_by.hearing = os.open(os.devnull, os.O_RDONLY)
    kept_by._reap()
    assert kept_by.here == 0
    os.close(kept_by.hearing)


class TestAClientThatFails:
    """Is named at once, with its reason, whoever shares its process."""

    def heard(self, tmp_path: Path, *told: dict[str, object]) -> Local:
        local = Local(Folder(tmp_path), ORDERED)
        local._ours, theirs = Pipe()
        with theirs:
            for each in told:
                theirs.send(each)
        return local

    def test_keeps_nobody_waiting_who_starts(self, tmp_path: Path) -> None:
        local = self.heard(tmp_path, {"here": 6}, {"failed": "Client 3 has failed: no disk."})
        with local._ours, pytest.raises(RunError, match=r"does not start\. Client 3 has failed: no disk\."):
            local.ready()

    def test_keeps_nobody_from_stopping(self, tmp_path: Path) -> None:
        local = self.heard(tmp_path, {"failed": "Client 3 has failed: no disk."}, {"stopped": True})
        with local._ours:
            local.stop()

    @pytest.mark.parametrize("seed", [None, 7])
    def test_ends_a_simulation_and_no_federation_that_is_kept(self, seed: int | None, tmp_path: Path) -> None:
        ears, hearing, saying = Pipe(), *os.pipe()
        os.set_blocking(hearing, False)
        kept_by = programs.Supervisor(Folder(tmp_path), replace(ORDERED, simulation_seed=seed), ears[0])
        kept_by.hearing = hearing
        os.write(saying, b"here 6\nfailed 3 Expected a disk, got none.\n")
        kept_by._hear()
        told = [ears[1].recv(), ears[1].recv()]
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
        asyncio.run(programs._client(tmp_path, ORDERED, None, 3, stop, saying))
        line = os.read(hearing, 1 << 16).decode()
        assert line.count("\n") == 1
        assert line.startswith(
            "failed 3 Expected a disk, got none." if isinstance(error, DataError) else "failed 3 OSE"
        )
        assert len(line) < 1100
        assert len(tries) == 2
        for number in (hearing, saying):
            os.close(number)


TABLE = f"""
[population]
kind = "table"
items_per_user = 4
path = "people.parquet"
user = "who"
label = "sick"
columns.numeric = {{ {", ".join(f"x{j} = [-1.0, 1.0]" for j in range(DIMENSION))} }}
columns.intercept = false
test_fraction = 0.25

[domain]
radius = 2.0

[privacy]
epsilon = 8.0
delta = 1e-2
allow_large_delta = true

[algorithm]
name = "dp-sgd-wor"
options = {{ rounds = 3 }}
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Twelve users of four rows each, of whom one has none that can be used."""
    whole = items(12)
    broken = [
        None if who == "person-00004" else x
        for who, x in zip(whole["who"].to_pylist(), whole["x0"].to_pylist(), strict=True)
    ]
    pq.write_table(
        whole.set_column(whole.column_names.index("x0"), "x0", pa.array(broken)), tmp_path / "people.parquet"
    )
    return tmp_path


def _description(prepared: runs.Prepared) -> str:
    wanted = specification(prepared).model_copy(update={"run": "r"})
    return json.dumps(describe(wanted, make_plan(wanted)))


class TestItems:
    def test_a_split_table_holds_each_users_items_to_the_bit(self, table: Path, tmp_path: Path) -> None:
        config = parse(TABLE, settings=("population.test_fraction=0.0",))
        prepared, folder = runs.prepare(config, table), Folder(tmp_path / "f")
        population = prepared.setup.population
        for number in range(1, population.users + 1):
            folder.client(number).mkdir(parents=True)
        give_tables(folder, config, table, population.users)
        simulation, terms = programs.Simulation(prepared.setup, 0.0), Terms.read("r", _description(prepared))
        for number in range(1, population.users + 1):
            place, wanted = folder.client(number), population.all_items.of(np.array([number - 1]))
            assert _same(programs.items_of(simulation, number).batch, wanted)
            assert "who" not in pq.read_schema(place / ITEMS).names
            if number != 5:  # whose rows cannot be used
                assert _same(own_items(place / ITEMS, terms).batch, wanted)

    def test_made_up_users_items_come_as_they_are(self, tmp_path: Path) -> None:
        prepared, folder = runs.prepare(parse(TOML, settings=("population.users=30",)), tmp_path), Folder(tmp_path)
        programs.write(folder, prepared)
        simulation = programs.read(folder)
        assert simulation is not None
        for number in (1, 7, 30):
            found = programs.items_of(simulation, number)
            assert _same(found.batch, prepared.setup.population.items(np.array([number - 1])))

    @pytest.mark.parametrize("source", [TABLE, TOML])
    def test_started_again_everybody_keeps_their_items_and_only_new_clients_get_some(
        self, source: str, table: Path, tmp_path: Path
    ) -> None:
        folder = _empty(tmp_path / "f", 9)
        give_tables(folder, parse(source), table, 6)
        before = {path: path.read_bytes() for path in _items(folder)}
        folder.client(2).joinpath(ITEMS).write_bytes(b"theirs")
        before[folder.client(2) / ITEMS] = b"theirs"
        told = (folder.path / RUN).read_bytes()
        give_tables(folder, None, table, 6)
        give_tables(folder, None, table, 8)
        give_tables(folder, parse(source), table, 9)
        assert {path: path.read_bytes() for path in before} == before
        assert (folder.path / RUN).read_bytes() == told
        assert len(_items(folder)) == 9
        fresh = _empty(tmp_path / "fresh", 9)
        give_tables(fresh, parse(source), table, 9)
        assert (fresh.client(9) / ITEMS).read_bytes() == (folder.client(9) / ITEMS).read_bytes()

    @pytest.mark.parametrize("source", [TABLE, TOML])
    def test_too_many_clients_settle_on_nothing(self, source: str, table: Path, tmp_path: Path) -> None:
        folder, config = _empty(tmp_path / "f", 20), parse(source)
        with pytest.raises(ConfigError, match="Say fewer"):
            give_tables(folder, config, table, 10_000)
        assert not _items(folder)
        give_tables(folder, parse(TOML), table, 2)

    @pytest.mark.parametrize("source", [TABLE, TOML])
    def test_silos_have_the_rows_of_their_persons_whose_names_stay(
        self, source: str, table: Path, tmp_path: Path
    ) -> None:
        """Those of the first names are the first silo's."""
        folder, more = _empty(tmp_path / "f", 3), ("population.users=12",) if source is TOML else ()
        config = parse(source.replace("[population]", "[population]\nsilos = [3, 4, 5]"), settings=more)
        found = silos_in(folder, config, table)
        assert found is not None
        user, silos = found
        assert silos.sizes == (3, 4, 5)
        give_tables(folder, config, table, 3, silos)
        held = [set(pq.read_table(folder.client(number) / ITEMS)[user].to_pylist()) for number in (1, 2, 3)]
        assert [len(each) for each in held] == [3, 4, 5]
        assert max(held[0]) < min(held[1]) <= max(held[1]) < min(held[2])
        told = parse((folder.path / RUN).read_text())
        assert (told.population.silos.sizes, told.population.user) == ((3, 4, 5), user)  # type: ignore[union-attr]
        assert declared(told, 12).users == 12
        folder.write(ORDER, {"people": [3, 4, 5], "user": user})
        assert silos_in(folder, None, tmp_path / "gone") == (user, Silos((3, 4, 5))), (
            "the table need not be there again"
        )

    def test_sizes_that_do_not_add_up_and_other_clients_than_silos_start_nothing(
        self, table: Path, tmp_path: Path
    ) -> None:
        config = parse(TOML.replace("[population]", "[population]\nsilos = [2, 3]"))
        with pytest.raises(ConfigError, match="5 persons in 2 silos"):
            silos_in(Folder(tmp_path), config, table)
        some = parse(TOML.replace("[population]", "[population]\nsilos = 3"))
        with pytest.raises(ConfigError, match="a client for each of 3 silos, got --clients 20"):
            launch.start(tmp_path, some, table, clients=20, listen="127.0.0.1:1", control="127.0.0.1:2")
        assert not [*tmp_path.glob("clients/*")]
        for wrong in ({"people": (3, 4, 5)}, {"people": (2, 3), "user": "who"}):
            with pytest.raises(ConfigError, match="persons of each of 3 silos"):
                Order(clients=3, processes=1, listen="127.0.0.1:1", control="127.0.0.1:2", **wrong)

    def test_a_table_that_is_cut_off_is_not_there(
        self, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = _empty(tmp_path / "f", 2)
        monkeypatch.setattr(pq, "write_table", _half)
        with pytest.raises(KeyboardInterrupt):
            give_tables(folder, parse(TABLE), table, 2)
        assert not _items(folder)


def _same(one: ItemBatch, other: ItemBatch) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("features", "labels", "offsets"))


def _empty(path: Path, clients: int) -> Folder:
    for number in range(1, clients + 1):
        Folder(path).client(number).mkdir(parents=True)
    return Folder(path)


def _items(folder: Folder) -> list[Path]:
    return sorted(folder.path.glob(f"clients/*/{ITEMS}"))


def _half(_: pa.Table, where: object, **how: object) -> None:
    if isinstance(where, Path):
        where.write_bytes(b"PAR1")
    raise KeyboardInterrupt

"""A federation on this machine: what is ordered, who holds what, links. Runs: test_local_runs.py."""

import asyncio
import fcntl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography import x509

from federation.crowd import DIMENSION, carried_out, items
from quoron import api
from quoron.config import TableSection, parse
from quoron.engines import EngineChoice, comparison_sharing, training_sharing
from quoron.local import engine, kept, launch, people, rehearsal
from quoron.local.faults import Faults, Kill, Slow
from quoron.local.folder import HOSTS, ITEMS, ORDER, RUN, RUNNING, Folder
from quoron.local.items import load_items
from quoron.local.launch import Local
from quoron.local.order import MOST, Order, processes_for, reached
from quoron.local.people import columns_of, cut, give, give_tables, settle
from quoron.local.programs import MADE
from quoron.local.relay import Relay
from quoron.network import Network
from quoron.operate.submission import declared
from quoron.populations import Synthetic
from quoron.run_folder import RunFolder
from quoron.sections import Keep
from quoron.simulation import run as runs
from quoron.simulation.inline import InlineEngine
from quoron_client.data.items import ItemBatch
from quoron_client.federation.own_table import own_items
from quoron_client.federation.terms import read_terms
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question, Status
from quoron_privacy.errors import ConfigError, RunError, Unreachable
from quoron_server.books.ledger import Ledger
from quoron_server.service.certificates import load_certificate
from quoron_server.specification import describe, make_plan
from small_run import TOML

TABLE = f"""
[population]
kind = "table"
path = "people.parquet"
user = "who"
label = "sick"
numeric = {{ {", ".join(f"x{j} = [-1.0, 1.0]" for j in range(DIMENSION))} }}
intercept = false
test_fraction = 0.25

[domain]
radius = 2.0

[problem]
items_per_user = 4

[privacy]
epsilon = 8.0
delta = 1e-2
allow_large_delta = true

[algorithm]
name = "dp-sgd-wor"
options = {{ rounds = 3 }}
"""


def order(**changes: object) -> Order:
    return Order(**{"clients": 7, "processes": 3, "listen": "127.0.0.1:1", "control": "127.0.0.1:2"} | changes)


class TestOrders:
    def test_every_client_is_in_one_process(self) -> None:
        split = order().split
        assert sorted(number for some in split for number in some) == list(range(1, 8))
        assert max(map(len, split)) - min(map(len, split)) <= 1
        assert order().words == "7 clients, 3 processes, up to 3 in each"
        assert order(processes=7).words == "7 clients, one process each"

    def test_what_is_written_is_what_is_read(self) -> None:
        given = order(corruption=(0, 2, 0, 0, 0, 0, 0), kills=("3@2",), slow="10%:2s", network="rtt=80ms")
        assert Order.from_json(given.as_json()) == given

    @pytest.mark.parametrize("wrong", [{"clients": 0}, {"clients": MOST + 1}, {"processes": 8}, {"kills": ("8@1",)}])
    def test_what_cannot_be_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ConfigError, match="Expected"):
            order(**wrong)

    def test_more_memory_is_more_processes_and_never_more_than_clients(self) -> None:
        found = [processes_for(200, memory << 20) for memory in (100, 1000, 2000, 4000, 8000, 64_000)]
        assert found == sorted(found)
        assert found[0] == 1
        assert found[-1] == 200

    @pytest.mark.parametrize(
        ("listen", "where"),
        [
            ("0.0.0.0:7443", "127.0.0.1:7443"),
            ("[::]:7443", "127.0.0.1:7443"),
            ("[::1]:7443", "[::1]:7443"),
            ("localhost:0", "localhost:0"),
            ("10.0.0.3:7443", "10.0.0.3:7443"),
        ],
    )
    def test_whoever_listens_everywhere_is_reached_on_this_machine(self, listen: str, where: str) -> None:
        assert reached(listen) == where

    @pytest.mark.parametrize("wrong", ["7443", ":7443", "localhost", "localhost:x", "::1:7443", "localhost:65536"])
    def test_no_address_is_refused_before_anything_starts(self, wrong: str) -> None:
        for name in ("listen", "control"):
            with pytest.raises(ConfigError, match="HOST:PORT"):
                order(**{name: wrong})


class TestFaults:
    @pytest.mark.parametrize(
        ("kills", "says"),
        [(("3@2", "3@5"), "two kills of one"), (("9@1",), "among 5"), (("2@8",), "in one of 7 rounds, got 8")],
    )
    def test_a_kill_that_cannot_happen_is_refused(self, kills: tuple[str, ...], says: str) -> None:
        def check(faults: Faults) -> None:
            faults.check(5)
            faults.check_rounds(7)

        with pytest.raises(ConfigError, match=says):
            check(Faults.parse(kills=kills))

    def test_a_kill_is_of_one_client_in_one_round_and_once(self) -> None:
        faults = Faults.parse(kills=("3@2", "5@1:gone"))
        assert faults.kills == (Kill(3, 2), Kill(5, 1, comes_back=False))
        hit = [
            (client, round_)
            for client in range(1, 8)
            for round_ in range(4)
            if faults.killed(client, round_, before=False)
        ]
        assert hit == [(3, 1), (5, 0)]
        assert not faults.killed(3, 1, before=True)
        assert [client for client in range(1, 8) if faults.gone(client)] == [5]

    @pytest.mark.parametrize("text", ["3", "0@1", "3@0", "a@1", "3@2:back", "-1@2"])
    def test_a_kill_that_cannot_be_meant_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="CLIENT@ROUND"):
            Kill.parse(text)

    @pytest.mark.parametrize(
        ("text", "slow"), [("25%:2s", (5, 2.0)), ("300ms", (20, 0.3)), ("90%:1s", (18, 1.0)), ("0%:1s", (0, 0.0))]
    )
    def test_a_share_of_the_clients_is_slow(self, text: str, slow: tuple[int, float]) -> None:
        delays = [Faults.parse(slow=text).delay(client, 20) for client in range(1, 21)]
        assert (sum(each > 0 for each in delays), max(delays)) == slow

    @pytest.mark.parametrize("text", ["2", "120%:1s", "10%", "1h"])
    def test_slowness_that_cannot_be_meant_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match="slow clients"):
            Slow.parse(text)

    def test_who_is_silent_is_who_drops_out_of_the_inline_engine(self) -> None:
        people = Synthetic("logistic", users=40, items_per_user=2, dimension=2, domain=L2Ball(1.0))
        faults, engine = Faults.parse(network="dropout=30%"), InlineEngine(people, seed=5, dropout=0.3)
        for round_ in range(5):
            told = engine.rows(Question(round_, np.arange(40), AverageGradient(np.zeros((1, 2)), (1.0,))))
            assert (told.status == Status.MISSING).tolist() == [
                faults.silent(user + 1, round_, 5) for user in range(40)
            ]


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


class TestItems:
    def test_a_split_table_holds_each_users_items_to_the_bit(self, table: Path, tmp_path: Path) -> None:
        prepared, folder = runs.prepare(parse(TABLE), table), Folder(tmp_path / "f")
        population = prepared.scene.population
        for number in range(1, population.users + 1):
            folder.client(number).mkdir(parents=True)
        give(folder, prepared, table)
        made = 0
        for number in range(1, population.users + 1):
            place = folder.client(number)
            wanted = population.held.of(np.array([number - 1]))
            if (place / MADE).exists():
                made, found = made + 1, load_items(place / MADE)
            else:
                terms = read_terms("r", _description(prepared))
                found = own_items(place / ITEMS, terms).batch
                assert "who" not in pq.read_schema(place / ITEMS).names
            assert _same(found, wanted)
        assert made == 1, "whose rows cannot be used"

    def test_made_up_users_items_come_as_they_are(self, tmp_path: Path) -> None:
        prepared, folder = (
            runs.prepare(parse(TOML, settings=("population.users=30",)), tmp_path),
            Folder(tmp_path / "f"),
        )
        for number in range(1, 31):
            folder.client(number).mkdir(parents=True)
        give(folder, prepared, tmp_path)
        for number in (1, 7, 30):
            wanted = prepared.scene.population.items(np.array([number - 1]))
            assert _same(load_items(folder.client(number) / MADE), wanted)

    def test_so_many_clients_are_the_first_users_by_name(self, table: Path) -> None:
        config, frame = cut(parse(TABLE), table, None, 6)
        assert isinstance(config.population, TableSection)
        assert frame is not None
        assert sorted(set(frame["who"].to_pylist())) == [f"person-{user:05d}" for user in range(8)]
        assert runs.prepare(config, table, frame=frame).scene.population.users == 6
        with pytest.raises(ConfigError, match="got 12"):
            cut(parse(TABLE), table, None, 12)
        assert cut(parse(TOML), table, None, 9)[0].population.users == 9

    def test_tables_for_real_say_how_they_are_submitted(self, table: Path, tmp_path: Path) -> None:
        for source, name in ((TABLE, "table"), (TOML, "made")):
            folder = Folder(tmp_path / name)
            for number in range(1, 9):
                folder.client(number).mkdir(parents=True)
            give_tables(folder, parse(source), table, 8)
            told = parse((folder.path / RUN).read_text())
            assert declared(told, 8).items_per_user == (4 if source is TABLE else 5)
            assert pq.read_metadata(folder.client(8) / ITEMS).num_rows == (4 if source is TABLE else 5)

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

    @pytest.mark.parametrize("other", [TABLE, TOML])
    def test_a_folder_is_of_one_source(self, other: str, table: Path, tmp_path: Path) -> None:
        folder, first = _empty(tmp_path / "f", 3), parse(TOML, settings=("population.users=40",))
        give_tables(folder, first, table, 3)
        before = [path.read_bytes() for path in _items(folder)]
        with pytest.raises(ConfigError, match="Leave the source away"):
            give_tables(folder, parse(other), table, 3)
        assert [path.read_bytes() for path in _items(folder)] == before

    @pytest.mark.parametrize("source", [TABLE, TOML])
    def test_too_many_clients_settle_on_nothing(self, source: str, table: Path, tmp_path: Path) -> None:
        folder, config = _empty(tmp_path / "f", 20), parse(source)
        with pytest.raises(ConfigError, match="Say fewer"):
            give_tables(folder, config, table, 10**6)
        assert not _items(folder)
        give_tables(folder, parse(TOML), table, 2)

    def test_a_table_that_is_cut_off_is_not_there(
        self, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = _empty(tmp_path / "f", 2)
        monkeypatch.setattr(people.pq, "write_table", _half)
        with pytest.raises(KeyboardInterrupt):
            give_tables(folder, parse(TABLE), table, 2)
        assert not _items(folder)

    @pytest.mark.parametrize(
        "source", [TABLE, TABLE.replace("test_fraction", "outlier_fraction = 0.3\ntest_fraction"), TOML]
    )
    def test_after_a_simulation_everybody_has_a_table_and_nothing_else_of_it_is_left(
        self, source: str, table: Path, tmp_path: Path
    ) -> None:
        prepared = runs.prepare(parse(source), table)
        users = prepared.scene.population.users
        folder = _empty(tmp_path / "f", users)
        give(folder, prepared, table)
        rehearsal.write(folder, prepared)
        with pytest.raises(ConfigError, match="has not ended"):
            give_tables(folder, None, table, users)
        settle(folder, prepared, table)
        assert {path.name for path in folder.path.rglob("*") if path.is_file()} == {ITEMS, RUN}
        assert len(_items(folder)) == users
        before = [path.read_bytes() for path in _items(folder)]
        give_tables(folder, None, table, users)
        assert [path.read_bytes() for path in _items(folder)] == before
        if source is not TOML:
            plain = _empty(tmp_path / "plain", users)
            give(plain, runs.prepare(parse(TABLE), table), table)
            assert [path.read_bytes() for path in _items(plain)] == before, "their own rows, whatever was made of them"
        with pytest.raises(ConfigError, match="Say fewer"):
            give_tables(folder, None, table, users + 1)
        with pytest.raises(ConfigError, match="Leave the source away"):
            give_tables(folder, parse(source), table, users)

    @pytest.mark.parametrize("family", ["logistic", "least_squares", "linear", "quadratic"])
    def test_every_made_up_family_has_columns_that_its_loss_takes(self, family: str) -> None:
        people = Synthetic(family, users=4, items_per_user=2, dimension=3, domain=L2Ball(2.0), signal_norm=0.5)
        rules = columns_of(parse(TOML), people)
        rules.check_public()
        rules.check_meant()
        rules.check_loss(people.loss)
        assert rules.dimension == 3


def _description(prepared: runs.Prepared) -> str:
    import json

    from quoron.local.engine import specification

    wanted = specification(prepared).model_copy(update={"run": "r"})
    return json.dumps(describe(wanted, make_plan(wanted)))


def _same(one: ItemBatch, other: ItemBatch) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("features", "labels", "offsets"))


def _empty(path: Path, clients: int) -> Folder:
    for number in range(1, clients + 1):
        Folder(path).client(number).mkdir(parents=True)
    return Folder(path)


def _items(folder: Folder) -> list[Path]:
    return sorted(folder.path.glob(f"clients/*/{ITEMS}"))


def _half(_: pa.Table, where: object) -> None:
    if isinstance(where, Path):
        where.write_bytes(b"PAR1")
    raise KeyboardInterrupt


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

    def test_the_coordinators_certificate_is_for_where_it_listens_too(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path / "f")
        folder.make(1)
        mine = folder.coordinator / "certificate.pem"
        before, key = mine.read_bytes(), (folder.coordinator / "key.pem").read_bytes()
        folder.reached_at("127.0.0.1", "localhost")
        assert mine.read_bytes() == before
        folder.reached_at("::1", "example.org")
        folder.make(1)
        names = load_certificate(mine).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert {str(each.value) for each in names} == {*HOSTS, "::1", "example.org"}
        assert (folder.coordinator / "key.pem").read_bytes() == key

    def test_a_folder_is_held_by_one(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path)
        assert not folder.runs
        with folder.held() as first:
            assert first is not None
            assert folder.runs
            with folder.held() as second:
                assert second is None
        assert not folder.runs

    def test_whoever_looks_keeps_nobody_from_a_folder(self, tmp_path: Path) -> None:
        folder, looked = Folder(tmp_path), threading.Event()
        with folder.held():
            pass
        with open(tmp_path / ".lock", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # as `runs` does for a moment
            assert not folder.runs, "two who look at once do not see each other"
            end = threading.Timer(0.1, lambda: (looked.set(), fcntl.flock(file, fcntl.LOCK_UN)))
            end.start()
            with folder.held() as lock:
                assert looked.is_set()
                assert lock is not None
            end.join()

    def test_a_number_of_a_federation_that_was_killed_is_nobodys_to_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, sent = Folder(tmp_path), list[int]()
        monkeypatch.setattr(launch.os, "kill", lambda number, _: sent.append(number))
        monkeypatch.setattr(launch.subprocess, "Popen", _never)
        folder.write(RUNNING, {"keeper": 123456})
        with suppress(RuntimeError):
            Local(folder, order()).__enter__()
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

    def test_one_that_starts_says_what_it_was_asked_for(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path)
        assert not kept.status(folder)["running"]
        with folder.held():
            folder.write(ORDER, order().as_json())
            told = kept.status(folder)
        assert (told["here"], told["clients"], told["listen"], told["processes"]) == (0, 7, "127.0.0.1:1", 0)

    def test_what_is_kept_is_not_waited_for_though_nobody_is_told(self, tmp_path: Path) -> None:
        local = Local(Folder(tmp_path), order())
        with suppress(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "_say", _interrupted)
            local.keep()
        assert local._kept


def test_a_link_brings_everything_in_order_and_ends_with_either_side() -> None:
    sent = bytes(range(256)) * 1000

    async def scene() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 12):
                writer.write(data)
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        network = Network.parse("rtt=4ms,jitter=1ms,up=100Mbps,down=100Mbps")
        async with server, Relay(network.links[0], f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as link:
            host, _, port = link.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            assert await reader.readexactly(len(sent)) == sent
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    carried_out(scene())


class Stage:
    """A coordinator's control plane by script, on a clock of its own: seconds that pass, what is told, or an error."""

    def __init__(self, *script: object) -> None:
        self.script, self.now = list(script), 0.0

    def operator(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def check(self) -> None: ...

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def submit(self, _: str = "") -> str:
        return str(next(self.watch("")))

    runs = submit

    def watch(self, _: str) -> Iterator[object]:
        while self.script:
            act = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            if isinstance(act, Exception):
                raise act
            if isinstance(act, float):
                self.now += act
            else:
                yield act
                if len(self.script) == 1 and act is self.script[0]:
                    return

    def as_text(self) -> str:
        return "its specification"

    def carry_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine, "time", self)
        monkeypatch.setattr(engine, "specification", lambda _: self)
        engine._carry_out(self, None, ())  # type: ignore[arg-type]


class TestACoordinatorThatIsAway:
    DEAD, AWAITS, END = Unreachable("Cannot reach it."), {"kind": "awaits"}, {"kind": "ended", "how": "complete"}

    def test_may_be_killed_late_in_a_long_round(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stage = Stage(
            "submitted", self.AWAITS, 500.0, self.DEAD, self.DEAD, "there", 500.0, self.DEAD, "there", self.END
        )
        stage.carry_out(monkeypatch)
        assert stage.now > 1000

    def test_is_gone_after_so_many_seconds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stage = Stage("submitted", self.AWAITS, 500.0, self.DEAD)
        with pytest.raises(RunError, match=r"away for 120 s\. Cannot reach it"):
            stage.carry_out(monkeypatch)
        assert 619 < stage.now < 622

    def test_is_not_asked_again_what_it_has_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stage = Stage(RunError("The books are of another run."))
        with pytest.raises(RunError, match=r"^The books are of another run"):
            stage.carry_out(monkeypatch)
        assert stage.now == 0


def test_a_ledger_that_takes_over_another_is_the_other(tmp_path: Path) -> None:
    done = api.simulate(parse(TOML), keep=Keep(tmp_path / "one"))
    prepared = runs.prepare(done.config, tmp_path)
    other = RunFolder(tmp_path / "two")
    other.path.mkdir()
    assert not runs.begin(prepared, other)
    with Ledger.open(tmp_path / "one" / "ledger.sqlite") as ledger:
        taken = runs.taken_over(prepared, other, ledger)
        with Ledger.open(other.ledger) as mine:
            assert mine.events() == ledger.events()
            assert mine.releases() == ledger.releases()
            assert mine.spent() == ledger.spent()
    np.testing.assert_array_equal(taken.model, done.model)
    assert runs.begin(prepared, other), "it is complete, for whoever resumes it"
    assert other.rounds() == RunFolder(tmp_path / "one").rounds()


def test_only_the_engine_service_has_clients_and_faults() -> None:
    for name in ("inline", "ray", "flower"):
        with pytest.raises(ConfigError, match="engine service only"):
            EngineChoice.of(name, clients=3)
    choice = EngineChoice.of("service", clients=3, workers=2, kills=["1@1"], slow="1s", keep=True)
    assert choice.sharing is None
    for refused in (comparison_sharing, training_sharing):
        with pytest.raises(ConfigError, match="service"):
            refused(choice)


@pytest.mark.parametrize("choice", [{"clients": 3}, {"keep": True}])
def test_a_run_that_goes_on_has_the_clients_of_its_beginning(choice: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither clients nor keep to resume"):
        api.resume(tmp_path, engine=EngineChoice.of("service", **choice))


def test_a_federation_that_cannot_begin_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(launch.subprocess, "Popen", full)
    order = Order(clients=2, processes=1, listen="127.0.0.1:1", control="127.0.0.1:2", simulation_seed=1, passing=True)
    with pytest.raises(RunError, match=r"room for another process.*temporarily"), Local(Folder(tmp_path / "f"), order):
        pass
    assert not (tmp_path / "f").exists()

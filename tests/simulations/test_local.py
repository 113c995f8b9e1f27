"""A federation on this machine: what is ordered, what goes wrong by order, links, what a run waits for."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import quoron
from federation.crowd import carried_out
from quoron.config import parse
from quoron.engines import EngineChoice, comparison_sharing, training_sharing
from quoron.local import engine, launch
from quoron.local import order as orders
from quoron.local.faults import Faults, Kill, Slow
from quoron.local.folder import Folder
from quoron.local.launch import Local
from quoron.local.order import MOST, Order, reached
from quoron.local.relay import Relay
from quoron.network import Network
from quoron.populations import Synthetic
from quoron.run_folder import RunFolder
from quoron.sections import Keep
from quoron.simulation import run as runs
from quoron.simulation.inline import InlineEngine
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.questions import Question, Status
from quoron_privacy.errors import ConfigError, RunError
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

    @pytest.mark.parametrize("wrong", [{"clients": 0}, {"clients": MOST + 1}, {"processes": 8}, {"kills": ("8@1",)}])
    def test_what_cannot_be_is_refused(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ConfigError, match="Expected"):
            order(**wrong)

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
        quoron.resume(tmp_path, engine=EngineChoice.of("service", **choice))


def test_too_little_memory_keeps_nobody_from_a_run_that_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = quoron.simulate(parse(TOML), keep=Keep(tmp_path / "run"))
    prepared = runs.prepare(done.config, tmp_path)
    monkeypatch.setattr(orders, "free_memory", lambda: 0)
    with pytest.raises(ConfigError, match="free memory"):
        engine.simulate(prepared, RunFolder(tmp_path / "new"), tmp_path)
    again = engine.simulate(prepared, RunFolder(tmp_path / "run"), tmp_path)
    np.testing.assert_array_equal(again.model, done.model)


def test_a_federation_that_cannot_begin_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(launch.subprocess, "Popen", full)
    order = Order(clients=2, processes=1, listen="127.0.0.1:1", control="127.0.0.1:2", simulation_seed=1, passing=True)
    with pytest.raises(RunError, match=r"room for another process.*temporarily"), Local(Folder(tmp_path / "f"), order):
        pass
    assert not (tmp_path / "f").exists()

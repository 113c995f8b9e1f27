"""Light clients and small runs for the tests of the service: the protocol without a table, a record or a process."""

import asyncio
import contextlib
import json
import math
import secrets
import threading
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from problems import problem_of
from quoron.data import Population, Synthetic, TablePopulation, from_table
from quoron.engine.inline import InlineEngine
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Numeric
from quoron_client.losses import Logistic
from quoron_client.protocol import wire
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.questions import Answers, Question, Status
from quoron_privacy.noise.streams import SeededNoise
from quoron_protos.v1 import federation_pb2 as pb
from quoron_protos.v1 import federation_pb2_grpc
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.two_servers import with_second_server
from quoron_server.rounds import Engine, run
from quoron_server.service import Coordinator, ServeConfig, Transport
from quoron_server.specification import RunSpecification, make_plan
from quoron_server.storage.ledger import Ledger

SEED = 7
DIMENSION = 3
HANGS = 300.0  # seconds after which a test hangs, on a machine that does much else
# A client's program, which waits for no minute after conversations that end at once.
CLIENT = """
from quoron.__main__ import main
from quoron_client.federation import session

session._LONGEST_WAIT = 0.5
main()
"""
# What is feasible with the fewest users at a generous budget: users and options of every algorithm.
FEW: dict[str, tuple[int, dict[str, object]]] = {
    "tracking-srgd": (100, {"rounds": 10}),
    "whitened-tracking": (20, {"rounds": 5}),
    "one-round-least-squares": (20, {}),
    "filtered-sgd": (420, {}),
    "median-sgd": (20, {"rounds": 2, "step_size": 0.05}),
    "outlier-iterates": (100, {"rounds": 6, "phases": 2}),
    "phased-sgd": (20, {"cohort_size": 2}),
    "group-phased-sgd": (20, {"rounds": 4, "phases": 2}),
    "one-pass-dp-sgd": (20, {"rounds": 6}),
    "accelerated-srgd": (20, {"rounds": 6}),
    "srgd": (20, {"rounds": 5}),
    "accelerated-sgd": (20, {"rounds": 5}),
    "online-to-batch": (20, {"rounds": 5}),
    "dp-ftrl": (20, {"rounds": 6, "epochs": 2}),
    "accelerated-erm": (1000, {"rounds": 5, "phases": 2, "cohort": 125}),
    "outlier-gd": (200, {"rounds": 4}),
    "dp-sgd-poisson": (20, {"rounds": 5, "rate": 0.5}),
    "dp-sgd-wor": (20, {"rounds": 5, "rate": 0.5}),
    "mean-sgd": (20, {"rounds": 2, "rate": 1.0}),
    "recentred-sgd": (20, {"rounds": 5, "rate": 0.5}),
    "winsorised-erm": (60, {"rounds": 4}),
    "local-model": (20, {"rounds": 6}),
    "sgd": (20, {"rounds": 6}),
}

BOXED = ("median-sgd",)


def people(users: int) -> Synthetic:
    return Synthetic(
        family="logistic", users=users, items_per_user=4, dimension=DIMENSION, domain=L2Ball(2.0), seed=SEED
    )


def items(users: int) -> pa.Table:
    """Four items of each of some people, as a table that names them in order."""
    rng = np.random.default_rng(SEED)
    features = rng.uniform(-1, 1, (4 * users, DIMENSION))
    columns = {f"x{j}": features[:, j] for j in range(DIMENSION)}
    owners = [f"person-{user:05d}" for user in range(users) for _ in range(4)]
    return pa.table({"who": owners, "sick": (features.sum(axis=1) > 0).astype(np.int64), **columns})


def from_items(users: int) -> TablePopulation:
    """The same people, as clients read their tables."""
    features = tuple(Numeric(f"x{j}", -1.0, 1.0) for j in range(DIMENSION))
    rules = Encoding(features, label=Signs("sick"), intercept=False)
    sizes = {"test_fraction": 0.0, "items_per_user": 4}
    return from_table(items(users), rules, user="who", loss=Logistic(), domain=L2Ball(2.0), **sizes)


def write_items(folder: Path, users: int) -> list[Path]:
    """One file a user, without the column that names it."""
    table, paths = items(users), [folder / f"items-{user}.parquet" for user in range(users)]
    for user, path in enumerate(paths):
        pq.write_table(table.slice(4 * user, 4).drop_columns(["who"]), path)
    return paths


def specification(algorithm: str, run_name: str = "trial", **changes: object) -> RunSpecification:
    users, options = FEW[algorithm]
    problem = problem_of(
        users=users,
        items_per_user=4,
        dimension=DIMENSION,
        domain=L2Ball(2.0),
        lipschitz=1.0,
        smoothness=0.25,
        curvature="isotropic",
        typical_curvature=0.1,
        feature_norm=1.0,
        link_curvature=1.0,
        sigmoid=True,
    )
    boxed: dict[str, object] = {}
    if algorithm in BOXED:  # one feature of an item at a time makes Hessians diagonal
        problem = replace(problem, domain=Box(2.0), coordinate_lipschitz=1.0, coordinate_smoothness=0.25)
        boxed = {"active_features": 1}
    whole = RunSpecification(
        run=run_name,
        algorithm=algorithm,
        epsilon=15.0,
        delta=0.1,
        allow_large_delta=True,
        problem=problem,
        loss={"name": "logistic", "feature_norm": 1.0, **boxed},
        columns=Encoding(tuple(Numeric(f"x{j}", -1.0, 1.0) for j in range(DIMENSION)), Signs("sick"), intercept=False),
        seconds=60.0,
        early_ends=True,
        options=options,
        seed=SEED,
        simulation=True,
        simulation_seed=SEED,
    )
    return whole.model_copy(update=changes)


class Without:
    """The inline engine, for users of whom some have another status, in all rounds or in those of `rounds`."""

    def __init__(self, population: Population, gone: Mapping[int, int], rounds: Container[int] | None = None) -> None:
        self.inline, self.gone, self.rounds = InlineEngine(population, seed=SEED), gone, rounds

    def ask(self, question: Question) -> Answers:
        answers = self.inline.rows(question)
        values, status = answers.values.copy(), answers.status.copy()
        if self.rounds is None or question.round in self.rounds:
            for user, become in self.gone.items():
                values[question.cohort == user], status[question.cohort == user] = 0.0, become
        return Answers(values, status)


def inline_model(
    wanted: RunSpecification, folder: Path, population: Population | None = None, engine: Engine | None = None
) -> np.ndarray:
    """The model of the same run in one process, of people or of another engine."""
    population = people(wanted.problem.users) if population is None else population
    engine = InlineEngine(population, seed=SEED) if engine is None else engine
    plan = make_plan(wanted)
    path, key = folder / f"{secrets.token_hex(8)}.sqlite", SeededNoise(wanted.simulation_seed).export_key()
    with Ledger.create(path, plan="{}", config_digest="c", noise_key=key) as ledger:
        if plan.guarantee.servers is not None:
            engine = with_second_server(engine, plan, wanted.simulation_seed)
        algorithm = ALGORITHMS[wanted.algorithm].make(plan)
        return run(algorithm, engine, ledger, SeededNoise(wanted.simulation_seed), simulation=True)


Answering = Callable[[int, pb.Question], pb.Answer | None]


@dataclass
class Honest:
    """Answers like the inline engine, for whoever is asked but those who are `silent`. Remembers every question."""

    engine: InlineEngine
    silent: frozenset[int] = frozenset()
    asked: list[tuple[int, str, int, bytes]] = field(default_factory=list)
    longest: tuple[int, int] = (0, 0)  # numbers in a question and in an answer

    @classmethod
    def of(cls, users: int, silent: Iterable[int] = ()) -> "Honest":
        return cls(InlineEngine(people(users), seed=SEED), frozenset(silent))

    def __call__(self, user: int, message: pb.Question) -> pb.Answer | None:
        name, number, digest, task = wire.question_from_wire(message)
        self.asked.append((user, name, number, digest))
        if user in self.silent:
            return None
        smoothing = getattr(task, "smoothing", None)
        if hasattr(smoothing, "seed"):  # a client draws its own directions; the simulation's are those of the seed
            task = replace(task, smoothing=replace(smoothing, seed=SEED))
        answers = self.engine.ask(Question(number, np.array([user]), task))
        sizes = task.numbers_down, answers.values[0].size
        self.longest = max(self.longest[0], sizes[0]), max(self.longest[1], sizes[1])
        return wire.answer_to_wire(name, number, digest, answers.values[0], Status(int(answers.status[0])))


@dataclass
class Peer:
    """One connected client."""

    channel: grpc.aio.Channel
    name: str | None = None  # in plaintext
    user: int = -1
    people: int = 0  # of a silo
    call: grpc.aio.StreamStreamCall | None = None
    receipts: list[pb.Receipt] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)  # a stream takes one message at a time

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self.name is None else (("quoron-client", self.name),)

    async def enrol(self) -> int:
        stub = federation_pb2_grpc.ClientPlaneStub(self.channel)
        asked = pb.EnrolRequest(protocol=2, software="test", people=self.people)
        reply = await stub.Enrol(asked, metadata=self.metadata)
        self.user = reply.user
        return self.user

    def open(self) -> grpc.aio.StreamStreamCall:
        return federation_pb2_grpc.ClientPlaneStub(self.channel).Work(metadata=self.metadata)

    async def hello(self) -> None:
        self.call = self.open()
        await self.send(hello=pb.Hello(protocol=2, software="test"))
        welcome = await self.call.read()
        assert welcome.welcome.user == self.user

    async def send(self, **kind: object) -> None:
        await self.write(pb.ClientMessage(**kind))

    async def write(self, message: pb.ClientMessage) -> None:
        async with self.writing:
            await self.call.write(message)

    async def consents(self) -> str:
        """To the next run that it hears of, whose name this is."""
        announced = await self.next("run")
        await self.send(consent=pb.Consent(run=announced.run, takes_part=True))
        return announced.run

    async def answers(self, answer: pb.Answer) -> None:
        for message in wire.answer_messages(answer):
            await self.write(message)

    async def next(self, kind: str) -> object:
        """The next message of a kind; others before it are dropped."""
        while True:
            message = await self.call.read()
            assert message is not grpc.aio.EOF, await self.call.code()
            if message.WhichOneof("kind") == kind:
                return getattr(message, kind)

    async def work(self, answering: Answering, runs: int = 1) -> str:
        """Take part in everything until this number of runs have ended; how the last of them did."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            return await self._work(answering, runs)
        return "disconnected"

    async def _work(self, answering: Answering, runs: int) -> str:
        reassembler = wire.Reassembler[pb.ServerMessage]()
        while (heard := await self.call.read()) is not grpc.aio.EOF:
            message = reassembler.take(heard, lambda _: wire.MAX_MESSAGE)
            if message is None:
                continue
            kind = message.WhichOneof("kind")
            if kind == "run":
                await self.send(consent=pb.Consent(run=message.run.run, takes_part=True))
            elif kind == "question":
                answer = answering(self.user, message.question)
                if answer is not None:
                    await self.answers(answer)
            elif kind == "receipt":
                self.receipts.append(message.receipt)
            elif kind == "ended":
                runs -= 1
                if runs == 0:
                    return message.ended.how
        return "disconnected"


@contextlib.asynccontextmanager
async def crowd(where: str, users: int, channel: Callable[[int], grpc.aio.Channel] | None = None):
    """Enrolled and greeted clients, user i as number i; over one plaintext channel unless `channel` makes theirs."""
    async with contextlib.AsyncExitStack() as stack:
        shared = await stack.enter_async_context(grpc.aio.insecure_channel(where))
        peers = []
        for number in range(users):
            if channel is None:
                peer = Peer(shared, f"client-{number}")
            else:
                peer = Peer(await stack.enter_async_context(channel(number)))
            assert await peer.enrol() == number
            peers.append(peer)
        await asyncio.gather(*(peer.hello() for peer in peers))
        yield peers


async def fetched(address: str, request: str) -> str:
    """All that a port answers to a request of HTTP."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request.encode())
    try:
        return (await reader.read()).decode()
    except ConnectionResetError:
        return ""
    finally:
        writer.close()


async def enrolled(where: str, users: int) -> None:
    """User i is the i-th to enrol, by its name."""
    async with grpc.aio.insecure_channel(where) as channel:
        await channel.channel_ready()
        for user in range(users):
            assert await Peer(channel, f"client-{user}").enrol() == user


RETRYING = (("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 50))


async def coming_back(where: str, users: Iterable[int], answering: Answering) -> None:
    """Enrolled clients that come back, whatever becomes of the coordinator, until the run has ended."""

    async def one(user: int, channel: grpc.aio.Channel) -> None:
        peer, how = Peer(channel, f"client-{user}"), "disconnected"
        while how == "disconnected":
            with contextlib.suppress(grpc.aio.AioRpcError):
                await channel.channel_ready()
                assert await peer.enrol() == user
                await peer.hello()
                how = await peer.work(answering)

    async with grpc.aio.insecure_channel(where, options=RETRYING) as channel:
        await asyncio.gather(*(one(user, channel) for user in users))


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def called(channel: grpc.aio.Channel, token: str, command: str, **arguments: object) -> object:
    """What the control plane replies to a command."""
    request = pb.CallRequest(command=command, arguments=json.dumps(arguments))
    reply = await federation_pb2_grpc.ControlPlaneStub(channel).Call(request, metadata=bearer(token))
    return json.loads(reply.json)


@contextlib.asynccontextmanager
async def coordinator(folder: Path, **changes: object):
    """A coordinator for simulations on loopback, in plaintext unless told otherwise, on ports of the system's."""
    config = ServeConfig(
        transport=Transport(insecure=True),
        listen="127.0.0.1:0",
        control="127.0.0.1:0",
        database=f"sqlite:///{folder}/coordinator.sqlite",
        tokens=folder / "tokens.json",
        allow_simulation=True,
    )
    async with Coordinator(replace(config, **changes)) as running:
        yield running


async def complete(running: Coordinator, run_name: str = "trial") -> np.ndarray:
    """The model of a run, once it is complete."""
    async for event in (await running.scheduler.feed(run_name)).watch():
        if event["kind"] == "ended":
            assert event["how"] == "complete", event
    return await running.scheduler.records.model(run_name)


def carried_out(work: Awaitable[object], *, within: float = HANGS) -> object:
    """Run a test's coroutine; a test that hangs fails, by the machine's clock, which no test puts forward."""

    async def watched() -> object:
        task = asyncio.ensure_future(work)
        watch = threading.Timer(within, asyncio.get_running_loop().call_soon_threadsafe, [task.cancel])
        watch.start()
        try:
            return await task
        except asyncio.CancelledError:
            raise TimeoutError(f"The test hung for {within:g} s.") from None
        finally:
            watch.cancel()

    return asyncio.run(watched())


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that will be true."""
    while not condition():
        await asyncio.sleep(0.001)


def put_clock_forward(seconds: float) -> None:
    """The running loop's: whatever waits for a time within them has come to it, and nobody has waited."""
    loop = asyncio.get_running_loop()
    loop.ahead = getattr(loop, "ahead", 0.0) + seconds
    loop.time = lambda: type(loop).time(loop) + loop.ahead


def _waiting_for(running: Coordinator) -> set[int]:
    """Users that an open round of the run "trial" has not heard of."""
    session = running.sessions.runs.get("trial")
    if session is None or session.open is None:
        return set()
    return {user for user in session.open.cohort.rows if user not in session.asked or not session.asked[user].done}


async def no_deadline_is_waited_for(
    running: Coordinator, silent: Iterable[int], seconds: float, rounds: float = math.inf
) -> None:
    """So many times: once a round waits for none but those who are `silent`, its `seconds` are over."""
    while rounds > 0:
        rounds -= 1
        await until(lambda: _waiting_for(running) and _waiting_for(running) <= set(silent))
        session = running.sessions.runs["trial"]
        ended = session.open
        put_clock_forward(seconds)
        while session.open is ended:
            await asyncio.sleep(0.001)


async def everybody(
    running: Coordinator,
    stack: contextlib.AsyncExitStack,
    users: int = 20,
    *,
    runs: int = 1,
    silent: Iterable[int] = (),
    answering: Answering | None = None,
) -> Honest:
    """Clients at work until this number of runs have ended or the stack is left.

    Who leaves before the last run has ended makes it wait for every deadline.
    """
    honest = Honest.of(users, silent)
    for peer in await stack.enter_async_context(crowd(running.listen, users)):
        stack.callback(asyncio.create_task(peer.work(answering or honest, runs)).cancel)
    return honest

"""What a round costs with 50 silos of 2,000 people each, beside the same people in one process.

    python benchmarks/silo_rounds.py [--silos 50] [--people 2000] [--rounds 6] [--dimension 50] [--items 20] [--sums]

A coordinator and all the silos' clients share this one process, over plaintext gRPC, so nothing is computed side by
side that would not be in one: a silo reads its file, computes its people's rows, keeps them in its record and sends
them. Both ways ask everybody in every round, with the same plan and seed, and the models must have the same bits. Of
each, the rounds after the first one are timed. Target: a round through silos takes less than twice as long. Not
reached: 4 times by sums and 11 times by rows, which in one process nobody ever makes (.13 and .33 s beside .030, on two
cores that also did something else); what 50 silos write before they send is about as much by itself.
"""

import argparse
import asyncio
import json
import logging
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import federation
from quoron.data import from_table
from quoron.engine.inline import InlineEngine
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.federation import ClientConfig, run_client
from quoron_client.losses import Logistic
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import Answers, Question
from quoron_privacy.noise.streams import SeededNoise
from quoron_privacy.release import Sums
from quoron_server.algorithms import ALGORITHMS
from quoron_server.rounds import run
from quoron_server.service import Coordinator, ServeConfig, Transport
from quoron_server.specification import RunSpecification, make_plan
from quoron_server.storage.ledger import Ledger

TARGET = 2.0


def specification(silos: int, people: int, rounds: int, dimension: int, items: int, *, sums: bool) -> RunSpecification:
    of_users = federation.specification(silos * people, rounds, dimension)
    changes = {"run": "silos", "algorithm": "dp-sgd-poisson", "epsilon": 5.0, "delta": 1e-7}
    problem = replace(of_users.problem, items_per_user=items)
    return of_users.model_copy(
        update=changes | {"problem": problem, "silos": (people,) * silos, "silo_sums": sums},
    )


def table(users: int, items: int, dimension: int) -> pa.Table:
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, (users * items, dimension)).astype(np.float32)
    names = pa.array(np.repeat([f"person-{user:07d}" for user in range(users)], items))
    label = (features.sum(axis=1) > 0).astype(np.int64)
    return pa.table({"who": names, "y": label, **{f"x{place}": features[:, place] for place in range(dimension)}})


class Timed:
    """An engine that says how long each of its rounds took."""

    def __init__(self, engine: InlineEngine) -> None:
        self.engine, self.seconds = engine, list[float]()

    def ask(self, question: Question) -> Answers | Sums:
        """As the engine."""
        began = time.perf_counter()
        answers = self.engine.ask(question)
        self.seconds.append(time.perf_counter() - began)
        return answers


def in_process(wanted: RunSpecification, people: pa.Table, folder: Path) -> tuple[np.ndarray, float]:
    rules = Encoding(wanted.columns.features, label=Signs("y"), intercept=False)
    sizes = {"test_fraction": 0.0, "items_per_user": wanted.problem.items_per_user}
    population = from_table(people, rules, user="who", loss=Logistic(), domain=L2Ball(2.0), **sizes)
    plan, noise = make_plan(wanted), SeededNoise(0)
    timed = Timed(InlineEngine(population, seed=0))
    with Ledger.create(folder / "inline.sqlite", plan="{}", config_digest="", noise_key=noise.export_key()) as ledger:
        model = run(ALGORITHMS[wanted.algorithm].make(plan), timed, ledger, noise, simulation=True)
    return model, float(np.median(timed.seconds[1:]))


async def through_silos(wanted: RunSpecification, people: pa.Table, folder: Path) -> tuple[np.ndarray, float]:
    sizes, items, first = wanted.silos or (), wanted.problem.items_per_user, 0
    config = ServeConfig(
        transport=Transport(insecure=True),
        listen="127.0.0.1:0",
        control="127.0.0.1:0",
        database=f"sqlite:///{folder}/coordinator.sqlite",
        tokens=folder / "tokens.json",
        allow_simulation=True,
        max_users_per_client=max(sizes),
    )
    stop, clients = asyncio.Event(), []
    async with Coordinator(config) as running:
        for number, size in enumerate(sizes):
            path = folder / f"silo-{number}.parquet"
            pq.write_table(people.slice(items * first, items * size), path)
            first += size
            own = ClientConfig(
                coordinator=running.listen,
                data=path,
                record=path.with_suffix(".sqlite"),
                lifetime_epsilon=100.0,
                lifetime_delta=1.0,
                insecure=True,
                client_name=path.stem,
                simulation_seed=0,
                user_column="who",
            )
            clients.append(asyncio.create_task(run_client(own, stop=stop)))
            while running.sessions.connected <= number:
                await asyncio.sleep(0.005)
        await running.scheduler.submit(wanted.as_text())
        while wanted.run not in running.sessions.runs:
            await asyncio.sleep(0.005)
        session = running.sessions.runs[wanted.run]
        while session.count(session.present) < wanted.problem.users:  # files are read
            await asyncio.sleep(0.005)
        seconds, asked = [], running.sessions.ask

        async def timed(*given: object, **named: object) -> Answers:
            began = time.perf_counter()
            answers = await asked(*given, **named)  # type: ignore[arg-type]
            seconds.append(time.perf_counter() - began)
            return answers

        running.sessions.ask = timed  # type: ignore[method-assign]
        async for event in (await running.scheduler.feed(wanted.run)).watch():
            if event["kind"] == "ended" and event["how"] != "complete":
                raise RuntimeError(str(event))
        model = await running.scheduler.records.model(wanted.run)
        stop.set()
        await asyncio.gather(*clients)
    return model, float(np.median(seconds[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("silos", 50), ("people", 2000), ("rounds", 6), ("dimension", 50), ("items", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--sums", action="store_true")
    given = vars(parser.parse_args())
    logging.basicConfig(level=logging.ERROR)
    wanted = specification(**given)
    people = table(wanted.problem.users, given["items"], given["dimension"])
    with tempfile.TemporaryDirectory() as folder:
        model, alone = in_process(wanted, people, Path(folder))
        same, silos = asyncio.run(through_silos(wanted, people, Path(folder)))
    np.testing.assert_array_equal(same, model)
    ratio = silos / alone
    print(json.dumps(given | {"in_process_s": alone, "silos_s": silos, "ratio": ratio, "target": TARGET}))


if __name__ == "__main__":
    main()

"""A client in conversation with a coordinator that a test scripts."""

import asyncio
import json
from contextlib import asynccontextmanager

import numpy as np

from fake_coordinator import coordinator
from one_answer import answer_from_wire
from quoron_client.data.encoding import Encoding, Signs
from quoron_client.data.features import Numeric
from quoron_client.federation import ClientConfig, run_client
from quoron_client.protocol.questions import AverageGradient, Question, RangeReport, VectorReport
from quoron_client.protocol.smoothing import Convolution
from quoron_client.protocol.wire import question_to_wire

D = 3
TERMS = {
    "run": "r",
    "algorithm": "dp-sgd-poisson",
    "statement": "a guarantee",
    "epsilon": 1.0,
    "delta": 1e-6,
    "adjacency": "replace-one",
    "trust_model": "central-broadcast",
    "rounds": 9,
    "participations": 2,
    "dimension": D,
    "loss": {"name": "logistic"},
    "domain": {"l2-ball": 3.0},
    "columns": Encoding((Numeric("age", 0, 100), Numeric("weight", 0, 200)), Signs("sick")).as_json(),
}
GRADIENT = AverageGradient(np.array([[0.5, -0.25, 1.0]]), (1.0,))
CONVOLVED = AverageGradient(GRADIENT.points, (1.0,), smoothing=Convolution(0.5, 11))
VECTOR = VectorReport(CONVOLVED, 0.5, 1e-7, 1.0, np.zeros(D))
RANGE = RangeReport(GRADIENT, 0.5, 8, 2.0, np.array([1.0, -1.0, 1.0]), np.array([2]))


def terms(**changes):
    return json.dumps(TERMS | changes)


def asked(task=GRADIENT, number=0, run="r", user=5):
    return question_to_wire(Question(number, np.array([user]), task), 0, run=run, user=user, seconds=60)


def made(own, port, **changes):
    options = {
        "coordinator": f"127.0.0.1:{port}",
        "data": own,
        "record": own.parent / "record.sqlite",
        "lifetime_epsilon": 2.0,
        "lifetime_delta": 1e-5,
        "insecure": True,
        "client_name": "me",
        "retry_seconds": 0.01,
    }
    return ClientConfig(**(options | changes))


@asynccontextmanager
async def running(config):
    """A client that is stopped in the end, and that may not fail before."""
    stop = asyncio.Event()
    client = asyncio.create_task(run_client(config, stop=stop))
    try:
        yield client
    finally:
        stop.set()
        await client


def converse(data, script, *, credentials=None, user=5, **changes):
    """Run `script(coordinator)` with a client that has said hello."""

    async def talk(fake):
        assert (await fake.hears("hello")).protocol == 2
        return await script(fake)

    async def scenario():
        async with coordinator(credentials, user=user) as fake, running(made(data, fake.port, **changes)) as client:
            talking = asyncio.create_task(talk(fake))
            await asyncio.wait((talking, client), return_when=asyncio.FIRST_COMPLETED)
            if not talking.done():
                talking.cancel()
                await client  # its error
            return await talking

    return asyncio.run(scenario())


def values(message, task=GRADIENT):
    return answer_from_wire(message, task.answer_shape(D))

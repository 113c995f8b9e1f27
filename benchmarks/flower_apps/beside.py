"""Our messages and those of a bare Flower app, by turns over the same nodes: `python benchmarks/flower.py overhead`.

The bare app is written as in Flower's documentation: an ArrayRecord goes out, one of the same size comes back. Nodes
hold one user each, and both kinds of messages pass through the same simulation, so that whatever else the machine
does meets both alike.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from processes import cpu_seconds

from quoron_client.flower.serving import make_app
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.flower_records import Values, answered
from quoron_client.protocol.questions import Answers, AverageGradient, Question, plain
from quoron_server.flower.engine import FlowerEngine, Shards
from quoron_server.problem import Problem


def answer(values: Values, context: Context) -> RecordDict:
    """The point that came, and one: as the bare app does, so that what is compared is what surrounds the answer."""
    del context
    return answered(
        values, lambda asked: Answers(plain(asked.task).points + 1.0, np.zeros(len(asked.cohort), np.uint8))
    )


client_app = make_app(answer)
server_app = ServerApp()


@client_app.query("bare")
def bare(message: Message, context: Context) -> Message:
    """What Flower's documentation shows: read the arrays, send arrays back."""
    del context
    (received,) = message.content["arrays"].to_numpy_ndarrays()
    return Message(RecordDict({"arrays": ArrayRecord([received + 1.0])}), reply_to=message)


def pushed_and_pulled(grid: Grid, nodes: list[int], point: np.ndarray) -> int:
    """A round of the bare app, with a loop that looks for replies as often as ours does."""
    waiting = set(grid.push_messages(messages(nodes, point)))
    replies: list[Message] = []
    pause = 0.01
    while waiting:
        found = list(grid.pull_messages(list(waiting)))
        waiting -= {each.metadata.reply_to_message_id for each in found}
        replies += found
        pause = 0.01 if found else min(2 * pause, 0.5)
        if waiting:
            time.sleep(pause)
    return total(replies)


def sent_and_received(grid: Grid, nodes: list[int], point: np.ndarray) -> int:
    """A round of the bare app with Flower's own loop."""
    return total(list(grid.send_and_receive(messages(nodes, point))))


def messages(nodes: list[int], point: np.ndarray) -> list[Message]:
    """One for each node."""
    return [Message(RecordDict({"arrays": ArrayRecord([point])}), node, "query.bare") for node in nodes]


def total(replies: list[Message]) -> int:
    """Add the arrays up, as any server does; how many there were."""
    np.sum([each.content["arrays"].to_numpy_ndarrays()[0] for each in replies], axis=0)
    return len(replies)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Blocks of rounds of each kind by turns; seconds and CPU seconds of each block."""
    settings = context.run_config
    users, dimension = int(settings["users"]), int(settings["dimension"])
    domain = L2Ball(1.0)
    problem = Problem(users, 4, dimension, domain, lipschitz=1.0, smoothness=0.25)
    fleet = Shards.found(grid, users, run="beside", seconds=600)
    engine = FlowerEngine(grid, fleet, "beside", problem, 600.0)
    cohort, point = np.arange(users), np.zeros(dimension)
    count = iter(range(10**9))

    def ours() -> int:
        answers = engine.ask(Question(next(count), cohort, AverageGradient(point[None], (1.0,))))
        np.sum(answers.values, axis=0)
        return int(answers.answered.sum())

    kinds: dict[str, Callable[[], int]] = {
        "bare": lambda: pushed_and_pulled(grid, list(fleet.nodes), point),
        "ours": ours,
        "bare, send_and_receive": lambda: sent_and_received(grid, list(fleet.nodes), point),
    }
    for work in kinds.values():
        work()  # processes are started, kernels compiled
    blocks = []
    for turn in range(int(settings["turns"])):
        for kind in list(kinds)[:: 1 if turn % 2 == 0 else -1]:
            began, cpu = time.perf_counter(), cpu_seconds(str(settings["mark"]))
            answered = sum(kinds[kind]() for _ in range(int(settings["rounds"])))
            spent = time.perf_counter() - began, cpu_seconds(str(settings["mark"])) - cpu
            blocks.append({"kind": kind, "answered": answered, "seconds": spent[0], "cpu": spent[1]})
    Path(str(settings["results"])).write_text(json.dumps(blocks))

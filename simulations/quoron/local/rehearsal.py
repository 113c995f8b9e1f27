"""What a run will ask, asked once before anybody is there: loops are compiled, or found, once and not by each client.

write(folder, prepared)        # whoever starts a federation
carry_out(folder)              # the process that its clients are copies of
"""

import json
from math import prod

import numpy as np

from quoron.local.folder import Folder
from quoron.local.programs import load_items, save_items
from quoron.planning.plans import Prepared
from quoron.simulation.scene import Setup
from quoron_client.compute.draws import user_keys
from quoron_client.compute.enforcement import bounded
from quoron_client.compute.work import answer, local_report
from quoron_client.losses import make_loss
from quoron_client.protocol.questions import Answers, LocalReport, Task, summed
from quoron_client.protocol.wire import question_from_wire, question_to_wire, task_name
from quoron_client.randomisers import SeededRandomness
from quoron_privacy.noise.streams import SeededNoise, StartedNoise
from quoron_protos.v1 import federation_pb2 as federation
from quoron_server.algorithms import ALGORITHMS

QUESTIONS, ITEMS = "rehearsal.json", "rehearsal.npz"
ROUNDS, MOST = 64, 1 << 24  # looked at; numbers that the answers of one may have


def write(folder: Folder, prepared: Prepared[Setup]) -> None:
    """A question of each kind that the run asks, and one user's items to answer it with."""
    loss = prepared.scene.population.loss
    found = {kind: message.SerializeToString().hex() for kind, message in _questions(prepared).items()}
    told = {"loss": {"name": loss.name, **loss.bounds}, "questions": list(found.values())}
    (folder.path / QUESTIONS).write_text(json.dumps(told), encoding="utf-8")
    save_items(folder.path / ITEMS, prepared.scene.population.items(np.zeros(1, np.int64)))


def _questions(prepared: Prepared[Setup]) -> dict[str, federation.Question]:
    """By kind, of rounds in which everybody answers zero."""
    plan, found = prepared.planned.plan, dict[str, federation.Question]()
    algorithm, noise = ALGORITHMS[plan.algorithm].make(plan), StartedNoise.simulated(SeededNoise(0))
    state = algorithm.init()
    for _ in range(ROUNDS):
        question = algorithm.request(state, noise)
        if question is None:
            break
        if len(question.cohort):
            message = question_to_wire(question, 0, run="rehearsal", user=0, seconds=1)
            found.setdefault(_kind(question.task), message)
        shape = (len(question.cohort), *question.task.answer_shape(plan.problem.dimension))
        if prod(shape) > MOST:
            break
        answers = Answers(np.zeros(shape), np.zeros(shape[0], np.uint8))
        told = answers if question.reduction is None else summed(answers, question.reduction)
        state = algorithm.update(state, told, noise).state
    return found


def _kind(task: Task) -> str:
    """What decides which loops answer it."""
    return f"{task_name(task)} of {len(getattr(task, 'weights', ()))}"


def carry_out(folder: Folder) -> None:
    """Answer what was written, if anything was."""
    if not (folder.path / QUESTIONS).exists():
        return
    told = json.loads((folder.path / QUESTIONS).read_text(encoding="utf-8"))
    loss = make_loss(**told["loss"])
    batch, nobody = bounded(load_items(folder.path / ITEMS), loss), np.zeros(1, np.int64)
    for text in told["questions"]:
        task = question_from_wire(federation.Question.FromString(bytes.fromhex(text)))[3].directed(0)
        if isinstance(task, LocalReport):
            local_report(loss, batch, task, SeededRandomness(0), round=0, users=nobody)
        else:
            answer(loss, batch, task, keys=user_keys(0, nobody))

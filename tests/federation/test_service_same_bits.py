"""A federation on loopback gives the bits of the inline engine, for every algorithm."""

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cover import EVERY_QUESTION, by_default
from federation.crowd import DIMENSION, FEW, Honest, complete, coordinator, crowd, inline_model, specification
from quoron_server.algorithms import ALGORITHMS
from quoron_server.specification import make_plan

QUICK = [name for name, (users, _) in FEW.items() if users <= 20]
SOME = ({*QUICK} & {*EVERY_QUESTION}) | {"median-sgd"}  # bare points; epochs: `test_two_servers_service`


async def federated(name: str, folder: Path) -> np.ndarray:
    wanted = specification(name)
    users, made = wanted.problem.users, make_plan(wanted)
    honest = Honest.of(users)
    async with coordinator(folder) as running, crowd(running.listen, users) as peers:
        working = [asyncio.create_task(peer.work(honest)) for peer in peers]
        await running.scheduler.submit(wanted.as_text())
        model = await complete(running)
        assert set(await asyncio.gather(*working)) == {"complete"}
    questions = [(user, number) for user, _, number, _ in honest.asked]
    assert len(set(questions)) == len(questions), "somebody was asked twice in a round"
    down, up = honest.longest
    assert up == made.schedule.answer_length, "the coordinator expects answers of another length"
    assert down <= 4 * DIMENSION, "a question holds more vectors than the coordinator expects"
    often = max(Counter(user for user, _ in questions).values())
    assert often <= made.schedule.participations, "somebody was asked in more rounds than planned"
    return model


def test_every_algorithm_has_a_small_run() -> None:
    assert set(FEW) == set(ALGORITHMS)


@pytest.mark.parametrize("name", by_default(FEW, SOME))
async def test_same_seed_gives_the_bits_of_the_inline_engine(name: str, tmp_path: Path) -> None:
    model = await federated(name, tmp_path)
    np.testing.assert_array_equal(model, inline_model(specification(name), tmp_path))

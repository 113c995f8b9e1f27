"""Coordinator, helper and clients over mutual TLS: the bits of both servers in one process, and what nobody is told."""

from pathlib import Path

import numpy as np
import pytest

from federation.crowd import carried_out, complete, from_items, inline_model, write_items
from federation.two_servers import USERS, clients, enrol, helped, helper, hurried, wanted


@pytest.mark.parametrize(
    ("algorithm", "groups"),
    [("one-round-least-squares", 1), ("one-pass-dp-sgd", 1), ("dp-ftrl", 1), ("dp-ftrl", 3)],
)
def test_two_servers_and_twenty_clients_give_the_bits_of_the_simulation_of_both(
    algorithm: str, groups: int, issued: Path, tmp_path: Path
) -> None:
    run = wanted(algorithm, groups=groups)
    paths, place = write_items(tmp_path, USERS), tmp_path / "other"
    place.mkdir()

    async def federated() -> np.ndarray:
        with helper(place) as second:
            async with helped(tmp_path, issued, place, second) as running:
                await enrol(running.listen, issued, USERS)
                async with clients(running.listen, issued, place, tmp_path, paths):
                    with hurried(running):
                        await running.manager.submit(run.as_text())
                        return await complete(running)

    model = carried_out(federated())
    np.testing.assert_array_equal(model, inline_model(run, tmp_path, from_items(USERS)))

"""A silo's people are users like any others: the same bits, whoever holds their rows."""

from pathlib import Path

import numpy as np
import pytest

from cover import by_default
from federation.crowd import (
    FEW,
    carried_out,
    complete,
    coordinator,
    from_items,
    inline_model,
    specification,
)
from federation.silos import clients_of, silo_config, write_silos

QUICK = [name for name, (users, _) in FEW.items() if users <= 20]
SOME = {"dp-sgd-poisson", "phased-sgd", "local-model", "dp-ftrl", "one-round-least-squares", "whitened-tracking"}


async def of_silos(name: str, folder: Path, sizes: tuple[int, ...], **changes: object) -> np.ndarray:
    wanted = specification(name, **changes)
    async with coordinator(folder, most_people=100) as running:
        configs = [silo_config(path, running.listen) for path in write_silos(folder, sizes)]
        async with clients_of(configs, running):
            await running.manager.submit(wanted.as_text())
            return await complete(running)


@pytest.mark.parametrize("name", by_default(QUICK, SOME))
def test_three_silos_give_the_bits_of_their_people_in_one_process(name: str, tmp_path: Path) -> None:
    model = carried_out(of_silos(name, tmp_path, (7, 12, 1)))
    np.testing.assert_array_equal(model, inline_model(specification(name), tmp_path, from_items(20)))

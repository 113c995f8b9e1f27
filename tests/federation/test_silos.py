"""A silo's people are users like any others: the same bits, whoever holds their rows."""

from pathlib import Path

import numpy as np
import pytest

from cover import by_default
from federation.crowd import (
    BOXED,
    FEW,
    carried_out,
    complete,
    coordinator,
    from_items,
    inline_model,
    specification,
)
from federation.silos import clients_of, silo_config, write_silos
from quoron_privacy.errors import ConfigError
from quoron_server.algorithms.whitened.parameters import PARTS
from quoron_server.specification import RunSpecification, make_plan

ROWS = {"dp-sgd-poisson", "phased-sgd", "local-model", "dp-ftrl", "whitened-tracking"}  # kinds of questions
SUMS = {"one-round-least-squares", "whitened-tracking", "dp-sgd-poisson"}  # of every kind of sum
SIZES = (7, 12, 1)


def planned(name: str, *, sums: bool = False) -> RunSpecification:
    users, options = FEW[name]
    if sums and name == "whitened-tracking":  # whose first message is ten
        options = {"rounds": int(str(options["rounds"])) + PARTS}
    return specification(name, silos=(7, users - 8, 1), silo_sums=sums, options=options)


def plannable(name: str, *, sums: bool) -> bool:
    """Whether it is an algorithm for silos: neither one of hidden cohorts of a fixed size, nor sums of single reads."""
    try:
        make_plan(planned(name, sums=sums))
    except ConfigError:
        return False
    return True


SMALL = [name for name, (users, _) in FEW.items() if users <= 100 and name not in BOXED]
WITH_ROWS = [name for name in SMALL if plannable(name, sums=False)]
WITH_SUMS = [name for name in SMALL if plannable(name, sums=True)]


async def of_silos(wanted: RunSpecification, folder: Path) -> np.ndarray:
    async with coordinator(folder, most_people=100) as running:
        configs = [silo_config(path, running.listen) for path in write_silos(folder, wanted.silos)]
        async with clients_of(configs, running):
            await running.manager.submit(wanted.as_text())
            return await complete(running)


@pytest.mark.parametrize("name", by_default(WITH_ROWS, ROWS))
def test_three_silos_give_the_bits_of_their_people_in_one_process(name: str, tmp_path: Path) -> None:
    wanted = planned(name)
    model = carried_out(of_silos(wanted, tmp_path))
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path, from_items(wanted.problem.users)))


@pytest.mark.parametrize("name", by_default(WITH_SUMS, SUMS))
def test_three_silos_that_send_sums_give_the_same_bits(name: str, tmp_path: Path) -> None:
    wanted = planned(name, sums=True)
    model = carried_out(of_silos(wanted, tmp_path))
    np.testing.assert_array_equal(model, inline_model(wanted, tmp_path, from_items(wanted.problem.users)))

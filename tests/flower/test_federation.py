"""Runs on a real federation of Flower, over TLS with five SuperNodes, give the bits of the inline engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower.federation import LARGE, SMALL, expected, federation, model_of, small, submit
from quoron_server.algorithms import ALGORITHMS

pytestmark = pytest.mark.slow
USERS = 5


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with federation(tmp_path_factory.mktemp("flower") / "federation", USERS) as started:
        yield started


def test_every_algorithm_has_a_run_on_five_nodes() -> None:
    assert {*SMALL, *LARGE} == set(ALGORITHMS)


@pytest.mark.parametrize("name", SMALL)
def test_one_user_a_node_gives_the_bits_of_the_inline_engine(name: str, running: Any, tmp_path: Path) -> None:
    wanted = small(name, f"bits-{name}", USERS)
    number = submit(running, wanted)
    np.testing.assert_array_equal(model_of(running, wanted, number), expected(wanted, tmp_path))

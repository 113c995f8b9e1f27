"""Runs on a real federation of Flower, over TLS with five SuperNodes, give the bits of the inline engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.crowd import BOXED, FEW
from flower.federation import LARGE, SMALL, expected, federation, model_of, small, submit
from quoron.federation.flower_simulation import simulate
from quoron.run_folder import RunFolder
from quoron.simulation import run as runs
from quoron.simulation import sources
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


@pytest.mark.parametrize("name", LARGE)
def test_simulated_users_on_the_same_nodes_give_the_bits_of_the_inline_engine(
    name: str, running: Any, tmp_path: Path
) -> None:
    """Those algorithms that five users are too few for."""
    users, options = FEW[name]
    changes = {"population.users": users, "population.items_per_user": 4, "population.dimension": 3}
    changes |= {"domain.radius": 2, "privacy.epsilon": 15, "privacy.delta": 0.1, "algorithm.name": name}
    if name in BOXED:
        changes |= {"domain.kind": "box", "loss.ridge": 0.1}
    changes |= {
        "privacy.trust_model": "central-release",
        **{f"algorithm.options.{key}": each for key, each in options.items()},
    }
    config, _ = sources.resolve("quickstart", [f"{key}={value}" for key, value in changes.items()])
    here, there = (tmp_path / each for each in ("here", "there"))
    here.mkdir()
    there.mkdir()
    prepared = runs.prepare(config, tmp_path)
    result = simulate(prepared, RunFolder(there), tmp_path, connection=running.connection())
    np.testing.assert_array_equal(result.weights, runs.carry_out(prepared, RunFolder(here)).weights)

"""Compile the loops of quoron before anybody waits for them: `python -m quoron.kernels`, as the container image does.

Loops are compiled when they are first called and kept on disk, in NUMBA_CACHE_DIR or beside the source. Here every
algorithm runs once over a few made-up users, every loss is made ready, and what only far more users reach is called.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

import quoron_client
from quoron import api
from quoron.populations import Cube
from quoron.sections import Keep, Method
from quoron_client.compute.user_loops import UserLoop
from quoron_client.data.encoding import Categorical, Encoding, Numeric, Signs, Weight
from quoron_client.data.gathering import Gathering
from quoron_client.data.misfits import Tally
from quoron_client.protocol.domains import Box
from quoron_privacy.kernels.compiled import Pointwise
from quoron_server.algorithms import ALGORITHMS, slots

# So generous a promise that filters and lotteries are feasible with these users.
SMALL = (
    "population.users=2400",
    "population.items_per_user=4",
    "population.dimension=3",
    "privacy.epsilon=8.0",
    "privacy.delta=1e-3",
    "algorithm.trust_clients=true",
)
NEEDS = {"median-sgd": ("domain.kind=box", "loss.ridge=0.2")}  # what an algorithm asks of a problem
VARIANTS = (  # what reaches loops that the default options do not
    ("outlier-iterates", ("algorithm.options.test='laplace'",)),
    ("mean-sgd", ("algorithm.options.estimator='range'", "algorithm.options.rounds=2")),
    ("one-pass-dp-sgd", ("population.outlier_fraction=0.05",)),
)


def compile_all() -> None:
    """Compile what a client, a coordinator and a simulation use."""
    for module in _modules():
        for held in vars(module).values():
            _make_ready(held)
    runs = [*((name, ()) for name in ALGORITHMS), *VARIANTS]
    with TemporaryDirectory(prefix="quoron-kernels-") as folder:
        for number, (name, options) in enumerate(runs):
            zero_out = ("privacy.adjacency=zero-out",) if ALGORITHMS[name].promises.adjacency == ("zero-out",) else ()
            settings = (*SMALL, *NEEDS.get(name, ()), *zero_out, *options)
            api.simulate("quickstart", method=Method(name), keep=Keep(Path(folder) / str(number)), settings=settings)
    rules = Encoding((Numeric("a", 0, 1), Categorical("b", ("x",))), Signs("c"), weight=Weight("d", 1.0))
    rows = Gathering(rules, "b", most=1)
    for kind in (pa.string(), pa.float64()):
        number = pa.array([1, 0, 2]).cast(kind)
        rows.add(pa.table({"a": number, "b": ["y", "y", "x"], "c": number, "d": number}))
    Tally(rules, 2).add((gathered := rows.end()).owners, gathered.marks)
    gathered.items(2)
    Cube(users=1, items_per_user=1, dimension=1, domain=Box(1.0), spread=0.1).items(np.arange(1))
    slots.partition(seed=0, users=slots.MANY)


def _modules() -> Iterator[ModuleType]:
    """The client's, but what belongs to Flower."""
    for found in pkgutil.walk_packages(quoron_client.__path__, "quoron_client."):
        if ".flower" not in found.name:
            yield importlib.import_module(found.name)


def _make_ready(held: Any) -> None:
    """A loop over users in both precisions; the scalar functions of a loss."""
    if isinstance(held, UserLoop):
        held.compile()
    if isinstance(held, type):
        for member in vars(held).values():
            if isinstance(member, Pointwise):
                _ = member.compiled


if __name__ == "__main__":
    compile_all()

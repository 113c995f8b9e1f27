"""Compile the loops of quoron before anybody waits for them: `python -m quoron.kernels`, as the container image does.

Loops are compiled when they are first called and kept on disk, in NUMBA_CACHE_DIR or beside the source. Here every
algorithm runs once over a few made-up users, and every loss is made ready. A loop that only much larger runs reach is
compiled when one does.

Where nobody has done so, `rounds_compiled_meanwhile` lets the first simulation of an installation wait half as long:
other processes compile what rounds call (`python -m quoron.kernels gradients`, `... rounds`) while the caller's
compiles what plans do.
"""

import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numba
import numpy as np

import quoron_client
from quoron.populations import Cube, Synthetic
from quoron.sections import Keep, Method
from quoron_client.compute.gradients import _gradients, gradient_sums
from quoron_client.compute.user_loops import UserLoop
from quoron_client.compute.work import answer
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Logistic
from quoron_client.protocol.domains import Box, L2Ball
from quoron_client.protocol.gradients import AverageGradient
from quoron_client.protocol.moments import SecondMoment
from quoron_privacy.kernels.compiled import Pointwise
from quoron_privacy.means.moment import MomentSum
from quoron_privacy.means.norm_counts import TailSum
from quoron_privacy.noise.sources import SeededNoise

_CONFIG: Any = numba.config
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
    from quoron import api
    from quoron_server.algorithms import ALGORITHMS

    for module in _modules():
        for held in vars(module).values():
            _make_ready(held)
    runs = [*((name, ()) for name in ALGORITHMS), *VARIANTS]
    with TemporaryDirectory(prefix="quoron-kernels-") as folder:
        for number, (name, options) in enumerate(runs):
            zero_out = ("privacy.adjacency=zero-out",) if ALGORITHMS[name].adjacency == ("zero-out",) else ()
            settings = (*SMALL, *NEEDS.get(name, ()), *zero_out, *options)
            api.simulate("quickstart", method=Method(name), keep=Keep(Path(folder) / str(number)), settings=settings)
    Cube(users=1, items_per_user=1, dimension=1, domain=Box(1.0), spread=0.1).items(np.arange(1))


def compile_gradients() -> None:
    """Compile what sums the gradients of users, of the recommended method: about half of what its rounds call."""
    users = ItemBatch(np.zeros((4, 2), np.float32), np.ones(4), np.arange(5))
    gradient_sums(Logistic(), users, AverageGradient(np.zeros((1, 2)), (1.0,)), TailSum(1.0, 4), largest=1e9)


def compile_rounds() -> None:
    """Compile the other half: items of synthetic users, their second moments, noise."""
    population = Synthetic(family="logistic", users=4, items_per_user=4, dimension=2, domain=L2Ball(1.0))
    batch = population.items(np.arange(4))
    MomentSum(2, 1.0, 4).of(answer(population.loss, batch, SecondMoment(2)).values, np.ones(4, np.bool_))
    SeededNoise(0).stream("noise").gaussian_steps(1)


PARTS = {"gradients": compile_gradients, "rounds": compile_rounds}  # of a round, by what takes as long as a plan's


@contextmanager
def rounds_compiled_meanwhile() -> Iterator[None]:
    """What happens inside is joined, on the first use of an installation, by a process for each of `PARTS`.

    Nothing is started where a run has been compiled for before, or on a single processor. The processes end with the
    block; that one fails shows in nothing, as everything it would have compiled is compiled when it is called.
    """
    if _CONFIG.NUMBA_NUM_THREADS == 1 or _gradients.kept():
        yield
        return
    nothing = subprocess.DEVNULL
    with ExitStack() as ending:
        others = [
            ending.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "quoron.kernels", part], stdin=nothing, stdout=nothing, stderr=nothing
                )
            )
            for part in PARTS
        ]
        try:
            yield
        except BaseException:
            for other in others:
                other.kill()
            raise


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
    for part in sys.argv[1:]:
        PARTS[part]()
    if not sys.argv[1:]:
        compile_all()

"""Compile what rounds call while the run is planned: so the first simulation of an installation waits half as long.

    with rounds_compiled_meanwhile():
        prepared = prepare(config, folder)

`python -m quoron.engine.first_use gradients`, `... rounds` are what other processes do while the caller's compiles
what plans call. `python -m quoron.kernels` compiles all ahead.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numba
import numpy as np

from quoron.data import Synthetic
from quoron_client.compute import gradients
from quoron_client.compute.work import answer
from quoron_client.data.items import ItemBatch
from quoron_client.losses import Logistic
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import AverageGradient, SecondMoment
from quoron_privacy.kernels.on_first_use import OnFirstUse
from quoron_privacy.means.norm_counts import NormCountSum
from quoron_privacy.noise.streams import SeededNoise

moment = OnFirstUse("quoron_privacy.means.moment")  # for callers that compile
_CONFIG: Any = numba.config


def compile_gradients() -> None:
    """Compile what sums the gradients of users, of the recommended method: about half of what its rounds call."""
    users = ItemBatch(np.zeros((4, 2), np.float32), np.ones(4), np.arange(5))
    point = AverageGradient(np.zeros((1, 2)), (1.0,))
    gradients.gradient_sums(Logistic(), users, point, NormCountSum(1.0, 4), largest=1e9)


def compile_rounds() -> None:
    """Compile the other half: items of synthetic users, their second moments, noise."""
    population = Synthetic(family="logistic", users=4, items_per_user=4, dimension=2, domain=L2Ball(1.0))
    batch = population.items(np.arange(4))
    moment.MomentSum(2, 1.0, 4).of(answer(population.loss, batch, SecondMoment(2)).values, np.ones(4, np.bool_))
    SeededNoise(0).stream("noise").gaussian_steps(1)


PARTS = {"gradients": compile_gradients, "rounds": compile_rounds}  # of a round, by what takes as long as a plan's


@contextmanager
def rounds_compiled_meanwhile() -> Iterator[None]:
    """What happens inside is joined, on the first use of an installation, by a process for each of `PARTS`.

    Nothing is started where a run has been compiled for before, or on a single processor. The processes end with the
    block; that one fails shows in nothing, as everything it would have compiled is compiled when it is called.
    """
    if _CONFIG.NUMBA_NUM_THREADS == 1 or gradients.gradient_loop.kept():
        yield
        return
    command, nothing = (sys.executable, "-m", __name__), subprocess.DEVNULL
    with ExitStack() as ending:
        others = [
            ending.enter_context(subprocess.Popen((*command, part), stdin=nothing, stdout=nothing, stderr=nothing))
            for part in PARTS
        ]
        try:
            yield
        except BaseException:
            for other in others:
                other.kill()
            raise


if __name__ == "__main__":
    for part in sys.argv[1:]:
        PARTS[part]()

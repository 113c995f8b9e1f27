"""A loss whose slope jumps, from a table to a model: clients answer with its Moreau envelope."""

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron.sections import Keep, Method, Privacy

pytestmark = pytest.mark.usefixtures("planned_once")

USERS = 4000


def frame():
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (2 * USERS, 2))
    return pd.DataFrame(
        {"who": np.repeat(np.arange(USERS), 2), "a": x[:, 0], "b": x[:, 1], "good": x[:, 0] + 0.3 * x[:, 1] > 0}
    )


@pytest.mark.parametrize("algorithm", ["recentred-sgd", "local-model"])
def test_the_hinge_is_learnt_through_its_envelope(algorithm, tmp_path):
    result = quoron.simulate(
        frame(),
        user="who",
        label="good",
        numeric={"a": (-1.0, 1.0), "b": (-1.0, 1.0)},
        privacy=Privacy(8.0, 1e-5),
        method=Method(algorithm),
        keep=Keep(tmp_path / "run"),
        settings=["loss.name=hinge", "algorithm.options.smoothing=2.0", "algorithm.options.rounds=16"],
    )
    assert result.plan.parameters.smoothing == 2.0
    assert result.plan.parameters.smoothness == pytest.approx(0.5)
    assert result.summary.excess_risk < 0.6 * result.summary.excess_risk_initial

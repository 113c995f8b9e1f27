"""examples/loops: optax's and torch's own optimisers with private steps; and arrays come back as they went in."""

import runpy
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from quoron_privacy import ClippedMean, SeededNoise

EXAMPLES = Path(__file__).parents[2] / "examples" / "loops"
SEED = SeededNoise(1)


def test_a_network_that_optax_trains_learns_with_private_steps(capsys: pytest.CaptureFixture) -> None:
    before, after = runpy.run_path(str(EXAMPLES / "with_optax.py"))["train"](SEED)
    assert before < 0.6
    assert after > 0.9
    assert "(8, 1e-06)-differential privacy" in capsys.readouterr().out


def test_a_module_that_torch_trains_is_not_moved_by_outlier_users(capsys: pytest.CaptureFixture) -> None:
    assert runpy.run_path(str(EXAMPLES / "with_torch.py"))["train"](SEED) < 0.05
    assert "(4, 1e-06)-differential privacy" in capsys.readouterr().out


@pytest.mark.parametrize(
    "rows",
    [
        torch.full((50, 2), 0.25),
        torch.full((50, 2), 0.25, dtype=torch.float64, requires_grad=True),
        torch.full((50, 2), 0.25, dtype=torch.bfloat16),
        jnp.full((50, 2), 0.25),
        jnp.full((50, 2), 0.25, jnp.bfloat16),
    ],
    ids=lambda rows: f"{type(rows).__module__.partition('.')[0]} {rows.dtype}",
)
def test_a_value_is_of_the_kind_and_precision_of_its_rows(rows: Any) -> None:
    mean = ClippedMean.calibrate(1.0, 1e-6, users=50, dimension=2, clip_norm=1.0)
    numpy, _ = mean(np.full((50, 2), 0.25), mean.init(), SEED)
    value, _ = mean(rows, mean.init(), SEED)
    assert type(value) is type(rows)
    assert value.dtype == rows.dtype
    assert np.asarray(value.float() if isinstance(value, torch.Tensor) else value, np.float64) == pytest.approx(
        numpy, rel=0.01
    )

"""Fixtures of a federation's tests."""

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {"age": rng.uniform(0, 100, 7), "weight": rng.uniform(0, 200, 7), "sick": rng.integers(0, 2, 7)}
    )
    path = tmp_path / "mine.csv"
    frame.to_csv(path, index=False)
    return path

"""The flights that ship with the package: the task is the documented one, and worth solving."""

from importlib.resources import files

import numpy as np
import pytest

from quoron.populations import flights


@pytest.fixture(scope="module")
def late():
    return flights()


def test_every_row_has_norm_one_and_the_vocabulary_is_not_read_from_data(late):
    norms = np.linalg.norm(late.training.features.astype(np.float64), axis=1)
    assert norms.max() <= 1.0
    assert norms.min() > 1 - 1e-6
    assert late.knowledge.assumptions == ()


@pytest.mark.slow
def test_the_non_private_model_ranks_held_out_flights_with_an_auc_of_684_thousandths(late):
    figures = late.test_metrics(late.optimum)
    assert figures["auc"] >= 0.684
    assert np.linalg.norm(late.optimum) < late.domain.radius
    assert late.excess_risk(np.zeros(32)) > 0.18


def test_source_and_licence_ship_with_the_data():
    text = (files("quoron") / "data" / "README.md").read_text()
    assert "CC0" in text
    assert "nycflights13" in text

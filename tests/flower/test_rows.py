"""The plug-in and `quoron.train_rows` are one thing: the same plan, and the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quoron
from flower.plugged import CLIP, DIMENSION, SMALL, USERS, plugged, trained
from quoron.sections import Keep, Method, Privacy
from quoron_privacy.noise.sources import SeededNoise

EPOCHS = {"rounds": 5, "epochs": 2, "inverse_step": 5.0, "optimiser": "adam"}


@pytest.mark.parametrize(("name", "options"), [*SMALL.items(), ("dp-ftrl", EPOCHS)])
def test_rows_and_the_plug_in_train_the_same_bits_by_one_plan(
    name: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plug-in asks in the order of slots; rows have a secret order, so the plug-in's users stand in that order."""
    monkeypatch.setenv("QUORON_ALLOW_SIMULATION", "1")
    own = np.random.default_rng(0).normal(0.3, 0.1, (USERS, DIMENSION))
    here = quoron.train_rows(
        lambda users, point: point - own[users],
        users=USERS,
        dimension=DIMENSION,
        privacy=Privacy(8.0, 1e-3, simulation_seed=5),
        method=Method(name, options, radius=2.0, smoothness=1.0, clip_norm=CLIP),
        keep=Keep(tmp_path / "rows"),
    )
    order = SeededNoise(5).stream("order of users").permutation(USERS)
    people = {slot: (lambda model, user=user: model - own[user]) for slot, user in enumerate(order)}
    there = trained(plugged(people), tmp_path / "plug-in", name, options=options, seed=5, identities="partitions")
    np.testing.assert_array_equal(here.model, there.model)
    assert here.plan.parameters == there.plan.parameters

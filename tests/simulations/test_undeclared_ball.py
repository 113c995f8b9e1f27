"""Nothing that nobody declared bounds a model, or it is said: beforehand, and of a model that ends there."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import quoron
from quoron.config import Config, from_tree
from quoron.planning.plans import choose
from quoron.populations import Numeric, TablePopulation, from_table
from quoron.simulation.inline import InlineEngine
from quoron.simulation.scene import problem
from quoron_client.losses import Linear
from quoron_client.losses.own import Declaration, declared_loss
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.ends import is_free
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms import ALGORITHMS
from quoron_server.wording import domain_words
from said import said

ONLY = {"whitened-tracking": ALGORITHMS["whitened-tracking"]}
USERS, FEATURES = 5_000, 4


def table(widest: float = 40.0) -> tuple[pd.DataFrame, tuple[Numeric, ...]]:
    """Columns that fill a part of their declared ranges."""
    draw = np.random.Generator(np.random.Philox(8))
    names, numbers = [f"x{k}" for k in range(FEATURES - 1)], draw.normal(size=(2 * USERS, FEATURES - 1))
    ill = draw.random(2 * USERS) < 1 / (1 + np.exp(-1.5 * numbers[:, 0] + numbers[:, 1]))
    frame = pd.DataFrame(numbers, columns=names).assign(who=np.repeat(np.arange(USERS), 2), ill=ill)
    return frame, tuple(Numeric(name, -widest, widest) for name in names)


@cache
def careful(widest: float = 40.0) -> TablePopulation:
    frame, features = table(widest)
    return from_table(frame, user="who", label="ill", features=features, domain=L2Ball(3.0), test_fraction=0.0)


def configured(epsilon: float = 4.0, *, algorithm: str = "auto", **domain: Any) -> Config:
    section = {"kind": "table", "path": "-", "user": "-", "label": "- > 0", "numeric": {"-": [0, 1]}}
    privacy = {"epsilon": epsilon, "delta": 1e-6}
    tree = {"population": section, "privacy": privacy, "domain": domain, "algorithm": {"name": algorithm}}
    return from_tree(tree)


def left(widest: float = 40.0, **domain: float) -> float:
    """Share of what there is to learn that `auto` leaves, beside the best without bounds."""
    people = replace(careful(widest), domain=L2Ball(domain.get("radius", 3.0)))
    plan = choose(configured(**domain), problem(configured(**domain), people), algorithms=ONLY).plan
    made, noise, engine = ONLY[plan.algorithm].make(plan), SeededNoise(2), InlineEngine(people)
    state = made.init()
    while (question := made.request(state, noise)) is not None:
        state = made.update(state, engine.ask(question), noise).state
    return people.excess_risk(made.model(state)) / people.excess_risk(np.zeros(FEATURES))


def test_where_no_radius_is_declared_nothing_bounds_models_whose_noise_needs_no_bound() -> None:
    free = problem(configured(), careful()).settled(wide=True)
    assert is_free(free.domain, free.feature_norm)
    assert domain_words(free) == "unbounded"
    assert free.domain.project(np.full(FEATURES, 1e7)).tolist() == [1e7] * FEATURES
    assert problem(configured(radius=30.0), replace(careful(), domain=L2Ball(30.0))).wide is None
    assert problem(configured(kind="box"), careful()).wide is None
    # A linear loss has its least at the end of the domain; it has none where there is no end.
    assert problem(configured(), replace(careful(), loss=Linear())).wide is None
    assert problem(configured(), replace(careful(), loss=Linear(ridge=0.1))).wide is not None


def test_a_loss_whose_constants_cannot_be_tried_everywhere_has_the_bound_that_is_said() -> None:
    """cosh of a prediction leaves float64 far away, where nobody can say that its author's constants hold."""
    declaration = Declaration(
        value=lambda prediction, label, width: np.log(np.cosh(prediction - label)),
        slope=lambda prediction, label, width: np.sinh(prediction - label) / np.cosh(prediction - label),
        labels="numbers",
        curvature=1.0,
        slope_bound=1.0,
        convex=True,
    )
    own = declared_loss("log-cosh", declaration, vouched_by="its author")(label_bound=1.0)
    assert problem(configured(), replace(careful(), loss=own)).wide is None


@pytest.mark.parametrize(("robust", "slope"), [(True, 30.0), (True, 0.3), (False, 30.0)])
def test_a_cap_on_predictions_that_holds_the_model_is_said_for_real_and_in_a_simulation(
    robust: bool, slope: float, ledger: Path, tmp_path: Path
) -> None:
    draw = np.random.Generator(np.random.Philox(9))
    number = draw.uniform(-1, 1, USERS)
    ill = draw.random(USERS) < 1 / (1 + np.exp(-slope * number))
    frame = pd.DataFrame({"who": np.arange(USERS), "x": number, "ill": ill})
    given = {"user": "who", "label": "ill", "numeric": {"x": (-1, 1)}, "epsilon": 8.0, "algorithm": "whitened-tracking"}
    given["settings"] = [f"algorithm.options.robust={str(robust).lower()}"]
    for run in (quoron.train, quoron.simulate):
        summary = run(frame, **said(**given, out=tmp_path / run.__name__)).summary
        warnings = summary.remarks_simulation_only if run is quoron.simulate else summary.warnings
        found = [each for each in warnings if "held at a root mean square of 4, in fear of hostile users" in each]
        assert len(found) == (robust and slope == 30.0)

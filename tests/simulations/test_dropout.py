"""Users that do not answer are drawn in every round, by the public seed."""

import numpy as np
import pytest

from quoron.cli.app import invoke
from quoron.data import Synthetic
from quoron.engine.inline import InlineEngine
from quoron_client.protocol.domains import L2Ball
from quoron_client.protocol.questions import AverageGradient, Question, Status


def test_dropouts_are_drawn_in_every_round_and_by_public_seed_alone() -> None:
    users, chunk = np.arange(4000), 1 << 14
    population = Synthetic(family="logistic", users=4000, dimension=2, items_per_user=2, domain=L2Ball(1.0))
    task = AverageGradient(np.zeros((1, 2)), (1.0,))

    def missing(round_: int, **options: int) -> np.ndarray:
        engine = InlineEngine(population, dropout=0.25, **options)
        return engine.ask(Question(round_, users, task)).status == Status.MISSING

    first = missing(0, seed=5)
    assert np.array_equal(first, missing(0, seed=5, chunk_bytes=chunk))
    assert not np.array_equal(first, missing(1, seed=5))
    assert not np.array_equal(first, missing(0, seed=6))
    # Binomial(4000, 1/4) is within 180 of 1,000 but for a chance below 1e-9.
    assert abs(first.sum() - 1000) < 180
    assert not InlineEngine(population, seed=5).ask(Question(0, users, task)).status.any()


def test_a_dropout_that_is_no_share_is_refused_with_its_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["plan", "quickstart", "--set", "run.dropout=1"]) == 2
    assert "run.dropout" in capsys.readouterr().err

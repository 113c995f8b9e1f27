"""An audit of the quorum on worst-case neighbours, as a run shows it: after how many rounds it ends, if it does.

Worlds: every round is at the edge, and one user answers in all rounds, in none, or first not and then always.
"""

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from quoron_privacy.counts.quorum import Quorum, calibrate
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithms.quorum import decide, draw_limit

EPSILON, ROUNDS, ASKED, DRAWS = 2.0, 3, 400, 1000
REST = (1.0, 1e-6)
ONCE = calibrate(0.5, EPSILON, (ASKED,) * ROUNDS, participations=1, rest=REST)
OFTEN = Quorum(0.5, EPSILON, ROUNDS, 1.25, 2 / (EPSILON - 1 / 1.25), *REST)
EDGE = ASKED // 2


def ends(quorum: Quorum, counts: list[int], seed: int):
    """Sampler of the number of rounds that passed."""

    def draw(size: int) -> np.ndarray:
        stream, passed = SeededNoise(seed).stream("audit"), np.zeros(size)
        for i in range(size):
            limit = draw_limit(quorum, stream)
            while passed[i] < ROUNDS and decide(quorum, counts[int(passed[i])], ASKED, limit, stream):
                passed[i] += 1
        return passed

    return draw


def found(quorum: Quorum, counts: list[int], other: list[int], draws: int = DRAWS) -> float:
    return epsilon_lower_bound(ends(quorum, counts, 1), ends(quorum, other, 2), delta=0.0, draws=draws)


LATE = [EDGE] * (ROUNDS - 1)
PAIRS = {
    "in the first round": ([EDGE, *LATE], [EDGE - 1, *LATE]),
    "in the last round": ([ASKED] * (ROUNDS - 1) + [EDGE], [ASKED] * (ROUNDS - 1) + [EDGE - 1]),
}
EVERY = {
    "in every round": ([EDGE, EDGE, EDGE - 1], [EDGE - 1, EDGE - 1, EDGE - 2]),
    "first absent, then there": ([EDGE - 1] + [EDGE] * (ROUNDS - 1), [EDGE] + [EDGE - 1] * (ROUNDS - 1)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_user_asked_once_shows_no_more_than_epsilon(pair: str) -> None:
    assert 0 <= found(ONCE, *PAIRS[pair]) <= EPSILON


@pytest.mark.parametrize("pair", EVERY)
def test_a_user_asked_in_every_round_shows_no_more_than_epsilon(pair: str) -> None:
    assert 0 <= found(OFTEN, *EVERY[pair]) <= EPSILON


def _quarter(quorum: Quorum) -> Quorum:
    return Quorum(0.5, EPSILON, quorum.participations, quorum.threshold_scale / 4, quorum.count_scale / 4, *REST)


def test_the_audit_catches_a_quarter_of_the_noise() -> None:
    assert found(_quarter(ONCE), *PAIRS["in the first round"]) > EPSILON


@pytest.mark.slow
def test_the_audit_catches_a_quarter_of_the_noise_where_users_are_asked_often() -> None:
    assert found(_quarter(OFTEN), *EVERY["in every round"], draws=16_000) > EPSILON  # the exact one is 2.8


def test_the_audit_catches_a_count_without_noise() -> None:
    silent = Quorum(0.5, EPSILON, ROUNDS, 0.0, 0.0, *REST)
    assert found(silent, *PAIRS["in the last round"]) > EPSILON


def test_the_audit_catches_a_threshold_without_noise_where_users_are_asked_often() -> None:
    """Noise for one round, and a user that is in all of them."""
    assert found(ONCE, *EVERY["in every round"], draws=4000) > EPSILON

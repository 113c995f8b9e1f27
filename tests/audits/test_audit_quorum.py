"""An audit of the quorum on worst-case neighbours, as a run shows it: after how many rounds it ends, if it does.

Worlds: every round is at the edge, and one user answers in all rounds, in none, or first not and then always. Counts
with Gaussian noise are seen beside the mean that they ride with, as a run's own `WithQuorum` makes them.
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audits.harness import epsilon_lower_bound
from quoron_client.protocol.questions import Answers
from quoron_privacy.accounts import gdp
from quoron_privacy.counts.quorum import Quorum, calibrate, noisy_count
from quoron_privacy.gaussian import SPARE, GaussianNoise
from quoron_privacy.noise.sources import SeededNoise
from quoron_server.algorithm import Update
from quoron_server.algorithms.quorum import MET, WithQuorum, decide, draw_limit
from quoron_server.parameters import Attendance

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


# Counts with Gaussian noise. A mean of n rows in [-1, 1] is mu-GDP; a user sends 1 or -1, or is absent.

MU, DELTA, ALONE, MANY = 1.0, 1e-2, Quorum(0.5, 0.0, 1, 0.0, 0.0, *REST), 10_000


def beside(free: float, size: int, own: tuple[float, float], seed: int) -> np.ndarray:
    """A mean's release and its count's, along the line that tells (1, here) from `own`, in deviations; `size` draws."""
    stream = SeededNoise(seed).stream("audit")
    noise = ALONE.deviation(free)
    mean, here = own
    seen = [noisy_count(EDGE + int(here), noise, stream) for _ in range(size)]
    means = mean * MU / 2 + stream.gaussian_steps(size) * 2.0**-30
    way = np.array([(1 - FAR[0]) * MU / 2, (1 - FAR[1]) * free])
    return np.stack([means, (np.array(seen) - EDGE) / noise], axis=1) @ way


FAR = (0.0, 0.0)  # absent: the row of zeros


def claimed(mu: float) -> float:
    return gdp.epsilon_for(mu, DELTA)


def apart(free: float) -> float:
    """A lower bound of ε at δ, of a user that sends 1 against nobody."""
    worlds = [lambda size, own=own, seed=seed: beside(free, size, own, seed) for seed, own in enumerate(((1, 1), FAR))]
    return epsilon_lower_bound(*worlds, delta=DELTA, draws=MANY)


def test_a_count_beside_a_mean_shows_no_more_than_the_mean_is_charged() -> None:
    assert 0.4 * claimed(MU) < apart(SPARE * MU) <= claimed(MU)


@pytest.mark.parametrize("free", [1.5 * MU, 2 * MU])
def test_the_audit_catches_a_count_that_is_composed_without_its_mu(free: float) -> None:
    """The mean is charged all of mu, and so is the count: together they are more than one."""
    assert apart(free) > claimed(MU)


@dataclass(frozen=True)
class Telling:
    """An algorithm of one round that tells how many answered, and nothing else."""

    deviation: float

    def update(self, state: Any, answers: Answers, noise: Any) -> Update[Any]:
        told = GaussianNoise(1.0, self.deviation)
        present = float(told.release(np.array([float(answers.answered.sum())]), noise.stream("told"))[0])
        return Update(state, (told.entry(),), present=present)


class ByTheRealisedNumber(WithQuorum):
    """Asks for the number that answered, not for what was told of it."""

    def update(self, state, answers, noise):
        told = super().update(state, answers, noise)
        met = self.counted(answers) >= self._quorum.needed(self._cohorts[state.round])
        return replace(told, public={"quorum": MET if met else "not met"})


class BeforeItIsCommitted(WithQuorum):
    """Tells its decision before the books hold the release: a start that is killed decides again, by other noise."""

    def update(self, state, answers, noise):
        starts = [super(BeforeItIsCommitted, self).update(state, answers, Start(noise.seed, k)) for k in range(30)]
        return replace(starts[-1], public={"quorum": sum(each.public["quorum"] == MET for each in starts)})


@dataclass(frozen=True)
class Start:
    """The noise of one start of a run."""

    seed: int
    nonce: int = 0

    def stream(self, *labels: str | int) -> Any:
        return SeededNoise(self.seed).stream(*labels, self.nonce)


def told(kind: type[WithQuorum], answered: int, first: int, size: int) -> np.ndarray:
    """What so many runs of one round show of their decision."""
    here = np.zeros(ASKED, np.uint8)
    here[answered:] = 1  # has not answered
    answers = Answers(np.zeros((ASKED, 1)), here)
    parameters, told = SimpleNamespace(cohorts=lambda: (ASKED,)), (Attendance(MU, told=True),)
    plan: Any = SimpleNamespace(parameters=parameters, attendance=lambda: told)
    made = kind(plan, ALONE, Telling(1 / MU))
    state: Any = SimpleNamespace(round=0, limit=0, ended=False, inner=None)
    shown = [made.update(state, answers, Start(first + number)).public["quorum"] for number in range(size)]
    return np.array([float(each == MET if isinstance(each, str) else each) for each in shown])


def by_what_is_told(kind: type[WithQuorum], draws: int) -> float:
    worlds = [lambda size, a=a, first=first: told(kind, a, first, size) for a, first in ((EDGE, 0), (EDGE - 1, 10**6))]
    return epsilon_lower_bound(*worlds, delta=DELTA, draws=draws)


def test_a_decision_by_what_a_release_tells_shows_no_more_than_the_release() -> None:
    assert 0 < by_what_is_told(WithQuorum, 4000) <= claimed(MU)


def test_the_audit_catches_a_decision_by_the_number_that_was_realised() -> None:
    assert by_what_is_told(ByTheRealisedNumber, 1000) > claimed(MU)


def test_the_audit_catches_a_decision_that_is_told_before_its_release_is_committed() -> None:
    assert by_what_is_told(BeforeItIsCommitted, 600) > claimed(MU)

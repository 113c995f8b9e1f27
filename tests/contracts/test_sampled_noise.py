"""Samplers are exact up to a total variation: every draw that a user's guarantee rests on counts against δ."""

from typing import Any

import pytest

from contracts import scenes
from quoron_privacy.noise import streams
from quoron_privacy.noise.streams import RandomStream, SeededNoise
from quoron_server.algorithms import ALGORITHMS, search

VARIANTS = tuple(dict.fromkeys((*ALGORITHMS, *scenes.SMALL)))
NO_SERVER_NOISE = {"sgd", "local-model"}  # clients draw it, or nobody
# Every phase has users of its own: the draws of other phases have the same law, whatever one user holds.
FRESH_USERS = {
    "accelerated-erm",
    "accelerated-sgd",
    "filtered-sgd",
    "one-pass-dp-sgd",
    "outlier-iterates",
    "phased-sgd",
}


class Counting(SeededNoise):
    """Seeded noise that counts Gaussian and Laplace draws, one after another."""

    drawn = 0

    def stream(self, *labels: str | int) -> RandomStream:
        return _Counted(super().stream(*labels)._draw)


class _Counted(RandomStream):
    def gaussian_steps(self, shape: Any) -> Any:
        Counting.drawn += streams.samples_of(shape)
        return super().gaussian_steps(shape)

    def laplace_steps(self, scale: float, shape: Any) -> Any:
        Counting.drawn += streams.samples_of(shape)
        return super().laplace_steps(scale, shape)


class Slack(float):
    """The total variation of one draw, which notes by how many draws it is multiplied."""

    counted: list[int]

    def __mul__(self, draws: float) -> float:
        self.counted.append(int(draws))
        return float(self) * draws


def draws_of_rounds(name: str) -> list[int]:
    """Draws in each round, where everybody answers."""
    algorithm, noise, engine = scenes.make(name), Counting(3), scenes.Quadratic()
    state, rounds = algorithm.init(), []
    while (question := algorithm.request(state, noise)) is not None:
        Counting.drawn = 0
        state = algorithm.update(state, engine.ask(question), noise).state
        rounds.append(Counting.drawn)
    return rounds


@pytest.mark.parametrize("name", VARIANTS)
def test_every_draw_of_noise_that_a_users_guarantee_rests_on_counts_against_delta(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, rounds = scenes.make_plan(name), draws_of_rounds(name)
    drawn, base = sum(rounds), name.partition("/")[0]
    if {name, base} & FRESH_USERS:
        size = plan.schedule.participations  # consecutive rounds
        drawn = max(sum(rounds[first : first + size]) for first in range(len(rounds)))
    assert (drawn == 0) == (name in NO_SERVER_NOISE)
    info, lacks, verified = ALGORITHMS[plan.algorithm], search.lacks, []

    def noted(*, gaussians: int = 0, laplaces: int = 0) -> float:
        verified.append(gaussians + laplaces)
        return lacks(gaussians=gaussians, laplaces=laplaces)

    slack = Slack(streams.GAUSSIAN_SLACK)
    slack.counted = verified
    monkeypatch.setattr(search, "lacks", noted)
    monkeypatch.setattr(streams, "GAUSSIAN_SLACK", slack)
    info.verify(plan)
    info.pairs(plan)
    if drawn:
        assert max(verified) >= drawn
        assert max(verified) <= 4 * max(drawn, sum(plan.schedule.cohorts))  # nor is δ given away

"""Replay of `tracking-srgd` at the tight corners of its rows, under both adjacencies, and of twins that are broken."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contracts.neighbours import ABSENT, Pair, far, threshold
from contracts.replay import first_complaint, replay, scene
from contracts.scenes import PRIVACY, PROBLEM, SMALL, make_plan
from contracts.test_replay import pairs, shares
from contracts.worlds import Complaint
from quoron_privacy.gaussian import GaussianNoise
from quoron_privacy.means import free_counts
from quoron_privacy.means.free_counts import PrefixNormCounts
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.tracking import PILOT, TrackingSRGD
from quoron_server.algorithms.whitened.method import WhitenedTracking
from quoron_server.plan import RunPlan

NAMES = ("tracking-srgd",)
CORNERS = (  # radii of `neighbours.edges`: C, ¾ C, ⅔ C, 2 C; directions 0 and 1 are opposite
    *((threshold(0, 0), threshold(radius, 1, near)) for radius in range(4) for near in range(3)),
    *((threshold(radius, 0, near), ABSENT) for radius in range(4) for near in range(3)),
    (far(0), far(1)),
    (1, far(0)),  # nothing but presence, and a whole radius
    (1, ABSENT),
)


def zero_out(name: str) -> RunPlan:
    info = ALGORITHMS[NAMES[0]]
    return info.plan(PROBLEM, replace(PRIVACY, adjacency="zero-out"), info.options(**SMALL[name]), "calibrated", 7)


def tight(plan: RunPlan) -> list[Pair]:
    """Every corner in every round after the pilot."""
    found = [Pair(at, 5, *corner, turn=0) for at in range(PILOT, plan.cost.rounds) for corner in CORNERS]
    if plan.guarantee.adjacency == "zero-out":
        found = [replace(each, second=ABSENT) for each in found if each.first != ABSENT]
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "plan_of",
    [pytest.param(make_plan, id="replace-one"), pytest.param(zero_out, id="zero-out", marks=pytest.mark.slow)],
)
def test_corners_use_all_of_what_every_round_is_charged_and_no_more(plan_of: Any, name: str) -> None:
    plan = plan_of(name)
    ALGORITHMS[NAMES[0]].verify(plan)
    whole = scene(TrackingSRGD(plan))
    for at in range(PILOT, plan.cost.rounds):
        mine = [each for each in tight(plan) if each.round == at]
        used = max(share for pair in mine for share in shares(plan, replay(whole, pair) or []))
        # Only the first of the correlated rounds has the largest column: the others use less.
        assert used <= 1 + 1e-9
        assert used >= (0.999 if at <= PILOT + 1 else 0.5)


def complaint(algorithm: TrackingSRGD, name: str, plan: RunPlan) -> str:
    """What replay says of a twin, or nothing."""
    return first_complaint(scene(algorithm), (*tight(plan), *pairs(name)))


class LeakingSpread(TrackingSRGD):
    """The spread knows a millionth of the users' mean length."""

    def update(self, state, answers, noise):
        update = super().update(state, answers, noise)
        lengths = np.linalg.norm(np.clip(np.nan_to_num(answers.values), -1, 1), axis=1)
        return replace(update, state=replace(update.state, spread=update.state.spread * (1 + 1e-6 * lengths.mean())))


class CountedPresence(TrackingSRGD):
    """Divides by how many answered, exactly."""

    def update(self, state, answers, noise):
        exact = state.presence.seen(float(answers.answered.mean()), 1e-9)
        return super().update(replace(state, presence=exact), answers, noise)


@pytest.mark.parametrize("twin", [LeakingSpread, CountedPresence])
@pytest.mark.parametrize("name", NAMES)
def test_replay_catches_an_algorithm_that_leaks(twin: type[TrackingSRGD], name: str) -> None:
    plan = make_plan(name)
    assert complaint(twin(plan), name, plan) != ""


@pytest.mark.parametrize(
    ("name", "algorithm", "at"), [(NAMES[0], TrackingSRGD, PILOT), ("whitened-tracking", WhitenedTracking, 0)]
)
def test_replay_catches_a_threshold_of_three_quarters(
    name: str, algorithm: Any, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = free_counts.loops.sum_norm_counts

    def wider(values, answered, transform, centre, radius, unit):
        total, shares_, clipped = honest(values, answered, transform, centre, radius, unit)
        within = 0
        for user in np.flatnonzero(answered):
            one = values[user : user + 1], answered[user : user + 1]
            _, (tail, _, here, _), _ = honest(*one, transform, centre, radius, unit)
            within += bool(here) and 4 * tail >= unit
        return total, np.array([shares_[0], within, *shares_[2:]]), clipped

    plan = make_plan(name)
    monkeypatch.setattr(free_counts.loops, "sum_norm_counts", wider)
    broken = scene(algorithm(plan))
    corners = [Pair(at, 5, threshold(0, 0), threshold(1, 1, near), turn=0) for near in range(3)]
    with pytest.raises(Complaint, match="the plan charges"):
        [replay(broken, corner) for corner in corners]


def test_replay_catches_shares_with_half_the_noise_beside_correlated_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    honest: Any = PrefixNormCounts.shares
    half = property(lambda self: GaussianNoise(honest.fget(self).sensitivity, honest.fget(self).scale / 2))
    monkeypatch.setattr(PrefixNormCounts, "shares", half)
    plan = make_plan(NAMES[0])
    assert "the plan charges" in complaint(TrackingSRGD(plan), NAMES[0], plan)


def test_replay_catches_the_noise_of_zero_out_under_replace_one() -> None:
    plan, other = make_plan(NAMES[0]), zero_out(NAMES[0])
    mistaken = replace(plan, parameters=replace(other.parameters, adjacency="replace-one"))
    assert "the plan charges" in complaint(TrackingSRGD(mistaken), NAMES[0], mistaken)

"""Replay of `whitened-tracking` at its tight corners, under both adjacencies, and of twins that are broken."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from contracts.neighbours import ABSENT, Pair, far, threshold
from contracts.replay import Scene, first_complaint, replay, scene
from contracts.scenes import PRIVACY, PROBLEM, SMALL, make_plan
from contracts.test_replay import pairs, shares
from cover import by_default
from quoron_privacy.means import free_counts
from quoron_privacy.means.free_counts import MomentMean, NormCountMean, NormCountSum, ShapedMomentSum
from quoron_server.algorithms import ALGORITHMS
from quoron_server.algorithms.whitened import method
from quoron_server.algorithms.whitened.method import WhitenedTracking
from quoron_server.plan import RunPlan

NAME = "whitened-tracking"
CORNERS = (  # radii of `neighbours.edges`: C, ¾ C, ⅔ C, 2 C; directions 0 and 1 are opposite
    *((threshold(0, 0), threshold(radius, 1, near)) for radius in range(4) for near in range(3)),
    *((threshold(radius, 0, near), ABSENT) for radius in range(4) for near in range(3)),
    (far(0), far(1)),
    (far(0), far(2)),
    (ABSENT, far(3)),
)


@cache
def zero_out() -> RunPlan:
    info = ALGORITHMS[NAME]
    return info.plan(PROBLEM, replace(PRIVACY, adjacency="zero-out"), info.options(**SMALL[NAME]), "calibrated", 7)


def tight(plan: RunPlan) -> list[Pair]:
    """The same corners in every round."""
    found = [Pair(0, 5, first, second, turn=0) for first, second in CORNERS]
    if plan.guarantee.adjacency == "zero-out":
        found = [replace(each, second=ABSENT) for each in found if each.first != ABSENT]
    return found


def used(whole: Scene, plan: RunPlan) -> list[float]:
    return [share for pair in tight(plan) for share in shares(plan, replay(whole, pair) or [])]


@cache
def classes() -> RunPlan:
    return make_plan(f"{NAME}/classes")


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan_of", [lambda: make_plan(NAME), zero_out, classes], ids=["replace-one", "zero-out", "classes"]
)
def test_corners_use_all_of_what_the_whole_run_is_charged_and_no_more(plan_of: Any) -> None:
    plan = plan_of()
    ALGORITHMS[NAME].verify(plan)
    assert 0.999 <= max(used(scene(WhitenedTracking(plan)), plan)) <= 1 + 1e-9


def test_the_noise_of_zero_out_is_about_half_and_would_not_do_for_replace_one() -> None:
    plan, other = make_plan(NAME), zero_out()
    ratio = np.array(other.parameters.gradient_scales) / np.array(plan.parameters.gradient_scales)
    np.testing.assert_allclose(ratio, 0.5 / 0.9486832, rtol=1e-3)
    mistaken = replace(plan, parameters=replace(other.parameters, adjacency="replace-one"))
    assert "the plan charges" in complaint(WhitenedTracking(mistaken), mistaken)


def complaint(algorithm: WhitenedTracking, plan: RunPlan) -> str:
    """What replay says of a twin, or nothing."""
    return first_complaint(scene(algorithm), (*tight(plan), *pairs(NAME)))


class LeakingRadius(WhitenedTracking):
    """The next radius knows a millionth of the users' mean length."""

    def update(self, state, answers, noise):
        update = super().update(state, answers, noise)
        lengths = np.linalg.norm(np.clip(np.nan_to_num(answers.values), -1, 1), axis=1)
        return replace(update, state=replace(update.state, radius=update.state.radius * (1 + 1e-6 * lengths.mean())))


class CountedPresence(WhitenedTracking):
    """Divides by how many answered, exactly."""

    def update(self, state, answers, noise):
        exact = state.presence.seen(float(answers.answered.mean()), 1e-9)
        return super().update(replace(state, presence=exact), answers, noise)


class OwnVotes(WhitenedTracking):
    """Clips changes of the loss at their own mean length, and releases their mean over that."""

    def update(self, state, answers, noise):
        if state.round == self.parameters.gradients:
            change = answers.values[:, 0] - answers.values[:, 1]
            own = float(np.mean(np.abs(np.nan_to_num(change, posinf=0.0, neginf=0.0))))
            length = max(float(np.linalg.norm(state.point)), 1e-9)
            state = replace(state, spread=(own / length) ** 2, point=state.point + 1e-9)
        return super().update(state, answers, noise)


class RedrawnRadius(WhitenedTracking):
    """Releases a second time, with the same noise, what is clipped elsewhere."""

    def update(self, state, answers, noise):
        super().update(replace(state, radius=state.radius / 2), answers, noise)
        return super().update(state, answers, noise)


class WidensByRows(WhitenedTracking):
    """Whitens between the first and the last second moment where users themselves tell that it is needed."""

    def update(self, state, answers, noise):
        far = np.abs(np.nan_to_num(answers.values[answers.answered])).max(axis=1, initial=0.0) > 0.9
        honest = method.whitening
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(method, "whitening", lambda *a, **k: honest(*a, **k)._replace(narrow=bool(far.any())))
            return super().update(state, answers, noise)


class OwnWindow(WhitenedTracking):
    """Looks at columns in windows as wide as these users' own numbers."""

    def update(self, state, answers, noise):
        if state.round == 0:
            own = np.abs(np.nan_to_num(answers.values[answers.answered])).max(initial=0.5)
            state = replace(state, windows=replace(state.windows, half=state.windows.half * min(own, 1.0)))
        return super().update(state, answers, noise)


@pytest.mark.parametrize(
    "twin",
    by_default(
        [LeakingRadius, CountedPresence, OwnVotes, RedrawnRadius, WidensByRows, OwnWindow],
        [LeakingRadius, OwnVotes, RedrawnRadius, WidensByRows, OwnWindow],
    ),
)
def test_replay_catches_an_algorithm_that_leaks(twin: type[WhitenedTracking]) -> None:
    plan = make_plan(NAME)
    assert complaint_of_the_sound_one() == ""
    assert complaint(twin(plan), plan) != ""


@cache
def complaint_of_the_sound_one() -> str:
    """At the corners: `test_replay` has all other pairs."""
    return first_complaint(scene(WhitenedTracking(make_plan(NAME))), tight(make_plan(NAME)))


@pytest.mark.parametrize("constant", ["column_scale", "length_scale", "moment_scales", "gradient_scales", "vote_scale"])
def test_replay_catches_noise_that_is_three_per_cent_too_small(constant: str) -> None:
    plan = make_plan(NAME)
    held = getattr(plan.parameters, constant)
    quieter = tuple(each / 1.03 for each in held) if isinstance(held, tuple) else held / 1.03
    broken = replace(plan, parameters=replace(plan.parameters, **{constant: quieter}))
    if constant in ("column_scale", "length_scale", "moment_scales"):  # others of their round are not at a corner
        with pytest.raises(Exception, match="too little noise"):
            ALGORITHMS[NAME].verify(broken)
    else:
        own = replace(plan, parameters=plan.parameters)
        mistaken = Claiming(broken, own)
        assert "the plan charges" in complaint(mistaken, own)


class Claiming(WhitenedTracking):
    """Runs one plan and claims another's charges."""

    def __init__(self, plan: RunPlan, claimed: RunPlan) -> None:
        super().__init__(plan)
        self.plan = claimed


class ClippedByClass(WhitenedTracking):
    """Every contrast has the whole radius for itself."""

    def update(self, state, answers, noise):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(free_counts.loops, "sum_norm_counts", each_for_itself)
            return super().update(state, answers, noise)


def each_for_itself(values, answered, transform, centre, radius, unit, honest=free_counts.loops.sum_norm_counts):
    parts = [
        honest(np.ascontiguousarray(rows), answered, transform, around, radius, unit)
        for rows, around in zip(np.split(values, 2, axis=1), np.split(centre, 2), strict=True)
    ]
    return np.concatenate([total for total, *_ in parts]), parts[0][1], parts[0][2]


def test_replay_catches_a_clip_for_each_contrast_between_classes() -> None:
    plan = classes()
    broken = scene(ClippedByClass(plan))
    caught = next(pair for pair in tight(plan) if "the plan charges" in first_complaint(broken, [pair]))
    assert first_complaint(scene(WhitenedTracking(plan)), [caught]) == ""


def test_replay_catches_a_second_triangle_under_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    summed, honest, single = ShapedMomentSum.of, MomentMean.release, [0.0]

    def remembered(self, factors, answered):
        single[0] = float(np.float32(np.clip(np.nan_to_num(factors[:][answered, 0]), -1, 1).mean()))
        return summed(self, factors, answered)

    def mirrored(self, sums, radius, stream):
        found = honest(self, sums, radius, stream)
        return found._replace(mean=found.mean + np.tril(np.full_like(found.mean, 1e-9 * single[0]), -1))

    monkeypatch.setattr(ShapedMomentSum, "of", remembered)
    monkeypatch.setattr(MomentMean, "release", mirrored)
    plan = make_plan(NAME)
    assert complaint(WhitenedTracking(plan), plan) != ""


def test_replay_catches_rows_that_are_tested_before_they_are_whitened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finite gradient that overflows when whitened makes the sum not a number."""
    summed, honest, wild = NormCountSum.of, NormCountMean.release, [False]

    def remembered(self, values, answered):
        with np.errstate(all="ignore"):
            lengths = np.linalg.norm(values @ self.transform, axis=1)
        wild[0] = bool((answered & np.isfinite(values).all(axis=1) & ~np.isfinite(lengths)).any())
        return summed(self, values, answered)

    def plain(self, sums, stream):
        found = honest(self, sums, stream)
        return found._replace(mean=found.mean * (np.nan if wild[0] else 1.0))

    monkeypatch.setattr(NormCountSum, "of", remembered)
    monkeypatch.setattr(NormCountMean, "release", plain)
    with np.errstate(all="ignore"):
        assert first_complaint(scene(WhitenedTracking(make_plan(NAME))), pairs(NAME)) != ""
